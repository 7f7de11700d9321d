#include "backend/cpu/quantized/exact_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/product.h"
#include "backend/cpu/quantized/integer_strips.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/ops.h"

namespace brrr::cpu {
namespace {

/// The most rows for which strips without VNNI are faster than tiles of 16-bit pairs, although
/// these pack the right operand anew in each product.
constexpr int64_t kRowsWithoutVnni = 8;

/// Copies the rows of the left operand, with zeros after their terms, and multiplies strips.
class ExactMatmul final : public Kernel {
 public:
  ExactMatmul(const NodeView& view, const StripKernel& strips) : strips_(strips) {
    const Product p = as_product(view);
    rows_ = p.m;
    form_ = {p.k, p.n, 8, 0};
  }

  int64_t scratch_bytes() const override {
    return value_bytes() + rows_ * int64_t{sizeof(int32_t)} + 64;
  }

  void run(const KernelArgs& args) override {
    auto* values = reinterpret_cast<int8_t*>(args.scratch);
    auto* starts = reinterpret_cast<int32_t*>(values + value_bytes());
    const auto* x = static_cast<const int8_t*>(args.in[0]);
    parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        starts[i] = -form_.offset() * copy_row(x + i * form_.k, values + i * values_ld());
    });
    for_each_block(rows_, form_, strips_.rows, [&](const IntegerBlock& block) {
      for (int64_t p = block.panel; p < block.panel + block.panels; ++p)
        multiply(args, values, starts, block, p);
    });
  }

 private:
  int64_t values_ld() const { return strip_row_bytes(form_); }
  int64_t value_bytes() const { return strip_value_bytes(rows_, form_); }

  /// Copies a row; returns the sum of its integers.
  int32_t copy_row(const int8_t* from, int8_t* to) const {
    int32_t sum = 0;
    for (int64_t k = 0; k < form_.k; ++k) sum += to[k] = from[k];
    std::memset(to + form_.k, 0, static_cast<size_t>(values_ld() - form_.k));
    return sum;
  }

  /// Computes the block's rows of the columns of panel `p`.
  void multiply(const KernelArgs& args, const int8_t* values, const int32_t* starts,
                const IntegerBlock& block, int64_t p) const {
    const int64_t columns = std::min(kPanelColumns, form_.n - p * kPanelColumns);
    const bool in_place = columns == kPanelColumns;
    alignas(64) int32_t sums[kMostStripRows * kPanelColumns];
    int32_t* out = static_cast<int32_t*>(args.out[0]) + block.row * form_.n + p * kPanelColumns;
    IntegerStrip s;
    s.values = values + block.row * values_ld();
    s.ld = values_ld();
    s.rows = block.rows;
    s.row_starts = starts + block.row;
    s.panel = static_cast<const uint8_t*>(args.in[1]) + p * form_.panel_bytes();
    s.exact = in_place ? out : sums;
    s.out_ld = in_place ? form_.n : kPanelColumns;
    strips_.run(s, form_);
    for (int64_t r = 0; r < s.rows && !in_place; ++r)
      std::copy_n(sums + r * kPanelColumns, columns, out + r * form_.n);
  }

  StripKernel strips_;
  int64_t rows_ = 0;
  IntegerPanels form_;
};

/// Returns why these kernels cannot compute the product, whatever the layout of its right operand;
/// empty if they can.
std::string product_refusal(const NodeView& view) {
  const std::optional<ProductForm> form = product_form(view.node());
  if (!form || form->has_bias || form->transpose_a) return "a bias or a transposed left operand";
  if (view.in[0].dtype != DType::i8 || view.in[1].dtype != DType::i8) return "operands are not i8";
  return as_product(view).batch == 1 && view.in[1].shape.rank() == 2 ? ""
                                                                     : "a batch of right operands";
}

std::string exact_refusal(const NodeView& view) {
  if (std::string refusal = product_refusal(view); !refusal.empty()) return refusal;
  const Storage wanted{right_layout(product_form(view.node())->transpose_b)};
  return view.in[1].storage == wanted ? "" : "the right operand is not in panels";
}

}  // namespace

std::vector<KernelEntry> exact_matmul_kernels() {
  std::vector<KernelEntry> list;
  for (const StripEntry& entry : strip_entries()) {
    const auto refusal = [entry](const NodeView& view) {
      if (std::string why = exact_refusal(view); !why.empty()) return why;
      const Product p = as_product(view);
      return entry.refusal({p.k, p.n, 8, 0}, p.m);
    };
    const auto prepare = [entry](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<ExactMatmul>(view, entry.strips());
    };
    list.push_back({Op::matmul, entry.exact_kernel, refusal, prepare, kKnowsStorage});
  }
  return list;
}

bool reads_exact_panels(const NodeView& product) {
  if (!product_refusal(product).empty()) return false;
  if (current_isa() >= Isa::kAvx512 && has_vnni()) return true;
  return current_isa() >= Isa::kSse4 && as_product(product).m <= kRowsWithoutVnni;
}

}  // namespace brrr::cpu
