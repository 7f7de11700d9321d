#pragma once
// The three regimes of "Making Deep Learning Go Brrrr From First Principles" (He, 2022): what a
// kernel waits for, and, on several ranks, the others. Its work at the rates that this machine was
// measured at gives three times below which it cannot run: arithmetic, traffic, and being started.
// The longest is its ceiling and names the regime, except for ops without a kernel, which the loops
// of the reference interpreter run.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op_def.h"
#include "train/predict.h"

namespace brrr::insight {

enum class Bound : uint8_t { compute, bandwidth, overhead, reference, communication };
inline constexpr size_t kBounds = 5;
std::string_view name_of(Bound bound);
/// "compute-bound", "reference loops"
std::string phrase_of(Bound bound);

/// One level of the memory: what fits into `bytes` is read at `rate`.
struct MemoryLevel {
  std::string name;   // "L2", "L3", "memory"
  int64_t bytes = 0;  // of all caches of the level that the team reaches; memory: no limit
  double read = 0;    // bytes per second
  double write = 0;   // bytes per second
};

/// What a device was measured to reach; the host: with the present team and instruction set.
struct Ceilings {
  std::string device;  // "cuda:0 (NVIDIA H200)"; "": the host
  // Multiply-adds count twice; 0: no unit for the type.
  double f32 = 0, tf32 = 0, bf16 = 0, f16 = 0, f8 = 0, int8 = 0;
  std::vector<MemoryLevel> levels;  // the nearest first, memory last
  double launch_seconds = 0;        // one small op of a compiled program
  double team_seconds = 0;          // to start the thread team and wait for it
  double tick_seconds = 0;          // one look at the processor's counter

  /// Operations per second of products of the type: in f32 where it has no faster unit. `in_tf32`:
  /// those of f32 that may be rounded.
  double compute(DType dtype, bool in_tf32 = false) const;
  /// The rates of products with units of their own: "f32" first, then those that exceed it.
  std::vector<std::pair<std::string_view, double>> peaks() const;
  /// The level that holds `bytes`.
  const MemoryLevel& level_of(double bytes) const;
  machine::MachineSpeed speed() const;
};
/// About `seconds` for each of ten figures in each round; the best of the rounds, so that other
/// work on this machine has to be there in all of them to show. `memory_limit` bounds the buffers.
Ceilings measure_ceilings(int64_t memory_limit, double seconds = 0.03, int rounds = 3);
/// The same of a backend's device, by its own clock, with at most so much of its memory; products
/// are of random numbers.
Ceilings measure_device(const Backend& backend, int64_t memory_limit, double seconds = 0.1);
/// Of those, the rate of one type; 0: no kernel for it. A square product of kLargeProduct, unless
/// the device takes seconds for it.
double product_peak(const Backend& backend, DType dtype, bool tf32 = false);
inline constexpr int64_t kLargeProduct = 8192;

/// What a kernel does in one call.
struct Work {
  double flops = 0, bytes_read = 0, bytes_written = 0;
  DType dtype = DType::f32;  // of the factors of a product
  bool tf32 = false;         // f32 that may be rounded
  bool is_interpreted = false;
  bool is_collective = false;  // bytes_read are sent to other ranks
  double bytes() const { return bytes_read + bytes_written; }
};
/// The op's cost as the program runs it: a cache is updated in its place. `cache_share`: of the
/// keys and values that an attention with a position is given, those that it reads.
Work work_of(const Program& program, NodeId id, double cache_share = 1);

struct Verdict {
  Bound bound = Bound::overhead;
  double ceiling_seconds = 0;             // the longest of the three that bound a kernel
  std::array<double, kBounds> seconds{};  // by Bound
  /// What is reached of the ceiling by a call that takes so long.
  double fraction(double taken) const { return taken > 0 ? ceiling_seconds / taken : 0; }
};
/// `taken` seconds by the clock: a kernel that is faster than starting the team did not start it.
Verdict judge(const Work& work, const Ceilings& ceilings, double taken);

}  // namespace brrr::insight
