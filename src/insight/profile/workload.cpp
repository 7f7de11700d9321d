#include "insight/profile/workload.h"

#include <atomic>
#include <random>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/work_spans.h"
#include "machine/device.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "runtime/parameters.h"
#include "train/mean_loss.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

constexpr uint32_t kSeed = 7;
constexpr double kLearningRate = 1e-5;  // small: random tokens teach nothing

/// Tokens and targets that mean nothing, as a source of batches for a model; all rows are full.
class RandomBatches final : public io::BatchSource {
 public:
  RandomBatches(const io::BatchOptions& options, const models::Model& model)
      : options_(options), task_(model.task()) {}
  void fill(int64_t index, io::Batch& batch) const override {
    const auto rows = static_cast<size_t>(options_.batch);
    const size_t n = rows * static_cast<size_t>(options_.context);
    const bool has_values = task_.head == models::Head::values;
    const bool scores_rows = has_values || task_.head == models::Head::classes;
    const auto labels = static_cast<uint64_t>(task_.labels.size());
    const uint64_t kinds = labels > 0 ? labels : static_cast<uint64_t>(options_.vocab);
    const auto tokens = batch.make<int32_t>("tokens", n, 0);
    const auto targets = batch.make<int32_t>("targets", scores_rows ? rows : n, 0);
    for (size_t i = 0; i < n; ++i) {
      const auto words = philox({kSeed, static_cast<uint32_t>(index)}, 0, i);
      tokens[i] = static_cast<int32_t>(words[0] % static_cast<uint64_t>(options_.vocab));
      if (i < targets.size() && !has_values) targets[i] = static_cast<int32_t>(words[1] % kinds);
    }
    batch.count = std::ssize(targets);
    if (task_.head == models::Head::next_token) return;
    batch.make<int32_t>("types", n, 0);
    batch.make("lengths", rows, static_cast<int32_t>(options_.context));
    if (has_values) batch.make("values", rows * labels, 0.5f);
  }
  int64_t epoch_of(int64_t) const override { return 0; }
  int64_t batches_per_pass() const override { return 1; }
  int64_t tokens() const override { return options_.batch * options_.context; }
  std::string fingerprint() const override { return "random"; }

 private:
  io::BatchOptions options_;
  models::Task task_;
};

/// A source with a clock.
class TimedBatches final : public io::BatchSource {
 public:
  explicit TimedBatches(std::unique_ptr<io::BatchSource> source) : source_(std::move(source)) {}
  void fill(int64_t index, io::Batch& batch) const override {
    const WorkClock clock("making a batch");
    const Stopwatch watch;
    source_->fill(index, batch);
    nanoseconds_ += static_cast<int64_t>(1e9 * watch.seconds());
    ++count_;
  }
  int64_t epoch_of(int64_t index) const override { return source_->epoch_of(index); }
  int64_t batches_per_pass() const override { return source_->batches_per_pass(); }
  int64_t tokens() const override { return source_->tokens(); }
  std::string fingerprint() const override { return source_->fingerprint(); }
  io::Anchor anchor(int64_t index) const override { return source_->anchor(index); }
  bool start_from(const io::Anchor& anchor, int64_t index) override {
    return source_->start_from(anchor, index);
  }
  Workload::Batches done() const {
    const int64_t n = count_;
    return {n > 0 ? 1e-9 * static_cast<double>(nanoseconds_) / static_cast<double>(n) : 0, n};
  }

 private:
  std::unique_ptr<io::BatchSource> source_;
  mutable std::atomic<int64_t> nanoseconds_{0}, count_{0};
};

class Training final : public Workload {
 public:
  explicit Training(const WorkloadOptions& o)
      : options_(o.options), model_(o.model), data_(o.data) {
    session_ = train::compile_run(options_, *model_);
  }
  const Backend& backend() const override { return session_->engine().backend(); }
  std::vector<ProgramRuns> programs() const override {
    std::vector<ProgramRuns> list;
    for (const auto& use : session_->programs())
      if (use.runs > 0) list.push_back({use.name, use.program, use.runs});
    return list;
  }
  MemoryForecast forecast() const override { return session_->forecast(); }
  double compile_seconds() const override { return session_->compile_seconds(); }
  int64_t tokens() const override {
    return options_.batch_size * options_.gradient_accumulation_steps * options_.context;
  }
  double evaluation_seconds() override {
    if (options_.eval_steps == 0) return 0;
    int64_t batches = options_.eval_batches;
    if (data_ != nullptr && data_->has_val)
      batches = train::evaluation_batches(*data_, options_, batches);
    else if (batches == 0)  // the whole of a text that is not here
      return 0;
    io::BatchOptions l = train::loader_options(options_, model_->sizes().vocabulary);
    l.batch = options_.eval_batch_size;
    io::Batch batch;
    RandomBatches(l, *model_).fill(0, batch);
    session_->loss_sum(batch);                     // touches its memory
    if (!is_on_host()) session_->loss_sum(batch);  // is recorded
    const WorkClock clock("evaluation of a batch");
    const Stopwatch watch;
    session_->loss_sum(batch);
    return static_cast<double>(batches) * watch.seconds();
  }
  Batches batches() const override { return source_ != nullptr ? source_->done() : Batches{}; }

  void allocate() override {
    session_->allocate();
    load_parameters(session_->engine(), models::initial_weights(*model_, kSeed));
    io::LoaderOptions l = train::loader_options(options_, model_->sizes().vocabulary);
    l.lengths.clear();  // one program: rows of any length are padded to the context
    std::unique_ptr<io::BatchSource> batches;
    if (data_ != nullptr)
      batches = data_->batches(l);
    else
      batches = std::make_unique<RandomBatches>(l, *model_);
    auto timed = std::make_unique<TimedBatches>(std::move(batches));
    source_ = timed.get();
    loader_.emplace(std::move(timed), l);
    batches_.resize(static_cast<size_t>(options_.gradient_accumulation_steps));
  }

  StepClock run(Timeline* timeline) override {
    StepClock clock;
    clock.start = now_seconds();
    for (io::Batch& b : batches_) b = loader_->next();
    const double ready = now_seconds();
    clock.batch = ready - clock.start;
    session_->step(step_++, batches_, kLearningRate, timeline);
    clock.wall = now_seconds() - clock.start;
    return clock;
  }

 private:
  train::TrainOptions options_;
  models::ModelPtr model_;
  const train::Dataset* data_;
  std::unique_ptr<train::Session> session_;
  TimedBatches* source_ = nullptr;  // the loader's
  std::optional<io::Loader> loader_;
  std::vector<io::Batch> batches_;
  int64_t step_ = 0;
};

/// One program on one engine.
class OneProgram : public Workload {
 public:
  OneProgram(const Graph& graph, const PipelineOptions& options, Backend backend, int64_t tokens)
      : engine_(std::move(backend)), tokens_(tokens) {
    const Stopwatch watch;
    id_ = engine_.add(run_pipeline(graph, engine_.backend().target(), options));
    compile_seconds_ = watch.seconds();
  }
  const Backend& backend() const override { return engine_.backend(); }
  std::vector<ProgramRuns> programs() const override {
    return {{"forward", &engine_.program(id_), 1}};
  }
  MemoryForecast forecast() const override { return engine_.forecast(); }
  double compile_seconds() const override { return compile_seconds_; }
  int64_t tokens() const override { return tokens_; }
  void allocate() override {
    engine_.allocate();
    fill();
  }
  StepClock run(Timeline* timeline) override {
    StepClock clock;
    clock.start = now_seconds();
    Call call{id_, {}, {}};
    before(call);
    engine_.run(std::span(&call, 1), timeline);
    engine_.wait();
    after(clock);
    clock.wall = now_seconds() - clock.start;
    return clock;
  }

 protected:
  // Random numbers in every input; inputs do not outlive a run, but in before().
  virtual void fill() {
    std::mt19937 random(kSeed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const Graph& g = engine_.program(id_).graph();
    for (NodeId id : g.inputs()) {
      const Type& type = g.type({id, 0});
      std::vector<std::byte> numbers(static_cast<size_t>(type.bytes()));
      fill_tensor(type, numbers.data(),
                  [&](int64_t) { return is_float(type.dtype) ? uniform(random) : 1; });
      if (g.input_kind(id) == InputKind::data)
        engine_.set_input<std::byte>(id_, g.input_name(id), numbers);
      else
        engine_.write_state(g.input_name(id), numbers);
    }
  }
  /// Its inputs.
  virtual void before(Call&) {}
  virtual void after(StepClock&) {}

  Engine engine_;
  size_t id_ = 0;

 private:
  int64_t tokens_;
  double compile_seconds_ = 0;
};

PipelineOptions forward_options(const train::TrainOptions& o) {
  const train::SessionOptions s = train::session_options(o);
  PipelineOptions p;
  p.precision = s.precision;
  p.parameter_dtype = s.precision;
  p.refresher = Refresher::loader;
  p.matmul_precision = s.matmul_precision;
  p.disabled = s.disabled_passes;
  return p;
}

class ModelWorkload : public OneProgram {
 public:
  ModelWorkload(const WorkloadOptions& o, const Graph& graph, int64_t batch, int64_t length)
      : OneProgram(graph, forward_options(o.options), machine::backend_for(o.options.device),
                   batch * length),
        model_(o.model) {
    std::mt19937 random(kSeed);
    std::uniform_int_distribution<int32_t> id(0,
                                              static_cast<int32_t>(model_->sizes().vocabulary - 1));
    for (int64_t i = 0; i < batch * length; ++i) tokens_.push_back(id(random));
    types_.assign(tokens_.size(), 0);
    lengths_.assign(static_cast<size_t>(batch), static_cast<int32_t>(length));
  }

 protected:
  void fill() override { load_parameters(engine_, models::initial_weights(*model_, kSeed)); }
  void before(Call& call) override {
    call.set("tokens", std::span<const int32_t>(tokens_));
    if (model_->task().head == models::Head::next_token) return;
    if (model_->has_token_types()) call.set("types", std::span<const int32_t>(types_));
    call.set("lengths", std::span<const int32_t>(lengths_));
  }

  models::ModelPtr model_;
  std::vector<int32_t> tokens_, types_, lengths_;
};

/// One token after the other, round and round over the same stretch of the cache.
class Generation final : public ModelWorkload {
 public:
  explicit Generation(const WorkloadOptions& o)
      : ModelWorkload(o,
                      o.model->decode({.capacity = o.model->sizes().context,
                                       .cache = dtype_of_precision(o.options.precision)}),
                      1, 1),
        sampler_(infer::Sampling{}, 0),
        first_(o.prompt),
        stretch_(std::min<int64_t>(16, o.model->sizes().context - o.prompt)) {}

  double cache_share() const override {
    return static_cast<double>(first_ + stretch_ / 2) /
           static_cast<double>(model_->sizes().context);
  }

 protected:
  void before(Call& call) override {
    ModelWorkload::before(call);
    position_ = static_cast<int32_t>(first_ + done_ % stretch_);
    call.set("position", std::span<const int32_t>(&position_, 1));
  }
  void after(StepClock& clock) override {
    const Stopwatch watch;
    const auto logits = engine_.read_output(id_, "logits", room_);
    tokens_[0] = sampler_.next({reinterpret_cast<const float*>(logits.data()),
                                static_cast<size_t>(model_->sizes().vocabulary)});
    clock.sampling = watch.seconds();
    ++done_;
  }

 private:
  infer::Sampler sampler_;
  int64_t first_, stretch_, done_ = 0;
  int32_t position_ = 0;
  std::vector<std::byte> room_;  // for what comes from a device
};

}  // namespace

std::string_view name_of(Mode mode) {
  constexpr std::string_view kNames[] = {"training", "inference", "generation"};
  return kNames[static_cast<size_t>(mode)];
}

std::unique_ptr<Workload> make_workload(const WorkloadOptions& o) {
  const int64_t batch = o.options.batch_size, length = o.options.context;
  if (o.mode == Mode::training) return std::make_unique<Training>(o);
  if (o.mode == Mode::inference)
    return std::make_unique<ModelWorkload>(o, o.model->forward(batch, length), batch, length);
  if (o.prompt >= o.model->sizes().context)
    usage_error("--prompt {}: expected fewer tokens than the context, which is {}", o.prompt,
                o.model->sizes().context);
  return std::make_unique<Generation>(o);
}

std::unique_ptr<Workload> graph_workload(const Graph& graph, const PipelineOptions& options,
                                         std::optional<Backend> backend) {
  return std::make_unique<OneProgram>(graph, options, backend.value_or(cpu::cpu_backend()), 0);
}

}  // namespace brrr::insight
