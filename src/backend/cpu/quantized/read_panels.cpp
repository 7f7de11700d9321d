#include "backend/cpu/quantized/read_panels.h"

#include <algorithm>
#include <cstdint>

#include "backend/cpu/attention/attention_rows.h"
#include "base/integer_panels.h"
#include "base/storage.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTermsAtOnce = 128;  // terms of a panel that are converted at a time

/// The floats that the integers of one panel stand for.
class PanelReader {
 public:
  PanelReader(const IntegerPanels& form, const std::byte* from)
      : form_(form),
        integers_(reinterpret_cast<const uint8_t*>(from)),
        scales_(reinterpret_cast<const float*>(from + form.integer_bytes())) {}

  /// Terms [k0, k0 + count) of a panel as [count, 32], or transposed as [32, kTermsAtOnce]; k0 is a
  /// multiple of kTermsAtOnce.
  template <bool kTransposed>
  void read(int64_t panel, int64_t k0, int64_t count, float* to) const {
    for (int64_t k = k0; k < k0 + count; ++k) {
      const uint8_t* const bytes = integers_ + form_.place(k, panel * kPanelColumns);
      const float* const scales = scales_ + form_.scale_place(k, panel * kPanelColumns);
      const int shift = form_.is_high(k) ? 4 : 0, mask = form_.bits == 8 ? 255 : 15;
      const int offset = form_.offset();
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        const int integer = ((bytes[4 * j] >> shift) & mask) - offset;
        to[kTransposed ? j * kTermsAtOnce + (k - k0) : (k - k0) * kPanelColumns + j] =
            static_cast<float>(integer) * scales[j];
      }
    }
  }

 private:
  const IntegerPanels& form_;
  const uint8_t* integers_;
  const float* scales_;
};

std::unique_ptr<Kernel> floats_of_panels(const NodeView& node) {
  const Type &x = node.in[0], &y = node.out()[0];
  const bool transposed = x.storage.layout == Layout::transposed_panels;
  const int64_t k = y.shape.size(transposed ? 1 : 0), n = y.shape.size(transposed ? 0 : 1);
  const IntegerPanels form{k, n, x.storage.quantized.bits, x.storage.quantized.group};
  const auto bytes = static_cast<int64_t>(bytes_of(y.dtype));
  const RowCopies& copies = row_copies(y.dtype);
  return make_kernel([=, &copies](const KernelArgs& args) {
    const PanelReader reader(form, static_cast<const std::byte*>(args.in[0]));
    auto* const to = static_cast<std::byte*>(args.out[0]);
    parallel_for(form.panels(), 1, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kPanelColumns * kTermsAtOnce];
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t column = panel * kPanelColumns;
        const int64_t columns = std::min(kPanelColumns, n - column);
        for (int64_t k0 = 0; k0 < k; k0 += kTermsAtOnce) {
          const int64_t count = std::min(kTermsAtOnce, k - k0);
          if (transposed) {
            reader.read<true>(panel, k0, count, values);
            copies.narrow(values, kTermsAtOnce, count, columns, to + (column * k + k0) * bytes, k);
          } else {
            reader.read<false>(panel, k0, count, values);
            copies.narrow(values, kPanelColumns, columns, count, to + (k0 * n + column) * bytes, n);
          }
        }
      }
    });
  });
}

}  // namespace

std::vector<KernelEntry> read_panel_kernels() {
  const auto accepts = [](const NodeView& node) -> std::string {
    const Type &x = node.in[0], &y = node.out()[0];
    if (node.in.size() != 1 || !y.storage.is_plain()) return "y does not lie in rows";
    if (!x.storage.is_quantized() || x.storage.layout == Layout::rows)
      return "no integers in panels";
    if (y.dtype != DType::f32 && y.dtype != DType::bf16 && y.dtype != DType::f16)
      return fmt::format("rows of {}: only f32, bf16 and f16", name_of(y.dtype));
    return "";
  };
  return {{Op::store, "floats_of_panels", accepts, floats_of_panels, kKnowsStorage}};
}

}  // namespace brrr::cpu
