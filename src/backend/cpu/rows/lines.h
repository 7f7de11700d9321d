#pragma once
// The lines of a tensor: the elements along one axis, for ops in which their order counts. Lines
// that lie side by side are read together, so that memory is read in its order along every axis.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/simd/row_support.h"
#include "base/parallel.h"

namespace brrr::cpu {

/// Operand 0 of a node with the attribute `axis`, as [outer, count, inner].
struct Lines : AxisSplit {
  explicit Lines(const NodeView& node)
      : AxisSplit(split_at(node.in[0].shape, node.attrs().get<int64_t>("axis"))) {}

  /// Neighbouring lines that are handled together, at most: one where a line is contiguous.
  int64_t together(int64_t most) const { return std::max<int64_t>(1, std::min(inner, most)); }
  /// Among how many threads groups of `most` lines are shared.
  int64_t parts(int64_t most) const {
    const int64_t grain = row_grain(count * together(most), kRowGrain);
    return std::min<int64_t>(thread_count(), std::max<int64_t>(1, groups(most) / grain));
  }
  /// f(part, outer index, first inner index, lines of the group) for groups of `most` neighbouring
  /// lines or fewer; `part` counts from 0 to parts(most).
  template <typename F>
  void each_group(int64_t most, F f) const {
    const int64_t group = together(most), in_row = (inner + group - 1) / group;
    parallel_parts(groups(most), parts(most), [&](int64_t part, int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g % in_row * group;
        f(part, g / in_row, first, std::min(group, inner - first));
      }
    });
  }

 private:
  int64_t groups(int64_t most) const {
    const int64_t group = together(most);
    return outer * ((inner + group - 1) / group);
  }
};

/// A kernel whose scratch memory is used by a function.
template <typename F>
class KernelWithScratch final : public Kernel {
 public:
  KernelWithScratch(int64_t scratch_bytes, F f) : bytes_(scratch_bytes), f_(std::move(f)) {}
  int64_t scratch_bytes() const override { return bytes_; }
  void run(const KernelArgs& args) override { f_(args); }

 private:
  int64_t bytes_;
  F f_;
};
template <typename F>
std::unique_ptr<Kernel> make_kernel_with_scratch(int64_t scratch_bytes, F f) {
  return std::make_unique<KernelWithScratch<F>>(scratch_bytes, std::move(f));
}

/// The entry of an op whose kernel is made by make(node, T{}), T being the type of operand 0:
/// that of a number, and uint8_t for booleans.
template <typename Make>
KernelEntry entry_by_dtype(Op op, const char* name, Make make) {
  return {op, name,
          [](const NodeView& node) {
            const DType t = node.in[0].dtype;
            return is_fp8(t) ? fmt::format("dtype {}: no floats of 8 bits", name_of(t)) : "";
          },
          [make](const NodeView& node) -> std::unique_ptr<Kernel> {
            if (node.in[0].dtype == DType::boolean) return make(node, uint8_t{});
            return with_number_type(
                node.in[0].dtype,
                [&]<typename T>(T x) -> std::unique_ptr<Kernel> { return make(node, x); });
          }};
}

/// sort: rows/sorting.cpp.
KernelEntry sort_entry();

}  // namespace brrr::cpu
