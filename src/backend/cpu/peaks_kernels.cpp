#include "backend/cpu/peaks_kernels.h"

#include <cstring>

#include "backend/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// Independent chains: enough to cover the latency of two units (4 to 6 cycles each), few enough to
// stay in registers (16 of them below AVX-512). Named one by one because a loop over an array might
// spill.
#define BRRR_CHAINS_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define BRRR_CHAINS_16(X) BRRR_CHAINS_12(X) X(12) X(13) X(14) X(15)

namespace brrr::cpu {
namespace {

constexpr int kWide = 16, kNarrow = 12;
// x = x * kShrink + kStep stays a normal number of ordinary size for ever.
constexpr float kShrink = 0.9990234375f, kStep = 0.001f;

#if defined(__GNUC__)
using Vec4 = float __attribute__((vector_size(16)));

float multiply_add_128(int64_t rounds) {
  Vec4 shrink = {kShrink, kShrink, kShrink, kShrink}, step = {kStep, kStep, kStep, kStep};
  asm volatile("" : "+m"(shrink), "+m"(step));  // unknown to the optimiser
#define BRRR_DECLARE(i) Vec4 x##i = step * static_cast<float>(i + 1);
  BRRR_CHAINS_12(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = x##i * shrink + step;
    BRRR_CHAINS_12(BRRR_STEP)
#undef BRRR_STEP
  }
  Vec4 sum = {0, 0, 0, 0};
#define BRRR_SUM(i) sum += x##i;
  BRRR_CHAINS_12(BRRR_SUM)
#undef BRRR_SUM
  return sum[0] + sum[1] + sum[2] + sum[3];
}
#endif

uint64_t read_portable(const void* data, int64_t bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < bytes / 8; i += 8)
    for (int k = 0; k < 8; ++k) sum[k] |= words[i + k];
  uint64_t all = 0;
  for (const uint64_t s : sum) all |= s;
  return all;
}
void write_portable(void* data, int64_t bytes) { std::memset(data, 1, static_cast<size_t>(bytes)); }
void copy_portable(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float fma_f32_avx2(int64_t rounds) {
  float values[2] = {kShrink, kStep};
  asm volatile("" : "+m"(values));
  const __m256 shrink = _mm256_set1_ps(values[0]), step = _mm256_set1_ps(values[1]);
#define BRRR_DECLARE(i) __m256 x##i = _mm256_set1_ps(values[1] * static_cast<float>(i + 1));
  BRRR_CHAINS_12(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm256_fmadd_ps(x##i, shrink, step);
    BRRR_CHAINS_12(BRRR_STEP)
#undef BRRR_STEP
  }
  __m256 sum = _mm256_setzero_ps();
#define BRRR_SUM(i) sum = _mm256_add_ps(sum, x##i);
  BRRR_CHAINS_12(BRRR_SUM)
#undef BRRR_SUM
  return _mm256_cvtss_f32(sum);
}

/// int8 where nothing multiplies it: widened to 16 bits, four instructions for 32 products.
__attribute__((target("avx2"))) float dot_int8_avx2(int64_t rounds) {
  int32_t values[2] = {0x00020003, 0x00010001};
  asm volatile("" : "+m"(values));
  const __m256i b = _mm256_set1_epi32(values[1]);
  __m256i a = _mm256_set1_epi32(values[0]);
#define BRRR_DECLARE(i) __m256i x##i = _mm256_set1_epi32(values[0] + i);
  BRRR_CHAINS_12(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
    asm("" : "+x"(a));  // or the product would be computed once
#define BRRR_STEP(i)                                             \
  {                                                              \
    __m256i factor = a;                                          \
    asm("" : "+x"(factor));                                      \
    x##i = _mm256_add_epi32(x##i, _mm256_madd_epi16(factor, b)); \
  }
    BRRR_CHAINS_12(BRRR_STEP)
#undef BRRR_STEP
  }
  __m256i sum = _mm256_setzero_si256();
#define BRRR_SUM(i) sum = _mm256_add_epi32(sum, x##i);
  BRRR_CHAINS_12(BRRR_SUM)
#undef BRRR_SUM
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
}

__attribute__((target("avxvnni,avx2"))) float dot_int8_avxvnni(int64_t rounds) {
  int32_t values[2] = {0x01020301, 0x01010101};
  asm volatile("" : "+m"(values));
  const __m256i a = _mm256_set1_epi32(values[0]), b = _mm256_set1_epi32(values[1]);
#define BRRR_DECLARE(i) __m256i x##i = _mm256_set1_epi32(values[0] + i);
  BRRR_CHAINS_12(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm256_dpbusd_avx_epi32(x##i, a, b);
    BRRR_CHAINS_12(BRRR_STEP)
#undef BRRR_STEP
  }
  __m256i sum = _mm256_setzero_si256();
#define BRRR_SUM(i) sum = _mm256_add_epi32(sum, x##i);
  BRRR_CHAINS_12(BRRR_SUM)
#undef BRRR_SUM
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
}

#define BRRR_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx512cd"

__attribute__((target(BRRR_AVX512))) float fma_f32_avx512(int64_t rounds) {
  float values[2] = {kShrink, kStep};
  asm volatile("" : "+m"(values));
  const __m512 shrink = _mm512_set1_ps(values[0]), step = _mm512_set1_ps(values[1]);
#define BRRR_DECLARE(i) __m512 x##i = _mm512_set1_ps(values[1] * static_cast<float>(i + 1));
  BRRR_CHAINS_16(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm512_fmadd_ps(x##i, shrink, step);
    BRRR_CHAINS_16(BRRR_STEP)
#undef BRRR_STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define BRRR_SUM(i) sum = _mm512_add_ps(sum, x##i);
  BRRR_CHAINS_16(BRRR_SUM)
#undef BRRR_SUM
  alignas(64) float out[16];
  _mm512_store_ps(out, sum);
  return out[0];
}

#if !defined(__clang__)  // clang 14 has the type only where a whole file is compiled for avx512fp16
__attribute__((target(BRRR_AVX512 ",avx512fp16"))) float fma_f16_avx512(int64_t rounds) {
  float values[2] = {kShrink, kStep};
  asm volatile("" : "+m"(values));
  const __m512h shrink = _mm512_set1_ph(static_cast<_Float16>(values[0]));
  const __m512h step = _mm512_set1_ph(static_cast<_Float16>(values[1]));
#define BRRR_DECLARE(i) __m512h x##i = _mm512_set1_ph(static_cast<_Float16>(values[0] + i));
  BRRR_CHAINS_16(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm512_fmadd_ph(x##i, shrink, step);
    BRRR_CHAINS_16(BRRR_STEP)
#undef BRRR_STEP
  }
  __m512h sum = _mm512_setzero_ph();
#define BRRR_SUM(i) sum = _mm512_add_ph(sum, x##i);
  BRRR_CHAINS_16(BRRR_SUM)
#undef BRRR_SUM
  alignas(64) _Float16 out[32];
  _mm512_store_ph(out, sum);
  return static_cast<float>(out[0]);
}
#endif

__attribute__((target(BRRR_AVX512 ",avx512bf16"))) float dot_bf16_avx512(int64_t rounds) {
  int32_t values[2] = {0x3f803f80, 0x38003800};  // pairs of 1 and of 2^-15
  asm volatile("" : "+m"(values));
  const auto a = (__m512bh)_mm512_set1_epi32(values[0]), b = (__m512bh)_mm512_set1_epi32(values[1]);
#define BRRR_DECLARE(i) __m512 x##i = _mm512_set1_ps(static_cast<float>(i + 1));
  BRRR_CHAINS_16(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm512_dpbf16_ps(x##i, a, b);
    BRRR_CHAINS_16(BRRR_STEP)
#undef BRRR_STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define BRRR_SUM(i) sum = _mm512_add_ps(sum, x##i);
  BRRR_CHAINS_16(BRRR_SUM)
#undef BRRR_SUM
  alignas(64) float out[16];
  _mm512_store_ps(out, sum);
  return out[0];
}

__attribute__((target(BRRR_AVX512 ",avx512vnni"))) float dot_int8_avx512(int64_t rounds) {
  int32_t values[2] = {0x01020301, 0x01010101};
  asm volatile("" : "+m"(values));
  const __m512i a = _mm512_set1_epi32(values[0]), b = _mm512_set1_epi32(values[1]);
#define BRRR_DECLARE(i) __m512i x##i = _mm512_set1_epi32(values[0] + i);
  BRRR_CHAINS_16(BRRR_DECLARE)
#undef BRRR_DECLARE
  for (int64_t r = 0; r < rounds; ++r) {
#define BRRR_STEP(i) x##i = _mm512_dpbusd_epi32(x##i, a, b);
    BRRR_CHAINS_16(BRRR_STEP)
#undef BRRR_STEP
  }
  __m512i sum = _mm512_setzero_si512();
#define BRRR_SUM(i) sum = _mm512_add_epi32(sum, x##i);
  BRRR_CHAINS_16(BRRR_SUM)
#undef BRRR_SUM
  alignas(64) int32_t out[16];
  _mm512_store_si512(out, sum);
  return static_cast<float>(out[0]);
}

// All eight tiles: 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Four accumulators (2 x 2) over operands that stay in tiles. g++ 12 declares neither the whole
// configuration nor the loaded memory as read, so both are made to exist by memory clobbers.
template <bool kInt8>
__attribute__((target("amx-tile,amx-bf16,amx-int8"))) float dot_amx(int64_t rounds) {
  const TileConfig config;
  alignas(64) int32_t data[256];
  for (int32_t& word : data) word = kInt8 ? 0x01010101 : 0x38003800;
  asm volatile("" : : "r"(&config), "r"(data) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data, 64);
  _tile_loadd(5, data, 64);
  _tile_loadd(6, data, 64);
  _tile_loadd(7, data, 64);
  for (int64_t r = 0; r < rounds; ++r) {
    if constexpr (kInt8) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, data, 64);
  asm volatile("" : : "r"(data) : "memory");
  _tile_release();
  return static_cast<float>(data[0]);
}

// Software prefetch 32 lines ahead gains up to half on processors whose own prefetchers stop at
// pages.
constexpr int64_t kAhead = 2048;

__attribute__((target("avx2"))) uint64_t read_avx2(const void* data, int64_t bytes) {
  const auto* p = static_cast<const char*>(data);
  __m256i x0 = _mm256_setzero_si256(), x1 = x0, x2 = x0, x3 = x0;
  for (const char* end = p + bytes; p < end; p += 128) {
    _mm_prefetch(p + kAhead, _MM_HINT_T0);
    _mm_prefetch(p + kAhead + 64, _MM_HINT_T0);
    const auto* v = reinterpret_cast<const __m256i*>(p);
    x0 = _mm256_or_si256(x0, _mm256_load_si256(v));
    x1 = _mm256_or_si256(x1, _mm256_load_si256(v + 1));
    x2 = _mm256_or_si256(x2, _mm256_load_si256(v + 2));
    x3 = _mm256_or_si256(x3, _mm256_load_si256(v + 3));
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(x0, x1), _mm256_or_si256(x2, x3));
  alignas(32) uint64_t out[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), all);
  return out[0] | out[3];
}
__attribute__((target("avx2"))) void write_avx2(void* data, int64_t bytes) {
  const __m256i one = _mm256_set1_epi8(1);
  auto* v = static_cast<__m256i*>(data);
  for (__m256i* end = v + bytes / 32; v < end; v += 2) {
    _mm256_stream_si256(v, one);
    _mm256_stream_si256(v + 1, one);
  }
  _mm_sfence();
}
__attribute__((target("avx2"))) void copy_avx2(void* to, const void* from, int64_t bytes) {
  auto* w = static_cast<__m256i*>(to);
  const auto* p = static_cast<const char*>(from);
  for (const char* end = p + bytes; p < end; p += 64, w += 2) {
    _mm_prefetch(p + kAhead, _MM_HINT_T0);
    const auto* v = reinterpret_cast<const __m256i*>(p);
    const __m256i a = _mm256_load_si256(v), b = _mm256_load_si256(v + 1);
    _mm256_stream_si256(w, a);
    _mm256_stream_si256(w + 1, b);
  }
  _mm_sfence();
}

__attribute__((target(BRRR_AVX512))) uint64_t read_avx512(const void* data, int64_t bytes) {
  const auto* p = static_cast<const char*>(data);
  __m512i x0 = _mm512_setzero_si512(), x1 = x0, x2 = x0, x3 = x0;
  for (const char* end = p + bytes; p < end; p += 256) {
    for (int64_t line = 0; line < 256; line += 64) _mm_prefetch(p + kAhead + line, _MM_HINT_T0);
    x0 = _mm512_or_si512(x0, _mm512_load_si512(p));
    x1 = _mm512_or_si512(x1, _mm512_load_si512(p + 64));
    x2 = _mm512_or_si512(x2, _mm512_load_si512(p + 128));
    x3 = _mm512_or_si512(x3, _mm512_load_si512(p + 192));
  }
  alignas(64) uint64_t out[8];
  _mm512_store_si512(out, _mm512_or_si512(_mm512_or_si512(x0, x1), _mm512_or_si512(x2, x3)));
  return out[0] | out[7];
}

struct Features {
  bool avx512_vnni = false, avx512_fp16 = false, avx512_bf16 = false, avx_vnni = false;
};
Features features() {
  Features f;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    f.avx512_vnni = (c >> 11 & 1u) != 0;
    f.avx512_fp16 = (d >> 23 & 1u) != 0;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) {
    f.avx_vnni = (a >> 4 & 1u) != 0;
    f.avx512_bf16 = (a >> 5 & 1u) != 0;
  }
  return f;
}

#endif  // __x86_64__

}  // namespace

std::vector<ComputeKernel> compute_kernels() {
  std::vector<ComputeKernel> all;
#if defined(__x86_64__)
  const Isa isa = best_isa();
  const Features f = features();
  if (isa >= Isa::kAvx512) {
    all.push_back({"f32", "f32", "avx512 vfmadd", fma_f32_avx512, 16 * 2 * kWide});
#if !defined(__clang__)
    if (f.avx512_fp16)
      all.push_back({"f16", "f16", "avx512_fp16 vfmadd", fma_f16_avx512, 32 * 2 * kWide});
#endif
    if (f.avx512_bf16)
      all.push_back({"bf16", "f32", "avx512_bf16 vdpbf16ps", dot_bf16_avx512, 32 * 2 * kWide});
    if (f.avx512_vnni)
      all.push_back({"int8", "int32", "avx512_vnni vpdpbusd", dot_int8_avx512, 64 * 2 * kWide});
  } else if (isa >= Isa::kAvx2) {
    all.push_back({"f32", "f32", "avx2 vfmadd", fma_f32_avx2, 8 * 2 * kNarrow});
    all.push_back({"int8", "int32", "avx2 vpmaddwd + vpaddd", dot_int8_avx2, 16 * 2 * kNarrow});
    if (f.avx_vnni)
      all.push_back({"int8", "int32", "avx_vnni vpdpbusd", dot_int8_avxvnni, 32 * 2 * kNarrow});
  } else {
    all.push_back({"f32", "f32", "sse mulps + addps", multiply_add_128, 4 * 2 * kNarrow});
  }
  if (isa >= Isa::kAmx) {
    // Per tile instruction: 16 x 16 sums of 32 (bf16) or 64 (int8) products.
    all.push_back({"bf16", "f32", "amx tdpbf16ps", dot_amx<false>, 4.0 * 16 * 16 * 32 * 2});
    all.push_back({"int8", "int32", "amx tdpbusd", dot_amx<true>, 4.0 * 16 * 16 * 64 * 2});
  }
#else
  all.push_back({"f32", "f32", "128-bit multiply + add", multiply_add_128, 4 * 2 * kNarrow});
#endif
  return all;
}

MemoryKernels memory_kernels() {
#if defined(__x86_64__)
  if (best_isa() >= Isa::kAvx512) return {read_avx512, write_avx2, copy_avx2};
  if (best_isa() >= Isa::kAvx2) return {read_avx2, write_avx2, copy_avx2};
#endif
  return {read_portable, write_portable, copy_portable};
}

}  // namespace brrr::cpu
