// softmax and softmax_grad: rows split among threads.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/softmax_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
std::vector<KernelEntry> softmax_kernels() {
  KernelEntry forward{
      Op::softmax, "rows", only_f32_or_16_bits, [](const NodeView& node) {
        const DType t = node.in[0].dtype;
        return make_kernel([rows = rows_of(node.in[0].shape), run = softmax_rows(t).forward,
                            bytes = static_cast<int64_t>(bytes_of(t))](const KernelArgs& args) {
          const auto* x = static_cast<const std::byte*>(args.in[0]);
          auto* y = static_cast<std::byte*>(args.out[0]);
          parallel_for(rows.count, row_grain(rows.width, kExpGrain),
                       [&](int64_t begin, int64_t end) {
                         const int64_t at = begin * rows.width * bytes;
                         run(x + at, y + at, end - begin, rows.width);
                       });
        });
      }};
  KernelEntry backward{
      Op::softmax_grad, "rows", only_f32_or_16_bits, [](const NodeView& node) {
        const DType t = node.in[0].dtype;
        return make_kernel([rows = rows_of(node.in[0].shape), run = softmax_rows(t).backward,
                            bytes = static_cast<int64_t>(bytes_of(t))](const KernelArgs& args) {
          const auto* dy = static_cast<const std::byte*>(args.in[0]);
          const auto* y = static_cast<const std::byte*>(args.in[1]);
          auto* dx = static_cast<std::byte*>(args.out[0]);
          parallel_for(rows.count, row_grain(rows.width, 2 * kExpGrain),
                       [&](int64_t begin, int64_t end) {
                         const int64_t at = begin * rows.width * bytes;
                         run(dy + at, y + at, dx + at, end - begin, rows.width);
                       });
        });
      }};
  return {std::move(forward), std::move(backward)};
}

}  // namespace brrr::cpu
