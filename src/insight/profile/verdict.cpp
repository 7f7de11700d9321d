#include "insight/profile/verdict.h"

#include <algorithm>

#include "backend/cpu/peaks.h"
#include "base/clock.h"
#include "base/threads/parallel.h"
#include "insight/bench/bench.h"
#include "insight/machine/machine.h"
#include "ops/attention.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "runtime/ranks/division.h"

namespace brrr::insight {
namespace {

/// The median of many.
template <typename F>
double seconds_of(F&& f, double seconds) {
  std::vector<double> all;
  const Stopwatch whole;
  while (all.size() < 20 || (whole.seconds() < seconds && all.size() < 100'000)) {
    const Stopwatch one;
    f();
    all.push_back(one.seconds());
  }
  return timing_of(std::move(all)).median;
}

double tick_seconds() {
  constexpr int kLooks = 1000;
  volatile uint64_t sink = 0;
  return seconds_of(
             [&] {
               for (int i = 0; i < kLooks; ++i) sink = clock_ticks();
             },
             0) /
         kLooks;
}

}  // namespace

std::string_view name_of(Bound bound) {
  constexpr std::string_view kNames[] = {"compute", "bandwidth", "overhead", "reference",
                                         "communication"};
  return kNames[static_cast<size_t>(bound)];
}

std::string phrase_of(Bound bound) {
  return std::string(name_of(bound)) + (bound == Bound::reference ? " loops" : "-bound");
}

double Ceilings::compute(DType dtype, bool in_tf32) const {
  if (dtype == DType::bf16) return std::max(f32, bf16);
  if (dtype == DType::i8) return std::max(f32, int8);
  if (is_fp8(dtype)) return std::max(f32, f8);
  if (dtype == DType::f32 && in_tf32) return std::max(f32, tf32);
  // The host computes products of f16 in f32, whatever units it has.
  return dtype == DType::f16 && !device.empty() ? std::max(f32, f16) : f32;
}

std::vector<std::pair<std::string_view, double>> Ceilings::peaks() const {
  std::vector<std::pair<std::string_view, double>> list{{"f32", f32}};
  const auto add = [&](std::string_view name, double rate) {
    if (rate > f32) list.emplace_back(name, rate);
  };
  add("tf32", compute(DType::f32, true));
  add("bf16", compute(DType::bf16));
  add("f16", compute(DType::f16));
  add("int8", compute(DType::i8));
  add("fp8", compute(DType::f8e4m3));
  return list;
}

const MemoryLevel& Ceilings::level_of(double bytes) const {
  for (const MemoryLevel& level : levels)
    if (bytes <= static_cast<double>(level.bytes)) return level;
  return levels.back();
}

machine::MachineSpeed Ceilings::speed() const {
  machine::MachineSpeed s{f32,
                          bf16,
                          f16,
                          levels.back().read,
                          levels.front().read,
                          levels.front().bytes,
                          machine::kMeasuredNow};
  s.int8 = int8;
  return s;
}

namespace {

Ceilings measure_once(int64_t memory_limit, double seconds) {
  Ceilings c;
  const auto peaks = cpu::measure_compute_peaks(seconds);
  c.f32 = cpu::fastest_rate(peaks, "f32");
  c.bf16 = cpu::fastest_rate(peaks, "bf16");
  c.f16 = cpu::fastest_rate(peaks, "f16");
  c.int8 = cpu::fastest_rate(peaks, "int8");
  const Machine m = read_machine();
  const auto threads = static_cast<int64_t>(thread_count());
  const cpu::Bandwidth b = cpu::measure_bandwidth(m.l2_bytes, m.l3_bytes, memory_limit, seconds);
  const int64_t l2 = std::max<int64_t>(m.l2_bytes, 256 << 10) * threads;
  c.levels.push_back({"L2", l2, b.l2_read, b.l2_read});
  if (m.l3_bytes > l2) {
    // The same loop over buffers of half the third level.
    const double read =
        cpu::measure_bandwidth(m.l3_bytes / threads, m.l3_bytes, memory_limit, seconds).l2_read;
    if (read > b.read) c.levels.push_back({"L3", m.l3_bytes, read, read});
  }
  // What a written byte adds to a read one in a copy; it is never cheaper than a read.
  const double written = 2 / std::max(b.copy, 1.0) - 1 / b.read;
  c.levels.push_back({"memory", 0, b.read, std::min(b.read, 1 / std::max(written, 1e-15))});
  c.launch_seconds = 1e-6 * bench_overhead(seconds).node_us;
  const int team = thread_count();
  if (team > 1)
    c.team_seconds =
        seconds_of([team] { parallel_pieces(team, team, [](int64_t, int) {}); }, seconds);
  c.tick_seconds = tick_seconds();
  return c;
}

/// The better of both, figure by figure.
void improve(Ceilings& c, const Ceilings& other) {
  for (double Ceilings::*rate : {&Ceilings::f32, &Ceilings::bf16, &Ceilings::f16, &Ceilings::int8})
    c.*rate = std::max(c.*rate, other.*rate);
  for (double Ceilings::*cost :
       {&Ceilings::launch_seconds, &Ceilings::team_seconds, &Ceilings::tick_seconds})
    c.*cost = std::min(c.*cost, other.*cost);
  for (auto& level : c.levels)
    for (const auto& again : other.levels)
      if (again.name == level.name) {
        level.read = std::max(level.read, again.read);
        level.write = std::max(level.write, again.write);
      }
}

}  // namespace

Ceilings measure_ceilings(int64_t memory_limit, double seconds, int rounds) {
  Ceilings c = measure_once(memory_limit, seconds);
  for (int i = 1; i < rounds; ++i) improve(c, measure_once(memory_limit, seconds));
  return c;
}

Work work_of(const Program& program, NodeId id, double cache_share) {
  const Graph& g = program.graph();
  const Cost cost = cost_of(g, id);
  Work w{cost.flops, cost.bytes_read, cost.bytes_written, DType::f32};
  w.is_interpreted = program.is_interpreted(id);
  const Node& node = g.node(id);
  if (is_collective(node)) {
    w.is_collective = true;
    w.bytes_read = mean_bytes_sent(g, id);
    w.bytes_written = 0;
  }
  if (class_of(node) == OpClass::contraction && !node.operands.empty()) {
    w.dtype = machine::factor_dtype(g, id);
    w.tf32 = node.attrs.get_or<bool>("tf32", false);
  }
  if (node.op->is_attention && !node.op->is_gradient &&
      node.attrs.get_or<bool>("position", false)) {
    const AttentionForm form(node, operand_types(g, node));
    for (const AttentionForm::Part& part : form.parts())
      if (part.which > 0)  // keys and values
        w.bytes_read -= (1 - cache_share) * static_cast<double>(form.bytes_of_part(part));
    w.flops *= cache_share;
  }
  if ((is(node, Op::update_slice) || is(node, Op::update_rows)) &&
      program.plan().buffer({id, 0}) == program.plan().buffer(node.operands[0])) {
    const size_t part = is(node, Op::update_slice) ? 1 : 2;
    w.bytes_read = w.bytes_written = static_cast<double>(g.type(node.operands[part]).bytes());
  }
  return w;
}

Verdict judge(const Work& w, const Ceilings& c, double taken) {
  Verdict v;
  const MemoryLevel& level = c.level_of(w.bytes());
  v.seconds[static_cast<size_t>(Bound::compute)] = w.flops / c.compute(w.dtype, w.tf32);
  v.seconds[static_cast<size_t>(Bound::bandwidth)] =
      w.bytes_read / level.read + w.bytes_written / level.write;
  v.seconds[static_cast<size_t>(Bound::overhead)] =
      c.launch_seconds + (taken > c.launch_seconds + c.team_seconds ? c.team_seconds : 0);
  for (size_t i = 0; i < kBounds; ++i)
    if (v.seconds[i] >= v.ceiling_seconds) {
      v.ceiling_seconds = v.seconds[i];
      v.bound = static_cast<Bound>(i);
    }
  if (w.is_interpreted) v.bound = Bound::reference;
  if (w.is_collective) v.bound = Bound::communication;
  return v;
}

}  // namespace brrr::insight
