#pragma once
// The instructions of a fused cluster: a machine with one accumulator of eight vectors. A stretch
// of elements is worked off in blocks of eight vectors, all instructions on one block before the
// next, so a chain of any length reads and writes memory once and stays in registers between.
// Lanes have 32 bits: f32 (16-bit floats too), i32, or a mask of all ones or zeros for bool.

#include <cstddef>
#include <cstdint>

#include "backend/cpu/rows/elementwise_rows.h"

namespace brrr::cpu {

// Short functions are instructions. Every other element-wise op is a call (kCall) of the row
// function that its unfused kernel calls, so both give the same bits.

/// Where the second operand of a binary instruction comes from.
enum class TileSource : uint16_t { kScalar, k32, kBf16, kNone };  // kBf16: for floats only
inline constexpr uint16_t kTileSources = 3;

// clang-format off
// With one operand, the accumulator.
#define BRRR_TILE_UNARY(X)                                                                   \
  X(Neg) X(Sqrt) X(Rsqrt) X(Reciprocal) X(Square) X(Abs) X(Relu) X(Not) X(RoundBf16)         \
  X(RoundF16) X(IntToFloat) X(MaskToFloat) X(MaskToInt)

// With two: a is the accumulator, b the source; R...: the other way round.
#define BRRR_TILE_BINARY_FLOAT(X)                                                            \
  X(Add) X(Sub) X(RSub) X(Mul) X(Div) X(RDiv) X(Maximum) X(RMaximum) X(Minimum) X(RMinimum)  \
  X(Equal) X(NotEqual) X(Less) X(LessEqual) X(Greater) X(GreaterEqual)
#define BRRR_TILE_BINARY_BITS(X)                                                             \
  X(AddInt) X(SubInt) X(RSubInt) X(MulInt) X(MaximumInt) X(MinimumInt) X(EqualInt)           \
  X(NotEqualInt) X(LessInt) X(LessEqualInt) X(GreaterInt) X(GreaterEqualInt) X(And) X(Or)
// clang-format on

enum class TileUnary : uint16_t {
#define BRRR_NAME(name) k##name,
  BRRR_TILE_UNARY(BRRR_NAME)
};
enum class TileBinary : uint16_t {
  BRRR_TILE_BINARY_FLOAT(BRRR_NAME) BRRR_TILE_BINARY_BITS(BRRR_NAME)
};
#undef BRRR_NAME

enum class TileCode : uint16_t {
  kLoad32,
  kLoadBf16,
  kLoadF16,
  kLoadBool,
  kLoadU16,  // to i32
  kLoadScalar,
  kStore32,
  kStoreBf16,
  kStoreF16,
  kStoreBool,
  kDropout,         // accumulator where the u16 of `from` is at least `bits`, times `value`; else 0
  kSelectScalars,   // accumulator ? from : other
  kSelectScalar32,  // from a scalar, other in memory
  kSelect32Scalar,
  kSelect32s,
  kCall,         // `call`: operand `other` is the accumulator, the second operand is `source`
  kUnary = 64,   // + TileUnary
  kBinary = 128  // + TileBinary * kTileSources + TileSource
};

struct TileInstruction {
  uint16_t code = 0;
  uint16_t from = 0;   // index into the memory table, or into the scalars
  uint16_t other = 0;  // of a select; of a binary one, how many of the same code follow
  TileSource source = TileSource::kNone;
  int32_t bits = 0;
  float value = 0;
  RowFunction call = nullptr;
};

constexpr uint16_t tile_code(TileUnary op) {
  return static_cast<uint16_t>(static_cast<uint16_t>(TileCode::kUnary) + static_cast<uint16_t>(op));
}
constexpr uint16_t tile_code(TileBinary op, TileSource source) {
  return static_cast<uint16_t>(static_cast<uint16_t>(TileCode::kBinary) +
                               static_cast<uint16_t>(op) * kTileSources +
                               static_cast<uint16_t>(source));
}

/// One entry of the memory table: element i of the stretch lies at data + i * step, or, for a value
/// that lives within one block only (step 0), lane i of the block at data + 4 i.
struct TileMemory {
  std::byte* data = nullptr;
  int64_t step = 0;
};
inline constexpr int64_t kMaxTileMemory = 48;
/// The longest block in bytes of f32: eight vectors of 512 bits.
inline constexpr int64_t kTileBlockBytes = 512;

struct TileRun {
  const TileInstruction* code = nullptr;
  int64_t length = 0;
  const TileMemory* memory = nullptr;
  int64_t memory_length = 0;  // <= kMaxTileMemory
  const float* scalars = nullptr;
  /// What lies so many elements further is fetched while a chain computes.
  int64_t ahead = 512;
};

/// Rows `stride` bytes apart.
struct TileLines {
  std::byte* data = nullptr;
  int64_t stride = 0;
};

struct TileRows {
  /// Elements [0, n) of the stretch. The bits of an element depend on its operands alone.
  void (*run)(const TileRun& program, int64_t n);
  /// `rows` rows of a few hundred bytes. With past_caches, rows of whole aligned lines go to memory
  /// directly: the caller ends with a store fence.
  void (*copy)(TileLines from, TileLines to, int64_t rows, int64_t bytes, bool past_caches);
};
const TileRows& tile_rows();

}  // namespace brrr::cpu
