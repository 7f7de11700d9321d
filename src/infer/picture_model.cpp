#include "infer/picture_model.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/threads/parallel.h"
#include "data/images/image_batches.h"
#include "data/images/preprocessor.h"
#include "data/loader.h"
#include "data/strided_batches.h"
#include "infer/model_runnable.h"
#include "runtime/ranks/shared_work.h"

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

namespace {

/// The faults of the pictures that all ranks left out, in order of the pictures. Throws UserError
/// where they are more than may be left out.
std::vector<std::string> skipped_by_all(std::map<size_t, std::string> faults, int64_t most,
                                        Communicator* communicator) {
  if (communicator != nullptr) {
    Packed own;
    for (const auto& [item, fault] : faults) {
      own.put_value(item);
      own.put_text(fault);
    }
    for (std::string& bytes : gather_texts(*communicator, own.bytes()))
      for (Packed packed(std::move(bytes)); !packed.is_at_end();) {
        const auto item = packed.take_value<size_t>();
        faults.emplace(item, packed.take_text());
      }
  }
  std::vector<std::string> list;
  for (auto& [item, fault] : faults) {
    if (std::ssize(list) == most) throw UserError(io::too_many_bad_images(fault, most));
    list.push_back(std::move(fault));
  }
  return list;
}

}  // namespace

TaskEvaluation evaluate_pictures(const io::ModelFolder& model, const io::ImageSet& set,
                                 const Backend& backend, const PictureEvaluationOptions& options) {
  std::optional<PictureModel> net;
  run_on_all(options.communicator, [&] { net.emplace(model, backend, options.run); });
  const std::vector<std::string>& labels = model.definition->task().labels;
  io::ImageBatchOptions images;
  images.form = net->form();
  images.skip_bad_images = options.skip_bad_images;
  if (options.max_pixels > 0) images.most_pixels = options.max_pixels;
  io::LoaderOptions l;
  l.mode = io::Sampling::kSequential;
  l.batch = net->batch();
  l.workers = std::max(1, thread_count());
  static_cast<io::BatchOptions&>(l) = io::ImageBatches::batch_options(set, images, l);
  Communicator* const communicator = options.communicator;
  auto source = std::make_unique<io::ImageBatches>(set, l, images);
  const io::ImageBatches& batches = *source;
  const int64_t count = batches.batches_per_pass();
  io::Loader loader(std::make_unique<io::StridedBatches>(std::move(source), rank_of(communicator),
                                                         ranks_of(communicator)),
                    l);
  const auto metrics = io::make_picture_metrics(labels);
  TaskEvaluation result;
  const Stopwatch watch;
  const auto run_next = [&](int64_t) {
    const io::Batch& batch = loader.next();
    const std::vector<int32_t>& targets = batch.ids("targets");
    std::vector<float> logits;
    net->run(batch.values("pixels"), [&](size_t row, std::span<const float> of_row) {
      if (targets[row] != io::kIgnoreId) check_logits(of_row, set.what());
      logits.insert(logits.end(), of_row.begin(), of_row.end());
    });
    Packed packed;
    packed.put<int32_t>(targets);
    packed.put<float>(logits);
    return packed;
  };
  divide_pieces(communicator, count, 1, run_next, [&](int64_t i, Packed& packed) {
    const std::vector<int32_t> targets = packed.take<int32_t>();
    const std::vector<float> logits = packed.take<float>();
    const size_t K = logits.size() / targets.size();
    for (size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] == io::kIgnoreId) continue;
      result.loss += cross_entropy_of(std::span(logits).subspan(row * K, K), targets[row]);
      ++result.scored;
    }
    io::Batch batch;
    std::ranges::copy(targets, batch.make<int32_t>("targets", targets.size(), 0).begin());
    metrics->add(logits, batch);
    if (options.progress)
      options.progress(std::min<int64_t>((i + 1) * l.batch, std::ssize(set.items())),
                       std::ssize(set.items()));
    return true;
  });
  result.seconds = watch.seconds();
  result.loss /= static_cast<double>(std::max<int64_t>(1, result.scored));
  result.texts = result.scored;
  result.metrics = metrics->results();
  result.by_label = metrics->by_label();
  result.confusion = metrics->confusion();
  result.explanation = metrics->explanation();
  result.notes = set.notes;
  for (const std::string& fault :
       skipped_by_all(batches.skipped_items(), options.skip_bad_images, communicator))
    result.notes.push_back("left out: " + fault);
  return result;
}

}  // namespace brrr::infer
