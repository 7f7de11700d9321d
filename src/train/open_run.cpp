#include "train/open_run.h"

#include <utility>

#include "base/clock.h"
#include "base/human.h"
#include "base/pace.h"
#include "machine/process.h"
#include "models/adapters/adapted_model.h"
#include "models/initialise.h"
#include "runtime/ranks/shared_work.h"
#include "train/mean_loss.h"
#include "train/parts.h"
#include "train/prepare_run.h"
#include "train/ranks.h"

namespace brrr::train {

namespace {

/// Gives every rank the options of rank 0.
TrainOptions options_of_first(const TrainOptions& options, Communicator& communicator) {
  const std::string json = gather_texts(communicator, to_json(options))[0];
  if (communicator.rank() == 0) return options;
  TrainOptions first = options_from_json(json, "the options of rank 0");
  first.given = options.given;
  first.resume = options.resume;
  return first;
}

/// The base of an adapter, by the name that the user gave unless that is a path.
io::AdapterBase named_base(const io::ModelFolder& model, const TrainOptions& options) {
  io::AdapterBase base = io::base_of_model(model);
  std::error_code ignored;
  if (model.definition->adapted() == nullptr && !fs::exists(options.init_from, ignored))
    base.name = options.init_from;
  return base;
}

/// The model of a checkpoint. The base of an adapter is read from its own folder, so the run's
/// dropout is set here.
models::ModelPtr resumed_model(const fs::path& checkpoint, const TrainOptions& options) {
  models::ModelPtr model = io::read_definition(checkpoint, moved_base(options, checkpoint));
  if (model->adapted() == nullptr || model->dropout() == options.dropout) return model;
  return model->with_dropout(options.dropout);
}

/// The base that the checkpoints of a resumed run record.
io::AdapterBase base_of_checkpoint(const fs::path& checkpoint, const TrainOptions& options) {
  io::AdapterBase base = io::base_of_adapter(checkpoint);
  if (const fs::path moved = moved_base(options, checkpoint); !moved.empty()) {
    std::error_code ignored;
    base.name = fs::weakly_canonical(moved, ignored).string();
  }
  return base;
}

/// Identifies what a run reads.
std::string name_of(const Dataset& dataset, const TrainOptions& options) {
  const io::LoaderOptions l = loader_options(options, dataset.vocabulary());
  const std::unique_ptr<io::BatchSource> batches = dataset.batches(l);
  return fmt::format("{} ({} tokens)", batches->fingerprint(), batches->tokens());
}

}  // namespace

OpenRun::OpenRun(TrainOptions options, std::optional<ResumePoint> resume, Say say,
                 std::shared_ptr<Communicator> communicator)
    : options_(std::move(options)),
      resume_(std::move(resume)),
      say_(std::move(say)),
      communicator_(std::move(communicator)) {
  PreparedRun run = prepare_run(options_, resume_, say_);
  start_from_ = std::move(run.start_from);
  generation_config_ = std::move(run.generation_config);
  chat_template_ = std::move(run.chat_template);
  dataset_ = std::move(run.dataset);
  if (communicator_ != nullptr)
    check_agreement(*communicator_, options_, name_of(dataset_, options_));
  if (communicator_ != nullptr && start_from_)
    check_same(*communicator_, "weights to start from",
               io::fingerprint_of_all(*start_from_->weights), "give all ranks the same folder");
}

void OpenRun::compile() {
  model_ = with_loss_of(options_, start_from_ ? to_start_from(*start_from_, options_)
                                  : resume_   ? resumed_model(resume_->checkpoint, options_)
                                              : new_model(options_, dataset_));
  if (model_->adapted() != nullptr)
    adapter_base_ = start_from_ ? named_base(*start_from_, options_)
                                : base_of_checkpoint(resume_->checkpoint, options_);
  const int64_t vocabulary = model_->sizes().vocabulary;
  dataset_.verify_shards(vocabulary);
  say_("compiling the model");
  const ProcessInputs inputs = inputs_of(options_, &dataset_, vocabulary);
  // Rank 0 decides which plan fits; the other ranks take its options.
  const bool follows = communicator_ != nullptr && communicator_->rank() > 0;
  if (follows) {
    const std::string memory_limit = options_.memory_limit;
    const int64_t threads = options_.threads;
    options_ = options_of_first(options_, *communicator_);
    options_.memory_limit = memory_limit;
    options_.threads = threads;
    options_.fit = "false";  // the search is over
  }
  SettledRun run = settle_run(options_, model_, inputs, say_, communicator_);
  options_ = run.plan.options;
  if (communicator_ != nullptr && !follows) options_ = options_of_first(options_, *communicator_);
  session_ = std::move(run.session);
  if (communicator_ != nullptr)
    check_same(*communicator_, "kernels", session_->engine().backend().name,
               "set BRRR_ISA on all ranks to the lesser of both");
  process_forecast_ = run.plan.process;
  memory_limit_ = run.limit.bytes;
  schedule_ = schedule_of(options_);
  start_loader();
  for (const std::string& line : start_lines(*session_, *model_, options_)) say_(line);
  say_(resume_ ? "allocating memory and loading the checkpoint"
               : "allocating memory and initialising the weights");
  session_->allocate();
}

void OpenRun::start_loader() {
  const io::LoaderOptions l = loader_options(options_, *model_);
  std::unique_ptr<io::BatchSource> batches = dataset_.batches(l);
  if (communicator_ != nullptr)
    batches = std::make_unique<SharedBatches>(std::move(batches), session_->shares());
  loader_.emplace(std::move(batches), l);
}

void OpenRun::make_reference() {
  PreferenceSet& preferences = *dataset_.preferences;
  const int64_t pairs = preferences.pairs();
  say_(fmt::format("computing the reference's log probabilities of {}", counted(pairs, "pair")));
  constexpr double kSecondsBetweenLines = 5;
  const Stopwatch whole;
  Stopwatch since_line;
  TimeLeft left(pairs);
  ReferencePass pass{*session_, evaluation_options(options_, *model_), communicator_.get()};
  pass.stops = [] { return machine::SignalGuard::received() != 0; };
  pass.progress = [&](int64_t done) {
    left.note(done);
    if (since_line.seconds() < kSecondsBetweenLines || done == pairs) return;
    since_line.restart();
    const std::optional<double> seconds = left.seconds();
    say_(fmt::format("reference {}/{}{}", with_commas(done), counted(pairs, "pair"),
                     seconds ? " | eta " + format_duration(*seconds) : ""));
  };
  if (!preferences.compute_reference(pass)) {
    is_stopped_ = true;
    return;
  }
  say_(fmt::format("reference: {} in {}", counted(pairs, "pair"), duration_text(whole.seconds())));
  start_loader();  // batches that were read ahead lack the reference
}

void OpenRun::initialise() {
  std::vector<std::string> made;
  if (start_from_)
    for (const models::ParameterInfo& p : model_->parameters())
      if (start_from_->weights->find(p.name) == nullptr && !models::is_of_adapter(p.name))
        made.push_back(p.name);
  session_->engine().load(*models::made_weights(
      *model_, models::initial_weights(*model_, static_cast<uint32_t>(options_.seed)),
      start_from_ ? start_from_->weights : nullptr));
  if (!made.empty())
    say_(fmt::format("note: these parameters are new, not in the model: {}", listed(made)));
  start_from_.reset();
  if (dataset_.preferences) make_reference();
}

void OpenRun::load(const fs::path& checkpoint) {
  state_ = load_checkpoint(checkpoint, session_->engine(), *model_, options_);
  restore_loader();
  if (!dataset_.preferences) return;
  dataset_.preferences->read_reference(checkpoint / kReferenceFile);
  start_loader();
  restore_loader();
}

void OpenRun::load(PeerCheckpoints& peers) {
  state_ = trainer_state_from_json(peers.load(session_->engine()), "the peer checkpoint");
  start_from_.reset();
  restore_loader();
}

void OpenRun::restore_loader() {
  io::LoaderState at = io::LoaderState::from_json(state_.loader);
  const StepShares& shares = session_->shares();
  at.position = at.position / shares.micro_batches * shares.local();
  loader_->restore(at);
}

const std::vector<io::Batch>& OpenRun::next_batches() {
  batches_.resize(static_cast<size_t>(session_->shares().local()));
  for (io::Batch& b : batches_) b = loader_->next();
  return batches_;
}

StepResult OpenRun::step(Timeline* timeline, std::optional<double> rate) {
  BRRR_CHECK(!is_stopped_, "a step of a run that a signal has stopped");
  next_batches();
  const StepResult result =
      session_->step(state_.step, batches_, rate.value_or(scheduled_rate()), timeline);
  content_ = {};
  for (const io::Batch& batch : batches_) {
    const BatchContent content = content_of(batch, options_);
    content_.tokens += content.tokens;
    content_.rows += content.rows;
  }
  if (communicator_ != nullptr) {
    const std::vector<BatchContent> all = communicator_->gather_values(content_);
    content_ = {};
    for (const BatchContent& content : all) {
      content_.tokens += content.tokens;
      content_.rows += content.rows;
    }
  }
  state_.tokens += content_.tokens;
  ++state_.step;
  return result;
}

Score OpenRun::evaluate() {
  BRRR_CHECK(dataset_.has_val, "a run without validation data");
  session_->share_buffers();
  return train::evaluate(*session_, *model_, dataset_, options_, options_.eval_batches,
                         communicator_.get());
}

ModelParts OpenRun::parts() const {
  return {session_->engine(),       *model_,
          dataset_.tokenizer.get(), dataset_.pictures ? dataset_.pictures->preprocessor : "",
          generation_config_,       chat_template_,
          communicator_.get(),      adapter_base_};
}

void OpenRun::save_checkpoint_in(const fs::path& run) {
  note_loader();
  session_->share_buffers();  // each rank writes some of them
  save_checkpoint(run, parts(), options_, state_, dataset_.checkpoint_writer());
}

void OpenRun::keep_in(PeerCheckpoints& peers) {
  note_loader();
  session_->share_buffers();
  peers.keep(session_->engine(), state_.step, to_json(state_));
}

void OpenRun::note_loader() {
  io::LoaderState at = loader_->state();
  const StepShares& shares = session_->shares();
  at.position = at.position / shares.local() * shares.micro_batches;
  state_.loader = at.to_json();
}

}  // namespace brrr::train
