// argmax, cumsum, cumprod and scatter for every dtype: templates over the element type whose inner
// loops the compiler vectorises.

#include "backend/cpu/rows/lines.h"

#include <array>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTogether = 256;  // adjacent lines processed together; their state fits L1

/// Whether argmax prefers a to b. NaN wins over numbers.
template <bool kSmallest, typename N>
bool beats(N a, N b) {
  if constexpr (std::is_floating_point_v<N>) {
    if (std::isnan(b)) return false;
    if (std::isnan(a)) return true;
  }
  return kSmallest ? a < b : a > b;
}

/// Finds the first or last extreme of a contiguous line. One vectorised pass finds the value and
/// the piece of the line that holds it, a second pass over that piece finds the index.
template <bool kSmallest, typename T>
int64_t place_of_extreme(const T* x, int64_t count, bool last) {
  using N = Number<T>;
  constexpr int64_t kPiece = 512;
  N best = number_of(x[0]);
  int64_t piece_of_best = 0;
  bool has_nan = false;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t end = std::min(count, begin + kPiece);
    N extreme = number_of(x[begin]);
    bool nan = false;
    for (int64_t i = begin; i < end; ++i) {
      const N value = number_of(x[i]);
      extreme =
          kSmallest ? (value < extreme ? value : extreme) : (value > extreme ? value : extreme);
      nan |= value != value;
    }
    has_nan |= nan;
    const bool is_better = kSmallest ? extreme < best : extreme > best;
    if (is_better || (last && extreme == best)) {
      best = extreme;
      piece_of_best = begin;
    }
  }
  if (has_nan) {
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = last ? count - 1 - k : k;
      if (is_nan(number_of(x[i]))) return i;
    }
  }
  const int64_t end = std::min(count, piece_of_best + kPiece);
  if (!last)
    for (int64_t i = piece_of_best; i < end; ++i)
      if (number_of(x[i]) == best) return i;
  int64_t place = 0;
  for (int64_t i = end; i-- > piece_of_best;)
    if (number_of(x[i]) == best) {
      place = i;
      break;
    }
  return place;
}

/// Finds the indices of the extremes of adjacent lines. Elements of a line are `stride` apart.
template <bool kSmallest, typename T>
void places_of_extremes(const T* x, int64_t count, int64_t stride, int64_t lines, bool last,
                        int64_t* places) {
  using N = Number<T>;
  std::array<N, kTogether> best;
  std::array<int64_t, kTogether> at{};
  for (int64_t i = 0; i < lines; ++i) best[static_cast<size_t>(i)] = number_of(x[i]);
  for (int64_t k = 1; k < count; ++k) {
    const T* const row = x + k * stride;
    for (int64_t i = 0; i < lines; ++i) {
      const auto slot = static_cast<size_t>(i);
      const N value = number_of(row[i]);
      const bool wins =
          beats<kSmallest>(value, best[slot]) || (last && !beats<kSmallest>(best[slot], value));
      best[slot] = wins ? value : best[slot];
      at[slot] = wins ? k : at[slot];
    }
  }
  std::memcpy(places, at.data(), static_cast<size_t>(lines) * sizeof(int64_t));
}

template <bool kSmallest, typename T>
std::unique_ptr<Kernel> argmax_kernel(const NodeView& node) {
  return make_kernel(
      [lines = Lines(node), last = node.attrs().get<bool>("last")](const KernelArgs& args) {
        const T* x = static_cast<const T*>(args.in[0]);
        auto* y = static_cast<int64_t*>(args.out[0]);
        lines.each_group(kTogether, [&](int64_t, int64_t outer, int64_t first, int64_t n) {
          const T* const from = x + outer * lines.count * lines.inner + first;
          int64_t* const to = y + outer * lines.inner + first;
          if (lines.inner == 1)
            *to = place_of_extreme<kSmallest>(from, lines.count, last);
          else
            places_of_extremes<kSmallest>(from, lines.count, lines.inner, n, last, to);
        });
      });
}

/// Integers wrap around; floats are summed in double.
template <typename T, bool kMultiplies>
std::unique_ptr<Kernel> running_kernel(const NodeView& node) {
  using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
  return make_kernel([lines = Lines(node), exclusive = node.attrs().get<bool>("exclusive"),
                      reverse = node.attrs().get<bool>("reverse")](const KernelArgs& args) {
    lines.each_group(kTogether, [&](int64_t, int64_t outer, int64_t first, int64_t n) {
      // Copied to locals, because stores of bytes might alias the captures.
      const int64_t count = lines.count, inner = lines.inner;
      const bool is_exclusive = exclusive;
      const int64_t start = outer * count * inner + first + (reverse ? (count - 1) * inner : 0);
      const int64_t step = reverse ? -inner : inner;
      const T* x = static_cast<const T*>(args.in[0]) + start;
      T* y = static_cast<T*>(args.out[0]) + start;
      const auto put = [](T& to, Total total) {
        if constexpr (std::is_integral_v<T>)
          to = static_cast<T>(total);
        else
          store_number(to, static_cast<Number<T>>(total));
      };
      const auto next = [](Total total, T value) {
        const auto factor = static_cast<Total>(number_of(value));
        return kMultiplies ? total * factor : total + factor;
      };
      if (n == 1) {
        Total total = kMultiplies ? 1 : 0;
        for (int64_t k = 0; k < count; ++k, x += step, y += step) {
          const Total after = next(total, *x);
          put(*y, is_exclusive ? total : after);
          total = after;
        }
        return;
      }
      std::array<Total, kTogether> totals;
      totals.fill(kMultiplies ? 1 : 0);
      for (int64_t k = 0; k < count; ++k, x += step, y += step)
        for (int64_t i = 0; i < n; ++i) {
          const Total before = totals[static_cast<size_t>(i)], after = next(before, x[i]);
          put(y[i], is_exclusive ? before : after);
          totals[static_cast<size_t>(i)] = after;
        }
    });
  });
}

/// Validates indices and resolves negative ones, which count from the end.
template <typename Id>
void complete_ids(const void* given, int64_t count, int64_t rows, int64_t* ids) {
  const Id* const from = static_cast<const Id*>(given);
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = from[i];
    fits &= id >= -rows && id < rows;
    ids[i] = id < 0 ? id + rows : id;
  }
  if (fits) return;
  for (int64_t i = 0; i < count; ++i)
    if (from[i] < -rows || from[i] >= rows)
      user_error("[scatter] index {} lies outside an axis of {}", from[i], rows);
}

/// Applies the updates in their order. Threads share the columns.
template <typename T, typename F>
void scatter_rows(const int64_t* ids, int64_t count, int64_t width, const T* updates, auto* y,
                  F combine) {
  if (width == 1) {
    for (int64_t i = 0; i < count; ++i) y[ids[i]] = combine(y[ids[i]], updates[i]);
    return;
  }
  parallel_for(width, row_grain(count, kRowGrain), [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < count; ++i) {
      auto* const to = y + ids[i] * width;
      const T* const from = updates + i * width;
      for (int64_t k = begin; k < end; ++k) to[k] = combine(to[k], from[k]);
    }
  });
}

/// A function that needs scratch memory, as a kernel.
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

/// The scatter kernel for elements that are stored as T.
template <typename T>
std::unique_ptr<Kernel> scatter_kernel(const NodeView& node) {
  const int64_t rows = node.in[0].shape.size(0), width = node.in[0].shape.size(1),
                count = node.in[1].shape.elements();
  const bool wide_ids = node.in[1].dtype == DType::i64;
  const std::string& mode = node.attrs().get<std::string>("mode");
  using N = Number<T>;
  // 16-bit floats are accumulated in f32 and rounded once.
  const bool is_widened = !std::is_same_v<N, T> && mode != "set";
  const int64_t ids_bytes = count * static_cast<int64_t>(sizeof(int64_t));
  const int64_t scratch =
      ids_bytes + (is_widened ? rows * width * static_cast<int64_t>(sizeof(N)) : 0);
  return make_kernel_with_scratch(scratch, [=](const KernelArgs& args) {
    auto* const ids = reinterpret_cast<int64_t*>(args.scratch);
    (wide_ids ? &complete_ids<int64_t> : &complete_ids<int32_t>)(args.in[1], count, rows, ids);
    const T* const x = static_cast<const T*>(args.in[0]);
    T* const y = static_cast<T*>(args.out[0]);
    const T* const updates = static_cast<const T*>(args.in[2]);
    if (x != y && !is_widened) std::memcpy(y, x, static_cast<size_t>(rows * width) * sizeof(T));
    if (mode == "set") return scatter_rows(ids, count, width, updates, y, [](T, T b) { return b; });
    const auto all = [&](auto combine) {
      const auto of_numbers = [combine](N a, T b) {
        return static_cast<N>(combine(a, number_of(b)));
      };
      if constexpr (std::is_same_v<N, T>) {
        scatter_rows(ids, count, width, updates, y, of_numbers);
      } else {
        N* const wide = reinterpret_cast<N*>(args.scratch + ids_bytes);
        for (int64_t i = 0; i < rows * width; ++i) wide[i] = number_of(x[i]);
        scatter_rows(ids, count, width, updates, wide, of_numbers);
        for (int64_t i = 0; i < rows * width; ++i) store_number(y[i], wide[i]);
      }
    };
    using Wide = std::conditional_t<std::is_integral_v<N>, uint64_t, N>;
    if (mode == "add")
      all([](N a, N b) { return static_cast<Wide>(a) + static_cast<Wide>(b); });
    else if (mode == "mul")
      all([](N a, N b) { return static_cast<Wide>(a) * static_cast<Wide>(b); });
    else if (mode == "max")
      all([](N a, N b) { return std::max(a, b); });
    else
      all([](N a, N b) { return std::min(a, b); });
  });
}

}  // namespace

std::vector<KernelEntry> line_kernels() {
  return {sort_entry(),
          entry_by_dtype(Op::argmax, "lines",
                         []<typename T>(const NodeView& node, T) {
                           return node.attrs().get<bool>("smallest")
                                      ? argmax_kernel<true, T>(node)
                                      : argmax_kernel<false, T>(node);
                         }),
          entry_by_dtype(
              Op::cumsum, "lines",
              []<typename T>(const NodeView& node, T) { return running_kernel<T, false>(node); }),
          entry_by_dtype(
              Op::cumprod, "lines",
              []<typename T>(const NodeView& node, T) { return running_kernel<T, true>(node); }),
          entry_by_dtype(Op::scatter, "rows", []<typename T>(const NodeView& node, T) {
            return scatter_kernel<T>(node);
          })};
}

}  // namespace brrr::cpu
