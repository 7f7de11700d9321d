#include "backend/cpu/fused_product.h"

#include <algorithm>

#include "backend/cpu/gemm_node.h"
#include "backend/cpu/tile_program.h"
#include "base/parallel.h"
#include "ops/fused.h"

namespace brrr::cpu {
namespace {

/// Which operand of the fused node each operand of the product is.
std::vector<size_t> product_operands(const Graph& body) {
  const std::vector<NodeId> inputs = body.inputs();
  std::vector<size_t> which;
  for (const ValueId& v : body.node(product_of(body)).operands)
    which.push_back(
        static_cast<size_t>(std::find(inputs.begin(), inputs.end(), v.node) - inputs.begin()));
  return which;
}

class FusedProduct final : public Kernel {
 public:
  explicit FusedProduct(const NodeView& node) : FusedProduct(*fused_body(node.node())) {}

  int64_t scratch_bytes() const override { return gemm_.scratch_bytes(); }

  void run(const KernelArgs& args) override {
    const void* in[3] = {};
    for (size_t i = 0; i < operands_.size(); ++i) in[i] = args.in[operands_[i]];
    Blocks blocks{program_, args,
                  std::vector<std::optional<TileFrame>>(static_cast<size_t>(thread_count()))};
    gemm_.run({in, operands_.size()}, nullptr, args.scratch, {&Blocks::finish, &blocks});
  }

 private:
  explicit FusedProduct(const Graph& body)
      : program_(body),
        operands_(product_operands(body)),
        gemm_(NodeView(body, product_of(body)), *gemm_node_path(NodeView(body, product_of(body)))) {
  }

  struct Blocks {
    const TileProgram& program;
    const KernelArgs& args;
    mutable std::vector<std::optional<TileFrame>> frames;  // one for each thread

    static void finish(const void* context, int64_t row, int64_t column, int64_t rows,
                       int64_t columns, float* block, int64_t ld) {
      const auto& self = *static_cast<const Blocks*>(context);
      auto& frame = self.frames[static_cast<size_t>(omp_get_thread_num())];
      if (!frame) frame.emplace(self.program, self.args);
      self.program.run_block(*frame, {row, column, rows, columns, block, ld});
    }
  };

  TileProgram program_;
  std::vector<size_t> operands_;
  GemmNode gemm_;
};

}  // namespace

std::string fused_product_refusal(const NodeView& node) {
  const auto body = fused_body(node.node());
  const NodeId product = product_of(*body);
  if (product == kNoNode) return "no product";
  for (const ValueId& v : body->node(product).operands)
    if (!body->is_input(v.node)) return "a product of something that is computed";
  const NodeView view(*body, product);
  if (!gemm_node_path(view))
    return fmt::format("its product: {}", gemm_node_refusal(view, GemmPath::kVector));
  return TileProgram(*body).refusal();
}

bool gains_by_epilogue(const NodeView& product, const NodeView&) {
  const std::optional<GemmPath> path = gemm_node_path(product);
  return path && *path != GemmPath::kVector;
}

std::unique_ptr<Kernel> fused_product(const NodeView& node) {
  return std::make_unique<FusedProduct>(node);
}

}  // namespace brrr::cpu
