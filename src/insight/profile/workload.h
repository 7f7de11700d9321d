#pragma once
// What `brrr profile` looks at: something that runs again and again, its programs known, and a
// clock on the parts of a step that are no kernels. Weights and, where there is no text, tokens are
// random: neither changes what a step costs.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "infer/run_precision.h"
#include "infer/runner.h"
#include "sampling/sampler.h"
#include "train/dataset.h"
#include "train/fit.h"

namespace brrr::insight {

enum class Mode { training, inference, generation };
std::string_view name_of(Mode mode);

/// Where a step's time went that no kernel took, in seconds.
struct StepClock {
  double start = 0, wall = 0;
  double batch = 0;     // until the loader handed over the batches
  double sampling = 0;  // choosing the next token
};

/// A program and how often it runs in a step.
struct ProgramRuns {
  std::string name;
  const Program* program = nullptr;
  int64_t runs = 0;
};

class Workload {
 public:
  virtual ~Workload() = default;
  virtual const Backend& backend() const = 0;
  bool is_on_host() const { return backend().open_device == nullptr; }
  virtual std::vector<ProgramRuns> programs() const = 0;
  virtual MemoryForecast forecast() const = 0;
  virtual double compile_seconds() const = 0;
  /// Before the first run: the memory, weights, the loader.
  virtual void allocate() = 0;
  virtual StepClock run(Timeline* timeline) = 0;
  virtual int64_t tokens() const = 0;  // of a step
  /// One whole evaluation as the options ask for it; 0 when they ask for none.
  virtual double evaluation_seconds() { return 0; }
  /// Connects the ranks that run the step together; null: one rank runs it.
  virtual Communicator* communicator() const { return nullptr; }
  /// The value that rank 0 gave, on every rank.
  bool of_first_rank(bool value) const;
  /// Of the positions that the cache has room for, the share that is read.
  virtual double cache_share() const { return 1; }
  /// Seconds to make one batch, and the batches that were made; zeros without a loader.
  struct Batches {
    double seconds_each = 0;
    int64_t count = 0;
  };
  virtual Batches batches() const { return {}; }
};

struct WorkloadOptions {
  Mode mode = Mode::training;
  train::TrainOptions options;  // `precision` may also be one that only inference has
  models::ModelPtr model;
  /// The form of a folder with quantised weights, which applies while options.precision is its
  /// name.
  std::optional<infer::RunPrecision> own = {};
  const train::Dataset* data = nullptr;  // of the batches; null: random tokens
  int64_t prompt = 64;                   // tokens in the cache when generation begins
  CachePrecision cache = CachePrecision::computed;
  std::shared_ptr<Communicator> ranks = nullptr;  // of a training step
};
/// Compiled, not allocated. Throws UserError for a prompt beyond the context.
std::unique_ptr<Workload> make_workload(const WorkloadOptions& options);

/// Runs of a Runnable on these inputs, for which `runner` is prepared.
std::unique_ptr<Workload> runnable_workload(std::shared_ptr<infer::Runner> runner,
                                            PortValues inputs, double compile_seconds);

/// Any graph, its inputs and parameters random; on the CPU unless another backend is given.
std::unique_ptr<Workload> graph_workload(const Graph& graph, const PipelineOptions& passes,
                                         std::optional<Backend> backend = std::nullopt);

}  // namespace brrr::insight
