#include "backend/cpu/spatial/packed_conv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/amx_tiles.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/errors.h"
#include "base/integers.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/quantized/quantized_rows.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kSerialPackedWork = 1 << 18;   // multiply-adds that starting the team costs
constexpr int64_t kPackedUnitBytes = 160 << 10;  // what a unit copies, if rows are not longer
constexpr int64_t kPackedTaskBytes = 640 << 10;  // what the units of a task copy
constexpr int64_t kScaleChunk = 1 << 16;  // elements whose largest magnitude a thread looks for
constexpr int64_t kSumBytes = sizeof(int32_t);

bool has_16_bit_terms(DType t) { return t == DType::bf16 || t == DType::f16; }

}  // namespace

std::string PackedConv::refusal(const NodeView& v) {
  if (v.attrs().find("kernel") == nullptr) return "weights that are no matrix";
  if (v.attrs().find("winograd") != nullptr) return "transformed weights";
  if (std::string refusal = picture_float_refusal(v); !refusal.empty()) return refusal;
  const ConvSizes s = sizes_of_conv(v);
  const Storage& w = v.in[1].storage;
  const bool is_integer = w == Storage{Layout::transposed_panels, {8, 1, 0}} &&
                          v.attrs().get_or("left_bits", int64_t{0});
  const bool is_packed = w == Storage{Layout::transposed_panels} && has_16_bit_terms(s.dtype);
  if (!is_integer && !is_packed) return fmt::format("weights in {}", w.str());
  if (s.groups > 1 && s.mg() % kPanelColumns != 0) return "groups that share panels";
  if (is_integer && s.cg() % 4 != 0) return "channels that are no multiple of 4";
  return grid_refusal(s.grid, v.node());
}

PackedTerms PackedConv::best_terms(const NodeView& v) {
  const int64_t channels = sizes_of_conv(v).cg();
  const bool has_amx = current_isa() >= Isa::kAmx;
  if (v.in[1].storage.is_quantized())
    return has_amx && channels % kTileInt8 == 0 ? PackedTerms::integer_tiles
                                                : PackedTerms::integers;
  if (v.in[1].dtype == DType::f16) return PackedTerms::f16_as_floats;
  if (has_amx && channels % kTileBf16 == 0) return PackedTerms::bf16_tiles;
  const bool are_even = channels % 2 == 0;
  return are_even && has_fast_bf16_pairs() && current_isa() >= Isa::kAvx512
             ? PackedTerms::bf16_pairs
             : PackedTerms::bf16_as_floats;
}

PackedConv::PackedConv(const NodeView& v, PackedTerms terms)
    : s_(sizes_of_conv(v)),
      bias_(v),
      terms_(terms),
      is_integer_(has_integers(terms)),
      y_dtype_(v.out()[0].dtype),
      pass_{forward_axis(grid_axis(s_.grid, false)), forward_axis(grid_axis(s_.grid, true)),
            s_.cg(), s_.mg()},
      form_{pass_.terms(), s_.m, 8, 0},
      panel_bytes_(is_integer_ ? form_.panel_bytes()
                               : panel_elements(pass_.terms(), kPanelColumns) * int64_t{2}),
      workers_(thread_count()) {
  const PassAxis &high = pass_.high, &wide = pass_.wide;
  // Along an axis with one tap, only the elements that windows read are copied.
  high_step_ = high.tap_count() == 1 ? 1 : high.step;
  wide_step_ = wide.tap_count() == 1 ? 1 : wide.step;
  width_ = wide.tap_count() == 1 ? wide.out : wide.span(wide.out);
  pixel_bytes_ = pass_.channels * bytes_of_term(terms_);
  // Rows of tiles must not fall on few sets of the L1 cache.
  const int64_t apart = wide_step_ * pixel_bytes_;
  if (apart % (is_integer_ ? 1024 : 2048) == 0) pixel_bytes_ += 64;
  const bool merges = pixel_bytes_ == pass_.channels * bytes_of_term(terms_) && wide.dilation == 1;
  run_terms_ = merges ? wide.tap_count() * pass_.channels : pass_.channels;
  for (int64_t t = 0; t < high.tap_count(); ++t)
    for (int64_t u = 0; u < wide.tap_count(); ++u) {
      tap_pixels_.push_back(t * high.dilation * width_ + u * wide.dilation);
      if (!merges || u == 0) runs_.push_back(tap_pixels_.back() * pixel_bytes_);
    }
  const int64_t row_bytes = high_step_ * width_ * pixel_bytes_;
  const int64_t most_rows =
      std::clamp<int64_t>(kPackedUnitBytes / std::max<int64_t>(row_bytes, 1), 1, high.out);
  rows_ = ceil_div(high.out, ceil_div(high.out, most_rows));
  blocks_ = ceil_div(high.out, rows_);
  const double work = static_cast<double>(unit_count() * rows_ * wide.out) *
                      static_cast<double>(pass_.terms() * s_.m);
  if (work < static_cast<double>(kSerialPackedWork)) workers_ = 1;
  const int64_t panels = ceil_div(s_.m, kPanelColumns);
  shares_ = s_.groups == 1 && workers_ > 1 && unit_count() < 4 * workers_;
  // The units of a task share the weights that it reads; few units share the columns among threads.
  if (!shares_)
    units_of_task_ = std::clamp<int64_t>(
        std::min(unit_count() / (2 * workers_), kPackedTaskBytes / buffer_bytes(rows_)), 1, 8);
  const int64_t unit_tasks = ceil_div(unit_count(), units_of_task_);
  splits_ = std::clamp<int64_t>(ceil_div(4 * workers_, unit_tasks), 1, workers_ == 1 ? 1 : panels);
}

int64_t PackedConv::buffer_rows(int64_t rows) const {
  return pass_.high.tap_count() == 1 ? rows : pass_.high.span(rows);
}
int64_t PackedConv::pixel_area(int64_t rows) const {
  const int64_t beyond =
      has_tiles(terms_) ? 2 * kTileRows * wide_step_ * pixel_bytes_ + kTileRowBytes : 0;
  return in_lines(buffer_rows(rows) * width_ * pixel_bytes_ + beyond);
}
int64_t PackedConv::buffer_bytes(int64_t rows) const {
  return pixel_area(rows) + (is_integer_ ? in_lines(buffer_rows(rows) * width_ * kSumBytes) : 0);
}
int32_t* PackedConv::sums_of_pixels(const std::byte* buffer, int64_t rows) const {
  return reinterpret_cast<int32_t*>(const_cast<std::byte*>(buffer) + pixel_area(rows));
}
int64_t PackedConv::start_bytes() const {
  return is_integer_ ? in_lines(rows_ * pass_.wide.out * kSumBytes) : 0;
}

PackedConv::Unit PackedConv::unit(int64_t index) const {
  const int64_t first = index % blocks_ * rows_;
  return {index / blocks_, first, std::min(rows_, pass_.high.out - first)};
}

/// Buffers and starts of a task's units, and a block of sums.
int64_t PackedConv::worker_bytes() const {
  return units_of_task_ * ((shares_ ? 0 : buffer_bytes(rows_)) + start_bytes()) +
         in_lines(rows_ * pass_.wide.out * kPanelColumns * int64_t{sizeof(float)});
}

int64_t PackedConv::scratch_bytes() const {
  const int64_t chunks = ceil_div(s_.c * s_.in(), kScaleChunk);
  const int64_t scales = is_integer_ ? in_lines(s_.n * (1 + chunks) * int64_t{sizeof(float)}) : 0;
  const int64_t shared = shares_ ? s_.n * buffer_bytes(pass_.high.out) : 0;
  return bias_.scratch_bytes() + scales + shared + workers_ * worker_bytes();
}

struct PackedConv::Memory {
  const void* x = nullptr;
  const std::byte* w = nullptr;
  const float* bias = nullptr;
  std::byte* y = nullptr;
  const void* residual = nullptr;
  bool relu = false;
  GemmEpilogue epilogue;
  float* tops = nullptr;        // the largest magnitude of each picture
  std::byte* shared = nullptr;  // buffers of pictures
  std::byte* workers = nullptr;
};

void PackedConv::run(const void* const* in, void* y, std::byte* scratch,
                     GemmEpilogue epilogue) const {
  Memory memory;
  memory.y = static_cast<std::byte*>(y);
  memory.epilogue = epilogue;
  memory.workers = scratch;
  run(memory, in);
}

void PackedConv::run(const void* const* in, void* y, std::byte* scratch, const void* residual,
                     bool relu) const {
  Memory memory;
  memory.y = static_cast<std::byte*>(y);
  memory.residual = residual;
  memory.relu = relu;
  memory.workers = scratch;
  run(memory, in);
}

void PackedConv::run(Memory memory, const void* const* in) const {
  memory.x = in[0];
  memory.w = static_cast<const std::byte*>(in[1]);
  memory.bias = bias_.read(in, memory.workers);
  memory.workers += bias_.scratch_bytes();
  if (is_integer_) {
    memory.tops = reinterpret_cast<float*>(memory.workers);
    const int64_t chunks = ceil_div(s_.c * s_.in(), kScaleChunk);
    memory.workers += in_lines(s_.n * (1 + chunks) * int64_t{sizeof(float)});
    find_scales(memory);
  }
  if (shares_) {
    memory.shared = memory.workers;
    const int64_t rows = buffer_rows(pass_.high.out), bytes = buffer_bytes(pass_.high.out);
    memory.workers += s_.n * bytes;
    constexpr int64_t kFillBytes = 32 << 10;
    const int64_t step =
        std::max<int64_t>(1, kFillBytes / std::max<int64_t>(1, width_ * pixel_bytes_));
    const int64_t pieces = ceil_div(rows, step);
    parallel_pieces(s_.n * pieces, workers_, [&](int64_t piece, int) {
      const int64_t image = piece / pieces, begin = piece % pieces * step;
      fill(memory, image, 0, 0, begin, std::min(rows, begin + step), memory.shared + image * bytes);
    });
  }
  parallel_pieces(ceil_div(unit_count(), units_of_task_) * splits_, workers_,
                  [&](int64_t task, int worker) { run_task(memory, task, worker); });
}

void PackedConv::find_scales(const Memory& memory) const {
  const int64_t elements = s_.c * s_.in(), chunks = ceil_div(elements, kScaleChunk);
  float* const parts = memory.tops + s_.n;
  parallel_pieces(s_.n * chunks, workers_, [&](int64_t piece, int) {
    const int64_t image = piece / chunks, first = piece % chunks * kScaleChunk;
    parts[piece] = packed_tiles().largest(
        s_.dtype, address_at(memory.x, (image * elements + first) * s_.element()),
        std::min(kScaleChunk, elements - first));
  });
  for (int64_t n = 0; n < s_.n; ++n) {
    float top = 0;
    for (int64_t i = 0; i < chunks; ++i) {
      const float part = parts[n * chunks + i];
      if (!(part <= top)) top = std::isnan(top) ? top : part;
    }
    memory.tops[n] = top;
  }
}

void PackedConv::fill(const Memory& memory, int64_t image, int64_t group, int64_t first,
                      int64_t begin, int64_t end, std::byte* buffer) const {
  const PassAxis &high = pass_.high, &wide = pass_.wide;
  const int64_t e = s_.element(), channels = pass_.channels;
  const std::byte* picture =
      address_at(memory.x, (image * high.in * wide.in * s_.c + group * channels) * e);
  const int64_t row_step = high.tap_count() == 1 ? high.step : 1,
                pixel_step = wide.tap_count() == 1 ? wide.step : 1;
  // Pixels [left, right) of a row of the buffer exist in the picture.
  const int64_t left = std::clamp<int64_t>(ceil_div(-wide.origin, pixel_step), 0, width_);
  const int64_t right =
      std::clamp<int64_t>(ceil_div(wide.in - wide.origin, pixel_step), left, width_);
  const int64_t row_bytes = width_ * pixel_bytes_, apart = pixel_step * s_.c;
  const bool is_line = apart == channels && pixel_bytes_ == channels * bytes_of_term(terms_);
  // `first` is 0 for the buffer of a whole picture.
  int32_t* const sums = is_integer_ ? sums_of_pixels(buffer, shares_ ? high.out : rows_) : nullptr;
  float inverse = 0;
  if (is_integer_) {
    const float top = memory.tops[image];
    inverse = top >= ops::kLeastTop ? 127.0f / top : 0.0f;
  }
  const auto clear = [&](int64_t row, int64_t from, int64_t to) {
    std::memset(buffer + row * row_bytes + from * pixel_bytes_, 0,
                static_cast<size_t>((to - from) * pixel_bytes_));
    if (sums != nullptr) std::fill(sums + row * width_ + from, sums + row * width_ + to, 0);
  };
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = high.origin + first * high.step + r * row_step;
    if (row < 0 || row >= high.in || (is_integer_ && inverse == 0.0f)) {
      clear(r, 0, width_);
      continue;
    }
    clear(r, 0, left);
    clear(r, right, width_);
    const std::byte* from = picture + (row * wide.in + wide.origin + left * pixel_step) * s_.c * e;
    std::byte* const to = buffer + r * row_bytes + left * pixel_bytes_;
    const int64_t pixels = right - left;
    if (is_integer_) {
      packed_tiles().quantize(s_.dtype, from, apart, pixels, channels, inverse,
                              reinterpret_cast<int8_t*>(to), pixel_bytes_,
                              sums + r * width_ + left);
      continue;
    }
    const int64_t runs = is_line ? 1 : pixels, n = is_line ? pixels * channels : channels;
    for (int64_t p = 0; p < runs; ++p) {
      if (!are_widened(terms_))
        std::memcpy(to + p * pixel_bytes_, from + p * apart * e, static_cast<size_t>(n * e));
      else
        window_rows().read(s_.dtype, from + p * apart * e, n,
                           reinterpret_cast<float*>(to + p * pixel_bytes_));
    }
  }
}

/// Weights are stored with an offset, which is taken off times the sum of each window.
void PackedConv::count_starts(const std::byte* buffer, int64_t first, int64_t rows,
                              int32_t* starts) const {
  const int32_t* sums =
      sums_of_pixels(buffer, shares_ ? pass_.high.out : rows_) + first * high_step_ * width_;
  for (int64_t r = 0; r < rows; ++r, sums += high_step_ * width_)
    for (int64_t i = 0; i < pass_.wide.out; ++i) {
      int32_t total = 0;
      for (const int64_t tap : tap_pixels_) total += sums[i * wide_step_ + tap];
      *starts++ = -form_.offset() * total;
    }
}

void PackedConv::run_task(const Memory& memory, int64_t task, int64_t worker) const {
  const int64_t in_group = ceil_div(pass_.columns, kPanelColumns), panels = s_.groups * in_group;
  const int64_t split = task % splits_, first = task / splits_ * units_of_task_;
  const int64_t count = std::min(units_of_task_, unit_count() - first);
  const int64_t panel_begin = panels * split / splits_, panel_end = panels * (split + 1) / splits_;
  const int64_t own_buffer = shares_ ? 0 : buffer_bytes(rows_);
  std::byte* const own = memory.workers + worker * worker_bytes();
  std::byte* const own_starts = own + units_of_task_ * own_buffer;
  auto* const block = reinterpret_cast<float*>(own_starts + units_of_task_ * start_bytes());
  const auto buffer_of = [&](int64_t u) {
    return shares_ ? memory.shared + unit(first + u).image * buffer_bytes(pass_.high.out)
                   : own + u * own_buffer;
  };
  const auto starts_of = [&](int64_t u) {
    return reinterpret_cast<int32_t*>(own_starts + u * start_bytes());
  };
  const int64_t row_bytes = width_ * pixel_bytes_;
  const auto* const scales = reinterpret_cast<const float*>(memory.w + form_.integer_bytes());
  PackedTilesArgs t;
  t.a_line = high_step_ * row_bytes;
  t.a_row = wide_step_ * pixel_bytes_;
  t.a_runs = runs_.data();
  t.runs = std::ssize(runs_);
  t.run_terms = run_terms_;
  t.rows = pass_.wide.out;
  t.relu = memory.relu;
  int64_t group = -1;
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    if (p / in_group != group) {
      group = p / in_group;
      for (int64_t u = 0; u < count; ++u) {
        const Unit at = unit(first + u);
        if (!shares_)
          fill(memory, at.image, group, at.first, 0, buffer_rows(at.rows), buffer_of(u));
        if (is_integer_) count_starts(buffer_of(u), shares_ ? at.first : 0, at.rows, starts_of(u));
      }
    }
    const int64_t j = p % in_group * kPanelColumns, channel = group * pass_.columns + j;
    t.columns = std::min(kPanelColumns, pass_.columns - j);
    t.b = memory.w + p * panel_bytes_;
    t.bias = memory.bias != nullptr ? memory.bias + channel : nullptr;
    for (int64_t u = 0; u < count; ++u) {
      const Unit at = unit(first + u);
      t.a = buffer_of(u) + (shares_ ? at.first * t.a_line : 0);
      t.lines = at.rows;
      if (is_integer_) {
        const float top = memory.tops[at.image];
        t.starts = starts_of(u);
        t.scales = scales + p * kPanelColumns;
        t.scale = top < ops::kLeastTop ? 0.0f : top / 127.0f;
      }
      const int64_t pixel = (at.image * pass_.high.out + at.first) * pass_.wide.out;
      if (memory.epilogue.run == nullptr) {
        const int64_t to = (pixel * s_.m + channel) * static_cast<int64_t>(bytes_of(y_dtype_));
        t.dtype = y_dtype_;
        t.y = memory.y + to;
        t.residual = memory.residual != nullptr ? address_at(memory.residual, to) : nullptr;
        t.y_row = s_.m;
        t.y_line = pass_.wide.out * s_.m;
        multiply_packed_terms(terms_, t);
        continue;
      }
      t.y = block;
      t.y_row = t.columns;
      t.y_line = pass_.wide.out * t.columns;
      multiply_packed_terms(terms_, t);
      memory.epilogue.run(memory.epilogue.context, pixel, channel, at.rows * pass_.wide.out,
                          t.columns, block, t.columns);
    }
  }
}

}  // namespace brrr::cpu
