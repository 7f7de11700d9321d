// store: a matrix in the panels in which products read their right operand. It may lie at any
// address: it is copied as bytes.

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/panel_rows.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kStrip = 1024;  // columns at a time

/// Rows from `row` on, 32 of them, and columns from `column` on; what there is not is zeros.
void put_part(const std::byte* x, const PanelPlaces& places, int64_t row, int64_t column) {
  constexpr int64_t kBytes = sizeof(uint16_t);
  const int64_t rows = std::min(kPanelTerms, places.rows - row);
  const int64_t columns = std::min(kStrip, places.columns - column);
  const std::byte* from = x + kBytes * (row * places.columns + column);
  const PanelRows to = places.at(row, column);
  const bool is_aligned = reinterpret_cast<uintptr_t>(x) % kBytes == 0;
  if (rows == kPanelTerms && columns % kPanelColumns == 0 && is_aligned)
    return put_into_panels(reinterpret_cast<const uint16_t*>(from), places.columns, columns, to);
  alignas(64) uint16_t padded[kPanelTerms * kStrip];
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(padded + i * kStrip, from + kBytes * i * places.columns,
                static_cast<size_t>(kBytes * columns));
  pad_with_zeros(padded, kStrip, rows, columns);
  put_into_panels(padded, kStrip, round_up(columns, kPanelColumns), to);
}

using Four = float __attribute__((vector_size(16)));

/// The transpose of a block of 4 x 4, whose rows lie `stride` bytes apart, into rows of a panel.
void put_transposed(const std::byte* x, int64_t stride, float* panel) {
  std::array<Four, 4> r;
  for (size_t j = 0; j < 4; ++j)
    std::memcpy(&r[j], x + static_cast<int64_t>(j) * stride, sizeof(Four));
  const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
             b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7),
             c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5),
             d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const std::array<Four, 4> columns = {
      __builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
      __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
  for (size_t i = 0; i < 4; ++i) std::memcpy(panel + i * kPanelColumns, &columns[i], sizeof(Four));
}

/// Columns [column, column + 32) of a matrix [k, n], or of the transpose of [n, k], as a panel.
void put_f32_panel(const std::byte* x, int64_t k, int64_t n, bool transposed, int64_t column,
                   float* panel) {
  constexpr int64_t kBytes = sizeof(float);
  const int64_t columns = std::min(kPanelColumns, n - column);
  int64_t i = 0;
  if (transposed && columns == kPanelColumns)
    for (; i + 4 <= k; i += 4, panel += 4 * kPanelColumns)
      for (int64_t j = 0; j < columns; j += 4)
        put_transposed(x + kBytes * ((column + j) * k + i), kBytes * k, panel + j);
  for (; i < k; ++i, panel += kPanelColumns) {
    if (transposed)
      for (int64_t j = 0; j < columns; ++j)
        std::memcpy(panel + j, x + kBytes * ((column + j) * k + i), kBytes);
    else
      std::memcpy(panel, x + kBytes * (i * n + column), static_cast<size_t>(kBytes * columns));
    std::fill(panel + columns, panel + kPanelColumns, 0.0f);
  }
}

std::unique_ptr<Kernel> f32_panels_kernel(const NodeView& node) {
  const bool transposed = node.out()[0].storage.layout == Layout::transposed_panels;
  const Shape& shape = node.in[0].shape;
  const int64_t k = shape.size(transposed ? 1 : 0), n = shape.size(transposed ? 0 : 1);
  return make_kernel([=](const KernelArgs& args) {
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    auto* panels = static_cast<float*>(args.out[0]);
    parallel_for(ceil_div(n, kPanelColumns), 4, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel)
        put_f32_panel(x, k, n, transposed, panel * kPanelColumns,
                      panels + panel * kPanelColumns * k);
    });
  });
}

std::unique_ptr<Kernel> panels_kernel(const NodeView& node) {
  if (node.in[0].dtype == DType::f32) return f32_panels_kernel(node);
  const bool transpose = node.out()[0].storage.layout == Layout::transposed_panels;
  PanelPlaces places{};
  places.rows = node.in[0].shape.size(0);
  places.columns = node.in[0].shape.size(1);
  places.past_caches = node.out()[0].bytes() >= kNearPanels;
  return make_kernel([=](const KernelArgs& args) {
    PanelPlaces to = places;
    (transpose ? to.transposed : to.panels) = static_cast<uint16_t*>(args.out[0]);
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    const int64_t strips = ceil_div(to.columns, kStrip);
    parallel_for(ceil_div(to.rows, kPanelTerms) * strips, 4, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        put_part(x, to, part / strips * kPanelTerms, part % strips * kStrip);
    });
  });
}

}  // namespace

std::vector<KernelEntry> store_kernels() {
  const auto accepts = [](const NodeView& node) -> std::string {
    const Storage& storage = node.out()[0].storage;
    return !node.in[0].storage.is_plain() || storage.layout == Layout::rows ||
                   storage.is_blocks() || !is_float(node.out()[0].dtype) || storage.is_quantized()
               ? "no panels of floats"
               : "";
  };
  return {{Op::store, "panels", accepts, panels_kernel, kKnowsStorage, kAllOperands}};
}

}  // namespace brrr::cpu
