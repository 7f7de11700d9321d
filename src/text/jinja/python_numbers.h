#pragma once
// Numbers as Python has them: integers and doubles compare exactly, // and % round down, round()
// rounds the exact value of a double, and int() and float() read underscores and all digits of
// Unicode. An integer that does not fit into 64 bits is refused.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brrr::jinja {

[[noreturn]] void refuse_large_integer();

/// `integer` against `real` without rounding; unordered where `real` is no number.
std::partial_ordering compare_exactly(int64_t integer, double real);

double floor_divide(double a, double b);
double floor_modulo(double a, double b);
int64_t floor_divide(int64_t a, int64_t b);
int64_t floor_modulo(int64_t a, int64_t b);
int64_t integer_power(int64_t base, int64_t exponent);
/// Throws UserError where Python raises an error.
double real_power(double base, double exponent);

/// round(value, digits).
double round_real(double value, int64_t digits);
int64_t round_integer(int64_t value, int64_t digits);
/// int(value). Throws UserError for infinities, NaN and what does not fit into 64 bits.
int64_t truncate_to_integer(double value);

/// repr() of a double.
std::string text_of_real(double value);
/// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<int64_t> parse_integer(std::string_view text, int64_t base);
std::optional<double> parse_real(std::string_view text);

}  // namespace brrr::jinja
