#include "text/jinja/python_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/errors.h"
#include "text/jinja/python_text.h"

namespace brrr::jinja {
namespace {

/// A text without white space around it, its digits in ASCII and its underscores, which must stand
/// between digits, left out; nothing where it is no number for that reason alone.
std::optional<std::string> plain_number(std::string_view text) {
  std::string out;
  bool after_digit = false, after_underscore = false;
  for (const uint32_t code : code_points(strip(text, nullptr, true, true))) {
    const std::optional<int> digit = decimal_digit(code);
    if (code == '_') {
      if (!after_digit) return std::nullopt;
      after_underscore = true;
      after_digit = false;
      continue;
    }
    const bool letter = (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    if (after_underscore && !digit && !letter) return std::nullopt;
    after_underscore = false;
    after_digit = digit.has_value() || letter;
    if (digit)
      out += static_cast<char>('0' + *digit);
    else if (code < 0x80)
      out += static_cast<char>(code);
    else
      return std::nullopt;
  }
  if (after_underscore) return std::nullopt;
  return out;
}

/// 10^18 is the largest power of ten in 64 bits.
constexpr int64_t kMostPowerDigits = 18;

}  // namespace

void refuse_large_integer() { user_error("an integer has more than 64 bits"); }

std::partial_ordering compare_exactly(int64_t integer, double real) {
  if (std::isnan(real)) return std::partial_ordering::unordered;
  if (real >= 0x1p63) return std::partial_ordering::less;
  if (real < -0x1p63) return std::partial_ordering::greater;
  const double whole = std::trunc(real);
  const auto rounded = static_cast<int64_t>(whole);
  if (integer != rounded) return integer <=> rounded;
  return 0.0 <=> real - whole;
}

double floor_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  if ((b < 0) != (rest < 0)) rest += b;
  return rest;
}

double floor_divide(double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) refuse_large_integer();
    return -a;
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t floor_modulo(int64_t a, int64_t b) { return b == -1 ? 0 : a - floor_divide(a, b) * b; }

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent)  // ends soon: the base is at least 2
    if (__builtin_mul_overflow(result, base, &result)) refuse_large_integer();
  return result;
}

double real_power(double base, double exponent) {
  if (base == 0 && exponent < 0) user_error("0 has no negative power");
  const double result = std::pow(base, exponent);
  if (std::isnan(result) && !std::isnan(base) && !std::isnan(exponent))
    user_error("the power is not a real number");
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent))
    user_error("the power is too large for a number of 64 bits");
  return result;
}

double round_real(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return std::copysign(0.0, value);
  double rounded = 0;
  if (digits >= 0) {
    std::array<char, 800> text;
    const int size =
        std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), value);
    std::from_chars(text.data(), text.data() + size, rounded);
  } else {
    // The exact decimal digits, rounded half to even at a power of ten.
    std::string text = fmt::format("{:.1080f}", std::fabs(value));
    const size_t point = text.find('.');
    const auto dropped = static_cast<size_t>(-digits);
    std::string whole = text.substr(0, point);
    std::string rest = text.substr(point + 1);
    if (whole.size() < dropped) whole.insert(0, dropped - whole.size(), '0');
    rest.insert(0, whole.substr(whole.size() - dropped));
    whole.resize(whole.size() - dropped);
    whole.insert(0, 1, '0');
    const bool above =
        rest[0] > '5' || (rest[0] == '5' && rest.find_first_not_of('0', 1) != std::string::npos);
    const bool half = rest[0] == '5' && !above;
    if (above || (half && (whole.back() - '0') % 2 == 1)) {
      size_t i = whole.size() - 1;
      while (whole[i] == '9') whole[i--] = '0';
      ++whole[i];
    }
    whole.append(dropped, '0');
    const auto read = std::from_chars(whole.data(), whole.data() + whole.size(), rounded);
    if (read.ec != std::errc()) user_error("the rounded value is too large");
    rounded = std::copysign(rounded, value);
  }
  return rounded;
}

int64_t round_integer(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -kMostPowerDigits - 1) return 0;
  if (digits == -kMostPowerDigits - 1) {
    // 10^19 does not fit; half of it does.
    constexpr int64_t kHalf = 5'000'000'000'000'000'000;
    if (value > kHalf || value < -kHalf) refuse_large_integer();
    return 0;
  }
  const int64_t power = integer_power(10, -digits), rest = floor_modulo(value, power);
  int64_t rounded = value - rest;
  const bool up = rest > power - rest || (rest == power - rest && (rounded / power) % 2 != 0);
  if (up && __builtin_add_overflow(rounded, power, &rounded)) refuse_large_integer();
  return rounded;
}

int64_t truncate_to_integer(double value) {
  if (!std::isfinite(value)) user_error("{} has no integer value", text_of_real(value));
  if (value >= 0x1p63 || value < -0x1p63) refuse_large_integer();
  return static_cast<int64_t>(value);
}

std::string text_of_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::optional<int64_t> parse_integer(std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const std::string_view stripped = strip(text, nullptr, true, true);
  const bool negative = stripped.starts_with('-');
  std::string_view digits = stripped.substr(negative || stripped.starts_with('+') ? 1 : 0);
  const char kind =
      digits.size() > 1 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : ' ';
  const int64_t prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
  bool has_prefix = false;
  if (prefix != 0 && (base == 0 || base == prefix)) {
    digits.remove_prefix(2);
    if (digits.starts_with('_')) digits.remove_prefix(1);
    has_prefix = true;
    base = prefix;
  }
  if (digits.empty() || is_space(code_points(digits)[0])) return std::nullopt;
  const std::optional<std::string> plain = plain_number(digits);
  if (!plain || plain->empty() || !continues_word(static_cast<unsigned char>((*plain)[0])))
    return std::nullopt;
  if (base == 0) {
    base = 10;
    if (!has_prefix && (*plain)[0] == '0' && plain->find_first_not_of('0') != std::string::npos)
      return std::nullopt;
  }
  uint64_t value = 0;
  const char* const end = plain->data() + plain->size();
  const auto read = std::from_chars(plain->data(), end, value, static_cast<int>(base));
  if (read.ptr != end || read.ec == std::errc::invalid_argument) return std::nullopt;
  constexpr uint64_t kLimit = uint64_t{1} << 63;
  if (read.ec != std::errc() || value > kLimit || (value == kLimit && !negative))
    refuse_large_integer();
  return negative ? static_cast<int64_t>(0 - value) : static_cast<int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  std::optional<std::string> plain = plain_number(text);
  if (!plain || plain->empty()) return std::nullopt;
  std::string digits = *plain;
  const bool negative = digits[0] == '-';
  if (negative || digits[0] == '+') digits.erase(0, 1);
  const std::string small = lower(digits);
  const double sign = negative ? -1 : 1;
  if (small == "inf" || small == "infinity") return sign * HUGE_VAL;
  if (small == "nan") return std::copysign(NAN, sign);
  if (small.find_first_not_of("0123456789.e+-") != std::string::npos || small[0] == '+' ||
      small[0] == '-')
    return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ptr != digits.data() + digits.size() || read.ec == std::errc::invalid_argument)
    return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return sign * value;
}

}  // namespace brrr::jinja
