// sum, max, min and product over any axes. The shape alone decides how a long reduction is cut into
// pieces; pieces are folded in order, so the bits do not depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/reduction_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "backend/cpu/simd/simd_types.h"
#include "base/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kPiece = 32768;  // elements of x that one piece of a long reduction reads

/// Offsets of all index combinations of some axes, row-major.
struct Offsets {
  std::vector<int64_t> sizes, strides;
  int64_t count() const {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
  int64_t at(int64_t i) const {
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0; i /= sizes[d]) offset += i % sizes[d] * strides[d];
    return offset;
  }
  void add(int64_t size, int64_t stride) {
    if (!sizes.empty() && strides.back() == stride * size) {
      sizes.back() *= size;
      strides.back() = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
};

/// x as kept axes times reduced axes, the innermost run taken out of whichever it belongs to.
struct ReducedLayout {
  Offsets kept, reduced;
  int64_t run = 1;
  bool run_is_kept = false;

  ReducedLayout(const Shape& x, const std::vector<int64_t>& axes) {
    const auto strides = x.strides();
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (x.size(axis) == 1) continue;
      run_is_kept = !std::binary_search(axes.begin(), axes.end(), axis);
      (run_is_kept ? kept : reduced).add(x.size(axis), strides[static_cast<size_t>(axis)]);
    }
    Offsets& inner = run_is_kept ? kept : reduced;
    if (inner.sizes.empty() || inner.strides.back() != 1) return;
    run = inner.sizes.back();
    inner.sizes.pop_back();
    inner.strides.pop_back();
  }
};

class ReductionKernel final : public Kernel {
 public:
  explicit ReductionKernel(const NodeView& node)
      : layout_(node.in[0].shape, node.attrs().get<std::vector<int64_t>>("axes")),
        fold_(is(node.node(), Op::sum) ? Fold::kSum : Fold::kMax),
        bf16_(node.in[0].dtype == DType::bf16),
        rows_(reduction_rows(fold_, bf16_)),
        f32_rows_(reduction_rows(fold_, false)),
        out_elements_(node.out()[0].shape.elements()),
        empty_(node.in[0].shape.elements() == 0),
        kept_(layout_.kept.count()),
        reduced_(layout_.reduced.count()) {
    if (empty_) return;
    // One piece: some reduced rows of a kept row, or some reduced elements.
    const int64_t work = layout_.run_is_kept ? reduced_ : reduced_ * run_blocks();
    piece_ = layout_.run_is_kept
                 ? RowChunks(reduced_, layout_.run).size
                 : std::max<int64_t>({1, kPiece / std::min(layout_.run, kPiece), (work + 63) / 64});
    pieces_ = (work + piece_ - 1) / piece_;
  }

  int64_t scratch_bytes() const override {
    if (empty_) return 0;
    if (!layout_.run_is_kept)
      return pieces_ == 1 ? 0 : kept_ * pieces_ * static_cast<int64_t>(sizeof(double));
    return pieces_ == 1 && !bf16_
               ? 0
               : kept_ * pieces_ * padded_run() * static_cast<int64_t>(sizeof(float));
  }

  void run(const KernelArgs& args) override {
    if (empty_) {
      for (int64_t i = 0; i < out_elements_; ++i) put(args.out[0], i, identity());
    } else if (layout_.run_is_kept) {
      fold_columns(args);
    } else {
      fold_runs(args);
    }
  }

 private:
  int64_t run_blocks() const { return (layout_.run + kPiece - 1) / kPiece; }
  int64_t padded_run() const { return (layout_.run + 15) / 16 * 16; }
  double identity() const { return fold_ == Fold::kSum ? 0.0 : -INFINITY; }
  const std::byte* at(const void* x, int64_t element) const {
    return static_cast<const std::byte*>(x) + element * (bf16_ ? 2 : 4);
  }
  void put(void* y, int64_t i, double value) const {
    if (bf16_) {
      static_cast<Bf16*>(y)[i].bits = bf16_from_float(static_cast<float>(value));
    } else {
      static_cast<float*>(y)[i] = static_cast<float>(value);
    }
  }
  double join(double a, double b) const {
    if (fold_ == Fold::kSum) return a + b;
    return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
  }

  /// x: [kept, reduced, run] -> [kept, run].
  void fold_columns(const KernelArgs& args) {
    const bool direct = scratch_bytes() == 0;
    float* to = direct ? static_cast<float*>(args.out[0]) : reinterpret_cast<float*>(args.scratch);
    const int64_t stride = direct ? layout_.run : padded_run();
    const bool plain = layout_.reduced.sizes.size() <= 1;
    const int64_t step = layout_.reduced.strides.empty() ? 0 : layout_.reduced.strides.back();
    const int64_t task = std::min(piece_, reduced_) * layout_.run;
    parallel_for(kept_ * pieces_, row_grain(task, kRowGrain), [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const int64_t base = layout_.kept.at(t / pieces_);
        const int64_t begin = t % pieces_ * piece_, end = std::min(reduced_, begin + piece_);
        float* y = to + t * stride;
        if (plain) {
          rows_.columns(at(args.in[0], base + begin * step), end - begin, step, y, layout_.run,
                        false);
        } else {
          for (int64_t r = begin; r < end; ++r)
            rows_.columns(at(args.in[0], base + layout_.reduced.at(r)), 1, 0, y, layout_.run,
                          r > begin);
        }
      }
    });
    if (direct) return;
    parallel_for(
        kept_, row_grain(pieces_ * layout_.run, kRowGrain), [&](int64_t first, int64_t last) {
          for (int64_t k = first; k < last; ++k) {
            float* partial = to + k * pieces_ * stride;
            if (!bf16_) {
              f32_rows_.columns(partial, pieces_, stride,
                                static_cast<float*>(args.out[0]) + k * layout_.run, layout_.run,
                                false);
            } else {
              f32_rows_.columns(partial + stride, pieces_ - 1, stride, partial, layout_.run, true);
              for (int64_t i = 0; i < layout_.run; ++i)
                put(args.out[0], k * layout_.run + i, static_cast<double>(partial[i]));
            }
          }
        });
  }

  /// x: [kept, reduced, run] -> [kept].
  void fold_runs(const KernelArgs& args) {
    const int64_t blocks = run_blocks(), work = reduced_ * blocks;
    auto* partial = reinterpret_cast<double*>(args.scratch);
    const int64_t task = std::min(piece_, work) * std::min(layout_.run, kPiece);
    parallel_for(kept_ * pieces_, row_grain(task, kRowGrain), [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        const int64_t base = layout_.kept.at(t / pieces_);
        const int64_t begin = t % pieces_ * piece_, end = std::min(work, begin + piece_);
        double total = identity();
        for (int64_t i = begin; i < end; ++i) {
          const int64_t in_run = i % blocks * kPiece;
          const int64_t offset = base + layout_.reduced.at(i / blocks) + in_run;
          total = join(total,
                       rows_.run(at(args.in[0], offset), std::min(kPiece, layout_.run - in_run)));
        }
        if (pieces_ == 1) {
          put(args.out[0], t, total);
        } else {
          partial[t] = total;
        }
      }
    });
    if (pieces_ == 1) return;
    for (int64_t k = 0; k < kept_; ++k) {
      double total = identity();
      for (int64_t p = 0; p < pieces_; ++p) total = join(total, partial[k * pieces_ + p]);
      put(args.out[0], k, total);
    }
  }

  ReducedLayout layout_;
  Fold fold_;
  bool bf16_;
  const ReductionRows &rows_, &f32_rows_;
  int64_t out_elements_;
  bool empty_;
  int64_t kept_, reduced_;
  int64_t piece_ = 1, pieces_ = 1;
};

/// min and product: rare, an element of the result after the other.
class PlainReduction final : public Kernel {
 public:
  explicit PlainReduction(const NodeView& node)
      : layout_(node.in[0].shape, node.attrs().get<std::vector<int64_t>>("axes")),
        is_min_(is(node.node(), Op::min)),
        is_empty_(node.in[0].shape.elements() == 0),
        out_elements_(node.out()[0].shape.elements()),
        kept_run_(layout_.run_is_kept ? layout_.run : 1),
        reduced_run_(layout_.run_is_kept ? 1 : layout_.run),
        reduced_(layout_.reduced.count()) {}

  void run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.in[0]);
    auto* y = static_cast<float*>(args.out[0]);
    const double start = is_min_ ? INFINITY : 1.0;
    parallel_for(out_elements_, row_grain(reduced_ * reduced_run_, kRowGrain),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = begin; k < end; ++k) {
                     double total = start;
                     const int64_t first =
                         is_empty_ ? 0 : layout_.kept.at(k / kept_run_) + k % kept_run_;
                     for (int64_t r = 0; !is_empty_ && r < reduced_; ++r) {
                       const float* from = x + first + layout_.reduced.at(r);
                       for (int64_t i = 0; i < reduced_run_; ++i)
                         total = join(total, static_cast<double>(from[i]));
                     }
                     y[k] = static_cast<float>(total);
                   }
                 });
  }

 private:
  double join(double a, double b) const {
    if (!is_min_) return a * b;
    return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
  }
  ReducedLayout layout_;
  bool is_min_, is_empty_;
  int64_t out_elements_, kept_run_, reduced_run_, reduced_;
};

}  // namespace

std::vector<KernelEntry> reduction_kernels() {
  std::vector<KernelEntry> list;
  for (const Op op : {Op::min, Op::product})
    list.push_back({op, "elements",
                    [](const NodeView& node) -> std::string {
                      return node.in[0].dtype == DType::f32 ? "" : "only f32";
                    },
                    [](const NodeView& node) -> std::unique_ptr<Kernel> {
                      return std::make_unique<PlainReduction>(node);
                    }});
  for (const Op op : {Op::sum, Op::max})
    list.push_back(
        {op, "rows", only_f32_or_bf16, [](const NodeView& node) -> std::unique_ptr<Kernel> {
           return std::make_unique<ReductionKernel>(node);
         }});
  return list;
}

}  // namespace brrr::cpu
