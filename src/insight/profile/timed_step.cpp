#include "insight/profile/timed_step.h"

#include <random>

#include "base/memory.h"
#include "insight/profile/random_pictures.h"
#include "models/adapters/adapted_model.h"
#include "models/initialise.h"
#include "train/fit.h"
#include "train/parts.h"

namespace brrr::insight {

TimedStep::TimedStep(const train::TrainOptions& options, int64_t memory_limit,
                     models::ModelPtr model)
    : options_(options), model_(std::move(model)) {
  if (model_ == nullptr)
    model_ = train::model_of(options_, options_.vocab_size > 0 ? options_.vocab_size : kCharacters);
  model_ = models::over_floats(model_);  // the weights are random
  session_ = train::compile_run(options_, *model_);
  int64_t needed = session_->forecast().total();
  if (session_->engine().backend().memory_bytes == 0) {
    machine::trim_heap();  // of what was measured before
    needed += resident_memory().needed();
  }
  if (needed > memory_limit)
    throw UserError(
        fmt::format("needs {}, more than {}", memory_text(needed), memory_text(memory_limit)),
        ExitCode::kNoMemory);
  session_->allocate();
  session_->engine().load(*models::made_weights(*model_, models::initial_weights(*model_, 1)));
  std::mt19937 random(7);
  const auto ids = [&](size_t count, int64_t below) {
    std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(below - 1));
    std::vector<int32_t> list(count);
    for (int32_t& i : list) i = id(random);
    return list;
  };
  const models::Task task = model_->task();
  const int64_t vocabulary = model_->sizes().vocabulary;
  const auto rows = static_cast<size_t>(options_.batch_size);
  const io::BatchOptions layout = train::loader_options(options_, *model_);
  io::Batch batch;
  if (const auto picture = model_->sizes().picture) {
    fill_random_pictures(*picture, options_.batch_size, vocabulary, 0, batch);
    batches_.assign(static_cast<size_t>(options_.gradient_accumulation_steps), batch);
    return;
  }
  const bool pairs = train::learns_preferences(options_);
  const std::vector<int64_t> lengths(pairs ? 2 * rows : rows, options_.context);
  const std::span<int32_t> of_text = batch.make_rows(lengths, layout, options_.context, 0).tokens;
  const size_t tokens = of_text.size();
  std::ranges::copy(ids(tokens, vocabulary), of_text.begin());
  if (task.head == models::Head::values) {
    batch.make<int32_t>("targets", rows, 0);
    batch.make("values", rows * task.labels.size(), 0.5f);
  } else if (task.head == models::Head::classes) {
    batch.tensors.push_back({"targets", ids(rows, std::ssize(task.labels))});
  } else {
    const bool by_label = task.head == models::Head::token_classes;
    const int64_t kinds = by_label ? std::ssize(task.labels) : vocabulary;
    batch.tensors.push_back({"targets", ids(tokens, kinds)});
  }
  batch.make<int32_t>("types", tokens, 0);
  batch.count = std::ssize(batch.ids("targets"));
  if (pairs) {
    batch.make("reference", 2 * rows, 0.0f);
    batch.count = options_.batch_size;
  }
  batches_.assign(static_cast<size_t>(options_.gradient_accumulation_steps), batch);
}

double TimedStep::run(Timeline* timeline) {
  return session_->step(done_++, batches_, 1e-4, timeline).loss;
}

int64_t TimedStep::sequences() const {
  return options_.batch_size * options_.gradient_accumulation_steps;
}

}  // namespace brrr::insight
