// full, iota and literal, any dtype.

#include <algorithm>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/rows/row_space.h"
#include "ops/ops.h"

namespace brrr::cpu {

std::vector<KernelEntry> leaf_kernels() {
  auto any = [](const NodeView&) { return std::string(); };
  KernelEntry full{Op::full, "fill", any, [](const NodeView& node) {
                     const Type& type = node.out()[0];
                     std::array<std::byte, 8> value{};
                     store_constant(node.node(), 0, value.data());
                     return make_kernel([value, n = type.shape.elements(),
                                         bytes = static_cast<int64_t>(bytes_of(type.dtype))](
                                            const KernelArgs& args) {
                       parallel_elements(n, kByteGrain / bytes, [&](int64_t begin, int64_t end) {
                         fill_values(static_cast<std::byte*>(args.out[0]) + begin * bytes,
                                     value.data(), bytes, end - begin);
                       });
                     });
                   }};
  KernelEntry iota{Op::iota, "fill", any, [](const NodeView& node) {
                     const Type& type = node.out()[0];
                     const int64_t axis = node.attrs().get<int64_t>("axis");
                     int64_t inner = 1;
                     for (int i = static_cast<int>(axis) + 1; i < type.shape.rank(); ++i)
                       inner *= type.shape.size(i);
                     return make_kernel([inner, dtype = type.dtype, n = type.shape.elements(),
                                         size = type.shape.size(static_cast<int>(axis)),
                                         bytes = static_cast<int64_t>(bytes_of(type.dtype))](
                                            const KernelArgs& args) {
                       parallel_elements(n, kElementGrain, [&](int64_t begin, int64_t end) {
                         while (begin < end) {
                           const int64_t run = begin / inner,
                                         stop = std::min(end, (run + 1) * inner);
                           std::array<std::byte, 8> value{};
                           const int64_t index = run % size;
                           if (is_float(dtype))
                             store_from_double(dtype, value.data(), 0, static_cast<double>(index));
                           else
                             store_integer(dtype, value.data(), 0, static_cast<uint64_t>(index));
                           fill_values(static_cast<std::byte*>(args.out[0]) + begin * bytes,
                                       value.data(), bytes, stop - begin);
                           begin = stop;
                         }
                       });
                     });
                   }};
  KernelEntry literal{Op::literal, "copy", any, [](const NodeView& node) {
                        const Type& type = node.out()[0];
                        std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
                        const size_t each = bytes_of(type.dtype);
                        for (size_t at = 0; at < bytes.size(); at += each)
                          store_constant(node.node(), at / each, bytes.data() + at);
                        return make_kernel([bytes = std::move(bytes)](const KernelArgs& args) {
                          std::copy(bytes.begin(), bytes.end(),
                                    static_cast<std::byte*>(args.out[0]));
                        });
                      }};
  return {std::move(full), std::move(iota), std::move(literal)};
}

}  // namespace brrr::cpu
