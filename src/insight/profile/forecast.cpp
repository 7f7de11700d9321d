#include "insight/profile/forecast.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "insight/plan/anatomy.h"
#include "ops/attention.h"

namespace brrr::insight {
namespace {

constexpr double kTrialSeconds = 0.05;  // for the runs of one kernel, after its first
constexpr double kLongestTrial = 3;     // predicted seconds; longer kernels go by the model
constexpr size_t kCalibrated = 3;       // kernels of each class that are tried alone

/// Random streams differ from layer to layer, not what they cost.
std::string without_streams(std::string text) {
  for (size_t at = 0; (at = text.find("stream=", at)) != std::string::npos;) {
    at += 7;
    size_t end = at;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    text.erase(at, end - at);
  }
  return text;
}

std::string signature(const Graph& g, NodeId id) {
  const Node& node = g.node(id);
  std::string text = node.op->name + without_streams(node.attrs.str());
  for (const Type& t : operand_types(g, node)) text += " " + t.str();
  return text;
}

bool takes_time(const Program& program, NodeId id) {
  const Graph& g = program.graph();
  return !g.is_input(id) && !program.plan().constant[id] && !view_offset(g, g.node(id));
}

/// The node as a graph of its own.
Graph one_node(const Graph& from, NodeId id) {
  Graph g;
  const Node& node = from.node(id);
  std::vector<ValueId> operands;
  std::map<ValueId, ValueId> seen;
  for (const ValueId& v : node.operands) {
    const auto [at, is_new] = seen.emplace(v, ValueId{});
    if (is_new) {
      const Type& t = from.type(v);
      // A state, so that no run writes over what the next one reads.
      at->second = g.input(fmt::format("x{}", seen.size()), t, Role::state).id;
    }
    operands.push_back(at->second);
  }
  const NodeId added = g.add(*node.op, operands, node.attrs);
  for (uint32_t port = 0; port < node.results.size(); ++port)
    g.output(fmt::format("y{}", port), g.value(added, port));
  return g;
}

int64_t bytes_alone(const Graph& g, NodeId id) {
  int64_t bytes = 0;
  for (const Type& t : operand_types(g, g.node(id))) bytes += t.bytes();
  for (const Type& t : g.node(id).results) bytes += t.bytes();
  return bytes;
}

void fill(Engine& engine, const Graph& g, double cache_share) {
  double whole = 1;  // for integers: an id, or the position that attention reads up to
  for (const Node& node : g.nodes())
    if (node.op->is_attention && !node.op->is_gradient &&
        node.attrs.get_or<bool>("position", false))
      whole =
          std::floor(cache_share *
                     static_cast<double>(AttentionForm(node, operand_types(g, node)).keys.size()));
  std::map<NodeId, int64_t> rows_of_starts;  // sequences of a ragged batch: as long as each other
  for (const Node& node : g.nodes()) {
    if (node.op == nullptr) continue;
    std::optional<size_t> starts;
    if (node.op->is_attention) starts = AttentionForm(node, operand_types(g, node)).starts;
    if (is(node, Op::segment_sum) || is(node, Op::segment_max)) starts = 1;
    if (starts)
      rows_of_starts[node.operands[*starts].node] = g.type(node.operands[0]).shape.size(-2);
  }
  for (NodeId id : g.inputs()) {
    const Type& type = g.type({id, 0});
    std::byte* to = engine.state_data(g.input_name(id));
    if (const auto rows = rows_of_starts.find(id); rows != rows_of_starts.end()) {
      const int64_t sequences = type.shape.size(0) - 1;
      fill_tensor(type, to, [&](int64_t i) {
        return static_cast<double>(i * rows->second / std::max<int64_t>(1, sequences));
      });
      continue;
    }
    // Different numbers without a draw for each: a kernel's time does not hang on them.
    fill_tensor(type, to, [&](int64_t i) {
      return is_float(type.dtype) ? 0.001 * static_cast<double>(i % 997) - 0.5 : whole;
    });
  }
}

}  // namespace

Forecaster::Forecaster(const Profile& p, const Workload& w, int64_t trial_bytes)
    : profile_(p), workload_(w), trial_bytes_(trial_bytes) {
  const auto programs = w.programs();
  int64_t calls = 0, runs = 0;
  for (const ProgramRuns& run : programs) runs += run.runs;
  for (const KernelProfile& k : p.kernels) {
    const Graph& g = programs[k.program].program->graph();
    calls += k.calls;
    if (g.is_input(k.node)) continue;
    Measured& m = here_[signature(g, k.node)];
    m.seconds += 1e-3 * k.ms;
    m.calls += k.calls;
  }
  // On a device that is what it takes to start a run, not a kernel.
  const bool of_runs = !p.ceilings.device.empty();
  if (calls > 0 && !of_runs) between_seconds_ = 1e-3 * p.between_ms / static_cast<double>(calls);
  if (runs > 0)
    run_seconds_ = 1e-3 * (p.rest_ms + (of_runs ? p.between_ms : 0)) / static_cast<double>(runs);
  calibrate();
}

void Forecaster::calibrate() {
  constexpr size_t kClasses = std::tuple_size_v<decltype(in_step_)>;
  const auto programs = workload_.programs();
  const machine::MachineSpeed speed = profile_.ceilings.speed();
  std::array<std::vector<const KernelProfile*>, kClasses> slowest;
  std::array<double, kClasses> measured{}, modelled{};
  for (const KernelProfile& k : profile_.kernels) {
    const Program& program = *programs[k.program].program;
    if (program.graph().is_input(k.node)) continue;
    const auto c = static_cast<size_t>(k.op_class);
    measured[c] += k.seconds();
    modelled[c] += machine::predict_node(program.graph(), k.node, speed);
    slowest[c].push_back(&k);
  }
  double all_measured = 0, all_modelled = 0;
  for (size_t c = 0; c < kClasses; ++c) all_measured += measured[c], all_modelled += modelled[c];
  const double overall = all_modelled > 0 ? all_measured / all_modelled : 1;
  for (size_t c = 0; c < kClasses; ++c) {
    from_model_[c] = modelled[c] > 0 ? measured[c] / modelled[c] : overall;
    in_step_[c] = 1;
    auto& list = slowest[c];
    std::stable_sort(list.begin(), list.end(),
                     [](const auto* a, const auto* b) { return a->seconds() > b->seconds(); });
    double here = 0, by_itself = 0;
    std::vector<std::string> tried;
    for (const KernelProfile* k : list) {
      const Program& program = *programs[k->program].program;
      const std::string key = signature(program.graph(), k->node);
      if (std::find(tried.begin(), tried.end(), key) != tried.end()) continue;
      if (tried.size() == kCalibrated) break;
      tried.push_back(key);
      const double seconds = alone(program, k->node);
      if (seconds <= 0) continue;
      by_itself += seconds;
      here += k->seconds();
    }
    if (by_itself > 0) in_step_[c] = here / by_itself;
  }
}

// 0 when it is too large to be tried.
double Forecaster::alone(const Program& program, NodeId id) {
  const Graph& g = program.graph();
  const auto [at, is_new] = trials_.emplace(signature(g, id), 0);
  if (!is_new) return at->second;
  if (bytes_alone(g, id) > trial_bytes_ ||
      machine::predict_node(g, id, profile_.ceilings.speed()) > kLongestTrial)
    return 0;
  Engine engine(workload_.backend());
  const size_t one = engine.add(one_node(g, id));
  const Graph& graph = engine.program(one).graph();
  engine.allocate();
  fill(engine, graph, workload_.cache_share());
  engine.run(one);
  std::vector<double> times;
  const Stopwatch watch;
  while (times.size() < 3 || (watch.seconds() < kTrialSeconds && times.size() < 200)) {
    Timeline timeline;
    engine.run(one, &timeline);
    double seconds = 0;
    for (const TimelineRecord& r : timeline.records) seconds += r.seconds;
    times.push_back(seconds);
  }
  return at->second = timing_of(std::move(times)).median;
}

double Forecaster::seconds_of(const Program& program, NodeId id, bool* modelled) {
  const Graph& g = program.graph();
  const auto here = here_.find(signature(g, id));
  if (here != here_.end()) return here->second.seconds / static_cast<double>(here->second.calls);
  const auto c = static_cast<size_t>(weightiest_class(g, id));
  // Alone it finds its operands in the caches; in a step they come from memory at the worst.
  const double tried = alone(program, id);
  const double cold = tried + work_of(program, id).bytes() / profile_.ceilings.levels.back().read;
  if (tried > 0) return std::min(tried * std::max(1.0, in_step_[c]), cold);
  *modelled = true;
  return machine::predict_node(g, id, profile_.ceilings.speed()) * from_model_[c];
}

PlanFacts Forecaster::here() const {
  PlanFacts f;
  f.ms = profile_.step.median;
  f.tokens = profile_.tokens;
  for (const KernelProfile& k : profile_.kernels) {
    f.kernels += k.calls;
    f.bytes += k.bytes;
    f.flops += k.flops;
  }
  return f;
}

PlanFacts Forecaster::of(const Workload& other) {
  PlanFacts f;
  f.tokens = other.tokens();
  double seconds = 0, by_model = 0;
  for (const ProgramRuns& run : other.programs()) {
    const Graph& g = run.program->graph();
    const auto runs = static_cast<double>(run.runs);
    seconds += runs * run_seconds_;
    for (NodeId id = 0; id < g.size(); ++id) {
      if (!takes_time(*run.program, id)) continue;
      bool modelled = false;
      const double one = seconds_of(*run.program, id, &modelled) + between_seconds_;
      const Work work = work_of(*run.program, id, workload_.cache_share());
      seconds += runs * one;
      if (modelled) by_model += runs * one;
      f.kernels += run.runs;
      f.bytes += runs * work.bytes();
      f.flops += runs * work.flops;
    }
  }
  // What the clocks take off is in both plans.
  double parts = profile_.between_ms + profile_.rest_ms + profile_.batch_ms + profile_.sampling_ms;
  for (const KernelProfile& k : profile_.kernels) parts += k.ms;
  const double scale = parts > 0 ? profile_.step.median / parts : 1;
  f.ms = scale * (1e3 * seconds + profile_.batch_ms + profile_.sampling_ms);
  f.modelled_share = seconds > 0 ? by_model / seconds : 0;
  return f;
}

}  // namespace brrr::insight
