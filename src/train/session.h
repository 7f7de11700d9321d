#pragma once
// A training session: a loss graph, compiled into the programs that one optimizer step needs, with
// all their memory in one arena. It owns the numbers (parameters, moments); the trainer decides
// when to step.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/batch_source.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/bindings.h"
#include "train/step_shares.h"

namespace brrr::train {

struct SessionOptions {
  optim::Optimizer optimizer;
  StepShares shares;                           // micro-batches of a step
  std::shared_ptr<Communicator> communicator;  // null: one rank, or a plan for several
  uint32_t seed = 1337;                        // of dropout
  std::set<std::string> disabled_passes;
  std::string dump_folder;
  bool reuse_memory = true;
  DType parameter_dtype = DType::f32;  // bf16: matrices have no f32 copy
  DType base_dtype = DType::f32;       // of matrices below adapters
  Quantization base_quantization;      // integers that they are stored in; 0 bits: none
  DType precision = DType::f32;        // bf16, f16: mixed precision; f16 has a dynamic loss scale
  bool fp8 = false;                    // products of blocks in 8 bits, beside bf16
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  WeightQuantization fake_quantization;  // quantization-aware training
  optim::GradientScaler scaler;
  Rematerialize rematerialize;
  /// Further outputs f32[] of the loss and evaluation graphs: sums over a batch, as "loss" is.
  std::vector<std::string> figures;
};

struct StepResult {
  double loss = 0;                   // mean over the counts of all micro-batches
  double grad_norm = 0;              // before clipping; not finite: the step changed nothing
  double loss_scale = 1;             // that f16 gradients were multiplied by
  std::vector<double> figures = {};  // means of SessionOptions::figures
};

class Session {
 public:
  /// `loss_graph`: inputs for the tensors of a batch, "loss_scale" f32[], perhaps "rng_key" i32[2];
  /// output "loss" (models::Model::loss). `eval_graph`: the same for evaluation, perhaps with
  /// another batch.
  Session(const Graph& loss_graph, const Graph& eval_graph, const Backend& backend,
          const SessionOptions& options);

  /// Also takes smaller batches, of shorter padded rows or of fewer tokens in flat rows: graphs as
  /// for the constructor. Their programs use the same temporary bytes. Before allocate().
  void add_shorter(const Graph& loss_graph);
  void add_shorter_evaluation(const Graph& eval_graph) { add_eval(eval_graph); }

  /// Also continues texts, with the parameters as they are in training: `decode_graph` is
  /// models::Model::decode of one token. Its program shares the temporary bytes of the others; its
  /// cache is state that no checkpoint holds. Before allocate().
  void add_decode(const Graph& decode_graph);

  const StepShares& shares() const { return options_.shares; }
  const std::vector<std::string>& figures() const { return options_.figures; }
  MemoryForecast forecast() const { return engine_.forecast(); }
  /// Whether derived weights lie in panels (the pass weight_panels).
  bool has_panels() const;
  /// What derived weights or the cache take of the forecast's state_bytes. Derived weights that
  /// take the place of parameters count among these.
  int64_t bytes_of(Role role) const;
  void allocate();
  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }
  /// The program that ends an optimizer step, as it runs.
  const Program& step_program() const { return engine_.program(usual().back()); }
  /// The programs and how often each runs in an optimizer step: "first", "middle", "last", or
  /// "step" alone; with several slots, those that end a slot are "slot_0", "slot_1", ... by the
  /// levels of the tree that they sum; "eval" and, where there is one, "decode" run in none.
  struct ProgramUse {
    std::string name;
    const Program* program;
    int64_t runs;
  };
  std::vector<ProgramUse> programs() const;
  /// Every program, those for smaller batches as well.
  std::vector<const Program*> all_programs() const;
  const PipelineReport& report() const { return report_; }
  double compile_seconds() const { return compile_seconds_; }

  /// Runs optimizer step number `step`, counted from 0, on this rank's micro-batches
  /// (StepShares::local), each as large as the constructor's loss graph or one given to
  /// add_shorter() takes. Gradients are divided by the sum of the counts of the batches of all
  /// ranks. Tensors that are no input of the loss graph are ignored. The result is the same on all
  /// ranks.
  StepResult step(int64_t step, std::span<const io::Batch> micro_batches, double learning_rate,
                  Timeline* timeline = nullptr);
  /// Gives all ranks the buffers of the first one: what a step has set without a gradient. Before
  /// an evaluation; called by all ranks.
  void share_buffers();
  /// Repeats the last step whose loss or gradient was not finite, and says which op of which layer
  /// was the first to make a number that is none; nothing when no step was.
  std::optional<std::string> first_non_finite();
  /// The program that ends a step, on one batch, showing every value: to see what numbers a model
  /// is made of. Parameters change as in a step.
  void look_at_step(int64_t step, const io::Batch& batch, double learning_rate,
                    const Program::Look& look);
  /// Sum of the losses of a batch, dropout off. `logits` gets the output "logits" of `eval_graph`,
  /// which then has one.
  double loss_sum(const io::Batch& batch, std::vector<float>* logits = nullptr);
  /// The same with the sums of SessionOptions::figures behind it. `values` gets the f32 output
  /// `output` of `eval_graph`.
  std::vector<double> sums(const io::Batch& batch, const std::string& output = "",
                           std::vector<float>* values = nullptr);
  /// Numbers f32[] that another graph computes of a batch: a program over the same parameters.
  /// `key` tells such graphs apart; `graph` makes the one of a key that is new, with these outputs.
  /// Programs that were used longest ago go where the engine's limit leaves no room. After
  /// allocate().
  std::vector<float> evaluate(const std::string& key, const std::function<Graph()>& graph,
                              const io::Batch& batch, std::span<const std::string> outputs);
  /// The logits [V] after `token`, which stands at `position` of a text; those before it are in the
  /// cache. Valid until the next run.
  std::span<const float> decode(int32_t token, int64_t position);

  /// Whether gradients are scaled, and the scale's first value set.
  bool scales_gradients() const { return options_.precision == DType::f16; }

 private:
  /// What a step runs on batches of a shape: a program for each entry of parts_.
  using StepPrograms = std::span<const size_t>;
  void add_step(const Graph& loss_graph, const std::string& prefix);
  std::string part_name(size_t part) const;
  void add_eval(const Graph& eval_graph);
  /// What the programs of a step or of an evaluation are compiled for: the shape of "tokens". Flat
  /// rows count as one row.
  struct BatchShape {
    int64_t rows = 1, length = 0;
    bool operator==(const BatchShape&) const = default;
    std::string key() const;  // of Bindings
  };
  BatchShape shape_of(const Graph& loss_graph) const;
  StepPrograms usual() const { return bindings_.find(usual_.key()); }
  StepPrograms programs_for(const io::Batch& batch) const;
  // The scalars that a step's programs take, held while they run.
  struct Scalars {
    float loss_scale = 0, learning_rate = 0;
    int32_t optimizer_step = 0;
    int32_t rounding_key[2] = {};
    std::vector<std::array<int32_t, 2>> rng_keys;  // of the micro-batches
  };
  Scalars scalars_of(int64_t step, double loss_scale, double learning_rate) const;
  /// The tensors of the batch that the program takes.
  std::vector<Call::Input> tensors_for(size_t program, const io::Batch& batch) const;
  Call call_with(size_t program, const io::Batch& batch, const float& loss_scale) const;
  Call call_of(size_t program, const io::Batch& batch, const Scalars& scalars,
               size_t micro_batch) const;
  void add_optimizer(Call& call, const Scalars& scalars) const;
  std::vector<Call> calls_of(std::span<const io::Batch> micro_batches,
                             const Scalars& scalars) const;
  int64_t sum_of_ranks(int64_t count) const;
  std::optional<std::string> first_of_ranks(const std::optional<Program::Origin>& own,
                                            size_t of_call) const;
  double sum_over_ranks(const std::vector<std::vector<float>>& scalars, size_t scalar) const;

  // What first_non_finite() repeats: inputs do not outlive a run.
  struct BadStep {
    std::vector<io::Batch> micro_batches;
    double loss_scale, learning_rate;
    int64_t step;
  };
  std::optional<BadStep> bad_step_;
  SessionOptions options_;
  std::vector<optim::GradientSums> parts_;  // what programs do with gradients, each once
  std::vector<size_t> part_of_;             // [micro-batch]: an index of parts_
  Engine engine_;
  PipelineReport report_;
  double compile_seconds_ = 0;
  bool has_dropout_ = false;
  PipelineOptions pipeline_;  // of every program
  std::string loss_ = "loss";
  Bindings bindings_;
  BatchShape usual_;
  Bindings evals_;  // one program each
  BatchShape usual_eval_;
  std::vector<std::string> buffers_;  // set by steps without a gradient
  Bindings evaluations_;              // of evaluate()
  std::optional<size_t> decode_;
  std::vector<std::byte> room_;  // logits of a device whose memory is not the host's
};

}  // namespace brrr::train
