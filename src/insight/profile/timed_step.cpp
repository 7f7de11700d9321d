#include "insight/profile/timed_step.h"

#include <random>

#include "base/memory.h"
#include "models/initialise.h"
#include "runtime/parameters.h"
#include "train/fit.h"
#include "train/parts.h"

namespace brrr::insight {

TimedStep::TimedStep(const train::TrainOptions& options, int64_t memory_limit,
                     models::ModelPtr model)
    : options_(options), model_(std::move(model)) {
  if (model_ == nullptr)
    model_ = train::model_of(options_, options_.vocab_size > 0 ? options_.vocab_size : kCharacters);
  session_ = train::compile_run(options_, *model_);
  int64_t needed = session_->forecast().total();
  if (session_->engine().backend().memory_bytes == 0) {
    train::trim_heap();  // of what was measured before
    needed += resident_memory().needed();
  }
  if (needed > memory_limit)
    throw UserError(
        fmt::format("needs {}, more than {}", memory_text(needed), memory_text(memory_limit)),
        ExitCode::kNoMemory);
  session_->allocate();
  load_parameters(session_->engine(), models::initial_weights(*model_, 1));
  std::mt19937 random(7);
  std::uniform_int_distribution<int32_t> id(0,
                                            static_cast<int32_t>(model_->sizes().vocabulary - 1));
  const auto n = static_cast<size_t>(options_.batch_size * options_.context);
  for (auto* ids : {&tokens_, &targets_})
    for (size_t i = 0; i < n; ++i) ids->push_back(id(random));
}

double TimedStep::run(Timeline* timeline) {
  const train::Batch batch =
      train::token_batch(tokens_, targets_, static_cast<int64_t>(tokens_.size()));
  const std::vector<train::Batch> batches(static_cast<size_t>(options_.gradient_accumulation_steps),
                                          batch);
  return session_->step(done_++, batches, 1e-4, timeline).loss;
}

int64_t TimedStep::sequences() const {
  return options_.batch_size * options_.gradient_accumulation_steps;
}

}  // namespace brrr::insight
