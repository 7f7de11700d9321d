#pragma once
// The part of attention that is compiled once per instruction set beside the products: a block of
// scores of one query becomes probabilities, forward and backward; f32 arithmetic.

#include <cstdint>

#include "base/dtype.h"

namespace brrr::cpu {

/// Scores of one query with the keys of one block, and what changes them.
struct ScoreRow {
  float* scores = nullptr;  // [n]
  float factor = 1;         // of the scores, where results are narrow; others are scaled already
  int64_t n = 0;  // the results have n elements, zero before `first` and from `visible` on
  int64_t first = 0, visible = 0;  // scores outside are not read
  const float* mask = nullptr;     // [visible] or null: added, or, if `boolean`, 0 where `masked`
  bool boolean = false;
  float masked = 0;
  const uint16_t* bits = nullptr;  // [visible] or null: elements of the dropout stream
  uint32_t threshold = 0;          // elements below it are dropped
  float keep_scale = 1;            // the others are multiplied by this
};

/// The softmax of a query so far.
struct RowState {
  float top, total;
};

/// Rows of integers of one head and their scales; distances between rows in elements.
struct IntegerRows {
  const int8_t* integers;
  int64_t ld;
  const float* scales;
  int64_t scales_ld;
};

struct AttentionRows {
  int64_t lanes;  // floats of a vector

  /// scores become dropout(e^(scores - top)) with the new top; the state goes on by this block.
  /// Returns the factor e^(old top - new top) for what was summed before.
  float (*forward)(const ScoreRow& row, RowState& state);
  /// With p = e^(scores - lse): scores become dropout(p), dp becomes p (dropout(dp) - delta), 0
  /// where masked by a boolean.
  void (*backward)(const ScoreRow& row, float lse, float delta, float* dp);
  /// The same, but the results are bf16 for tiles, where denormals are zero: dropout(p) goes to
  /// `weights`, [n], the gradient to `ds`; the scores are used up, dp stays as it is.
  float (*forward_narrow)(const ScoreRow& row, RowState& state, uint16_t* weights);
  void (*backward_narrow)(const ScoreRow& row, float lse, float delta, const float* dp,
                          uint16_t* weights, uint16_t* ds);
  /// y[i] *= factor
  void (*scale)(float* y, float factor, int64_t n);
  /// y[i] /= total, by its reciprocal. A zero becomes +0, for whether zeros of the sums have a sign
  /// may hang on keys that the query does not see.
  void (*divide)(float* y, float total, int64_t n);
  float (*dot)(const float* a, const float* b, int64_t n);
  /// Reads rows of integers, one scale for each: to[r, c] = scales[r * scales_ld] * from[r, c], f32
  /// [rows, to_ld], zero beyond cols.
  void (*widen_integers)(const IntegerRows& from, int64_t cols, int64_t rows, float* to,
                         int64_t to_ld);
};
const AttentionRows& attention_rows();

/// Rows of f32, bf16 or f16 as f32 and back, `cols` elements of each.
struct RowCopies {
  /// to: [rows, to_ld], zero beyond cols; from: [rows, from_ld]
  void (*widen)(const void* from, int64_t from_ld, int64_t cols, int64_t rows, float* to,
                int64_t to_ld);
  /// to: [rows, to_ld], as it was beyond cols; from: [rows, from_ld]
  void (*narrow)(const float* from, int64_t from_ld, int64_t cols, int64_t rows, void* to,
                 int64_t to_ld);
};
/// f32, bf16 or f16.
const RowCopies& row_copies(DType dtype);

}  // namespace brrr::cpu
