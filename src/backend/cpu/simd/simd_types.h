#pragma once
// Storage types of the 16-bit floats, and the instruction sets that the element-wise and row
// kernels are compiled for. Included before <hwy/foreach_target.h>.

#include <cstdint>

// SSSE3 without SSE4 is a processor of 2007; leaving it out saves a quarter of the compile time.
// The sanitizers look for reads and writes outside of buffers, which SSE4's vectors would make
// where AVX2's make them, too.
#if defined(BRRR_SANITIZED)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#else
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif

namespace brrr::cpu {

/// The bits of one element; kernels compute in f32.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

}  // namespace brrr::cpu
