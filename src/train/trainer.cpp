#include "train/trainer.h"

#include <cmath>
#include <cstdio>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "base/terminal/progress.h"
#include "base/threads/parallel.h"
#include "folders/folder_lock.h"
#include "machine/process.h"
#include "runtime/ranks/processes.h"
#include "runtime/ranks/shared_work.h"
#include "train/elastic/elastic_run.h"
#include "train/open_run.h"
#include "train/parts.h"
#include "train/predict.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#include "train/run_place.h"
#include "train/runs/result_json.h"
#include "train/session.h"
#include "train/text_samples.h"

namespace brrr::train {

namespace {

constexpr double kNoteRanksSeconds = 1;      // between two records of all ranks in the log
constexpr double kLeastLossScale = 0x1p-14;  // gradients that overflow below it are no overflow

// One run from options to result; the parts that train() strings together.
class Trainer {
 public:
  Trainer(const TrainOptions& options, RunObserver* observer,
          std::shared_ptr<Communicator> communicator)
      : options_(options),
        observer_(observer),
        communicator_(std::move(communicator)),
        elastic_(communicator_.get()) {
    options_ = elastic_.options(options_);
  }

  TrainResult run() {
    if (options_.wants_resume()) {
      adopt_recorded_options();
    } else {
      cut_into_slots(options_);
      check_place();
    }
    if (options_.threads > 0) set_thread_count(static_cast<int>(options_.threads));
    if (is_complete()) return report_complete();
    prepare_data();
    if (is_complete()) return report_complete();  // now max_steps is known in any case
    compile();
    open_run_folder();
    load_weights();
    if (result_.signal != 0) {
      result_.options = options_;
      return std::move(result_);
    }
    const machine::SignalGuard signals(
        "saving after this step; press Ctrl-C again to quit without saving");
    loop();
    finish();
    result_.options = options_;
    return std::move(result_);
  }

 private:
  // Rank 0 writes the run folder; a run of one process is its own rank 0.
  bool writes() const { return communicator_ == nullptr || communicator_->rank() == 0; }
  bool is_alone() const { return communicator_ == nullptr; }

  void adopt_recorded_options() {
    resume_ = shared_resume_point(options_, communicator_.get());
    if (writes()) lock(resume_->run);
    if (!resume_->note.empty()) say(resume_->note);
    const fs::path record = resume_->checkpoint / "train_config.json";
    at_checkpoint_ = options_from_json(read_file(record), record.string());
    options_ = merge_for_resume(with_later_changes(at_checkpoint_, resume_->run), options_,
                                resume_->run.string());
    cut_into_slots(options_);
    const fs::path state = resume_->checkpoint / "trainer_state.json";
    resume_step_ = trainer_state_from_json(read_file(state), state.string()).step;
    refuse_fewer_steps(options_, resume_step_, resume_->run);
  }

  // Before the data is read: a place that cannot be written to is known at once.
  void check_place() {
    if (!writes()) return;
    const fs::path run = without_last_slash(options_.output_dir);
    std::error_code ignored;
    if (!run.empty() && fs::is_directory(run, ignored)) lock(run);
    check_run_folder(options_);
    elastic_.note_place_checked();
  }

  void lock(const fs::path& run) {
    if (!lock_) lock_.emplace(run, "training");
  }

  // Whether a resumed run has done all its steps and written all its files. One that was killed
  // between the two still has to write.
  bool is_complete() const {
    if (!resume_ || options_.max_steps == 0 || resume_step_ < options_.max_steps) return false;
    if (resume_step_ > options_.max_steps || has_finished(resume_->run, resume_step_)) return true;
    const auto all = io::list_checkpoints(resume_->run);
    return !all.empty() && all.back().step > resume_step_;
  }

  TrainResult report_complete() {
    say(fmt::format("already complete ({} of {}); raise --max-steps to go on",
                    with_commas(resume_step_), counted(options_.max_steps, "step")));
    result_.run_dir = resume_->run;
    result_.steps = resume_step_;
    result_.was_complete = true;
    result_.options = options_;
    return std::move(result_);
  }

  void prepare_data() {
    open_.emplace(options_, resume_, say, communicator_);
    options_ = open_->options();
  }

  void compile() {
    open_->compile();
    options_ = open_->options();
    const Session& session = open_->session();
    result_.task = open_->model().task();
    result_.parameters = open_->model().parameter_count();
    result_.process_forecast = open_->process_forecast();
    result_.memory_limit = open_->memory_limit();
    result_.forecast = session.forecast();
    result_.compile_seconds = session.compile_seconds();
    result_.arena_bytes = session.engine().arena_bytes();
    elastic_.open(options_);
    if (options_.writes_samples()) samples_.emplace(options_, *open_->dataset().tokenizer);
  }

  // After each kind of work. What was there between two looks only the system knows, and it counts
  // mapped inputs as well.
  void watch_memory() {
    const ResidentMemory now = resident_memory();
    mapped_peak_ = std::max({mapped_peak_, now.inputs, result_.process_forecast.mapped});
    result_.needed_peak_bytes =
        std::max({result_.needed_peak_bytes, now.needed(), now.peak - mapped_peak_});
  }

  void open_run_folder() {
    if (writes()) result_.run_dir = resume_ ? resume_->run : make_run_folder(options_);
    if (!is_alone()) result_.run_dir = gather_texts(*communicator_, result_.run_dir.string())[0];
    if (!writes()) return;
    lock(result_.run_dir);
    if (!resume_ && !elastic_.goes_on_from_memory()) {
      check_run_folder(options_);  // again: another process may have been there since
      if (options_.overwrite) remove_old_run(result_.run_dir);
      record_options();
    }
    say("run: " + result_.run_dir.string());
  }

  void record_options() {
    write_file_atomically(result_.run_dir / "train_config.json", to_json(options_));
  }

  // A signal to one rank stops all ranks.
  void initialise() {
    const machine::SignalGuard signals(
        "stopping before the first step; press Ctrl-C again to quit at once");
    open_->initialise();
    result_.signal = machine::SignalGuard::received();
    if (is_alone()) return;
    for (const int told : communicator_->gather_values(result_.signal))
      if (result_.signal == 0) result_.signal = told;
  }

  void load_weights() {
    if (elastic_.goes_on_from_memory()) {
      elastic_.load(*open_);
    } else if (resume_) {
      open_->load(resume_->checkpoint);
    } else {
      initialise();
      if (result_.signal != 0) return;
      if (writes()) log_.emplace(result_.run_dir, options_, open_->model().sizes(), nullptr);
      elastic_.publish(result_.run_dir.string());
      return;
    }
    if (!is_alone()) communicator_->barrier();  // before the folder changes
    if (writes()) {
      record_options();
      set_later_checkpoints_aside();
      log_.emplace(result_.run_dir, options_, open_->model().sizes(), &state());
      elastic_.publish(result_.run_dir.string());
    }
    read_own_log();
    if (!is_alone()) communicator_->barrier();
    if (state().last) note_score(*state().last);
    say(fmt::format("resumed at step {} from {}", state().step,
                    elastic_.goes_on_from_memory() ? "memory" : resume_->checkpoint.string()));
  }

  // What a resumed run does otherwise than the process that wrote its checkpoint.
  void note_changes() {
    if (!resume_ || elastic_.goes_on_from_memory()) return;
    const std::vector<OptionChange> changes = changes_on_resume(at_checkpoint_, options_);
    if (changes.empty()) return;
    if (log_) log_->changed(state().step, changes);
    say(fmt::format("changed from step {} on: {}", state().step, listed(texts_of(changes))));
  }

  void read_own_log() {
    LoggedSoFar logged = read_log(result_.run_dir, state().step);
    sound_step_ = logged.sound_step;
    skipped_before_ = result_.skipped_steps = logged.skipped_steps;
    result_.samples = std::move(logged.samples);
    result_.samples_step = logged.samples_step;
  }

  void set_later_checkpoints_aside() {
    const std::vector<int64_t> later = io::set_aside_after(result_.run_dir, state().step);
    if (later.empty()) return;
    say(
        fmt::format("note: this run goes on from step {} and replaces what came after it; until "
                    "its first checkpoint, those of step {} are kept as replaced-*",
                    state().step, fmt::join(later, ", ")));
  }

  void loop() {
    ProgressOptions p;
    p.total = options_.max_steps;
    p.start = state().step;
    if (!wants_lines()) p.plain_interval_seconds = 30;  // a slow run is not silent for long
    p.lines = wants_lines();
    if (options_.disable_tqdm) p.is_terminal = false;
    if (learns_pictures(options_)) p.rate_unit = "images/s";
    progress_.emplace(std::move(p));
    watch_.emplace(health_options(), observer_, [this](const HealthNote& note) { say_note(note); });
    const std::string machine = fmt::format("{}, {} of {}", session().engine().backend().name,
                                            counted(thread_count(), "thread"), processor_name());
    if (state().step <
        options_.max_steps) {  // else it only writes what a process left out at its end
      if (log_) log_->started(state().step, machine, result_.parameters);
      note_changes();
    }
    if (observer_)
      observer_->started(
          {result_.run_dir, options_, session(), state().step, result_.parameters, machine});
    if (!is_alone()) rank_watch_.emplace(gather_texts(*communicator_, host_name()));
    if (const std::string note = warmup_note(options_); !note.empty()) say("note: " + note);
    const int64_t first = state().step;
    double stepping = 0, waiting = 0;
    int64_t stepped_tokens = 0;
    double stepped_rows = 0;
    const Stopwatch since_start;
    seconds_before_ = state().seconds;

    for (;;) {
      const int64_t step = state().step;
      elastic_.note_step(step);
      const bool last = step >= options_.max_steps;
      // The last step is evaluated like those before, and before anything of it is written.
      if (last || due(step, options_.interval(options_.eval_steps))) evaluate();
      if (step > 0 && (last || due(step, options_.interval(options_.sample_steps))))
        write_samples();
      result_.signal = machine::SignalGuard::received();
      result_.was_stopped = observer_ != nullptr && observer_->wants_stop();
      keeps_now_ = elastic_.wants_to_keep(step, options_);
      compare_ranks(last);
      const bool ends = last || result_.signal != 0 || result_.was_stopped;
      const bool keeps_best = options_.load_best_model_at_end && state().best_step == step;
      if (step > first &&
          (ends || keeps_best || due(step, options_.interval(options_.save_steps)))) {
        state().seconds = seconds_before_ + since_start.seconds();
        save();
      } else if (step > first && keeps_now_) {
        state().seconds = seconds_before_ + since_start.seconds();
        note_log();
        elastic_.keep(*open_);
      }
      if (ends) break;

      const Stopwatch watch;
      const double waited_before = open_->loader().seconds_waited();
      const double rate = open_->scheduled_rate();
      const Communicator::Traffic before = traffic();
      const StepResult r = open_->step(watch_->timeline());
      const double waited = open_->loader().seconds_waited() - waited_before;
      if (step == first) result_.first_step_seconds = machine::process_age_seconds();
      const double seconds = watch.seconds();
      const int64_t tokens = open_->content().tokens;
      int64_t positions = 0;
      for (const io::Batch& batch : open_->batches())
        positions += static_cast<int64_t>(batch.positions());
      stepped_rows += open_->content().rows;
      stepping += seconds;
      waiting += waited;
      stepped_tokens += tokens;
      result_.train_loss = r.loss;
      check_finite(r);
      if (state().step == first + 1) watch_memory();

      const bool is_logged = due(state().step, options_.interval(options_.logging_steps));
      StepRecord record{{state().step, r.loss, r.grad_norm, overflowed(r), r.loss_scale, seconds,
                         waited, positions}};
      record.learning_rate = rate;
      for (size_t i = 0; i < r.figures.size(); ++i)
        record.figures.push_back({session().figures()[i], r.figures[i]});
      record.tokens = tokens;
      record.tokens_so_far = state().tokens;
      record.seconds_so_far = seconds_before_ + since_start.seconds();
      record.arena_bytes = result_.arena_bytes;
      if (session().scales_gradients()) record.skipped_steps = result_.skipped_steps;
      if (!is_alone()) {
        const Communicator::Traffic after = traffic();
        record.ranks = {after.bytes_sent - before.bytes_sent,
                        after.busy_seconds - before.busy_seconds,
                        after.waited_seconds - before.waited_seconds};
      }
      if (is_logged) record.device = session().engine().device().reading();
      watch_->step(record, is_logged);
      if (record.ranks) {
        last_step_ = {seconds, record.ranks->waited_seconds,
                      static_cast<double>(record.ranks->bytes_sent),
                      record.host ? static_cast<double>(record.host->resident_bytes) : 0};
      }
      if (is_logged && log_) log_->train_step(record);
      const Pace& pace = result_.recent = record.recent;
      const StepFigures figures{
          r.loss, rate, r.grad_norm, pace.step_ms, pace.tokens_per_second, pace.waiting_share};
      if (due(state().step, line_interval()) || (!wants_lines() && state().step == first + 1))
        progress_->log(state().step, figures);
      else
        progress_->update(state().step, figures);
    }
    result_.tokens_per_second = stepping > 0 ? static_cast<double>(stepped_tokens) / stepping : 0;
    result_.samples_per_second = stepping > 0 ? stepped_rows / stepping : 0;
    result_.waiting_share = stepping > 0 ? waiting / stepping : 0;
  }

  Communicator::Traffic traffic() const {
    return is_alone() ? Communicator::Traffic() : communicator_->traffic();
  }

  // What one rank was told, all of them do; when to keep a step, the first one says. All get to
  // know how the others spent the last step.
  void compare_ranks(bool is_last) {
    if (is_alone()) return;
    struct Told {
      int signal = 0;
      bool stop = false, keeps = false;
      RankStep step;
    };
    std::vector<RankStep> steps;
    const std::vector<Told> all = communicator_->gather_values(
        Told{result_.signal, result_.was_stopped, keeps_now_, last_step_});
    keeps_now_ = all[0].keeps;
    for (const Told& told : all) {
      if (result_.signal == 0) result_.signal = told.signal;
      result_.was_stopped = result_.was_stopped || told.stop;
      steps.push_back(told.step);
    }
    if (last_step_.seconds == 0) return;  // there was none yet
    last_step_ = {};
    if (const auto line = rank_watch_->add(steps))
      watch_->noticed(state().step, Ailment::straggler, *line);
    if (!log_ || (!is_last && ranks_noted_.seconds() < kNoteRanksSeconds)) return;
    ranks_noted_.restart();
    const std::vector<RankStep> means = rank_watch_->take_means();
    log_->ranks(state().step, means);
    watch_->ranks(state().step, means);
  }
  // A signal stops one rank at once, several of them after the same step.
  bool stops_at_once() const { return is_alone() && machine::SignalGuard::received() != 0; }

  static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }
  // Who names --logging-steps gets these lines and no others. Without it there is a bar, or,
  // without a terminal, forty lines: one for every step is too much to read.
  bool wants_lines() const {
    return options_.was_given("logging-steps") || options_.logging_steps != 1;
  }
  int64_t line_interval() const {
    return wants_lines() ? options_.interval(options_.logging_steps)
                         : std::max<int64_t>(1, options_.max_steps / 40);
  }

  HealthOptions health_options() const {
    HealthOptions h;
    h.max_grad_norm = options_.max_grad_norm;
    h.workers = options_.dataloader_num_workers;
    h.clock_mhz = [] { return processor_clock_mhz(); };
    return h;
  }

  // The end of a run is an error of its own and is not said twice.
  void say_note(const HealthNote& note) {
    result_.health.push_back(note);
    if (log_) log_->health(note);
    if (note.ailment != Ailment::non_finite)
      progress_->message(fmt::format("step {}: note: {}", note.step, note.text));
  }

  bool overflowed(const StepResult& r) const {
    return std::isfinite(r.loss) && !std::isfinite(r.grad_norm) && session().scales_gradients() &&
           r.loss_scale > kLeastLossScale;
  }

  // Overflowing f16 gradients are what the loss scale is for; anything else that is not finite ends
  // the run, and names the layer.
  void check_finite(const StepResult& r) {
    const bool loss_is = std::isfinite(r.loss), norm_is = std::isfinite(r.grad_norm);
    if (loss_is && (norm_is || overflowed(r))) sound_step_ = state().step - 1;  // its weights
    if (loss_is && norm_is) return;
    if (overflowed(r)) {
      if (++result_.skipped_steps == skipped_before_ + 1)
        progress_->message(
            fmt::format("step {}: gradients overflowed at loss scale {:.6g}: skipped, the scale is "
                        "halved; from now on such steps are only counted",
                        state().step, r.loss_scale));
      return;
    }
    end_not_finite(loss_is ? "gradient norm" : "loss", loss_is ? r.grad_norm : r.loss,
                   session().first_non_finite().value_or("the sum of the gradients"));
  }

  // The same for a validation loss: what made it is found by one more step on the same weights,
  // of which nothing is kept.
  void check_finite(const Score& val) {
    if (std::isfinite(val.loss)) {
      sound_step_ = state().step;
      return;
    }
    const StepResult r = session().step(state().step, open_->next_batches(), 0);
    const auto origin = std::isfinite(r.loss) ? std::nullopt : session().first_non_finite();
    end_not_finite("validation loss", val.loss, origin.value_or("a batch of the validation text"));
  }

  [[noreturn]] void end_not_finite(const char* name, double value, const std::string& origin) {
    progress_->finish();
    const std::string what =
        fmt::format("the {} is {}", name, std::isnan(value) ? "not a number" : "infinite");
    watch_->not_finite(state().step, what, origin);
    user_error(
        "step {}: {}; it began in {}. Try a lower --learning-rate, more --warmup-steps or "
        "--max-grad-norm 1. {}",
        state().step, what, origin, sound_checkpoint(result_.run_dir, sound_step_));
  }

  // Every evaluation of a run is on the same tokens, which the seed, --eval-batches and
  // --eval-batch-size fix.
  void evaluate() {
    const bool is_known =
        state().evaluated == state().step && (state().last || state().step < options_.max_steps);
    if (!open_->dataset().has_val || is_known || stops_at_once()) return;
    if (state().step == 0) progress_->message("evaluating before the first step");
    const Score val = open_->evaluate();
    if (stops_at_once()) return;  // half an evaluation is none
    state().evaluated = state().step;
    state().last = val;
    note_score(val);
    if (log_) log_->evaluation(state().step, val);
    watch_->evaluation(state().step, val);
    check_finite(val);
    // A task's head knows nothing at the beginning.
    const bool counts = !open_->dataset().has_task() || state().step > 0;
    if (state().best_step >= 0 && !val.is_comparable_to(state().best)) {
      progress_->message(
          fmt::format("note: evaluations are on other {} than those up to step {}: the best one "
                      "is looked for from here on",
                      learns_pictures(options_) ? "pictures" : "tokens", state().best_step));
      state().best_step = -1;
    }
    const bool best = counts && (state().best_step < 0 || val.is_better_than(state().best));
    if (best) {
      state().best = val;
      state().best_step = state().step;
    }
    progress_->message(fmt::format("step {}: validation {}{}", state().step, val.str(),
                                   best && state().step > 0 ? " (best so far)" : ""));
    if (log_) log_->draw();
    watch_memory();
  }

  void write_samples() {
    if (!samples_ || state().sampled == state().step) return;
    const auto stops = [this] { return stops_at_once(); };
    std::vector<std::string> texts =
        samples_->write(state().step, continue_with(session(), options_, open_->model(), stops));
    if (stops()) return;  // half a sample is none
    state().sampled = result_.samples_step = state().step;
    if (log_) log_->samples(state().step, texts);
    watch_->samples(state().step, texts);
    progress_->message(sample_block(state().step, texts));
    result_.samples = std::move(texts);
    watch_memory();
  }

  void note_log() {
    if (!log_) return;
    log_->flush();
    state().log_bytes = log_->bytes();
  }

  void save() {
    note_log();
    open_->save_checkpoint_in(result_.run_dir);
  }
  bool was_interrupted() const { return result_.signal != 0 || result_.was_stopped; }
  TrainerState& state() { return open_->state(); }
  const TrainerState& state() const { return open_->state(); }
  Session& session() { return open_->session(); }
  const Session& session() const { return open_->session(); }

  void note_score(const Score& val) {
    result_.val_loss = val.loss;
    result_.val_tokens = val.tokens;
    result_.metrics = val.metrics;
  }

  // --load-best-model-at-end: the weights of the best evaluation, which a checkpoint keeps.
  void take_best() {
    if (!options_.load_best_model_at_end || was_interrupted() || state().best_step < 0 ||
        state().best_step == state().step)
      return;
    if (!load_weights_of(result_.run_dir, state().best_step, session().engine(), open_->model(),
                         options_, [&] { watch_memory(); })) {
      say(fmt::format(
          "note: the best evaluation was at step {}, whose checkpoint is gone: the model "
          "is that of the last step",
          state().best_step));
      return;
    }
    result_.ends_with_best = true;
    note_score(state().best);
    say(fmt::format("the model is that of step {}, whose evaluation was the best: {}",
                    state().best_step, state().best.str()));
  }

  void finish() {
    progress_->finish();
    take_best();
    write_final_model(result_.run_dir, open_->parts());
    if (log_) log_->draw();
    result_.steps = state().step;
    result_.health_summary = watch_->health().summary();
    if (state().best_step >= 0) {
      result_.best_val_loss = state().best.loss;
      result_.best_step = state().best_step;
    }
    result_.seconds = seconds_before_ + machine::process_age_seconds();
    watch_memory();
    result_.process_peak_bytes = peak_resident_bytes();
    if (!was_interrupted() && log_) log_->finished(state().step, figures_for_log(result_));
    if (result_.needed_peak_bytes > result_.memory_limit)
      say(fmt::format("note: {} were needed, more than the limit of {}: please report this",
                      memory_text(result_.needed_peak_bytes), memory_text(result_.memory_limit)));
  }

  static void say(const std::string& line) { tell("{}\n", line); }

  TrainOptions options_;
  RunObserver* observer_;
  std::shared_ptr<Communicator> communicator_;  // null: one rank
  std::optional<io::FolderLock> lock_;
  double seconds_before_ = 0;  // of the processes that this one goes on from
  std::optional<ResumePoint> resume_;
  TrainOptions at_checkpoint_;  // with which the checkpoint was written
  int64_t resume_step_ = 0;     // of the checkpoint
  int64_t mapped_peak_ = 0;     // of mapped inputs, as far as it was seen
  ElasticRun elastic_;
  bool keeps_now_ = false;  // this step as a peer checkpoint
  std::optional<OpenRun> open_;
  std::optional<TextSamples> samples_;
  std::optional<RunLog> log_;
  std::optional<Progress> progress_;
  std::optional<RunWatch> watch_;
  std::optional<RankWatch> rank_watch_;  // of several ranks
  RankStep last_step_;                   // of this rank; no seconds: there was none
  Stopwatch ranks_noted_;
  int64_t sound_step_ = -1;     // the last one whose weights gave a finite loss
  int64_t skipped_before_ = 0;  // by the processes that this one goes on from
  TrainResult result_;
};

}  // namespace

TrainResult train(const TrainOptions& options, RunObserver* observer,
                  std::shared_ptr<Communicator> communicator) {
  return Trainer(options, observer, std::move(communicator)).run();
}

}  // namespace brrr::train
