// sum, max, min and product of integers and f64 over any axes, and products of the other floats:
// templates over the element type whose loops the compiler vectorises. Floats accumulate in double,
// in an order that depends on the shape alone; integers wrap around.

#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/rows/reduced_layout.h"
#include "backend/cpu/simd/row_support.h"
#include "base/dtype.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kColumns = 256;  // kept elements that are folded side by side, in L1

/// The accumulator. Sums and products of integers are computed modulo 2^64 and cut to T at the end.
template <typename T, Op kOp>
using Total =
    std::conditional_t<!std::is_integral_v<T>, double,
                       std::conditional_t<kOp == Op::sum || kOp == Op::product, uint64_t, T>>;

template <typename A, Op kOp>
constexpr A start_of() {
  using Limits = std::numeric_limits<A>;
  if constexpr (kOp == Op::sum) return 0;
  if constexpr (kOp == Op::product) return 1;
  if constexpr (std::is_floating_point_v<A>)
    return kOp == Op::max ? -Limits::infinity() : Limits::infinity();
  else
    return kOp == Op::max ? Limits::lowest() : Limits::max();
}

template <typename A, Op kOp>
A folded(A a, A b) {
  if constexpr (kOp == Op::sum) return a + b;
  if constexpr (kOp == Op::product) return a * b;
  // NaN propagates: comparisons with a NaN in `a` are false, and one in `b` is chosen.
  if constexpr (kOp == Op::max) return b > a || b != b ? b : a;
  return b < a || b != b ? b : a;
}

template <typename T, typename A>
void store(T& to, A total) {
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, Bf16>)
    store_from_double(std::is_same_v<T, F16> ? DType::f16 : DType::bf16, &to, 0, total);
  else
    to = static_cast<T>(total);
}

template <typename T, Op kOp>
class ScalarReduction final : public Kernel {
 public:
  explicit ScalarReduction(const NodeView& node)
      : layout_(node.in[0].shape, node.attrs().get<std::vector<int64_t>>("axes")),
        is_empty_(node.in[0].shape.elements() == 0),
        out_elements_(node.out()[0].shape.elements()),
        reduced_(is_empty_ ? 0 : layout_.reduced.count()) {}

  void run(const KernelArgs& args) override {
    const auto* x = static_cast<const T*>(args.in[0]);
    auto* y = static_cast<T*>(args.out[0]);
    if (is_empty_) {
      for (int64_t k = 0; k < out_elements_; ++k) store(y[k], start_of<A, kOp>());
    } else if (layout_.run_is_kept) {
      fold_columns(x, y);
    } else {
      fold_runs(x, y);
    }
  }

 private:
  using A = Total<T, kOp>;
  // Independent accumulators of a run, a cache line of them: they hide the latency of an addition
  // and fill vectors of every width.
  static constexpr size_t kLanes = 64 / sizeof(A);

  void fold_runs(const T* x, T* y) const {
    parallel_for(out_elements_, row_grain(reduced_ * layout_.run, kRowGrain),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = begin; k < end; ++k) {
                     // An element's index in its run determines its accumulator.
                     std::array<A, kLanes> lanes;
                     lanes.fill(start_of<A, kOp>());
                     const T* const first = x + layout_.kept.at(k);
                     for (int64_t r = 0; r < reduced_; ++r)
                       fold_run(first + layout_.reduced.at(r), layout_.run, lanes);
                     A total = lanes[0];
                     for (size_t i = 1; i < kLanes; ++i) total = folded<A, kOp>(total, lanes[i]);
                     store(y[k], total);
                   }
                 });
  }

  static void fold_run(const T* x, int64_t n, std::array<A, kLanes>& into) {
    std::array<A, kLanes> lanes = into;
    int64_t i = 0;
    for (; i + static_cast<int64_t>(kLanes) <= n; i += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] = folded<A, kOp>(lanes[lane],
                                     static_cast<A>(number_of(x[i + static_cast<int64_t>(lane)])));
    for (size_t lane = 0; i < n; ++i, ++lane)
      lanes[lane] = folded<A, kOp>(lanes[lane], static_cast<A>(number_of(x[i])));
    into = lanes;
  }

  // Folds kColumns neighbouring results at a time, so that their accumulators stay in L1.
  void fold_columns(const T* x, T* y) const {
    const int64_t pieces = (layout_.run + kColumns - 1) / kColumns;
    parallel_for(out_elements_ / layout_.run * pieces, row_grain(reduced_ * kColumns, kRowGrain),
                 [&](int64_t begin, int64_t end) {
                   std::array<A, kColumns> totals;
                   for (int64_t piece = begin; piece < end; ++piece) {
                     const int64_t row = piece / pieces, column = piece % pieces * kColumns;
                     const int64_t n = std::min(kColumns, layout_.run - column);
                     totals.fill(start_of<A, kOp>());
                     const T* const first = x + layout_.kept.at(row) + column;
                     for (int64_t r = 0; r < reduced_; ++r) {
                       const T* const from = first + layout_.reduced.at(r);
                       for (int64_t i = 0; i < n; ++i)
                         totals[static_cast<size_t>(i)] = folded<A, kOp>(
                             totals[static_cast<size_t>(i)], static_cast<A>(number_of(from[i])));
                     }
                     for (int64_t i = 0; i < n; ++i)
                       store(y[row * layout_.run + column + i], totals[static_cast<size_t>(i)]);
                   }
                 });
  }

  ReducedLayout layout_;
  bool is_empty_;
  int64_t out_elements_, reduced_;
};

template <Op kOp>
std::unique_ptr<Kernel> make(const NodeView& node) {
  return with_number_type(node.in[0].dtype, [&]<typename T>(T) -> std::unique_ptr<Kernel> {
    return std::make_unique<ScalarReduction<T, kOp>>(node);
  });
}

std::string any_number(const NodeView& node) {
  const DType dtype = node.in[0].dtype;
  return dtype == DType::boolean || is_fp8(dtype) ? fmt::format("no loop for {}", name_of(dtype))
                                                  : "";
}

/// Refuses the dtypes that reductions.cpp has vector code for.
std::string only_integers_or_f64(const NodeView& node) {
  const DType dtype = node.in[0].dtype;
  return is_integer(dtype) || dtype == DType::f64
             ? ""
             : fmt::format("dtype {}: only integers and f64", name_of(dtype));
}

}  // namespace

std::vector<KernelEntry> scalar_reduction_kernels() {
  return {{Op::sum, "elements", only_integers_or_f64, make<Op::sum>},
          {Op::max, "elements", only_integers_or_f64, make<Op::max>},
          {Op::min, "elements", only_integers_or_f64, make<Op::min>},
          {Op::product, "elements", any_number, make<Op::product>}};
}

}  // namespace brrr::cpu
