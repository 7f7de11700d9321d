// segment_sum and segment_max: a row of the result depends on the rows of its sequence alone, which
// are taken in their order. The compiler vectorises the loops over columns.

#include <algorithm>
#include <limits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/segment_starts.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

template <typename T, bool kSum>
class SegmentKernel final : public Kernel {
 public:
  explicit SegmentKernel(const NodeView& node)
      : rows_(node.in[0].shape.size(0)),
        columns_(node.in[0].shape.size(1)),
        sequences_(node.in[1].shape.size(0) - 1) {}

  void run(const KernelArgs& args) override {
    const T* const x = static_cast<const T*>(args.in[0]);
    const auto* const starts = static_cast<const int32_t*>(args.in[1]);
    T* const y = static_cast<T*>(args.out[0]);
    check_starts(kSum ? "segment_sum" : "segment_max", starts, sequences_, rows_);
    const int64_t blocks = (columns_ + kColumns - 1) / kColumns;
    parallel_chunks(sequences_ * blocks, [&](int64_t task) {
      const int64_t sequence = task / blocks, first = task % blocks * kColumns;
      const int64_t n = std::min(kColumns, columns_ - first);
      Number<T> state[kColumns];
      std::fill_n(state, n, kSum ? Number<T>{0} : -std::numeric_limits<Number<T>>::infinity());
      for (int64_t row = starts[sequence]; row < starts[sequence + 1]; ++row)
        add(x + row * columns_ + first, n, state);
      for (int64_t c = 0; c < n; ++c) store_number(y[sequence * columns_ + first + c], state[c]);
    });
  }

 private:
  static constexpr int64_t kColumns = 256;  // of a task: their state fits L1

  static void add(const T* row, int64_t n, Number<T>* state) {
    for (int64_t c = 0; c < n; ++c) {
      const Number<T> value = number_of(row[c]);
      if constexpr (kSum)
        state[c] += value;
      else
        state[c] = value != value || value > state[c] ? value : state[c];
    }
  }

  int64_t rows_, columns_, sequences_;
};

template <bool kSum>
KernelEntry entry(Op op) {
  return {op, "rows", [](const NodeView&) { return std::string(); },
          [](const NodeView& node) {
            return with_number_type(node.in[0].dtype,
                                    [&]<typename T>(T) -> std::unique_ptr<Kernel> {
                                      if constexpr (std::is_floating_point_v<Number<T>>)
                                        return std::make_unique<SegmentKernel<T, kSum>>(node);
                                      BRRR_CHECK(false, "segments of integers");
                                    });
          }};
}

}  // namespace

std::vector<KernelEntry> segment_kernels() {
  return {entry<true>(Op::segment_sum), entry<false>(Op::segment_max)};
}

}  // namespace brrr::cpu
