// gather and gather_elements: copies of runs of bytes, of any dtype.

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

/// Gathers one row of the last axis of ids at a time. The leading coordinates of the row select
/// the part of x that its indices address.
template <typename Id>
class GatherElementsKernel final : public Kernel {
 public:
  explicit GatherElementsKernel(const NodeView& node)
      : axis_(static_cast<int>(node.attrs().get<int64_t>("axis"))),
        element_(static_cast<int64_t>(bytes_of(node.in[0].dtype))) {
    const Shape &x = node.in[0].shape, &ids = node.in[1].shape;
    const std::vector<int64_t> strides = x.strides();
    count_ = x.size(axis_);
    step_ = strides[static_cast<size_t>(axis_)];
    columns_ = ids.size(-1);
    for (int a = 0; a + 1 < ids.rank(); ++a) {
      sizes_.push_back(ids.size(a));
      strides_.push_back(a == axis_ ? 0 : strides[static_cast<size_t>(a)]);
      rows_ *= ids.size(a);
    }
    along_ = axis_ == ids.rank() - 1 ? 0 : 1;
  }

  void run(const KernelArgs& args) override {
    if (element_ == 1) return run_as<uint8_t>(args);
    if (element_ == 2) return run_as<uint16_t>(args);
    if (element_ == 4) return run_as<uint32_t>(args);
    return run_as<uint64_t>(args);
  }

 private:
  template <typename T>
  void run_as(const KernelArgs& args) const {
    const T* const x = static_cast<const T*>(args.in[0]);
    const Id* const ids = static_cast<const Id*>(args.in[1]);
    T* const y = static_cast<T*>(args.out[0]);
    parallel_for(rows_, row_grain(columns_, kRowGrain), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t rest = row, first = 0;
        for (size_t a = sizes_.size(); a-- > 0; rest /= sizes_[a])
          first += rest % sizes_[a] * strides_[a];
        gather_row(x + first, ids + row * columns_, y + row * columns_);
      }
    });
  }

  template <typename T>
  void gather_row(const T* x, const Id* ids, T* y) const {
    const auto count = static_cast<Id>(count_);
    bool fits = true;
    for (int64_t i = 0; i < columns_; ++i) fits &= ids[i] >= -count && ids[i] < count;
    if (!fits) refuse(ids);
    if (step_ == 1 && along_ == 0) {
      for (int64_t i = 0; i < columns_; ++i) y[i] = x[ids[i] < 0 ? ids[i] + count : ids[i]];
      return;
    }
    for (int64_t i = 0; i < columns_; ++i)
      y[i] = x[(ids[i] < 0 ? ids[i] + count : ids[i]) * step_ + i * along_];
  }

  [[noreturn]] void refuse(const Id* ids) const {
    while (*ids >= -count_ && *ids < count_) ++ids;
    user_error("[gather_elements] index {} lies outside an axis of {}", *ids, count_);
  }

  int axis_;
  int64_t element_, count_ = 0, step_ = 1, columns_ = 1, rows_ = 1;
  int64_t along_ = 1;  // elements of x from one column to the next: 0 where ids name columns
  std::vector<int64_t> sizes_, strides_;  // of the axes in front of the last
};

std::unique_ptr<Kernel> prepare_gather(const NodeView& node) {
  if (node.in[1].dtype == DType::i64) return std::make_unique<GatherKernel<int64_t>>(node);
  return std::make_unique<GatherKernel<int32_t>>(node);
}

std::unique_ptr<Kernel> prepare_gather_elements(const NodeView& node) {
  if (node.in[1].dtype == DType::i64) return std::make_unique<GatherElementsKernel<int64_t>>(node);
  return std::make_unique<GatherElementsKernel<int32_t>>(node);
}

std::string refuse_gather(const NodeView& node) {
  const DType dtype = node.in[1].dtype;
  if (dtype == DType::i32 || dtype == DType::i64) return "";
  return fmt::format("indices of {}: only i32 and i64", name_of(dtype));
}

}  // namespace

std::vector<KernelEntry> gather_kernels() {
  return {{Op::gather, "runs", refuse_gather, prepare_gather, !kKnowsStorage, kFirstOperand},
          {Op::gather_elements, "rows", refuse_gather, prepare_gather_elements}};
}

}  // namespace brrr::cpu
