#include "insight/bench/bench_ranks.h"

#include <algorithm>

#include "base/clock.h"
#include "machine/link.h"

namespace brrr::insight {
namespace {

/// The largest of the values that ranks give.
double largest(Communicator& communicator, double value) {
  return std::ranges::max(communicator.gather_values(value));
}

}  // namespace

RanksResult bench_ranks(Communicator& communicator, double seconds) {
  const int ranks = communicator.ranks();
  RanksResult result;
  for (const int64_t bytes : {0, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20}) {
    const int64_t part = bytes / std::max(1, ranks - 1);
    std::vector<std::byte> sent(static_cast<size_t>(part * ranks)), received(sent.size());
    const auto once = [&] {
      communicator.barrier();
      const Stopwatch watch;
      communicator.run([&](Transport& transport) {
        std::vector<Outgoing> out;
        std::vector<Incoming> in;
        for (int peer = 0; peer < ranks; ++peer)
          if (peer != transport.rank()) {
            out.push_back({peer, sent.data() + part * peer, part});
            in.push_back({peer, received.data() + part * peer, part});
          }
        transport.exchange(out, in);
      });
      return watch.milliseconds();
    };
    once();  // pages are touched, rings are warm
    const double expected = largest(communicator, 1e-3 * once());
    const auto rounds = static_cast<int>(std::clamp(seconds / (expected + 1e-5), 5.0, 1000.0));
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) times.push_back(largest(communicator, once()));
    result.rows.push_back({part * (ranks - 1), timing_of(times)});
  }
  std::vector<machine::LinkSample> samples;
  for (const RanksRow& row : result.rows)
    samples.push_back({ranks, static_cast<double>(row.bytes), 1, 1e-3 * row.ms.median});
  const machine::Link link = machine::fit_link(samples, false);
  result.latency_us = 1e6 * link.latency_seconds * (ranks - 1);
  result.gigabytes_per_second = 1e-9 * link.bytes_per_second;
  return result;
}

}  // namespace brrr::insight
