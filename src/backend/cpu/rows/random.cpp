// random_bits and dropout: each element is a function of (key, stream, index), so any split among
// threads gives the same bits.

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/random_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

RngKey key_at(const void* key) {
  const auto* words = static_cast<const int32_t*>(key);
  return {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])};
}

/// body(begin, end) with begin at multiples of kRandomStep.
template <typename Body>
void parallel_steps(int64_t n, Body&& body) {
  parallel_for((n + kRandomStep - 1) / kRandomStep, kRowGrain / kRandomStep,
               [&](int64_t begin, int64_t end) {
                 body(begin * kRandomStep, std::min(n, end * kRandomStep));
               });
}

}  // namespace

std::vector<KernelEntry> random_kernels() {
  KernelEntry bits{Op::random_bits, "philox", [](const NodeView&) { return std::string(); },
                   [](const NodeView& node) {
                     const auto stream = static_cast<uint32_t>(node.attrs().get<int64_t>("stream"));
                     return make_kernel([stream, n = node.out()[0].shape.elements(),
                                         run = random_rows(false).bits](const KernelArgs& args) {
                       const RngKey key = key_at(args.in[0]);
                       auto* y = static_cast<int32_t*>(args.out[0]);
                       parallel_steps(n, [&](int64_t begin, int64_t end) {
                         run(key, stream, begin, y + begin, end - begin);
                       });
                     });
                   }};
  KernelEntry dropout{
      Op::dropout, "philox", only_f32_or_bf16, [](const NodeView& node) {
        const auto stream = static_cast<uint32_t>(node.attrs().get<int64_t>("stream"));
        const double threshold =
            std::min(65535.0, std::nearbyint(node.attrs().get<double>("p") * 65536));
        const float scale = static_cast<float>(65536.0 / (65536.0 - threshold));
        const bool bf16 = node.in[0].dtype == DType::bf16;
        return make_kernel([stream, threshold = static_cast<uint32_t>(threshold), scale,
                            bytes = int64_t{bf16 ? 2 : 4}, n = node.out()[0].shape.elements(),
                            run = random_rows(bf16).dropout](const KernelArgs& args) {
          const RngKey key = key_at(args.in[1]);
          parallel_steps(n, [&](int64_t begin, int64_t end) {
            run(key, stream, begin, threshold, scale,
                static_cast<const std::byte*>(args.in[0]) + begin * bytes,
                static_cast<std::byte*>(args.out[0]) + begin * bytes, end - begin);
          });
        });
      }};
  return {std::move(bits), std::move(dropout)};
}

}  // namespace brrr::cpu
