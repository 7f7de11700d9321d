#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/jinja/filters.h"
#include "text/jinja/python_numbers.h"

namespace brrr::jinja {
namespace {

Value to_integer(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default", "base"});
  const Value* otherwise = given.find(0, "default");
  const Value fallback = otherwise ? *otherwise : Value(int64_t{0});
  const int64_t base = given.integer(1, "base", 10);
  if (input.is_integer()) return input.integer();
  if (input.is_undefined()) user_error("{} is undefined", *input.as<Undefined>()->name);
  if (input.is_string()) {
    work.spend_text(input.text().size());
    if (const auto found = parse_integer(input.text(), base)) return *found;
    const auto real = parse_real(input.text());
    return real && std::isfinite(*real) ? Value(truncate_to_integer(*real)) : fallback;
  }
  if (!input.is_number() || std::isnan(input.number())) return fallback;
  return truncate_to_integer(input.number());
}

Value to_real(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"default"});
  if (input.is_number()) return input.number();
  if (input.is_undefined()) user_error("{} is undefined", *input.as<Undefined>()->name);
  if (input.is_string()) {
    work.spend_text(input.text().size());
    if (const auto found = parse_real(input.text())) return *found;
  }
  const Value* otherwise = given.find(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

void check_number(const std::string& name, const Value& input) {
  if (!input.is_number()) user_error("{} takes a number, found {}", name, input.type_name());
}

Value absolute(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {});
  check_number(name, input);
  if (!input.is_integer()) return std::fabs(input.number());
  if (input.integer() == INT64_MIN) refuse_large_integer();
  return std::abs(input.integer());
}

Value round_number(Work& work, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"precision", "method"});
  const std::string method = given.text(1, "method", "common");
  if (method != "common" && method != "ceil" && method != "floor")
    user_error("{} knows common, ceil and floor", name);
  check_number(name, input);
  if (method == "common") {
    const Value* precision = given.find(0, "precision");
    if (precision && precision->is_none())  // round(value): an integer
      return input.is_integer() ? input.integer()
                                : truncate_to_integer(std::nearbyint(input.number()));
    const int64_t digits = given.integer(0, "precision", 0);
    if (input.is_integer()) return round_integer(input.integer(), digits);
    return round_real(input.number(), digits);
  }
  const Value precision(given.integer(0, "precision", 0));
  const Value scale = binary(work, "**", Value(int64_t{10}), precision);
  const Value scaled = binary(work, "*", input, scale);
  const int64_t whole = scaled.is_integer()
                            ? scaled.integer()
                            : truncate_to_integer(method == "ceil" ? std::ceil(scaled.number())
                                                                   : std::floor(scaled.number()));
  return binary(work, "/", Value(whole), scale);
}

Value file_size(Work&, const std::string& name, const Value& input, const Given& given) {
  given.check(name, {"binary"});
  const bool binary = given.flag(0, "binary", false);
  std::optional<double> bytes;
  if (input.is_number()) bytes = input.number();
  if (input.is_string()) bytes = parse_real(input.text());
  if (!bytes) user_error("{} takes a number, found {}", name, input.type_name());
  const double base = binary ? 1024 : 1000;
  if (*bytes == 1) return Value("1 Byte");
  if (*bytes < base) return Value(fmt::format("{} Bytes", truncate_to_integer(*bytes)));
  double unit = base;
  size_t i = 0;
  static constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
  static constexpr const char* kBinary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
  for (; i < std::size(kUnits); ++i) {
    unit *= base;
    if (*bytes < unit) break;
  }
  i = std::min(i, std::size(kUnits) - 1);
  return Value(fmt::format("{:.1f} {}", base * *bytes / unit, binary ? kBinary[i] : kUnits[i]));
}

constexpr Filter kNumberFilters[] = {{"int", to_integer},
                                     {"float", to_real},
                                     {"abs", absolute},
                                     {"round", round_number},
                                     {"filesizeformat", file_size}};

}  // namespace

std::span<const Filter> number_filters() { return kNumberFilters; }

}  // namespace brrr::jinja
