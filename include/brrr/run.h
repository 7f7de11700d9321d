#pragma once
// Training loops of one's own. The loop keeps its shape; device, precision, accumulation and memory
// are options.
//
//     auto run = brrr::Run::from_env({.precision = brrr::bf16, .accumulate = 4});
//     auto [step, loader] = run.prepare(graph, brrr::AdamW{.lr = 1e-4}, my_batches);
//     for (const auto& batch : loader) run.log(step(batch));
//     run.save("out");

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "brrr/graph.h"
#include "brrr/tensor.h"

namespace brrr {
inline namespace v1 {

/// What one optimizer step did.
struct StepResult {
  int64_t step = 0;      // steps done, this one included
  double loss = 0;       // mean over the micro-batches
  double grad_norm = 0;  // before clipping; not finite: the step changed nothing
  double learning_rate = 0;
  double loss_scale = 1;  // of fp16 gradients
  double seconds = 0;     // waiting for data included
  int64_t tokens = 0;     // of a model of `brrr train`
};

/// The bytes of a run, and the time of its steps, before the first.
struct Plan {
  int64_t parameter_bytes = 0, state_bytes = 0, activation_bytes = 0;  // of the arena
  int64_t arena_bytes = 0;                                             // exact
  int64_t process_bytes = 0;  // forecast of the process' peak
  int64_t limit_bytes = 0;    // that it had to keep
  double step_seconds = 0;    // forecast without reading data; 0: unknown
};

/// Means of an evaluation, by the names of outputs.
struct Evaluation {
  std::map<std::string, double> means;
  int64_t rows = 0;  // that they are means of
  double at(const std::string& output) const { return means.at(output); }
  /// Adds the rows of another evaluation of the same outputs: that of a smaller last batch, which
  /// needs a graph of its own size.
  Evaluation& operator+=(const Evaluation& other) {
    const auto all = static_cast<double>(rows + other.rows);
    for (auto& [name, mean] : means)
      mean = (static_cast<double>(rows) * mean +
              static_cast<double>(other.rows) * other.means.at(name)) /
             (all > 0 ? all : 1);
    rows += other.rows;
    return *this;
  }
};

// Optimizers: what is not given has the default of `brrr train`.
struct AdamW {
  std::optional<double> lr = std::nullopt, beta1 = std::nullopt, beta2 = std::nullopt,
                        eps = std::nullopt, weight_decay = std::nullopt;
  bool in_8_bits = false;  // moments
};
struct Sgd {
  std::optional<double> lr = std::nullopt, momentum = std::nullopt, weight_decay = std::nullopt;
};
struct Lion {
  std::optional<double> lr = std::nullopt, beta1 = std::nullopt, beta2 = std::nullopt,
                        weight_decay = std::nullopt;
};

struct RunOptions {
  DType precision = DType::f32;   // f32, bf16 or f16: mixed precision, weights stay f32
  int64_t accumulate = 1;         // micro-batches of a step
  std::string remat = "none";     // recomputation: none, all, blocks, auto
  std::string memory_limit = {};  // "6GiB"; "": what there is
  std::string device = "auto";
  int64_t threads = 0;       // 0: as many as the process may use
  int64_t max_steps = 0;     // 0: the default of `brrr train`; of batches of one's own: no limit
  double max_grad_norm = 1;  // 0: no clipping
  /// How the learning rate changes: cosine or linear, which end at max_steps, constant, or
  /// constant_with_warmup. "": cosine, and constant for batches of one's own.
  std::string schedule = {};
  int64_t warmup_steps = -1;  // -1: the default
  int64_t seed = 1337;
  Options more = {};  // any other options of `brrr train`
};

/// A model of Brrr's own by options of `brrr train`: {{"preset", "gpt2"}}, {{"init-from", FOLDER}}.
struct Model {
  Options options;
  static Model preset(const std::string& name) { return {{{"preset", name}}}; }
  static Model open(const std::string& folder) { return {{{"init-from", folder}}}; }
};

/// Data of `brrr train`: {{"text", "input.txt"}}, {{"data", "shards"}}, {{"task", "images"}, ...}.
struct Data {
  Options options;
  static Data text(const std::string& file) { return {{{"text", file}}}; }
};

/// One micro-batch: a tensor for each input of the graph.
using Batch = Tensors;

class Run {
 public:
  /// Options as given, and those that the environment says instead: BRRR_DEVICE, BRRR_PRECISION
  /// (fp32, bf16, fp16), BRRR_THREADS, BRRR_MEMORY_LIMIT.
  static Run from_env(RunOptions options = {}) {
    detail::require_library();
    const auto text = [](const char* name) {
      const char* found = std::getenv(name);
      return std::string(found == nullptr ? "" : found);
    };
    if (const std::string s = text("BRRR_DEVICE"); !s.empty()) options.device = s;
    if (const std::string s = text("BRRR_MEMORY_LIMIT"); !s.empty()) options.memory_limit = s;
    if (const std::string s = text("BRRR_THREADS"); !s.empty())
      options.threads = std::strtoll(s.c_str(), nullptr, 10);
    if (const std::string s = text("BRRR_PRECISION"); !s.empty()) {
      if (s != "fp32" && s != "bf16" && s != "fp16")
        throw Error(BRRR_USAGE, "BRRR_PRECISION must be fp32, bf16 or fp16; got '" + s + "'");
      options.precision = s == "fp32" ? DType::f32 : s == "bf16" ? DType::bf16 : DType::f16;
    }
    return Run(std::move(options));
  }

  /// What a step takes: one micro-batch, or `accumulate` of them. Empty: the run has its own data.
  struct StepBatch {
    std::vector<Batch> micro_batches;
  };

  /// Runs an optimizer step: forward, backward, clipping, update.
  class Step {
   public:
    StepResult operator()(const StepBatch& batch) const {
      std::vector<const char*> names;
      std::vector<brrr_tensor*> tensors;
      if (!batch.micro_batches.empty())
        for (const auto& [name, tensor] : batch.micro_batches[0]) names.push_back(name.c_str());
      for (const Batch& b : batch.micro_batches)
        for (const char* name : names) tensors.push_back(find(b, name).handle());
      brrr_step s{};
      detail::check(brrr_run_step(run_.get(), names.data(), tensors.data(), names.size(), &s));
      return {s.step, s.loss, s.grad_norm, s.learning_rate, s.loss_scale, s.seconds, s.tokens};
    }
    StepResult operator()(const Batch& batch) const { return (*this)(StepBatch{{batch}}); }

   private:
    friend class Run;
    static const Tensor& find(const Batch& batch, const std::string& name) {
      for (const auto& [known, tensor] : batch)
        if (known == name) return tensor;
      throw Error(BRRR_USAGE, "the input '" + name + "' is missing in a micro-batch");
    }
    explicit Step(std::shared_ptr<brrr_run> run) : run_(std::move(run)) {}
    std::shared_ptr<brrr_run> run_;
  };

  /// A range of StepBatch, to be gone through once.
  class Loader {
   public:
    class iterator {
     public:
      using iterator_category = std::input_iterator_tag;
      using value_type = StepBatch;
      using difference_type = std::ptrdiff_t;
      using pointer = const StepBatch*;
      using reference = const StepBatch&;
      iterator() = default;
      explicit iterator(Loader* loader) : loader_(loader) { ++*this; }
      reference operator*() const { return loader_->batch_; }
      iterator& operator++() {
        if (loader_ != nullptr && !loader_->advance()) loader_ = nullptr;
        return *this;
      }
      bool operator==(const iterator& other) const { return loader_ == other.loader_; }

     private:
      Loader* loader_ = nullptr;
    };
    iterator begin() { return iterator(this); }
    iterator end() { return {}; }

   private:
    friend class Run;
    using Next = std::function<std::optional<Batch>()>;
    Loader(std::shared_ptr<brrr_run> run, Next next, int64_t max_steps)
        : run_(std::move(run)), next_(std::move(next)), max_steps_(max_steps) {}
    /// Whether there is a further step.
    bool advance() {
      batch_.micro_batches.clear();
      if (max_steps_ > 0 && brrr_run_steps_done(run_.get()) >= max_steps_) return false;
      if (!next_) return true;
      const int64_t count = brrr_run_accumulation(run_.get());
      for (int64_t i = 0; i < count; ++i) {
        std::optional<Batch> batch = next_();
        if (!batch) return false;
        batch_.micro_batches.push_back(std::move(*batch));
      }
      return true;
    }
    std::shared_ptr<brrr_run> run_;
    Next next_;
    int64_t max_steps_;
    StepBatch batch_;
  };

  struct Prepared {
    Step step;
    Loader loader;
  };

  /// The run of `brrr train` with these options: with the same options its steps have the same
  /// bits. Throws Error (BRRR_NO_MEMORY) before anything is allocated where it does not fit.
  template <typename Optimizer>
  Prepared prepare(const Model& model, const Optimizer& optimizer, const Data& data) {
    Options o = all_options(optimizer);
    o.insert(o.end(), model.options.begin(), model.options.end());
    o.insert(o.end(), data.options.begin(), data.options.end());
    if (options_.max_steps > 0) o.emplace_back("max-steps", std::to_string(options_.max_steps));
    create(nullptr, "", o);
    return {Step(run_), Loader(run_, {}, brrr_run_max_steps(run_.get()))};
  }
  /// A graph of one's own, whose output `loss` is the mean over a micro-batch. batches: a range of
  /// Batch, or a function that gives std::optional<Batch>, nothing at the end.
  template <typename Optimizer, typename Batches>
  Prepared prepare(const Graph& graph, const Optimizer& optimizer, Batches batches,
                   const std::string& loss = "loss") {
    require_end_of_schedule();
    Options o = all_options(optimizer);
    if (options_.schedule.empty()) o.emplace_back("lr-scheduler-type", "constant");
    if (options_.max_steps > 0) o.emplace_back("max-steps", std::to_string(options_.max_steps));
    create(graph.handle().get(), loss, o);
    return {Step(run_), Loader(run_, next_of(std::move(batches)), options_.max_steps)};
  }

  /// Writes a line to standard error: step, loss, rate, time.
  void log(const StepResult& r) const {
    std::fprintf(stderr, "step %lld: loss %.4f, grad norm %.3g, lr %.3g, %.1f ms\n",
                 static_cast<long long>(r.step), r.loss, r.grad_norm, r.learning_rate,
                 1e3 * r.seconds);
  }
  /// Which of the processes that train together this one is, and how many there are: a launcher
  /// (brrr launch, mpirun, torchrun, srun) has started them, and each runs this program.
  int64_t rank() const { return brrr_run_rank(run_.get()); }
  int64_t ranks() const { return brrr_run_ranks(run_.get()); }
  /// The rows (first axis) of all ranks, in their order, on each of them; at most `rows` of them,
  /// so that what the last batch repeats does not count twice.
  Tensor gather_for_metrics(const Tensor& own, int64_t rows = -1) const {
    brrr_tensor* all = nullptr;
    detail::check(brrr_run_gather(run_.get(), own.handle(), rows, &all));
    return Tensor(all);
  }
  /// The loss on the run's own validation data.
  double evaluate() { return evaluate(Batch()); }
  /// The loss of one micro-batch, dropout off.
  double evaluate(const Batch& batch) {
    std::vector<const char*> names;
    std::vector<brrr_tensor*> tensors;
    for (const auto& [name, tensor] : batch) {
      names.push_back(name.c_str());
      tensors.push_back(tensor.handle());
    }
    double loss = 0;
    detail::check(
        brrr_run_evaluate(run().get(), names.data(), tensors.data(), names.size(), &loss));
    return loss;
  }
  /// Means over batches, weighted by their rows, of outputs f32[] of the run's own graph: no
  /// dropout, no gradient, the parameters as they are now. batches: as prepare() takes them; each
  /// has as many rows as the first axis of its first tensor says.
  template <typename Batches>
  Evaluation evaluate(const std::vector<std::string>& outputs, Batches batches) {
    return evaluate_graph(nullptr, outputs, next_of(std::move(batches)));
  }
  /// The same of another graph, whose parameters are those of the run by their names. It is
  /// compiled at its first use and kept; the weights are not copied.
  template <typename Batches>
  Evaluation evaluate(const Graph& graph, const std::vector<std::string>& outputs,
                      Batches batches) {
    return evaluate_graph(graph.handle().get(), outputs, next_of(std::move(batches)));
  }
  /// The step's time is a forecast by measured rates of this machine's processor. measure: where
  /// they were never measured, measures them now, in a few seconds, and keeps them.
  Plan plan(bool measure = false) const {
    brrr_plan p{};
    detail::check(brrr_run_plan(run().get(), &p));
    Plan plan{p.parameter_bytes, p.state_bytes,   p.activation_bytes,
              p.arena_bytes,     p.process_bytes, p.limit_bytes};
    detail::check(brrr_run_forecast(run().get(), measure ? 1 : 0, &plan.step_seconds));
    return plan;
  }
  /// Bytes of tensors of one's own batches that were copied: see Module::copied_bytes().
  int64_t copied_bytes() const { return brrr_run_copied_bytes(run().get()); }
  /// Times every kernel of the steps from here on, or no more.
  void time_steps(bool on = true) { detail::check(brrr_run_time_steps(run().get(), on ? 1 : 0)); }
  /// What the kernels of the timed steps took, the slowest first: a line each.
  std::string profile() const {
    char* text = nullptr;
    detail::check(brrr_run_profile(run().get(), &text));
    return detail::taken(text);
  }
  /// A parameter's numbers now.
  Tensor parameter(const std::string& name) const {
    brrr_tensor* made = nullptr;
    detail::check(brrr_run_parameter(run().get(), name.c_str(), &made));
    return Tensor(made);
  }
  int64_t steps_done() const { return brrr_run_steps_done(run_.get()); }
  /// The model's folder; of a graph of one's own model.safetensors and graph.txt.
  void save(const std::filesystem::path& folder) const {
    detail::check(brrr_run_save(run().get(), folder.string().c_str()));
  }
  /// A checkpoint in `folder`, as the trainer writes it, and back.
  void save_state(const std::filesystem::path& folder) const {
    detail::check(brrr_run_save_state(run().get(), folder.string().c_str()));
  }
  void load_state(const std::filesystem::path& checkpoint) {
    detail::check(brrr_run_load_state(run().get(), checkpoint.string().c_str()));
  }

 private:
  explicit Run(RunOptions options) : options_(std::move(options)) {}

  static void add(Options& o, const char* name, const std::optional<double>& value) {
    if (value) o.emplace_back(name, detail::number_text(*value));
  }
  static void add_optimizer(Options& o, const AdamW& a) {
    o.emplace_back("optim", a.in_8_bits ? "adamw_8bit" : "adamw");
    add(o, "learning-rate", a.lr);
    add(o, "adam-beta1", a.beta1);
    add(o, "adam-beta2", a.beta2);
    add(o, "adam-epsilon", a.eps);
    add(o, "weight-decay", a.weight_decay);
  }
  static void add_optimizer(Options& o, const Sgd& s) {
    o.emplace_back("optim", "sgd");
    add(o, "learning-rate", s.lr);
    add(o, "momentum", s.momentum);
    add(o, "weight-decay", s.weight_decay);
  }
  static void add_optimizer(Options& o, const Lion& l) {
    o.emplace_back("optim", "lion");
    add(o, "learning-rate", l.lr);
    add(o, "adam-beta1", l.beta1);
    add(o, "adam-beta2", l.beta2);
    add(o, "weight-decay", l.weight_decay);
  }
  template <typename Optimizer>
  Options all_options(const Optimizer& optimizer) const {
    Options o;
    const RunOptions& r = options_;
    add_optimizer(o, optimizer);
    if (r.precision != DType::f32)
      o.emplace_back("precision", r.precision == DType::bf16 ? "bf16" : "fp16");
    if (r.accumulate != 1)
      o.emplace_back("gradient-accumulation-steps", std::to_string(r.accumulate));
    if (r.remat != "none") o.emplace_back("rematerialize", r.remat);
    if (!r.memory_limit.empty()) o.emplace_back("memory-limit", r.memory_limit);
    if (r.device != "auto") o.emplace_back("device", r.device);
    if (r.threads > 0) o.emplace_back("threads", std::to_string(r.threads));
    if (r.max_grad_norm != 1) o.emplace_back("max-grad-norm", detail::number_text(r.max_grad_norm));
    if (!r.schedule.empty()) o.emplace_back("lr-scheduler-type", r.schedule);
    if (r.warmup_steps >= 0) o.emplace_back("warmup-steps", std::to_string(r.warmup_steps));
    if (r.seed != 1337) o.emplace_back("seed", std::to_string(r.seed));
    o.insert(o.end(), r.more.begin(), r.more.end());
    return o;
  }
  void require_end_of_schedule() const {
    if (options_.max_steps > 0 || (options_.schedule != "cosine" && options_.schedule != "linear"))
      return;
    for (const auto& [name, value] : options_.more)
      if (name == "max-steps" || name == "max_steps" || name == "lr-decay-steps" ||
          name == "lr_decay_steps")
        return;
    throw Error(BRRR_USAGE,
                "the schedule " + options_.schedule + " needs max_steps, where the rate ends");
  }
  void create(const brrr_graph* graph, const std::string& loss, const Options& options) {
    brrr_run* made = nullptr;
    const std::vector<brrr_option> o = detail::to_c(options);
    detail::check(brrr_run_create(graph, loss.c_str(), o.data(), o.size(), &made));
    run_ = std::shared_ptr<brrr_run>(made, &brrr_run_free);
  }
  Evaluation evaluate_graph(const brrr_graph* graph, const std::vector<std::string>& outputs,
                            const Loader::Next& next) {
    std::vector<double> sums(outputs.size()), means(outputs.size());
    Evaluation all;
    while (const std::optional<Batch> batch = next()) {
      std::vector<const char*> names;
      std::vector<brrr_tensor*> tensors;
      for (const auto& [name, tensor] : *batch) {
        names.push_back(name.c_str());
        tensors.push_back(tensor.handle());
      }
      const std::vector<const char*> wanted = detail::to_c(outputs);
      int64_t rows = 0;
      detail::check(brrr_run_evaluate_graph(run().get(), graph, wanted.data(), wanted.size(),
                                            names.data(), tensors.data(), names.size(), 1,
                                            means.data(), &rows));
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(rows) * means[i];
      all.rows += rows;
    }
    if (all.rows == 0) throw Error(BRRR_USAGE, "an evaluation takes batches; got none");
    for (size_t i = 0; i < sums.size(); ++i)
      all.means[outputs[i]] = sums[i] / static_cast<double>(all.rows);
    return all;
  }
  template <typename Batches>
  static Loader::Next next_of(Batches batches) {
    if constexpr (std::is_same_v<Batches, Batch>) {  // one batch
      return next_of(std::vector<Batch>(1, std::move(batches)));
    } else if constexpr (std::is_invocable_r_v<std::optional<Batch>, Batches&>) {
      return Loader::Next(std::move(batches));
    } else {
      const auto kept = std::make_shared<Batches>(std::move(batches));
      return [kept, at = std::begin(*kept)]() mutable -> std::optional<Batch> {
        if (at == std::end(*kept)) return std::nullopt;
        return *at++;
      };
    }
  }
  const std::shared_ptr<brrr_run>& run() const {
    if (run_ == nullptr) throw Error(BRRR_USAGE, "call prepare() before using the run");
    return run_;
  }

  RunOptions options_;
  std::shared_ptr<brrr_run> run_;
};

}  // namespace v1
}  // namespace brrr
