#include "train/open_run.h"

#include <utility>

#include "base/human.h"
#include "models/initialise.h"
#include "train/mean_loss.h"
#include "train/parts.h"
#include "train/prepare_run.h"

namespace brrr::train {

OpenRun::OpenRun(TrainOptions options, std::optional<ResumePoint> resume, Say say)
    : options_(std::move(options)), resume_(std::move(resume)), say_(std::move(say)) {
  PreparedRun run = prepare_run(options_, resume_, say_);
  start_from_ = std::move(run.start_from);
  generation_config_ = std::move(run.generation_config);
  dataset_ = std::move(run.dataset);
}

void OpenRun::compile() {
  model_ = with_loss_of(options_, start_from_ ? to_start_from(*start_from_, options_)
                                  : resume_   ? io::read_definition(resume_->checkpoint)
                                              : new_model(options_, dataset_));
  const int64_t vocabulary = model_->sizes().vocabulary;
  dataset_.verify_shards(vocabulary);
  say_("compiling the model");
  const ProcessInputs inputs = inputs_of(options_, &dataset_, vocabulary);
  SettledRun run = settle_run(options_, model_, inputs, say_);
  options_ = run.plan.options;
  session_ = std::move(run.session);
  process_forecast_ = run.plan.process;
  memory_limit_ = run.limit.bytes;
  schedule_ = schedule_of(options_);
  const io::LoaderOptions l = loader_options(options_, *model_);
  loader_.emplace(dataset_.batches(l), l);
  for (const std::string& line : start_lines(*session_, *model_, options_)) say_(line);
  say_(resume_ ? "allocating memory and loading the checkpoint"
               : "allocating memory and initialising the weights");
  session_->allocate();
}

void OpenRun::initialise() {
  std::vector<std::string> made;
  if (start_from_)
    for (const models::ParameterInfo& p : model_->parameters())
      if (start_from_->weights->find(p.name) == nullptr) made.push_back(p.name);
  session_->engine().load(*models::made_weights(
      *model_, models::initial_weights(*model_, static_cast<uint32_t>(options_.seed)),
      start_from_ ? start_from_->weights : nullptr));
  if (!made.empty())
    say_(fmt::format("note: these parameters are new, not in the model: {}", listed(made)));
  start_from_.reset();
}

void OpenRun::load(const fs::path& checkpoint) {
  state_ = load_checkpoint(checkpoint, session_->engine(), *model_, options_.optim);
  loader_->restore(io::LoaderState::from_json(state_.loader));
}

const std::vector<io::Batch>& OpenRun::next_batches() {
  batches_.resize(static_cast<size_t>(options_.gradient_accumulation_steps));
  for (io::Batch& b : batches_) b = loader_->next();
  return batches_;
}

StepResult OpenRun::step(Timeline* timeline, std::optional<double> rate) {
  next_batches();
  const StepResult result =
      session_->step(state_.step, batches_, rate.value_or(scheduled_rate()), timeline);
  for (const io::Batch& batch : batches_)
    state_.tokens += content_of(batch, options_.context).tokens;
  ++state_.step;
  return result;
}

Score OpenRun::evaluate() {
  BRRR_CHECK(dataset_.has_val, "a run without validation data");
  return train::evaluate(*session_, *model_, dataset_, options_, options_.eval_batches);
}

ModelParts OpenRun::parts() const {
  return {session_->engine(), *model_, dataset_.tokenizer.get(),
          dataset_.pictures ? dataset_.pictures->preprocessor : "", generation_config_};
}

void OpenRun::save_checkpoint_in(const fs::path& run) {
  state_.loader = loader_->state().to_json();
  save_checkpoint(run, parts(), options_, state_);
}

}  // namespace brrr::train
