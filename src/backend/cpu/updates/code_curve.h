#pragma once
// Computes the dynamic code books (ops/quantized/dynamic_code.h) instead of looking them up. Within
// a decade the number is a linear function of the code. Only the powers of ten need tables; these
// have eight entries and fit into a vector register, unlike a code book of 256.

#include <algorithm>
#include <cmath>

#include "ops/quantized/dynamic_code.h"

namespace brrr::cpu {

/// By decade, 0 for the least; 7 is the number 1. Decade d has 2^d cells in a signed book, whose
/// codes are counted from that of zero, 127, and which is symmetric but for 1; twice as many in an
/// unsigned one. Tables stand in memory twice, one after the other, for registers of sixteen.
struct CodeCurve {
  // Numbers to codes: number slope + offset, rounded, at most `last`. above[d]: what is not above
  // it belongs to the decade before d.
  alignas(64) float above[16] = {}, slope[16] = {}, offset[16] = {}, last[16] = {};
  // Codes to numbers. A code and a half (signed), or one and a half more, is m 2^e with 1 <= m < 2;
  // no more than `one`, whose m is almost 2. The number is (m - 8/9) scale[(127 + e) & 7].
  alignas(64) float scale[16] = {};
  float one = 0;

  explicit CodeCurve(bool is_signed) {
    const ops::CodeBook& book = ops::dynamic_codes(is_signed);
    const int zero = is_signed ? 127 : 0, most = is_signed ? 128 : 255;
    const auto bound = [&](int code) {  // between the code'th positive number and the one before
      const auto i = static_cast<size_t>(zero + code);
      return (book[i - 1] + book[i]) / 2.0f;
    };
    const auto line = [&](int d, double slope_there, double offset_there) {
      slope[d] = static_cast<float>(slope_there);
      offset[d] = static_cast<float>(offset_there);
    };
    above[0] = -1;  // all are
    for (int d = 0; d < 7; ++d) {
      const int cells = 1 << (is_signed ? d : d + 1), first = is_signed ? cells : cells - 1;
      const double top = std::pow(10.0, d - 6);
      if (d > 0) above[d] = bound(first);
      line(d, cells / (0.9 * top), first - 0.5 - cells / 9.0);
      last[d] = static_cast<float>(first + cells - 1);
      const int exponent = 127 + (is_signed ? d : d + 1);  // as a float has it
      scale[exponent & 7] = static_cast<float>(0.9 * top);
    }
    // Zero is not the centre of a cell. The least decade has one cell more, or two, above it.
    const double least = static_cast<double>(bound(1));
    const double per_cell = is_signed ? 2 * least : static_cast<double>(bound(2)) - least;
    line(0, 1 / per_cell, 0.5 - least / per_cell);
    above[7] = bound(most);
    line(7, 0, most);
    last[7] = static_cast<float>(most);
    one = std::nextafter(is_signed ? 128.0f : 256.0f, 0.0f);
    for (float* table : {above, slope, offset, last, scale}) std::copy_n(table, 8, table + 8);
  }
};

inline const CodeCurve& code_curve(bool is_signed) {
  static const CodeCurve with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

}  // namespace brrr::cpu
