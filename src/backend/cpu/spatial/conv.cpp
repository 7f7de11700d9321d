// Convolution kernels of the CPU, in the order in which they are tried:
// - channels_last_packed: pictures with channels last, weights in panels of 16 bits or of integers
//   (packed_conv.h).
// - winograd: 3 x 3 kernels that the pass `winograd` has transformed (winograd_conv.h).
// - channels_last: every other convolution of pictures with channels last (channels_last_conv.h).
// - dots: few windows in an image, so that reading the weights dominates. Each weight is read once
//   and multiplied with all windows.
// - windows: depthwise convolutions with long rows, computed one row of windows at a time.
// - direct: every other window of more than one element, without a column matrix (direct_conv.h).
// - products: gemm(). The right operand is x itself for 1x1 kernels, and a column matrix (im2col)
//   for 16-bit dtypes that have matrix units.
// oneDNN is not used: its bits depend on the number of threads, and its blocked layouts would have
// to be converted to and from for every image.

#include "backend/cpu/spatial/conv.h"

#include <algorithm>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/spatial/channels_last_conv.h"
#include "backend/cpu/spatial/columns.h"
#include "backend/cpu/spatial/conv_sizes.h"
#include "backend/cpu/spatial/direct_conv.h"
#include "backend/cpu/spatial/dot_rows.h"
#include "backend/cpu/spatial/packed_conv.h"
#include "backend/cpu/spatial/window_rows.h"
#include "backend/cpu/spatial/winograd_conv.h"
#include "base/errors.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// Adds a number to each row of a product.
void add_row_bias(const void* bias, int64_t row, int64_t, int64_t rows, int64_t columns,
                  float* block, int64_t ld) {
  const auto add = window_rows().add_number;
  for (int64_t i = 0; i < rows; ++i)
    add(static_cast<const float*>(bias)[row + i], columns, block + i * ld);
}

class ConvProducts final : public Kernel {
 public:
  explicit ConvProducts(const NodeView& v)
      : s_(sizes_of_conv(v)), bias_(v), pointwise_(is_pointwise(s_.grid)) {}

  int64_t scratch_bytes() const override {
    return bias_.scratch_bytes() + (pointwise_ ? 0 : in_lines(s_.column_bytes()));
  }

  void run(const KernelArgs& args) override {
    const float* bias = bias_.read(args.in.data(), args.scratch);
    std::byte* columns = args.scratch + bias_.scratch_bytes();
    GemmArgs g;
    g.m = s_.mg();
    g.k = s_.terms();
    g.dtype = g.c_dtype = s_.dtype;
    g.lda = g.k;
    g.ldc = s_.out();
    const int64_t e = s_.element();
    for (int64_t n = 0; n < s_.n; ++n) {
      const std::byte* x = address_at(args.in[0], n * s_.c * s_.in() * e);
      auto* y = static_cast<std::byte*>(args.out[0]) + n * s_.m * s_.out() * e;
      if (pointwise_) {
        g.n = g.ldb = s_.out();
        g.a = args.in[1];
        g.b = x;
        g.c = y;
        if (bias != nullptr) g.epilogue = {&add_row_bias, bias};
        gemm_batched(g, s_.groups, s_.mg() * g.k, s_.cg() * s_.in(), s_.mg() * s_.out());
        continue;
      }
      for (int64_t group = 0; group < s_.groups; ++group) {
        g.a = address_at(args.in[1], group * s_.mg() * g.k * e);
        if (bias != nullptr) g.epilogue = {&add_row_bias, bias + group * s_.mg()};
        by_columns(g, x + group * s_.cg() * s_.in() * e, y + group * s_.mg() * s_.out() * e,
                   columns);
      }
    }
  }

 private:
  void by_columns(GemmArgs g, const std::byte* x, std::byte* y, std::byte* columns) const {
    const int64_t rows = window_row_count(s_.grid), step = s_.rows_at_a_time(),
                  width = s_.grid.out.back();
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t last = std::min(rows, first + step);
      g.n = g.ldb = (last - first) * width;
      parallel_for(g.k, std::max<int64_t>(1, 8192 / g.n), [&](int64_t begin, int64_t end) {
        gather_columns(s_.grid, static_cast<size_t>(s_.element()), x, begin, end, first, last,
                       columns);
      });
      g.b = columns;
      g.c = y + first * width * s_.element();
      gemm(g);
    }
  }

  ConvSizes s_;
  ConvBias bias_;
  bool pointwise_;
};

/// Convolutions whose groups read one channel each.
class ConvWindows final : public Kernel {
 public:
  explicit ConvWindows(const NodeView& v)
      : s_(sizes_of_conv(v)),
        bias_(v),
        plane_(s_.grid),
        taps_(s_.grid.kernel_elements()),
        workers_(thread_count()),
        worker_bytes_(in_lines(plane_.floats() * int64_t{sizeof(float)}) +
                      in_lines(plane_.row_windows() * int64_t{sizeof(float)}) +
                      in_lines(taps_ * int64_t{sizeof(float)})) {}

  int64_t scratch_bytes() const override {
    return bias_.scratch_bytes() + workers_ * worker_bytes_;
  }

  void run(const KernelArgs& args) override {
    const float* bias = bias_.read(args.in.data(), args.scratch);
    std::byte* const scratch = args.scratch + bias_.scratch_bytes();
    each_part_of_planes(s_.n * s_.c, s_.mg() * taps_ * s_.out(), workers_,
                        [&](int64_t worker, int64_t begin, int64_t end) {
                          std::byte* const own = scratch + worker * worker_bytes_;
                          plane_.pad(0, reinterpret_cast<float*>(own));
                          for (int64_t p = begin; p < end; ++p) run_plane(args, bias, p, own);
                        });
  }

 private:
  void run_plane(const KernelArgs& args, const float* bias, int64_t p, std::byte* scratch) const {
    const WindowRows& f = window_rows();
    auto* plane = reinterpret_cast<float*>(scratch);
    auto* row =
        reinterpret_cast<float*>(scratch + in_lines(plane_.floats() * int64_t{sizeof(float)}));
    float* weights = row + in_lines(plane_.row_windows() * int64_t{sizeof(float)}) / 4;
    const int64_t e = s_.element(), channel = p % s_.c, image = p / s_.c;
    plane_.fill(s_.dtype, address_at(args.in[0], p * s_.in() * e), plane);
    for (int64_t k = 0; k < s_.mg(); ++k) {
      const int64_t m = channel * s_.mg() + k;
      f.read(s_.dtype, address_at(args.in[1], m * taps_ * e), taps_, weights);
      auto* y = static_cast<std::byte*>(args.out[0]) + (image * s_.m + m) * s_.out() * e;
      for (int64_t r = 0; r < plane_.rows(); ++r, y += plane_.row_windows() * e) {
        float* const to = s_.dtype == DType::f32 ? reinterpret_cast<float*>(y) : row;
        f.add(plane + plane_.row_start(r), plane_.offsets().data(), weights, taps_,
              bias != nullptr ? bias[m] : 0.0f, plane_.row_windows(), to);
        if (to == row) f.write(s_.dtype, row, plane_.row_windows(), y);
      }
    }
  }

  ConvSizes s_;
  ConvBias bias_;
  WindowPlane plane_;
  int64_t taps_, workers_, worker_bytes_;
};

std::string windows_refusal(const NodeView& v) {
  if (std::string refusal = conv_float_refusal(v); !refusal.empty()) return refusal;
  constexpr int64_t kManyOutputs = 4, kShortRow = 32;
  const ConvSizes s = sizes_of_conv(v);
  if (s.cg() != 1) return "groups of more than one channel";
  if (s.mg() >= kManyOutputs) return "one channel that many read";
  if (s.grid.out.back() < kShortRow && DirectConv::refusal(v).empty()) return "short rows";
  return window_plane_refusal(s.grid);
}

/// Convolutions of a few windows: each row of the weights, as it lies, times all of them.
class ConvDots final : public Kernel {
 public:
  explicit ConvDots(const NodeView& v)
      : s_(sizes_of_conv(v)), bias_(v), x_is_window_(is_pointwise(s_.grid) && s_.out() == 1) {}

  int64_t scratch_bytes() const override {
    return bias_.scratch_bytes() + window_bytes() + (s_.dtype == DType::f32 ? 0 : sums_bytes());
  }

  void run(const KernelArgs& args) override {
    const float* bias = bias_.read(args.in.data(), args.scratch);
    std::byte* const windows = args.scratch + bias_.scratch_bytes();
    const bool narrow = s_.dtype != DType::f32;
    const int64_t e = s_.element(), groups = s_.n * s_.groups;
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t m = i % s_.groups * s_.mg();
      const std::byte* x = address_at(args.in[0], i * s_.cg() * s_.in() * e);
      if (!x_is_window_) {
        gather_windows(s_.grid, static_cast<size_t>(e), x, s_.cg(), windows);
        x = windows;
      }
      auto* y = static_cast<std::byte*>(args.out[0]) + i * s_.mg() * s_.out() * e;
      auto* sums = reinterpret_cast<float*>(narrow ? windows + window_bytes() : y);
      multiply(address_at(args.in[1], m * s_.terms() * e), x, bias != nullptr ? bias + m : nullptr,
               sums);
      if (narrow) window_rows().write(s_.dtype, sums, s_.mg() * s_.out(), y);
    }
  }

 private:
  int64_t window_bytes() const {
    return x_is_window_ ? 0 : in_lines(s_.out() * s_.terms() * s_.element());
  }
  int64_t sums_bytes() const { return in_lines(s_.mg() * s_.out() * int64_t{sizeof(float)}); }

  void multiply(const std::byte* w, const std::byte* windows, const float* bias,
                float* sums) const {
    // A thread's share must take longer than waking the thread does.
    constexpr int64_t kShare = int64_t{1} << 18, kReading = 2;
    const int64_t out = s_.out(), k = s_.terms();
    const int64_t grain = kShare / (k * std::max(out, kReading)) + 1;
    parallel_for(s_.mg(), grain, [&](int64_t begin, int64_t end) {
      dot_rows().multiply(s_.dtype, w + begin * k * s_.element(), end - begin, windows, out, k,
                          sums + begin * out, out);
      if (bias == nullptr) return;
      for (int64_t m = begin; m < end; ++m)
        for (int64_t o = 0; o < out; ++o) sums[m * out + o] += bias[m];
    });
  }

  ConvSizes s_;
  ConvBias bias_;
  bool x_is_window_;
};

std::string dots_refusal(const NodeView& v) {
  if (std::string refusal = conv_float_refusal(v); !refusal.empty()) return refusal;
  const ConvSizes s = sizes_of_conv(v);
  const int64_t lanes = dot_rows().lanes;
  // A tile of a product has at least one vector of windows, and computes those that are not there.
  if (s.out() > lanes / 2) return "windows that fill a tile";
  return s.terms() < 2 * lanes ? "too few terms for whole vectors" : "";
}

class ConvDirect final : public Kernel {
 public:
  explicit ConvDirect(const NodeView& v) : conv_(v) {}
  int64_t scratch_bytes() const override { return conv_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    conv_.run(args.in.data(), args.out[0], args.scratch);
  }

 private:
  DirectConv conv_;
};

/// Exact sums of i32, modulo 2^32: what quantised convolutions are made of.
class ConvIntegers final : public Kernel {
 public:
  explicit ConvIntegers(const NodeView& v) : s_(sizes_of_conv(v)) {}
  int64_t scratch_bytes() const override { return in_lines(s_.column_bytes()); }

  void run(const KernelArgs& args) override {
    const int64_t rows = window_row_count(s_.grid), step = s_.rows_at_a_time(),
                  width = s_.grid.out.back();
    auto* columns = reinterpret_cast<int32_t*>(args.scratch);
    for (int64_t n = 0; n < s_.n * s_.groups; ++n)
      for (int64_t first = 0; first < rows; first += step) {
        const int64_t last = std::min(rows, first + step), windows = (last - first) * width;
        const auto* x = static_cast<const int32_t*>(args.in[0]) + n * s_.cg() * s_.in();
        const auto* w =
            static_cast<const int32_t*>(args.in[1]) + n % s_.groups * s_.mg() * s_.terms();
        auto* y = static_cast<int32_t*>(args.out[0]) + n * s_.mg() * s_.out() + first * width;
        parallel_for(
            s_.terms(), std::max<int64_t>(1, 8192 / windows), [&](int64_t begin, int64_t end) {
              gather_columns(s_.grid, sizeof(int32_t), x, begin, end, first, last, columns);
            });
        parallel_for(s_.mg(), 1, [&](int64_t begin, int64_t end) {
          for (int64_t m = begin; m < end; ++m) {
            int32_t* const row = y + m * s_.out();
            std::fill(row, row + windows, 0);
            for (int64_t k = 0; k < s_.terms(); ++k)
              window_rows().add_multiple(w[m * s_.terms() + k], columns + k * windows, windows,
                                         row);
          }
        });
      }
  }

 private:
  ConvSizes s_;
};

std::string integers_refusal(const NodeView& v) {
  if (ops::has_channels_last(v.attrs())) return "channels last";
  if (v.in[0].dtype != DType::i32) return fmt::format("dtype {}: only i32", name_of(v.in[0].dtype));
  return v.out()[0].shape.elements() == 0 || v.in[1].shape.elements() == 0
             ? "an operand has no elements"
             : "";
}

/// x = the sum of w's transpose times y, put where the taps stand.
class ConvTransposeProducts final : public Kernel {
 public:
  explicit ConvTransposeProducts(const NodeView& v)
      : s_(sizes_of_conv_transpose(v)), pointwise_(is_pointwise(s_.grid)) {
    constexpr int64_t kTransposeBytes = int64_t{1} << 22;
    const int64_t bytes = s_.grid.kernel_elements() * s_.out() * int64_t{sizeof(float)};
    channels_ = std::clamp<int64_t>(kTransposeBytes / std::max<int64_t>(1, bytes), 1, s_.cg());
  }

  int64_t scratch_bytes() const override {
    return pointwise_ ? 0 : columns_bytes() + (s_.dtype == DType::f32 ? 0 : planes_bytes());
  }

  void run(const KernelArgs& args) override {
    const int64_t e = s_.element(), taps = s_.grid.kernel_elements();
    GemmArgs g;
    g.k = s_.mg();
    g.n = g.ldb = g.ldc = s_.out();
    g.dtype = s_.dtype;
    g.c_dtype = pointwise_ ? s_.dtype : DType::f32;
    g.trans_a = true;
    g.lda = s_.terms();
    for (int64_t n = 0; n < s_.n * s_.groups; ++n) {
      const int64_t group = n % s_.groups;
      const std::byte* w = address_at(args.in[1], group * s_.mg() * s_.terms() * e);
      auto* x = static_cast<std::byte*>(args.out[0]) + n * s_.cg() * s_.in() * e;
      g.b = address_at(args.in[0], n * s_.mg() * s_.out() * e);
      if (pointwise_) {
        g.a = w;
        g.m = s_.cg();
        g.c = x;
        gemm(g);
        continue;
      }
      for (int64_t c = 0; c < s_.cg(); c += channels_) {
        const int64_t count = std::min(channels_, s_.cg() - c);
        g.a = w + c * taps * e;
        g.m = count * taps;
        g.c = args.scratch;
        gemm(g);
        add(args.scratch, count, x + c * s_.in() * e);
      }
    }
  }

 private:
  int64_t columns_bytes() const {
    return in_lines(channels_ * s_.grid.kernel_elements() * s_.out() * int64_t{sizeof(float)});
  }
  int64_t planes_bytes() const { return in_lines(channels_ * s_.in() * int64_t{sizeof(float)}); }

  void add(std::byte* scratch, int64_t channels, std::byte* x) const {
    const auto* columns = reinterpret_cast<const float*>(scratch);
    const bool narrow = s_.dtype != DType::f32;
    auto* planes = reinterpret_cast<float*>(narrow ? scratch + columns_bytes() : x);
    parallel_for(channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        float* plane = planes + c * s_.in();
        std::fill(plane, plane + s_.in(), 0.0f);
        add_columns(s_.grid, columns + c * s_.grid.kernel_elements() * s_.out(), plane);
        if (narrow) window_rows().write(s_.dtype, plane, s_.in(), x + c * s_.in() * s_.element());
      }
    });
  }

  ConvSizes s_;
  bool pointwise_;
  int64_t channels_ = 1;  // of x, whose columns are made at a time
};

/// dw = the sum over images and windows of dy times the columns.
class ConvWeightGradProducts final : public Kernel {
 public:
  explicit ConvWeightGradProducts(const NodeView& v) : s_(sizes_of_conv_weight_grad(v)) {}

  int64_t scratch_bytes() const override {
    return in_lines(s_.column_bytes()) + (s_.dtype == DType::f32 ? 0 : sums_bytes());
  }

  void run(const KernelArgs& args) override {
    const int64_t e = s_.element(), rows = window_row_count(s_.grid), step = s_.rows_at_a_time(),
                  width = s_.grid.out.back();
    const bool narrow = s_.dtype != DType::f32;
    auto* sums = static_cast<float*>(
        narrow ? static_cast<void*>(args.scratch + in_lines(s_.column_bytes())) : args.out[0]);
    GemmArgs g;
    g.m = s_.mg();
    g.n = g.ldc = s_.terms();
    g.dtype = s_.dtype;
    g.lda = s_.out();
    g.trans_b = true;
    for (int64_t n = 0; n < s_.n; ++n)
      for (int64_t group = 0; group < s_.groups; ++group) {
        const std::byte* x = address_at(args.in[0], (n * s_.c + group * s_.cg()) * s_.in() * e);
        const std::byte* dy = address_at(args.in[1], (n * s_.m + group * s_.mg()) * s_.out() * e);
        for (int64_t first = 0; first < rows; first += step) {
          const int64_t last = std::min(rows, first + step);
          g.k = g.ldb = (last - first) * width;
          parallel_for(s_.terms(), std::max<int64_t>(1, 8192 / g.k),
                       [&](int64_t begin, int64_t end) {
                         gather_columns(s_.grid, static_cast<size_t>(e), x, begin, end, first, last,
                                        args.scratch);
                       });
          g.a = dy + first * width * e;
          g.b = args.scratch;
          g.c = sums + group * s_.mg() * s_.terms();
          g.beta = n == 0 && first == 0 ? 0.0f : 1.0f;
          gemm(g);
        }
      }
    if (narrow) window_rows().write(s_.dtype, sums, s_.m * s_.terms(), args.out[0]);
  }

 private:
  int64_t sums_bytes() const { return in_lines(s_.m * s_.terms() * int64_t{sizeof(float)}); }
  ConvSizes s_;
};

std::string direct_refusal(const NodeView& v) {
  if (std::string refusal = DirectConv::refusal(v); !refusal.empty()) return refusal;
  // A 1x1 convolution is a product of x itself.
  return is_pointwise(sizes_of_conv(v).grid) ? "windows that are elements" : "";
}

template <typename C>
class ChannelsLastKernel final : public Kernel {
 public:
  explicit ChannelsLastKernel(const NodeView& v) : conv_(v) {}
  int64_t scratch_bytes() const override { return conv_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    conv_.run(args.in.data(), args.out[0], args.scratch);
  }

 private:
  C conv_;
};

template <typename K>
std::unique_ptr<Kernel> make_conv(const NodeView& v) {
  return std::make_unique<K>(v);
}

}  // namespace

std::string blockwise_conv_refusal(const NodeView& v) {
  if (ops::has_channels_last(v.attrs())) {
    const ConvSizes s = sizes_of_conv(v);
    if (s.cg() == 1 && s.mg() == 1) return "groups of one channel";
    if (PackedConv::refusal(v).empty() || WinogradConv::refusal(v).empty()) return "";
    return ChannelsLastConv::refusal(v);
  }
  if (std::string refusal = direct_refusal(v); !refusal.empty()) return refusal;
  if (dots_refusal(v).empty()) return "a few windows";
  return windows_refusal(v).empty() ? "groups of one channel" : "";
}

std::optional<GemmArgs> conv_product(const NodeView& v) {
  if (!conv_float_refusal(v).empty()) return std::nullopt;
  const bool forward = is(v.node(), Op::conv), transposed = is(v.node(), Op::conv_transpose);
  if (forward &&
      (dots_refusal(v).empty() || windows_refusal(v).empty() || blockwise_conv_refusal(v).empty()))
    return std::nullopt;
  const ConvSizes s = forward      ? sizes_of_conv(v)
                      : transposed ? sizes_of_conv_transpose(v)
                                   : sizes_of_conv_weight_grad(v);
  const int64_t columns =
      is_pointwise(s.grid) || transposed ? s.out() : s.rows_at_a_time() * s.grid.out.back();
  GemmArgs g;
  g.dtype = s.dtype;
  if (forward) {
    g.m = s.mg();
    g.n = g.ldb = g.ldc = columns;
    g.k = g.lda = s.terms();
  } else if (transposed) {
    g.m = g.lda = s.terms();
    g.n = g.ldb = g.ldc = columns;
    g.k = s.mg();
    g.trans_a = true;
  } else {
    g.m = s.mg();
    g.n = g.ldc = s.terms();
    g.k = g.lda = g.ldb = columns;
    g.trans_b = true;
  }
  return g;
}

std::vector<KernelEntry> conv_kernels() {
  using Conv = ChannelsLastKernel<ChannelsLastConv>;
  using WeightGrad = ChannelsLastKernel<ChannelsLastWeightGrad>;
  using Packed = ChannelsLastKernel<PackedConv>;
  using Winograd = ChannelsLastKernel<WinogradConv>;
  return {{Op::conv, "channels_last_packed", PackedConv::refusal, make_conv<Packed>, kKnowsStorage},
          {Op::conv, "winograd", WinogradConv::refusal, make_conv<Winograd>, kKnowsStorage},
          {Op::conv, "channels_last", ChannelsLastConv::refusal, make_conv<Conv>, kKnowsStorage},
          {Op::conv_transpose, "channels_last", ChannelsLastConv::refusal, make_conv<Conv>},
          {Op::conv_weight_grad, "channels_last", ChannelsLastWeightGrad::refusal,
           make_conv<WeightGrad>},
          {Op::conv, "dots", dots_refusal, make_conv<ConvDots>},
          {Op::conv, "windows", windows_refusal, make_conv<ConvWindows>},
          {Op::conv, "direct", direct_refusal, make_conv<ConvDirect>},
          {Op::conv, "products", conv_float_refusal, make_conv<ConvProducts>},
          {Op::conv, "integers", integers_refusal, make_conv<ConvIntegers>},
          {Op::conv_transpose, "products", conv_float_refusal, make_conv<ConvTransposeProducts>},
          {Op::conv_weight_grad, "products", conv_float_refusal, make_conv<ConvWeightGradProducts>},
          winograd_weight_kernel()};
}

}  // namespace brrr::cpu
