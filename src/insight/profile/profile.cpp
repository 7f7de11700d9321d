#include "insight/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "base/host_load.h"
#include "base/human.h"
#include "base/threads/parallel.h"
#include "insight/plan/anatomy.h"

namespace brrr::insight {
namespace {

constexpr size_t kLeastSteps = 5, kMostSteps = 500, kTraced = 3;
constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};

KernelProfile kernel_of(const Program& program, const Phases& phases, NodeId id,
                        double cache_share) {
  const Graph& g = program.graph();
  KernelProfile k;
  k.node = id;
  k.scope = g.scope_of(id);
  k.layer = layer_of(g, id);
  if (g.is_input(id)) {
    k.name = "copy of " + g.input_name(id);
    k.kernel = "memcpy";
    k.op_class = OpClass::movement;
    k.phase = "optimizer";
    k.shape = g.type({id, 0}).str();
    k.flops = 0;
    k.bytes = 2 * static_cast<double>(g.type({id, 0}).bytes());
    return k;
  }
  const Work work = work_of(program, id, cache_share);
  k.name = op_text(g, id);
  k.op_class = weightiest_class(g, id);
  k.phase = phases.of(id);
  k.shape = shape_text(g, g.node(id));
  k.flops = work.flops;
  k.bytes = work.bytes();
  for (const Dispatch& d : program.dispatch())
    if (d.node == id) k.kernel = d.kernel;
  return k;
}

/// The kernels of a workload and the times of each over the steps.
class Collector {
 public:
  Collector(const std::vector<ProgramRuns>& programs, double cache_share)
      : programs_(programs), cache_share_(cache_share) {
    for (const ProgramRuns& p : programs_) phases_.emplace_back(p.program->graph());
  }

  void add(const Timeline& timeline, const StepClock& clock) {
    double inside = 0, runs = 0;
    std::vector<double> now(kernels_.size(), 0);
    for (const TimelineRun& run : timeline.runs) {
      const size_t program = index_of(run.program);
      runs += run.seconds;
      for (size_t r = run.first; r < run.last; ++r) {
        const TimelineRecord& record = timeline.records[r];
        const size_t i = kernel(program, record.node);
        if (i >= now.size()) now.resize(i + 1, 0);
        now[i] += record.seconds;
        inside += record.seconds;
      }
    }
    for (size_t i = 0; i < now.size(); ++i) times_[i].push_back(now[i]);
    wall_.push_back(clock.wall);
    kernels_seconds_.push_back(inside);
    between_.push_back(runs - inside);
    batch_.push_back(clock.batch);
    sampling_.push_back(clock.sampling);
    rest_.push_back(clock.wall - runs - clock.batch - clock.sampling);
  }

  TracedStep traced(const Timeline& timeline, const StepClock& clock) {
    TracedStep step;
    step.clock = clock;
    for (const TimelineRun& run : timeline.runs) {
      const size_t program = index_of(run.program);
      step.runs.push_back({program, run.start, run.seconds, {}});
      for (size_t r = run.first; r < run.last; ++r) {
        const TimelineRecord& record = timeline.records[r];
        step.runs.back().slices.push_back(
            {kernel(program, record.node), record.start, record.seconds});
      }
    }
    return step;
  }

  void finish(Profile& p) {
    choose_steps();
    for (size_t i = 0; i < kernels_.size(); ++i) {
      KernelProfile& k = kernels_[i];
      k.calls = programs_[k.program].runs;
      k.ms = ms(times_[i]);
      const Graph& g = programs_[k.program].program->graph();
      Work work = g.is_input(k.node) ? Work{0, k.bytes / 2, k.bytes / 2, DType::f32}
                                     : work_of(*programs_[k.program].program, k.node, cache_share_);
      k.verdict = judge(work, p.ceilings, k.seconds());
      k.flops *= static_cast<double>(k.calls);
      k.bytes *= static_cast<double>(k.calls);
    }
    p.kernels = std::move(kernels_);
    p.timed_ms = ms(wall_);
    p.kernels_ms = ms(kernels_seconds_);
    p.between_ms = ms(between_);
    p.batch_ms = ms(batch_);
    p.sampling_ms = ms(sampling_);
    p.rest_ms = ms(rest_);
    p.steps = static_cast<int64_t>(wall_.size());
  }

 private:
  /// The middle half of the steps by their time. All figures are means over the same steps, so
  /// parts add up to the step, whatever else this machine does.
  void choose_steps() {
    std::vector<size_t> order(wall_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return wall_[a] < wall_[b]; });
    const auto quarter = static_cast<std::ptrdiff_t>(order.size() / 4);
    chosen_.assign(order.begin() + quarter, order.end() - quarter);
  }
  double ms(const std::vector<double>& seconds) const {
    double sum = 0;
    for (const size_t step : chosen_) sum += seconds[step];
    return 1e3 * sum / static_cast<double>(chosen_.size());
  }
  size_t index_of(const Program* program) const {
    for (size_t i = 0; i < programs_.size(); ++i)
      if (programs_[i].program == program) return i;
    BRRR_CHECK(false, "a program of the timeline does not belong to the workload");
    return 0;
  }
  size_t kernel(size_t program, NodeId node) {
    const auto [at, is_new] = index_.emplace(std::pair{program, node}, kernels_.size());
    if (is_new) {
      kernels_.push_back(
          kernel_of(*programs_[program].program, phases_[program], node, cache_share_));
      kernels_.back().program = program;
      times_.emplace_back(wall_.size(), 0.0);  // it did not run in the steps before
    }
    return at->second;
  }

  std::vector<ProgramRuns> programs_;
  double cache_share_;
  std::vector<Phases> phases_;
  std::map<std::pair<size_t, NodeId>, size_t> index_;
  std::vector<KernelProfile> kernels_;
  std::vector<std::vector<double>> times_;
  std::vector<double> wall_, kernels_seconds_, between_, batch_, sampling_, rest_;
  std::vector<size_t> chosen_;
};

/// Groups by a name of each kernel, in the order of first appearance.
template <typename Name>
std::vector<Group> grouped(const Profile& p, Name&& name) {
  std::vector<Group> groups;
  std::map<std::string, size_t> at;
  double total = 0;
  for (size_t i = 0; i < p.kernels.size(); ++i) {
    const KernelProfile& k = p.kernels[i];
    total += k.ms;
    const std::string key = name(k);
    const auto [where, is_new] = at.emplace(key, groups.size());
    if (is_new) {
      groups.push_back({});
      groups.back().name = key;
      groups.back().example = i;
    }
    Group& g = groups[where->second];
    if (k.ms > p.kernels[g.example].ms) g.example = i;
    ++g.kernels;
    g.calls += k.calls;
    g.ms += k.ms;
    g.flops += k.flops;
    g.bytes += k.bytes;
    g.ceiling_ms += 1e3 * k.verdict.ceiling_seconds * static_cast<double>(k.calls);
    g.bound_ms[static_cast<size_t>(k.verdict.bound)] += k.ms;
  }
  for (Group& g : groups) g.share = total > 0 ? g.ms / total : 0;
  return groups;
}

void slowest_first(std::vector<Group>& groups) {
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.ms > b.ms; });
}

/// Ivanov et al. know three classes; what only moves data counts as element-wise.
size_t published_class(OpClass c) {
  return c == OpClass::contraction ? 0 : c == OpClass::normalisation ? 1 : 2;
}

// FLOPs go by the parts of a fused kernel, time by kernels, which cannot be cut.
std::vector<ClassShares> anatomy_of(const Profile& p, const std::vector<ProgramRuns>& programs) {
  std::vector<ClassShares> list = {{"contractions", 0, 0, 0.998, 0.61},
                                   {"normalisations", 0, 0, 0.0017, 0.255},
                                   {"element-wise", 0, 0, 0.0003, 0.135}};
  double flops = 0, time = 0;
  for (const KernelProfile& k : p.kernels) {
    if (k.phase == kPhases[2]) continue;
    const Graph& g = programs[k.program].program->graph();
    list[published_class(k.op_class)].time += k.ms;
    time += k.ms;
    machine::each_part(g, k.node, [&](const OpDef& op, const Cost& cost) {
      const double done = cost.flops * static_cast<double>(k.calls);
      list[published_class(op.op_class)].flops += done;
      flops += done;
    });
  }
  for (ClassShares& c : list) {
    if (flops > 0) c.flops /= flops;
    if (time > 0) c.time /= time;
  }
  return list;
}

void add_groups(Profile& p) {
  p.by_kind = grouped(
      p, [](const KernelProfile& k) { return fmt::format("{} {} {}", k.name, k.kernel, k.shape); });
  slowest_first(p.by_kind);
  p.by_class = grouped(p, [](const KernelProfile& k) { return std::string(name_of(k.op_class)); });
  slowest_first(p.by_class);
  p.by_phase = grouped(p, [](const KernelProfile& k) { return k.phase; });
  p.by_scope = grouped(p, [](const KernelProfile& k) { return k.layer; });
}

RankExchange exchange_since(const Communicator::Traffic& before, const Communicator& communicator,
                            double steps) {
  const Communicator::Traffic now = communicator.traffic();
  RankExchange e;
  e.ranks = communicator.ranks();
  e.rank = communicator.rank();
  e.bytes_sent = static_cast<double>(now.bytes_sent - before.bytes_sent) / steps;
  e.busy_ms = 1e3 * (now.busy_seconds - before.busy_seconds) / steps;
  e.waited_ms = 1e3 * (now.waited_seconds - before.waited_seconds) / steps;
  return e;
}

}  // namespace

Bound Group::bound() const {
  return static_cast<Bound>(std::max_element(bound_ms.begin(), bound_ms.end()) - bound_ms.begin());
}

void Group::operator+=(const Group& other) {
  calls += other.calls;
  ms += other.ms;
  share += other.share;
  flops += other.flops;
  bytes += other.bytes;
  ceiling_ms += other.ceiling_ms;
  for (size_t i = 0; i < kBounds; ++i) bound_ms[i] += other.bound_ms[i];
}

std::string Profile::place() const {
  return fmt::format("{} on {}", backend,
                     ceilings.device.empty() ? counted(threads, "thread") : ceilings.device);
}

bool Profile::is_disturbed() const {
  constexpr double kScatter = 1.3;  // between the quartiles of steps
  return other_processors > kDisturbingProcessors || step.high > kScatter * step.low;
}

std::string Profile::warning() const {
  if (!is_disturbed()) return "";
  return (other_processors > kDisturbingProcessors
              ? fmt::format("other programs used {:.1f} CPUs", other_processors)
              : std::string("step times vary a lot")) +
         ": timings are unreliable";
}

Profile profile(Workload& workload, const Ceilings& ceilings, double seconds,
                const std::function<void(const std::string& line)>& say) {
  Profile p;
  p.ceilings = ceilings;
  p.threads = thread_count();
  p.backend = workload.backend().name;
  p.tokens = workload.tokens();
  p.compile_ms = 1e3 * workload.compile_seconds();
  p.memory = workload.forecast();
  const std::vector<ProgramRuns> programs = workload.programs();
  for (const ProgramRuns& run : programs) {
    p.programs.push_back(run.name);
    p.sees_pictures |= run.program->graph().find_input("pixels") != kNoNode;
  }

  // The first run touches every page and computes the constants; on a device the second of either
  // kind is recorded.
  Timeline timeline;
  double step = 0;
  for (int i = 0; i < 2; ++i) {
    timeline.clear();
    step = workload.run(&timeline).wall;
    if (!workload.is_on_host()) workload.run(nullptr);
  }
  constexpr double kLong = 5;
  const double least = static_cast<double>(2 * kLeastSteps + kTraced) * step;
  if (say && least > kLong)
    say(fmt::format("a step takes {}, so timing takes about {}", duration_text(step),
                    duration_text(least)));
  Collector collector(programs, workload.cache_share());
  std::vector<double> off, ratios;
  HostLoad host;
  const Communicator* const communicator = workload.communicator();
  const Communicator::Traffic before =
      communicator != nullptr ? communicator->traffic() : Communicator::Traffic();
  const Stopwatch watch;
  const auto goes_on = [&] {
    return off.size() < kLeastSteps || (watch.seconds() < seconds && off.size() < kMostSteps);
  };
  while (workload.of_first_rank(goes_on())) {
    // Which of the two comes first alternates, too.
    const bool first = off.size() % 2 == 0;
    double with = 0, without = 0;
    for (const bool timed : {first, !first}) {
      if (!timed) {
        without = workload.run(nullptr).wall;
        continue;
      }
      timeline.clear();
      const StepClock clock = workload.run(&timeline);
      with = clock.wall;
      collector.add(timeline, clock);
    }
    off.push_back(1e3 * without);
    ratios.push_back(with / without);
  }
  if (communicator != nullptr)
    p.exchange = exchange_since(before, *communicator, 2 * static_cast<double>(off.size()));
  const double others = host.read().other_processors(machine_processors());
  if (workload.is_on_host()) p.other_processors = std::max(0.0, others);
  // Noting the work of every thread costs time, so the trace is of steps of its own.
  start_work_spans();
  while (p.traced.size() < kTraced) {
    timeline.clear();
    const StepClock clock = workload.run(&timeline);
    p.traced.push_back(collector.traced(timeline, clock));
  }
  p.evaluation_ms = 1e3 * workload.evaluation_seconds();
  p.spans = stop_work_spans();
  collector.finish(p);
  p.step = timing_of(off);
  p.overhead = ceilings.tick_seconds > 0 ? 1e3 * static_cast<double>(timeline.records.size()) *
                                               ceilings.tick_seconds / std::max(p.step.median, 1e-9)
                                         : std::max(0.0, timing_of(ratios).median - 1);
  p.batches = workload.batches();
  add_groups(p);
  p.anatomy = anatomy_of(p, programs);
  return p;
}

}  // namespace brrr::insight
