#pragma once
// The part of CUDA C++ that the kernels use, for the host's compiler. Threads of a block are fibers
// (cuda_emulator.cpp); blocks run one after another, so shared memory is static.

#include "cuda_context.h"

#define BRRR_EMULATED 1

extern "C" {
float expf(float);
float logf(float);
float sqrtf(float);
float fabsf(float);
float tanhf(float);
float erff(float);
float erfcf(float);
float sinf(float);
float cosf(float);
float powf(float, float);
float fmaf(float, float, float);
float exp2f(float);
float log2f(float);
double exp(double);
double log(double);
double sqrt(double);
double fabs(double);
double tanh(double);
double erf(double);
double erfc(double);
double sin(double);
double cos(double);
double pow(double, double);
double rint(double);
double fma(double, double, double);
}

static emulated::Context* emulated_context = nullptr;

#define threadIdx (emulated_context->thread)
#define blockIdx (emulated_context->block)
#define blockDim (emulated_context->threads)
#define gridDim (emulated_context->blocks)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline

namespace emulated {
inline unsigned char* dynamic_shared() { return emulated_context->shared; }
inline float float_from_f16(unsigned short x) { return emulated_context->float_from_f16(x); }
inline unsigned short f16_from_float(float x) { return emulated_context->f16_from_float(x); }
template <typename To, typename From>
To bits(From x) {
  To y;
  static_assert(sizeof(To) == sizeof(From));
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
}  // namespace emulated

inline void __syncthreads() { emulated_context->block_barrier(); }
inline void __syncwarp() { emulated_context->warp_barrier(); }
template <typename T>
T __shfl_sync(unsigned, T x, int lane) {
  const unsigned char* all = emulated_context->exchange(&x, sizeof x);
  __builtin_memcpy(&x, all + 64 * (lane & 31), sizeof x);
  return x;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int with) {
  return __shfl_sync(mask, x, static_cast<int>(threadIdx.x % 32) ^ with);
}
inline int __any_sync(unsigned mask, int x) {
  int any = 0;
  for (int lane = 0; lane < 32; ++lane) any |= __shfl_sync(mask, x, lane);
  return any;
}
inline unsigned atomicAdd(unsigned* to, unsigned x) {
  const unsigned before = *to;
  *to += x;
  return before;
}
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline double __longlong_as_double(long long x) { return emulated::bits<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}

namespace emulated {
template <typename T>
struct Plain {
  using type = T;
};
template <typename T>
struct Plain<const T> {
  using type = T;
};
template <int... k>
struct Indices {};
template <int n, int... k>
struct Count : Count<n - 1, n - 1, k...> {};
template <int... k>
struct Count<0, k...> {
  using type = Indices<k...>;
};
template <typename... Args, int... k>
void call(void (*kernel)(Args...), void** args, Indices<k...>) {
  kernel(*static_cast<typename Plain<Args>::type*>(args[k])...);
}
/// As cuLaunchKernel takes arguments: an address for each.
template <typename... Args>
void call(void (*kernel)(Args...), void** args) {
  call(kernel, args, typename Count<sizeof...(Args)>::type());
}
}  // namespace emulated
