#pragma once
// What the operator % and str.format() share.

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/builtins.h"

namespace brrr::jinja {

/// [[fill]align][sign][z][#][0][width][grouping][.precision][type]
struct Specification {
  std::string fill = " ";
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false, zero = false, no_negative_zero = false;
  int64_t width = 0, precision = -1;
};

/// The digits at the beginning of `text`, which are taken from it; -1 without any.
int64_t take_number(std::string_view& text);
/// `fill` so many times.
std::string spaces(Work& work, const std::string& fill, int64_t count);
/// A double by one of C's conversions, as Python writes it.
std::string converted(double value, char type, int64_t precision, bool alternate);
/// The digits for the conversions b, o, x, X and d.
std::string in_base(uint64_t value, char type);
/// |value|, also of the least integer.
uint64_t magnitude(int64_t value);
/// The character of a code point.
std::string character_of(int64_t code);
/// A text cut to its precision and padded; `value` is what it came from, for errors.
std::string formatted_text(Work& work, const std::string& text, const Value& value,
                           const Specification& s);

}  // namespace brrr::jinja
