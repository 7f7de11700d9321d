#include "backend/cpu/spatial/channels_last_conv.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/spatial/channel_tiles.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/errors.h"
#include "base/integers.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kVectorSlack = 64;       // floats that tiles may read beyond a buffer
constexpr int64_t kSerialWork = 1 << 17;   // multiply-adds that starting the team costs
constexpr int64_t kUnitBytes = 192 << 10;  // what a unit copies, if rows are not longer
constexpr int64_t kTaskBytes = 512 << 10;  // what the units of a task copy
constexpr int64_t kSumsBytes = 8 << 20;    // of the partial sums of a weight's gradient
constexpr int64_t kMostChunks = 32;
constexpr int64_t kChunkWindows = 2048;   // that a chunk has at least: adding chunks costs, too
constexpr int64_t kSummedWindows = 1024;  // that are added before sums go back to memory

/// Whether rows of so many floats fall on few sets of the L1 cache.
bool collides(int64_t floats) { return floats * kFloatBytes % 2048 == 0; }

/// The part of the terms of a window that is summed at a time, as pieces of runs.
struct TermBlock {
  std::vector<int64_t> a_runs, b_runs, terms;
};
std::vector<TermBlock> term_blocks(const PassUnits& units, int64_t terms) {
  std::vector<TermBlock> blocks;
  const int64_t most = gemm_terms_of_block(terms), of_run = units.run_terms();
  for (int64_t first = 0; first < terms; first += most) {
    const int64_t last = std::min(terms, first + most);
    TermBlock& block = blocks.emplace_back();
    for (int64_t t = first; t < last;) {
      const int64_t end = std::min(last, (t / of_run + 1) * of_run);
      block.a_runs.push_back(units.runs()[static_cast<size_t>(t / of_run)] + t % of_run);
      block.b_runs.push_back(t * kPanelColumns);
      block.terms.push_back(end - t);
      t = end;
    }
  }
  return blocks;
}

/// The product of all blocks, whose sums grow in t.c. The result may lie over the residual, so the
/// first block adds it, before anything else is written there.
void multiply_blocks(ChannelTilesArgs t, const std::vector<TermBlock>& blocks, const float* bias,
                     const float* residual, bool relu) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool is_last = i + 1 == blocks.size();
    t.a_runs = blocks[i].a_runs.data();
    t.b_runs = blocks[i].b_runs.data();
    t.run_terms = blocks[i].terms.data();
    t.runs = std::ssize(blocks[i].terms);
    t.add = i > 0;
    t.bias = is_last ? bias : nullptr;
    t.residual = i == 0 ? residual : nullptr;
    t.relu = is_last && relu;
    channel_tiles().multiply(t);
  }
}

/// x: n elements of dtype as floats.
void widen(DType dtype, const void* x, int64_t n, float* to) {
  window_rows().read(dtype, x, n, to);
}

}  // namespace

PassUnits::PassUnits(const WindowPass& pass, DType dtype, int64_t images, int64_t pixel_channels,
                     bool copies)
    : pass_(pass), dtype_(dtype), images_(images), pixel_channels_(pixel_channels) {
  const PassAxis &high = pass.high, &wide = pass.wide;
  copies_ = copies || dtype != DType::f32 || high.reads_padding() || wide.reads_padding() ||
            collides(wide.step * pixel_channels);
  // Along an axis with one tap, only the elements that windows read are copied.
  const int64_t high_step = high.tap_count() == 1 ? 1 : high.step,
                wide_step = wide.tap_count() == 1 ? 1 : wide.step;
  buffer_pixel_ = pass.channels + (collides(wide_step * pass.channels) ? 16 : 0);
  buffer_width_ = wide.tap_count() == 1 ? wide.out : wide.span(wide.out);
  const int64_t row_bytes = buffer_width_ * buffer_pixel_ * high_step * kFloatBytes;
  const int64_t most_rows =
      std::clamp<int64_t>(kUnitBytes / std::max<int64_t>(row_bytes, 1), 1, high.out);
  blocks_ = ceil_div(high.out, most_rows);
  rows_ = ceil_div(high.out, blocks_);
  blocks_ = ceil_div(high.out, rows_);
  int64_t pixel = pixel_channels, width = wide.in, tap_step = wide.dilation,
          tap_line = high.dilation;
  pixel_ = wide.step * pixel_channels;
  line_ = high.step * wide.in * pixel_channels;
  if (copies_) {
    pixel = buffer_pixel_;
    width = buffer_width_;
    pixel_ = wide_step * pixel;
    line_ = high_step * width * pixel;
    const int64_t rows = high.tap_count() == 1 ? rows_ : high.span(rows_);
    buffer_floats_ = round_up(rows * width * pixel + kVectorSlack, 16);
  }
  const bool merges = pixel == pass.channels && wide.dilation == 1;
  run_terms_ = merges ? wide.tap_count() * pass.channels : pass.channels;
  for (int64_t t = 0; t < high.tap_count(); ++t)
    for (int64_t u = 0; u < (merges ? 1 : wide.tap_count()); ++u)
      runs_.push_back((t * tap_line * width + u * tap_step) * pixel);
}

PassUnits::Unit PassUnits::unit(int64_t index) const {
  const int64_t first = index % blocks_ * rows_;
  return {index / blocks_, first, std::min(rows_, pass_.high.out - first)};
}

const float* PassUnits::provide(const void* x, const Unit& unit, int64_t group,
                                float* buffer) const {
  const PassAxis &high = pass_.high, &wide = pass_.wide;
  const int64_t e = static_cast<int64_t>(bytes_of(dtype_)), channel = group * pass_.channels;
  const std::byte* picture =
      address_at(x, (unit.image * high.in * wide.in * pixel_channels_ + channel) * e);
  if (!copies_)
    return reinterpret_cast<const float*>(picture) +
           ((high.origin + unit.first * high.step) * wide.in + wide.origin) * pixel_channels_;
  const bool picks_rows = high.tap_count() == 1, picks_pixels = wide.tap_count() == 1;
  const int64_t rows = picks_rows ? unit.rows : high.span(unit.rows);
  const int64_t row_step = picks_rows ? high.step : 1, pixel_step = picks_pixels ? wide.step : 1;
  // Pixels [left, right) of a row of the buffer exist in the picture.
  const int64_t left = std::clamp<int64_t>(ceil_div(-wide.origin, pixel_step), 0, buffer_width_);
  const int64_t right =
      std::clamp<int64_t>(ceil_div(wide.in - wide.origin, pixel_step), left, buffer_width_);
  const int64_t row_floats = buffer_width_ * buffer_pixel_;
  for (int64_t r = 0; r < rows; ++r) {
    float* const to = buffer + r * row_floats;
    const int64_t row = high.origin + unit.first * high.step + r * row_step;
    if (row < 0 || row >= high.in) {
      std::fill(to, to + row_floats, 0.0f);
      continue;
    }
    std::fill(to, to + left * buffer_pixel_, 0.0f);
    std::fill(to + right * buffer_pixel_, to + row_floats, 0.0f);
    const std::byte* from =
        picture + (row * wide.in + wide.origin + left * pixel_step) * pixel_channels_ * e;
    const int64_t apart = pixel_step * pixel_channels_;
    if (dtype_ == DType::f32) {
      channel_tiles().copy(reinterpret_cast<const float*>(from), apart, right - left,
                           pass_.channels, to + left * buffer_pixel_, buffer_pixel_);
    } else if (apart == pass_.channels && buffer_pixel_ == pass_.channels) {
      widen(dtype_, from, (right - left) * pass_.channels, to + left * buffer_pixel_);
    } else {
      for (int64_t p = left; p < right; ++p, from += apart * e)
        widen(dtype_, from, pass_.channels, to + p * buffer_pixel_);
    }
  }
  std::fill(buffer + rows * row_floats, buffer + rows * row_floats + kVectorSlack, 0.0f);
  return buffer;
}

std::string ChannelsLastConv::refusal(const NodeView& v) {
  if (!ops::has_channels_last(v.attrs())) return "channels first";
  if (v.attrs().find("winograd") != nullptr) return "transformed weights";
  if (std::string refusal = picture_float_refusal(v); !refusal.empty()) return refusal;
  const bool transposed = is(v.node(), Op::conv_transpose);
  const ConvSizes s = transposed ? sizes_of_conv_transpose(v) : sizes_of_conv(v);
  const Storage& w = v.in[1].storage;
  const bool reads_panels = w == Storage{Layout::transposed_panels} &&
                            v.in[1].dtype == DType::f32 &&
                            (s.groups == 1 || s.mg() % kPanelColumns == 0);
  if (!w.is_plain() && !reads_panels) return fmt::format("weights in {}", w.str());
  return grid_refusal(s.grid, v.node());
}

ChannelsLastConv::ChannelsLastConv(const NodeView& v)
    : s_(is(v.node(), Op::conv_transpose) ? sizes_of_conv_transpose(v) : sizes_of_conv(v)),
      bias_(v),
      transposed_(is(v.node(), Op::conv_transpose)),
      in_panels_(!v.in[1].storage.is_plain()),
      is_matrix_(v.attrs().find("kernel") != nullptr && !transposed_),
      y_dtype_(v.out()[0].dtype),
      source_channels_(transposed_ ? s_.m : s_.c),
      result_channels_(transposed_ ? s_.c : s_.m),
      workers_(thread_count()) {
  const GridAxis high = grid_axis(s_.grid, false), wide = grid_axis(s_.grid, true);
  result_high_ = transposed_ ? high.in : high.out;
  result_wide_ = transposed_ ? wide.in : wide.out;
  const std::vector<PassAxis> rows =
      transposed_ ? backward_axes(high) : std::vector{forward_axis(high)};
  const std::vector<PassAxis> columns =
      transposed_ ? backward_axes(wide) : std::vector{forward_axis(wide)};
  for (const PassAxis& h : rows)
    for (const PassAxis& w : columns)
      passes_.push_back({h, w, source_channels_ / s_.groups, result_channels_ / s_.groups});
  int64_t covered = 0;
  for (const WindowPass& pass : passes_) {
    covered += pass.high.out * pass.wide.out;
    const PassUnits& units = units_.emplace_back(pass, s_.dtype, s_.n, source_channels_, false);
    panel_bytes_ = std::max(
        panel_bytes_,
        in_panels_
            ? 0
            : in_lines(s_.groups * f32_panel_elements(pass.terms(), pass.columns) * kFloatBytes));
    const int64_t of_task = std::max<int64_t>(
        1, kTaskBytes / std::max<int64_t>(units.buffer_floats() * kFloatBytes, 1));
    const int64_t most = std::clamp<int64_t>(units.count() / (2 * workers_), 1, 8);
    units_of_task_ = std::max(units_of_task_, std::min(of_task, most));
    const int64_t buffer_bytes = in_lines(units.buffer_floats() * kFloatBytes);
    buffer_bytes_ = std::max(buffer_bytes_, buffer_bytes);
    if (shares_buffers(units))
      shared_bytes_ = std::max(shared_bytes_, units.count() * buffer_bytes);
    sums_bytes_ = std::max(sums_bytes_, in_lines(units.windows() * kPanelColumns * kFloatBytes));
  }
  leaves_gaps_ = covered < result_high_ * result_wide_;
}

int64_t ChannelsLastConv::scratch_bytes() const {
  return bias_.scratch_bytes() + panel_bytes_ + shared_bytes_ +
         workers_ * (units_of_task_ * buffer_bytes_ + sums_bytes_);
}

bool ChannelsLastConv::shares_buffers(const PassUnits& units) const {
  return units.copies() && s_.groups == 1 && workers_ > 1 && units.count() < 4 * workers_;
}

struct ChannelsLastConv::Memory {
  const void *x, *w;
  const float* bias;
  std::byte* y;
  std::byte* scratch;
  float* panels;
  GemmEpilogue epilogue;
  ConvFinish finish;
};

/// panels: [groups, columns / 32, terms, 32] of the terms (high taps, wide taps, channels).
void ChannelsLastConv::pack_weights(const WindowPass& pass, const void* w, float* panels) const {
  const int64_t kernel = s_.grid.kernel_elements(), kernel_width = s_.grid.kernel.back();
  const int64_t panel_floats = pass.terms() * kPanelColumns;
  const int64_t in_group = ceil_div(pass.columns, kPanelColumns);
  std::vector<int64_t> taps;
  for (const int64_t row : pass.high.taps)
    for (const int64_t column : pass.wide.taps) taps.push_back(row * kernel_width + column);
  const int64_t apart = is_matrix_ ? s_.cg() : 1;  // elements between taps
  const auto pack_column = [&](int64_t group, int64_t column, float* to, auto read) {
    for (int64_t channel = 0; channel < pass.channels; ++channel) {
      const int64_t m = group * s_.mg() + (transposed_ ? channel : column);
      const int64_t c = transposed_ ? column : channel;
      const int64_t first = is_matrix_ ? m * kernel * s_.cg() + c : (m * s_.cg() + c) * kernel;
      for (size_t t = 0; t < taps.size(); ++t)
        to[(static_cast<int64_t>(t) * pass.channels + channel) * kPanelColumns] =
            read(first + taps[t] * apart);
    }
  };
  const auto pack = [&](int64_t begin, int64_t end, auto read) {
    for (int64_t p = begin; p < end; ++p) {
      float* const panel = panels + p * panel_floats;
      const int64_t first = p % in_group * kPanelColumns;
      const int64_t count = std::min(kPanelColumns, pass.columns - first);
      if (count < kPanelColumns) std::fill(panel, panel + panel_floats, 0.0f);
      for (int64_t j = 0; j < count; ++j) pack_column(p / in_group, first + j, panel + j, read);
    }
  };
  parallel_for(s_.groups * in_group, std::max<int64_t>(1, (1 << 15) / panel_floats),
               [&](int64_t begin, int64_t end) {
                 if (s_.dtype == DType::f32) {
                   const auto* from = static_cast<const float*>(w);
                   return pack(begin, end, [from](int64_t i) { return from[i]; });
                 }
                 const auto* from = static_cast<const uint16_t*>(w);
                 if (s_.dtype == DType::bf16)
                   pack(begin, end, [from](int64_t i) { return float_from_bf16(from[i]); });
                 else
                   pack(begin, end, [from](int64_t i) { return float_from_f16(from[i]); });
               });
}

void ChannelsLastConv::run(const void* const* in, void* y, std::byte* scratch,
                           GemmEpilogue epilogue) const {
  run({in[0], in[1], nullptr, static_cast<std::byte*>(y), scratch, nullptr, epilogue, {}}, in);
}

void ChannelsLastConv::run(const void* const* in, void* y, std::byte* scratch,
                           const ConvFinish& finish) const {
  run({in[0], in[1], nullptr, static_cast<std::byte*>(y), scratch, nullptr, {}, finish}, in);
}

void ChannelsLastConv::run(Memory memory, const void* const* in) const {
  memory.bias = bias_.read(in, memory.scratch);
  memory.scratch += bias_.scratch_bytes();
  memory.panels = reinterpret_cast<float*>(memory.scratch);
  memory.scratch += panel_bytes_;
  if (leaves_gaps_) {
    const int64_t bytes = s_.n * result_high_ * result_wide_ * result_channels_ *
                          static_cast<int64_t>(bytes_of(y_dtype_));
    parallel_for(bytes, 1 << 18, [&](int64_t begin, int64_t end) {
      std::memset(memory.y + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  for (size_t i = 0; i < passes_.size(); ++i) run_pass(i, memory);
}

void ChannelsLastConv::run_pass(size_t index, const Memory& memory) const {
  const WindowPass& pass = passes_[index];
  const PassUnits& units = units_[index];
  const float* panels = static_cast<const float*>(memory.w);
  if (!in_panels_) {
    pack_weights(pass, memory.w, memory.panels);
    panels = memory.panels;
  }
  const int64_t terms = pass.terms(), in_group = ceil_div(pass.columns, kPanelColumns);
  const bool by_block = memory.epilogue.run != nullptr || y_dtype_ != DType::f32;
  // The units of a task share the weights that it reads. Of few units, threads share the columns
  // and what is copied.
  const bool shares = shares_buffers(units);
  const int64_t of_task = shares ? 1 : std::min(units_of_task_, units.count());
  const int64_t unit_tasks = ceil_div(units.count(), of_task);
  const int64_t panels_in_all = s_.groups * in_group;
  const bool is_small = static_cast<double>(units.count() * units.windows()) *
                            static_cast<double>(terms * pass.columns * s_.groups) <
                        kSerialWork;
  const int64_t team = is_small ? 1 : workers_;
  const int64_t splits =
      std::clamp<int64_t>(ceil_div(4 * team, unit_tasks), 1, team == 1 ? 1 : panels_in_all);
  const int64_t unit_bytes = in_lines(units.buffer_floats() * kFloatBytes);
  const auto shared_buffer = [&](int64_t unit) {
    return reinterpret_cast<float*>(memory.scratch + unit * unit_bytes);
  };
  std::byte* const workers_memory = memory.scratch + shared_bytes_;
  if (shares)
    parallel_pieces(units.count(), team, [&](int64_t u, int) {
      units.provide(memory.x, units.unit(u), 0, shared_buffer(u));
    });
  const std::vector<TermBlock> blocks = term_blocks(units, terms);

  const auto run_task = [&](int64_t task, int64_t worker) {
    std::byte* const own = workers_memory + worker * (units_of_task_ * buffer_bytes_ + sums_bytes_);
    auto* const sums = reinterpret_cast<float*>(own + units_of_task_ * buffer_bytes_);
    const int64_t split = task % splits, first = task / splits * of_task;
    const int64_t count = std::min(of_task, units.count() - first);
    const int64_t panel_begin = panels_in_all * split / splits,
                  panel_end = panels_in_all * (split + 1) / splits;
    std::vector<const float*> sources(static_cast<size_t>(count));
    int64_t group = -1;
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      if (p / in_group != group) {
        group = p / in_group;
        for (int64_t u = 0; u < count; ++u)
          sources[static_cast<size_t>(u)] =
              shares ? shared_buffer(first + u)
                     : units.provide(memory.x, units.unit(first + u), group,
                                     reinterpret_cast<float*>(own + u * buffer_bytes_));
      }
      const int64_t j = p % in_group * kPanelColumns,
                    columns = std::min(kPanelColumns, pass.columns - j),
                    channel = group * pass.columns + j;
      ChannelTilesArgs t;
      t.a_line = units.line();
      t.a_row = units.pixel();
      t.b = panels + p * terms * kPanelColumns;
      t.b_term = kPanelColumns;
      t.rows = pass.wide.out;
      t.columns = columns;
      const float* const bias = memory.bias != nullptr ? memory.bias + channel : nullptr;
      for (int64_t u = 0; u < count; ++u) {
        const PassUnits::Unit unit = units.unit(first + u);
        t.a = sources[static_cast<size_t>(u)];
        t.lines = unit.rows;
        const int64_t row = pass.high.first_result + unit.first * pass.high.result_step;
        const int64_t pixel =
            (unit.image * result_high_ + row) * result_wide_ + pass.wide.first_result;
        if (!by_block) {
          const int64_t to = pixel * result_channels_ + channel;
          t.c = reinterpret_cast<float*>(memory.y) + to;
          const float* residual =
              memory.finish.residual != nullptr ? memory.finish.residual + to : nullptr;
          t.c_row = pass.wide.result_step * result_channels_;
          t.c_line = pass.high.result_step * result_wide_ * result_channels_;
          multiply_blocks(t, blocks, bias, residual, memory.finish.relu);
          continue;
        }
        t.c = sums;
        t.c_row = columns;
        t.c_line = pass.wide.out * columns;
        multiply_blocks(t, blocks, bias, nullptr, false);
        const int64_t windows = unit.rows * pass.wide.out;
        if (memory.epilogue.run != nullptr)
          memory.epilogue.run(memory.epilogue.context, pixel, channel, windows, columns, sums,
                              columns);
        if (memory.y == nullptr) continue;
        const int64_t e = static_cast<int64_t>(bytes_of(y_dtype_));
        for (int64_t i = 0; i < windows; ++i) {
          const int64_t at = pixel + i / pass.wide.out * pass.high.result_step * result_wide_ +
                             i % pass.wide.out * pass.wide.result_step;
          window_rows().write(y_dtype_, sums + i * columns, columns,
                              memory.y + (at * result_channels_ + channel) * e);
        }
      }
    }
  };
  parallel_pieces(unit_tasks * splits, team,
                  [&](int64_t task, int worker) { run_task(task, worker); });
}

std::string ChannelsLastWeightGrad::refusal(const NodeView& v) {
  if (!ops::has_channels_last(v.attrs())) return "channels first";
  if (std::string refusal = picture_float_refusal(v); !refusal.empty()) return refusal;
  return grid_refusal(sizes_of_conv_weight_grad(v).grid, v.node());
}

ChannelsLastWeightGrad::ChannelsLastWeightGrad(const NodeView& v)
    : s_(sizes_of_conv_weight_grad(v)),
      pass_{forward_axis(grid_axis(s_.grid, false)), forward_axis(grid_axis(s_.grid, true)),
            s_.cg(), s_.mg()},
      units_(pass_, s_.dtype, s_.n, s_.c, true),
      workers_(thread_count()) {
  run_floats_ = round_up(units_.run_terms(), 16);
  const int64_t bytes = s_.m * std::ssize(units_.runs()) * run_floats_ * kFloatBytes;
  const int64_t windows = s_.n * pass_.high.out * pass_.wide.out;
  chunks_ = std::clamp<int64_t>(
      std::min(kSumsBytes / std::max<int64_t>(bytes, 1), windows / kChunkWindows), 1,
      std::min(kMostChunks, units_.count()));
  units_at_once_ = std::clamp<int64_t>(
      std::min(kSummedWindows / units_.windows(),
               kTaskBytes / 2 / std::max<int64_t>(units_.buffer_floats() * kFloatBytes, 1)),
      1, ceil_div(units_.count(), chunks_));
  if (s_.dtype != DType::f32) dy_floats_ = round_up(units_.windows() * s_.mg(), 16);
}

int64_t ChannelsLastWeightGrad::scratch_bytes() const {
  return chunks_ * in_lines(s_.m * std::ssize(units_.runs()) * run_floats_ * kFloatBytes) +
         workers_ * in_lines(units_at_once_ * (units_.buffer_floats() + dy_floats_) * kFloatBytes);
}

void ChannelsLastWeightGrad::add_units(const void* x, const void* dy, int64_t first, int64_t last,
                                       int64_t group, int64_t m_begin, int64_t m_end, float* buffer,
                                       float* sums) const {
  const int64_t width = pass_.wide.out, runs = std::ssize(units_.runs());
  const bool widens = s_.dtype != DType::f32;
  const int64_t pixel = widens ? s_.mg() : s_.m;
  float* const wide = buffer + units_at_once_ * units_.buffer_floats();
  std::vector<int64_t> a_runs, b_runs, terms;
  for (int64_t u = first; u < last; ++u) {
    const PassUnits::Unit unit = units_.unit(u);
    const int64_t at = (u - first) * units_.buffer_floats();
    units_.provide(x, unit, group, buffer + at);
    int64_t from = (unit.image * pass_.high.out + unit.first) * width * s_.m + group * s_.mg();
    if (widens) {
      const int64_t to = (u - first) * units_.windows() * s_.mg();
      for (int64_t i = 0; i < unit.rows * width; ++i)
        widen(s_.dtype, address_at(dy, (from + i * s_.m) * s_.element()), s_.mg(),
              wide + to + i * s_.mg());
      from = to;
    }
    for (int64_t r = 0; r < unit.rows; ++r) {
      a_runs.push_back(from + r * width * pixel);
      b_runs.push_back(at + r * units_.line());
      terms.push_back(width);
    }
  }
  ChannelTilesArgs t;
  t.a = (widens ? wide : static_cast<const float*>(dy)) + m_begin;
  t.a_row = 1;
  t.a_term = pixel;
  t.a_runs = a_runs.data();
  t.b_term = units_.pixel();
  t.b_runs = b_runs.data();
  t.run_terms = terms.data();
  t.runs = std::ssize(terms);
  t.rows = m_end - m_begin;
  t.columns = units_.run_terms();
  t.c_row = runs * run_floats_;
  t.add = true;
  for (int64_t q = 0; q < runs; ++q) {
    t.b = buffer + units_.runs()[static_cast<size_t>(q)];
    t.c = sums + ((group * s_.mg() + m_begin) * runs + q) * run_floats_;
    channel_tiles().multiply(t);
  }
}

void ChannelsLastWeightGrad::run(const void* const* in, void* dw, std::byte* scratch) const {
  const int64_t runs = std::ssize(units_.runs()), row_floats = runs * run_floats_;
  const int64_t chunk_bytes = in_lines(s_.m * row_floats * kFloatBytes);
  std::byte* const buffers = scratch + chunks_ * chunk_bytes;
  const int64_t own_bytes =
      in_lines(units_at_once_ * (units_.buffer_floats() + dy_floats_) * kFloatBytes);
  const auto sums_of = [&](int64_t chunk) {
    return reinterpret_cast<float*>(scratch + chunk * chunk_bytes);
  };
  const bool is_small = static_cast<double>(units_.count() * units_.windows()) *
                            static_cast<double>(s_.terms() * s_.m) <
                        kSerialWork;
  const int64_t team = is_small ? 1 : workers_;
  // Splitting output channels among threads changes no sum.
  constexpr int64_t kSplitRows = 28;
  const int64_t splits =
      std::clamp<int64_t>(ceil_div(2 * team, chunks_), 1, ceil_div(s_.mg(), kSplitRows));
  const int64_t tasks = chunks_ * s_.groups * splits;
  parallel_pieces(tasks, team, [&](int64_t task, int worker) {
    const int64_t chunk = task % chunks_, group = task / chunks_ % s_.groups,
                  split = task / chunks_ / s_.groups;
    const int64_t begin = s_.mg() * split / splits, end = s_.mg() * (split + 1) / splits;
    float* const sums = sums_of(chunk);
    std::fill(sums + (group * s_.mg() + begin) * row_floats,
              sums + (group * s_.mg() + end) * row_floats, 0.0f);
    auto* const buffer = reinterpret_cast<float*>(buffers + worker * own_bytes);
    const int64_t first = units_.count() * chunk / chunks_,
                  last = units_.count() * (chunk + 1) / chunks_;
    for (int64_t u = first; u < last; u += units_at_once_)
      add_units(in[0], in[1], u, std::min(last, u + units_at_once_), group, begin, end, buffer,
                sums);
  });
  // dw: [M, C/G, kernel...] of sums [M, runs, run terms].
  const int64_t kernel = s_.grid.kernel_elements();
  const int64_t taps_of_run = units_.run_terms() / s_.cg();
  parallel_for(s_.m, std::max<int64_t>(1, (1 << 15) / (row_floats * chunks_)),
               [&](int64_t begin, int64_t end) {
                 std::vector<float> row(static_cast<size_t>(s_.terms()));
                 for (int64_t m = begin; m < end; ++m) {
                   float* const total = sums_of(0) + m * row_floats;
                   for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
                     const float* more = sums_of(chunk) + m * row_floats;
                     for (int64_t i = 0; i < row_floats; ++i) total[i] += more[i];
                   }
                   for (int64_t tap = 0; tap < kernel; ++tap)
                     for (int64_t c = 0; c < s_.cg(); ++c)
                       row[static_cast<size_t>(c * kernel + tap)] =
                           total[tap / taps_of_run * run_floats_ + tap % taps_of_run * s_.cg() + c];
                   window_rows().write(s_.dtype, row.data(), s_.terms(),
                                       static_cast<std::byte*>(dw) + m * s_.terms() * s_.element());
                 }
               });
}

}  // namespace brrr::cpu
