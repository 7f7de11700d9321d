#pragma once
// What this processor really reaches, measured: arithmetic from registers per data type, and
// bandwidth of the second-level cache and of memory. Uses all threads of the team and at most the
// instruction set of best_isa(). On a shared machine the figures drift; each is the best of several
// short windows. Not to be run beside other work.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::cpu {

/// One way of multiplying and adding. A multiply-add counts as two operations.
struct ComputePeak {
  std::string type;         // "f32", "f16", "bf16", "int8": of the factors
  std::string accumulate;   // "f32", "f16", "int32": of the sums
  std::string instruction;  // "avx512 vfmadd231ps"
  double ops_per_second = 0;
};

/// Every way that this processor has, the fastest of each type first. About `seconds` per entry.
std::vector<ComputePeak> measure_compute_peaks(double seconds);

/// The fastest way to multiply factors of that type; null where there is none.
const ComputePeak* fastest(const std::vector<ComputePeak>& peaks, std::string_view type);
/// Its rate; 0 where there is none.
double fastest_rate(const std::vector<ComputePeak>& peaks, std::string_view type);

/// Bytes per second over all threads. A copy counts the bytes read and the bytes written.
struct Bandwidth {
  double read = 0, write = 0, copy = 0;  // memory
  double l2_read = 0;                    // buffers of half an L2 cache, one per thread
  int64_t buffer_bytes = 0;              // that the memory figures ran over
};

/// `l2_bytes` per core and `l3_bytes` size the buffers; `memory_limit` bounds them. About `seconds`
/// per figure besides the time to allocate.
Bandwidth measure_bandwidth(int64_t l2_bytes, int64_t l3_bytes, int64_t memory_limit,
                            double seconds);

}  // namespace brrr::cpu
