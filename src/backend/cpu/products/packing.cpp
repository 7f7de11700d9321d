#include "backend/cpu/products/packing.h"

#include <algorithm>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/products/loss_head.h"
#include "backend/cpu/products/product.h"
#include "backend/cpu/quantized/integer_matmul.h"
#include "backend/cpu/spatial/conv.h"
#include "backend/cpu/updates/update_kernel.h"
#include "base/integers.h"
#include "base/panels.h"
#include "ops/op.h"
#include "runtime/backend.h"

namespace brrr::cpu {

namespace {

GemmArgs args_of(const Product& p, DType dtype) {
  static float result;  // there is one, and its address is never used
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .dtype = dtype,
          .lda = p.lda(),
          .trans_a = p.ta,
          .ldb = p.ldb(),
          .trans_b = p.tb,
          .panels = p.panels,
          .c = &result,
          .ldc = p.n};
}

Packing packing_of_product(const GemmArgs& args, int64_t batch) {
  if (gemm_packs_tiles(args.dtype)) return {{}, gemm_tiles(args, batch)};
  return {gemm_panels(args, batch), {}};
}

Packing packing_of_loss_head(const NodeView& view) {
  const DType dtype = view.in[0].dtype;
  const int64_t width = view.in[0].shape[view.in[0].shape.rank() - 1].size();
  const int64_t rows = view.in[0].shape.elements() / std::max<int64_t>(1, width);
  const bool panels = !view.in[1].storage.is_plain();
  const int64_t vocab = view.in[1].shape.elements() / std::max<int64_t>(1, width);
  const int64_t terms = panels ? round_up(vocab, kPanelTerms) : vocab;  // of dx
  const bool transposed = view.attrs().get<bool>("transpose_w");
  const int64_t chunk = std::min(rows, loss_head_chunk(rows, vocab, gemm_packs_tiles(dtype)));
  const int64_t last = chunk == 0 ? 0 : (rows - 1) % chunk + 1;
  const int64_t logits_ld = round_up(vocab, 16) * (dtype == DType::f32 ? 1 : 2);
  Packing all;
  for (const int64_t count : {chunk, last}) {
    GemmArgs y =
        args_of({.m = count, .n = vocab, .k = width, .tb = !panels, .panels = panels}, dtype);
    GemmArgs dx = args_of({.m = count, .n = width, .k = terms, .panels = panels}, dtype);
    dx.lda = logits_ld;
    dx.a_ends_in_zeros = dtype != DType::f32;
    GemmArgs dw = args_of(
        {.m = transposed ? vocab : width, .n = transposed ? width : vocab, .k = count, .ta = true},
        dtype);
    (transposed ? dw.lda : dw.ldb) = logits_ld;
    for (const GemmArgs& g : {y, dx, dw}) all += packing_of_product(g, 1);
  }
  return all;
}

/// What a thread keeps of the rows whose copies go into panels.
int64_t panel_rows_bytes(const Graph& graph, NodeId id) {
  int64_t columns = 0;
  for (const Type& type : NodeView(graph, id).in)
    if (const auto rank = type.shape.rank(); rank >= 2)
      columns = std::max(columns, type.shape[rank - 1].size());
  return kMostPanelRowsBytes / kMostPanelRowColumns * std::min(columns, kMostPanelRowColumns);
}

}  // namespace

void Packing::operator+=(const Packing& other) {
  panels += other.panels;
  tiles += other.tiles;
  rows = std::max(rows, other.rows);
}

int64_t Packing::bytes() const {
  // The rows lie on the stack, of which so much is resident for other kernels.
  constexpr int64_t kStack = int64_t{32} << 10;
  return gemm_workspace_bytes(panels, tiles) + thread_count() * std::max<int64_t>(0, rows - kStack);
}

Packing packing_of(const Graph& graph) {
  Packing all;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    for (const Graph* region : regions_of(node)) all += packing_of(*region);
    if (ops::has_copies_in_panels(node.attrs))
      all.rows = std::max(all.rows, panel_rows_bytes(graph, id));
    if (node.op->op_class != OpClass::contraction || node.operands.empty()) continue;
    const NodeView view(graph, id);
    if (node.op->loss.has_value()) {
      all += packing_of_loss_head(view);
    } else if (integer_matmul_refusal(view).empty()) {
      const IntegerPanels form = integer_panels_of(view);
      const GemmArgs args = unpacking_gemm(view, form);
      if (!quantizes_left(view) && args.m > kGemmFewRows) all += {gemm_panels(args, 1), {}};
    } else if (is(node, Op::matmul, Op::linear)) {
      const Product p = as_product(view);
      all += packing_of_product(args_of(p, view.in[0].dtype), p.batch);
    } else if (is(node, Op::conv, Op::conv_transpose, Op::conv_weight_grad)) {
      if (auto product = conv_product(view)) {
        product->c = args_of({}, product->dtype).c;
        all += packing_of_product(*product, 1);
      }
    }
  }
  return all;
}

}  // namespace brrr::cpu
