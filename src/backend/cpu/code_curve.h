#pragma once
// The dynamic code books (ops/dynamic_code.h) as arithmetic: within a decade, codes and numbers are
// a straight line, and everything but powers of ten follows from the bits of a float, so tables of
// eight entries, which fit a register, replace those of 256.

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/dynamic_code.h"

namespace brrr::cpu {

/// By decade, 0 for the least; 7 is the number 1. Decade d has 2^d cells in a signed book, whose
/// codes are counted from that of zero, 127, and which is symmetric but for 1; twice as many in an
/// unsigned one.
struct CodeCurve {
  // Numbers to codes, with p the cells of the number's decade: number slope + 8/9 p + offset,
  // rounded, at most 2 p + last; zero up to `least`. above[d]: what is not above it belongs to the
  // decade before d.
  alignas(64) float above[16] = {}, slope[16] = {};
  float offset = 0, last = 0, least = 0;
  int32_t one_cell = 0;  // the bits of the float that is the number of cells of decade 0
  // Codes to numbers. Twice the code and one more (signed), or three more, is m 2^e with 1 <= m <
  // 2; no more than `one`, whose m is almost 2. The number is (m - 8/9) scale[e].
  alignas(64) float scale[16] = {};
  float one = 0;

  explicit CodeCurve(bool is_signed) {
    const ops::CodeBook& book = ops::dynamic_codes(is_signed);
    const int zero = is_signed ? 127 : 0, last_code = is_signed ? 128 : 255;
    const auto bound = [&](int code) {  // between the code'th positive number and the one before
      const auto i = static_cast<size_t>(zero + code);
      return (book[i - 1] + book[i]) / 2.0f;
    };
    least = bound(1);
    above[0] = -1;  // all are
    above[7] = bound(last_code);
    offset = is_signed ? -0.5f : -1.5f;
    last = is_signed ? -1.0f : -2.0f;
    one_cell = std::bit_cast<int32_t>(is_signed ? 1.0f : 2.0f);
    for (int d = 0; d < 7; ++d) {
      const int cells = 1 << (is_signed ? d : d + 1), first = is_signed ? cells : cells - 1;
      const double top = std::pow(10.0, d - 6);
      if (d > 0) above[d] = bound(first);
      slope[d] = static_cast<float>(cells / (0.9 * top));
      const int exponent = 127 + (is_signed ? d + 1 : d + 2);  // as a float has it
      scale[exponent & 7] = static_cast<float>(0.9 * top);
    }
    const double cells = is_signed ? 128 : 256;
    slope[7] = static_cast<float>(last_code - (cells * 8 / 9 + static_cast<double>(offset)));
    one = std::nextafter(static_cast<float>(2 * cells), 0.0f);
    for (float* table : {above, slope, scale}) std::copy_n(table, 8, table + 8);
  }
};

inline const CodeCurve& code_curve(bool is_signed) {
  static const CodeCurve with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

}  // namespace brrr::cpu
