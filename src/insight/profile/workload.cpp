#include "insight/profile/workload.h"

#include <atomic>
#include <cstring>
#include <random>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/threads/work_spans.h"
#include "infer/model_runnable.h"
#include "insight/profile/random_batch.h"
#include "machine/device.h"
#include "models/adapters/adapted_model.h"
#include "models/initialise.h"
#include "runtime/made_inputs.h"
#include "train/mean_loss.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

constexpr uint32_t kSeed = 7;
constexpr double kLearningRate = 1e-5;  // small: random tokens teach nothing

std::shared_ptr<const WeightSource> random_weights(const models::Model& model) {
  return models::made_weights(model, models::initial_weights(model, kSeed));
}

/// Random batches of full rows.
class RandomBatches final : public io::BatchSource {
 public:
  /// Both must outlive this.
  RandomBatches(const train::TrainOptions& options, const models::Model& model,
                const io::BatchOptions& layout)
      : options_(options), model_(model), layout_(layout) {}
  void fill(int64_t index, io::Batch& batch) const override {
    fill_random_batch(options_, model_, layout_, index, batch);
  }
  int64_t epoch_of(int64_t) const override { return 0; }
  int64_t batches_per_pass() const override { return 1; }
  int64_t tokens() const override { return layout_.batch * layout_.context; }
  std::string fingerprint() const override { return "random"; }

 private:
  const train::TrainOptions& options_;
  const models::Model& model_;
  io::BatchOptions layout_;
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
      : options_(o.options), model_(models::over_floats(o.model)), data_(o.data), ranks_(o.ranks) {
    session_ = train::compile_run(options_, *model_, ranks_);
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
  int64_t tokens() const override { return train::tokens_of_step(options_); }
  double evaluation_seconds() override {
    if (options_.eval_steps == 0 || options_.skips_validation()) return 0;
    int64_t batches = options_.eval_batches;
    if (data_ != nullptr && data_->has_val)
      batches = train::evaluation_batches(*data_, options_, batches);
    else if (batches == 0)  // the whole of a text that is not here
      return 0;
    io::BatchOptions l = train::loader_options(options_, *model_);
    l.batch = options_.eval_batch_size;
    l.lengths.clear();
    io::Batch batch;
    RandomBatches(options_, *model_, l).fill(0, batch);
    session_->loss_sum(batch);                     // touches its memory
    if (!is_on_host()) session_->loss_sum(batch);  // is recorded
    const WorkClock clock("evaluation of a batch");
    const Stopwatch watch;
    session_->loss_sum(batch);
    return static_cast<double>(batches) * watch.seconds();
  }
  Communicator* communicator() const override { return ranks_.get(); }
  Batches batches() const override { return source_ != nullptr ? source_->done() : Batches{}; }

  void allocate() override {
    session_->allocate();
    session_->engine().load(*random_weights(*model_));
    io::LoaderOptions l = train::loader_options(options_, *model_);
    l.lengths.clear();  // one program: batches of any size are padded to the largest
    std::unique_ptr<io::BatchSource> batches;
    if (data_ != nullptr)
      batches = data_->batches(l);
    else
      batches = std::make_unique<RandomBatches>(options_, *model_, l);
    auto timed = std::make_unique<TimedBatches>(std::move(batches));
    source_ = timed.get();
    std::unique_ptr<io::BatchSource> own = std::move(timed);
    if (ranks_ != nullptr)
      own = std::make_unique<train::SharedBatches>(std::move(own), session_->shares());
    loader_.emplace(std::move(own), l);
    batches_.resize(static_cast<size_t>(session_->shares().local()));
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
  std::shared_ptr<Communicator> ranks_;
  std::unique_ptr<train::Session> session_;
  TimedBatches* source_ = nullptr;  // the loader's
  std::optional<io::Loader> loader_;
  std::vector<io::Batch> batches_;
  int64_t step_ = 0;
};

/// One run of a Runnable after the other, on the same inputs.
class RunnableRuns : public Workload {
 public:
  RunnableRuns(std::shared_ptr<infer::Runner> runner, PortValues inputs, double compile_seconds,
               int64_t tokens = 0)
      : runner_(std::move(runner)),
        inputs_(std::move(inputs)),
        compile_seconds_(compile_seconds),
        tokens_(tokens) {
    const std::vector<Port>& outputs = session().runnable().outputs();
    is_read_in_place_ =
        outputs.size() == 1 && outputs[0].is_tensor && outputs[0].dtype == DType::f32;
  }
  const Backend& backend() const override { return session().engine().backend(); }
  std::vector<ProgramRuns> programs() const override {
    const std::vector<size_t>& ids = session().last_programs();
    std::vector<ProgramRuns> list;
    for (size_t i = 0; i < ids.size(); ++i)
      list.push_back({ids.size() == 1 ? "run" : fmt::format("run, part {}", i + 1),
                      &session().engine().program(ids[i]), 1});
    return list;
  }
  MemoryForecast forecast() const override { return session().engine().forecast(); }
  double compile_seconds() const override { return compile_seconds_; }
  int64_t tokens() const override { return tokens_; }
  // The programs that come after what data decided are only there when it has run.
  void allocate() override { once(nullptr); }
  StepClock run(Timeline* timeline) override {
    StepClock clock;
    clock.start = now_seconds();
    before();
    const std::span<const float> output = once(timeline);
    after(output, clock);
    clock.wall = now_seconds() - clock.start;
    return clock;
  }

 protected:
  virtual void before() {}
  /// `output`: the only one, where it is f32.
  virtual void after(std::span<const float> output, StepClock& clock) {
    static_cast<void>(output), static_cast<void>(clock);
  }
  template <typename T>
  void set_input(const char* name, T value) {
    std::memcpy(inputs_.find(name)->second.tensors[0].bytes.data(), &value, sizeof(T));
  }

 private:
  const RunnableSession& session() const { return runner_->session(); }
  std::span<const float> once(Timeline* timeline) {
    if (is_read_in_place_) return runner_->run_in_place(inputs_, {}, timeline).numbers;
    runner_->run_into(outputs_, inputs_, {}, timeline);
    return {};
  }

  std::shared_ptr<infer::Runner> runner_;
  PortValues inputs_, outputs_;
  double compile_seconds_;
  int64_t tokens_;
  bool is_read_in_place_ = false;
};

/// Compiled for the inputs.
struct Prepared {
  std::shared_ptr<infer::Runner> runner;
  double seconds = 0;
};
Prepared prepared(const std::shared_ptr<const Runnable>& runnable, const Backend& backend,
                  const PipelineOptions& passes, const PortValues& inputs) {
  const Stopwatch watch;
  RunnableOptions how;
  how.passes = passes;
  auto runner = std::make_shared<infer::Runner>(runnable, backend, how);
  runner->prepare(inputs);
  return {std::move(runner), watch.seconds()};
}

/// Tokens that mean nothing, in texts of equal length.
PortValues random_tokens(const models::Model& model, infer::TextLayout layout, int64_t batch,
                         int64_t length) {
  std::mt19937 random(kSeed);
  std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(model.sizes().vocabulary - 1));
  std::vector<int32_t> tokens(static_cast<size_t>(batch * length));
  for (int32_t& token : tokens) token = id(random);
  PortValues inputs;
  if (layout == infer::TextLayout::flat) {
    const int64_t count = batch * length;
    std::vector<int32_t> positions, starts;
    for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<int32_t>(i % length));
    for (int64_t r = 0; r <= batch; ++r) starts.push_back(static_cast<int32_t>(r * length));
    inputs.emplace("tokens", HostTensor::of<int32_t>({count}, tokens));
    inputs.emplace("positions", HostTensor::of<int32_t>({count}, positions));
    inputs.emplace("starts", HostTensor::of<int32_t>({batch + 1}, starts));
    if (model.has_token_types())
      inputs.emplace("types", HostTensor::filled(DType::i32, {count}, 0));
    return inputs;
  }
  if (const auto picture = model.sizes().picture) {
    io::Batch pictures;
    fill_random_pictures(*picture, batch, 1, 0, pictures);
    inputs.emplace(
        "pixels", HostTensor::of<float>({batch, picture->channels, picture->height, picture->width},
                                        pictures.values("pixels")));
    return inputs;
  }
  inputs.emplace("tokens", HostTensor::of<int32_t>({batch, length}, tokens));
  if (model.task().head == models::Head::next_token) return inputs;
  if (model.has_token_types())
    inputs.emplace("types", HostTensor::filled(DType::i32, {batch, length}, 0));
  inputs.emplace("lengths", HostTensor::filled(DType::i32, {batch}, static_cast<double>(length)));
  return inputs;
}

PipelineOptions forward_options(const WorkloadOptions& o) {
  const train::SessionOptions s = train::session_options(o.options);
  const Precision precision = o.options.precision;
  const infer::RunPrecision form = o.own && o.own->name == precision
                                       ? infer::for_made_weights(*o.own)
                                       : infer::run_precision(precision);
  PipelineOptions passes = for_inference(form.dtype, form.quantization, o.cache);
  passes.matmul_precision = s.matmul_precision;
  passes.disabled = s.disabled_passes;
  return passes;
}

std::unique_ptr<Workload> forward_workload(const WorkloadOptions& o) {
  const int64_t batch = o.options.batch_size, length = o.options.context;
  const Backend backend = machine::backend_for(o.options.device);
  const infer::TextLayout layout = infer::text_layout(*o.model, backend);
  PortValues inputs = random_tokens(*o.model, layout, batch, length);
  Prepared p = prepared(infer::forward_runnable(o.model, random_weights(*o.model), layout), backend,
                        forward_options(o), inputs);
  return std::make_unique<RunnableRuns>(std::move(p.runner), std::move(inputs), p.seconds,
                                        batch * length);
}

/// One token after the other, round and round over the same stretch of the cache.
class Generation final : public RunnableRuns {
 public:
  Generation(const WorkloadOptions& o, Prepared p, PortValues inputs)
      : RunnableRuns(std::move(p.runner), std::move(inputs), p.seconds, 1),
        sampler_(infer::Sampling{}, 0),
        context_(o.model->sizes().context),
        first_(o.prompt),
        stretch_(std::min<int64_t>(16, context_ - o.prompt)) {}

  double cache_share() const override {
    return static_cast<double>(first_ + stretch_ / 2) / static_cast<double>(context_);
  }

 protected:
  void before() override { set_input("position", static_cast<int32_t>(first_ + done_ % stretch_)); }
  void after(std::span<const float> logits, StepClock& clock) override {
    const Stopwatch watch;
    set_input("tokens", sampler_.next(logits));
    clock.sampling = watch.seconds();
    ++done_;
  }

 private:
  infer::Sampler sampler_;
  int64_t context_, first_, stretch_, done_ = 0;
};

std::unique_ptr<Workload> generation_workload(const WorkloadOptions& o) {
  const int64_t context = o.model->sizes().context;
  if (o.prompt >= context)
    usage_error("--prompt {}: expected fewer tokens than the context, which is {}", o.prompt,
                context);
  PortValues inputs = random_tokens(*o.model, infer::TextLayout::padded, 1, 1);
  inputs.emplace("position", HostTensor::filled(DType::i32, {}, 0));
  Prepared p = prepared(infer::decode_runnable(o.model, random_weights(*o.model), context,
                                               dtype_of_precision(o.options.precision)),
                        machine::backend_for(o.options.device), forward_options(o), inputs);
  return std::make_unique<Generation>(o, std::move(p), std::move(inputs));
}

}  // namespace

bool Workload::of_first_rank(bool value) const {
  if (Communicator* const ranks = communicator())
    ranks->broadcast(std::as_writable_bytes(std::span(&value, 1)), 0);
  return value;
}

std::string_view name_of(Mode mode) {
  constexpr std::string_view kNames[] = {"training", "inference", "generation"};
  return kNames[static_cast<size_t>(mode)];
}

std::unique_ptr<Workload> make_workload(const WorkloadOptions& o) {
  return o.mode == Mode::training    ? std::make_unique<Training>(o)
         : o.mode == Mode::inference ? forward_workload(o)
                                     : generation_workload(o);
}

std::unique_ptr<Workload> runnable_workload(std::shared_ptr<infer::Runner> runner,
                                            PortValues inputs, double compile_seconds) {
  return std::make_unique<RunnableRuns>(std::move(runner), std::move(inputs), compile_seconds);
}

std::unique_ptr<Workload> graph_workload(const Graph& graph, const PipelineOptions& passes,
                                         std::optional<Backend> backend) {
  const auto weights = std::make_shared<WeightList>(
      "random weights", nullptr, [](std::string_view, std::span<float> to) {
        std::mt19937 random(kSeed);
        std::uniform_real_distribution<float> uniform(-1, 1);
        for (float& x : to) x = uniform(random);
      });
  for (const NodeId id : graph.inputs(InputKind::parameter))
    weights->add({graph.input_name(id), DType::f32, graph.type({id, 0}).shape, {}});
  const std::shared_ptr<const Runnable> runnable = runnable_of(graph, weights);
  PortValues inputs = make_inputs(*runnable, {}, {}).values;
  Prepared p = prepared(runnable, backend.value_or(cpu::cpu_backend()), passes, inputs);
  return runnable_workload(std::move(p.runner), std::move(inputs), p.seconds);
}

}  // namespace brrr::insight
