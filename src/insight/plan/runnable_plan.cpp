#include "insight/plan/runnable_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "base/threads/parallel.h"
#include "insight/plan/anatomy.h"
#include "insight/plan/plan_lines.h"
#include "insight/plan/plan_parts.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr size_t kMostTensors = 6;  // that a report names for each program

/// The value that a buffer was made for, and the kernel whose scratch memory it is.
struct Maker {
  std::optional<ValueId> value;
  NodeId node = kNoNode;
};

std::vector<Maker> makers_of(const Program& program) {
  const Graph& g = program.graph();
  const MemoryPlan& plan = program.plan();
  std::vector<Maker> makers(plan.buffers.size());
  for (auto id = static_cast<NodeId>(g.size()); id-- > 0;) {
    for (uint32_t port = 0; port < plan.buffer_of[id].size(); ++port)
      makers[plan.buffer_of[id][port]] = {ValueId{id, port}, id};
    if (const int32_t scratch = plan.scratch_of[id]; scratch >= 0)
      makers[static_cast<size_t>(scratch)] = {std::nullopt, id};
  }
  return makers;
}

PlannedProgram planned(const Program& program) {
  const Graph& g = program.graph();
  const MemoryPlan& plan = program.plan();
  PlannedProgram p;
  p.nodes = static_cast<int64_t>(g.size());
  p.temporary_bytes = plan.temporary_bytes;
  p.constant_bytes = plan.constant_bytes;
  for (const Dispatch& d : program.dispatch()) p.kernels += !plan.constant[d.node];
  if (g.size() == 0) return p;
  const auto peak = static_cast<NodeId>(
      std::clamp<int32_t>(plan.peak_step, 0, static_cast<int32_t>(g.size()) - 1));
  p.peak = {plan.peak_live_bytes, "", op_text(g, peak), g.scope_of(peak), "", peak, p.nodes};
  const std::vector<Maker> makers = makers_of(program);
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& b = plan.buffers[i];
    if (b.region != MemoryRegion::temporary || b.first > plan.peak_step ||
        b.last < plan.peak_step || makers[i].node == kNoNode)
      continue;
    const NodeId node = makers[i].node;
    p.held.push_back({g.is_input(node) ? "input " + g.input_name(node) : op_text(g, node),
                      g.scope_of(node), makers[i].value ? g.type(*makers[i].value).str() : "",
                      b.bytes});
  }
  std::ranges::stable_sort(p.held, std::greater<>(), &HeldTensor::bytes);
  return p;
}

std::string size_text(const AxisSize& size) { return fmt::format("{} = {}", size.name, size.size); }

/// The made-up inputs whose numbers programs depend on.
std::vector<std::string> made_and_bound(const MadeInputs& inputs, const RunnableSession& session) {
  std::vector<std::string> list;
  for (const std::string& name : inputs.made)
    if (session.bound().contains(name)) list.push_back(name);
  return list;
}

}  // namespace

std::vector<const Program*> programs_of(const RunnableSession& session) {
  std::vector<const Program*> list;
  for (const size_t id : session.last_programs()) list.push_back(&session.engine().program(id));
  return list;
}

std::string assumed_sizes(const MadeInputs& inputs) {
  std::string list;
  for (const AxisSize& size : inputs.sizes)
    if (size.from == AxisSize::From::guess) list += (list.empty() ? "" : ", ") + size_text(size);
  return list.empty() ? "" : "assumed " + list + "; --size NAME=N sets another size";
}

std::vector<std::string> assumed_values(const MadeInputs& inputs, const RunnableSession& session) {
  std::vector<std::string> lines;
  for (const std::string& name : made_and_bound(inputs, session))
    lines.push_back(fmt::format(
        "the graph depends on the value of '{0}', assumed to be 1; --input {0}=FILE.npy sets it",
        name));
  return lines;
}

RunnablePlan plan_runnable(const infer::Runner& runner, const MadeInputs& inputs) {
  const RunnableSession& session = runner.session();
  RunnablePlan p;
  p.summary = session.runnable().summary();
  p.backend = session.engine().backend().name;
  p.sizes = inputs.sizes;
  p.made = inputs.made;
  p.bound = made_and_bound(inputs, session);
  p.is_on_device = session.engine().backend().memory_bytes > 0;
  p.arena = session.engine().forecast();
  p.lent_bytes = session.engine().lent_bytes();
  p.process = runner.forecast();
  if (!p.is_on_device) p.loading_bytes = p.process.arena - p.arena.total();
  for (const Program* program : programs_of(session)) p.programs.push_back(planned(*program));
  return p;
}

std::string report(const RunnablePlan& p, bool lists_kernels, bool colour) {
  Report r(colour);
  r.line(fmt::format("{}: {}", p.model, p.summary));
  std::string sizes;
  for (const AxisSize& size : p.sizes) sizes += size_text(size) + ", ";
  const PlannedKernel all = p.kernels.total();
  const std::string place =
      p.is_on_device ? p.backend
                     : fmt::format("{} on {}", p.backend, counted(thread_count(), "thread"));
  r.line(fmt::format("{}{}; {}; planned in {}", sizes, p.precision, place,
                     duration_text(1e-3 * p.compile_ms)));
  r.heading("memory of a run");
  const int64_t whole = p.arena.total();
  r.bytes("weights in memory", p.arena.parameter_bytes + p.arena.state_bytes, whole);
  r.bytes("constants", p.arena.constant_bytes, whole);
  r.bytes("temporaries", p.arena.temporary_bytes, whole);
  r.total(p.is_on_device ? "arena on the GPU" : "arena", whole, "exact");
  r.line("");
  const auto part = [&](const char* name, int64_t bytes) {
    if (bytes > 0)
      r.line(fmt::format("  {:<{}} {:>11}", name, Report::kNameWidth, memory_text(bytes)));
  };
  part("program, libraries, inputs", p.process.program + p.process.code);
  part("packed operands of products", p.process.packing);
  part("loading of weights", p.loading_bytes);
  part("outputs", p.process.batches);
  part("threads", p.process.threads);
  part("the mapped file (reclaimable)", p.process.mapped);
  part("  of it weights, read in place", p.lent_bytes);
  r.total("process", p.process.resident(), "forecast");
  if (p.was_run)
    r.line(fmt::format("\n  sizes depend on data: it was run once with {}",
                       p.made.empty() ? "these inputs"
                                      : "made-up numbers; --input NAME=FILE.npy gives it others"));
  for (size_t i = 0; i < p.programs.size(); ++i) {
    const PlannedProgram& program = p.programs[i];
    r.heading(fmt::format("{}: {}, temporaries {}, constants {}",
                          p.programs.size() == 1
                              ? std::string("the program")
                              : fmt::format("program {} of {}", i + 1, p.programs.size()),
                          counted(program.kernels, "kernel"), memory_text(program.temporary_bytes),
                          memory_text(program.constant_bytes)));
    r.line(fmt::format("  peak: node {} of {}: {}{}", program.peak.step + 1, program.peak.steps,
                       program.peak.op,
                       program.peak.scope.empty() ? "" : " at " + program.peak.scope));
    for (size_t k = 0; k < program.held.size() && k < kMostTensors; ++k) {
      const HeldTensor& t = program.held[k];
      r.line(fmt::format("  {:>11}  {:<28} {}{}", memory_text(t.bytes),
                         t.type.empty() ? "scratch memory" : t.type, t.op,
                         t.scope.empty() ? "" : " at " + t.scope));
    }
    if (program.held.size() > kMostTensors)
      r.line(
          fmt::format("  and {} smaller",
                      counted(static_cast<int64_t>(program.held.size() - kMostTensors), "tensor")));
  }
  r.heading("work of a run");
  r.line(fmt::format(
      "  {}FLOP, {} read and written by {}{}", flops_text(all.flops),
      memory_text(static_cast<int64_t>(all.bytes)), counted(all.launches, "kernel"),
      p.kernels.rates.empty() ? "" : ", predicted " + machine::predicted_duration(all.ms)));
  if (!p.kernels.rates.empty()) r.line("  predicted, not measured: " + p.kernels.rates);
  if (!lists_kernels) return r.take();
  r.heading("kernels of a run");
  const bool is_timed = !p.kernels.rates.empty();
  r.line(fmt::format("  {:>8} {:>10} {:>9}{}  {}", "launches", "GFLOP", "MiB",
                     is_timed ? fmt::format(" {:>9}", "ms") : "", "kernel"));
  for (const PlannedKernel& k : p.kernels.kernels)
    r.line(fmt::format("  {:>8} {:>10.3f} {:>9.3f}{}  {}", with_commas(k.launches), 1e-9 * k.flops,
                       0x1p-20 * k.bytes, is_timed ? fmt::format(" {:>9.3f}", k.ms) : "",
                       k.kernel));
  return r.take();
}

std::string report_json(const RunnablePlan& p) {
  const machine::ProcessForecast& f = p.process;
  const bool is_timed = !p.kernels.rates.empty();
  OrderedJson sizes = OrderedJson::object(), guessed = OrderedJson::array();
  for (const AxisSize& size : p.sizes) {
    sizes[size.name] = size.size;
    if (size.from == AxisSize::From::guess) guessed.push_back(size.name);
  }
  OrderedJson programs = OrderedJson::array(), kernels = OrderedJson::array();
  for (const PlannedProgram& program : p.programs) {
    OrderedJson held = OrderedJson::array();
    for (const HeldTensor& t : program.held)
      held.push_back({{"op", t.op},
                      {"scope", t.scope},
                      {"type", t.type.empty() ? OrderedJson(nullptr) : OrderedJson(t.type)},
                      {"bytes", t.bytes}});
    programs.push_back({{"nodes", program.nodes},
                        {"kernels", program.kernels},
                        {"temporary_bytes", program.temporary_bytes},
                        {"constant_bytes", program.constant_bytes},
                        {"peak_at",
                         {{"op", program.peak.op},
                          {"scope", program.peak.scope},
                          {"step", program.peak.step},
                          {"bytes", program.peak.bytes}}},
                        {"tensors_at_peak", held}});
  }
  for (const PlannedKernel& k : p.kernels.kernels)
    kernels.push_back({{"kernel", k.kernel},
                       {"launches", k.launches},
                       {"flops", k.flops},
                       {"bytes", k.bytes},
                       {"predicted_ms", is_timed ? OrderedJson(k.ms) : OrderedJson(nullptr)}});
  const PlannedKernel all = p.kernels.total();
  const OrderedJson j = {{"model", p.model},
                         {"format", p.summary},
                         {"precision", name_of(p.precision)},
                         {"sizes", sizes},
                         {"assumed_sizes", guessed},
                         {"made_up_inputs", p.made},
                         {"assumed_values", p.bound},
                         {"was_run", p.was_run},
                         {"arena_bytes", p.arena.total()},
                         {"process_bytes", f.resident()},
                         {"needed_bytes", p.needed()},
                         {"weights",
                          {{"in_memory", p.arena.parameter_bytes + p.arena.state_bytes},
                           {"in_mapped_file", p.lent_bytes}}},
                         {"process",
                          {{"program", f.program + f.code},
                           {"packing", f.packing},
                           {"loading", p.loading_bytes},
                           {"outputs", f.batches},
                           {"threads", f.threads},
                           {"mapped", f.mapped}}},
                         {"programs", programs},
                         {"flops", all.flops},
                         {"predicted_ms", is_timed ? OrderedJson(all.ms) : OrderedJson(nullptr)},
                         {"kernels", kernels},
                         {"plan_ms", p.compile_ms}};
  return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace brrr::insight
