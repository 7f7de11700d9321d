#include "backend/cpu/products/gemm_node.h"

#include "backend/cpu/quantized/exact_matmul.h"
#include "base/integers.h"
#include "base/panels.h"
#include "ops/ops.h"

namespace brrr::cpu {
namespace {

/// Why gemm() does not take the right operand in panels.
std::string panels_refusal(const NodeView& view, const Product& p) {
  const std::optional<ProductForm> form = product_form(view.node());
  const DType dtype = view.in[0].dtype;
  if (!form || form->transpose_a || p.batch != 1 || (dtype != DType::bf16 && dtype != DType::f32))
    return "panels are for bf16 and f32, one product, and a left operand that is not transposed";
  if (dtype == DType::bf16 && p.k % kPanelTerms != 0) return "terms that are not whole panels";
  // So few columns would be mostly padding.
  if (dtype == DType::f32 && 4 * round_up(p.n, kPanelColumns) > 5 * p.n)
    return "columns that do not fill panels of f32";
  const Storage& b = view.in[1].storage;
  const bool lies_as_read = b.is_plain() || b == Storage{right_layout(form->transpose_b)};
  return lies_as_read ? "" : fmt::format("a right operand in {}", b.str());
}

}  // namespace

std::string gemm_node_refusal(const NodeView& view, GemmPath path) {
  if (std::string refusal = gemm_refusal(path, view.in[0].dtype); !refusal.empty()) return refusal;
  for (const std::span<const Type> types : {std::span<const Type>(view.in), view.out()})
    for (const Type& t : types)
      if (!is_compute_float(t.dtype) && view.in[0].dtype != DType::i8)
        return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t.dtype));
  const Product p = as_product(view);
  return p.panels ? panels_refusal(view, p) : "";
}

bool reads_panels(const NodeView& product) {
  if (product.in[0].dtype == DType::i8) return reads_exact_panels(product);
  return gemm_node_path(product) && panels_refusal(product, as_product(product)).empty();
}

bool multiplies_panels(const NodeView& product) {
  if (!product.node().op->loss) return reads_panels(product);
  return product.in[0].dtype == DType::bf16 && product.in[0].shape.size(-1) % kPanelTerms == 0;
}

bool gains_by_panels(const NodeView& product) {
  return multiplies_panels(product) && gemm_packs_tiles(DType::bf16);
}

std::optional<GemmPath> gemm_node_path(const NodeView& view) {
  if (view.in[0].dtype == DType::i8) return {};
  for (const GemmPath path : {GemmPath::kAmx, GemmPath::kPairs, GemmPath::kVector})
    if (gemm_node_refusal(view, path).empty()) return path;
  return {};
}

GemmNode::GemmNode(const NodeView& view, GemmPath path) : path_(path), p_(as_product(view)) {
  args_ = {.m = p_.m,
           .n = p_.n,
           .k = p_.k,
           .dtype = view.in[0].dtype,
           .lda = p_.lda(),
           .trans_a = p_.ta,
           .ldb = p_.ldb(),
           .trans_b = p_.tb,
           .panels = p_.panels,
           .c_dtype = view.out()[0].dtype,
           .ldc = p_.n};
  if (view.in.size() > 2) bias_ = view.in[2].dtype;
}

int64_t GemmNode::scratch_bytes() const {
  return bias_ && *bias_ != DType::f32 ? p_.n * int64_t{sizeof(float)} : 0;
}

void GemmNode::run(std::span<const void* const> in, void* c, std::byte* scratch,
                   GemmEpilogue epilogue, GemmTermSums sums) const {
  GemmArgs g = args_;
  g.a = in[0];
  g.b = in[1];
  g.c = c;
  g.epilogue = epilogue;
  g.sums = sums;
  if (bias_ == DType::f32) {
    g.bias = static_cast<const float*>(in[2]);
  } else if (bias_) {
    auto* wide = reinterpret_cast<float*>(scratch);
    for (int64_t j = 0; j < g.n; ++j)
      wide[j] = static_cast<float>(load_as_double(*bias_, in[2], j));
    g.bias = wide;
  }
  const auto starts = [](const std::vector<int64_t>& of) {
    return of.empty() ? nullptr : of.data();
  };
  gemm_batched(g, p_.batch, p_.stride_a, p_.stride_b, p_.stride_c, path_,
               {starts(p_.starts_a), starts(p_.starts_b)});
}

}  // namespace brrr::cpu
