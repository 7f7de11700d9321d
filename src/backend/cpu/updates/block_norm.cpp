// The norm of gradients by blocks, whose bits do not depend on the number of ranks.

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/updates/update_kernel.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/ranks/collectives.h"

namespace brrr::cpu {
namespace {

std::string refuse_other_than_f32(const NodeView& node) {
  for (const Type& t : node.in)
    if (t.dtype != DType::f32) return fmt::format("dtype {}: only f32", name_of(t.dtype));
  return "";
}

class BlockSquares final : public Kernel {
 public:
  explicit BlockSquares(const NodeView& node) {
    for (const Type& t : node.in) elements_.push_back(t.shape.elements());
  }
  void run(const KernelArgs& args) override {
    constexpr int64_t kBlocksTogether = 16;
    for (size_t i = 0; i < elements_.size(); ++i) {
      const auto* x = static_cast<const float*>(args.in[i]);
      auto* y = static_cast<float*>(args.out[i]);
      parallel_for(ceil_div(elements_[i], kShardBlock), kBlocksTogether,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t b = begin; b < end; ++b) {
                       const int64_t at = b * kShardBlock;
                       y[b] = static_cast<float>(
                           rows_.sum_of_squares(x + at, std::min(kShardBlock, elements_[i] - at)));
                     }
                   });
    }
  }

 private:
  std::vector<int64_t> elements_;
  const OptimizerRows& rows_ = optimizer_rows();
};

std::unique_ptr<Kernel> block_norm(const NodeView& node) {
  std::vector<int64_t> counts;
  for (const Type& t : node.in) counts.push_back(t.shape.elements());
  return make_kernel([counts](const KernelArgs& args) {
    double total = 0;
    for (size_t i = 0; i < counts.size(); ++i)
      for (int64_t j = 0; j < counts[i]; ++j) total += static_cast<const float*>(args.in[i])[j];
    *static_cast<float*>(args.out[0]) = static_cast<float>(std::sqrt(total));
  });
}

}  // namespace

std::vector<KernelEntry> block_norm_kernels() {
  return {{Op::block_squares, "blocks", refuse_other_than_f32,
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<BlockSquares>(node);
           }},
          {Op::block_norm, "blocks", refuse_other_than_f32, block_norm}};
}

}  // namespace brrr::cpu
