#pragma once
// The order in which products read a right operand of quantised integers: panels of 32 columns,
// term after term in fours, as VPDPBUSD and TDPBSUD multiply them. Integers are stored unsigned,
// with an offset. 8 bits: a tensor [N / 32, K / 4, 32, 4]. 4 bits: [N / 32, K / 8, 32, 4], where
// byte t of a column has term t in its low half and term 4 + t in its high half. N and K are
// rounded up; padding stands for 0 (bytes 0x80 and 0x88). The scales follow all integers, f32
// [N / 32, groups, 32]. A matrix of dtype i8 that is not quantised uses panels of 8 bits that have
// no scales.

#include <cstdint>

#include "base/integers.h"
#include "base/panels.h"

namespace brrr {

/// The layout of a matrix [k, n] in such panels.
struct IntegerPanels {
  int64_t k = 0, n = 0;
  int64_t bits = 8;   // 8 or 4
  int64_t group = 0;  // terms that share a scale, a multiple of 8; 0: all

  /// The number added to each integer to store it without a sign.
  int offset() const { return bits == 8 ? 128 : 8; }
  /// The largest magnitude of an integer.
  int most() const { return bits == 8 ? 127 : 7; }
  int64_t terms_of_group() const { return group == 0 ? (k > 0 ? k : 1) : group; }
  int64_t groups() const { return ceil_div(k, terms_of_group()); }
  int64_t panels() const { return ceil_div(n, kPanelColumns); }
  /// Number of terms whose integers share the 4 bytes of a column.
  int64_t terms_of_word() const { return 32 / bits; }
  int64_t panel_bytes() const { return ceil_div(k, terms_of_word()) * kPanelColumns * 4; }
  int64_t integer_bytes() const { return panels() * panel_bytes(); }
  int64_t scale_count() const { return panels() * groups() * kPanelColumns; }
  int64_t bytes() const { return integer_bytes() + scale_count() * int64_t{sizeof(float)}; }

  /// Returns the offset of the byte that holds an element.
  int64_t place(int64_t term, int64_t column) const {
    return column / kPanelColumns * panel_bytes() + term / terms_of_word() * kPanelColumns * 4 +
           column % kPanelColumns * 4 + term % 4;
  }
  /// Whether an element of 4 bits is in the high half of its byte.
  bool is_high(int64_t term) const { return bits == 4 && term % 8 >= 4; }
  /// Returns the index of an element's scale among all scales.
  int64_t scale_place(int64_t term, int64_t column) const {
    return (column / kPanelColumns * groups() + term / terms_of_group()) * kPanelColumns +
           column % kPanelColumns;
  }
};

}  // namespace brrr
