#pragma once
// The folder of a run: the model, its tokenizer, the options, the logs, the loss curve and the
// checkpoints.
//
//   model.safetensors config.json vocab.json ...   the last weights, a Hugging Face folder
//   train_config.json                              the options, complete
//   log.jsonl                                      one record per logged step and evaluation, each
//                                                  once however often the run was killed
//   tensorboard/                                   the same as events
//   loss.svg                                       the curve
//   samples.json                                   texts by the model, and after which step
//   checkpoint-000250/                             everything that --resume needs

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/checkpoint.h"
#include "folders/model_folder.h"
#include "formats/jsonl.h"
#include "formats/svg_plot.h"
#include "formats/tensorboard.h"
#include "runtime/engine.h"
#include "runtime/ranks/communicator.h"
#include "train/options.h"
#include "train/run_watch.h"
#include "train/tasks/score.h"

namespace brrr::train {

/// Everything besides the tensors that decides how a run goes on.
struct TrainerState {
  int64_t step = 0;           // optimizer steps done
  int64_t evaluated = -1;     // the last step that was evaluated
  std::optional<Score> last;  // of that evaluation; nothing where an older version wrote the state
  Score best;                 // of the best evaluation
  int64_t best_step = -1;     // -1: not evaluated yet
  int64_t sampled = -1;       // the last step after which samples were written
  int64_t tokens = 0;         // trained on so far
  double seconds = 0;         // spent so far
  std::string loader;         // io::Loader's state, JSON
  std::optional<int64_t> log_bytes;  // of log.jsonl when this was saved
};
std::string to_json(const TrainerState& state);
/// `what` names the source in errors.
TrainerState trainer_state_from_json(const std::string& text, const std::string& what);

/// What a model's folder is written from.
struct ModelParts {
  const Engine& engine;  // the parameters
  const models::Model& model;
  const io::Tokenizer* tokenizer;      // null: of a model for pictures
  std::string preprocessor = {};       // preprocessor_config.json of such a model
  std::string generation_config = {};  // generation_config.json of the model it began as; "": none
  std::string chat_template = {};      // chat_template.jinja; "": none of its own
  Communicator* communicator = nullptr;  // of several ranks: all write together (below)
  io::AdapterBase adapter_base = {};     // of a model with an adapter, which alone is written
};

// With a communicator every rank makes these calls: shards are gathered, and the first rank writes
// whole tensors, the same bytes for any number of ranks.

/// The largest whole tensor of which a rank has a shard: what lies beside the arena while initial
/// weights are made, and on the first rank while the run is written.
int64_t gathered_bytes(const Engine& engine);

/// Writes the parameters as safetensors.
void write_parameters(const fs::path& file, const Engine& engine,
                      Communicator* communicator = nullptr);
/// Writes what the optimizer keeps between steps as safetensors.
void write_optimizer_state(const fs::path& file, const Engine& engine,
                           Communicator* communicator = nullptr);
/// Reads it back. Throws UserError unless names and types agree exactly. `optim`: the optimizer of
/// this run, for errors.
void load_optimizer_state(const fs::path& file, Engine& engine, const std::string& optim);

/// Writes model.safetensors, config.json, the tokenizer or preprocessor_config.json, and
/// generation_config.json into an existing folder.
void write_model(const fs::path& folder, const ModelParts& parts);

/// The same for the run folder itself at the end of a run, with a checksum.
void write_final_model(const fs::path& run, const ModelParts& parts);

/// Commits a checkpoint and removes old ones. `add` may write more files into its folder, on the
/// first rank.
void save_checkpoint(const fs::path& run, const ModelParts& parts, const TrainOptions& options,
                     const TrainerState& state,
                     const std::function<void(const fs::path& folder)>& add = {});

/// Where the base of a checkpoint's adapter is, if it is not where the checkpoint says: the model
/// of --init-from, if that is given beside --resume or if the recorded base is gone. Empty: where
/// the checkpoint says, or it holds no adapter.
fs::path moved_base(const TrainOptions& options, const fs::path& checkpoint);

/// Reads the parameters of the checkpoint of a step, and calls `loaded` while its file is mapped.
/// Returns false if that checkpoint no longer exists.
bool load_weights_of(const fs::path& run, int64_t step, Engine& engine, const models::Model& model,
                     const TrainOptions& options, const std::function<void()>& loaded);

/// Reads all that a run goes on from, without taking it over. Throws UserError for the first fault:
/// a checkpoint may be what its manifest says and still be none. `base`: of moved_base().
void check_resumable(const io::Checkpoint& checkpoint, const fs::path& base = {});

/// Reads parameters and optimizer state back; types and names must agree exactly. `options`: of
/// this run.
TrainerState load_checkpoint(const fs::path& folder, Engine& engine, const models::Model& model,
                             const TrainOptions& options);

/// The logs of a run.
class RunLog {
 public:
  /// `resumed`: the state that the run goes on from; what was logged after it is dropped, so that
  /// every record stands once. What processes that were killed left of the folder's files goes,
  /// too.
  RunLog(const fs::path& run, const TrainOptions& options, const models::ModelSizes& sizes,
         const TrainerState* resumed);

  /// A process begins or goes on at that step: what it trains, and on what.
  void started(int64_t step, const std::string& machine, int64_t parameters);
  /// Options that a resumed run has otherwise than its checkpoint.
  void changed(int64_t step, const std::vector<OptionChange>& changes);
  void train_step(const StepRecord& record);
  void evaluation(int64_t step, const Score& score);
  /// Texts that the model wrote after a step.
  void samples(int64_t step, const std::vector<std::string>& texts);
  /// At once: the run may be about to end.
  /// The mean steps of all ranks since the last record of them.
  void ranks(int64_t step, const std::vector<RankStep>& means);
  void health(const HealthNote& note);
  /// The last record of a run that reached its last step, with its figures.
  void finished(int64_t step, nlohmann::json figures);
  /// Redraws loss.svg and flushes.
  void draw();
  void flush();
  /// The size of log.jsonl.
  int64_t bytes() const { return jsonl_->bytes(); }

 private:
  fs::path run_;
  std::string title_, subtitle_;
  std::optional<io::JsonlWriter> jsonl_;
  std::unique_ptr<io::EventWriter> events_;
  io::LossCurve curve_;
};

/// Texts that a model wrote after its last step, for `brrr report`.
void write_samples(const fs::path& run, int64_t step, const std::vector<std::string>& texts);

/// A sentence for the user: the newest checkpoint whose loss was finite, where weights are known to
/// be good up to `sound_step`, by an evaluation or the step that followed.
std::string sound_checkpoint(const fs::path& run, int64_t sound_step);

/// What the log of a run that goes on from a step tells and its checkpoint does not.
struct LoggedSoFar {
  int64_t sound_step = 0;            // the last one whose weights gave a finite loss
  int64_t skipped_steps = 0;         // f16 gradients overflowed
  std::vector<std::string> samples;  // the last ones, and their step; -1: none
  int64_t samples_step = -1;
};
LoggedSoFar read_log(const fs::path& run, int64_t step);

/// Whether the log of a run says that it was complete at that step: everything is written.
bool has_finished(const fs::path& run, int64_t step);

}  // namespace brrr::train
