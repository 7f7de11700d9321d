// Training by the C interface: a run of `brrr train` whose loop the caller writes, a run of the
// caller's own graph, and `brrr train` as a whole.

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "base/threads/parallel.h"
#include "folders/checkpoint.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "ir/text.h"
#include "library/graphs.h"
#include "machine/device.h"
#include "ops/ops.h"
#include "runtime/timeline.h"
#include "train/open_run.h"
#include "train/parts.h"
#include "train/run_watch.h"
#include "train/trainer.h"

using namespace brrr;
using namespace brrr::library;

using NamedTensors = std::vector<std::pair<std::string, const brrr_tensor*>>;

/// A training run, whatever its model.
struct brrr_run {
  virtual ~brrr_run() = default;
  virtual brrr_step step(const NamedTensors& tensors) = 0;
  virtual double evaluate(const NamedTensors& tensors) = 0;
  virtual void save(const fs::path& folder) = 0;
  virtual void save_state(const fs::path& folder) = 0;
  virtual void load_state(const fs::path& checkpoint) = 0;
  virtual train::Session& session() = 0;
  virtual const train::TrainOptions& options() const = 0;
  virtual int64_t steps_done() const = 0;
  virtual brrr_plan plan() const = 0;

  /// Where the kernels of the next step are written down: null unless steps are timed.
  Timeline* next_timeline() { return is_timed ? &timeline : nullptr; }
  Timeline timeline;  // of the timed steps so far
  bool is_timed = false;
  int64_t timed_steps = 0;
};

namespace brrr::library {
namespace {

void say_note(const std::string& line) { tell("{}\n", line); }

brrr_step step_of(int64_t done, const train::StepResult& r, double rate, double seconds) {
  return {.step = done,
          .loss = r.loss,
          .grad_norm = r.grad_norm,
          .learning_rate = rate,
          .loss_scale = r.loss_scale,
          .seconds = seconds,
          .tokens = 0};
}

brrr_plan plan_of(const train::Session& session, int64_t process, int64_t limit) {
  const MemoryForecast f = session.forecast();
  return {.parameter_bytes = f.parameter_bytes,
          .state_bytes = f.state_bytes,
          .activation_bytes = f.temporary_bytes + f.constant_bytes,
          .arena_bytes = f.total(),
          .process_bytes = process,
          .limit_bytes = limit};
}

/// The run that `brrr train` would do with these options.
class NamedRun final : public brrr_run {
 public:
  explicit NamedRun(const train::TrainOptions& options) : run_(options, std::nullopt, say_note) {
    run_.compile();
    run_.initialise();
  }
  brrr_step step(const NamedTensors& tensors) override {
    if (!tensors.empty())
      usage_error("this run reads its own data; give tensors to a run of your own graph");
    const Stopwatch watch;
    const double rate = run_.scheduled_rate();
    const int64_t tokens = run_.state().tokens;
    const train::StepResult r = run_.step(next_timeline());
    brrr_step s = step_of(run_.state().step, r, rate, watch.seconds());
    s.tokens = run_.state().tokens - tokens;
    return s;
  }
  double evaluate(const NamedTensors& tensors) override {
    if (!tensors.empty())
      usage_error("this run reads its own data; give tensors to a run of your own graph");
    if (!run_.dataset().has_val)
      usage_error("this run has no validation data; see the option val-fraction");
    return run_.evaluate().loss;
  }
  void save(const fs::path& folder) override {
    fs::create_directories(folder);
    train::write_model(folder, run_.parts());
  }
  void save_state(const fs::path& folder) override {
    fs::create_directories(folder);
    run_.save_checkpoint_in(folder);
  }
  void load_state(const fs::path& checkpoint) override {
    const io::Checkpoint found = io::open_checkpoint(checkpoint);
    train::check_resumable(found);
    run_.load(found.folder);
  }
  train::Session& session() override { return run_.session(); }
  const train::TrainOptions& options() const override { return run_.options(); }
  int64_t steps_done() const override { return run_.state().step; }
  brrr_plan plan() const override {
    return plan_of(run_.session(), run_.process_forecast().resident(), run_.memory_limit());
  }

 private:
  train::OpenRun run_;
};

/// A run of the caller's own graph, on batches that the caller gives.
class GraphRun final : public brrr_run {
 public:
  GraphRun(const brrr_graph& graph, const std::string& loss, train::TrainOptions options)
      : options_(std::move(options)), text_(print(graph.graph)) {
    const Graph step = loss_graph(graph.graph, loss);
    for (const NodeId id : graph.graph.inputs(InputKind::data))
      if (const std::string& name = graph.graph.input_name(id); name != "rng_key")
        types_.emplace(name, graph.graph.type({id, 0}));
    if (types_.empty()) usage_error("the graph has no input, so a step learns nothing");
    if (graph.graph.inputs(InputKind::parameter).empty())
      usage_error("the graph has no parameter to train");
    session_ = std::make_unique<train::Session>(step, inference(step),
                                                machine::backend_for(options_.device),
                                                train::session_options(options_));
    schedule_ = train::schedule_of(options_);
    limit_ = machine::memory_budget(options_.device, options_.memory_limit);
    const int64_t needed = resident_memory().needed() + session_->forecast().total();
    if (limit_.bytes > 0 && needed > limit_.bytes)
      throw UserError(fmt::format("the run does not fit: it needs {}, and {} is {}; use smaller "
                                  "batches, precision bf16 or rematerialize all",
                                  memory_text(needed), limit_.source, memory_text(limit_.bytes)),
                      ExitCode::kNoMemory);
    process_ = needed;
    session_->allocate();
    fill(graph);
  }

  brrr_step step(const NamedTensors& tensors) override {
    const Stopwatch watch;
    const int64_t accumulation = options_.gradient_accumulation_steps;
    const auto each = std::ssize(tensors) / accumulation;
    if (each == 0) usage_error("a step of your own graph takes tensors; got none");
    std::vector<io::Batch> batches;
    for (int64_t i = 0; i < accumulation; ++i)
      batches.push_back(batch_of(
          std::span(tensors).subspan(static_cast<size_t>(i * each), static_cast<size_t>(each))));
    const double rate = schedule_.at(step_);
    const train::StepResult r = session_->step(step_, batches, rate, next_timeline());
    ++step_;
    return step_of(step_, r, rate, watch.seconds());
  }
  double evaluate(const NamedTensors& tensors) override {
    return session_->loss_sum(batch_of(tensors));
  }
  void save(const fs::path& folder) override {
    fs::create_directories(folder);
    train::write_parameters(folder / "model.safetensors", session_->engine());
    write_file_atomically(folder / "graph.txt", text_);
  }
  void save_state(const fs::path& folder) override {
    fs::create_directories(folder);
    io::CheckpointWriter writer(folder, step_);
    train::write_parameters(writer.path("model.safetensors"), session_->engine());
    train::write_optimizer_state(writer.path("optimizer.safetensors"), session_->engine());
    write_file_atomically(writer.path("graph.txt"), text_);
    write_file_atomically(writer.path("run.json"),
                          io::Json{{"step", step_}, {"optim", options_.optim}}.dump() + "\n");
    writer.commit();
  }
  void load_state(const fs::path& checkpoint) override {
    const io::Checkpoint found = io::open_checkpoint(checkpoint);
    const io::SafetensorsFile weights(found.folder / "model.safetensors");
    for (const StateInfo& s : session_->engine().states()) {
      if (s.kind() != InputKind::parameter) continue;
      const io::TensorView* tensor = weights.find(s.name);
      if (tensor == nullptr || tensor->dtype != s.type.dtype || tensor->shape != s.type.shape)
        user_error("{}: expected the parameter '{}' as {}", weights.what(), s.name, s.type.str());
    }
    train::load_optimizer_state(found.folder / "optimizer.safetensors", session_->engine(),
                                options_.optim);
    session_->engine().load(weights);
    step_ = found.step;
  }
  train::Session& session() override { return *session_; }
  const train::TrainOptions& options() const override { return options_; }
  int64_t steps_done() const override { return step_; }
  brrr_plan plan() const override { return plan_of(*session_, process_, limit_.bytes); }

 private:
  /// The graph with the loss that a session wants: times "loss_scale", alone.
  static Graph loss_graph(Graph g, const std::string& loss) {
    const Output* output = g.find_output(loss);
    if (output == nullptr) usage_error("the graph has no output '{}' that could be the loss", loss);
    Value value = g.value(output->value);
    if (value.shape().rank() != 0 || value.dtype() != DType::f32)
      usage_error("the loss must be f32[]; '{}' is {}", loss, value.type().str());
    for (const char* taken : {"loss_scale", "learning_rate", "optimizer_step", "rounding_key"})
      if (g.find_input(taken) != kNoNode)
        usage_error("the input '{}' needs another name: training has one of its own", taken);
    g.outputs().clear();
    g.output("loss", value * g.input("loss_scale", Shape(), DType::f32));
    return g;
  }
  void fill(const brrr_graph& graph) {
    WeightList list("the graph's weights", nullptr,
                    initial_weights(graph, static_cast<uint32_t>(options_.seed)));
    for (const NodeId id : graph.graph.inputs(InputKind::parameter))
      list.add({graph.graph.input_name(id), DType::f32, graph.graph.type({id, 0}).shape, {}, {}});
    session_->engine().load(list);
  }
  io::Batch batch_of(std::span<const std::pair<std::string, const brrr_tensor*>> tensors) const {
    io::Batch batch;
    batch.count = 1;  // the loss is a mean: micro-batches count alike
    for (const auto& [name, tensor] : tensors) {
      const auto at = types_.find(name);
      if (at == types_.end()) {
        std::vector<std::string> names;
        for (const auto& [known, type] : types_) names.push_back(known);
        const std::string near = nearest(name, names);
        usage_error("the graph has no input '{}'; {}", name,
                    near.empty() ? fmt::format("it has {}", fmt::join(names, ", "))
                                 : fmt::format("did you mean '{}'?", near));
      }
      const Type given{tensor->dtype, Shape(tensor->sizes)};
      if (given != at->second)
        usage_error("the input '{}' is {}; got {}", name, at->second.str(), given.str());
      const auto* bytes = static_cast<const std::byte*>(tensor->data);
      batch.tensors.push_back({at->first, std::vector(bytes, bytes + tensor->bytes)});
    }
    if (batch.tensors.size() != types_.size())
      for (const auto& [name, type] : types_)
        if (std::ranges::find(batch.tensors, name, &io::Batch::Tensor::name) == batch.tensors.end())
          usage_error("the input '{}' {} is missing", name, type.str());
    return batch;
  }

  train::TrainOptions options_;
  std::string text_;
  std::map<std::string, Type, std::less<>> types_;  // of what a batch holds
  std::unique_ptr<train::Session> session_;
  optim::Schedule schedule_;
  MemoryLimit limit_;
  int64_t process_ = 0, step_ = 0;
};

/// The kernels of a timeline by op, the slowest first: a line each.
std::string kernel_table(const Timeline& timeline, int64_t steps) {
  struct Row {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Row> rows;
  double all = 0;
  for (const TimelineRun& run : timeline.runs)
    for (size_t i = run.first; i < run.last; ++i) {
      const TimelineRecord& record = timeline.records[i];
      const Node& node = run.program->graph().node(record.node);
      Row& row = rows[fmt::format("{} {}", node.op->name,
                                  node.results.empty() ? "" : node.results[0].str())];
      ++row.calls;
      row.seconds += record.seconds;
      all += record.seconds;
    }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(
      sorted, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  const auto per_step = static_cast<double>(std::max<int64_t>(1, steps));
  std::string text = fmt::format("{} timed, {:.3f} ms of kernels in each\n", counted(steps, "step"),
                                 1e3 * all / per_step);
  for (const auto& [name, row] : sorted)
    text += fmt::format("{:9.3f} ms {:5.1f}% {:6.1f} calls  {}\n", 1e3 * row.seconds / per_step,
                        100 * row.seconds / std::max(all, 1e-12),
                        static_cast<double>(row.calls) / per_step, name);
  return text;
}

/// Tells steps to a callback of the caller.
class StepObserver final : public train::RunObserver {
 public:
  StepObserver(brrr_on_step on_step, void* context) : on_step_(on_step), context_(context) {}
  void step(const train::StepRecord& r) override {
    if (on_step_ == nullptr || stops_) return;
    const brrr_step s{.step = r.step,
                      .loss = r.loss,
                      .grad_norm = r.grad_norm,
                      .learning_rate = r.learning_rate,
                      .loss_scale = r.loss_scale,
                      .seconds = r.seconds,
                      .tokens = r.tokens};
    stops_ = on_step_(context_, &s) != 0;
  }
  bool wants_stop() const override { return stops_; }

 private:
  brrr_on_step on_step_;
  void* context_;
  bool stops_ = false;
};

}  // namespace
}  // namespace brrr::library

brrr_status brrr_run_create(const brrr_graph* graph, const char* loss, const brrr_option* options,
                            size_t count, brrr_run** run) {
  return guarded([&] {
    brrr_run*& out = checked(run, "run");
    const train::TrainOptions o = train::resolve(key_values(options, count));
    if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
    if (graph == nullptr)
      out = std::make_unique<NamedRun>(o).release();
    else
      out = std::make_unique<GraphRun>(*graph, text_of(loss, "loss"), o).release();
  });
}
void brrr_run_free(brrr_run* run) { delete run; }

brrr_status brrr_run_step(brrr_run* run, const char* const* names, brrr_tensor* const* tensors,
                          size_t count, brrr_step* step) {
  return guarded([&] {
    brrr_run& r = checked(run, "run");
    NamedTensors given;
    const auto portions = static_cast<size_t>(r.options().gradient_accumulation_steps);
    for (size_t i = 0; i < portions && count > 0; ++i)
      for (auto& each : named(names, tensors + i * count, count)) given.push_back(std::move(each));
    const brrr_step done = r.step(given);
    r.timed_steps += r.is_timed ? 1 : 0;
    if (step != nullptr) *step = done;
  });
}

brrr_status brrr_run_evaluate(brrr_run* run, const char* const* names, brrr_tensor* const* tensors,
                              size_t count, double* loss) {
  return guarded([&] {
    double& out = checked(loss, "loss");
    out = checked(run, "run").evaluate(named(names, tensors, count));
  });
}

int64_t brrr_run_max_steps(const brrr_run* run) {
  return run == nullptr ? 0 : run->options().max_steps;
}
int64_t brrr_run_steps_done(const brrr_run* run) { return run == nullptr ? 0 : run->steps_done(); }
int64_t brrr_run_accumulation(const brrr_run* run) {
  return run == nullptr ? 0 : run->options().gradient_accumulation_steps;
}

brrr_status brrr_run_plan(const brrr_run* run, brrr_plan* plan) {
  return guarded([&] { checked(plan, "plan") = checked(run, "run").plan(); });
}

brrr_status brrr_run_parameter(brrr_run* run, const char* name, brrr_tensor** tensor) {
  return guarded([&] {
    brrr_tensor*& out = checked(tensor, "tensor");
    const Engine& engine = checked(run, "run").session().engine();
    const std::string wanted = text_of(name, "name");
    const StateInfo* state = engine.find_state(wanted);
    if (state == nullptr || state->kind() != InputKind::parameter) {
      std::vector<std::string> names;
      for (const StateInfo& s : engine.states())
        if (s.kind() == InputKind::parameter) names.push_back(s.name);
      const std::string near = nearest(wanted, names);
      usage_error("there is no parameter '{}'{}", wanted,
                  near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    }
    HostTensor copy(state->type.dtype, state->type.shape);
    std::vector<std::byte> room;
    const std::span<const std::byte> bytes = engine.read_state(wanted, room);
    std::ranges::copy(bytes.first(copy.bytes.size()), copy.bytes.begin());
    out = own(std::move(copy)).release();
  });
}

brrr_status brrr_run_time_steps(brrr_run* run, int on) {
  return guarded([&] {
    brrr_run& r = checked(run, "run");
    r.is_timed = on != 0;
    if (!r.is_timed) return;
    r.timeline.clear();
    r.timed_steps = 0;
  });
}

brrr_status brrr_run_profile(brrr_run* run, char** text) {
  return guarded([&] {
    char*& out = checked(text, "text");
    const brrr_run& r = checked(run, "run");
    if (r.timed_steps == 0) usage_error("no step was timed; call brrr_run_time_steps() before it");
    out = copy_of(kernel_table(r.timeline, r.timed_steps));
  });
}

brrr_status brrr_run_save(brrr_run* run, const char* folder) {
  return guarded([&] { checked(run, "run").save(text_of(folder, "folder")); });
}
brrr_status brrr_run_save_state(brrr_run* run, const char* folder) {
  return guarded([&] { checked(run, "run").save_state(text_of(folder, "folder")); });
}
brrr_status brrr_run_load_state(brrr_run* run, const char* checkpoint) {
  return guarded([&] { checked(run, "run").load_state(text_of(checkpoint, "checkpoint")); });
}

brrr_status brrr_train(const brrr_option* options, size_t count, brrr_on_step on_step,
                       void* context, char** json) {
  return guarded([&] {
    StepObserver observer(on_step, context);
    const train::TrainResult result =
        train::train(train::resolve(key_values(options, count)), &observer);
    if (json != nullptr) *json = copy_of(train::result_json(result));
    if (result.was_stopped || result.signal != 0) throw Stopped();
  });
}
