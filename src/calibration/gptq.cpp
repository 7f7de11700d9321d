#include "calibration/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr::calibration {
namespace {

/// Number of columns of a Cholesky panel.
constexpr int64_t kBlock = 64;
/// Number of inputs in a stretch, whose errors are propagated to later inputs together.
constexpr int64_t kSpread = 64;
constexpr int64_t kRowsOfThread = 4, kColumnsOfThread = 64;

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < n; ++k) sum += a[k] * b[k];
  return sum;
}

/// L of a = L Lᵀ, in place in the lower triangle of a [n, n]; false where a is not positive
/// definite.
bool factorise(std::vector<double>& a, int64_t n) {
  const auto row = [&](int64_t i) { return a.data() + i * n; };
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = begin; j < i; ++j)
        row(i)[j] = (row(i)[j] - dot(row(i), row(j), j)) / row(j)[j];
      const double square = row(i)[i] - dot(row(i), row(i), i);
      if (!(square > 0)) return false;
      row(i)[i] = std::sqrt(square);
    }
    parallel_for(n - end, kRowsOfThread, [&](int64_t from, int64_t to) {
      for (int64_t i = end + from; i < end + to; ++i)
        for (int64_t j = begin; j < end; ++j)
          row(i)[j] = (row(i)[j] - dot(row(i), row(j), j)) / row(j)[j];
    });
  }
  return true;
}

/// The inverse of a lower triangle l [n, n], zeros above it.
std::vector<double> inverse_of_triangle(const std::vector<double>& l, int64_t n) {
  std::vector<double> x(l.size(), 0.0);
  parallel_for(n, kColumnsOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < n; ++i) {
      double* const to = x.data() + i * n;
      for (int64_t k = begin; k < i; ++k) {
        const double factor = l[static_cast<size_t>(i * n + k)];
        const double* const from = x.data() + k * n;
        const int64_t last = std::min(end, k + 1);
#pragma omp simd
        for (int64_t j = begin; j < last; ++j) to[j] -= factor * from[j];
      }
      if (i < end) to[i] = 1;
      const double inverse = 1 / l[static_cast<size_t>(i * n + i)];
      for (int64_t j = begin; j < std::min(end, i + 1); ++j) to[j] *= inverse;
    }
  });
  return x;
}

float scale_of(std::span<const float> numbers, int most) {
  float top = 0;
  for (const float x : numbers) top = std::max(top, std::fabs(x));
  const float scale = top / static_cast<float>(most);
  return scale > 0 ? scale : 1;
}

/// The inputs in the order in which they are rounded.
std::vector<int64_t> order_of(std::span<const float> gram, int64_t n, bool orders_inputs) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (orders_inputs)
    std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
      return gram[static_cast<size_t>(a * (n + 1))] > gram[static_cast<size_t>(b * (n + 1))];
    });
  return order;
}

/// Rounds one row of a weight. `row` is permuted into the order in which its inputs are rounded.
class RowRounder {
 public:
  RowRounder(const io::IntegerForm& form, const GptqOptions& options,
             const std::vector<int64_t>& order, const std::vector<float>& factor)
      : form_(form), options_(options), order_(order), factor_(factor) {}

  void run(std::vector<float>& row, std::span<int8_t> integers, std::span<float> scales) const {
    const int64_t n = form_.columns, width = form_.columns_of_group();
    const int most = form_.most();
    std::vector<float> errors(kSpread);
    for (int64_t begin = 0; begin < n; begin += kSpread) {
      const int64_t end = std::min(n, begin + kSpread);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t input = order_[static_cast<size_t>(i)];
        float& scale = scales[static_cast<size_t>(input / width)];
        const float* const u = factor_.data() + i * n;
        // Without reordering, a group gets its scale when its first input is reached, from
        // weights that hold the errors of all earlier inputs. Errors of this stretch have not
        // reached the inputs behind it yet: group_of() adds them.
        if (!options_.orders_inputs && input % width == 0)
          scale = scale_of(group_of(row, i, width, errors, begin), most);
        const float x = row[static_cast<size_t>(i)];
        const float whole =
            std::clamp(std::nearbyint(x / scale), -static_cast<float>(most), float(most));
        integers[static_cast<size_t>(input)] = static_cast<int8_t>(whole);
        const float error = (x - whole * scale) / u[i];
        errors[static_cast<size_t>(i - begin)] = error;
#pragma omp simd
        for (int64_t j = i + 1; j < end; ++j) row[static_cast<size_t>(j)] -= error * u[j];
      }
      for (int64_t i = begin; i < end; ++i) {
        const float* const u = factor_.data() + i * n;
        const float error = errors[static_cast<size_t>(i - begin)];
#pragma omp simd
        for (int64_t j = end; j < n; ++j) row[static_cast<size_t>(j)] -= error * u[j];
      }
    }
  }

 private:
  /// Returns the weights of the group that begins at input i. Subtracts the errors of inputs
  /// [begin, i) from those behind the stretch, which they have not reached yet.
  std::vector<float> group_of(const std::vector<float>& row, int64_t i, int64_t width,
                              const std::vector<float>& errors, int64_t begin) const {
    const int64_t n = form_.columns, end = std::min(n, begin + kSpread);
    std::vector<float> group(row.begin() + i, row.begin() + i + width);
    for (int64_t k = begin; k < i; ++k)
      for (int64_t j = std::max(i, end); j < i + width; ++j)
        group[static_cast<size_t>(j - i)] -=
            errors[static_cast<size_t>(k - begin)] * factor_[static_cast<size_t>(k * n + j)];
    return group;
  }

  const io::IntegerForm& form_;
  const GptqOptions& options_;
  const std::vector<int64_t>& order_;
  const std::vector<float>& factor_;
};

}  // namespace

std::vector<float> inverse_factor(std::span<const float> gram, int64_t n, double damping) {
  BRRR_CHECK(std::ssize(gram) == n * n, "{} numbers for a matrix of {} x {}", gram.size(), n, n);
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += gram[static_cast<size_t>(i * (n + 1))];
  mean /= static_cast<double>(std::max<int64_t>(n, 1));
  // Let J reverse the order of the axes. With J G J = L Lᵀ, U = J L⁻¹ J is upper triangular and
  // Uᵀ U = G⁻¹, so that one Cholesky factorisation and one triangular inverse are enough.
  std::vector<double> a(gram.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j)
      a[static_cast<size_t>(i * n + j)] =
          static_cast<double>(gram[static_cast<size_t>((n - 1 - i) * n + (n - 1 - j))]);
    double& diagonal = a[static_cast<size_t>(i * (n + 1))];
    diagonal += damping * mean;
    if (!(diagonal > 0)) diagonal = 1;  // an input that is always zero
  }
  if (!factorise(a, n))
    user_error(
        "the Gram matrix of {} inputs is not positive definite: use more calibration text, or a "
        "larger --damping",
        n);
  const std::vector<double> x = inverse_of_triangle(a, n);
  std::vector<float> u(gram.size(), 0.0f);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j)
      u[static_cast<size_t>(i * n + j)] =
          static_cast<float>(x[static_cast<size_t>((n - 1 - i) * n + (n - 1 - j))]);
  return u;
}

io::IntegerMatrix gptq(std::span<const float> weight, const io::IntegerForm& form,
                       std::span<const float> gram, const GptqOptions& options) {
  io::IntegerMatrix result = io::quantize(weight, form);
  const int64_t n = form.columns;
  const std::vector<int64_t> order = order_of(gram, n, options.orders_inputs);
  std::vector<float> ordered(gram.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      ordered[static_cast<size_t>(i * n + j)] = gram[static_cast<size_t>(
          order[static_cast<size_t>(i)] * n + order[static_cast<size_t>(j)])];
  const std::vector<float> factor = inverse_factor(ordered, n, options.damping);
  ordered = {};
  const RowRounder rounder(form, options, order, factor);
  parallel_for(form.rows, kRowsOfThread, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < n; ++i)
        row[static_cast<size_t>(i)] =
            weight[static_cast<size_t>(r * n + order[static_cast<size_t>(i)])];
      rounder.run(
          row,
          std::span(result.integers).subspan(static_cast<size_t>(r * n), static_cast<size_t>(n)),
          std::span(result.scales)
              .subspan(static_cast<size_t>(r * form.groups()), static_cast<size_t>(form.groups())));
    }
  });
  return result;
}

}  // namespace brrr::calibration
