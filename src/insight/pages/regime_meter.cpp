#include "insight/pages/regime_meter.h"

#include <algorithm>
#include <array>

#include "base/clock.h"

namespace brrr::insight {

Timeline* RegimeMeter::timeline() {
  if (++steps_ <= kEverySteps || now_seconds() - last_ < kEverySeconds) return nullptr;
  steps_ = 0;
  last_ = now_seconds();
  timeline_.clear();
  return &timeline_;
}

const Work& RegimeMeter::work(const Program& program, NodeId node) {
  const auto [at, is_new] = works_.try_emplace({&program, node});
  if (is_new) {
    const Graph& g = program.graph();
    const double bytes = static_cast<double>(g.type({node, 0}).bytes());
    // A state input stands for the copy of its new value.
    at->second = g.is_input(node) ? Work{0, bytes, bytes, DType::f32} : work_of(program, node);
  }
  return at->second;
}

train::RegimeShares RegimeMeter::shares(double step_seconds, double waited_seconds) {
  std::array<double, kBounds> bound{};
  double kernels = 0, runs = 0;
  for (const TimelineRun& run : timeline_.runs) {
    runs += run.seconds;
    for (size_t r = run.first; r < run.last; ++r) {
      const TimelineRecord& record = timeline_.records[r];
      const Verdict v = judge(work(*run.program, record.node), ceilings_, record.seconds);
      bound[static_cast<size_t>(v.bound)] += record.seconds;
      kernels += record.seconds;
    }
  }
  const double all = std::max(step_seconds, 1e-12);
  const auto share = [&](double seconds) { return std::max(0.0, seconds) / all; };
  train::RegimeShares s;
  s.compute = share(bound[static_cast<size_t>(Bound::compute)]);
  s.bandwidth = share(bound[static_cast<size_t>(Bound::bandwidth)]);
  s.overhead = share(bound[static_cast<size_t>(Bound::overhead)] + runs - kernels);
  const double for_ranks = bound[static_cast<size_t>(Bound::communication)];
  s.waiting = share(waited_seconds + for_ranks);
  s.other =
      share(step_seconds - runs - waited_seconds + bound[static_cast<size_t>(Bound::reference)]);
  return s;
}

}  // namespace brrr::insight
