#include "backend/cpu/quantized/exact_matmul.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/product.h"
#include "backend/cpu/quantized/integer_kernels.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/ops.h"

namespace brrr::cpu {
namespace {

using ExactStrip = void (*)(const IntegerStrip&, const IntegerPanels&);

/// The most rows for which strips are faster than AMX tiles, and without VNNI than tiles of 16-bit
/// pairs, although these pack the right operand anew in each product.
constexpr int64_t kRowsBeforeAmx = 32, kRowsWithoutVnni = 8;

/// Copies the rows of the left operand, with zeros behind their terms, and multiplies strips.
class ExactMatmul final : public Kernel {
 public:
  ExactMatmul(const NodeView& view, ExactStrip strip) : strip_(strip) {
    const Product p = as_product(view);
    rows_ = p.m;
    form_ = {p.k, p.n, 8, 0};
  }

  int64_t scratch_bytes() const override {
    return rows_ * (values_ld() + int64_t{sizeof(int32_t)}) + 64;
  }

  void run(const KernelArgs& args) override {
    if (rows_ == 0 || form_.n == 0) return;
    auto* values = reinterpret_cast<int8_t*>(args.scratch);
    auto* sums = reinterpret_cast<int32_t*>(values + rows_ * values_ld());
    const auto* x = static_cast<const int8_t*>(args.in[0]);
    parallel_for(rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        sums[i] = copy_row(x + i * form_.k, values + i * values_ld());
    });
    // A task reads its panels once for each strip: they stay in the L2 cache.
    const int64_t row_count = std::min(rows_, kTaskRows);
    const int64_t row_tasks = ceil_div(rows_, row_count);
    const int64_t panel_count = std::max<int64_t>(1, form_.panels() * row_tasks / kMostTasks);
    const int64_t panel_tasks = ceil_div(form_.panels(), panel_count);
    parallel_pieces(row_tasks * panel_tasks, thread_count(), [&](int64_t task, int) {
      const int64_t row = task % row_tasks * row_count, first = task / row_tasks * panel_count;
      const int64_t last = std::min(form_.panels(), first + panel_count);
      for (int64_t p = first; p < last; ++p)
        multiply(args, {values, sums}, row, std::min(rows_, row + row_count), p);
    });
  }

 private:
  static constexpr int64_t kTaskRows = 16 * kStripRows, kMostTasks = 256;
  struct Rows {
    const int8_t* values;
    const int32_t* sums;
  };

  int64_t values_ld() const { return round_up(std::max<int64_t>(form_.k, 1), 64); }

  /// Copies a row; returns the sum of its integers.
  int32_t copy_row(const int8_t* from, int8_t* to) const {
    int32_t sum = 0;
    for (int64_t k = 0; k < form_.k; ++k) sum += to[k] = from[k];
    std::memset(to + form_.k, 0, static_cast<size_t>(values_ld() - form_.k));
    return sum;
  }

  /// Computes rows [row, end) of the columns of panel `p`.
  void multiply(const KernelArgs& args, const Rows& rows, int64_t row, int64_t end,
                int64_t p) const {
    const int64_t columns = std::min(kPanelColumns, form_.n - p * kPanelColumns);
    alignas(64) int32_t block[kStripRows * kPanelColumns];
    for (; row < end; row += kStripRows) {
      int32_t* out = static_cast<int32_t*>(args.out[0]) + row * form_.n + p * kPanelColumns;
      const bool in_place = columns == kPanelColumns;
      IntegerStrip s;
      s.values = rows.values + row * values_ld();
      s.ld = values_ld();
      s.rows = std::min(kStripRows, end - row);
      s.row_sums = rows.sums + row;
      s.panel = static_cast<const uint8_t*>(args.in[1]) + p * form_.panel_bytes();
      s.exact = in_place ? out : block;
      s.out_ld = in_place ? form_.n : kPanelColumns;
      strip_(s, form_);
      for (int64_t r = 0; r < s.rows && !in_place; ++r)
        std::copy_n(block + r * kPanelColumns, columns, out + r * form_.n);
    }
  }

  ExactStrip strip_;
  int64_t rows_ = 0;
  IntegerPanels form_;
};

/// Why these kernels do not compute the product from panels, whatever its right operand lies in.
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

std::string exact_vnni_refusal(const NodeView& view) {
  if (std::string refusal = exact_refusal(view); !refusal.empty()) return refusal;
  if (!has_vnni()) return "this machine has no avx512_vnni";
  return current_isa() < Isa::kAvx512 ? fmt::format("limited to {}", isa_name(current_isa())) : "";
}

}  // namespace

std::vector<KernelEntry> exact_matmul_kernels() {
  const auto prepare = [](ExactStrip strip) {
    return [strip](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<ExactMatmul>(view, strip);
    };
  };
  const auto portable = [](const IntegerStrip& s, const IntegerPanels& form) {
    integer_kernels().exact_strip(s, form);
  };
  return {{Op::matmul, "exact_integers_vnni", exact_vnni_refusal, prepare(&vnni_exact_strip),
           kKnowsStorage},
          {Op::matmul, "exact_integers", exact_refusal, prepare(portable), kKnowsStorage}};
}

bool reads_exact_panels(const NodeView& product) {
  if (!product_refusal(product).empty()) return false;
  const int64_t rows = as_product(product).m;
  if (current_isa() >= Isa::kAmx) return rows <= kRowsBeforeAmx;
  if (current_isa() >= Isa::kAvx512 && has_vnni()) return true;
  return current_isa() >= Isa::kSse4 && rows <= kRowsWithoutVnni;
}

}  // namespace brrr::cpu
