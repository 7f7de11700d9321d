// The language that every kernel is written in: element types, vector loads and stores, the maths
// of element-wise ops, random bits, sums over a warp and a block. Nothing is included, so that a
// kernel compiles in milliseconds. Where BRRR_EMULATED is defined, a shim has given threadIdx,
// barriers and shuffles, and what is an instruction here has a twin in plain C++.

#ifdef BRRR_EMULATED
#define BRRR_KERNEL(threads) static void
#define BRRR_KERNEL_ALONE(threads) static void
#define BRRR_DEVICE static inline
#define BRRR_METHOD static inline
#define BRRR_MEMBER inline
#define BRRR_DYNAMIC_SHARED(name) unsigned char* const name = emulated::dynamic_shared()
#define BRRR_GRID_CONSTANT
#define BRRR_CONSTANT static const
#else
#define BRRR_GRID_CONSTANT __grid_constant__
#define BRRR_CONSTANT static __device__ const
#define BRRR_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// A block may have all registers of a multiprocessor: otherwise the compiler may spill a few for
// the sake of one block more.
#define BRRR_KERNEL_ALONE(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#define BRRR_DEVICE __device__ __forceinline__
#define BRRR_METHOD static __device__ __forceinline__
#define BRRR_MEMBER __device__ __forceinline__
#define BRRR_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

using f32 = float;
using f64 = double;
using i32 = int;
using i64 = long long;
using i8 = signed char;
using i16 = short;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
struct b8 {  // bool: 0 or 1
  u8 value;
};
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
struct f8e4m3 {
  u8 bits;
};
struct f8e5m2 {
  u8 bits;
};

#define BRRR_INFINITY __int_as_float(0x7f800000)
#define BRRR_NAN __int_as_float(0x7fc00000)

// -- conversions: what an element is worked with as, and back

BRRR_DEVICE float widen(float x) { return x; }
BRRR_DEVICE double widen(double x) { return x; }
BRRR_DEVICE int widen(int x) { return x; }
BRRR_DEVICE i64 widen(i64 x) { return x; }
BRRR_DEVICE int widen(i8 x) { return x; }
BRRR_DEVICE int widen(u8 x) { return x; }
BRRR_DEVICE int widen(i16 x) { return x; }
BRRR_DEVICE int widen(u16 x) { return x; }
BRRR_DEVICE u32 widen(u32 x) { return x; }
BRRR_DEVICE u64 widen(u64 x) { return x; }
BRRR_DEVICE bool widen(b8 x) { return x.value != 0; }
BRRR_DEVICE float widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
BRRR_DEVICE float widen(f16 x) {
#ifdef BRRR_EMULATED
  return emulated::float_from_f16(x.bits);
#else
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#endif
}

BRRR_DEVICE float widen(f8e5m2 x) { return widen(f16{static_cast<u16>(x.bits << 8)}); }
BRRR_DEVICE float widen(f8e4m3 x) {
  const u32 magnitude = x.bits & 0x7fu;
  const float y = magnitude == 0x7fu ? BRRR_NAN
                  : magnitude < 8u   ? static_cast<float>(magnitude) * 0.001953125f  // 2^-9
                                     : __uint_as_float((magnitude << 20) + (120u << 23));
  return (x.bits & 0x80u) != 0 ? -y : y;
}

#if !defined(BRRR_EMULATED) && __CUDA_ARCH__ >= 890
#define BRRR_HAS_FP8 1
#endif
/// As base/dtype.cpp has it: 8 bits, kMantissa of them the mantissa.
template <int kMantissa, int kBias, u32 kLargest>
BRRR_DEVICE u8 fp8_bits(float x) {
  const u32 bits = __float_as_uint(x), sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  const int shift = 23 - kMantissa;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude < static_cast<u32>(128 - kBias) << 23) {
    const u32 aligner = static_cast<u32>(128 - kBias + shift) << 23;
    const float aligned = __uint_as_float(magnitude) + __uint_as_float(aligner);
    return static_cast<u8>(sign | (__float_as_uint(aligned) - aligner));
  }
  const u32 rounded = magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1u);
  const u32 y = (rounded >> shift) - (static_cast<u32>(127 - kBias) << kMantissa);
  return static_cast<u8>(sign | (y < kLargest ? y : kLargest));
}

/// A float as an integer in [low, high]: truncated, the nearest end beyond them, 0 for NaN.
template <typename W, typename F>
BRRR_DEVICE W truncated(F x, W low, W high) {
  if (x != x) return 0;
  if (x <= static_cast<F>(low)) return low;
  return x >= static_cast<F>(high) ? high : static_cast<W>(x);
}

/// Round to nearest even; integers wrap around.
template <typename T, typename W>
struct Narrow {
  BRRR_METHOD T from(W x) { return static_cast<T>(x); }
};
template <typename W>
struct Narrow<b8, W> {
  BRRR_METHOD b8 from(W x) { return b8{static_cast<u8>(x != static_cast<W>(0) ? 1 : 0)}; }
};
template <typename W>
struct Narrow<i8, W> {  // through int, so that what does not fit wraps as on the host
  BRRR_METHOD i8 from(W x) { return static_cast<i8>(static_cast<int>(x)); }
};
template <typename W>
struct Narrow<u8, W> {
  BRRR_METHOD u8 from(W x) { return static_cast<u8>(static_cast<int>(x)); }
};
template <typename W>
struct Narrow<i16, W> {
  BRRR_METHOD i16 from(W x) { return static_cast<i16>(static_cast<int>(x)); }
};
template <typename W>
struct Narrow<u16, W> {
  BRRR_METHOD u16 from(W x) { return static_cast<u16>(static_cast<int>(x)); }
};
template <typename W>
struct Narrow<bf16, W> {
  BRRR_METHOD bf16 from(W value) {
    const float x = static_cast<float>(value);
    bf16 y;
#ifdef BRRR_EMULATED
    const u32 bits = __float_as_uint(x);
    y.bits = (bits & 0x7fffffffu) > 0x7f800000u
                 ? static_cast<u16>(0x7fff)
                 : static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
  }
};
template <typename W>
struct Narrow<f16, W> {
  BRRR_METHOD f16 from(W value) {
    const float x = static_cast<float>(value);
    f16 y;
#ifdef BRRR_EMULATED
    y.bits = emulated::f16_from_float(x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
  }
};
template <typename W>
struct Narrow<f8e4m3, W> {
  BRRR_METHOD f8e4m3 from(W value) {
    const float x = static_cast<float>(value);
#ifdef BRRR_HAS_FP8
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return f8e4m3{static_cast<u8>(pair)};
#else
    return f8e4m3{fp8_bits<3, 7, 0x7e>(x)};
#endif
  }
};
template <typename W>
struct Narrow<f8e5m2, W> {
  BRRR_METHOD f8e5m2 from(W value) {
    const float x = static_cast<float>(value);
#ifdef BRRR_HAS_FP8
    u16 pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return f8e5m2{static_cast<u8>(pair)};
#else
    return f8e5m2{fp8_bits<2, 15, 0x7b>(x)};
#endif
  }
};
template <typename T, typename W>
BRRR_DEVICE T narrow(W x) {
  return Narrow<T, W>::from(x);
}
/// What x becomes when it is stored as T.
template <typename T, typename W>
BRRR_DEVICE W rounded(W x) {
  return static_cast<W>(widen(narrow<T>(x)));
}

// -- V elements at once, 16 bytes to a load; addresses are aligned for it

template <typename T, int V>
struct __align__(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
  T v[V];
};

template <typename W, int V, typename T>
BRRR_DEVICE void load(W (&x)[V], const T* from) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = static_cast<W>(widen(pack.v[e]));
}
template <int V, typename T, typename W>
BRRR_DEVICE void store(T* to, const W (&x)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int e = 0; e < V; ++e) pack.v[e] = narrow<T>(x[e]);
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}
/// The first n of V; the others are 0.
template <typename W, int V, typename T>
BRRR_DEVICE void load_some(W (&x)[V], const T* from, int n) {
  if (n >= V) return load(x, from);
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = e < n ? static_cast<W>(widen(from[e])) : static_cast<W>(0);
}
template <int V, typename T, typename W>
BRRR_DEVICE void store_some(T* to, const W (&x)[V], int n) {
  if (n >= V) return store(to, x);
#pragma unroll
  for (int e = 0; e < V; ++e)
    if (e < n) to[e] = narrow<T>(x[e]);
}
/// One by one: any alignment.
template <typename W, int V, typename T>
BRRR_DEVICE void load_each(W (&x)[V], const T* from, int n) {
#pragma unroll
  for (int e = 0; e < V; ++e) x[e] = e < n ? static_cast<W>(widen(from[e])) : static_cast<W>(0);
}

// -- maths of element-wise ops, for float and double

/// a / b within 2 ulp, for what is no result of its own.
BRRR_DEVICE float quotient(float a, float b) {
#ifdef BRRR_EMULATED
  return a / b;
#else
  return __fdividef(a, b);
#endif
}
BRRR_DEVICE double quotient(double a, double b) { return a / b; }

/// a b + c rounded once.
BRRR_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
BRRR_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

#define BRRR_UNARY(name, single, other)                   \
  BRRR_DEVICE float op_##name(float x) { return single; } \
  BRRR_DEVICE double op_##name(double x) { return other; }
BRRR_UNARY(exp, expf(x), exp(x))
BRRR_UNARY(log, logf(x), log(x))
BRRR_UNARY(sqrt, sqrtf(x), sqrt(x))
BRRR_UNARY(rsqrt, 1.0f / sqrtf(x), 1.0 / sqrt(x))
BRRR_UNARY(abs, fabsf(x), fabs(x))
BRRR_UNARY(tanh, tanhf(x), tanh(x))
BRRR_UNARY(erf, erff(x), erf(x))
BRRR_UNARY(erfc, erfcf(x), erfc(x))
BRRR_UNARY(sigmoid, 1.0f / (1.0f + expf(-x)), 1.0 / (1.0 + exp(-x)))
BRRR_UNARY(sin, sinf(x), sin(x))
BRRR_UNARY(cos, cosf(x), cos(x))
#undef BRRR_UNARY

template <typename W>
BRRR_DEVICE W op_maximum(W a, W b) {
  return a != a ? a : b != b ? b : a >= b ? a : b;
}
template <typename W>
BRRR_DEVICE W op_minimum(W a, W b) {
  return a != a ? a : b != b ? b : a <= b ? a : b;
}
BRRR_DEVICE float op_div(float a, float b) { return a / b; }
BRRR_DEVICE double op_div(double a, double b) { return a / b; }
BRRR_DEVICE int op_div(int a, int b) { return b == 0 ? 0 : b == -1 ? 0 - a : a / b; }
BRRR_DEVICE i64 op_div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? 0 - a : a / b; }
BRRR_DEVICE u32 op_div(u32 a, u32 b) { return b == 0 ? 0 : a / b; }
BRRR_DEVICE u64 op_div(u64 a, u64 b) { return b == 0 ? 0 : a / b; }
BRRR_DEVICE float op_pow(float a, float b) { return powf(a, b); }
BRRR_DEVICE double op_pow(double a, double b) { return pow(a, b); }
// For what folds rows: one instruction where op_maximum takes four. NaN stays; -0 may stand for +0.
template <typename W>
BRRR_DEVICE W larger(W a, W b) {
  return op_maximum(a, b);
}
#ifndef BRRR_EMULATED
BRRR_DEVICE float larger(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif
// Exact: wraps around; a negative power is truncated, that of 0 is 0.
template <typename W>
BRRR_DEVICE W integer_pow(W base, W exponent) {
  constexpr bool is_signed = static_cast<W>(-1) < static_cast<W>(1);
  if constexpr (is_signed) {
    const bool is_unit = base == static_cast<W>(1) || base == static_cast<W>(-1);
    if (exponent < static_cast<W>(0))
      return is_unit ? (exponent % 2 == 0 ? static_cast<W>(1) : base) : static_cast<W>(0);
  }
  u64 y = 1, a = static_cast<u64>(base);
  for (u64 b = static_cast<u64>(exponent); b > 0; b >>= 1, a *= a)
    if ((b & 1) != 0) y *= a;
  return static_cast<W>(y);
}
BRRR_DEVICE int op_pow(int a, int b) { return integer_pow(a, b); }
BRRR_DEVICE i64 op_pow(i64 a, i64 b) { return integer_pow(a, b); }
BRRR_DEVICE u32 op_pow(u32 a, u32 b) { return integer_pow(a, b); }
BRRR_DEVICE u64 op_pow(u64 a, u64 b) { return integer_pow(a, b); }

template <typename W>
BRRR_DEVICE W silu(W x) {
  return quotient(x, static_cast<W>(1) + op_exp(-x));
}
template <typename W>
BRRR_DEVICE W silu_grad(W dy, W x) {
  const W s = quotient(static_cast<W>(1), static_cast<W>(1) + op_exp(-x));
  const W r = quotient(static_cast<W>(1), static_cast<W>(1) + op_exp(x));  // 1 - s
  return dy * (s + x * s * r);
}
// 0.5 x (1 + tanh u) = x / (1 + e^-2u): one exponential, and nothing cancels.
template <typename W>
BRRR_DEVICE W gelu_tanh(W x) {
  const W u = static_cast<W>(0.79788456080286535588) * (x + static_cast<W>(0.044715) * x * x * x);
  return quotient(x, static_cast<W>(1) + op_exp(static_cast<W>(-2) * u));
}
// 1 + erf z = erfc -z, of which nothing cancels where z is negative.
template <typename W>
BRRR_DEVICE W normal_cdf(W x) {
  return static_cast<W>(0.5) * op_erfc(static_cast<W>(-0.70710678118654752440) * x);
}
template <typename W>
BRRR_DEVICE W gelu_none(W x) {
  return x * normal_cdf(x);
}
template <typename W>
BRRR_DEVICE W gelu_grad_tanh(W dy, W x) {
  const W u = static_cast<W>(0.79788456080286535588) * (x + static_cast<W>(0.044715) * x * x * x);
  const W e = op_exp(static_cast<W>(-2) * u);
  const W s = quotient(static_cast<W>(1), static_cast<W>(1) + e);  // (1 + tanh u) / 2
  const W du = static_cast<W>(0.79788456080286535588) *
               (static_cast<W>(1) + static_cast<W>(3 * 0.044715) * x * x);
  // s' = 2 s (1 - s) u', and 1 - s = 1 / (1 + e^2u).
  const W r = quotient(static_cast<W>(1), static_cast<W>(1) + op_exp(static_cast<W>(2) * u));
  return dy * (s + static_cast<W>(2) * x * s * r * du);
}
template <typename W>
BRRR_DEVICE W gelu_grad_none(W dy, W x) {
  const W density = static_cast<W>(0.39894228040143267794) * op_exp(static_cast<W>(-0.5) * x * x);
  return dy * (normal_cdf(x) + x * density);
}

// -- random bits: Philox4x32 with 7 rounds, as base/rng.h has it

struct Words {
  u32 w[4];
};
BRRR_DEVICE Words philox(u32 seed, u32 step, u32 stream, u64 block) {
  u32 c0 = static_cast<u32>(block), c1 = static_cast<u32>(block >> 32), c2 = stream, c3 = 0;
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ seed;
    c1 = low1;
    c2 = high0 ^ c3 ^ step;
    c3 = low0;
    seed += 0x9E3779B9u;
    step += 0xBB67AE85u;
  }
  return Words{{c0, c1, c2, c3}};
}
BRRR_DEVICE u32 word_of(const Words& words, u32 k) {  // without an indexed register
  const u32 low = (k & 1u) != 0 ? words.w[1] : words.w[0];
  const u32 high = (k & 1u) != 0 ? words.w[3] : words.w[2];
  return (k & 2u) != 0 ? high : low;
}
/// Element i of a 16-bit stream.
BRRR_DEVICE u32 random_u16(const i32* key, u32 stream, u64 i) {
  const Words words = philox(static_cast<u32>(key[0]), static_cast<u32>(key[1]), stream, i / 8);
  const u32 in_block = static_cast<u32>(i % 8);
  return (word_of(words, in_block / 2) >> (16 * (in_block % 2))) & 0xffffu;
}
/// Elements i to i + V - 1, i a multiple of V.
template <int V>
BRRR_DEVICE void draw(i32 (&bits)[V], const i32* key, u32 stream, u64 i) {
  static_assert(V <= 8, "one block");
  const Words words = philox(static_cast<u32>(key[0]), static_cast<u32>(key[1]), stream, i / 8);
  const u32 first = static_cast<u32>(i % 8);
#pragma unroll
  for (int e = 0; e < V; ++e) {
    if constexpr (V == 8) {
      bits[e] = static_cast<i32>((words.w[e / 2] >> (16 * (e % 2))) & 0xffffu);
    } else {
      const u32 k = first + static_cast<u32>(e);
      bits[e] = static_cast<i32>((word_of(words, k / 2) >> (16 * (k % 2))) & 0xffffu);
    }
  }
}

// -- scales of 8-bit tensors

/// The least power of two, from 2^-100 on, by which `top` (>= 0 or NaN) becomes 1.75 times
/// 2^`exponent` at most.
BRRR_DEVICE float scale_for(float top, int exponent) {
  const u32 bits = __float_as_uint(top);
  if ((bits & 0x7fffffffu) >= 0x7f800000u) return BRRR_NAN;
  if (bits == 0) return 1.0f;
  const int power =
      static_cast<int>(bits >> 23) - 127 - exponent + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  return __uint_as_float(static_cast<u32>((power < -100 ? -100 : power) + 127) << 23);
}
/// 16 neighbours of a byte each; `from` is a multiple of 4, `to` of 16.
template <typename T>
BRRR_DEVICE void copy_16(T* to, const T* from) {
  Pack<u32, 4> words;
#pragma unroll
  for (int w = 0; w < 4; ++w) words.v[w] = reinterpret_cast<const u32*>(from)[w];
  *reinterpret_cast<Pack<u32, 4>*>(to) = words;
}

// -- sums over a warp and over a block, in an order that never changes

struct Add {
  template <typename W>
  BRRR_METHOD W of(W a, W b) {
    return a + b;
  }
};
struct Larger {
  template <typename W>
  BRRR_METHOD W of(W a, W b) {
    return larger(a, b);
  }
};

template <typename Fold, typename W>
BRRR_DEVICE W warp_fold(W x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = Fold::of(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}
/// Over the T threads of a block (a warp: T = 32, any of them); every thread has the result.
template <typename Fold, int T, typename W>
BRRR_DEVICE W fold(W x) {
  static_assert(T % 32 == 0 && T <= 1024, "whole warps");
  x = warp_fold<Fold>(x);
  if constexpr (T > 32) {
    __shared__ W warps[T / 32];
    __syncthreads();  // the last fold has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
#pragma unroll
    for (int w = 1; w < T / 32; ++w) x = Fold::of(x, warps[w]);
  }
  return x;
}
