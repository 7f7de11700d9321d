#include "infer/picture_model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/threads/parallel.h"
#include "data/images/image_batches.h"
#include "data/images/preprocessor.h"
#include "data/loader.h"
#include "infer/model_runnable.h"

namespace brrr::infer {

PictureModel::PictureModel(const io::ModelFolder& folder, const Backend& backend,
                           const EncoderOptions& options)
    : model_(folder.definition), batch_(options.batch_size > 0 ? options.batch_size : 16) {
  if (!model_->sees_pictures())
    user_error("{}: a {} reads text and sees no pictures", folder.folder.string(),
               model_->architecture().title);
  form_ = io::picture_form(folder.folder, model_);
  RunnableOptions how;
  how.passes = for_inference(options.precision, options.quantization);
  runner_ = std::make_unique<Runner>(
      forward_runnable(model_, folder.weights, TextLayout::padded), backend, how, options.memory,
      batch_ * model_->sizes().picture->elements() * static_cast<int64_t>(sizeof(float)));
}

void PictureModel::run(
    std::span<const float> pixels,
    const std::function<void(size_t picture, std::span<const float>)>& on_picture) {
  const models::PictureSizes picture = *model_->sizes().picture;
  const auto size = static_cast<size_t>(picture.elements());
  const size_t count = pixels.size() / size;
  for (size_t begin = 0; begin < count; begin += static_cast<size_t>(batch_)) {
    const size_t rows = std::min(count - begin, static_cast<size_t>(batch_));
    PortValues inputs;
    HostTensor tensor(
        DType::f32, {static_cast<int64_t>(rows), picture.channels, picture.height, picture.width});
    std::ranges::copy(pixels.subspan(begin * size, rows * size), tensor.as<float>().begin());
    inputs.emplace("pixels", std::move(tensor));
    const PortValues outputs = runner_->run(inputs);
    const HostTensor& output = outputs.begin()->second.tensor();
    const std::span<const float> numbers = output.as<float>();
    const size_t width = numbers.size() / rows;
    for (size_t row = 0; row < rows; ++row)
      on_picture(begin + row, numbers.subspan(row * width, width));
  }
}

TaskEvaluation evaluate_pictures(const io::ModelFolder& model, const io::ImageSet& set,
                                 const Backend& backend, const PictureEvaluationOptions& options) {
  PictureModel net(model, backend, options.run);
  const std::vector<std::string>& labels = model.definition->task().labels;
  io::ImageBatchOptions images;
  images.form = net.form();
  images.skip_bad_images = options.skip_bad_images;
  if (options.max_pixels > 0) images.most_pixels = options.max_pixels;
  io::LoaderOptions l;
  l.mode = io::Sampling::kSequential;
  l.batch = net.batch();
  l.workers = std::max(1, thread_count());
  static_cast<io::BatchOptions&>(l) = io::ImageBatches::batch_options(set, images, l);
  auto source = std::make_unique<io::ImageBatches>(set, l, images);
  const io::ImageBatches& batches = *source;
  io::Loader loader(std::move(source), l);
  const auto metrics = io::make_picture_metrics(labels);
  TaskEvaluation result;
  const Stopwatch watch;
  std::vector<float> logits;
  for (int64_t i = 0, count = loader.batches_per_pass(); i < count; ++i) {
    const io::Batch& batch = loader.next();
    const std::vector<int32_t>& targets = batch.ids("targets");
    logits.clear();
    net.run(batch.values("pixels"), [&](size_t row, std::span<const float> of_row) {
      if (targets[row] != io::kIgnoreId) {
        check_logits(of_row, set.what());
        result.loss += cross_entropy_of(of_row, targets[row]);
        ++result.scored;
      }
      logits.insert(logits.end(), of_row.begin(), of_row.end());
    });
    metrics->add(logits, batch);
    if (options.progress)
      options.progress(std::min<int64_t>((i + 1) * l.batch, std::ssize(set.items())),
                       std::ssize(set.items()));
  }
  result.seconds = watch.seconds();
  result.loss /= static_cast<double>(std::max<int64_t>(1, result.scored));
  result.texts = result.scored;
  result.metrics = metrics->results();
  result.by_label = metrics->by_label();
  result.confusion = metrics->confusion();
  result.explanation = metrics->explanation();
  result.notes = set.notes;
  for (const std::string& fault : batches.skipped()) result.notes.push_back("left out: " + fault);
  return result;
}

}  // namespace brrr::infer
