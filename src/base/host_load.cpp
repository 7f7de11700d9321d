#include "base/host_load.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/system_text.h"

namespace brrr {

using namespace system_text;

namespace {

constexpr int kMostClocks = 8;  // each is a file

double own_seconds() {
  timespec t{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// The next number of a line; -1 behind the last.
int64_t take_number(std::string_view& line) {
  line = trimmed(line);
  const auto value = number(line);
  if (!value) return -1;
  line.remove_prefix(std::min(line.find(' '), line.size()));
  return *value;
}

}  // namespace

std::optional<double> processor_clock_mhz(const std::filesystem::path& root) {
  double sum = 0;
  int found = 0;
  for (int i = 0; i < kMostClocks; ++i) {
    const auto khz = number(read_or_empty(
        root / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", i)));
    if (!khz || *khz <= 0) continue;
    sum += 1e-3 * static_cast<double>(*khz);
    ++found;
  }
  if (found == 0) return std::nullopt;
  return sum / found;
}

HostLoad::HostLoad(std::filesystem::path root)
    : root_(std::move(root)), last_(ticks()), last_own_(own_seconds()), last_time_(now_seconds()) {}

// proc(5): "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guests are in
// user and nice already.
HostLoad::Ticks HostLoad::ticks() const {
  const std::string text = read_or_empty(root_ / "proc/stat");
  std::string_view line(text);
  line = line.substr(0, std::min(line.find('\n'), line.size()));
  if (!line.starts_with("cpu ")) return {};
  line.remove_prefix(4);
  Ticks t;
  for (int i = 0; i < 8; ++i) {
    const int64_t value = take_number(line);
    if (value < 0) break;
    t.all += value;
    if (i != 3 && i != 4) t.busy += value;
  }
  return t;
}

HostReading HostLoad::read() {
  HostReading r;
  const Ticks now = ticks();
  if (now.all > last_.all)
    r.busy = std::clamp(
        static_cast<double>(now.busy - last_.busy) / static_cast<double>(now.all - last_.all), 0.0,
        1.0);
  last_ = now;
  const double own = own_seconds(), time = now_seconds();
  if (time > last_time_) r.own_processors = (own - last_own_) / (time - last_time_);
  last_own_ = own;
  last_time_ = time;
  r.clock_mhz = processor_clock_mhz(root_).value_or(-1);
  const std::string text = read_or_empty(root_ / "proc/self/statm");
  std::string_view statm(text);
  const int64_t size = take_number(statm), resident = take_number(statm);
  if (size >= 0 && resident >= 0) r.resident_bytes = resident * ::sysconf(_SC_PAGESIZE);
  return r;
}

int64_t machine_processors() { return std::max<int64_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN)); }

std::string processor_name(const std::filesystem::path& root) {
  std::string name;
  each_line(read_or_empty(root / "proc/cpuinfo"), [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (!name.empty() || colon == std::string_view::npos) return;
    const std::string_view key = trimmed(line.substr(0, colon));
    if (key == "model name" || key == "Model") name = trimmed(line.substr(colon + 1));
  });
  return name.empty() ? "unknown processor" : name;
}

}  // namespace brrr
