// The vector functions against libm in double, over bit patterns of the whole f32 range.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/rows/elementwise_rows.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

class CpuMath : public test::EachIsa {};

/// op: with what {approximate} must be, "gelu.tanh".
RowFunction row(std::string_view op) {
  for (const RowEntry& entry : unary_rows()) {
    std::string name(name_of(entry.op));
    if (!entry.form.empty()) name += "." + std::string(entry.form);
    if (name == op && entry.dtype == DType::f32) return entry.run;
  }
  return nullptr;
}

struct Worst {
  double relative = 0;
  float at = 0;
};

/// The worst |got - wanted| / |wanted| over finite x with |x| <= limit and normal results.
Worst worst_error(std::string_view op, double (*exact)(double), float limit) {
  constexpr uint32_t kStride = 1009;  // prime: mantissas of all exponents, about 4.2 million values
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStride) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::fabs(value) <= limit) x.push_back(value);
  }
  std::vector<float> y(x.size());
  Row r;
  r.in[0] = x.data();
  r.out = y.data();
  r.n = static_cast<int64_t>(x.size());
  row(op)(r);
  Worst worst;
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = exact(static_cast<double>(x[i]));
    if (!(std::fabs(wanted) >= 1.2e-38 && std::fabs(wanted) < 3.4e38)) continue;
    const double error = std::fabs(static_cast<double>(y[i]) - wanted) / std::fabs(wanted);
    if (!(error <= worst.relative)) worst = {error, x[i]};
  }
  return worst;
}

TEST_P(CpuMath, RelativeErrorOverTheWholeRange) {
  const struct {
    const char* op;
    double (*exact)(double);
    float limit;
    double bound;
  } cases[] = {
      {"exp", [](double x) { return std::exp(x); }, 3.4e38f, 3e-7},
      {"log", [](double x) { return std::log(x); }, 3.4e38f, 3e-7},
      {"tanh", [](double x) { return std::tanh(x); }, 3.4e38f, 3e-7},
      {"erf", [](double x) { return std::erf(x); }, 3.4e38f, 3e-7},
      {"sin", [](double x) { return std::sin(x); }, 3.4e38f, 3e-7},
      {"cos", [](double x) { return std::cos(x); }, 3.4e38f, 3e-7},
      {"asin", [](double x) { return std::asin(x); }, 1.0f, 3e-7},
      {"acos", [](double x) { return std::acos(x); }, 1.0f, 3e-7},
      {"atan", [](double x) { return std::atan(x); }, 3.4e38f, 3e-7},
      {"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, 3.4e38f, 4e-7},
      // The exponent reaches 2u = 1.6 (x + 0.0447 x^3): its rounding grows with it.
      {"gelu.tanh",
       [](double x) {
         const double two_u = 2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
         return x / (1 + std::exp(-two_u));
       },
       2.0f, 1e-6},
      {"gelu.none", [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, 2.0f, 1e-6},
  };
  for (const auto& c : cases) {
    const Worst worst = worst_error(c.op, c.exact, c.limit);
    EXPECT_LT(worst.relative, c.bound) << c.op << "(" << worst.at << ")";
    RecordProperty(c.op, std::to_string(worst.relative));
    std::printf("%-10s %.2e at %g\n", c.op, worst.relative, static_cast<double>(worst.at));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuMath, test::every_isa(), test::isa_of);

}  // namespace
}  // namespace brrr::cpu
