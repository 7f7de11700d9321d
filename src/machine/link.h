#pragma once
// The alpha-beta model of what connects ranks (Hockney 1994): an exchange takes the latency of each
// message and the bytes at the link's rate.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace brrr::machine {

struct Link {
  double bytes_per_second = 0;  // of what a rank sends, while it receives as much
  double latency_seconds = 0;   // of an exchange, for each other rank
  /// All ranks send through one link, as those of one host do through its memory.
  bool is_shared = false;

  /// So many exchanges in which each of `ranks` ranks sends so many bytes altogether.
  double seconds(int64_t ranks, double bytes, double exchanges) const;
};

/// "1Gbit,50us", "12GB/s,5us", "200Mbit": bits or bytes (powers of 1,000) per second, and the
/// latency, which is kUsualLatency where it is left out. Throws UserError (usage).
Link parse_link(std::string_view text);
inline constexpr double kUsualLatency = 50e-6;
/// "1.00 Gbit/s and 50 us"
std::string link_text(const Link& link);

/// The ranks of one host, where nothing was measured: what 2 to 8 ranks on two cores of a Zen 4
/// server reach, see docs/results/scaling.md.
Link usual_shared_memory();

/// One measured communication.
struct LinkSample {
  int64_t ranks = 2;
  double bytes = 0, exchanges = 0;  // that each rank sends
  double seconds = 0;
};
/// Latency and rate by least squares, in which a sample counts by the inverse of its seconds, so
/// that short ones matter and long ones decide the sum; neither is negative.
Link fit_link(std::span<const LinkSample> samples, bool is_shared);

}  // namespace brrr::machine
