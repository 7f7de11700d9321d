#pragma once
// Tiles take denormals as zero and give zero for them; vector code that must agree does, too, while
// an object of this class lives.

#if defined(__SSE2__)
#include <pmmintrin.h>
#include <xmmintrin.h>
#endif

namespace brrr::cpu {

#if defined(__SSE2__)
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};
#else
struct FlushDenormals {};
#endif

}  // namespace brrr::cpu
