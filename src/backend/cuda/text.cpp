#include "backend/cuda/text.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr::cuda {

std::string_view stored_type(DType t) { return t == DType::boolean ? "b8" : name_of(t); }

std::string_view work_type(DType t) {
  switch (t) {
    case DType::f64:
      return "double";
    case DType::i64:
      return "i64";
    case DType::boolean:
      return "bool";
    case DType::u64:
      return "u64";
    case DType::u32:
      return "u32";
    case DType::i32:
    case DType::i16:
    case DType::u16:
    case DType::i8:
    case DType::u8:
      return "int";
    default:
      return "float";
  }
}

std::string literal(DType t, double value) {
  value = rounded_to(t, value);
  if (t == DType::boolean) return value != 0 ? "true" : "false";
  if (!is_float(t)) return integer_literal(t, integer_from_double(t, value));
  const bool wide = t == DType::f64;
  std::string text;
  if (std::isnan(value))
    text = "BRRR_NAN";
  else if (std::isinf(value))
    text = value > 0 ? "BRRR_INFINITY" : "(-BRRR_INFINITY)";
  else if (wide)
    return fmt::format("({:#.17g})", value);
  else
    return fmt::format("({:#.9g}f)", value);
  return wide ? fmt::format("static_cast<double>({})", text) : text;
}

std::string integer_literal(DType t, uint64_t bits) {
  const auto number = static_cast<int64_t>(bits);
  if (t == DType::u64) return fmt::format("static_cast<u64>({}ull)", bits);
  if (t == DType::u32) return fmt::format("({}u)", bits);
  if (t != DType::i64)
    return number == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("({})", number);
  return number == INT64_MIN ? "(-9223372036854775807ll - 1)"
                             : fmt::format("static_cast<i64>({}ll)", number);
}

std::string literal(const Node& full) {
  const DType t = full.results[0].dtype;
  if (!is_integer(t)) return literal(t, full_value(full));
  uint64_t bits = 0;
  store_constant(full, 0, &bits);
  return integer_literal(t, load_integer(t, &bits, 0));
}

std::string indented(const std::string& text, int by) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    if (!line.empty())
      out += (line[0] == '#' ? "" : std::string(static_cast<size_t>(by), ' ')) + line;
    out += '\n';
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return out;
}

std::string identifier(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return out;
}

namespace {

std::string cast_expression(DType from, DType to, const std::string& x) {
  if (to == DType::boolean) return from == DType::boolean ? x : fmt::format("({} != 0)", x);
  if (is_float(from) && is_integer(to))
    return fmt::format("truncated<{}>({}, {}, {})", work_type(to), x,
                       integer_literal(to, lowest_integer(to)),
                       integer_literal(to, greatest_integer(to)));
  return fmt::format("static_cast<{}>({})", work_type(to), x);
}

}  // namespace

bool has_pointwise_expression(const Node& node) {
  return is(node, Op::cast) || !node.op->code.empty();
}

std::string pointwise_expression(const Node& node, DType in, const std::vector<std::string>& args) {
  if (is(node, Op::cast)) return cast_expression(in, node.results[0].dtype, args[0]);
  const auto arg = [&](size_t i) { return i < args.size() ? args[i] : std::string(); };
  return fmt::format(fmt::runtime(node.op->code), arg(0), arg(1), arg(2),
                     fmt::arg("one", literal(in, 1)),
                     fmt::arg("approximate", node.attrs.get_or<std::string>("approximate", "")));
}

std::string dropout_expression(const Node& node, const std::string& x, const std::string& bits) {
  const double threshold = std::min(65535.0, std::nearbyint(node.attrs.get<double>("p") * 65536));
  const DType t = node.results[0].dtype == DType::f64 ? DType::f64 : DType::f32;
  return fmt::format("({} >= {} ? {} * {} : {})", bits, static_cast<int>(threshold), x,
                     literal(t, 65536.0 / (65536.0 - threshold)), literal(t, 0));
}

}  // namespace brrr::cuda
