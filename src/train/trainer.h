#pragma once
// The trainer: from options to a run folder. Everything that decides the bits of a run (data order,
// dropout, weights, moments, learning rate) is a function of the options and the step, or stands in
// the checkpoint; so a run that is killed and resumed is the run that was not.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "folders/model_folder.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "train/options.h"
#include "train/parts.h"
#include "train/process_forecast.h"
#include "train/run_watch.h"
#include "train/session.h"

namespace brrr::train {

struct TrainResult {
  fs::path run_dir;
  int64_t steps = 0;                 // done in total
  std::optional<double> train_loss;  // of the last step of this process
  std::optional<double> val_loss;    // at the end
  int64_t val_tokens = 0;            // that it was measured on; texts of a task
  std::optional<double> best_val_loss;
  int64_t best_step = -1;
  /// What a task is judged by, of the weights that the run ends with.
  std::vector<io::Metric> metrics;
  /// Texts that the model wrote last while it trained (--sample-steps), and after which step.
  std::vector<std::string> samples;
  int64_t samples_step = -1;
  bool ends_with_best = false;  // the model is that of best_step, not of the last step
  models::Task task;            // of the model
  double seconds = 0;  // of the run: this process from its start, and those that it goes on from
  // On average over the steps of this process, evaluation and saving left out; samples are texts,
  // or sequences of the whole context.
  double samples_per_second = 0, tokens_per_second = 0;
  Pace recent;                    // of the last steps
  double first_step_seconds = 0;  // from the start of the process to the end of the first step
  double compile_seconds = 0;
  double waiting_share = 0;  // of the step time spent waiting for data
  MemoryForecast forecast;
  machine::ProcessForecast process_forecast;
  int64_t memory_limit = 0;  // that the run had to keep
  int64_t arena_bytes = 0;
  int64_t process_peak_bytes = 0;  // the most that was resident, pages of mapped inputs included
  int64_t needed_peak_bytes = 0;   // without them: what counts against the limit
  int64_t parameters = 0;
  int64_t skipped_steps = 0;       // of the run: f16 gradients overflowed
  std::vector<HealthNote> health;  // what was not as it should be
  std::string health_summary;      // in a line, or ""
  int signal = 0;                  // that ended the run after saving, or 0
  bool was_stopped = false;        // by the observer, after saving
  bool was_complete = false;       // nothing was left to do: nothing was done
  TrainOptions options;  // of the run: for a resumed one the recorded ones, but for what is new
};

/// Trains as the options say. Progress and messages go to stderr. `observer` may look on. Throws
/// UserError.
/// `communicator`: this process is one of several ranks, which all make this call.
TrainResult train(const TrainOptions& options, RunObserver* observer = nullptr,
                  std::shared_ptr<Communicator> communicator = nullptr);

/// The result as one line of JSON.
std::string result_json(const TrainResult& result);

/// Throws UserError (exit 2) where the user asked for another architecture than that of the model.
void check_architecture(const TrainOptions& options, const models::Model& model,
                        const std::string& folder);
/// Takes the architecture and its settings over from a model into the options. Throws UserError
/// (exit 2) where the user asked for others or for more context. `folder` names the model.
void adopt_definition(TrainOptions& options, const models::Model& model, const std::string& folder);
/// The same, with the context that the model has room for and its dropout, where none was given;
/// also refuses another tokenizer.
void adopt_architecture(TrainOptions& options, const io::ModelFolder& model);
/// The model to train, of options that adopted it: with its own dropouts, of which it may have
/// several, unless one was given; for preferences without dropout unless one was given.
models::ModelPtr to_start_from(const io::ModelFolder& model, const TrainOptions& options);
/// "FOLDER (gpt2, 124.44M parameters, context 1024)".
std::string description(const io::ModelFolder& model);

/// Returns a note for the user on how training treats the quantised weights of a folder; "" for
/// float weights.
std::string quantization_note(const io::ModelFolder& model);

/// Returns a note for the user that lists the options for which a named preset differs from the
/// defaults of fine-tuning; "" if there are none.
std::string preset_note(const TrainOptions& options, const io::ModelFolder& model);

/// The options of the run that a resumed run goes on with, and where it goes on.
struct ResumePoint {
  fs::path run, checkpoint;
  std::string note;  // which run was found, where none was named
};
/// Resolves --resume: a checkpoint folder, a run folder, or "true" (output_dir, or the newest run
/// in it or in runs/ that was interrupted). Damaged checkpoints are passed over with a line on
/// stderr.
ResumePoint find_resume_point(const TrainOptions& options);
/// The same where ranks go on: rank 0 reads and verifies the files, and what it throws, all throw.
/// A rank with another --resume or --output-dir than rank 0 looks for itself.
ResumePoint shared_resume_point(const TrainOptions& options, Communicator* communicator);
/// Throws UserError (exit 2) where --max-steps asks for fewer steps than the run has done.
void refuse_fewer_steps(const TrainOptions& options, int64_t done, const fs::path& run);

}  // namespace brrr::train
