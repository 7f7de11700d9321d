// Ops for which the order of an axis counts: sort, argmax, running sums and products; and scatter.
// A line is the elements along the axis; lines are shared among threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/number_types.h"
#include "backend/cpu/simd/row_support.h"
#include "base/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// x around the axis of the node.
struct Lines : AxisSplit {
  explicit Lines(const NodeView& node)
      : AxisSplit(split_at(node.in[0].shape, node.attrs().get<int64_t>("axis"))) {}
  /// Among how many threads they are shared.
  int64_t parts() const {
    const int64_t grain = std::max<int64_t>(1, row_grain(count, kRowGrain));
    return std::min<int64_t>(thread_count(), std::max<int64_t>(1, outer * inner / grain));
  }
  /// f(part, line, offset of its first element), elements `inner` apart; parts from 0 to `parts`.
  template <typename F>
  void each_in(int64_t parts, F f) const {
    parallel_parts(outer * inner, parts, [&](int64_t part, int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line)
        f(part, line, line / inner * count * inner + line % inner);
    });
  }
  template <typename F>
  void each(F f) const {
    each_in(parts(), [&](int64_t, int64_t line, int64_t at) { f(line, at); });
  }
};

template <typename T>
bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  return false;
}

// NaN counts as the largest.
template <typename T>
bool is_less(T a, T b) {
  if (is_nan(a)) return false;
  return is_nan(b) || a < b;
}

/// A kernel whose scratch memory is an array for each thread.
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

/// The order of a line is sorted where the indices come to lie, or in scratch memory where lines
/// are interleaved. Ties are decided by index, so that an unstable sort, which takes no memory of
/// its own, gives the stable order.
template <typename T>
std::unique_ptr<Kernel> sort_kernel(const NodeView& node) {
  const Lines lines(node);
  const int64_t parts = lines.inner == 1 ? 0 : lines.parts();
  const bool descending = node.attrs().get<bool>("descending");
  return make_kernel_with_scratch(
      parts * lines.count * static_cast<int64_t>(sizeof(int64_t)),
      [lines, parts, descending](const KernelArgs& args) {
        const T* x = static_cast<const T*>(args.in[0]);
        T* values = static_cast<T*>(args.out[0]);
        auto* indices = static_cast<int64_t*>(args.out[1]);
        lines.each_in(
            lines.inner == 1 ? lines.parts() : parts, [&](int64_t part, int64_t, int64_t at) {
              int64_t* order = lines.inner == 1
                                   ? indices + at
                                   : reinterpret_cast<int64_t*>(args.scratch) + part * lines.count;
              std::iota(order, order + lines.count, 0);
              std::sort(order, order + lines.count, [&](int64_t a, int64_t b) {
                const T p = x[at + a * lines.inner], q = x[at + b * lines.inner];
                if (descending ? is_less(q, p) : is_less(p, q)) return true;
                return !(descending ? is_less(p, q) : is_less(q, p)) && a < b;
              });
              for (int64_t k = 0; k < lines.count; ++k) {
                values[at + k * lines.inner] = x[at + order[k] * lines.inner];
                if (lines.inner != 1) indices[at + k * lines.inner] = order[k];
              }
            });
      });
}

template <typename T>
std::unique_ptr<Kernel> argmax_kernel(const NodeView& node) {
  const Lines lines(node);
  const bool smallest = node.attrs().get<bool>("smallest"), last = node.attrs().get<bool>("last");
  return make_kernel([lines, smallest, last](const KernelArgs& args) {
    const T* x = static_cast<const T*>(args.in[0]);
    auto* y = static_cast<int64_t*>(args.out[0]);
    // NaN wins over numbers, the first NaN over others.
    const auto beats = [&](T a, T b) {
      if (is_nan(b)) return false;
      return is_nan(a) || (smallest ? a < b : a > b);
    };
    lines.each([&](int64_t line, int64_t at) {
      int64_t best = 0;
      for (int64_t k = 1; k < lines.count; ++k) {
        const T a = x[at + k * lines.inner], b = x[at + best * lines.inner];
        if (beats(a, b) || (last && !beats(b, a))) best = k;
      }
      y[line] = best;
    });
  });
}

/// Integers wrap around; floats are summed in double.
template <typename T, bool kMultiplies>
std::unique_ptr<Kernel> running_kernel(const NodeView& node) {
  using Total = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;
  const Lines lines(node);
  const bool exclusive = node.attrs().get<bool>("exclusive"),
             reverse = node.attrs().get<bool>("reverse");
  return make_kernel([lines, exclusive, reverse](const KernelArgs& args) {
    const T* x = static_cast<const T*>(args.in[0]);
    T* y = static_cast<T*>(args.out[0]);
    lines.each([&](int64_t, int64_t at) {
      Total total = kMultiplies ? 1 : 0;
      for (int64_t k = 0; k < lines.count; ++k) {
        const int64_t i = at + (reverse ? lines.count - 1 - k : k) * lines.inner;
        const auto value = static_cast<Total>(x[i]);
        if (exclusive) y[i] = static_cast<T>(total);
        total = kMultiplies ? total * value : total + value;
        if (!exclusive) y[i] = static_cast<T>(total);
      }
    });
  });
}

/// Rows in their order, columns shared among threads.
template <typename T>
std::unique_ptr<Kernel> scatter_kernel(const NodeView& node) {
  const int64_t rows = node.in[0].shape.size(0), width = node.in[0].shape.size(1),
                count = node.in[1].shape.elements();
  const bool wide_ids = node.in[1].dtype == DType::i64;
  const std::string& mode = node.attrs().get<std::string>("mode");
  const int64_t scratch = count * static_cast<int64_t>(sizeof(int64_t));
  return make_kernel_with_scratch(scratch, [=](const KernelArgs& args) {
    const auto id = [&](int64_t i) {
      const int64_t given = wide_ids ? static_cast<const int64_t*>(args.in[1])[i]
                                     : static_cast<const int32_t*>(args.in[1])[i];
      if (given < -rows || given >= rows)
        user_error("[scatter] index {} lies outside an axis of {}", given, rows);
      return given < 0 ? given + rows : given;
    };
    auto* const ids = reinterpret_cast<int64_t*>(args.scratch);
    for (int64_t i = 0; i < count; ++i) ids[i] = id(i);
    T* y = static_cast<T*>(args.out[0]);
    if (args.in[0] != args.out[0])
      std::memcpy(y, args.in[0], static_cast<size_t>(rows * width) * sizeof(T));
    const T* updates = static_cast<const T*>(args.in[2]);
    using Wide = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;
    const auto all = [&](auto combine) {
      parallel_for(width, row_grain(count, kRowGrain), [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < count; ++i)
          for (int64_t k = begin; k < end; ++k) {
            T& to = y[ids[i] * width + k];
            to = combine(to, updates[i * width + k]);
          }
      });
    };
    if (mode == "add")
      all([](T a, T b) { return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b)); });
    else if (mode == "mul")
      all([](T a, T b) { return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b)); });
    else if (mode == "max")
      all([](T a, T b) { return std::max(a, b); });
    else if (mode == "min")
      all([](T a, T b) { return std::min(a, b); });
    else
      all([](T, T b) { return b; });
  });
}

std::string only_plain_numbers(const NodeView& node) {
  const DType dtype = node.in[0].dtype;
  const bool is_narrow = is_float(dtype) && bytes_of(dtype) < bytes_of(DType::f32);
  return is_narrow || dtype == DType::boolean
             ? fmt::format("{}: only f32, f64 and integers", name_of(dtype))
             : "";
}

/// make(T{}) for the type T of operand 0.
template <typename Make>
std::unique_ptr<Kernel> by_dtype(const NodeView& node, Make make) {
  return with_number_type(node.in[0].dtype, [&]<typename T>(T x) -> std::unique_ptr<Kernel> {
    if constexpr (std::is_arithmetic_v<T>)
      return make(x);
    else
      return nullptr;  // refused by only_plain_numbers()
  });
}

}  // namespace

std::vector<KernelEntry> line_kernels() {
  const auto entry = [](Op op, const char* name, auto make) {
    return KernelEntry{op, name, only_plain_numbers, [make](const NodeView& node) {
                         return by_dtype(node, [&]<typename T>(T x) { return make(node, x); });
                       }};
  };
  return {entry(Op::sort, "lines",
                []<typename T>(const NodeView& node, T) { return sort_kernel<T>(node); }),
          entry(Op::argmax, "lines",
                []<typename T>(const NodeView& node, T) { return argmax_kernel<T>(node); }),
          entry(Op::cumsum, "lines",
                []<typename T>(const NodeView& node, T) { return running_kernel<T, false>(node); }),
          entry(Op::cumprod, "lines",
                []<typename T>(const NodeView& node, T) { return running_kernel<T, true>(node); }),
          entry(Op::scatter, "rows",
                []<typename T>(const NodeView& node, T) { return scatter_kernel<T>(node); })};
}

}  // namespace brrr::cpu
