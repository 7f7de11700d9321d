#pragma once
// Iteration over the lines of a tensor, the sequences of elements along one axis, for ops such as
// sort and cumsum. Adjacent lines are processed in groups, so that memory is read contiguously
// along every axis.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"

namespace brrr::cpu {

/// Operand 0 of a node with the attribute `axis`, viewed as [outer, count, inner].
struct Lines : AxisSplit {
  explicit Lines(const NodeView& node)
      : AxisSplit(split_at(node.in[0].shape, node.attrs().get<int64_t>("axis"))) {}

  /// Lines in a group, at most `most`; 1 if lines are contiguous.
  int64_t together(int64_t most) const { return std::max<int64_t>(1, std::min(inner, most)); }
  /// The number of threads that share the groups.
  int64_t parts(int64_t most) const {
    const int64_t grain = row_grain(count * together(most), kRowGrain);
    return std::min<int64_t>(thread_count(), std::max<int64_t>(1, groups(most) / grain));
  }
  /// Calls f(part, outer index, first inner index, lines) for every group of up to `most` adjacent
  /// lines. Each thread has its own `part` in [0, parts(most)).
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

/// The entry of an op whose kernel make(node, T{}) builds, where T stores the elements of operand
/// 0: see with_number_type(); uint8_t for booleans.
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

/// The entry of sort, in rows/sorting.cpp.
KernelEntry sort_entry();

}  // namespace brrr::cpu
