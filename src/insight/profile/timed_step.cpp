#include "insight/profile/timed_step.h"

#include "base/memory.h"
#include "insight/profile/random_batch.h"
#include "models/adapters/adapted_model.h"
#include "models/initialise.h"
#include "train/dataset.h"
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
  io::BatchOptions layout = train::loader_options(options_, *model_);
  layout.lengths.clear();  // batches of full rows are the largest
  io::Batch batch;
  fill_random_batch(options_, *model_, layout, 0, batch);
  batches_.assign(static_cast<size_t>(options_.gradient_accumulation_steps), batch);
}

double TimedStep::run(Timeline* timeline) {
  return session_->step(done_++, batches_, 1e-4, timeline).loss;
}

int64_t TimedStep::rows() const {
  return options_.batch_size * options_.gradient_accumulation_steps;
}

int64_t TimedStep::tokens() const { return train::tokens_of_step(options_); }

}  // namespace brrr::insight
