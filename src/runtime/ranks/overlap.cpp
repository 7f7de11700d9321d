#include "runtime/ranks/overlap.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"

namespace brrr {

Overlap simulate(std::span<const TimedKernel> kernels) {
  Overlap o;
  std::vector<double> done(kernels.size());  // times at which asynchronous kernels end
  double now = 0, link_free = 0;
  const auto wait_until = [&](double time) {
    o.waited_seconds += std::max(0.0, time - now);
    now = std::max(now, time);
  };
  for (size_t i = 0; i < kernels.size(); ++i) {
    const TimedKernel& k = kernels[i];
    if (k.awaited >= 0) {
      BRRR_CHECK(k.awaited < static_cast<int64_t>(i), "kernel {} waits for {}", i, k.awaited);
      wait_until(done[static_cast<size_t>(k.awaited)]);
    }
    if (k.is_asynchronous) {
      link_free = done[i] = std::max(now, link_free) + k.seconds;
      o.link_seconds += k.seconds;
    } else {
      now += k.seconds;
    }
  }
  wait_until(link_free);
  o.seconds = now;
  return o;
}

}  // namespace brrr
