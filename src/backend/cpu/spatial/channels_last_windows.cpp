// Pools and depthwise convolutions of pictures with channels last: kernels that compute a row of
// windows at a time, vectors along the channels (channel_windows.h). Padding is left out instead of
// read: windows at a border have fewer taps. Sums are in f32, taps in row-major order, so the bits
// depend on neither the number of threads nor the other pictures.

#include <algorithm>
#include <vector>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/spatial/channel_windows.h"
#include "backend/cpu/spatial/conv_sizes.h"
#include "backend/cpu/spatial/pool.h"
#include "backend/cpu/spatial/window_pass.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kMostTaps = 256;

/// A pass over one picture [high.in, wide.in, channels], row of windows by row of windows.
class ChannelPass {
 public:
  ChannelPass(PassAxis high, PassAxis wide, int64_t channels, int64_t kernel_width)
      : high_(std::move(high)),
        wide_(std::move(wide)),
        channels_(channels),
        kernel_width_(kernel_width) {
    for (int64_t i = 0; i < wide_.out; ++i) {
      const Taps taps = taps_of(wide_, i);
      if (segments_.empty() || segments_.back().taps != taps) segments_.push_back({taps, i, 0});
      ++segments_.back().windows;
    }
  }

  int64_t rows() const { return high_.out; }
  int64_t most_taps() const { return high_.tap_count() * wide_.tap_count(); }
  const PassAxis& high() const { return high_; }
  const PassAxis& wide() const { return wide_; }

  /// f(run, the kernel's index of each tap) for stretches of row `row` that read the same taps, of
  /// which there may be none, and channels [first, first + count). y: the result of the pass' first
  /// window in that row; windows are `y_pixel` floats apart.
  template <typename F>
  void each_run(const float* x, int64_t row, int64_t first, int64_t count, float* y,
                int64_t y_pixel, F f) const {
    const Taps lines = taps_of(high_, row);
    int64_t offsets[kMostTaps], indices[kMostTaps];
    for (const Segment& s : segments_) {
      int64_t taps = 0;
      for (int64_t t = lines.begin; t < lines.end; ++t)
        for (int64_t u = s.taps.begin; u < s.taps.end; ++u) {
          offsets[taps] = ((high_.origin + row * high_.step + t * high_.dilation) * wide_.in +
                           wide_.origin + s.first * wide_.step + u * wide_.dilation) *
                          channels_;
          indices[taps++] = high_.taps[static_cast<size_t>(t)] * kernel_width_ +
                            wide_.taps[static_cast<size_t>(u)];
        }
      f(ChannelRun{x + first, wide_.step * channels_, offsets, taps, s.windows, count,
                   y + first + s.first * y_pixel, y_pixel},
        indices);
    }
  }

 private:
  struct Taps {
    int64_t begin = 0, end = 0;
    bool operator==(const Taps&) const = default;
  };
  struct Segment {
    Taps taps;
    int64_t first = 0, windows = 0;
  };
  /// The taps of window i that read an element.
  static Taps taps_of(const PassAxis& axis, int64_t i) {
    const int64_t first = axis.origin + i * axis.step;
    const int64_t begin = std::max<int64_t>(0, ceil_div(-first, axis.dilation));
    const int64_t end = std::clamp<int64_t>(ceil_div(axis.in - first, axis.dilation), begin,
                                            std::max(begin, axis.tap_count()));
    return {begin, end};
  }

  PassAxis high_, wide_;
  int64_t channels_, kernel_width_;
  std::vector<Segment> segments_;
};

struct PictureSizes {
  int64_t images = 0, channels = 0;
  ops::WindowGrid grid;
};

PictureSizes sizes_of_pool(const NodeView& v) {
  const ops::Pictures x(v.in[0].shape, true);
  return {x.batch.size(), x.channels,
          ops::window_grid(v.attrs(), x.spatial, v.attrs().get<std::vector<int64_t>>("kernel"))
              .without_single_elements()};
}

ChannelPass forward_pass(const PictureSizes& s) {
  return {forward_axis(grid_axis(s.grid, false)), forward_axis(grid_axis(s.grid, true)), s.channels,
          s.grid.kernel.back()};
}

std::string channels_refusal(const NodeView& v) {
  if (!ops::has_channels_last(v.attrs())) return "channels first";
  return picture_float_refusal(v);
}
std::string taps_refusal(const ops::WindowGrid& grid, const Node& node) {
  if (grid.kernel_elements() > kMostTaps) return "windows of too many elements";
  return grid_refusal(grid, node);
}

/// body(image, row, first channel, channels) for all rows of a pass over pictures. A block of
/// channels goes through neighbouring rows, so that what overlapping windows read again is still in
/// the L1 cache. With `whole`, all rows of a block belong to one thread.
template <typename Body>
void each_block(const ChannelPass& pass, int64_t images, int64_t channels, bool whole, Body body) {
  constexpr int64_t kBlock = 16, kShare = 64, kSmallWork = 1 << 15;
  const int64_t shares = ceil_div(channels, kShare);
  const int64_t work = images * pass.rows() * pass.wide().out * channels * pass.most_taps();
  const int64_t team = work < kSmallWork ? 1 : thread_count();
  const int64_t parts =
      whole ? 1 : std::clamp<int64_t>(ceil_div(4 * team, images * shares), 1, pass.rows());
  parallel_pieces(images * shares * parts, team, [&](int64_t piece, int) {
    const int64_t part = piece % parts, share = piece / parts % shares,
                  image = piece / parts / shares;
    const int64_t begin = pass.rows() * part / parts, end = pass.rows() * (part + 1) / parts;
    const int64_t last = std::min(channels, (share + 1) * kShare);
    for (int64_t c = share * kShare; c < last; c += kBlock)
      for (int64_t row = begin; row < end; ++row) body(image, row, c, std::min(kBlock, last - c));
  });
}

/// x as f32: itself, or widened into scratch memory.
const float* widened(DType dtype, const void* x, int64_t n, std::byte* scratch) {
  if (dtype == DType::f32) return static_cast<const float*>(x);
  auto* const to = reinterpret_cast<float*>(scratch);
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    window_rows().read(dtype, address_at(x, begin * static_cast<int64_t>(bytes_of(dtype))),
                       end - begin, to + begin);
  });
  return to;
}
void narrowed(DType dtype, const float* x, int64_t n, void* y) {
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    window_rows().write(dtype, x + begin, end - begin,
                        static_cast<std::byte*>(y) + begin * static_cast<int64_t>(bytes_of(dtype)));
  });
}
int64_t wide_bytes(DType dtype, const Shape& shape) {
  return dtype == DType::f32 ? 0 : in_lines(shape.elements() * int64_t{sizeof(float)});
}

template <Op kOp>
class ChannelPool final : public Kernel {
 public:
  explicit ChannelPool(const NodeView& v)
      : s_(sizes_of_pool(v)),
        pass_(forward_pass(s_)),
        dtype_(v.in[0].dtype),
        x_bytes_(wide_bytes(dtype_, v.in[0].shape)),
        y_bytes_(wide_bytes(dtype_, v.out()[0].shape)) {}
  int64_t scratch_bytes() const override { return x_bytes_ + y_bytes_; }

  void run(const KernelArgs& args) override {
    const int64_t in = s_.grid.in_elements() * s_.channels, width = pass_.wide().out * s_.channels,
                  out = pass_.rows() * width;
    const float* x = widened(dtype_, args.in[0], s_.images * in, args.scratch);
    auto* const y = dtype_ == DType::f32 ? static_cast<float*>(args.out[0])
                                         : reinterpret_cast<float*>(args.scratch + x_bytes_);
    each_block(pass_, s_.images, s_.channels, false,
               [&](int64_t image, int64_t row, int64_t first, int64_t count) {
                 pass_.each_run(x + image * in, row, first, count, y + image * out + row * width,
                                s_.channels, [&](const ChannelRun& run, const int64_t* indices) {
                                  if constexpr (kOp == Op::max_pool)
                                    channel_windows().largest(run);
                                  else
                                    channel_windows().sum(run, nullptr, 0, indices, nullptr);
                                });
               });
    if (dtype_ != DType::f32) narrowed(dtype_, y, s_.images * out, args.out[0]);
  }

 private:
  PictureSizes s_;
  ChannelPass pass_;
  DType dtype_;
  int64_t x_bytes_, y_bytes_;
};

/// The derivative of max_pool. Windows may overlap, so one thread adds all windows of a channel.
class ChannelPoolGrad final : public Kernel {
 public:
  explicit ChannelPoolGrad(const NodeView& v)
      : s_(sizes_of_pool(v)),
        pass_(forward_pass(s_)),
        dtype_(v.in[0].dtype),
        x_bytes_(wide_bytes(dtype_, v.in[0].shape)),
        y_bytes_(wide_bytes(dtype_, v.in[1].shape)) {}
  int64_t scratch_bytes() const override { return 2 * x_bytes_ + y_bytes_; }

  void run(const KernelArgs& args) override {
    const int64_t in = s_.grid.in_elements() * s_.channels, width = pass_.wide().out * s_.channels,
                  out = pass_.rows() * width;
    const float* x = widened(dtype_, args.in[0], s_.images * in, args.scratch);
    // ChannelRun::y is only read.
    auto* const dy =
        const_cast<float*>(widened(dtype_, args.in[1], s_.images * out, args.scratch + x_bytes_));
    auto* const dx = dtype_ == DType::f32
                         ? static_cast<float*>(args.out[0])
                         : reinterpret_cast<float*>(args.scratch + x_bytes_ + y_bytes_);
    parallel_for(s_.images * in, 1 << 15,
                 [&](int64_t begin, int64_t end) { std::fill(dx + begin, dx + end, 0.0f); });
    each_block(pass_, s_.images, s_.channels, true,
               [&](int64_t image, int64_t row, int64_t first, int64_t count) {
                 pass_.each_run(x + image * in, row, first, count, dy + image * out + row * width,
                                s_.channels, [&](const ChannelRun& run, const int64_t*) {
                                  channel_windows().add_to_largest(run, dx + image * in + first);
                                });
               });
    if (dtype_ != DType::f32) narrowed(dtype_, dx, s_.images * in, args.out[0]);
  }

 private:
  PictureSizes s_;
  ChannelPass pass_;
  DType dtype_;
  int64_t x_bytes_, y_bytes_;
};

/// A convolution whose groups are one channel each, or its derivative in x.
class ChannelDepthwise final : public Kernel {
 public:
  explicit ChannelDepthwise(const NodeView& v)
      : transposed_(is(v.node(), Op::conv_transpose)),
        s_(transposed_ ? sizes_of_conv_transpose(v) : sizes_of_conv(v)),
        bias_(v),
        source_bytes_(wide_bytes(s_.dtype, v.in[0].shape)),
        result_bytes_(wide_bytes(s_.dtype, v.out()[0].shape)) {
    const GridAxis high = grid_axis(s_.grid, false), wide = grid_axis(s_.grid, true);
    const auto axes = [&](const GridAxis& axis) {
      return transposed_ ? backward_axes(axis) : std::vector{forward_axis(axis)};
    };
    int64_t covered = 0;
    for (const PassAxis& h : axes(high))
      for (const PassAxis& w : axes(wide)) {
        passes_.emplace_back(h, w, s_.c, wide.kernel);
        covered += h.out * w.out;
      }
    result_wide_ = transposed_ ? wide.in : wide.out;
    result_pixels_ = transposed_ ? s_.in() : s_.out();
    leaves_gaps_ = covered < result_pixels_;
  }
  int64_t scratch_bytes() const override {
    return bias_.scratch_bytes() + weight_bytes() + source_bytes_ + result_bytes_;
  }

  void run(const KernelArgs& args) override {
    std::byte* scratch = args.scratch;
    const float* bias = bias_.read(args.in.data(), scratch);
    scratch += bias_.scratch_bytes();
    auto* const weights = reinterpret_cast<float*>(scratch);  // [taps, channels]
    const int64_t taps = s_.grid.kernel_elements();
    for (int64_t c = 0; c < s_.c; ++c)
      for (int64_t t = 0; t < taps; ++t)
        window_rows().read(s_.dtype, address_at(args.in[1], (c * taps + t) * s_.element()), 1,
                           weights + t * s_.c + c);
    scratch += weight_bytes();
    const int64_t source_pixels = transposed_ ? s_.out() : s_.in();
    const float* x = widened(s_.dtype, args.in[0], s_.n * source_pixels * s_.c, scratch);
    scratch += source_bytes_;
    const int64_t results = s_.n * result_pixels_ * s_.c;
    auto* const y = s_.dtype == DType::f32 ? static_cast<float*>(args.out[0])
                                           : reinterpret_cast<float*>(scratch);
    if (leaves_gaps_) std::fill(y, y + results, 0.0f);
    for (const ChannelPass& pass : passes_) {
      const PassAxis &high = pass.high(), &wide = pass.wide();
      each_block(
          pass, s_.n, s_.c, false, [&](int64_t image, int64_t row, int64_t first, int64_t count) {
            const int64_t pixel = image * result_pixels_ +
                                  (high.first_result + row * high.result_step) * result_wide_ +
                                  wide.first_result;
            pass.each_run(x + image * source_pixels * s_.c, row, first, count, y + pixel * s_.c,
                          wide.result_step * s_.c,
                          [&](const ChannelRun& run, const int64_t* indices) {
                            channel_windows().sum(run, weights + first, s_.c, indices,
                                                  bias != nullptr ? bias + first : nullptr);
                          });
          });
    }
    if (s_.dtype != DType::f32) narrowed(s_.dtype, y, results, args.out[0]);
  }

 private:
  int64_t weight_bytes() const {
    return in_lines(s_.c * s_.grid.kernel_elements() * int64_t{sizeof(float)});
  }

  bool transposed_;
  ConvSizes s_;
  ConvBias bias_;
  int64_t source_bytes_, result_bytes_;
  std::vector<ChannelPass> passes_;
  int64_t result_wide_ = 1, result_pixels_ = 1;
  bool leaves_gaps_ = false;
};

std::string depthwise_refusal(const NodeView& v) {
  if (std::string refusal = channels_refusal(v); !refusal.empty()) return refusal;
  const ConvSizes s = is(v.node(), Op::conv) ? sizes_of_conv(v) : sizes_of_conv_transpose(v);
  if (s.cg() != 1 || s.mg() != 1) return "groups of more than one channel";
  if (!v.in[1].storage.is_plain()) return "weights in panels";
  if (v.attrs().find("winograd") != nullptr) return "transformed weights";
  return taps_refusal(s.grid, v.node());
}

std::string channel_pool_refusal(const NodeView& v) {
  if (std::string refusal = channels_refusal(v); !refusal.empty()) return refusal;
  if (is(v.node(), Op::max_pool) && reads_indices(v)) return "its indices are read";
  return taps_refusal(sizes_of_pool(v).grid, v.node());
}

template <typename K>
std::unique_ptr<Kernel> make_windows(const NodeView& v) {
  return std::make_unique<K>(v);
}

}  // namespace

std::vector<KernelEntry> channels_last_window_kernels() {
  return {
      {Op::conv, "depthwise", depthwise_refusal, make_windows<ChannelDepthwise>},
      {Op::conv_transpose, "depthwise", depthwise_refusal, make_windows<ChannelDepthwise>},
      {Op::max_pool, "channels_last", channel_pool_refusal,
       make_windows<ChannelPool<Op::max_pool>>},
      {Op::sum_pool, "channels_last", channel_pool_refusal,
       make_windows<ChannelPool<Op::sum_pool>>},
      {Op::max_pool_grad, "channels_last", channel_pool_refusal, make_windows<ChannelPoolGrad>}};
}

}  // namespace brrr::cpu
