// store: a matrix as quantised integers in panels (base/integer_panels.h). The matrix may be
// unaligned, as it lies in a file.

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/quantized/integer_rounding.h"
#include "backend/cpu/quantized/pack_integers.h"
#include "backend/cpu/quantized/read_panels.h"
#include "backend/cpu/quantized/store_blocks.h"
#include "backend/cpu/quantized/store_int8_rows.h"
#include "base/integer_panels.h"
#include "base/storage.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTerms = 128;  // terms that are read at a time

/// Reads the matrix [k, n], or its transpose [n, k], that is stored in panels.
struct Source {
  DType dtype;
  bool transposed;
  int64_t k, n;

  /// Columns [column, column + 32) of terms [k0, k0 + count), as floats [32, kTerms].
  void read(const std::byte* x, int64_t column, int64_t k0, int64_t count, float* to) const {
    const int64_t columns = std::min(kPanelColumns, n - column);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < count; ++i)
        to[j * kTerms + i] =
            element(x, transposed ? (column + j) * k + k0 + i : (k0 + i) * n + column + j);
  }

 private:
  float element(const std::byte* x, int64_t i) const {
    if (dtype == DType::f32) {
      float value;
      std::memcpy(&value, x + i * 4, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, x + i * 2, sizeof(bits));
    return dtype == DType::bf16 ? float_from_bf16(bits) : float_from_f16(bits);
  }
};

/// Quantises one panel at a time: first the scales of a group of terms, then its integers.
class PanelWriter {
 public:
  PanelWriter(const Source& source, const IntegerPanels& form) : source_(source), form_(form) {}

  void write(const std::byte* x, int64_t panel, std::byte* to) const {
    auto* integers = reinterpret_cast<uint8_t*>(to) + panel * form_.panel_bytes();
    auto* scales = reinterpret_cast<float*>(to + form_.integer_bytes()) +
                   panel * form_.groups() * kPanelColumns;
    const int64_t column = panel * kPanelColumns;
    const int64_t columns = std::min(kPanelColumns, form_.n - column);
    std::memset(integers, form_.bits == 8 ? 0x80 : 0x88, static_cast<size_t>(form_.panel_bytes()));
    const int64_t group = form_.terms_of_group();
    alignas(64) float values[kPanelColumns * kTerms];
    for (int64_t g = 0; g < form_.groups(); ++g) {
      const int64_t first = g * group, end = std::min(form_.k, first + group);
      float top[kPanelColumns] = {};
      for (int64_t k = first; k < end; k += kTerms) {
        const int64_t count = std::min(kTerms, end - k);
        source_.read(x, column, k, count, values);
        for (int64_t j = 0; j < columns; ++j)
          top[j] = largest_magnitude(values + j * kTerms, count, top[j]);
      }
      float* of_group = scales + g * kPanelColumns;
      for (int64_t j = 0; j < kPanelColumns; ++j)
        of_group[j] = top[j] / static_cast<float>(form_.most());
      for (int64_t k = first; k < end; k += kTerms) {
        const int64_t count = std::min(kTerms, end - k);
        if (end - first > kTerms) source_.read(x, column, k, count, values);
        for (int64_t j = 0; j < columns; ++j)
          put(values + j * kTerms, count, of_group[j], k, j, integers);
      }
    }
  }

 private:
  /// Writes the integers of column `j` for the terms from k0 on; k0 is a multiple of 8.
  void put(const float* x, int64_t count, float scale, int64_t k0, int64_t j,
           uint8_t* integers) const {
    const auto most = static_cast<float>(form_.most());
    uint8_t stored[kTerms];
    for (int64_t i = 0; i < count; ++i)
      stored[i] = static_cast<uint8_t>(nearest_integer(x[i], scale, most) + form_.offset());
    for (int64_t i = 0; i < count; ++i) {
      uint8_t& byte = integers[form_.place(k0 + i, j)];
      if (form_.bits == 8)
        byte = stored[i];
      else if (form_.is_high(k0 + i))
        byte = static_cast<uint8_t>((byte & 15u) | static_cast<unsigned>(stored[i]) << 4);
      else
        byte = static_cast<uint8_t>((byte & 240u) | stored[i]);
    }
  }

  const Source& source_;
  const IntegerPanels& form_;
};

std::unique_ptr<Kernel> integer_panels_kernel(const NodeView& node) {
  const Type& y = node.out()[0];
  const bool transposed = y.storage.layout == Layout::transposed_panels;
  const int64_t k = y.shape.size(transposed ? 1 : 0), n = y.shape.size(transposed ? 0 : 1);
  const Source source{y.dtype, transposed, k, n};
  const IntegerPanels form{k, n, y.storage.quantized.bits, y.storage.quantized.group};
  return make_kernel([=](const KernelArgs& args) {
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    auto* to = static_cast<std::byte*>(args.out[0]);
    const PanelWriter writer(source, form);
    parallel_for(form.panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) writer.write(x, panel, to);
    });
  });
}

}  // namespace

std::vector<KernelEntry> store_integer_kernels() {
  const auto accepts = [](const NodeView& node) -> std::string {
    const Type& y = node.out()[0];
    if (node.in.size() != 1) return "the integers are given";
    if (!node.in[0].storage.is_plain()) return "x does not lie in rows";
    if (!y.storage.is_quantized() || y.storage.layout == Layout::rows)
      return "no integers in panels";
    if (y.dtype != DType::f32 && y.dtype != DType::bf16 && y.dtype != DType::f16)
      return fmt::format("a matrix of {}: only f32, bf16 and f16", name_of(y.dtype));
    return "";
  };
  std::vector<KernelEntry> list{
      {Op::store, "integer_panels", accepts, integer_panels_kernel, kKnowsStorage, kAllOperands},
      given_integers_kernel()};
  for (auto* more : {int8_rows_kernels, block_store_kernels, read_panel_kernels})
    for (KernelEntry& entry : more()) list.push_back(std::move(entry));
  return list;
}

}  // namespace brrr::cpu
