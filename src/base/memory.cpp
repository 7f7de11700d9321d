#include "base/memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/system_text.h"

namespace brrr {
namespace {

using namespace system_text;
namespace fs = std::filesystem;
constexpr const char* kExpected =
    "expected an amount of memory with its unit, such as 6GiB (2^30 bytes), 6GB (10^9) or 800MiB";

/// "key: 123 kB" and "key 123" lines, as in meminfo, status and memory.stat.
std::optional<int64_t> field(std::string_view text, std::string_view key) {
  std::optional<int64_t> value;
  each_line(text, [&](std::string_view line) {
    if (!line.starts_with(key)) return;
    line.remove_prefix(key.size());
    if (line.empty() || (line[0] != ':' && line[0] != ' ')) return;
    const auto n = number(line.substr(1));
    if (n && !value) value = line.ends_with("kB") ? *n * 1024 : *n;
  });
  return value;
}

/// A control group with a limit on memory.
struct Group {
  int64_t limit = 0;
  int64_t others = 0;  // bytes of other processes that cannot be reclaimed
};

std::vector<Group> groups(const fs::path& root) {
  const int64_t installed = installed_memory(root);
  const ResidentMemory own = resident_memory();
  std::vector<Group> found;
  const auto look = [&](const fs::path& folder, const char* limit_file, const char* usage_file,
                        const std::string& prefix) {
    const auto limit = number(read_or_empty(folder / limit_file));
    if (!limit || *limit <= 0 || (installed > 0 && *limit >= installed)) return;
    const int64_t usage = number(read_or_empty(folder / usage_file)).value_or(0);
    // The page cache, less shared memory and tmpfs, which cannot be reclaimed.
    const std::string stat = read_or_empty(folder / "memory.stat");
    const int64_t files = field(stat, prefix + "inactive_file").value_or(0) +
                          field(stat, prefix + "active_file").value_or(0);
    found.push_back({*limit, std::max<int64_t>(0, usage - files - own.anonymous)});
  };
  const auto climb = [](const fs::path& mount, fs::path path, const auto& visit) {
    for (;; path = path.parent_path()) {
      visit(mount / path.relative_path());
      if (path == path.parent_path()) break;
    }
  };
  each_line(read_or_empty(root / "proc/self/cgroup"), [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    fs::path path(line.substr(second + 1));
    if (path.string().find("..") != std::string::npos || !path.is_absolute()) path = "/";
    if (controllers.empty())
      climb(root / "sys/fs/cgroup", path, [&](const fs::path& folder) {
        look(folder, "memory.max", "memory.current", "");
        look(folder, "memory.high", "memory.current", "");  // processes are throttled above it
      });
    else if (controllers == "memory")
      climb(root / "sys/fs/cgroup/memory", path, [&](const fs::path& folder) {
        look(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
      });
  });
  return found;
}

/// The heap, stacks and shared memory of a process, from its /proc/PID/status.
int64_t anonymous_bytes(std::string_view status) {
  return field(status, "RssAnon").value_or(0) + field(status, "RssShmem").value_or(0);
}

/// Resident and mapped bytes of files, by /proc/self/smaps.
struct MappedFiles {
  int64_t inputs = 0;                       // resident, of files of which no part is executable
  int64_t program = 0, program_mapped = 0;  // of the file with this function
};

MappedFiles mapped_files() {
  struct File {
    int64_t resident = 0, mapped = 0;
    bool executable = false, has_own_code = false;
  };
  const auto own_code = reinterpret_cast<uintptr_t>(&mapped_files);
  std::map<std::string, File, std::less<>> files;
  File* current = nullptr;
  const auto kilobytes = [](std::string_view text) { return number(text).value_or(0) * 1024; };
  const auto address = [](std::string_view text) {
    uintptr_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
  };
  // "7f..-7f.. r-xp 00000000 08:01 123   /usr/lib/libc.so.6", then fields with a colon.
  each_line(read_or_empty("/proc/self/smaps"), [&](std::string_view line) {
    const size_t dash = line.find('-'), space = line.find(' ');
    const bool heading = dash != line.npos && space != line.npos && dash < space &&
                         line.find_first_not_of("0123456789abcdef") == dash;
    if (heading) {
      const size_t path = line.find('/', space);
      current = path == line.npos ? nullptr : &files[std::string(line.substr(path))];
      if (current == nullptr) return;
      if (line.size() > space + 3) current->executable |= line[space + 3] == 'x';
      current->has_own_code |= address(line.substr(0, dash)) <= own_code &&
                               own_code < address(line.substr(dash + 1, space - dash - 1));
    } else if (current != nullptr) {
      if (line.starts_with("Size:")) current->mapped += kilobytes(line.substr(5));
      if (line.starts_with("Rss:")) current->resident += kilobytes(line.substr(4));
      if (line.starts_with("Anonymous:")) current->resident -= kilobytes(line.substr(10));
    }
  });
  MappedFiles all;
  for (const auto& [path, file] : files) {
    if (!file.executable) all.inputs += file.resident;
    if (file.has_own_code) all.program = file.resident, all.program_mapped = file.mapped;
  }
  return all;
}

}  // namespace

int64_t parse_memory(std::string_view given) {
  const std::string_view text = trimmed(given);
  const auto refuse = [&](const std::string& what) {
    usage_error("{}{}; got '{}'", what, kExpected, given);
  };
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) refuse("");
  const std::string unit =
      ascii_lowercase(std::string(trimmed(text.substr(static_cast<size_t>(stop - text.data())))));
  if (value <= 0) usage_error("expected a size above 0, such as 6GiB; got {}", given);
  if (unit.empty()) refuse("the size has no unit: ");
  double scale = 0;
  constexpr std::string_view kPrefixes = "kmgt";
  if (unit == "b" || unit == "byte" || unit == "bytes") {
    scale = 1;
  } else if (const size_t power = kPrefixes.find(unit[0]); power != std::string_view::npos) {
    const std::string_view rest = std::string_view(unit).substr(1);
    const int exponent = static_cast<int>(power) + 1;
    if (rest.empty() || rest == "i" || rest == "ib") scale = std::pow(1024.0, exponent);
    if (rest == "b") scale = std::pow(1000.0, exponent);
  }
  if (scale == 0) refuse(fmt::format("'{}' is not a unit of memory: ", unit));
  const double bytes = std::floor(value * scale);
  if (bytes < 1) usage_error("expected a size above 0, such as 6GiB; got {}", given);
  if (bytes > 0x1p62) refuse("no machine has that much memory: ");
  return static_cast<int64_t>(bytes);
}

std::string memory_text(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  const double size = std::fabs(b);
  if (size >= 0x1p40) return fmt::format("{:.2f} TiB", b * 0x1p-40);
  if (size >= 0x1p30) return fmt::format("{:.2f} GiB", b * 0x1p-30);
  if (size >= 0x1p20) return fmt::format("{:.1f} MiB", b * 0x1p-20);
  if (size >= 0x1p10) return fmt::format("{:.1f} KiB", b * 0x1p-10);
  return fmt::format("{} B", bytes);
}

std::string memory_at_least(int64_t needed) {
  const auto n = static_cast<double>(needed);
  if (n > 0x1p30) return fmt::format("{:.2f}GiB", std::ceil(n * 0x1p-30 * 100) / 100);
  return fmt::format("{:.0f}MiB", std::max(1.0, std::ceil(n * 0x1p-20)));
}

int64_t installed_memory(const fs::path& root) {
  return field(read_or_empty(root / "proc/meminfo"), "MemTotal").value_or(0);
}

std::optional<int64_t> control_group_memory_limit(const fs::path& root) {
  std::optional<int64_t> least;
  for (const Group& g : groups(root)) least = std::min(least.value_or(g.limit), g.limit);
  return least;
}

std::optional<MemoryLimit> usable_memory(const fs::path& root) {
  const int64_t own = anonymous_bytes(read_or_empty("/proc/self/status"));
  std::optional<MemoryLimit> limit;
  const auto consider = [&](int64_t bytes, std::string source) {
    if (!limit || bytes < limit->bytes) limit = MemoryLimit{bytes, std::move(source)};
  };
  if (const auto available = field(read_or_empty(root / "proc/meminfo"), "MemAvailable"))
    consider(*available + own, "available on this machine");
  for (const Group& g : groups(root))
    consider(std::max<int64_t>(0, g.limit - g.others),
             g.others > 0
                 ? fmt::format("left in the control group's limit of {}", memory_text(g.limit))
                 : "the control group's limit");
  return limit;
}

ResidentMemory resident_memory() {
  const std::string status = read_or_empty("/proc/self/status");
  ResidentMemory m;
  m.anonymous = anonymous_bytes(status);
  m.code = field(status, "RssFile").value_or(0);
  const MappedFiles files = mapped_files();
  m.inputs = std::min(m.code, files.inputs);
  m.code -= m.inputs;
  m.program = std::min(m.code, files.program);
  m.program_mapped = files.program_mapped;
  m.peak = field(status, "VmHWM").value_or(m.total());
  return m;
}

int64_t peak_resident_bytes() {
  return field(read_or_empty("/proc/self/status"), "VmHWM").value_or(0);
}

}  // namespace brrr
