#pragma once
// What this machine is: the processor, its caches and memory as far as this process may use them
// (affinity and control groups included), the GPU or the reason for none, and measured peaks.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/peaks.h"
#include "runtime/device.h"

namespace brrr::insight {

struct Machine {
  std::string cpu;       // "Intel(R) Xeon(R) Platinum 8481C"
  std::string isa;       // what kernels use: "avx512"
  std::string best_isa;  // what the processor has, should BRRR_ISA limit it
  std::string features;  // "avx2 fma avx512f ...": those that matter for arithmetic
  int sockets = 1;
  int cores = 1;         // physical
  int processors = 1;    // logical, online
  int usable = 1;        // that this process may run on
  double cpu_quota = 0;  // processors' worth of time allowed by the control group; 0: no limit
  int threads = 1;       // that Brrr uses
  int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // per core, per core, per group; 0: unknown
  int64_t memory_bytes = 0;                           // installed
  int64_t available_bytes = 0;                        // free or reclaimable now
  std::optional<int64_t> memory_limit_bytes;          // of the control group
  /// What a run may use: the least of installed memory and the limit.
  int64_t usable_memory_bytes() const {
    return memory_limit_bytes ? std::min(*memory_limit_bytes, memory_bytes) : memory_bytes;
  }
};
/// The instructions that multiply 8-bit integers on this machine: "AMX int8, AVX-512 VNNI"; ""
/// where there are none.
std::string integer_units(const Machine& machine);
/// Reads /proc and /sys; what they do not say keeps its default. Never throws.
Machine read_machine();

struct Gpu {
  std::string name;
  std::string compute_capability;  // "9.0"
  int64_t memory_bytes = 0;
  std::optional<DeviceReading> now = {};
};
struct Gpus {
  std::vector<Gpu> devices;
  std::string driver;  // "12.4", the CUDA version that the driver offers
  std::string reason;  // why there are none, or why they are not used
};
/// Asks the driver, if there is one, without linking to it.
Gpus find_gpus();

struct Peaks {
  std::vector<cpu::ComputePeak> compute;
  cpu::Bandwidth bandwidth;
  double other_processors = 0;  // processors' worth of time that other work had meanwhile
};
Peaks measure_peaks(const Machine& machine);

/// What to say of times or rates that were measured while other work had so many processors' worth
/// of time; "" where it had next to none. `effect`: "rates are too low".
std::string busy_warning(double other_processors, const std::string& effect);

/// A number format by its facts.
struct NumberFormat {
  std::string name;
  int bits;
  int exponent_bits, mantissa_bits;  // 0 and 0 for integers
  double largest, epsilon, smallest_normal, smallest_denormal;
  std::string remark;
};
/// f32, tf32, bf16, f16, fp8 in its two forms, int8.
std::vector<NumberFormat> number_formats();

/// The report for people, with ANSI colours if asked. `peaks` may be absent.
std::string report(const Machine& machine, const Gpus& gpus, const std::optional<Peaks>& peaks,
                   bool colour);
/// The same as one JSON object on one line: isa, threads, peak_tflops {type: TFLOP/s},
/// bandwidth_gbps (memory read), gpu (a list of devices, or the reason for none), ...
std::string report_json(const Machine& machine, const Gpus& gpus,
                        const std::optional<Peaks>& peaks);

}  // namespace brrr::insight
