#pragma once
// What the host is doing, by /proc and /sys: how busy its processors are, how much of them this
// process has, their clock, and what the process has resident. A reading takes some ten
// microseconds; what the system does not say stays at -1.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace brrr {

struct HostReading {
  double busy = -1;             // share of all processors' time since the last reading
  double own_processors = -1;   // processors' worth of time that this process had since then
  double clock_mhz = -1;        // mean over some processors
  int64_t resident_bytes = -1;  // of this process
};

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
