#include "backend/cpu/quantized/integer_matmul.h"

#include <algorithm>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/products/product.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/ops.h"
#include "ops/quantized/quantized_rows.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace brrr::cpu {
namespace {

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

/// Completes stores of an epilogue that go around the caches.
void fence_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

class IntegerMatmul final : public Kernel {
 public:
  explicit IntegerMatmul(IntegerProduct product) : product_(product) {}
  int64_t scratch_bytes() const override { return product_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    product_.run(args.in.data(), args.out[0], args.scratch);
  }

 private:
  IntegerProduct product_;
};

/// Returns rows from `first` on.
QuantizedRows rows_from(const QuantizedRows& rows, int64_t first, const IntegerPanels& form) {
  return {rows.values + first * rows.ld, rows.ld, rows.scales + first,
          rows.starts + first * form.groups()};
}

std::string quantizing_refusal(const NodeView& view) {
  if (std::string refusal = integer_matmul_refusal(view); !refusal.empty()) return refusal;
  if (!quantizes_left(view)) return "the left operand stays as it is";
  return integer_panels_of(view).terms_of_group() > ops::kMostQuantizedTerms
             ? "more terms than sums of 32 bits hold"
             : "";
}

}  // namespace

IntegerProduct::IntegerProduct(const NodeView& product)
    : IntegerProduct(product, quantizes_left(product)
                                  ? best_strips(integer_panels_of(product), as_product(product).m)
                                  : StripKernel()) {}

IntegerProduct::IntegerProduct(const NodeView& product, const StripKernel& strips)
    : form_(integer_panels_of(product)), args_(unpacking_gemm(product, form_)), strips_(strips) {}

int64_t IntegerProduct::value_bytes() const { return strip_value_bytes(args_.m, form_); }

int64_t IntegerProduct::scratch_bytes() const {
  if (strips_.run != nullptr)
    return value_bytes() + args_.m * int64_t{4} * (1 + form_.groups()) + 64;
  return args_.m > kGemmFewRows ? 0 : args_.m * form_.k * int64_t{sizeof(float)};
}

void IntegerProduct::run(const void* const* in, void* c, std::byte* scratch,
                         const GemmEpilogue& epilogue) const {
  GemmArgs g = args_;
  if (g.m == 0 || g.n == 0) return;
  g.a = in[0];
  g.b = in[1];
  g.c = c;
  g.integers = &form_;
  g.epilogue = epilogue;
  if (strips_.run != nullptr)
    multiply_integers(g, scratch);
  else
    dequantize(g, scratch);
}

/// Up to kGemmFewRows rows dequantise in registers; more rows multiply blocks that are unpacked to
/// f32. A row has the same bits either way, for one instruction set.
void IntegerProduct::dequantize(GemmArgs g, std::byte* scratch) const {
  if (g.m > kGemmFewRows || form_.k == 0) return gemm(g, GemmPath::kVector);
  auto* rows = reinterpret_cast<float*>(scratch);
  static_assert(kGemmFewRows <= 4, "no register tile has fewer rows");
  gemm_packing().pack_a(g.dtype, g.a, g.lda, false, form_.k, g.m, 0, form_.k, rows);
  const PanelsAt b(form_, g.b);
  const int64_t k_step = gemm_terms_of_block(form_.k);
  for_each_block(g.m, form_, kGemmFewRows, [&](const IntegerBlock& block) {
    alignas(64) float values[kGemmFewRows * kPanelColumns];
    for (int64_t p = block.panel; p < block.panel + block.panels; ++p) {
      integer_kernels().few_rows(rows, g.m, b.panel(p), b.panel_scales(p), form_, k_step, values);
      finish_block(g, 0, 0, p * kPanelColumns, g.m, columns_of(form_, p), values, kPanelColumns);
    }
    if (g.epilogue.run != nullptr) fence_stores();
  });
}

QuantizedRows IntegerProduct::rows_in(std::byte* scratch) const {
  auto* scales = reinterpret_cast<float*>(scratch + value_bytes());
  return {reinterpret_cast<int8_t*>(scratch), strip_row_bytes(form_), scales,
          reinterpret_cast<int32_t*>(scales + args_.m)};
}

void IntegerProduct::multiply_integers(const GemmArgs& g, std::byte* scratch) const {
  const QuantizedRows rows = rows_in(scratch);
  const auto row_bytes = g.lda * static_cast<int64_t>(bytes_of(g.dtype));
  parallel_for(g.m, 8, [&](int64_t begin, int64_t end) {
    integer_kernels().quantize_rows(g.dtype, static_cast<const std::byte*>(g.a) + begin * row_bytes,
                                    g.lda, end - begin, form_, rows_from(rows, begin, form_));
  });
  for_each_block(g.m, form_, strips_.rows, [&](const IntegerBlock& block) {
    multiply_block(g, rows, block);
    if (g.epilogue.run != nullptr) fence_stores();
  });
}

void IntegerProduct::multiply_block(const GemmArgs& g, const QuantizedRows& rows,
                                    const IntegerBlock& block) const {
  const PanelsAt b(form_, g.b);
  const int64_t column = block.panel * kPanelColumns;
  const int64_t columns = std::min(block.panels * kPanelColumns, form_.n - column);
  const bool in_place = !needs_finish(g) && columns == block.panels * kPanelColumns;
  alignas(64) float values[kMostStripRows * kBlockColumns];
  const QuantizedRows from = rows_from(rows, block.row, form_);
  IntegerStrip s;
  s.values = from.values;
  s.ld = from.ld;
  s.rows = block.rows;
  s.row_scales = from.scales;
  s.row_starts = from.starts;
  s.out = in_place ? static_cast<float*>(g.c) + block.row * g.ldc + column : values;
  s.out_ld = in_place ? g.ldc : kBlockColumns;
  for (int64_t p = block.panel; p < block.panel + block.panels; ++p, s.out += kPanelColumns) {
    s.panel = b.panel(p);
    s.scales = b.panel_scales(p);
    strips_.run(s, form_);
  }
  if (!in_place) finish_block(g, 0, block.row, column, block.rows, columns, values, kBlockColumns);
}

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
    return "a right operand that is not integers in panels";
  if (!is_compute_float(product.in[0].dtype) || !is_compute_float(product.out()[0].dtype))
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
  std::vector<KernelEntry> list;
  for (const StripEntry& entry : strip_entries()) {
    const auto refusal = [entry](const NodeView& view) {
      std::string why = quantizing_refusal(view);
      return why.empty() ? entry.refusal(integer_panels_of(view), as_product(view).m) : why;
    };
    const auto prepare = [entry](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<IntegerMatmul>(IntegerProduct(view, entry.strips()));
    };
    list.push_back({Op::matmul, entry.kernel, refusal, prepare, kKnowsStorage});
  }
  const auto dequantizing_refusal = [](const NodeView& view) -> std::string {
    if (std::string why = integer_matmul_refusal(view); !why.empty()) return why;
    return quantizes_left(view) ? "the left operand is quantised" : "";
  };
  list.push_back({Op::matmul, "unpacked_integers", dequantizing_refusal,
                  [](const NodeView& view) -> std::unique_ptr<Kernel> {
                    return std::make_unique<IntegerMatmul>(IntegerProduct(view, StripKernel()));
                  },
                  kKnowsStorage});
  return list;
}

}  // namespace brrr::cpu
