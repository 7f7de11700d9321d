#pragma once
// The rates of this machine, and the time of a node predicted from them: the longer of its
// arithmetic and its traffic, at the rates that the kernels of this build reach (kernel_speed.h).
// Where only peaks are known, which is good for choosing between plans, kernels are taken to reach
// fixed shares of them (speed.cpp).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/host_load.h"
#include "ir/op_def.h"
#include "machine/kernel_speed.h"

namespace brrr::machine {

inline constexpr const char* kMeasuredNow = "measured now";

/// Measured rates of this machine with the present number of threads and instruction set.
struct MachineSpeed {
  double f32 = 0, bf16 = 0, f16 = 0;  // operations per second on factors of the type; 0: no unit
  double memory = 0, cache = 0;       // bytes per second read from memory, from second-level caches
  int64_t cache_bytes = 0;            // of all second-level caches
  std::string when;                   // kMeasuredNow, "measured 2026-03-01"
  int64_t left_bytes = 0;             // resident bytes that measuring leaked into this process
  double other_processors = 0;        // processors' worth of time that other work had meanwhile
  std::shared_ptr<const KernelSpeed> kernels = {};  // null: not measured, only the peaks are known
  double int8 = 0;  // operations per second on 8-bit integers; 0: no unit
};
/// "products of fp32 at 0.12 TFLOP/s, memory 21 GB/s, measured 2026-03-01": the rates by which a
/// step is predicted whose products have factors of `dtype`.
std::string rates_text(const MachineSpeed& speed, DType dtype);
/// "13 ms", "0.42 ms", "1.3 s": two digits, because a prediction has no more.
std::string predicted_duration(double ms);

enum class Measure { never, once, again };
/// The rates in the cache folder; measured (a few seconds) and kept there when they are absent
/// (once) or in any case (again). The buffers of the measurement take at most a quarter of what
/// `memory_limit` leaves beside what the process has. Nothing when there is neither. Never throws:
/// a cache that cannot be read or written counts as absent. Rates measured while other work ran are
/// returned but not cached.
std::optional<MachineSpeed> machine_speed(Measure measure, int64_t memory_limit);

/// Whether other work left fewer processors than the team has threads.
bool is_disturbed(const HostReading& load, int64_t processors, int64_t threads);

/// Assumed rates of two AVX2 cores, for machines that were not measured. They rank plans; the times
/// that they predict mean nothing.
MachineSpeed nominal_speed();

/// Seconds of one node.
double predict_node(const Graph& graph, NodeId id, const MachineSpeed& speed);

/// Calls `visit` with the op and cost of the node, or of each node inside a fused node.
void each_part(const Graph& graph, NodeId id,
               const std::function<void(const OpDef& op, const Cost& cost)>& visit);

}  // namespace brrr::machine
