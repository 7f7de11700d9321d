// The fp32 matrix multiplication against a double loop, on every instruction set that the machine
// has.

#include "backend/cpu/products/gemm.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/threads/parallel.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();

struct Problem {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
  int64_t pad_a = 0, pad_b = 0, pad_c = 0;  // leading dimension beyond the row
  int64_t batch = 1;
  bool share_a = false, share_b = false;

  std::string describe() const {
    return fmt::format(
        "batch {} m {} n {} k {} trans_a {} trans_b {} alpha {} beta {} bias {} pads {} {} {}",
        batch, m, n, k, trans_a, trans_b, alpha, beta, bias, pad_a, pad_b, pad_c);
  }
};

/// Operands in buffers of exactly the needed size, so that a sanitizer sees any step outside.
struct Operands {
  std::vector<float> a, b, c, bias;
  GemmArgs args;
  int64_t stride_a, stride_b, stride_c;

  explicit Operands(const Problem& p, uint32_t seed = 1) {
    RngStream rng({seed, 0}, 0);
    const auto fill = [&](int64_t count) {
      std::vector<float> v(static_cast<size_t>(count));
      for (float& x : v) x = 2.0f * rng.next_uniform() - 1.0f;
      return v;
    };
    const auto matrix = [](int64_t rows, int64_t cols, int64_t ld) {
      return rows == 0 || cols == 0 ? 0 : (rows - 1) * ld + cols;
    };
    const int64_t a_rows = p.trans_a ? p.k : p.m, a_cols = p.trans_a ? p.m : p.k;
    const int64_t b_rows = p.trans_b ? p.n : p.k, b_cols = p.trans_b ? p.k : p.n;
    const int64_t lda = a_cols + p.pad_a, ldb = b_cols + p.pad_b, ldc = p.n + p.pad_c;
    stride_a = p.share_a ? 0 : matrix(a_rows, a_cols, lda);
    stride_b = p.share_b ? 0 : matrix(b_rows, b_cols, ldb);
    stride_c = matrix(p.m, p.n, ldc);
    a = fill(matrix(a_rows, a_cols, lda) * (p.share_a ? 1 : p.batch));
    b = fill(matrix(b_rows, b_cols, ldb) * (p.share_b ? 1 : p.batch));
    c = fill(stride_c * p.batch);
    bias = fill(p.bias ? p.n : 0);
    args = {.m = p.m,
            .n = p.n,
            .k = p.k,
            .a = a.data(),
            .lda = lda,
            .trans_a = p.trans_a,
            .b = b.data(),
            .ldb = ldb,
            .trans_b = p.trans_b,
            .c = c.data(),
            .ldc = ldc,
            .alpha = p.alpha,
            .beta = p.beta,
            .bias = p.bias ? bias.data() : nullptr};
  }
  void run(int64_t batch) { gemm_batched(args, batch, stride_a, stride_b, stride_c); }
};

/// Rounding error of a sum of k products in fp32 in blocks, against the sum of magnitudes: block
/// length + number of blocks + the final operations, each worth half an eps (Higham, "Accuracy and
/// Stability of Numerical Algorithms", 2nd ed., sec. 4.2).
double tolerance(int64_t k, double magnitude) {
  const double blocks = std::ceil(static_cast<double>(k) / static_cast<double>(kGemmBlockK));
  const double steps = static_cast<double>(std::min(k, kGemmBlockK)) + blocks + 3;
  return 0.5 * kEps * (steps + 1) * magnitude;
}

void check(const Problem& p) {
  SCOPED_TRACE(p.describe());
  Operands o(p);
  const std::vector<float> before = o.c;
  o.run(p.batch);
  std::vector<bool> written(o.c.size(), false);
  int failures = 0;
  for (int64_t t = 0; t < p.batch; ++t) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t q = 0; q < p.k; ++q) {
          const double x =
              o.a[t * o.stride_a + (p.trans_a ? q * o.args.lda + i : i * o.args.lda + q)];
          const double y =
              o.b[t * o.stride_b + (p.trans_b ? j * o.args.ldb + q : q * o.args.ldb + j)];
          sum += x * y;
          magnitude += std::abs(x * y);
        }
        const size_t at = t * o.stride_c + i * o.args.ldc + j;
        written[at] = true;
        double expected = p.alpha * sum, size = std::abs(p.alpha) * magnitude;
        if (p.beta != 0) expected += before[at], size += std::abs(before[at]);
        if (p.bias) expected += o.bias[j], size += std::abs(o.bias[j]);
        const double error = std::abs(o.c[at] - expected);
        if (!(error <= tolerance(p.k, size)) && ++failures <= 3) {
          ADD_FAILURE() << fmt::format("at [{}, {}, {}]: expected {}, got {}, tolerance {}", t, i,
                                       j, expected, o.c[at], tolerance(p.k, size));
        }
      }
    }
  }
  EXPECT_EQ(failures, 0);
  for (size_t i = 0; i < o.c.size(); ++i) {
    if (!written[i]) {
      ASSERT_EQ(o.c[i], before[i]) << "wrote between the rows of C, at " << i;
    }
  }
}

/// Every test runs once per instruction set (AMX adds nothing to fp32).
class Gemm : public test::EachIsa {};

INSTANTIATE_TEST_SUITE_P(Isas, Gemm,
                         testing::Values(Isa::kPortable, Isa::kSse4, Isa::kAvx2, Isa::kAvx512),
                         test::isa_of);

TEST_P(Gemm, EverySmallSize) {
  for (int64_t m = 1; m <= 30; ++m) {
    for (const int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100}) {
      for (const int64_t k : {1, 5, 16}) {
        for (const int trans : {0, 1, 2, 3}) {
          check({.m = m, .n = n, .k = k, .trans_a = (trans & 1) != 0, .trans_b = (trans & 2) != 0});
        }
      }
    }
  }
}

TEST_P(Gemm, OddSizesPadsScalesAndBias) {
  RngStream rng({7, 0}, 0);
  const auto pick = [&](int64_t limit) { return static_cast<int64_t>(rng.next_below(limit)); };
  for (int i = 0; i < 150; ++i) {
    check({.m = 1 + pick(i % 3 == 0 ? 12 : 150),
           .n = 1 + pick(i % 5 == 0 ? 700 : 150),
           .k = 1 + pick(i % 7 == 0 ? 1100 : 300),
           .trans_a = pick(2) == 1,
           .trans_b = pick(2) == 1,
           .alpha = pick(2) == 1 ? 1.0f : -0.37f,
           .beta = pick(2) == 1 ? 1.0f : 0.0f,
           .bias = pick(2) == 1,
           .pad_a = pick(3) * 5,
           .pad_b = pick(3) * 7,
           .pad_c = pick(3) * 3});
  }
}

TEST_P(Gemm, ShapesOfTraining) {
  check({.m = 130, .n = 257, .k = 768, .trans_b = true});  // a head with an odd vocabulary
  check({.m = 257, .n = 96, .k = 130, .trans_a = true, .beta = 1});  // its weight gradient
  check({.m = 64, .n = 128, .k = 2571});                             // its input gradient
  check({.m = 96, .n = 65, .k = 128, .bias = true});
  check({.m = 128, .n = 512, .k = 768, .trans_a = true});
  check({.m = 50, .n = 70, .k = 1024, .trans_a = true, .pad_a = 974});  // rows 1024 floats apart
  check({.m = 50, .n = 70, .k = 1024});
}

/// Large enough that A is packed in several chunks of rows and of terms.
TEST_P(Gemm, PackedInChunks) {
  check({.m = 4300, .n = 67, .k = 700, .trans_a = true, .bias = true});
  check({.m = 2050, .n = 66, .k = 1100, .alpha = 0.5f, .beta = 1, .pad_a = 948});
  check({.m = 300, .n = 80, .k = 1024, .batch = 2});
}

TEST_P(Gemm, Batched) {
  for (const int trans : {0, 1, 2, 3}) {
    check({.m = 33,
           .n = 41,
           .k = 29,
           .trans_a = (trans & 1) != 0,
           .trans_b = (trans & 2) != 0,
           .batch = 7});
    check({.m = 64,
           .n = 64,
           .k = 32,
           .trans_a = (trans & 1) != 0,
           .trans_b = (trans & 2) != 0,
           .batch = 12});
  }
  check({.m = 20, .n = 40, .k = 50, .beta = 1, .bias = true, .batch = 5, .share_a = true});
  check({.m = 20, .n = 40, .k = 50, .alpha = 0.125f, .batch = 5, .share_b = true});
  check({.m = 1, .n = 64, .k = 65, .trans_b = true, .batch = 12});
}

TEST_P(Gemm, NothingToDo) {
  check({.m = 0, .n = 5, .k = 3});
  check({.m = 5, .n = 0, .k = 3});
  check({.m = 5, .n = 3, .k = 3, .batch = 0});
  check({.m = 5, .n = 3, .k = 0});
  check({.m = 5, .n = 3, .k = 0, .beta = 1, .bias = true, .pad_c = 2, .batch = 2});
}

TEST_P(Gemm, BetaZeroIgnoresNaNInC) {
  for (const int64_t n : {64, 65}) {
    Operands o(Problem{.m = 30, .n = n, .k = 600});
    for (float& x : o.c) x = std::numeric_limits<float>::quiet_NaN();
    o.run(1);
    for (const float x : o.c) ASSERT_FALSE(std::isnan(x));
  }
}

TEST_P(Gemm, NaNStaysInItsRowAndColumn) {
  const Problem p{.m = 17, .n = 45, .k = 300};
  Operands o(p);
  o.a[4 * o.args.lda + 250] = std::numeric_limits<float>::quiet_NaN();
  o.run(1);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) EXPECT_EQ(std::isnan(o.c[i * o.args.ldc + j]), i == 4);
  }
}

TEST_P(Gemm, SameBitsForAnyNumberOfThreads) {
  for (const Problem& p : {Problem{.m = 300, .n = 520, .k = 777, .bias = true},
                           Problem{.m = 128, .n = 512, .k = 768, .trans_a = true},
                           Problem{.m = 200, .n = 1300, .k = 300, .trans_b = true, .beta = 1},
                           Problem{.m = 1, .n = 3000, .k = 768},
                           Problem{.m = 64, .n = 64, .k = 32, .trans_b = true, .batch = 9}}) {
    SCOPED_TRACE(p.describe());
    std::vector<float> first;
    for (const int threads : {1, 2, 3, 1}) {
      set_thread_count(threads);
      Operands o(p);
      o.run(p.batch);
      if (first.empty()) first = o.c;
      EXPECT_EQ(std::memcmp(first.data(), o.c.data(), first.size() * sizeof(float)), 0) << threads;
    }
  }
}

/// Decoding one token gives the bits of the same row in a batch: any m, any cut of the columns.
TEST_P(Gemm, SameBitsForARowByItself) {
  for (const bool trans_b : {false, true}) {
    const Problem p{.m = 150, .n = 333, .k = 600, .trans_b = trans_b, .alpha = 0.3f, .bias = true};
    Operands whole(p);
    whole.run(1);
    for (const int64_t rows : {1, 2, 3, 5, 8, 13, 40}) {
      Operands part(p);
      part.args.m = rows;
      part.args.a = part.a.data() + 7 * part.args.lda;
      part.run(1);
      for (int64_t i = 0; i < rows; ++i) {
        EXPECT_EQ(std::memcmp(&part.c[i * part.args.ldc], &whole.c[(i + 7) * whole.args.ldc],
                              p.n * sizeof(float)),
                  0)
            << "trans_b " << trans_b << " rows " << rows << " row " << i;
      }
    }
    Operands columns(p);
    columns.args.n = 37;
    columns.args.b = columns.b.data() + 100 * (trans_b ? columns.args.ldb : 1);
    columns.args.bias += 100;
    columns.run(1);
    for (int64_t i = 0; i < p.m; ++i) {
      EXPECT_EQ(std::memcmp(&columns.c[i * columns.args.ldc], &whole.c[i * whole.args.ldc + 100],
                            37 * sizeof(float)),
                0);
    }
  }
}

TEST_P(Gemm, InsideAPieceOfTheTeam) {
  const Problem p{.m = 100, .n = 200, .k = 300};
  Operands alone(p);
  alone.run(1);
  std::vector<Operands> each(4, Operands(p));
  set_thread_count(2);
  parallel_pieces(4, 2, [&](int64_t i, int) {
    GemmArgs args = each[static_cast<size_t>(i)].args;
    args.a = each[static_cast<size_t>(i)].a.data();
    args.b = each[static_cast<size_t>(i)].b.data();
    args.c = each[static_cast<size_t>(i)].c.data();
    gemm(args);
  });
  for (const Operands& o : each) EXPECT_EQ(o.c, alone.c);
}

TEST(GemmArguments, AreChecked) {
  float x[4] = {};
  const GemmArgs good{.m = 2, .n = 2, .k = 1, .a = x, .lda = 1, .b = x, .ldb = 2, .c = x, .ldc = 2};
  GemmArgs bad = good;
  bad.beta = 0.5f;
  EXPECT_THROW(gemm(bad), InternalError);
  bad = good;
  bad.lda = 0;
  EXPECT_THROW(gemm(bad), InternalError);
  bad = good;
  bad.ldb = 1;
  EXPECT_THROW(gemm(bad), InternalError);
  bad = good;
  bad.ldc = 1;
  EXPECT_THROW(gemm(bad), InternalError);
  bad = good;
  bad.m = -1;
  EXPECT_THROW(gemm(bad), InternalError);
}

TEST(GemmWorkspace, GrowsWithTheTeam) {
  constexpr int64_t kMegabyte = int64_t{1} << 20;
  set_thread_count(1);
  const int64_t one = gemm_workspace_bytes();
  set_thread_count(3);
  const int64_t three = gemm_workspace_bytes();
  set_thread_count(usable_processors());
  EXPECT_LE(one, 32 * kMegabyte);
  EXPECT_GT(three, one);
  EXPECT_LE(three - one, 8 * kMegabyte);
}

TEST(GemmWorkspace, DoesNotGrowBeyondTheProcessors) {
  const int more = 2 * std::max(usable_processors(), 4);
  set_thread_count(more);
  const int64_t full = gemm_workspace_bytes();
  set_thread_count(8 * more);
  EXPECT_EQ(gemm_workspace_bytes(), full);
  // A product of few tasks keeps memory of as few threads.
  const float x[64] = {};
  float c[64];
  const GemmArgs tiny{.m = 8, .n = 8, .k = 8, .a = x, .lda = 8, .b = x, .ldb = 8, .c = c, .ldc = 8};
  EXPECT_LE(gemm_panels(tiny, 1).threads, 1);
  // Columns beyond the last whole vector are copied, whatever else is read where it lies.
  GemmArgs odd = tiny;
  odd.m = 2;
  odd.n = odd.ldb = odd.ldc = 3;
  EXPECT_EQ(gemm_panels(odd, 1).threads, 1);
  set_thread_count(usable_processors());
}

TEST(IsaNames, RoundTrip) {
  for (const Isa isa : all_isas()) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_THROW(parse_isa("avx9"), UserError);
  EXPECT_THROW(parse_isa(""), UserError);
  EXPECT_LE(best_isa(), machine_isa());
}

/// In a process of its own, since the choice is made once: prints what BRRR_ISA leads to.
void report_isa(const char* value) {
  setenv("BRRR_ISA", value, 1);
  try {
    fmt::print(stderr, "isa {}", isa_name(best_isa()));
  } catch (const UserError& error) {
    fmt::print(stderr, "error {}", error.what());
  }
  std::exit(0);
}

TEST(IsaDeathTest, HonoursTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const Isa isa : all_isas()) {
    const std::string name(isa_name(isa));
    const std::string expected = fmt::format("isa {}", isa_name(std::min(isa, machine_isa())));
    EXPECT_EXIT(report_isa(name.c_str()), testing::ExitedWithCode(0), expected);
  }
  EXPECT_EXIT(report_isa("avx9"), testing::ExitedWithCode(0),
              "error BRRR_ISA: expected portable, sse4, avx2, avx512 or amx, got 'avx9'");
}

}  // namespace
}  // namespace brrr::cpu
