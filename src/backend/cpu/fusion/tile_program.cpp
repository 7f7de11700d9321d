#include "backend/cpu/fusion/tile_program.h"

#include <bit>
#include <cstring>

#include "backend/cpu/fusion/tile_compiler.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/rows/norm_rows.h"
#include "backend/cpu/rows/random_rows.h"
#include "backend/cpu/rows/reduction_rows.h"
#include "backend/cpu/rows/softmax_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "backend/cpu/simd/simd_types.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kAlign = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Random bits come in blocks of eight elements, and a tile begins anywhere.
constexpr int64_t kDrawn = 8;
int64_t drawn_bytes(int64_t tile) {
  return aligned(2 * kDrawn * (tile / kDrawn + 2 + kRandomSlack));
}

/// Not a multiple of 4 KB apart: the cache would take them for one another.
int64_t gathered_bytes(int64_t tile) { return aligned(tile * 4) + 5 * kAlign; }

}  // namespace

float tile_lane(DType t, const void* data) {
  const double value = load_as_double(t, data, 0);
  if (t == DType::i32) return std::bit_cast<float>(static_cast<int32_t>(value));
  if (t == DType::boolean) return std::bit_cast<float>(value != 0 ? int32_t{-1} : int32_t{0});
  return static_cast<float>(value);
}

TileProgram::TileProgram(const Graph& body) { TileCompiler(body, *this).run(); }

int64_t TileProgram::chunks() const {
  if (chunk_rows_ == 0) return 0;
  return (elements_ / width_ + chunk_rows_ - 1) / chunk_rows_;
}

// Storage of a frame: buffers, slots, stagings, draws, short rows of a product side by side, the
// statistics of the rows of a tile, and what aligning its beginning takes.
int64_t TileProgram::frame_bytes() const {
  const int64_t buffer = aligned(tile_ * 4);
  int64_t bytes = buffers_ * buffer + slots_ * kTileBlockBytes + kAlign;
  for (const TileStaging& s : stagings_) bytes += aligned(s.buffer_bytes(tile_));
  bytes += static_cast<int64_t>(draws_.size()) * drawn_bytes(tile_);
  if (width_ > 0) bytes += 2 * buffer / width_ + 2 * kAlign;
  if (has_product()) bytes += static_cast<int64_t>(places_.size()) * gathered_bytes(tile_);
  return aligned(bytes);
}

TileFrame::TileFrame(const TileProgram& p, const KernelArgs& args, std::byte* storage)
    : in_(args.in), out_(args.out) {
  const int64_t buffer = aligned(p.tile_ * 4);
  const int64_t gathered =
      p.has_product() ? static_cast<int64_t>(p.places_.size()) * gathered_bytes(p.tile_) : 0;
  if (storage == nullptr) {
    const auto bytes = static_cast<size_t>(p.frame_bytes());
    storage_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    storage = storage_.get();
  }
  base_ = storage + (kAlign - reinterpret_cast<uintptr_t>(storage) % kAlign) % kAlign;
  for (const TileScalar& s : p.scalars_)
    scalars_.push_back(s.operand < 0 ? s.bits
                                     : tile_lane(s.dtype, in_[static_cast<size_t>(s.operand)]));
  for (const TileDraw& d : p.draws_) {
    const auto* words = static_cast<const int32_t*>(in_[d.key]);
    keys_.push_back({static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])});
  }
  is_filled_.resize(p.stagings_.size());
  std::byte* next = base_;
  std::vector<std::byte*> stagings, draws;
  auto take = [&](int64_t size) {
    std::byte* at = next;
    next += size;
    return at;
  };
  std::byte* buffers = take(p.buffers_ * buffer);
  std::byte* slots = take(p.slots_ * kTileBlockBytes);
  for (const TileStaging& s : p.stagings_)
    stagings.push_back(take(aligned(s.buffer_bytes(p.tile_))));
  for (size_t i = 0; i < p.draws_.size(); ++i) draws.push_back(take(drawn_bytes(p.tile_)));
  gathered_ = take(gathered);
  statistics_ = reinterpret_cast<float*>(next);
  places_.resize(p.places_.size());
  for (size_t k = 0; k < p.places_.size(); ++k) {
    const TilePlace& place = p.places_[k];
    memory_[k].step = place.step;
    switch (place.kind) {
      case TilePlace::operand:
        places_[k] = static_cast<std::byte*>(const_cast<void*>(in_[place.index]));
        break;
      case TilePlace::result:
        places_[k] = static_cast<std::byte*>(out_[place.index]);
        break;
      case TilePlace::buffer:
        places_[k] = buffers + place.index * buffer;
        break;
      case TilePlace::slot:
        places_[k] = slots + place.index * kTileBlockBytes;
        break;
      case TilePlace::staged:
        places_[k] = stagings[place.index];
        break;
      case TilePlace::drawn:
        places_[k] = draws[place.index];
        break;
      case TilePlace::product:
        break;  // given with each block
    }
  }
}

/// `memory` shows the elements [begin, begin + count) of the operand spread over the result: where
/// they lie, when they lie side by side, or in the buffer.
void TileProgram::stage(TileFrame& frame, uint32_t index, std::byte* buffer, int64_t begin,
                        int64_t count, TileMemory& memory) const {
  const TileStaging& staging = stagings_[index];
  const auto* from = static_cast<const std::byte*>(frame.in_[staging.operand]);
  memory.data = buffer;
  if (const int64_t period = staging.period(); period > 0 && period < tile_) {
    if (!frame.is_filled_[index]) {
      const int64_t bytes = staging.buffer_bytes(tile_);
      int64_t filled = period * staging.bytes;
      std::memcpy(buffer, from, static_cast<size_t>(filled));
      for (; filled < bytes; filled *= 2)
        std::memcpy(buffer + filled, buffer, static_cast<size_t>(std::min(filled, bytes - filled)));
      frame.is_filled_[index] = true;
    }
    memory.data = buffer + begin % period * staging.bytes;
    return;
  }
  staging.space.each_row(begin, begin + count,
                         [&](int64_t to, const RowSpace::Offsets& at, int64_t n) {
                           const std::byte* x = from + at[0] * staging.bytes;
                           std::byte* y = buffer + (to - begin) * staging.bytes;
                           if (!staging.space.repeated[0]) {
                             if (n == count)
                               memory.data = const_cast<std::byte*>(x);
                             else
                               std::memcpy(y, x, static_cast<size_t>(n * staging.bytes));
                           } else {
                             fill_values(y, x, staging.bytes, n);
                           }
                         });
}

/// The random bits of the elements [begin, begin + count), somewhere in the buffer.
std::byte* TileProgram::draw(const TilePlace& place, const TileFrame& frame, std::byte* buffer,
                             int64_t begin, int64_t count) const {
  const int64_t first = begin / kDrawn, last = (begin + count + kDrawn - 1) / kDrawn;
  random_rows(false).draw(frame.keys_[place.index], draws_[place.index].stream,
                          static_cast<uint64_t>(first), last - first,
                          reinterpret_cast<uint16_t*>(buffer));
  return buffer + 2 * (begin - first * kDrawn);
}

void TileProgram::run_tile(TileFrame& frame, int64_t begin, int64_t count, float* partial,
                           bool add) const {
  for (size_t k = 0; k < places_.size(); ++k) {
    const TilePlace& place = places_[k];
    TileMemory& memory = frame.memory_[k];
    std::byte* const base = frame.places_[k];
    switch (place.kind) {
      case TilePlace::operand:
      case TilePlace::result:
        memory.data = base + begin * place.step;
        break;
      case TilePlace::buffer:
      case TilePlace::slot:
        memory.data = base;
        break;
      case TilePlace::staged:
        stage(frame, place.index, base, begin, count, memory);
        break;
      case TilePlace::drawn:
        memory.data = draw(place, frame, base, begin, count);
        break;
      case TilePlace::product:
        break;  // set by run_block()
    }
  }
  for (const TileStep& step : steps_) {
    if (step.code.empty()) {
      run_row_step(step.row, frame, begin, count, partial, add);
      continue;
    }
    run_code(step, frame, count);
  }
}

void TileProgram::run_code(const TileStep& step, TileFrame& frame, int64_t count) const {
  TileRun run;
  run.code = step.code.data();
  run.length = static_cast<int64_t>(step.code.size());
  run.memory = frame.memory_;
  run.memory_length = static_cast<int64_t>(places_.size());
  run.scalars = frame.scalars_.data();
  if (has_product()) run.ahead = product_columns_;  // the row below
  tile_rows().run(run, count);
}

void TileProgram::run_block(TileFrame& frame, const ProductBlock& block) const {
  // Long rows are tiles where they lie. Short ones (AMX finishes 32 columns at a time) are first
  // put side by side: the program goes through whole blocks of its own.
  constexpr int64_t kLongRow = 512, kWholeBlocks = kTileBlockBytes / 4;
  const bool in_place = block.columns >= kLongRow || block.columns % kWholeBlocks == 0;
  const int64_t columns = std::min(block.columns, tile_);
  const int64_t rows = in_place ? 1 : tile_ / columns;
  for (int64_t i = 0; i < block.rows; i += rows)
    for (int64_t j = 0; j < block.columns; j += columns) {
      ProductBlock part = block;
      part.row += i;
      part.column += j;
      part.rows = std::min(rows, block.rows - i);
      part.columns = std::min(columns, block.columns - j);
      part.values += i * block.ld + j;
      if (!in_place) {
        gather(frame, part);
        for (const TileStep& step : steps_) run_code(step, frame, part.rows * part.columns);
        scatter(frame, part);
        continue;
      }
      for (size_t k = 0; k < places_.size(); ++k)
        if (places_[k].kind == TilePlace::product)
          frame.memory_[k].data = reinterpret_cast<std::byte*>(const_cast<float*>(part.values));
      run_tile(frame, part.row * product_columns_ + part.column, part.columns, nullptr, false);
    }
}

void TileProgram::gather(TileFrame& frame, const ProductBlock& block) const {
  const int64_t first = block.row * product_columns_ + block.column, n = block.columns;
  for (size_t k = 0; k < places_.size(); ++k) {
    const TilePlace& place = places_[k];
    std::byte* const base = frame.places_[k];
    std::byte* const to = frame.gathered_ + static_cast<int64_t>(k) * gathered_bytes(tile_);
    TileMemory& memory = frame.memory_[k];
    const auto each_row = [&](auto&& row_at) {
      for (int64_t r = 0; r < block.rows; ++r) {
        const std::byte* row = row_at(first + r * product_columns_);
        std::memcpy(to + r * n * place.step, row, static_cast<size_t>(n * place.step));
      }
    };
    memory.data = to;
    switch (place.kind) {
      case TilePlace::slot:
        memory.data = base;
        break;
      case TilePlace::operand:
        tile_rows().copy({base + first * place.step, product_columns_ * place.step},
                         {to, n * place.step}, block.rows, n * place.step, false);
        break;
      case TilePlace::product: {
        auto* values = reinterpret_cast<std::byte*>(const_cast<float*>(block.values));
        if (block.ld == n)
          memory.data = values;
        else
          tile_rows().copy({values, block.ld * 4}, {to, n * 4}, block.rows, n * 4, false);
        break;
      }
      case TilePlace::staged:
        each_row([&](int64_t begin) {
          TileMemory row;
          stage(frame, place.index, base, begin, n, row);
          return row.data;
        });
        break;
      case TilePlace::drawn:
        each_row([&](int64_t begin) { return draw(place, frame, base, begin, n); });
        break;
      case TilePlace::result:
      case TilePlace::buffer:
        break;  // written before it is read
    }
  }
}

void TileProgram::scatter(TileFrame& frame, const ProductBlock& block) const {
  constexpr int64_t kNear = int64_t{8} << 20;  // as for a product that is stored: gemm_amx.cpp
  const int64_t first = block.row * product_columns_ + block.column;
  for (size_t k = 0; k < places_.size(); ++k) {
    const TilePlace& place = places_[k];
    if (place.kind != TilePlace::result) continue;
    const int64_t bytes = block.columns * place.step;
    tile_rows().copy({frame.memory_[k].data, bytes},
                     {frame.places_[k] + first * place.step, product_columns_ * place.step},
                     block.rows, bytes, elements_ * place.step >= kNear);
  }
}

void TileProgram::run_row_step(const TileRowStep& row, TileFrame& frame, int64_t begin,
                               int64_t count, float* partial, bool add) const {
  const int64_t rows = count / width_, first = begin / width_;
  auto in = [&](size_t k) { return frame.memory_[row.in[k]].data; };
  auto operand = [&](int32_t k) {
    return k < 0 ? nullptr : static_cast<const float*>(frame.in_[static_cast<size_t>(k)]);
  };
  auto statistic = [&](size_t port) -> float* {
    if (row.results[port] < 0) return frame.statistics_;
    return static_cast<float*>(frame.out_[static_cast<size_t>(row.results[port])]) + first;
  };
  std::byte* out = frame.memory_[row.out].data;
  switch (row.kind) {
    case TileRowStep::softmax:
      softmax_rows(DType::f32).forward(in(0), out, rows, width_);
      break;
    case TileRowStep::softmax_grad:
      softmax_rows(DType::f32).backward(in(0), in(1), out, rows, width_);
      break;
    case TileRowStep::norm:
      norm_rows(DType::f32, row.centred)
          .forward(in(0), operand(row.weight), operand(row.bias), row.eps, out,
                   row.centred ? statistic(1) : nullptr, statistic(row.centred ? 2 : 1), rows,
                   width_);
      break;
    case TileRowStep::norm_grad:
      norm_rows(DType::f32, row.centred)
          .backward(in(0), in(1), operand(row.weight),
                    row.centred ? operand(row.mean) + first : nullptr, operand(row.rstd) + first,
                    out, partial + row.partial, partial + row.partial + width_, add, rows, width_);
      break;
    case TileRowStep::sum_rows:
      reduction_rows(Fold::kSum, DType::f32)
          .columns(in(0), rows, width_, partial + row.partial, width_, add);
      break;
  }
}

void TileProgram::combine(const KernelArgs& args, float* partials) const {
  const ReductionRows& columns = reduction_rows(Fold::kSum, DType::f32);
  for (const TileStep& step : steps_) {
    const TileRowStep& row = step.row;
    if (!step.code.empty()) continue;
    float* first = partials + row.partial;
    if (row.kind == TileRowStep::norm_grad) {
      for (size_t port = 1; port < row.results.size(); ++port)
        if (row.results[port] >= 0)
          norm_rows(DType::f32, row.centred)
              .combine(first + static_cast<int64_t>(port - 1) * width_, chunks(), partial_floats_,
                       args.out[static_cast<size_t>(row.results[port])], width_);
    } else if (row.kind == TileRowStep::sum_rows) {
      const auto result = static_cast<size_t>(row.results[0]);
      if (result_dtypes_[result] == DType::f32) {
        columns.columns(first, chunks(), partial_floats_, static_cast<float*>(args.out[result]),
                        width_, false);
        continue;
      }
      columns.columns(first + partial_floats_, chunks() - 1, partial_floats_, first, width_, true);
      for (int64_t i = 0; i < width_; ++i)
        static_cast<Bf16*>(args.out[result])[i].bits = bf16_from_float(first[i]);
    }
  }
}

}  // namespace brrr::cpu
