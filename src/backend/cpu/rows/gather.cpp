// gather: copies of runs of bytes, of any dtype.

#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/simd/row_support.h"
#include "base/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// x as [outer, count, run] around the axis, y as [outer, ids, run].
template <typename Id>
class GatherKernel final : public Kernel {
 public:
  explicit GatherKernel(const NodeView& node) : ids_(node.in[1].shape.elements()) {
    const AxisSplit x = split_at(node.in[0].shape, node.attrs().get<int64_t>("axis"));
    count_ = x.count;
    outer_ = x.outer;
    run_bytes_ = x.inner * static_cast<int64_t>(bytes_of(node.in[0].dtype));
  }

  void run(const KernelArgs& args) override {
    const Id* ids = static_cast<const Id*>(args.in[1]);
    for (int64_t i = 0; i < ids_; ++i)
      if (ids[i] < -count_ || ids[i] >= count_)
        user_error("[gather] index {} lies outside an axis of {}", ids[i], count_);
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    auto* y = static_cast<std::byte*>(args.out[0]);
    parallel_for(outer_ * ids_, row_grain(run_bytes_, kByteGrain), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t id = ids[k % ids_];
        const int64_t row = k / ids_ * count_ + (id < 0 ? id + count_ : id);
        copy_run(y + k * run_bytes_, x + row * run_bytes_, run_bytes_);
      }
    });
  }

 private:
  int64_t ids_, count_ = 0, outer_ = 1, run_bytes_ = 0;
};

std::unique_ptr<Kernel> prepare_gather(const NodeView& node) {
  if (node.in[1].dtype == DType::i64) return std::make_unique<GatherKernel<int64_t>>(node);
  return std::make_unique<GatherKernel<int32_t>>(node);
}

}  // namespace

std::vector<KernelEntry> gather_kernels() {
  return {{Op::gather, "runs",
           [](const NodeView& node) -> std::string {
             const DType dtype = node.in[1].dtype;
             if (dtype == DType::i32 || dtype == DType::i64) return "";
             return fmt::format("indices of {}: only i32 and i64", name_of(dtype));
           },
           prepare_gather, !kKnowsStorage, kFirstOperand}};
}

}  // namespace brrr::cpu
