#include "machine/speed.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/cpu/isa.h"
#include "backend/cpu/peaks.h"
#include "base/cache.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/threads/parallel.h"
#include "formats/json_file.h"
#include "machine/memory_budget.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::machine {
namespace {

constexpr double kSecondsEach = 0.03;                // of a measured rate
constexpr int64_t kMeasureBytes = int64_t{2} << 30;  // an eighth of it is one of two buffers

constexpr int kFormat = 3;  // of the file in the cache
// Less memory than this is no room for measuring kernels.
constexpr int64_t kKernelRoom = int64_t{64} << 20;

// Shares of the peak rates that kernels reach on GPT-2's shapes, used when only the peaks are
// known.
constexpr double kProductShare = 0.85, kAttentionShare = 0.4, kVectorShare = 0.25;
constexpr double kMemoryShare = 0.85;
constexpr double kNodeSeconds = 2e-6;  // to start one

fs::path speed_file() {
  const std::string machine = fmt::format("{} {} {} {}", processor_name(),
                                          cpu::isa_name(cpu::best_isa()), thread_count(), kFormat);
  return cache_folder() / fmt::format("speed-{}.json", sha256_hex(machine).substr(0, 16));
}

std::string today() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

/// Whether the file is older than this program, whose kernels may have become faster since.
bool is_outdated(const fs::path& file) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return false;
  const auto built = fs::last_write_time(self, error);
  return !error && fs::last_write_time(file) < built;
}

std::optional<MachineSpeed> read_speed() {
  try {
    const fs::path path = speed_file();
    if (!fs::exists(path) || is_outdated(path)) return std::nullopt;
    const io::Json j = io::parse_json(read_file(path), path.string());
    MachineSpeed s;
    s.f32 = j.at("f32").get<double>();
    s.bf16 = j.at("bf16").get<double>();
    s.f16 = j.at("f16").get<double>();
    s.int8 = j.at("int8").get<double>();
    s.memory = j.at("memory").get<double>();
    s.cache = j.at("cache").get<double>();
    s.cache_bytes = j.at("cache_bytes").get<int64_t>();
    s.when = "measured " + j.at("date").get<std::string>();
    s.kernels = std::make_shared<KernelSpeed>(kernel_speed_from_json(j.at("kernels").dump()));
    if (!(s.f32 > 0 && s.memory > 0 && s.cache > 0)) return std::nullopt;
    return s;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void keep_speed(const MachineSpeed& s) {
  try {
    const fs::path path = speed_file();
    create_folder(path.parent_path());
    const io::Json j{{"f32", s.f32},
                     {"bf16", s.bf16},
                     {"f16", s.f16},
                     {"int8", s.int8},
                     {"memory", s.memory},
                     {"cache", s.cache},
                     {"cache_bytes", s.cache_bytes},
                     {"date", today()},
                     {"kernels", io::Json::parse(to_json(*s.kernels))}};
    write_file_atomically(path, j.dump(2) + "\n");
  } catch (const std::exception&) {  // the next process measures again
  }
}

int64_t cache_size(int name) { return std::max<int64_t>(0, ::sysconf(name)); }

/// Beside other programs the kernels, which take seconds, are measured only when asked for `again`.
MachineSpeed measure_speed(int64_t memory_limit, Measure measure) {
  MachineSpeed s;
  HostLoad load;
  const auto peaks = cpu::measure_compute_peaks(kSecondsEach);
  s.f32 = cpu::fastest_rate(peaks, "f32");
  s.bf16 = cpu::fastest_rate(peaks, "bf16");
  s.f16 = cpu::fastest_rate(peaks, "f16");
  s.int8 = cpu::fastest_rate(peaks, "int8");
  const int64_t l2 = cache_size(_SC_LEVEL2_CACHE_SIZE), l3 = cache_size(_SC_LEVEL3_CACHE_SIZE);
  const cpu::Bandwidth b = cpu::measure_bandwidth(l2, l3, memory_limit, kSecondsEach);
  s.memory = b.read;
  s.cache = b.l2_read;
  s.cache_bytes = l2 * thread_count();
  s.when = kMeasuredNow;
  const bool is_quiet = !is_disturbed(load.read(), machine_processors(), thread_count());
  if (memory_limit >= kKernelRoom && (is_quiet || measure == Measure::again))
    s.kernels = std::make_shared<KernelSpeed>(measure_kernels(memory_limit / 4));
  trim_heap();  // the next plan counts what this process has resident
  return s;
}

/// Peak operations per second of products whose factors are `dtype`; without a unit for it they
/// run in f32.
double product_rate(const MachineSpeed& s, DType dtype) {
  if (dtype == DType::bf16) return std::max(s.f32, s.bf16);
  if (dtype == DType::i8) return std::max(s.f32, s.int8);
  return s.f32;
}

}  // namespace

double predict_node(const Graph& g, NodeId id, const MachineSpeed& s) {
  if (s.kernels) return kernel_seconds(g, id, *s.kernels);
  const Node& node = g.node(id);
  const Cost cost = cost_of(g, id);
  const double bytes = cost.bytes_read + cost.bytes_written;
  const bool cached = bytes < static_cast<double>(s.cache_bytes);
  const double traffic = bytes / (cached ? s.cache : s.memory) / kMemoryShare;
  double rate = s.f32 * kVectorShare;
  if (class_of(node) == OpClass::contraction ||
      is(node, Op::lstm, Op::lstm_grad, Op::gru, Op::gru_grad)) {
    const DType dtype = factor_dtype(g, id);
    const bool product = !node.op->is_attention;
    rate = product_rate(s, dtype) * (product ? kProductShare : kAttentionShare);
  }
  return std::max(traffic, cost.flops / rate) + kNodeSeconds;
}

bool is_disturbed(const HostReading& load, int64_t processors, int64_t threads) {
  constexpr double kTolerated = 0.1;  // of a processor, for each thread
  const double elsewhere = load.other_processors(processors);
  if (elsewhere < 0) return false;  // nobody says
  return static_cast<double>(processors) - elsewhere <
         (1 - kTolerated) * static_cast<double>(threads);
}

std::optional<MachineSpeed> machine_speed(Measure measure, int64_t memory_limit) {
  if (measure != Measure::again)
    if (auto known = read_speed()) return known;
  if (measure == Measure::never) return std::nullopt;
  const int64_t room =
      std::clamp<int64_t>(memory_limit - resident_memory().needed(), 0, kMeasureBytes);
  HostLoad load;
  const int64_t before = resident_memory().needed();
  MachineSpeed speed = measure_speed(room, measure);
  speed.left_bytes = std::max<int64_t>(0, resident_memory().needed() - before);
  const HostReading meanwhile = load.read();
  speed.other_processors = std::max(0.0, meanwhile.other_processors(machine_processors()));
  // Smaller buffers may lie in a cache and overstate the memory rate, so those are not kept either.
  if (room == kMeasureBytes && speed.kernels &&
      !is_disturbed(meanwhile, machine_processors(), thread_count()))
    keep_speed(speed);
  return speed;
}

/// 0.12, 4.0, 75, 760: two digits.
static std::string two_digits_text(double value) {
  if (!(value > 0)) return "0";
  const double exponent = std::floor(std::log10(value * 1.005));  // of 9.96, which is 10
  if (exponent >= 2) {
    const double step = std::pow(10.0, exponent - 1);
    return fmt::format("{:.0f}", std::round(value / step) * step);
  }
  return fmt::format("{:.{}f}", value, std::clamp(1 - static_cast<int>(exponent), 0, 9));
}

std::string rates_text(const MachineSpeed& s, DType dtype) {
  const bool is_measured = s.kernels != nullptr;
  double products = product_rate(s, dtype);
  if (is_measured)
    if (const ProductSpeed* p = s.kernels->find_product(dtype, false, false, dtype == DType::i8))
      products = product_flops(*p, 768, 768, 768);
  return fmt::format("{} of {}: {} T{}/s; {} GB/s; {}", is_measured ? "products" : "peak",
                     name_of(dtype), two_digits_text(1e-12 * products),
                     is_integer(dtype) ? "OP" : "FLOP",
                     two_digits_text(1e-9 * (is_measured ? s.kernels->memory : s.memory)), s.when);
}

std::string predicted_duration(double ms) {
  return ms >= 995 ? two_digits_text(1e-3 * ms) + " s" : two_digits_text(ms) + " ms";
}

MachineSpeed nominal_speed() { return {200e9, 0, 0, 25e9, 150e9, 1 << 20, "nominal"}; }

void each_part(const Graph& graph, NodeId id,
               const std::function<void(const OpDef& op, const Cost& cost)>& visit) {
  const Node& node = graph.node(id);
  if (!is(node, Op::fused)) return visit(*node.op, cost_of(graph, id));
  const Graph& body = fused_body(node);
  for (NodeId part = 0; part < body.size(); ++part)
    if (!body.is_input(part)) visit(*body.node(part).op, cost_of(body, part));
}

}  // namespace brrr::machine
