#pragma once
// The body of a fused node as a program over tiles: element-wise stretches (tile_code.h) and row
// functions in between. Values that only one stretch needs live in registers or in one block;
// what a row function reads or a later stretch needs lies in a buffer of one tile. A body may begin
// with a product: then the program has the rest of it, and reads the product block by block.
// Compiled once, run by any thread with a TileFrame of its own.

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/fusion/tile_code.h"
#include "backend/cpu/rows/row_space.h"
#include "base/rng.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// What an entry of the memory table stands for.
struct TilePlace {
  enum Kind { operand, staged, result, buffer, slot, drawn, product } kind = operand;
  uint32_t index = 0;  // of the operand, the result, the staging, the buffer, the slot, the draw
  int64_t step = 0;    // bytes from one element to the next
};

/// Operand k spread over the shape of the result that reads it, tile by tile.
struct TileStaging {
  uint32_t operand = 0;
  RowSpace space;
  int64_t bytes = 0;  // of one element

  /// Elements of the operand, if the result is that row again and again; else 0.
  int64_t period() const {
    const bool is_row = space.sizes.size() == 1 && !space.repeated[0] && space.strides[0][0] == 0;
    return is_row ? space.row : 0;
  }
  /// Bytes of a buffer for tiles of so many elements. A period is repeated once more, so that a
  /// tile may begin anywhere in it.
  int64_t buffer_bytes(int64_t tile) const {
    return (tile + (period() < tile ? period() : 0)) * bytes;
  }
};

/// Random bits of the elements of a tile.
struct TileDraw {
  uint32_t key = 0;  // the operand that holds it
  uint32_t stream = 0;
};

/// A number that is the same for all elements.
struct TileScalar {
  int32_t operand = -1;  // >= 0: its value
  DType dtype = DType::f32;
  float bits = 0;  // as the lanes hold it
};

/// The lanes of the one element at `data`.
float tile_lane(DType t, const void* data);

struct TileRowStep {
  enum Kind { softmax, softmax_grad, norm, norm_grad, sum_rows } kind = softmax;
  bool centred = false;  // a norm: layer_norm, not rms_norm
  // Indices into the memory table; results of [C] and [rows] go through `result`.
  std::vector<uint16_t> in;
  uint16_t out = 0;
  int32_t weight = -1, bias = -1;  // operands of [C]
  int32_t mean = -1, rstd = -1;    // norm_grad: operands of [rows]
  std::vector<int32_t> results;    // -1: nobody wants it
  int64_t partial = 0;             // sums: the first float in the partial sums of a chunk
  float eps = 0;
};

struct TileStep {
  std::vector<TileInstruction> code;  // element-wise when not empty
  TileRowStep row;
};

/// Part of a product: f32 values [row, row + rows) x [column, column + columns), lines `ld` apart.
struct ProductBlock {
  int64_t row = 0, column = 0, rows = 0, columns = 0;
  const float* values = nullptr;
  int64_t ld = 0;
};

class TileProgram;

/// What one thread needs to run a program: the memory table and buffers.
class TileFrame {
 public:
  /// `storage`: TileProgram::frame_bytes() bytes that it works in; null: it allocates them.
  TileFrame(const TileProgram& program, const KernelArgs& args, std::byte* storage = nullptr);

 private:
  friend class TileProgram;
  std::span<const void* const> in_;
  std::span<void* const> out_;
  std::vector<float> scalars_;
  std::vector<RngKey> keys_;  // of each draw
  std::unique_ptr<std::byte[]> storage_;
  std::byte* base_ = nullptr;
  float* statistics_ = nullptr;     // that nobody wants, of the rows of a tile
  std::byte* gathered_ = nullptr;   // short rows side by side, for each place
  std::vector<bool> is_filled_;     // stagings of which the buffer holds the period
  std::vector<std::byte*> places_;  // where the tensor or the buffer of a place begins
  TileMemory memory_[kMaxTileMemory];
};

class TileProgram {
 public:
  explicit TileProgram(const Graph& body);
  /// Why the body is no program; empty when it is one.
  const std::string& refusal() const { return refusal_; }

  int64_t elements() const { return elements_; }
  /// Elements that a tile begins with a multiple of, and holds at most.
  int64_t tile() const { return tile_; }
  /// Width of a row when there are row steps, else 0.
  int64_t width() const { return width_; }
  /// Rows of a chunk of the sums over rows; 0 without sums.
  int64_t chunk_rows() const { return chunk_rows_; }
  int64_t chunks() const;
  /// Floats that hold the partial sums of a chunk.
  int64_t partial_floats() const { return partial_floats_; }
  /// Bytes that a frame works in: a few tiles, which are as wide as the rows of row steps.
  int64_t frame_bytes() const;
  /// Whether the body has a product, which is not computed here.
  bool has_product() const { return product_columns_ > 0; }

  /// Elements [begin, begin + count). `partial` gets the sums of these rows, or is added to.
  void run_tile(TileFrame& frame, int64_t begin, int64_t count, float* partial, bool add) const;
  /// The elements of a block of the product.
  void run_block(TileFrame& frame, const ProductBlock& block) const;
  /// The results that are sums over all rows, from the partial sums of all chunks (overwritten).
  void combine(const KernelArgs& args, float* partials) const;

 private:
  friend class TileCompiler;
  friend class TileFrame;
  void run_row_step(const TileRowStep& row, TileFrame& frame, int64_t begin, int64_t count,
                    float* partial, bool add) const;
  void run_code(const TileStep& step, TileFrame& frame, int64_t count) const;
  std::byte* draw(const TilePlace& place, const TileFrame& frame, std::byte* buffer, int64_t begin,
                  int64_t count) const;
  void gather(TileFrame& frame, const ProductBlock& block) const;
  void scatter(TileFrame& frame, const ProductBlock& block) const;
  void stage(TileFrame& frame, uint32_t staging, std::byte* buffer, int64_t begin, int64_t count,
             TileMemory& memory) const;

  std::string refusal_;
  int64_t elements_ = 0, tile_ = 0, width_ = 0, chunk_rows_ = 0, partial_floats_ = 0;
  int64_t product_columns_ = 0;
  std::vector<TileStep> steps_;
  std::vector<TilePlace> places_;
  std::vector<TileStaging> stagings_;
  std::vector<TileDraw> draws_;
  std::vector<TileScalar> scalars_;
  std::vector<DType> result_dtypes_;
  int64_t buffers_ = 0, slots_ = 0;
};

}  // namespace brrr::cpu
