#pragma once
// A matrix of floats as integers of 8 or 4 bits with scales: what compressed-tensors' files hold.
// x = scale * integer. Quantising is symmetric: the scale is the largest magnitude of a group over
// 127 or 7, as for weights that are quantised while they are loaded (base/storage.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace brrr::io {

/// The sizes of such a matrix, which is [rows, columns]; a row is an output of a linear layer.
struct IntegerForm {
  int64_t rows = 0, columns = 0;
  int64_t bits = 8;   // 8 or 4
  int64_t group = 0;  // columns that share a scale, which divide a row; 0: all of a row

  int64_t groups() const { return group == 0 ? 1 : columns / group; }
  int64_t columns_of_group() const { return group == 0 ? columns : group; }
  /// The largest magnitude that quantising gives.
  int most() const { return bits == 8 ? 127 : 7; }
  /// What is added to an integer so that it is stored without a sign.
  int offset() const { return 1 << (bits - 1); }
  /// Integers of an i32 word, and words of a row.
  int64_t integers_of_word() const { return 32 / bits; }
  int64_t words_of_row() const { return (columns + integers_of_word() - 1) / integers_of_word(); }
};

struct IntegerMatrix {
  IntegerForm form;
  std::vector<int8_t> integers;  // [rows, columns]
  std::vector<float> scales;     // [rows, groups]
};

/// Quantises a matrix of finite numbers. A group of zeros has the scale 1.
IntegerMatrix quantize(std::span<const float> matrix, const IntegerForm& form);

/// x = scale * integer for each row. `integers`: [rows, columns]; `scales`: [rows, groups].
void dequantize(const IntegerForm& form, std::span<const int8_t> integers,
                std::span<const float> scales, std::span<float> to);

/// i32 words [rows, words_of_row], the first integer of a word in its lowest bits, each with the
/// offset added. The bits behind the last column of a row are 0.
std::vector<int32_t> packed(const IntegerMatrix& matrix);
/// The integers of such words, which may be misaligned.
void unpack(const IntegerForm& form, std::span<const std::byte> words, std::span<int8_t> to);

/// |a - b| / |a|, the Frobenius norms of two matrices; 0 where a is zero.
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace brrr::io
