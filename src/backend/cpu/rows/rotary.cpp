// rotary: rows split among threads, each read and written once. In place, what does not turn is not
// touched.

#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/rotary_rows.h"
#include "backend/cpu/rows/row_space.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

class RotaryKernel final : public Kernel {
 public:
  explicit RotaryKernel(const NodeView& node)
      : bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        positions_(tokens_of(node), {&node.in[1], 1}),
        count_(positions_.elements),
        heads_(node.in[0].shape.size(-2)),
        places_(node.in[2].shape.size(0)),
        run_(rotary_row(node.in[0].dtype)) {
    row_.heads = node.attrs().get_or<int64_t>("heads", heads_);
    row_.width = node.in[0].shape.size(-1);
    row_.half = node.in[2].shape.size(1);
    row_.interleaved = node.attrs().get<bool>("interleaved");
    row_.inverse = node.attrs().get<bool>("inverse");
  }

  void run(const KernelArgs& args) override {
    const auto* positions = static_cast<const int32_t*>(args.in[1]);
    check(positions);
    const auto *cos = static_cast<const float*>(args.in[2]),
               *sin = static_cast<const float*>(args.in[3]);
    const auto* x = static_cast<const std::byte*>(args.in[0]);
    auto* y = static_cast<std::byte*>(args.out[0]);
    const int64_t width = heads_ * row_.width;
    parallel_for(count_, row_grain(width, kRowGrain), [&](int64_t begin, int64_t end) {
      each_position(positions, begin, end, [&](int64_t token, int64_t p) {
        RotaryRow row = row_;
        row.x = x + token * width * bytes_;
        row.y = y + token * width * bytes_;
        row.cos = cos + p * row_.half;
        row.sin = sin + p * row_.half;
        if (x != y) copy_rest(row);
        run_(row);
      });
    });
  }

 private:
  static Shape tokens_of(const NodeView& node) { return node.in[0].shape.without_last(2); }

  /// f(token, its position)
  template <typename F>
  void each_position(const int32_t* positions, int64_t begin, int64_t end, F&& f) const {
    positions_.each_row(begin, end, [&](int64_t first, const RowSpace::Offsets& at, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        f(first + i, int64_t{positions[at[0] + (positions_.repeated[0] ? 0 : i)]});
    });
  }
  void check(const int32_t* positions) const {
    each_position(positions, 0, count_, [&](int64_t token, int64_t p) {
      if (p < 0 || p >= places_)
        user_error("[rotary] position {} of row {} lies outside the table of {} rows", p, token,
                   places_);
    });
  }
  /// What does not turn.
  void copy_rest(const RotaryRow& row) const {
    const auto* x = static_cast<const std::byte*>(row.x);
    auto* y = static_cast<std::byte*>(row.y);
    const auto copy = [&](int64_t from, int64_t to) {
      std::memcpy(y + from * bytes_, x + from * bytes_, static_cast<size_t>((to - from) * bytes_));
    };
    if (2 * row.half < row.width)
      for (int64_t h = 0; h < row.heads; ++h)
        copy(h * row.width + 2 * row.half, (h + 1) * row.width);
    copy(row.heads * row.width, heads_ * row.width);
  }

  int64_t bytes_;
  RowSpace positions_;
  int64_t count_, heads_, places_;
  RotaryRow row_;
  RotaryFunction run_;
};

}  // namespace

std::vector<KernelEntry> rotary_kernels() {
  return {{Op::rotary, "rows",
           [](const NodeView& node) -> std::string {
             const DType t = node.in[0].dtype;
             if (is_compute_float(t)) return "";
             return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
           },
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<RotaryKernel>(node);
           }}};
}

}  // namespace brrr::cpu
