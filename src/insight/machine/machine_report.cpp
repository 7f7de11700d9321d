#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/human.h"
#include "insight/machine/machine.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string binary_bytes(int64_t bytes) {
  if (bytes <= 0) return "unknown";
  if (bytes >= int64_t{1} << 30)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= 1 << 20) return fmt::format("{:g} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:g} KiB", static_cast<double>(bytes) / 1024);
}

class Page {
 public:
  explicit Page(bool colour) : colour_(colour) {}
  void heading(const std::string& title) {
    text_ += fmt::format("{}{}{}{}\n", text_.empty() ? "" : "\n", colour_ ? "\x1b[1;36m" : "",
                         title, colour_ ? "\x1b[0m" : "");
  }
  void row(const std::string& name, const std::string& value) {
    text_ += fmt::format("  {:<14}{}\n", name, value);
  }
  void line(const std::string& line) { text_ += line + "\n"; }
  std::string strong(const std::string& text) const {
    return colour_ ? "\x1b[1m" + text + "\x1b[0m" : text;
  }
  std::string faint(const std::string& text) const {
    return colour_ ? "\x1b[2m" + text + "\x1b[0m" : text;
  }
  std::string text() const { return text_; }

 private:
  bool colour_;
  std::string text_;
};

bool counts_integers(const std::string& type) { return type == "int8"; }

}  // namespace

namespace {

// "12.0 GiB in use, 97% busy, 645 W, 1980 MHz, 61 degrees": the figures that are known.
std::string text_of(const DeviceReading& r) {
  std::vector<std::string> parts;
  const auto add = [&](bool is_known, std::string text) {
    if (is_known) parts.push_back(std::move(text));
  };
  add(r.memory_used >= 0, binary_bytes(r.memory_used) + " in use");
  add(r.busy_percent >= 0, fmt::format("{}% busy", r.busy_percent));
  add(r.watts >= 0, fmt::format("{:.0f} W", r.watts));
  add(r.clock_mhz >= 0, fmt::format("{} MHz", r.clock_mhz));
  add(r.memory_clock_mhz >= 0, fmt::format("memory {} MHz", r.memory_clock_mhz));
  add(r.celsius >= 0, fmt::format("{} degrees Celsius", r.celsius));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string report(const Machine& m, const Gpus& gpus, const std::optional<Peaks>& peaks,
                   bool colour) {
  Page page(colour);
  page.heading("Processor");
  page.row("model", m.cpu);
  page.row("kernels use",
           page.strong(m.isa) +
               (m.isa == m.best_isa
                    ? ""
                    : fmt::format(" (limited by BRRR_ISA; the processor has {})", m.best_isa)));
  page.row("features", m.features);
  const std::string units = integer_units(m);
  page.row(
      "integer units",
      units.empty() ? "none for 8 bits: int8 saves memory and may be slower than 16 bits" : units);
  std::string cores = fmt::format("{} in {}, {}", counted(m.cores, "core"),
                                  counted(m.sockets, "socket"), counted(m.processors, "processor"));
  if (m.usable != m.processors) cores += fmt::format(", {} for this process", m.usable);
  if (m.cpu_quota > 0) cores += fmt::format(", limited to the time of {:.3g}", m.cpu_quota);
  page.row("cores", cores);
  page.row("threads", page.strong(std::to_string(m.threads)) +
                          (env::get("OMP_NUM_THREADS") ? page.faint("  (OMP_NUM_THREADS)") : ""));
  page.row("caches", fmt::format("L1d {}, L2 {} per core, L3 {}", binary_bytes(m.l1d_bytes),
                                 binary_bytes(m.l2_bytes), binary_bytes(m.l3_bytes)));
  std::string memory = fmt::format("{}, {} available", binary_bytes(m.memory_bytes),
                                   binary_bytes(m.available_bytes));
  if (m.memory_limit_bytes)
    memory +=
        fmt::format(", limited to {} by the control group", binary_bytes(*m.memory_limit_bytes));
  page.row("memory", memory);

  page.heading("GPU");
  for (const Gpu& gpu : gpus.devices) {
    page.row(gpu.name, fmt::format("{}, compute capability {}", binary_bytes(gpu.memory_bytes),
                                   gpu.compute_capability));
    if (gpu.now) page.row("", text_of(*gpu.now));
  }
  page.row(gpus.devices.empty() ? "none" : "", gpus.reason);

  if (peaks) {
    page.heading("Measured peaks, all threads, from registers");
    for (const cpu::ComputePeak& p : peaks->compute)
      page.line(
          fmt::format("  {:<14}{} {:<8} {}", p.type,
                      page.strong(fmt::format("{:8.3f}", p.ops_per_second * 1e-12)),
                      counts_integers(p.type) ? "TOP/s" : "TFLOP/s",
                      page.faint(fmt::format("{}, sums in {}", p.instruction, p.accumulate))));
    page.heading("Measured bandwidth, all threads");
    const auto rate = [&](const char* name, double bytes_per_second, const std::string& remark) {
      page.line(fmt::format("  {:<14}{} GB/s     {}", name,
                            page.strong(fmt::format("{:8.1f}", bytes_per_second * 1e-9)),
                            page.faint(remark)));
    };
    const cpu::Bandwidth& b = peaks->bandwidth;
    rate("memory read", b.read, fmt::format("{} per pass", binary_bytes(b.buffer_bytes)));
    rate("memory copy", b.copy, "bytes read + bytes written");
    rate("memory write", b.write, "non-temporal stores");
    rate("L2 read", b.l2_read, "half of each L2");
    if (const std::string text = busy_warning(peaks->other_processors, "peaks may be too low");
        !text.empty())
      page.line("  " + page.strong(text));
  }

  page.heading("Number formats");
  page.line(page.faint(fmt::format("  {:<10}{:>5}{:>12}{:>12}{:>13}{:>13}", "", "bits", "largest",
                                   "epsilon", "least normal", "least > 0")));
  for (const NumberFormat& f : number_formats())
    page.line(fmt::format("  {:<10}{:>5}{:>12.4g}{:>12.4g}{:>13.4g}{:>13.4g}  {}", f.name, f.bits,
                          f.largest, f.epsilon, f.smallest_normal, f.smallest_denormal,
                          page.faint(f.remark)));
  return page.text();
}

std::string report_json(const Machine& m, const Gpus& gpus, const std::optional<Peaks>& peaks) {
  OrderedJson json;
  json["isa"] = m.isa;
  json["threads"] = m.threads;
  if (peaks) {
    // The fastest way of each type; all ways below.
    OrderedJson best = OrderedJson::object();
    for (const cpu::ComputePeak& p : peaks->compute)
      if (!best.contains(p.type)) best[p.type] = p.ops_per_second * 1e-12;
    json["peak_tflops"] = best;
    const cpu::Bandwidth& b = peaks->bandwidth;
    json["bandwidth_gbps"] = b.read * 1e-9;
    json["bandwidths_gbps"] = {{"memory_read", b.read * 1e-9},
                               {"memory_copy", b.copy * 1e-9},
                               {"memory_write", b.write * 1e-9},
                               {"l2_read", b.l2_read * 1e-9}};
    json["other_processors"] = peaks->other_processors;
    json["peaks"] = OrderedJson::array();
    for (const cpu::ComputePeak& p : peaks->compute)
      json["peaks"].push_back({{"type", p.type},
                               {"accumulate", p.accumulate},
                               {"instruction", p.instruction},
                               {"tera_ops_per_second", p.ops_per_second * 1e-12}});
  }
  if (gpus.devices.empty()) {
    json["gpu"] = gpus.reason;
  } else {
    json["gpu"] = OrderedJson::array();
    for (const Gpu& gpu : gpus.devices) {
      json["gpu"].push_back({{"name", gpu.name},
                             {"compute_capability", gpu.compute_capability},
                             {"memory_bytes", gpu.memory_bytes}});
      if (!gpu.now) continue;
      const DeviceReading& now = *gpu.now;
      json["gpu"].back()["now"] = {{"memory_used", now.memory_used},
                                   {"busy_percent", now.busy_percent},
                                   {"watts", now.watts},
                                   {"clock_mhz", now.clock_mhz},
                                   {"memory_clock_mhz", now.memory_clock_mhz},
                                   {"celsius", now.celsius}};
    }
    json["gpu_note"] = gpus.reason;
    json["gpu_driver"] = gpus.driver;
  }
  json["cpu"] = m.cpu;
  json["machine_isa"] = m.best_isa;
  json["features"] = m.features;
  json["integer_units"] = integer_units(m);
  json["sockets"] = m.sockets;
  json["cores"] = m.cores;
  json["processors"] = m.processors;
  json["usable_processors"] = m.usable;
  json["cpu_quota"] = m.cpu_quota > 0 ? OrderedJson(m.cpu_quota) : OrderedJson();
  json["l1d_bytes"] = m.l1d_bytes;
  json["l2_bytes"] = m.l2_bytes;
  json["l3_bytes"] = m.l3_bytes;
  json["memory_bytes"] = m.memory_bytes;
  json["memory_available_bytes"] = m.available_bytes;
  json["memory_limit_bytes"] =
      m.memory_limit_bytes ? OrderedJson(*m.memory_limit_bytes) : OrderedJson();
  json["formats"] = OrderedJson::object();
  for (const NumberFormat& f : number_formats())
    json["formats"][f.name] = {{"bits", f.bits},
                               {"largest", f.largest},
                               {"epsilon", f.epsilon},
                               {"smallest_normal", f.smallest_normal},
                               {"smallest_denormal", f.smallest_denormal}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace brrr::insight
