// Training runs of the caller's own graph, on batches that the caller gives.

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/memory.h"
#include "folders/checkpoint.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "ir/text.h"
#include "library/run.h"
#include "machine/device.h"
#include "machine/memory_budget.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "runtime/ranks/collectives.h"
#include "runtime/ranks/state_shards.h"
#include "runtime/runnable.h"
#include "train/parts.h"
#include "train/run_folder.h"

namespace brrr::library {

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

namespace {

using InputTypes = std::map<std::string, Type, std::less<>>;
/// What a batch may hold, and what it must.
struct Inputs {
  InputTypes all, needed;
};

/// Tensors of a batch for the graph.
InputTypes inputs_of(const Graph& g) {
  InputTypes types;
  for (const NodeId id : g.inputs(InputKind::data))
    if (const std::string& name = g.input_name(id); name != "rng_key")
      types.emplace(name, g.type({id, 0}));
  return types;
}

/// "did you mean 'x'?", or "it has x, y" where no name is near.
std::string hint(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest(name, names);
  return near.empty() ? fmt::format("it has {}", fmt::join(names, ", "))
                      : fmt::format("did you mean '{}'?", near);
}

/// A run of the caller's own graph, on batches that the caller gives.
class GraphRun final : public brrr_run {
 public:
  GraphRun(const brrr_graph& graph, const std::string& loss, train::TrainOptions options,
           std::shared_ptr<Communicator> ranks)
      : options_(std::move(options)),
        graph_(graph.graph),
        inputs_{inputs_of(graph.graph), inputs_of(graph.graph)} {
    const Graph step = loss_graph(graph.graph, loss);
    if (inputs_.all.empty()) usage_error("the graph has no input, so a step learns nothing");
    if (graph.graph.inputs(InputKind::parameter).empty())
      usage_error("the graph has no parameter to train");
    train::SessionOptions how = train::session_options(options_);
    Backend backend = machine::backend_for(options_.device);
    if (ranks != nullptr) {
      // Every rank gives its own micro-batches.
      how.shares.slots = how.shares.ranks;
      how.shares.micro_batches = options_.gradient_accumulation_steps * how.shares.ranks;
      how.shares.rank = ranks->rank();
      how.communicator = ranks;
      add_collectives(backend, ranks->ranks(), ranks, options_.overlap);
    }
    communicator = std::move(ranks);
    session_ = std::make_unique<train::Session>(step, inference(step), backend, how);
    schedule_ = train::schedule_of(options_);
    limit_ = machine::memory_budget(options_.device, options_.memory_limit);
    const int64_t beside = resident_memory().needed();
    const int64_t needed = beside + session_->forecast().total();
    if (limit_.bytes > 0 && needed > limit_.bytes)
      throw UserError(fmt::format("the run does not fit: it needs {}, and {} is {}; use smaller "
                                  "batches, precision bf16 or rematerialize all",
                                  memory_text(needed), limit_.source, memory_text(limit_.bytes)),
                      ExitCode::kNoMemory);
    process_ = needed;
    // What evaluation graphs may need together with the step.
    if (limit_.bytes > 0) session_->engine().set_limit(limit_.bytes - beside);
    session_->allocate();
    fill(graph);
  }

  brrr_step step(const NamedTensors& tensors) override {
    const Stopwatch watch;
    const int64_t accumulation = session_->shares().local();
    const auto each = std::ssize(tensors) / accumulation;
    if (each == 0) usage_error("a step of your own graph takes tensors; got none");
    std::vector<io::Batch> batches;
    for (int64_t i = 0; i < accumulation; ++i)
      batches.push_back(batch_of(inputs_, std::span(tensors).subspan(static_cast<size_t>(i * each),
                                                                     static_cast<size_t>(each))));
    const double rate = schedule_.at(step_);
    const train::StepResult r = session_->step(step_, batches, rate, next_timeline());
    ++step_;
    return step_of(step_, r, rate, watch.seconds());
  }
  double evaluate(const NamedTensors& tensors) override {
    return session_->loss_sum(batch_of(inputs_, tensors));
  }
  std::vector<double> evaluate_graph(const brrr_graph* graph,
                                     const std::vector<std::string>& outputs,
                                     const NamedTensors& tensors) override {
    const Graph& g = graph == nullptr ? graph_ : graph->graph;
    // Nodes and outputs of a graph are only ever added.
    const std::string key = fmt::format("{} {} {}", graph == nullptr ? 0 : graph->id, g.size(),
                                        fmt::join(outputs, " "));
    const auto graph_of = [&] { return drop_dead(inference(with_outputs(g, outputs)), true); };
    auto at = evaluations_.find(key);
    if (at == evaluations_.end()) {
      check_numbers(g, outputs);
      check_parameters(g);
      constexpr size_t kMostKept = 256;  // a program may make a graph for every evaluation
      if (evaluations_.size() == kMostKept) evaluations_.clear();
      at = evaluations_.emplace(key, Inputs{inputs_of(g), inputs_of(graph_of())}).first;
    }
    const std::vector<float> found =
        session_->evaluate(key, graph_of, batch_of(at->second, tensors), outputs);
    return {found.begin(), found.end()};
  }
  void save(const fs::path& folder) override {
    fs::create_directories(folder);
    train::write_parameters(folder / "model.safetensors", session_->engine(), communicator.get());
    if (writes()) write_file_atomically(folder / "graph.txt", print(graph_));
    meet();
  }
  void save_state(const fs::path& folder) override {
    fs::create_directories(folder);
    if (!writes()) {
      train::write_parameters(folder, session_->engine(), communicator.get());
      train::write_optimizer_state(folder, session_->engine(), communicator.get());
      return meet();
    }
    io::CheckpointWriter writer(folder, step_);
    train::write_parameters(writer.path("model.safetensors"), session_->engine(),
                            communicator.get());
    train::write_optimizer_state(writer.path("optimizer.safetensors"), session_->engine(),
                                 communicator.get());
    write_file_atomically(writer.path("graph.txt"), print(graph_));
    write_file_atomically(writer.path("run.json"),
                          io::Json{{"step", step_}, {"optim", options_.optim}}.dump() + "\n");
    writer.commit();
    meet();
  }
  void load_state(const fs::path& checkpoint) override {
    const io::Checkpoint found = io::open_checkpoint(checkpoint);
    const io::SafetensorsFile weights(found.folder / "model.safetensors");
    for (const StateInfo& s : session_->engine().states()) {
      if (s.kind() != InputKind::parameter) continue;
      const io::TensorView* tensor = weights.find(s.name);
      const Type type = whole_type(s).value_or(s.type);
      if (tensor == nullptr || tensor->dtype != type.dtype || tensor->shape != type.shape)
        user_error("{}: expected the parameter '{}' as {}", weights.what(), s.name, type.str());
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
  /// Rank 0 writes the files; the other ranks wait for it in meet().
  bool writes() const { return communicator == nullptr || communicator->rank() == 0; }
  void meet() {
    if (communicator != nullptr) communicator->barrier();
  }
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
  /// Throws UserError for an output that is no number.
  static void check_numbers(const Graph& g, const std::vector<std::string>& outputs) {
    std::vector<std::string> names;
    for (const Output& out : g.outputs()) names.push_back(out.name);
    for (const std::string& name : outputs) {
      const Output* const out = g.find_output(name);
      if (out == nullptr) usage_error("the graph has no output '{}'; {}", name, hint(name, names));
      if (const Type& type = g.type(out->value); type != Type{DType::f32, {}})
        usage_error("the output '{}' must be f32[] for a mean; it is {}", name, type.str());
    }
  }
  /// Throws UserError for a graph with parameters that are not those of the run.
  void check_parameters(const Graph& g) const {
    std::vector<std::string> names;
    for (const NodeId id : graph_.inputs(InputKind::parameter))
      names.push_back(graph_.input_name(id));
    for (const NodeId id : g.inputs()) {
      if (g.input_kind(id) == InputKind::data) continue;
      const std::string& name = g.input_name(id);
      const NodeId known = graph_.find_input(name);
      if (g.input_kind(id) != InputKind::parameter || known == kNoNode ||
          graph_.input_kind(known) != InputKind::parameter)
        usage_error("the run has no parameter '{}'; {}", name, hint(name, names));
      if (graph_.type({known, 0}) != g.type({id, 0}))
        usage_error("the parameter '{}' of the run is {}; the evaluation graph has {}", name,
                    graph_.type({known, 0}).str(), g.type({id, 0}).str());
    }
  }
  static io::Batch batch_of(const Inputs& inputs,
                            std::span<const std::pair<std::string, const brrr_tensor*>> tensors) {
    io::Batch batch;
    batch.count = 1;  // the loss is a mean: micro-batches count alike
    for (const auto& [name, tensor] : tensors) {
      const auto at = inputs.all.find(name);
      if (at == inputs.all.end()) {
        std::vector<std::string> names;
        for (const auto& [known, type] : inputs.all) names.push_back(known);
        usage_error("the graph has no input '{}'; {}", name, hint(name, names));
      }
      const Type given{tensor->dtype, Shape(tensor->sizes)};
      if (given != at->second)
        usage_error("the input '{}' is {}; got {}", name, at->second.str(), given.str());
      batch.tensors.push_back({at->first, bytes_of(*tensor)});
    }
    if (batch.tensors.size() != inputs.all.size())
      for (const auto& [name, type] : inputs.needed)
        if (std::ranges::find(batch.tensors, name, &io::Batch::Tensor::name) == batch.tensors.end())
          usage_error("the input '{}' {} is missing", name, type.str());
    return batch;
  }

  train::TrainOptions options_;
  Graph graph_;  // as it was given
  Inputs inputs_;
  std::map<std::string, Inputs> evaluations_;  // by the keys of Session::evaluate()
  std::unique_ptr<train::Session> session_;
  optim::Schedule schedule_;
  MemoryLimit limit_;
  int64_t process_ = 0, step_ = 0;
};

}  // namespace

std::unique_ptr<brrr_run> make_graph_run(const brrr_graph& graph, const std::string& loss,
                                         const train::TrainOptions& options,
                                         std::shared_ptr<Communicator> communicator) {
  return std::make_unique<GraphRun>(graph, loss, options, std::move(communicator));
}

}  // namespace brrr::library
