// Kernels of store between floats and int8 rows. A KV cache in 8 bits appends rows that the first
// one writes.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/attention/attention_rows.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/quantized/integer_rounding.h"
#include "backend/cpu/quantized/store_int8_rows.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/quantized/int8_rows.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kColumns = 256;  // columns of a group that are converted at a time

/// Calls f(group, its first element, its number of elements) for every group, on all threads.
template <typename F>
void for_each_group(const ops::Int8RowsLayout& layout, F f) {
  const int64_t groups = layout.rows * layout.groups_in_row;
  parallel_for(groups, std::max<int64_t>(1, 4096 / layout.group), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t column = g % layout.groups_in_row * layout.group;
      f(g, g / layout.groups_in_row * layout.columns + column,
        std::min(layout.group, layout.columns - column));
    }
  });
}

std::unique_ptr<Kernel> integers_of_floats(const NodeView& node) {
  const ops::Int8RowsLayout layout(node.out()[0]);
  const DType dtype = node.in[0].dtype;
  const auto bytes = static_cast<int64_t>(bytes_of(dtype));
  const RowCopies& copies = row_copies(dtype);
  return make_kernel([=, &copies](const KernelArgs& args) {
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    auto* integers = static_cast<int8_t*>(args.out[0]);
    auto* scales =
        reinterpret_cast<float*>(static_cast<std::byte*>(args.out[0]) + layout.first_scale);
    for_each_group(layout, [&](int64_t g, int64_t first, int64_t count) {
      alignas(64) float values[kColumns];
      const auto read = [&](int64_t i) {
        const int64_t n = std::min(kColumns, count - i);
        copies.widen(x + (first + i) * bytes, n, n, 1, values, n);
        return n;
      };
      float top = 0;
      for (int64_t i = 0; i < count; i += kColumns) top = largest_magnitude(values, read(i), top);
      const float scale = scales[g] = top / 127.0f;
      for (int64_t i = 0; i < count; i += kColumns) {
        const int64_t n = count <= kColumns ? count : read(i);
        for (int64_t j = 0; j < n; ++j)
          integers[first + i + j] = static_cast<int8_t>(nearest_integer(values[j], scale, 127.0f));
      }
    });
  });
}

std::unique_ptr<Kernel> floats_of_integers(const NodeView& node) {
  const ops::Int8RowsLayout layout(node.in[0]);
  const DType dtype = node.out()[0].dtype;
  const auto bytes = static_cast<int64_t>(bytes_of(dtype));
  const RowCopies& copies = row_copies(dtype);
  return make_kernel([=, &copies](const KernelArgs& args) {
    const auto* integers = static_cast<const int8_t*>(args.in[0]);
    const auto* scales = reinterpret_cast<const float*>(static_cast<const std::byte*>(args.in[0]) +
                                                        layout.first_scale);
    auto* y = static_cast<std::byte*>(args.out[0]);
    for_each_group(layout, [&](int64_t g, int64_t first, int64_t count) {
      alignas(64) float values[kColumns];
      for (int64_t i = 0; i < count; i += kColumns) {
        const int64_t n = std::min(kColumns, count - i);
        attention_rows().widen_integers({integers + first + i, n, scales + g, 1}, n, 1, values, n);
        copies.narrow(values, n, n, 1, y + (first + i) * bytes, n);
      }
    });
  });
}

}  // namespace

std::vector<KernelEntry> int8_rows_kernels() {
  const auto refuse = [](const NodeView& node, const Type& integers, const Type& floats) {
    if (node.in.size() != 1 || !floats.storage.is_plain() || !ops::is_int8_rows(integers))
      return std::string("no int8 rows with groups");
    if (floats.dtype != DType::f32 && floats.dtype != DType::bf16 && floats.dtype != DType::f16)
      return fmt::format("rows of {}: only f32, bf16 and f16", name_of(floats.dtype));
    return std::string();
  };
  return {{Op::store, "int8_rows",
           [=](const NodeView& node) { return refuse(node, node.out()[0], node.in[0]); },
           integers_of_floats, kKnowsStorage},
          {Op::store, "floats_of_int8_rows",
           [=](const NodeView& node) { return refuse(node, node.in[0], node.out()[0]); },
           floats_of_integers, kKnowsStorage}};
}

}  // namespace brrr::cpu
