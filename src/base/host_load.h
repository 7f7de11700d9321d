#pragma once
// What the host is doing, by /proc and /sys: how busy its processors are, how much of them this
// process has, their clock, and what the process has resident. A reading takes some ten
// microseconds; what the system does not say stays at -1.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace brrr {

struct HostReading {
  double busy = -1;             // share of all processors' time since the last reading
  double own_processors = -1;   // processors' worth of time that this process had since then
  double clock_mhz = -1;        // mean over some processors
  int64_t resident_bytes = -1;  // of this process

  /// Processors' worth of time that other work had, on a machine of so many; -1: not known.
  double other_processors(int64_t processors) const {
    if (busy < 0 || own_processors < 0) return -1;
    return std::max(0.0, busy * static_cast<double>(processors) - own_processors);
  }
};
/// From here on other work makes times uncertain.
inline constexpr double kDisturbingProcessors = 0.25;

/// Processors of this machine, whether this process may use them or not.
int64_t machine_processors();
/// "AMD EPYC 9B14", or "unknown processor".
std::string processor_name(const std::filesystem::path& root = "/");

/// The mean clock of (at most eight of) the processors in MHz, where the system says.
std::optional<double> processor_clock_mhz(const std::filesystem::path& root = "/");

class HostLoad {
 public:
  /// `root` is "/" but in tests. The first reading is since the construction.
  explicit HostLoad(std::filesystem::path root = "/");
  HostReading read();

 private:
  struct Ticks {
    int64_t busy = 0, all = 0;
  };
  Ticks ticks() const;

  std::filesystem::path root_;
  Ticks last_;
  double last_own_, last_time_;
};

}  // namespace brrr
