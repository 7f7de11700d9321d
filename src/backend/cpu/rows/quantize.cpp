// quantize_scale and quantize: what `--precision fp8` does to operands, where no unit multiplies in
// 8 bits and the point is to see its numbers. Plain loops.

#include <atomic>
#include <bit>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/row_space.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/quantized/fp8.h"

namespace brrr::cpu {
namespace {

float number(uint16_t bf16) { return float_from_bf16(bf16); }
float number(float x) { return x; }

/// The largest magnitude of n numbers; as bits of an f32, which order NaN behind infinity.
template <typename T>
uint32_t largest(const void* data, int64_t n) {
  const T* x = static_cast<const T*>(data);
  std::atomic<uint32_t> top{0};
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    uint32_t most = 0;
    for (int64_t i = begin; i < end; ++i)
      most = std::max(most, std::bit_cast<uint32_t>(number(x[i])) & 0x7fffffffu);
    uint32_t seen = top;
    while (most > seen && !top.compare_exchange_weak(seen, most)) {
    }
  });
  return top;
}

template <typename T, uint8_t (*kRound)(float)>
void quantize(const KernelArgs& args, int64_t n) {
  const T* x = static_cast<const T*>(args.in[0]);
  auto* y = static_cast<uint8_t*>(args.out[0]);
  const float inverse = 1 / *static_cast<const float*>(args.in[1]);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = kRound(number(x[i]) * inverse);
  });
}

template <typename T>
auto quantizer(DType to) {
  return to == DType::f8e4m3 ? &quantize<T, f8e4m3_from_float> : &quantize<T, f8e5m2_from_float>;
}

}  // namespace

std::vector<KernelEntry> quantize_kernels() {
  return {
      {Op::quantize_scale, "loop", only_f32_or_bf16,
       [](const NodeView& node) {
         return make_kernel([low = node.in[0].dtype == DType::bf16, n = node.in[0].shape.elements(),
                             to = node.attrs().get<DType>("dtype")](const KernelArgs& args) {
           const uint32_t top =
               low ? largest<uint16_t>(args.in[0], n) : largest<float>(args.in[0], n);
           *static_cast<float*>(args.out[0]) =
               static_cast<float>(ops::fp8_scale(std::bit_cast<float>(top), to));
         });
       }},
      {Op::quantize, "loop", only_f32_or_bf16, [](const NodeView& node) {
         const DType to = node.out()[0].dtype;
         return make_kernel(
             [run =
                  node.in[0].dtype == DType::bf16 ? quantizer<uint16_t>(to) : quantizer<float>(to),
              n = node.in[0].shape.elements()](const KernelArgs& args) { run(args, n); });
       }}};
}

}  // namespace brrr::cpu
