#include "insight/plan/plan.h"

#include <algorithm>
#include <map>

#include "base/memory.h"
#include "infer/run_precision.h"
#include "insight/plan/anatomy.h"
#include "machine/device.h"
#include "runtime/engine.h"
#include "train/dataset.h"

namespace brrr::insight {
namespace {

using train::Session;

Holds holds_of(Role role) {
  if (kind_of(role) == InputKind::parameter) return Holds::weights;
  return role == Role::gradient_sum ? Holds::gradient_sums
         : role == Role::derived    ? Holds::copies
         : role == Role::cache      ? Holds::sample_cache
                                    : Holds::optimizer;
}

// Which kind of thing each buffer of a program's plan holds.
class Kinds {
 public:
  Kinds(const Program& program, const Phases& phases)
      : g_(program.graph()), plan_(program.plan()), phases_(phases) {
    kinds_.assign(plan_.buffers.size(), Holds::temporaries);
    makers_.assign(plan_.buffers.size(), kNoNode);
    for (auto id = static_cast<NodeId>(g_.size()); id-- > 0;)
      for (uint32_t buffer : plan_.buffer_of[id]) makers_[buffer] = id;
    find_gradients();
    for (uint32_t i = 0; i < plan_.buffers.size(); ++i) kinds_[i] = kind(i);
  }
  Holds of(uint32_t buffer) const { return kinds_[buffer]; }
  /// The node that made the buffer first, or kNoNode for scratch memory.
  NodeId maker(uint32_t buffer) const { return makers_[buffer]; }

 private:
  // What the optimizer reads of the backward pass, or what is added to the sums of gradients.
  void find_gradients() {
    is_gradient_.assign(plan_.buffers.size(), false);
    for (NodeId id = 0; id < g_.size(); ++id) {
      if (!is_optimizer(g_, id)) continue;
      for (const ValueId& v : g_.node(id).operands)
        if (!g_.is_input(v.node) && v.node >= phases_.backward_begins())
          is_gradient_[plan_.buffer(v)] = true;
    }
  }

  Holds kind(uint32_t i) const {
    const Buffer& b = plan_.buffers[i];
    if (b.region == MemoryRegion::constant) return Holds::constants;
    if (b.region == MemoryRegion::state) return holds_of(g_.role(b.state));
    const NodeId maker = makers_[i];
    if (maker == kNoNode) return Holds::temporaries;
    if (g_.is_input(maker)) return Holds::inputs;
    if (is_gradient_[i]) return Holds::gradients;
    if (is_copy(maker)) return Holds::copies;
    const auto begin = static_cast<int32_t>(phases_.backward_begins());
    if (b.first < begin && b.last >= begin && phases_.backward_begins() < g_.size())
      return Holds::activations;
    return g_.phase(maker) == Phase::recompute ? Holds::recomputed : Holds::temporaries;
  }

  // A parameter in another type, perhaps turned or padded on the way.
  bool is_copy(NodeId id) const {
    const Node& node = g_.node(id);
    if (node.results.size() != 1 || bytes_of(node.results[0].dtype) >= 4) return false;
    for (const ValueId& v : node.operands)
      if (!g_.is_input(v.node) || g_.input_kind(v.node) != InputKind::parameter) return false;
    return !node.operands.empty();
  }

  const Graph& g_;
  const MemoryPlan& plan_;
  const Phases& phases_;
  std::vector<Holds> kinds_;
  std::vector<NodeId> makers_;
  std::vector<bool> is_gradient_;
};

std::vector<NamedBytes> largest_first(std::map<std::string, NamedBytes> groups) {
  std::vector<NamedBytes> list;
  for (auto& [name, entry] : groups) list.push_back(std::move(entry));
  std::stable_sort(list.begin(), list.end(),
                   [](const NamedBytes& a, const NamedBytes& b) { return a.bytes > b.bytes; });
  return list;
}

void add_to(std::map<std::string, NamedBytes>& groups, const std::string& name, int64_t bytes,
            Holds holds = Holds::activations) {
  NamedBytes& entry = groups.try_emplace(name, NamedBytes{name, holds, 0, 0}).first->second;
  entry.bytes += bytes;
  ++entry.count;
}

/// The program that needs the most temporary bytes; the step's own where several do.
Session::ProgramUse largest_program(const Session& session) {
  const auto uses = session.programs();
  Session::ProgramUse most = uses.front();
  for (const auto& use : uses) {
    const int64_t now = use.program->plan().temporary_bytes;
    const int64_t before = most.program->plan().temporary_bytes;
    if (now > before || (now == before && use.runs > 0)) most = use;
  }
  return most;
}

// Weights, moments, sums; copies of weights count with those that programs make.
void add_states(RunPlan& p, const Session& session) {
  std::map<std::string, NamedBytes> groups;
  for (const StateInfo& s : session.engine().states()) {
    const bool is_quantized = session.engine().stands_for_parameters(s) != nullptr;
    const Holds holds = is_quantized ? Holds::weights : holds_of(s.role);
    if (holds == Holds::copies) continue;
    // People read "adam_m" of what is called "adam_m:<parameter>".
    const std::string kind = holds == Holds::weights        ? "weights"
                             : holds == Holds::sample_cache ? std::string(name_of(holds))
                                                            : s.name.substr(0, s.name.find(':'));
    const int64_t align = session.engine().backend().alignment;
    add_to(groups, fmt::format("{} {}", kind, name_of(s.type.dtype)),
           (std::max<int64_t>(s.type.bytes(), 1) + align - 1) / align * align, holds);
  }
  p.states = largest_first(std::move(groups));
  std::stable_sort(p.states.begin(), p.states.end(), [](const NamedBytes& a, const NamedBytes& b) {
    return (a.holds == Holds::weights) > (b.holds == Holds::weights);
  });
}

void add_moments(RunPlan& p, const Session& session) {
  const Session::ProgramUse use = largest_program(session);
  const Graph& g = use.program->graph();
  const MemoryPlan& plan = use.program->plan();
  const Phases phases(g);
  const Kinds kinds(*use.program, phases);

  Moment always;  // states and constants of all programs
  for (const NamedBytes& s : p.states) always.bytes[static_cast<size_t>(s.holds)] += s.bytes;
  always.bytes[static_cast<size_t>(Holds::copies)] = session.bytes_of(Role::derived);
  always.bytes[static_cast<size_t>(Holds::constants)] = p.plan.arena.constant_bytes;
  std::vector<Moment> all(g.size() + 1);  // first by how much each differs from the one before
  const auto change = [&](size_t at, Holds holds, int64_t bytes) {
    if (at < all.size()) all[at].bytes[static_cast<size_t>(holds)] += bytes;
  };
  all[0] = always;
  std::map<std::string, NamedBytes> by_op, by_layer;
  for (uint32_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    if (b.region != MemoryRegion::temporary) continue;
    const auto from = static_cast<size_t>(std::max(b.first, 0));
    const auto to = static_cast<size_t>(std::max(b.last, 0));
    change(from, kinds.of(i), b.bytes);
    change(to + 1, kinds.of(i), -b.bytes);
    if (kinds.of(i) != Holds::activations) continue;
    p.saved_bytes += b.bytes;
    add_to(by_op, op_text(g, kinds.maker(i)), b.bytes);
    add_to(by_layer, layer_of(g, kinds.maker(i)), b.bytes);
  }
  for (size_t t = 1; t < all.size(); ++t)
    for (size_t i = 0; i < all[t].bytes.size(); ++i) all[t].bytes[i] += all[t - 1].bytes[i];
  p.saved_by_op = largest_first(std::move(by_op));
  p.saved_by_layer = largest_first(std::move(by_layer));
  // Inputs and views take no time: they are no moments.
  size_t peak = 0;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id) || plan.constant[id] || view_offset(g, g.node(id))) continue;
    if (id >= phases.backward_begins() && p.backward_begins == 0)
      p.backward_begins = p.moments.size();
    if (p.moments.empty() || all[id].total() > p.moments[peak].total()) {
      peak = p.moments.size();
      p.peak = {all[id].total(), use.name, op_text(g, id), g.scope_of(id), phases.of(id), 0, 0};
    }
    Moment& moment = p.moments.emplace_back(all[id]);
    moment.op = op_text(g, id);
    moment.scope = g.scope_of(id);
    moment.phase = phases.of(id);
  }
  if (p.moments.empty()) p.moments.push_back(always);
  p.peak.step = static_cast<int64_t>(peak) + 1;
  p.peak.steps = static_cast<int64_t>(p.moments.size());
  p.at_peak = p.moments[peak].bytes;
  p.gaps = p.plan.arena.total() - p.moments[peak].total();
}

void add_flops(RunPlan& p, const Session& session) {
  std::map<OpClass, ClassFlops> classes;
  for (const Session::ProgramUse& use : session.programs()) {
    if (use.runs == 0) continue;
    const Graph& g = use.program->graph();
    const Phases phases(g);
    const double times = static_cast<double>(use.runs * p.plan.options.ranks) /
                         static_cast<double>(p.tokens_per_step);
    for (NodeId id = 0; id < g.size(); ++id) {
      if (g.is_input(id) || use.program->plan().constant[id]) continue;
      const std::string_view phase = phases.of(id);
      // One node may be forward and backward at once: a third of its work is the forward's.
      const OpDef& whole = *g.node(id).op;
      const bool both = whole.is_gradient && whole.loss && whole.loss->gives_losses;
      machine::each_part(g, id, [&](const OpDef& op, const Cost& cost) {
        ClassFlops& c = classes[op.op_class];
        c.name = name_of(op.op_class);
        const double flops = cost.flops * times;
        if (both) {
          c.forward += flops / 3;
          c.backward += flops * 2 / 3;
        } else {
          (phase == "forward"    ? c.forward
           : phase == "backward" ? c.backward
                                 : c.optimizer) += flops;
        }
      });
    }
  }
  for (auto& [op_class, c] : classes) {
    if (c.forward + c.backward + c.optimizer == 0) continue;
    p.flops_forward += c.forward;
    p.flops_backward += c.backward;
    p.flops_optimizer += c.optimizer;
    p.flops.push_back(c);
  }
}

InferencePlan inference_of(const train::TrainOptions& o, const models::Model& model,
                           CachePrecision cache) {
  infer::RunPrecision precision = infer::run_precision(o.precision);
  const Backend backend = machine::backend_for(o.device);
  // A quantised folder runs in its own precision.
  if (o.init_from != "scratch" && !o.was_given("precision")) {
    const fs::path folder = io::find_model(o.init_from);
    if (io::holds_integers(folder))
      precision =
          *infer::own_precision(io::open_model(folder, {.reads_tokenizer = false}), backend);
  }
  Engine engine(backend);
  const int64_t context = model.sizes().context;
  const Graph graph = model.task().head == models::Head::next_token
                          ? model.decode({.capacity = context, .cache = precision.dtype})
                          : model.forward(Dim(1), Dim(context));
  engine.add(run_pipeline(graph, backend.target(),
                          for_inference(precision.dtype, precision.quantization, cache)));
  const MemoryForecast f = engine.forecast();
  return {f.parameter_bytes, f.state_bytes, f.temporary_bytes + f.constant_bytes};
}

/// "12.0 bytes".
std::string per(double amount, int64_t parameters, const char* unit) {
  return fmt::format("{:.1f} {}", amount / static_cast<double>(parameters), unit);
}

// The rules of thumb of the sources: Hugging Face's "Model training anatomy" for bytes per
// parameter, Kaplan et al. (2020) for FLOPs.
void add_rules(RunPlan& p) {
  const int64_t n = p.model->parameter_count();
  int64_t weights = 0, states = 0, sums = 0;
  for (const NamedBytes& s : p.states)
    (s.holds == Holds::weights         ? weights
     : s.holds == Holds::gradient_sums ? sums
                                       : states) += s.bytes;
  const bool mixed = p.plan.options.precision != Precision::fp32;
  int64_t copies = 0, gradients = 0;
  for (const Moment& m : p.moments) {
    copies = std::max(copies, m.bytes[static_cast<size_t>(Holds::copies)]);
    gradients = std::max(gradients, m.bytes[static_cast<size_t>(Holds::gradients)]);
  }
  const auto bytes = [&](int64_t amount) { return per(static_cast<double>(amount), n, "bytes"); };
  p.rules = {
      {"weights", mixed ? "6 bytes per parameter (fp32 and 16-bit copy)" : "4 bytes per parameter",
       bytes(weights + copies)},
      {"optimizer states", "8 (AdamW), 2 (8-bit AdamW), 4 (Adafactor, SGD with momentum)",
       bytes(states)},
      {"gradients", "4 bytes per parameter", bytes(std::max(gradients, sums))},
      {"all three", mixed ? "18 bytes per parameter" : "16 bytes per parameter",
       bytes(weights + copies + states + std::max(gradients, sums))},
      {"inference", mixed ? "6 bytes per parameter" : "4 bytes per parameter",
       bytes(p.inference.weights)},
      {"backward", "2 x forward",
       fmt::format("{:.2f} x", p.flops_backward / std::max(1.0, p.flops_forward))},
      {"FLOPs per token", "6 per parameter (without tables that are only looked up)",
       per(p.flops_forward + p.flops_backward, p.model->multiplied_count(), "")},
  };
}

}  // namespace

std::string_view name_of(Holds holds) {
  constexpr std::string_view kNames[] = {
      "weights",   "optimizer",         "gradient sums",          "low-precision copies",
      "gradients", "saved activations", "recomputed activations", "temporaries",
      "inputs",    "constants",         "cache of samples"};
  return kNames[static_cast<size_t>(holds)];
}

int64_t Moment::total() const {
  int64_t sum = 0;
  for (int64_t b : bytes) sum += b;
  return sum;
}

RunPlan analyse(const train::Plan& plan, const models::ModelPtr& model, const Session& session,
                const std::optional<machine::MachineSpeed>& speed, CachePrecision cache) {
  RunPlan p;
  p.plan = plan;
  p.model = model;
  p.backend = session.engine().backend().name;
  p.compile_ms = 1e3 * session.compile_seconds();
  p.tokens_per_step = train::tokens_of_step(plan.options);
  p.speed = speed;
  if (speed) p.time = train::predict_step(session, *speed, plan.link);
  add_states(p, session);
  add_moments(p, session);
  add_flops(p, session);
  if (plan.options.ranks > 1) p.ranks = rank_plan_of(p, session);
  p.inference = inference_of(plan.options, *model, cache);
  add_rules(p);
  return p;
}

}  // namespace brrr::insight
