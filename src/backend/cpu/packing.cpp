#include "backend/cpu/packing.h"

#include <algorithm>

#include "backend/cpu/gemm.h"
#include "backend/cpu/product.h"
#include "runtime/backend.h"

namespace brrr::cpu {

void Packing::operator+=(const Packing& other) {
  left_bytes = std::max(left_bytes, other.left_bytes);
  tiles |= other.tiles;
}

int64_t Packing::bytes() const { return gemm_workspace_bytes(left_bytes, tiles); }

Packing packing_of(const Graph& graph) {
  Packing all;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (node.op->op_class != OpClass::contraction || node.operands.empty()) continue;
    const NodeView view(graph, id);
    const DType dtype = view.in[0].dtype;
    Packing one{0, gemm_packs_tiles(dtype)};
    Product p;
    if (dtype == DType::f32 && (node.op->name == "matmul" || node.op->name == "linear")) {
      static float result;  // there is one, and its address is never used
      if (as_product(view, p).empty())
        one.left_bytes = gemm_left_bytes({.m = p.m,
                                          .n = p.n,
                                          .k = p.k,
                                          .lda = p.lda(),
                                          .trans_a = p.ta,
                                          .ldb = p.ldb(),
                                          .trans_b = p.tb,
                                          .c = &result,
                                          .ldc = p.n},
                                         p.batch);
    } else if (dtype == DType::f32 && node.op->name.starts_with("linear_cross_entropy")) {
      // Logits and their gradient, as large as there are.
      const int64_t width = view.in[0].shape[view.in[0].shape.rank() - 1].size();
      const int64_t rows = view.in[0].shape.elements() / std::max<int64_t>(1, width);
      const int64_t vocab = view.in[1].shape.elements() / std::max<int64_t>(1, width);
      one.left_bytes = rows * std::max(vocab, width) * int64_t{sizeof(float)};
    }
    all += one;
  }
  return all;
}

}  // namespace brrr::cpu
