#include "modules/onnx/export/size_formula.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr::onnx {
namespace {

bool all_are(const SizeValues& values, auto&& f) {
  for (size_t k = 0; k < values.size(); ++k)
    if (values[k] != f(k)) return false;
  return true;
}

/// factor and offset with values = factor * x + offset; nothing where there are none.
std::optional<std::pair<int64_t, int64_t>> line_through(const SizeValues& values,
                                                        const SizeValues& x) {
  for (size_t k = 1; k < x.size(); ++k) {
    if (x[k] == x[0]) continue;
    const int64_t run = x[k] - x[0], rise = values[k] - values[0];
    if (rise % run != 0 || rise == 0) return std::nullopt;
    const int64_t factor = rise / run, offset = values[0] - factor * x[0];
    if (!all_are(values, [&](size_t i) { return factor * x[i] + offset; })) return std::nullopt;
    return std::pair(factor, offset);
  }
  return std::nullopt;
}

SizeValues product_of(const SizeValues& a, const SizeValues& b) {
  SizeValues product(a.size());
  for (size_t k = 0; k < a.size(); ++k) product[k] = a[k] * b[k];
  return product;
}

std::optional<SizeFormula> quotient_by(int64_t divisor, const SizeValues& values,
                                       const SizeValues& x, size_t size) {
  for (int64_t step = 0; step <= 4 * divisor; ++step) {  // 0, 1, -1, 2, ...
    const int64_t offset = step % 2 == 1 ? (step + 1) / 2 : -step / 2;
    const bool fits = all_are(values, [&](size_t k) {
      return x[k] + offset < 0 ? int64_t{-1} : (x[k] + offset) / divisor;
    });
    if (fits) return SizeFormula{offset, {{1, {size}}}, divisor};
  }
  return std::nullopt;
}

/// Powers of two first: strides mostly are.
std::optional<SizeFormula> quotient(const SizeValues& values, const SizeValues& x, size_t size) {
  constexpr int64_t kLargestStride = 64;
  for (int64_t divisor = 2; divisor <= kLargestStride; divisor *= 2)
    if (const auto found = quotient_by(divisor, values, x, size)) return found;
  for (int64_t divisor = 3; divisor < kLargestStride; ++divisor)
    if (const auto found = quotient_by(divisor, values, x, size)) return found;
  return std::nullopt;
}

}  // namespace

std::optional<size_t> SizeFormula::as_size() const {
  if (offset != 0 || divisor != 1 || terms.size() != 1 || terms[0].factor != 1 ||
      terms[0].sizes.size() != 1)
    return std::nullopt;
  return terms[0].sizes[0];
}

std::string SizeFormula::text(std::span<const std::string> names) const {
  if (as_size()) return names[*as_size()];
  const auto name = [&](size_t size) {
    return names[size].find(' ') == std::string::npos ? names[size] : "(" + names[size] + ")";
  };
  std::string sum;
  for (const Term& term : terms) {
    if (!sum.empty()) sum += " + ";
    if (term.factor != 1) sum += fmt::format("{} * ", term.factor);
    for (size_t i = 0; i < term.sizes.size(); ++i)
      sum += (i > 0 ? " * " : "") + name(term.sizes[i]);
  }
  if (terms.empty())
    sum = std::to_string(offset);
  else if (offset != 0)
    sum += fmt::format(" {} {}", offset < 0 ? '-' : '+', std::abs(offset));
  return divisor == 1 ? sum : fmt::format("({}) / {}", sum, divisor);
}

std::optional<SizeFormula> fit_formula(const SizeValues& values,
                                       std::span<const SizeValues> sizes) {
  if (all_are(values, [&](size_t) { return values[0]; })) return SizeFormula::constant(values[0]);
  for (size_t i = 0; i < sizes.size(); ++i)
    if (values == sizes[i]) return SizeFormula{0, {{1, {i}}}, 1};
  for (size_t i = 0; i < sizes.size(); ++i)
    if (const auto line = line_through(values, sizes[i]))
      return SizeFormula{line->second, {{line->first, {i}}}, 1};
  for (size_t i = 0; i < sizes.size(); ++i)
    for (size_t j = i; j < sizes.size(); ++j) {
      if (const auto line = line_through(values, product_of(sizes[i], sizes[j])))
        return SizeFormula{line->second, {{line->first, {i, j}}}, 1};
      // What the one leaves of the values may be a line of the other.
      for (const int64_t factor : {1, 2, -1}) {
        SizeValues rest = values;
        for (size_t k = 0; k < rest.size(); ++k) rest[k] -= factor * sizes[i][k];
        if (const auto line = line_through(rest, sizes[j]))
          return SizeFormula{line->second, {{factor, {i}}, {line->first, {j}}}, 1};
      }
    }
  for (size_t i = 0; i < sizes.size(); ++i)
    if (const auto found = quotient(values, sizes[i], i)) return found;
  return std::nullopt;
}

}  // namespace brrr::onnx
