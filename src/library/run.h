#pragma once
// A training run of the C interface: that of `brrr train`, or of the caller's own graph.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "library/graphs.h"
#include "runtime/timeline.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::library {

using NamedTensors = std::vector<std::pair<std::string, const brrr_tensor*>>;

}  // namespace brrr::library

/// A training run, whatever its model.
struct brrr_run {
  virtual ~brrr_run() = default;
  virtual brrr_step step(const brrr::library::NamedTensors& tensors) = 0;
  virtual double evaluate(const brrr::library::NamedTensors& tensors) = 0;
  /// Numbers that `graph`, or null: the run's own graph, computes of one batch.
  virtual std::vector<double> evaluate_graph(const brrr_graph* graph,
                                             const std::vector<std::string>& outputs,
                                             const brrr::library::NamedTensors& tensors) = 0;
  virtual void save(const std::filesystem::path& folder) = 0;
  virtual void save_state(const std::filesystem::path& folder) = 0;
  virtual void load_state(const std::filesystem::path& checkpoint) = 0;
  virtual brrr::train::Session& session() = 0;
  virtual const brrr::train::TrainOptions& options() const = 0;
  virtual int64_t steps_done() const = 0;
  virtual brrr_plan plan() const = 0;
  /// Null: a run of one rank.
  std::shared_ptr<brrr::Communicator> communicator;

  /// Where the kernels of the next step are written down: null unless steps are timed.
  brrr::Timeline* next_timeline() { return is_timed ? &timeline : nullptr; }
  brrr::Timeline timeline;  // of the timed steps so far
  bool is_timed = false;
  int64_t timed_steps = 0;
};

namespace brrr::library {

brrr_step step_of(int64_t done, const train::StepResult& r, double rate, double seconds);
/// `process`: the forecast of the process' peak; `limit`: what it has to keep.
brrr_plan plan_of(const train::Session& session, int64_t process, int64_t limit);

/// A run of a graph whose output `loss` is the mean over a micro-batch. Throws UserError.
std::unique_ptr<brrr_run> make_graph_run(const brrr_graph& graph, const std::string& loss,
                                         const train::TrainOptions& options,
                                         std::shared_ptr<Communicator> communicator);

}  // namespace brrr::library
