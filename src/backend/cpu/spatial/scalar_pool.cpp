// max_pool of integers and f64, and sum_pool of f64, over any number of spatial axes. A row of
// windows is computed one tap at a time, so that the inner loop runs along the last axis.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/number_types.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/spatial/windows.h"

namespace brrr::cpu {
namespace {

/// The windows [begin, end) of a row for which a tap lies inside the last axis.
struct TapSpan {
  int64_t begin, end, first;  // `first`: the element that the window `begin` reads
};

TapSpan span_of_tap(const ops::WindowGrid& grid, int64_t tap) {
  const size_t axis = grid.axes() - 1;
  const int64_t stride = grid.windows.strides[axis], at_zero = grid.at(axis, 0, tap);
  const int64_t begin = at_zero >= 0 ? 0 : (-at_zero + stride - 1) / stride;
  const int64_t last =
      grid.in[axis] - 1 - at_zero;  // distance from the element that window 0 reads
  const int64_t end = last < 0 ? 0 : std::min(grid.out[axis], last / stride + 1);
  return {begin, std::max(begin, end), at_zero + begin * stride};
}

template <typename T, Op kOp>
class ScalarPool final : public Kernel {
 public:
  explicit ScalarPool(const NodeView& v)
      : grid_(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                               v.attrs().get<std::vector<int64_t>>("kernel"))),
        planes_(v.in[0].shape.size(0) * v.in[0].shape.size(1)) {
    for (int64_t tap = 0; tap < grid_.kernel.back(); ++tap)
      spans_.push_back(span_of_tap(grid_, tap));
  }

  void run(const KernelArgs& args) override {
    constexpr int64_t kLeastTaps = 1 << 15;  // work of a part that is worth another thread
    const int64_t in = grid_.in_elements(), out = grid_.out_elements();
    const int64_t taps = std::max<int64_t>(1, out * grid_.kernel_elements());
    parallel_for(planes_, std::max<int64_t>(1, kLeastTaps / taps), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* const x = static_cast<const T*>(args.in[0]) + p * in;
        T* const y = static_cast<T*>(args.out[0]) + p * out;
        if constexpr (kOp == Op::max_pool) {
          auto* const indices = static_cast<int64_t*>(args.out[1]) + p * out;
          std::fill_n(indices, out, int64_t{-1});
          each_row(
              [&](int64_t from, int64_t to) { largest(x, from, p * in, y + to, indices + to); });
        } else {
          std::fill_n(y, out, T{0});
          each_row([&](int64_t from, int64_t to) { add(x + from, y + to); });
        }
      }
    });
  }

 private:
  /// f(first element of a row of x, first window of a row of y) for every row that a tap reads.
  template <typename F>
  void each_row(const F& f) const {
    const auto walk = [&](const auto& self, size_t axis, int64_t from, int64_t to) -> void {
      if (axis + 1 == grid_.axes()) return f(from * grid_.in[axis], to * grid_.out[axis]);
      for (int64_t window = 0; window < grid_.out[axis]; ++window)
        for (int64_t tap = 0; tap < grid_.kernel[axis]; ++tap) {
          const int64_t at = grid_.at(axis, window, tap);
          if (at >= 0 && at < grid_.in[axis])
            self(self, axis + 1, from * grid_.in[axis] + at, to * grid_.out[axis] + window);
        }
    };
    walk(walk, 0, 0, 0);
  }

  // The first of equal elements wins, and NaN wins over numbers.
  void largest(const T* x, int64_t row, int64_t plane, T* y, int64_t* indices) const {
    const int64_t stride = grid_.windows.strides.back();
    for (const TapSpan& span : spans_)
      for (int64_t o = span.begin; o < span.end; ++o) {
        const int64_t at = row + span.first + (o - span.begin) * stride;
        const T value = x[at];
        bool wins = indices[o] < 0 || value > y[o];
        if constexpr (std::is_floating_point_v<T>)
          wins = wins || (std::isnan(value) && !std::isnan(y[o]));
        y[o] = wins ? value : y[o];
        indices[o] = wins ? plane + at : indices[o];
      }
  }

  void add(const T* x, T* y) const {
    const int64_t stride = grid_.windows.strides.back();
    for (const TapSpan& span : spans_)
      for (int64_t o = span.begin; o < span.end; ++o)
        y[o] += x[span.first + (o - span.begin) * stride];
  }

  ops::WindowGrid grid_;
  int64_t planes_;
  std::vector<TapSpan> spans_;  // one for each tap of the last axis
};

std::string scalar_refusal(const NodeView& v) {
  if (ops::has_channels_last(v.attrs())) return "channels last";
  const DType t = v.in[0].dtype;
  return is_integer(t) || t == DType::f64
             ? ""
             : fmt::format("dtype {}: only integers and f64", name_of(t));
}

}  // namespace

std::vector<KernelEntry> scalar_pool_kernels() {
  return {
      {Op::max_pool, "elements", scalar_refusal,
       [](const NodeView& v) {
         return with_number_type(v.in[0].dtype, [&]<typename T>(T) -> std::unique_ptr<Kernel> {
           if constexpr (std::is_arithmetic_v<T>)
             return std::make_unique<ScalarPool<T, Op::max_pool>>(v);
           else
             return nullptr;  // refused by scalar_refusal()
         });
       }},
      {Op::sum_pool, "elements", scalar_refusal, [](const NodeView& v) -> std::unique_ptr<Kernel> {
         return std::make_unique<ScalarPool<double, Op::sum_pool>>(v);
       }}};
}

}  // namespace brrr::cpu
