// sum, max and min of f32 and the floats of 16 bits over any axes. The shape alone decides how a
// long reduction is cut into pieces, and the partial results are folded in order, so the bits do
// not depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/reduced_layout.h"
#include "backend/cpu/rows/reduction_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kPiece = 32768;  // elements of x that one piece of a long reduction reads

class ReductionKernel final : public Kernel {
 public:
  explicit ReductionKernel(const NodeView& node)
      : layout_(node.in[0].shape, node.attrs().get<std::vector<int64_t>>("axes")),
        fold_(is(node.node(), Op::sum)   ? Fold::kSum
              : is(node.node(), Op::max) ? Fold::kMax
                                         : Fold::kMin),
        dtype_(node.in[0].dtype),
        rows_(reduction_rows(fold_, dtype_)),
        f32_rows_(reduction_rows(fold_, DType::f32)),
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
    return pieces_ == 1 && !is_narrow()
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
  bool is_narrow() const { return dtype_ != DType::f32; }
  double identity() const {
    return fold_ == Fold::kSum ? 0.0 : fold_ == Fold::kMax ? -INFINITY : INFINITY;
  }
  const std::byte* at(const void* x, int64_t element) const {
    return static_cast<const std::byte*>(x) + element * static_cast<int64_t>(bytes_of(dtype_));
  }
  void put(void* y, int64_t i, double value) const {
    store_from_double(dtype_, y, i, static_cast<double>(static_cast<float>(value)));
  }
  double join(double a, double b) const {
    if (fold_ == Fold::kSum) return a + b;
    return std::isnan(a) || std::isnan(b) ? NAN
           : fold_ == Fold::kMax          ? std::max(a, b)
                                          : std::min(a, b);
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
            if (!is_narrow()) {
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
  DType dtype_;
  const ReductionRows &rows_, &f32_rows_;
  int64_t out_elements_;
  bool empty_;
  int64_t kept_, reduced_;
  int64_t piece_ = 1, pieces_ = 1;
};

}  // namespace

std::vector<KernelEntry> reduction_kernels() {
  std::vector<KernelEntry> list;
  for (const Op op : {Op::sum, Op::max, Op::min})
    list.push_back(
        {op, "rows", only_f32_or_16_bits, [](const NodeView& node) -> std::unique_ptr<Kernel> {
           return std::make_unique<ReductionKernel>(node);
         }});
  for (KernelEntry& entry : scalar_reduction_kernels()) list.push_back(std::move(entry));
  return list;
}

}  // namespace brrr::cpu
