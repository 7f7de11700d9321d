#pragma once
// OpenRun: a training run that is ready to step: data, model, compiled programs and their memory.
// Its owner decides when to step, evaluate and save: the trainer, or a caller's own training loop
// (library/).

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/model_folder.h"
#include "optim/schedule.h"
#include "train/dataset.h"
#include "train/elastic/peer_checkpoint.h"
#include "train/fit.h"
#include "train/options.h"
#include "train/run_folder.h"
#include "train/session.h"
#include "train/trainer.h"

namespace brrr::train {

class OpenRun {
 public:
  /// Gets lines for people.
  using Say = std::function<void(const std::string&)>;

  /// `communicator`: this process is one of several ranks, each of which has such an object and
  /// makes the same calls. Reads the data and, with --init-from or `resume`, the description of the
  /// model. options() then has the number of steps and what the model says of itself. Throws
  /// UserError.
  OpenRun(TrainOptions options, std::optional<ResumePoint> resume, Say say,
          std::shared_ptr<Communicator> communicator = nullptr);
  OpenRun(const OpenRun&) = delete;
  OpenRun& operator=(const OpenRun&) = delete;

  /// Compiles the programs within the memory limit (--fit may change options()) and allocates
  /// their memory. Throws UserError (exit 3) where they do not fit.
  void compile();
  /// Random weights, or those of --init-from, and what the loss needs of the model that the run
  /// starts from. Once, after compile(). A signal (machine::SignalGuard) stops it, and no step may
  /// follow.
  void initialise();
  /// Weights, moments, step and position in the data of a checkpoint of this run. After compile().
  void load(const fs::path& checkpoint);
  /// The same from the newest peer checkpoint.
  void load(PeerCheckpoints& peers);

  /// Runs the next optimizer step on the loader's next batches, and counts it. `rate`: the learning
  /// rate; by default the schedule's.
  StepResult step(Timeline* timeline = nullptr, std::optional<double> rate = std::nullopt);
  /// The batches of the last step, valid until the next.
  const std::vector<io::Batch>& batches() const { return batches_; }
  /// Tokens and rows of the last step, of all ranks.
  const BatchContent& content() const { return content_; }
  /// Reads the batches of another step and counts nothing.
  const std::vector<io::Batch>& next_batches();
  /// Learning rate of the next step by the schedule.
  double scheduled_rate() const { return schedule_.at(state_.step); }
  /// Loss, and the metrics of a task, on the validation data. InternalError without such data.
  Score evaluate();

  /// What the folder of the model is written from.
  ModelParts parts() const;
  /// Commits the checkpoint of this step in the folder of the run; of several ranks, the first one
  /// writes.
  void save_checkpoint_in(const fs::path& run);
  /// Keeps this step as a peer checkpoint; every rank calls it.
  void keep_in(PeerCheckpoints& peers);

  TrainOptions& options() { return options_; }
  const TrainOptions& options() const { return options_; }
  TrainerState& state() { return state_; }
  const TrainerState& state() const { return state_; }
  const Dataset& dataset() const { return dataset_; }
  const models::Model& model() const { return *model_; }
  Session& session() { return *session_; }
  const Session& session() const { return *session_; }
  const io::Loader& loader() const { return *loader_; }
  const machine::ProcessForecast& process_forecast() const { return process_forecast_; }
  int64_t memory_limit() const { return memory_limit_; }

 private:
  void start_loader();
  void restore_loader();
  void note_loader();
  /// Computes what the reference says of the pairs.
  void make_reference();

  TrainOptions options_;
  std::optional<ResumePoint> resume_;
  Say say_;
  std::shared_ptr<Communicator> communicator_;
  std::optional<io::ModelFolder> start_from_;  // until its weights are loaded
  std::string chat_template_;                  // the same
  std::string generation_config_;              // of the model that the run goes on from
  io::AdapterBase adapter_base_;               // of a run that trains an adapter
  Dataset dataset_;
  models::ModelPtr model_;
  std::unique_ptr<Session> session_;
  std::optional<io::Loader> loader_;
  optim::Schedule schedule_;
  machine::ProcessForecast process_forecast_;
  int64_t memory_limit_ = 0;
  std::vector<io::Batch> batches_;
  BatchContent content_;
  TrainerState state_;
  bool is_stopped_ = false;  // by a signal in initialise()
};

}  // namespace brrr::train
