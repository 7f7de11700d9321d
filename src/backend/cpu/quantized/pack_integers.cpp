#include "backend/cpu/quantized/pack_integers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernel_list.h"
#include "base/integer_panels.h"
#include "base/storage.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// Packs a matrix [k, n], or its transpose [n, k], with scales and zeros [groups, n] or [n,
/// groups].
class GivenIntegers {
 public:
  GivenIntegers(const NodeView& node)
      : transposed_(node.out()[0].storage.layout == Layout::transposed_panels),
        form_{node.out()[0].shape.size(transposed_ ? 1 : 0),
              node.out()[0].shape.size(transposed_ ? 0 : 1),
              bits_of(node.out()[0].storage.quantized), node.out()[0].storage.quantized.group},
        is_signed_(node.in[0].dtype == DType::i8),
        zero_is_signed_(node.in.size() > 2 && node.in[2].dtype == DType::i8),
        has_zeros_(node.in.size() > 2),
        has_scales_(node.in.size() > 1),
        scale_dtype_(has_scales_ ? node.in[1].dtype : DType::f32) {}

  void run(const KernelArgs& args) const {
    parallel_for(form_.panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) write(args, panel);
    });
  }

 private:
  /// Panels of i8 have no scales.
  static int64_t bits_of(const Quantized& q) { return q.bits == 0 ? 8 : q.bits; }

  static constexpr int64_t kTerms = 128;  // terms that are packed at a time, a multiple of 8
  using Block = uint8_t[kTerms][kPanelColumns];

  void write(const KernelArgs& args, int64_t panel) const {
    auto* to = static_cast<uint8_t*>(args.out[0]);
    if (has_scales_)
      write_scales(args, panel,
                   reinterpret_cast<float*>(to + form_.integer_bytes()) +
                       panel * form_.groups() * kPanelColumns);
    uint8_t* words = to + panel * form_.panel_bytes();
    Block stored;
    for (int64_t k = 0; k < form_.k; k += kTerms) {
      const int64_t count = std::min(kTerms, form_.k - k);
      std::memset(stored, form_.offset(), sizeof(stored));
      read(args, panel * kPanelColumns, k, count, stored);
      words = put(stored, count, words);
    }
  }

  void write_scales(const KernelArgs& args, int64_t panel, float* scales) const {
    const int64_t columns = std::min(kPanelColumns, form_.n - panel * kPanelColumns);
    for (int64_t g = 0; g < form_.groups(); ++g)
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        float& scale = scales[g * kPanelColumns + j];
        scale = 0;
        if (j >= columns) continue;
        const auto x = static_cast<float>(
            load_as_double(scale_dtype_, args.in[1], group_at(g, panel * kPanelColumns + j)));
        scale = std::isfinite(x) ? x : std::numeric_limits<float>::quiet_NaN();
      }
  }

  /// The place of a column's group among the scales or zeros.
  int64_t group_at(int64_t group, int64_t column) const {
    return transposed_ ? column * form_.groups() + group : group * form_.n + column;
  }

  /// Reads `count` terms of the columns of a panel, with the offset of the storage.
  void read(const KernelArgs& args, int64_t column, int64_t k0, int64_t count,
            Block& stored) const {
    const auto* x = static_cast<const uint8_t*>(args.in[0]);
    const int64_t columns = std::min(kPanelColumns, form_.n - column);
    int shift[kPanelColumns] = {};
    int64_t group = -1;
    const auto enter_group_of = [&](int64_t k) {
      if (k / form_.terms_of_group() == group) return;
      group = k / form_.terms_of_group();
      for (int64_t j = 0; j < columns; ++j)
        shift[j] = form_.offset() - zero_at(args, group_at(group, column + j));
    };
    for (int64_t i = 0; i < count; ++i) {
      enter_group_of(k0 + i);
      for (int64_t j = 0; j < columns; ++j) {
        const uint8_t byte =
            x[transposed_ ? (column + j) * form_.k + k0 + i : (k0 + i) * form_.n + column + j];
        const int integer = is_signed_ ? static_cast<int8_t>(byte) : byte;
        stored[i][j] =
            static_cast<uint8_t>(std::clamp(integer + shift[j], 0, 2 * form_.offset() - 1));
      }
    }
  }

  int zero_at(const KernelArgs& args, int64_t i) const {
    if (!has_zeros_) return 0;
    const uint8_t byte = static_cast<const uint8_t*>(args.in[2])[i];
    return zero_is_signed_ ? static_cast<int8_t>(byte) : byte;
  }

  /// Writes the words of `count` terms; returns where the next ones go.
  uint8_t* put(const Block& stored, int64_t count, uint8_t* words) const {
    for (int64_t i = 0; i < count; i += form_.terms_of_word(), words += 4 * kPanelColumns)
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t j = 0; j < kPanelColumns; ++j)
          words[4 * j + t] =
              form_.bits == 8 ? stored[i + t][j]
                              : static_cast<uint8_t>(stored[i + t][j] | stored[i + 4 + t][j] << 4);
    return words;
  }

  bool transposed_;
  IntegerPanels form_;
  bool is_signed_, zero_is_signed_, has_zeros_, has_scales_;
  DType scale_dtype_;
};

}  // namespace

KernelEntry given_integers_kernel() {
  const auto accepts = [](const NodeView& node) -> std::string {
    return node.in[0].dtype == DType::i8 || node.in.size() > 1 ? "" : "no integers are given";
  };
  const auto prepare = [](const NodeView& node) -> std::unique_ptr<Kernel> {
    return make_kernel([pack = GivenIntegers(node)](const KernelArgs& args) { pack.run(args); });
  };
  return {Op::store, "given_integers", accepts, prepare, kKnowsStorage, kAllOperands};
}

}  // namespace brrr::cpu
