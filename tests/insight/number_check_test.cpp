// Which results of a benchmark are refused.
#include "insight/bench/number_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "insight/bench/bench.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

void check(const std::vector<double>& numbers, DType dtype = DType::f32,
           Zeros zeros = Zeros::refused) {
  std::vector<std::byte> bytes(numbers.size() * bytes_of(dtype));
  for (size_t i = 0; i < numbers.size(); ++i)
    store_from_double(dtype, bytes.data(), static_cast<int64_t>(i), numbers[i]);
  check_numbers("matmul", dtype, bytes, zeros);
}

TEST(NumberCheck, UsualNumbersPass) {
  check({1, -2, 0, 1e-37, 3e38});
  check({});
  check({0, 0}, DType::f32, Zeros::pass);
  check({1e-7, 1}, DType::f16);  // computed in f32, where it is normal
  std::vector<double> many(5000, 1.0);
  many[17] = 1e-40;  // one in a thousand may be subnormal by chance
  check(many);
}

TEST(NumberCheck, OthersAreRefused) {
  EXPECT_USER_ERROR(check({1, NAN, INFINITY}), "matmul: 2 of 3 results are NaN or infinite");
  EXPECT_USER_ERROR(check({1, 1e-40}), "matmul: 1 of 2 results are subnormal");
  EXPECT_USER_ERROR(check({1, -1e-40}, DType::bf16), "subnormal");
  EXPECT_USER_ERROR(check({1, 1e-310}, DType::f64), "subnormal");
  EXPECT_USER_ERROR(check({0, 0, 0}), "matmul: all 3 results are 0");
}

// A chain of 128 multiplications by one number below 1 ended in subnormal numbers, whose time was
// taken for the end of the memory's part.
TEST(NumberCheck, TheLongestChainOfMultiplicationsStaysNormal) {
  for (const int64_t n : {1, 64, 128}) EXPECT_EQ(bench_multiplications(5000, n, 0).n, n);
}

}  // namespace
}  // namespace brrr::insight
