#include "insight/machine/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "backend/cpu/isa.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/host_load.h"
#include "base/memory.h"
#include "base/system_text.h"
#include "base/threads/parallel.h"

namespace brrr::insight {
namespace {

using namespace system_text;

/// "48K", "2048K", "260M" of /sys.
int64_t cache_size(std::string_view text) {
  text = trimmed(text);
  const auto value = number(text);
  if (!value) return 0;
  const char unit = text.back();
  return *value << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

void read_cpuinfo(Machine& m) {
  std::set<std::string> sockets, cores;
  std::string socket, core, flags;
  int processors = 0;
  each_line(read_or_empty("/proc/cpuinfo"), [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view key = trimmed(line.substr(0, colon));
    const std::string value(trimmed(line.substr(colon + 1)));
    if (key == "processor") ++processors;
    if ((key == "model name" || key == "Model") && m.cpu.empty()) m.cpu = value;
    if (key == "physical id") sockets.insert(socket = value);
    if (key == "core id") cores.insert(socket + "." + value);
    if ((key == "flags" || key == "Features") && flags.empty()) flags = " " + value + " ";
  });
  if (m.cpu.empty()) m.cpu = "unknown processor";
  m.processors = std::max(1, processors);
  m.sockets = std::max<int>(1, static_cast<int>(sockets.size()));
  m.cores = cores.empty() ? m.processors : static_cast<int>(cores.size());
  for (const char* name :
       {"sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve"})
    if (flags.find(std::string(" ") + name + " ") != std::string::npos)
      m.features.append(m.features.empty() ? "" : " ").append(name);
}

void read_caches(Machine& m) {
  for (int i = 0; i < 8; ++i) {
    const fs::path folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", i);
    const auto level = number(read_or_empty(folder / "level"));
    if (!level) break;
    const std::string type(trimmed(read_or_empty(folder / "type")));
    const int64_t bytes = cache_size(read_or_empty(folder / "size"));
    if (*level == 1 && type == "Data") m.l1d_bytes = bytes;
    if (*level == 2) m.l2_bytes = bytes;
    if (*level == 3) m.l3_bytes = bytes;
  }
}

/// Processor time of the control groups from this process's up to the root: the least counts.
void read_cgroups(Machine& m) {
  const auto limit_cpu = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    m.cpu_quota = m.cpu_quota > 0 ? std::min(m.cpu_quota, quota / period) : quota / period;
  };
  const auto climb = [](const std::string& root, fs::path path, const auto& visit) {
    for (;; path = path.parent_path()) {
      visit(fs::path(root + path.string()));
      if (path == path.parent_path()) break;
    }
  };
  each_line(read_or_empty("/proc/self/cgroup"), [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string_view::npos ? first : first + 1);
    if (second == std::string_view::npos) return;
    const std::string controllers(line.substr(first + 1, second - first - 1));
    fs::path path(line.substr(second + 1));
    if (path.string().find("..") != std::string::npos || !path.is_absolute()) path = "/";
    if (controllers.empty()) {  // version 2
      climb("/sys/fs/cgroup", path, [&](const fs::path& folder) {
        const std::string cpu = read_or_empty(folder / "cpu.max");  // "200000 100000", "max 100000"
        const size_t space = cpu.find(' ');
        const auto quota = number(cpu);
        if (quota && space != std::string::npos)
          if (const auto period = number(std::string_view(cpu).substr(space)))
            limit_cpu(static_cast<double>(*quota), static_cast<double>(*period));
      });
    } else if (controllers.find("cpu") != std::string::npos &&
               controllers.find("cpuset") == std::string::npos) {
      climb("/sys/fs/cgroup/" + controllers, path, [&](const fs::path& folder) {
        const auto quota = number(read_or_empty(folder / "cpu.cfs_quota_us"));
        const auto period = number(read_or_empty(folder / "cpu.cfs_period_us"));
        if (quota && period) limit_cpu(static_cast<double>(*quota), static_cast<double>(*period));
      });
    }
  });
}

}  // namespace

std::string integer_units(const Machine& m) {
  const std::string features = " " + m.features + " ";
  const auto has = [&](const char* name) {
    return features.find(std::string(" ") + name + " ") != std::string::npos;
  };
  const cpu::Isa isa = cpu::parse_isa(m.isa, "isa");
  std::vector<std::string> units;
  if (isa >= cpu::Isa::kAmx && has("amx_int8")) units.emplace_back("AMX int8");
  if (isa >= cpu::Isa::kAvx512 && has("avx512_vnni")) units.emplace_back("AVX-512 VNNI");
  if (isa == cpu::Isa::kAvx2 && has("avx_vnni")) units.emplace_back("AVX-VNNI");
  return fmt::format("{}", fmt::join(units, ", "));
}

Machine read_machine() {
  Machine m;
  m.isa = cpu::isa_name(cpu::best_isa());
  m.best_isa = cpu::isa_name(cpu::machine_isa());
  m.threads = thread_count();
  read_cpuinfo(m);
  read_caches(m);
  m.usable = usable_processors();
  each_line(read_or_empty("/proc/meminfo"), [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const int64_t bytes = number(line.substr(colon + 1)).value_or(0) * 1024;
    if (line.substr(0, colon) == "MemTotal") m.memory_bytes = bytes;
    if (line.substr(0, colon) == "MemAvailable") m.available_bytes = bytes;
  });
  m.memory_limit_bytes = control_group_memory_limit();
  read_cgroups(m);
  return m;
}

Peaks measure_peaks(const Machine& machine) {
  constexpr double kSecondsEach = 0.2;
  Peaks peaks;
  HostLoad load;
  peaks.compute = cpu::measure_compute_peaks(kSecondsEach);
  const int64_t memory = machine.available_bytes > 0
                             ? std::min(machine.available_bytes, machine.usable_memory_bytes())
                             : int64_t{256} << 20;
  peaks.bandwidth =
      cpu::measure_bandwidth(machine.l2_bytes, machine.l3_bytes, memory, kSecondsEach);
  peaks.other_processors = std::max(0.0, load.read().other_processors(machine_processors()));
  return peaks;
}

std::string busy_warning(double other_processors, const std::string& effect) {
  if (other_processors <= kDisturbingProcessors) return "";
  return fmt::format("other programs used {:.1f} CPUs while this was measured: {}",
                     other_processors, effect);
}

std::vector<NumberFormat> number_formats() {
  // IEEE layout: bias 2^(e-1)-1, the top exponent for infinity and NaN.
  const auto ieee = [](const char* name, int bits, int e, int m, const char* remark) {
    const int bias = (1 << (e - 1)) - 1;
    return NumberFormat{name,
                        bits,
                        e,
                        m,
                        std::ldexp(2 - std::ldexp(1.0, -m), bias),
                        std::ldexp(1.0, -m),
                        std::ldexp(1.0, 1 - bias),
                        std::ldexp(1.0, 1 - bias - m),
                        remark};
  };
  std::vector<NumberFormat> all = {
      ieee("f32", 32, 8, 23, ""),
      ieee("tf32", 19, 8, 10, "f32's range with f16's mantissa, inside matrix units"),
      ieee("bf16", 16, 8, 7, "the range of f32, 2 to 3 digits"),
      ieee("f16", 16, 5, 10, "needs a loss scale in training"),
      ieee("fp8 e5m2", 8, 5, 2, "gradients"),
      ieee("fp8 e4m3", 8, 4, 3, "weights, activations; no infinity"),
  };
  // E4M3 (Micikevicius et al., 2022, table 1) gives the top exponent to numbers, all but one
  // pattern.
  all.back().largest = 448;
  all.push_back({"int8", 8, 0, 0, 127, 1, 1, 1, "with a scale per channel"});
  return all;
}

}  // namespace brrr::insight
