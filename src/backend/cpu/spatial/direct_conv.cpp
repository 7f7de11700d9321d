#include "backend/cpu/spatial/direct_conv.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu/spatial/conv_tiles.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kLineFloats = 16;
constexpr int64_t kOverrun = 16;                           // floats of the widest vector
constexpr int64_t kPlaneBytes = 1 << 18;                   // size of the planes of a block
constexpr int64_t kSumFloats = 1 << 15;                    // sums kept until they are stored
constexpr int64_t kFewWindows = 256, kManyWindows = 1024;  // in a task
constexpr int64_t kWeightFloats = 3 << 14;                 // weights that stay in L2
// Starting the team costs about as much as this many multiply-adds.
constexpr int64_t kSerial = int64_t{1} << 18;

PlaneAxis plane_axis(const ops::WindowGrid& grid, size_t from_last) {
  PlaneAxis axis;
  if (from_last < grid.axes()) {
    const size_t a = grid.axes() - 1 - from_last;
    axis.in = grid.in[a];
    axis.kernel = grid.kernel[a];
    axis.out = grid.out[a];
    axis.stride = grid.windows.strides[a];
    axis.dilation = grid.windows.dilations[a];
    axis.before = grid.before(a);
  }
  for (int64_t tap = 0; tap < axis.kernel; ++tap) {
    const int64_t phase = tap * axis.dilation % axis.stride;
    if (std::ranges::find(axis.phases, phase) == axis.phases.end()) axis.phases.push_back(phase);
  }
  return axis;
}

/// The places [first, last) of a row that lie inside the axis, where place 0 is `element`. The
/// others are padding.
struct PlaceSpan {
  int64_t first = 0, last = 0;
  PlaceSpan(int64_t element, int64_t stride, int64_t in, int64_t count) {
    first = element >= 0 ? 0 : std::min(count, ceil_div(-element, stride));
    last = element >= in ? 0 : std::min(count, (in - 1 - element) / stride + 1);
    last = std::max(first, last);
  }
};

/// The width of a row in a plane, such that windows that reach beyond it read the padding of the
/// next row.
int64_t plane_width(const PlaneAxis& axis, int64_t windows) {
  const int64_t span = windows + axis.reach();
  if (windows < axis.out) return span;  // a task of a part of a row
  int64_t width = windows;
  for (size_t phase = 0; phase < axis.phases.size(); ++phase) {
    const PlaceSpan places(axis.element(phase, 0), axis.stride, axis.in, span);
    width = std::max({width, places.last, span - places.first});
  }
  return width;
}

int64_t equal_parts(int64_t all, int64_t most) { return ceil_div(all, ceil_div(all, most)); }

/// The number of planes in a block: bounded by the terms that are summed sequentially, and by the
/// rows that a tile reads, which should stay in L1.
int64_t planes_at_a_time(int64_t planes, int64_t rows, int64_t columns) {
  constexpr int64_t kRows = 192;
  const int64_t most = std::min(kGemmBlockK / (rows * columns), kRows / rows);
  return equal_parts(planes, std::max<int64_t>(1, most));
}

}  // namespace

int64_t PlaneAxis::phase_of(int64_t tap) const {
  return std::ranges::find(phases, tap * dilation % stride) - phases.begin();
}

/// Output channels [channel, channel + channels) of a group, for some window rows of an image.
struct DirectConv::Task {
  int64_t image = 0, group = 0, outer = 0, channel = 0, channels = 0;
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

struct DirectConv::Memory {
  const std::byte* x = nullptr;
  const float *weights = nullptr, *bias = nullptr;
  std::byte* y = nullptr;
  GemmEpilogue epilogue = {};
  const ConvTiles* tiles = nullptr;
  float *planes = nullptr, *sums = nullptr, *row = nullptr;
};

DirectConv::DirectConv(const NodeView& v)
    : s_(sizes_of_conv(v)), bias_(v), high_(plane_axis(s_.grid, 1)), wide_(plane_axis(s_.grid, 0)) {
  for (size_t a = 0; a + 2 < s_.grid.axes(); ++a) {
    outer_taps_ *= s_.grid.kernel[a];
    outer_windows_ *= s_.grid.out[a];
  }
  plane_step_ = planes_at_a_time(planes(), high_.kernel, wide_.kernel);
  // With several blocks, the sums of all channels are kept from one block to the next.
  const bool is_one_block = planes() <= plane_step_;
  const int64_t most =
      is_one_block ? kManyWindows : std::clamp(2 * kSumFloats / s_.mg(), kFewWindows, kManyWindows);
  columns_ = wide_.out <= 3 * most / 2 ? wide_.out : equal_parts(wide_.out, most);
  width_ = plane_width(wide_, columns_);
  const auto phases = std::ssize(high_.phases) * std::ssize(wide_.phases);
  if (columns_ == wide_.out) {
    const int64_t fit = kPlaneBytes / kFloat / (plane_step_ * phases * width_) - high_.reach();
    rows_ = equal_parts(high_.out, std::max<int64_t>(1, std::min(fit, most / width_)));
  }
  plane_floats_ = plane_rows() * width_ + std::max<int64_t>(0, columns_ + wide_.reach() - width_);
  // An odd number of cache lines, so that planes do not compete for the same cache sets.
  channel_floats_ = (ceil_div(phases * plane_floats_, kLineFloats) | 1) * kLineFloats;
  for (int64_t plane = 0; plane < plane_step_; ++plane)
    for (int64_t i = 0; i < high_.kernel; ++i)
      for (int64_t j = 0; j < wide_.kernel; ++j) {
        const int64_t phase = high_.phase_of(i) * std::ssize(wide_.phases) + wide_.phase_of(j);
        offsets_.push_back(static_cast<int32_t>(plane * channel_floats_ + phase * plane_floats_ +
                                                high_.shift_of(i) * width_ + wide_.shift_of(j)));
      }
  workers_ = thread_count();
  channels_ = s_.mg();
  const int64_t tasks = s_.n * s_.groups * outer_windows_ * ceil_div(high_.out, rows_) *
                        ceil_div(wide_.out, columns_);
  if (tasks < 2 * workers_ && workers_ > 1) {
    constexpr int64_t kFewChannels = 12;
    channels_ = equal_parts(
        channels_, std::max(kFewChannels, ceil_div(channels_, ceil_div(2 * workers_, tasks))));
  }
  sums_ld_ = (ceil_div((rows_ - 1) * width_ + columns_, kLineFloats) | 1) * kLineFloats;
  sum_channels_ = channels_;
  if (is_one_block)
    sum_channels_ = equal_parts(channels_, std::max<int64_t>(kLineFloats, kSumFloats / sums_ld_));
  worker_bytes_ = kFloat * (plane_step_ * channel_floats_ + kOverrun + sum_channels_ * sums_ld_ +
                            round_up(wide_.in, kLineFloats));
  worker_bytes_ = in_lines(worker_bytes_);
}

int64_t DirectConv::scratch_bytes() const {
  const int64_t weights = s_.dtype == DType::f32 ? 0 : in_lines(s_.m * s_.terms() * kFloat);
  return bias_.scratch_bytes() + weights + workers_ * worker_bytes_;
}

void DirectConv::run(const void* const* in, void* y, std::byte* scratch,
                     GemmEpilogue epilogue) const {
  Memory all{.x = static_cast<const std::byte*>(in[0]),
             .bias = bias_.read(in, scratch),
             .y = static_cast<std::byte*>(y),
             .epilogue = epilogue,
             .tiles = &conv_tiles()};
  scratch += bias_.scratch_bytes();
  all.weights = static_cast<const float*>(in[1]);
  if (s_.dtype != DType::f32) {
    auto* wide = reinterpret_cast<float*>(scratch);
    const int64_t terms = s_.terms();
    parallel_for(s_.m, kSerial / terms + 1, [&](int64_t begin, int64_t end) {
      window_rows().read(s_.dtype, address_at(in[1], begin * terms * s_.element()),
                         (end - begin) * terms, wide + begin * terms);
    });
    all.weights = wide;
    scratch += in_lines(s_.m * terms * kFloat);
  }
  const int64_t tasks = s_.n * s_.groups * outer_windows_ * ceil_div(high_.out, rows_) *
                        ceil_div(wide_.out, columns_) * ceil_div(s_.mg(), channels_);
  const int64_t work = s_.n * s_.m * s_.terms() * s_.out();
  const int64_t parts =
      work < kSerial ? 1 : std::min<int64_t>({tasks, workers_, int64_t{thread_count()}});
  std::atomic<int64_t> next = 0;
  parallel_parts(parts, parts, [&](int64_t worker, int64_t, int64_t) {
    Memory own = all;
    own.planes = reinterpret_cast<float*>(scratch + worker * worker_bytes_);
    own.sums = own.planes + plane_step_ * channel_floats_ + kOverrun;
    own.row = own.sums + sum_channels_ * sums_ld_;
    std::fill(own.sums - kOverrun, own.sums, 0.0f);
    for (int64_t i = next++; i < tasks; i = next++) run_task(task(i), own);
  });
}

DirectConv::Task DirectConv::task(int64_t index) const {
  Task t;
  const auto take = [&index](int64_t count) {
    const int64_t at = index % count;
    index /= count;
    return at;
  };
  t.column = take(ceil_div(wide_.out, columns_)) * columns_;
  t.columns = std::min(columns_, wide_.out - t.column);
  t.row = take(ceil_div(high_.out, rows_)) * rows_;
  t.rows = std::min(rows_, high_.out - t.row);
  t.outer = take(outer_windows_);
  t.channel = take(ceil_div(s_.mg(), channels_)) * channels_;
  t.channels = std::min(channels_, s_.mg() - t.channel);
  t.group = take(s_.groups);
  t.image = index;
  return t;
}

void DirectConv::run_task(const Task& task, const Memory& memory) const {
  for (int64_t m = 0; m < task.channels; m += sum_channels_) {
    Task part = task;
    part.channel += m;
    part.channels = std::min(sum_channels_, task.channels - m);
    for (int64_t first = 0; first < planes(); first += plane_step_) {
      const int64_t last = std::min(planes(), first + plane_step_);
      if (m == 0) lay_out(task, memory, first, last);
      add_planes(part, memory, first, last);
    }
    finish(part, memory);
  }
}

/// Adds the products with planes [first, last) to the sums.
void DirectConv::add_planes(const Task& task, const Memory& memory, int64_t first,
                            int64_t last) const {
  ConvTilesArgs t;
  t.weights_ld = s_.terms();
  t.planes = memory.planes;
  t.offsets = offsets_.data();
  t.terms = (last - first) * taps();
  t.sums_ld = sums_ld_;
  t.positions = (task.rows - 1) * width_ + task.columns;
  t.add = first > 0;
  const float* const weights =
      memory.weights + (task.group * s_.mg() + task.channel) * t.weights_ld + first * taps();
  const int64_t step =
      equal_parts(task.channels, std::max<int64_t>(kLineFloats, kWeightFloats / t.terms));
  for (int64_t m = 0; m < task.channels; m += step) {
    t.rows = std::min(step, task.channels - m);
    t.weights = weights + m * t.weights_ld;
    t.sums = memory.sums + m * sums_ld_;
    memory.tiles->multiply(t);
  }
}

/// Copies the channels and outer taps [first, last) of a group into planes.
void DirectConv::lay_out(const Task& task, const Memory& memory, int64_t first,
                         int64_t last) const {
  const size_t outer = s_.grid.axes() > 2 ? s_.grid.axes() - 2 : 0;
  const auto phases = std::ssize(wide_.phases);
  const int64_t row_bytes = wide_.in * s_.element();
  float* channel = memory.planes;
  for (int64_t plane = first; plane < last; ++plane, channel += channel_floats_) {
    int64_t tap = plane % outer_taps_, window = task.outer, at = 0, stride = 1;
    bool is_inside = true;
    for (size_t a = outer; a-- > 0;) {
      const int64_t element = s_.grid.at(a, window % s_.grid.out[a], tap % s_.grid.kernel[a]);
      is_inside = is_inside && element >= 0 && element < s_.grid.in[a];
      at += element * stride;
      stride *= s_.grid.in[a];
      window /= s_.grid.out[a];
      tap /= s_.grid.kernel[a];
    }
    const int64_t from = (task.image * s_.c + task.group * s_.cg() + plane / outer_taps_) * stride;
    const std::byte* const x = is_inside ? memory.x + (from + at) * high_.in * row_bytes : nullptr;
    for (size_t phase = 0; phase < high_.phases.size(); ++phase)
      lay_out_phase(x, phase, task, memory,
                    channel + static_cast<int64_t>(phase) * phases * plane_floats_);
    // Clears the end of each phase and of the channel, which whole vectors read.
    for (int64_t p = 0; p < std::ssize(high_.phases) * phases; ++p) {
      float* const end = channel + p * plane_floats_ + (task.rows + high_.reach()) * width_;
      std::fill(end, channel + (p + 1) * plane_floats_, 0.0f);
    }
    std::fill(channel + std::ssize(high_.phases) * phases * plane_floats_,
              channel + channel_floats_, 0.0f);
  }
}

/// Copies one phase of the rows of a channel into its plane; zeros if x is null.
void DirectConv::lay_out_phase(const std::byte* x, size_t high_phase, const Task& task,
                               const Memory& memory, float* to) const {
  const int64_t all = task.rows + high_.reach(), row_bytes = wide_.in * s_.element();
  const int64_t top = high_.element(high_phase, task.row);
  const PlaceSpan rows(top, high_.stride, x == nullptr ? 0 : high_.in, all);
  if (rows.first < rows.last) x += (top + rows.first * high_.stride) * row_bytes;
  for (size_t phase = 0; phase < wide_.phases.size(); ++phase, to += plane_floats_) {
    const int64_t element = wide_.element(phase, task.column);
    const PlaceSpan places(element, wide_.stride, wide_.in, width_);
    const int64_t begin = element + places.first * wide_.stride, count = places.last - places.first;
    const int64_t filled = count == 0 ? 0 : rows.last - rows.first,
                  above = filled == 0 ? all : rows.first;
    std::fill(to, to + above * width_, 0.0f);
    std::fill(to + (above + filled) * width_, to + all * width_, 0.0f);
    PlaneRows part{.x_ld = high_.stride * wide_.in,
                   .stride = wide_.stride,
                   .rows = filled,
                   .first = places.first,
                   .last = places.last,
                   .width = width_,
                   .y = to + above * width_};
    if (filled == 0) continue;
    if (s_.dtype == DType::f32) {
      part.x = reinterpret_cast<const float*>(x) + begin;
      memory.tiles->lay_out(part);
      continue;
    }
    part.rows = 1;
    part.x = memory.row;
    for (int64_t r = 0; r < filled; ++r, part.y += width_) {
      window_rows().read(s_.dtype, x + r * high_.stride * row_bytes + begin * s_.element(),
                         (count - 1) * wide_.stride + 1, memory.row);
      memory.tiles->lay_out(part);
    }
  }
}

/// Discards the sums between the rows, adds the bias, and stores or hands over the result.
void DirectConv::finish(const Task& task, const Memory& memory) const {
  const int64_t first = (task.outer * high_.out + task.row) * wide_.out + task.column,
                row = (task.image * s_.groups + task.group) * s_.mg() + task.channel,
                columns = task.rows * task.columns;
  const bool as_f32 = s_.dtype == DType::f32 && memory.epilogue.run == nullptr;
  for (int64_t m = 0; m < task.channels; ++m) {
    float* const sums = memory.sums + m * sums_ld_;
    std::byte* const y =
        memory.y == nullptr ? nullptr : memory.y + ((row + m) * s_.out() + first) * s_.element();
    float* to = as_f32 ? reinterpret_cast<float*>(y) : sums;
    const float bias =
        memory.bias == nullptr ? 0.0f : memory.bias[task.group * s_.mg() + task.channel + m];
    memory.tiles->pack(sums, width_, task.rows, task.columns, bias, to);
    if (y != nullptr && !as_f32 && memory.epilogue.run == nullptr)
      window_rows().write(s_.dtype, sums, columns, y);
  }
  if (memory.epilogue.run != nullptr)
    memory.epilogue.run(memory.epilogue.context, row, first, task.channels, columns, memory.sums,
                        sums_ld_);
}

std::string DirectConv::refusal(const NodeView& v) {
  if (std::string refusal = conv_float_refusal(v); !refusal.empty()) return refusal;
  const ConvSizes s = sizes_of_conv(v);
  constexpr int64_t kRowsOfTile = 16, kTermsOfTile = 32;
  if (gemm_packs_tiles(s.dtype) && s.mg() >= kRowsOfTile && s.terms() >= kTermsOfTile)
    return "products that go by way of tiles";
  // Planes hold everything between the taps, so that a large dilation makes them mostly unused.
  constexpr double kMostFloats = 1 << 18, kMostTaps = 1 << 16;
  double floats = 1, taps = 1;
  for (const size_t a : {size_t{0}, size_t{1}}) {
    const PlaneAxis axis = plane_axis(s.grid, a);
    const int64_t windows = std::min<int64_t>(axis.out, a == 0 ? 2 * kManyWindows : 1);
    floats *=
        static_cast<double>(windows + axis.reach()) * static_cast<double>(std::ssize(axis.phases));
    taps *= static_cast<double>(axis.kernel);
  }
  if (floats > kMostFloats || taps > kMostTaps) return "windows that reach too far";
  return "";
}

}  // namespace brrr::cpu
