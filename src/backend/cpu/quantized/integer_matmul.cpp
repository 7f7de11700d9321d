#include "backend/cpu/quantized/integer_matmul.h"

#include <algorithm>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/products/product.h"
#include "backend/cpu/quantized/exact_matmul.h"
#include "backend/cpu/quantized/integer_kernels.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/ops.h"
#include "ops/quantized/quantized_rows.h"

namespace brrr::cpu {
namespace {

bool is_operand(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

using StripFunction = void (*)(const IntegerStrip&, const IntegerPanels&);

/// Addresses the integers and scales of a matrix in memory.
struct PanelsAt {
  const IntegerPanels& form;
  const uint8_t* integers;
  const float* scales;

  PanelsAt(const IntegerPanels& f, const void* b)
      : form(f),
        integers(static_cast<const uint8_t*>(b)),
        scales(reinterpret_cast<const float*>(integers + f.integer_bytes())) {}
  const uint8_t* panel(int64_t p) const { return integers + p * form.panel_bytes(); }
  const float* panel_scales(int64_t p) const { return scales + p * form.groups() * kPanelColumns; }
};

/// Returns the number of columns of panel `p`; the last one may have fewer than 32.
int64_t columns_of(const IntegerPanels& form, int64_t p) {
  return std::min(kPanelColumns, form.n - p * kPanelColumns);
}

/// Dequantises weights. Up to kGemmFewRows rows dequantise in registers; more rows multiply blocks
/// that are unpacked to f32. A row has the same bits either way, for one instruction set.
class UnpackingMatmul final : public Kernel {
 public:
  explicit UnpackingMatmul(const NodeView& view)
      : form_(integer_panels_of(view)), args_(unpacking_gemm(view, form_)) {}

  int64_t scratch_bytes() const override {
    return args_.m > kGemmFewRows ? 0 : args_.m * form_.k * int64_t{sizeof(float)};
  }

  void run(const KernelArgs& args) override {
    GemmArgs g = args_;
    if (g.m == 0 || g.n == 0) return;
    g.a = args.in[0];
    g.b = args.in[1];
    g.c = args.out[0];
    g.integers = &form_;
    if (g.m > kGemmFewRows || form_.k == 0) return gemm(g, GemmPath::kVector);
    auto* rows = reinterpret_cast<float*>(args.scratch);
    static_assert(kGemmFewRows <= 4, "no register tile has fewer rows");
    gemm_packing().pack_a(g.dtype, g.a, g.lda, false, form_.k, g.m, 0, form_.k, rows);
    const PanelsAt b(form_, g.b);
    const int64_t k_step = gemm_terms_of_block(form_.k);
    const int64_t panels_of_task =
        streamed_columns(form_.panels(), 1, form_.panel_bytes(), thread_count());
    parallel_chunks(ceil_div(form_.panels(), panels_of_task), [&](int64_t task) {
      alignas(64) float block[kGemmFewRows * kPanelColumns];
      const int64_t end = std::min(form_.panels(), (task + 1) * panels_of_task);
      for (int64_t p = task * panels_of_task; p < end; ++p) {
        integer_kernels().few_rows(rows, g.m, b.panel(p), b.panel_scales(p), form_, k_step, block);
        finish_block(g, 0, 0, p * kPanelColumns, g.m, columns_of(form_, p), block, kPanelColumns);
      }
    });
  }

 private:
  IntegerPanels form_;
  GemmArgs args_;
};

/// Quantises the rows of the left operand and multiplies integers.
class IntegerMatmul final : public Kernel {
 public:
  IntegerMatmul(const NodeView& view, StripFunction strip)
      : form_(integer_panels_of(view)), args_(unpacking_gemm(view, form_)), strip_(strip) {}

  int64_t scratch_bytes() const override {
    return args_.m * (values_ld() + int64_t{4} * (1 + form_.groups())) + 64;
  }

  void run(const KernelArgs& args) override {
    GemmArgs g = args_;
    if (g.m == 0 || g.n == 0) return;
    g.a = args.in[0];
    g.c = args.out[0];
    const QuantizedRows rows = rows_in(args.scratch);
    const auto row_bytes = g.lda * static_cast<int64_t>(bytes_of(g.dtype));
    parallel_for(g.m, 8, [&](int64_t begin, int64_t end) {
      integer_kernels().quantize_rows(g.dtype,
                                      static_cast<const std::byte*>(g.a) + begin * row_bytes, g.lda,
                                      end - begin, form_, part(rows, begin));
    });
    const PanelsAt b(form_, args.in[1]);
    // A task reads its panels once for each strip: they stay in the L2 cache.
    const int64_t row_count = std::min(g.m, kTaskRows);
    const int64_t row_tasks = ceil_div(g.m, row_count);
    const int64_t panel_count =
        row_tasks > 1 || g.m > kStripRows
            ? std::max<int64_t>(1, form_.panels() * row_tasks / kMostTasks)
            : streamed_columns(form_.panels(), 1, form_.panel_bytes(), thread_count());
    const int64_t panel_tasks = ceil_div(form_.panels(), panel_count);
    parallel_pieces(row_tasks * panel_tasks, thread_count(), [&](int64_t task, int) {
      const int64_t row = task % row_tasks * row_count, first = task / row_tasks * panel_count;
      const int64_t last = std::min(form_.panels(), first + panel_count);
      for (int64_t p = first; p < last; ++p)
        multiply(g, rows, row, std::min(g.m, row + row_count), b, p);
    });
  }

 private:
  static constexpr int64_t kTaskRows = 16 * kStripRows, kMostTasks = 256;

  int64_t values_ld() const { return round_up(std::max<int64_t>(form_.k, 1), 64); }
  QuantizedRows rows_in(std::byte* scratch) const {
    auto* scales = reinterpret_cast<float*>(scratch + args_.m * values_ld());
    return {reinterpret_cast<int8_t*>(scratch), values_ld(), scales,
            reinterpret_cast<int32_t*>(scales + args_.m)};
  }
  QuantizedRows part(const QuantizedRows& rows, int64_t first) const {
    return {rows.values + first * rows.ld, rows.ld, rows.scales + first,
            rows.starts + first * form_.groups()};
  }

  /// Computes rows [row, end) of the columns of panel `p`.
  void multiply(const GemmArgs& g, const QuantizedRows& rows, int64_t row, int64_t end,
                const PanelsAt& b, int64_t p) const {
    const int64_t columns = columns_of(form_, p);
    const bool in_place = g.c_dtype == DType::f32 && columns == kPanelColumns;
    alignas(64) float block[kStripRows * kPanelColumns];
    for (; row < end; row += kStripRows) {
      const QuantizedRows from = part(rows, row);
      IntegerStrip s;
      s.values = from.values;
      s.ld = from.ld;
      s.rows = std::min(kStripRows, end - row);
      s.row_scales = from.scales;
      s.row_starts = from.starts;
      s.panel = b.panel(p);
      s.scales = b.panel_scales(p);
      s.out = in_place ? static_cast<float*>(g.c) + row * g.ldc + p * kPanelColumns : block;
      s.out_ld = in_place ? g.ldc : kPanelColumns;
      strip_(s, form_);
      if (!in_place)
        finish_block(g, 0, row, p * kPanelColumns, s.rows, columns, block, kPanelColumns);
    }
  }

  IntegerPanels form_;
  GemmArgs args_;
  StripFunction strip_;
};

std::string vnni_refusal() {
  if (!has_vnni()) return "this machine has no avx512_vnni";
  if (current_isa() < Isa::kAvx512) return fmt::format("limited to {}", isa_name(current_isa()));
  return "";
}

std::string quantizing_refusal(const NodeView& view) {
  if (std::string refusal = integer_matmul_refusal(view); !refusal.empty()) return refusal;
  if (!quantizes_left(view)) return "the left operand stays as it is";
  return integer_panels_of(view).terms_of_group() > ops::kMostQuantizedTerms
             ? "more terms than sums of 32 bits hold"
             : "";
}

}  // namespace

IntegerPanels integer_panels_of(const NodeView& product) {
  const Type& b = product.in[1];
  const bool transposed = b.storage.layout == Layout::transposed_panels;
  return {b.shape.size(transposed ? 1 : 0), b.shape.size(transposed ? 0 : 1),
          b.storage.quantized.bits, b.storage.quantized.group};
}

bool quantizes_left(const NodeView& product) {
  return product.attrs().get_or<int64_t>("left_bits", 0) == 8;
}

std::string integer_matmul_refusal(const NodeView& product) {
  if (product.in.size() < 2 || !product.in[1].storage.is_quantized() ||
      product.in[1].storage.layout == Layout::rows)
    return "a right operand that is no integers in panels";
  if (!is_operand(product.in[0].dtype) || !is_operand(product.out()[0].dtype))
    return fmt::format("dtypes {} and {}: only f32, bf16 and f16", name_of(product.in[0].dtype),
                       name_of(product.out()[0].dtype));
  const std::optional<ProductForm> form = product_form(product.node());
  if (!form || form->has_bias || form->transpose_a) return "a bias or a transposed left operand";
  if (product.in[1].storage.layout != right_layout(form->transpose_b))
    return fmt::format("a right operand in {}", product.in[1].storage.str());
  return as_product(product).batch == 1 ? "" : "a batch of right operands";
}

GemmArgs unpacking_gemm(const NodeView& product, const IntegerPanels& form) {
  const Product p = as_product(product);
  return {.m = p.m,
          .n = form.n,
          .k = form.k,
          .dtype = product.in[0].dtype,
          .lda = form.k,
          .ldb = form.n,
          .panels = true,
          .integers = &form,
          .c_dtype = product.out()[0].dtype,
          .ldc = form.n};
}

std::vector<KernelEntry> integer_matmul_kernels() {
  const auto integers = [](StripFunction strip) {
    return [strip](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<IntegerMatmul>(view, strip);
    };
  };
  const auto vnni = [](const NodeView& view) {
    std::string refusal = quantizing_refusal(view);
    return refusal.empty() ? vnni_refusal() : refusal;
  };
  const auto floats = [](const NodeView& view) -> std::string {
    if (std::string refusal = integer_matmul_refusal(view); !refusal.empty()) return refusal;
    return quantizes_left(view) ? "the left operand is quantised" : "";
  };
  const auto portable = [](const IntegerStrip& s, const IntegerPanels& form) {
    integer_kernels().strip(s, form);
  };
  std::vector<KernelEntry> list = {
      {Op::matmul, "integers_vnni", vnni, integers(&vnni_strip), kKnowsStorage},
      {Op::matmul, "integers", quantizing_refusal, integers(portable), kKnowsStorage},
      {Op::matmul, "unpacked_integers", floats,
       [](const NodeView& view) -> std::unique_ptr<Kernel> {
         return std::make_unique<UnpackingMatmul>(view);
       },
       kKnowsStorage}};
  std::ranges::move(exact_matmul_kernels(), std::back_inserter(list));
  return list;
}

}  // namespace brrr::cpu
