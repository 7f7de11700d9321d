// gather: copies of runs of bytes, of any dtype.

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
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
    check(ids);
    if (follow_each_other(ids)) return gather_stretches(args, ids);
    if (run_bytes_ == 1) return gather_elements<uint8_t>(args, ids);
    if (run_bytes_ == 2) return gather_elements<uint16_t>(args, ids);
    if (run_bytes_ == 4) return gather_elements<uint32_t>(args, ids);
    if (run_bytes_ == 8) return gather_elements<uint64_t>(args, ids);
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
  void check(const Id* ids) const {
    const int64_t count = count_;
    bool fits = true;
    for (int64_t i = 0; i < ids_; ++i) fits &= ids[i] >= -count && ids[i] < count;
    if (fits) return;
    for (int64_t i = 0; i < ids_; ++i)
      if (ids[i] < -count || ids[i] >= count)
        user_error("[gather] index {} lies outside an axis of {}", ids[i], count);
  }

  /// Whether most ids continue a run of consecutive ids, as in a padding by reflection.
  bool follow_each_other(const Id* ids) const {
    constexpr int64_t kLongEnough = 16;
    int64_t stretches = 1;
    for (int64_t i = 1; i < ids_; ++i) stretches += ids[i] != ids[i - 1] + 1 || ids[i] == 0;
    return stretches * kLongEnough <= ids_;
  }

  /// Copies each run of consecutive ids as one block.
  void gather_stretches(const KernelArgs& args, const Id* ids) const {
    const auto* const x = static_cast<const std::byte*>(args.in[0]);
    auto* const y = static_cast<std::byte*>(args.out[0]);
    parallel_for(outer_, row_grain(ids_ * run_bytes_, kByteGrain), [&](int64_t begin, int64_t end) {
      for (int64_t first = 0, next = 0; first < ids_; first = next) {
        for (next = first + 1; next < ids_ && ids[next] == ids[next - 1] + 1 && ids[next] != 0;)
          ++next;
        const int64_t id = ids[first] < 0 ? ids[first] + count_ : ids[first];
        for (int64_t outer = begin; outer < end; ++outer)
          copy_run(y + (outer * ids_ + first) * run_bytes_, x + (outer * count_ + id) * run_bytes_,
                   (next - first) * run_bytes_);
      }
    });
  }

  /// Gathers single elements of the size of T, which may be misaligned in x.
  template <typename T>
  void gather_elements(const KernelArgs& args, const Id* ids) const {
    const auto* const x = static_cast<const std::byte*>(args.in[0]);
    T* const y = static_cast<T*>(args.out[0]);
    const int64_t count = count_, of_ids = ids_;
    parallel_for(outer_ * of_ids, kByteGrain / int64_t{sizeof(T)}, [=](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t outer = begin / of_ids, first = begin - outer * of_ids;
        const int64_t n = std::min(end - begin, of_ids - first);
        const std::byte* const from = x + outer * count * int64_t{sizeof(T)};
        for (int64_t i = 0; i < n; ++i) {
          const int64_t id = ids[first + i];
          std::memcpy(y + begin + i, from + (id < 0 ? id + count : id) * int64_t{sizeof(T)},
                      sizeof(T));
        }
        begin += n;
      }
    });
  }

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
