#include "insight/bench/bench_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/clock.h"

namespace brrr::insight {
namespace {

/// The largest of the ranks' values.
double largest(Communicator& communicator, double value) {
  double most = 0;
  for (const auto& bytes : communicator.gather(std::as_bytes(std::span(&value, 1)))) {
    double one = 0;
    std::memcpy(&one, bytes.data(), sizeof one);
    most = std::max(most, one);
  }
  return most;
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
  fit_line(result);
  return result;
}

void fit_line(RanksResult& result) {
  // The normal equations for a + b x = y, each weighted by 1 / y^2.
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const RanksRow& row : result.rows) {
    const double weight = 1 / (row.ms.median * row.ms.median);
    const auto bytes = static_cast<double>(row.bytes);
    w += weight;
    x += weight * bytes;
    y += weight * row.ms.median;
    xx += weight * bytes * bytes;
    xy += weight * bytes * row.ms.median;
  }
  const double slope = (w * xy - x * y) / (w * xx - x * x);  // ms per byte
  result.latency_us = 1e3 * (y - slope * x) / w;
  result.gigabytes_per_second = 1e-6 / slope;
}

}  // namespace brrr::insight
