// Every path of gemm() on every operand and result dtype, with and without epilogue, against sums
// in double. Paths whose instructions the machine lacks run through their emulation as well.

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/gemm_paths.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/threads/thread_team.h"

namespace brrr::cpu {
namespace {

struct Problem {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  DType dtype = DType::bf16, c_dtype = DType::bf16;
  float alpha = 1.0f;
  bool accumulate = false;
  bool bias = false;
  bool epilogue = false, store = true;
  int64_t pad = 0;  // of every leading dimension
  int64_t batch = 1;
  bool share_a = false, share_b = false;

  std::string describe() const {
    return fmt::format(
        "batch {} m {} n {} k {} trans {}{} {} -> {} alpha {} beta {} bias {} epilogue {} store {} "
        "pad {} shared {}{}",
        batch, m, n, k, trans_a, trans_b, name_of(dtype), name_of(c_dtype), alpha, accumulate, bias,
        epilogue, store, pad, share_a, share_b);
  }
};

/// Numbers of any dtype in a buffer of exactly their size.
struct Numbers {
  DType dtype;
  std::vector<std::byte> bytes;

  Numbers(DType t, int64_t count) : dtype(t), bytes(static_cast<size_t>(count) * bytes_of(t)) {}
  void fill(RngStream& rng) {
    for (int64_t i = 0; i < size(); ++i) set(i, 2.0 * static_cast<double>(rng.next_uniform()) - 1);
  }
  int64_t size() const { return static_cast<int64_t>(bytes.size() / bytes_of(dtype)); }
  double operator[](int64_t i) const { return load_as_double(dtype, bytes.data(), i); }
  std::vector<double> doubles() const {
    std::vector<double> all(static_cast<size_t>(size()));
    for (int64_t i = 0; i < size(); ++i) all[i] = (*this)[i];
    return all;
  }
  void set(int64_t i, double x) { store_from_double(dtype, bytes.data(), i, x); }
};

/// What the test's epilogue does: y = 2 x + row - column / 8, kept beside C, and counted.
struct Seen {
  int64_t n;
  std::vector<float> values;
  std::vector<int> calls;

  static void run(const void* context, int64_t row, int64_t column, int64_t rows, int64_t columns,
                  float* block, int64_t ld) {
    auto& seen = *static_cast<Seen*>(const_cast<void*>(context));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        float& x = block[i * ld + j];
        x = after(x, row + i, column + j);
        const size_t at = static_cast<size_t>((row + i) * seen.n + column + j);
        seen.values[at] = x;
        ++seen.calls[at];
      }
    }
  }
  static float after(float x, int64_t row, int64_t column) {
    return 2 * x + static_cast<float>(row) - static_cast<float>(column) / 8;
  }
};

struct Operands {
  Problem p;
  int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
  Numbers a, b, c;
  std::vector<float> bias;
  Seen seen;

  static int64_t matrix(int64_t rows, int64_t cols, int64_t ld) {
    return rows == 0 || cols == 0 ? 0 : (rows - 1) * ld + cols;
  }
  explicit Operands(const Problem& q)
      : p(q),
        lda((p.trans_a ? p.m : p.k) + p.pad),
        ldb((p.trans_b ? p.k : p.n) + p.pad),
        ldc(p.n + p.pad),
        stride_a(p.share_a   ? 0
                 : p.trans_a ? matrix(p.k, p.m, lda)
                             : matrix(p.m, p.k, lda)),
        stride_b(p.share_b   ? 0
                 : p.trans_b ? matrix(p.n, p.k, ldb)
                             : matrix(p.k, p.n, ldb)),
        stride_c(matrix(p.m, p.n, ldc)),
        a(p.dtype,
          (p.trans_a ? matrix(p.k, p.m, lda) : matrix(p.m, p.k, lda)) * (p.share_a ? 1 : p.batch)),
        b(p.dtype,
          (p.trans_b ? matrix(p.n, p.k, ldb) : matrix(p.k, p.n, ldb)) * (p.share_b ? 1 : p.batch)),
        c(p.c_dtype, stride_c * p.batch),
        bias(static_cast<size_t>(p.bias ? p.n : 0)) {
    RngStream rng({3, 0}, 0);
    a.fill(rng);
    b.fill(rng);
    c.fill(rng);
    for (float& x : bias) x = 2 * rng.next_uniform() - 1;
    const auto elements = static_cast<size_t>(p.batch * p.m * p.n);
    seen = {p.n, std::vector<float>(elements), std::vector<int>(elements)};
  }
  GemmBatch batch() {
    GemmBatch g;
    g.args = {.m = p.m,
              .n = p.n,
              .k = p.k,
              .dtype = p.dtype,
              .a = a.bytes.data(),
              .lda = lda,
              .trans_a = p.trans_a,
              .b = b.bytes.data(),
              .ldb = ldb,
              .trans_b = p.trans_b,
              .c_dtype = p.c_dtype,
              .c = p.store ? c.bytes.data() : nullptr,
              .ldc = ldc,
              .alpha = p.alpha,
              .beta = p.accumulate ? 1.0f : 0.0f,
              .bias = p.bias ? bias.data() : nullptr};
    if (p.epilogue) g.args.epilogue = {Seen::run, &seen};
    g.batch = p.batch;
    g.stride_a = stride_a;
    g.stride_b = stride_b;
    g.stride_c = stride_c;
    return g;
  }
  void run(const Path& path) { path.run(batch()); }
  int64_t a_at(int64_t t, int64_t i, int64_t q) const {
    return t * stride_a + (p.trans_a ? q * lda + i : i * lda + q);
  }
  int64_t b_at(int64_t t, int64_t q, int64_t j) const {
    return t * stride_b + (p.trans_b ? j * ldb + q : q * ldb + j);
  }
};

/// As in gemm_test: (steps + 1) halves of an f32 eps, then one rounding to the dtype of C.
double tolerance(const Problem& p, double magnitude, double expected) {
  const double steps = static_cast<double>(std::min(p.k, kGemmBlockK)) +
                       std::ceil(static_cast<double>(p.k) / static_cast<double>(kGemmBlockK)) + 4;
  const double sum = std::ldexp(steps + 1, -24) * magnitude;
  const double unit = p.c_dtype == DType::bf16  ? std::ldexp(1, -8)
                      : p.c_dtype == DType::f16 ? std::ldexp(1, -11)
                                                : 0.0;
  return sum + unit * (std::abs(expected) + sum) * 1.01 +
         (p.c_dtype == DType::f16 ? std::ldexp(1, -25) : 0.0);
}

void check(const Path& path, const Problem& p) {
  SCOPED_TRACE(path.name + " " + p.describe());
  Operands o(p);
  const Numbers before = o.c;
  const std::vector<double> a = o.a.doubles(), b = o.b.doubles();
  o.run(path);
  std::vector<bool> written(static_cast<size_t>(o.c.size()), false);
  int failures = 0;
  for (int64_t t = 0; t < p.batch; ++t) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t q = 0; q < p.k; ++q) {
          const double product = a[o.a_at(t, i, q)] * b[o.b_at(t, q, j)];
          sum += product;
          magnitude += std::abs(product);
        }
        const int64_t at = t * o.stride_c + i * o.ldc + j, row = t * p.m + i;
        double expected = static_cast<double>(p.alpha) * sum;
        double size = std::abs(static_cast<double>(p.alpha)) * magnitude;
        if (p.accumulate) expected += before[at], size += std::abs(before[at]);
        if (p.bias) expected += static_cast<double>(o.bias[j]), size += std::abs(o.bias[j]);
        if (p.epilogue) {
          const double up = static_cast<double>(row), down = static_cast<double>(j) / 8;
          expected = 2 * expected + up - down;
          size = 2 * size + 2 * up + down;
          ASSERT_EQ(o.seen.calls[row * p.n + j], 1) << "row " << row << " column " << j;
        }
        const double bound = tolerance(p, size, expected);
        if (p.store) {
          written[at] = true;
          if (!(std::abs(o.c[at] - expected) <= bound) && ++failures <= 3) {
            ADD_FAILURE() << fmt::format("at [{}, {}, {}]: expected {}, got {}, tolerance {}", t, i,
                                         j, expected, o.c[at], bound);
          }
        }
        if (p.epilogue) {
          const double seen = static_cast<double>(o.seen.values[row * p.n + j]);
          if (!(std::abs(seen - expected) <= bound) && ++failures <= 3) {
            ADD_FAILURE() << fmt::format("epilogue at [{}, {}]: expected {}, got {}", row, j,
                                         expected, seen);
          }
        }
      }
    }
  }
  EXPECT_EQ(failures, 0);
  for (int64_t i = 0; i < o.c.size(); ++i) {
    if (!written[i]) {
      ASSERT_EQ(o.c[i], before[i]) << "wrote between the rows of C, at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmPaths, testing::ValuesIn(paths()),
                         [](const auto& test) { return test.param.name; });

TEST_P(GemmPaths, SmallSizes) {
  for (const int64_t m : {1, 2, 5, 16, 17, 33}) {
    for (const int64_t n : {1, 3, 8, 16, 31, 33, 70}) {
      for (const int64_t k : {1, 2, 31, 32, 33, 67}) {
        for (const int trans : {0, 1, 2, 3}) {
          for (const DType dtype : path().dtypes) {
            check(path(), {.m = m,
                           .n = n,
                           .k = k,
                           .trans_a = (trans & 1) != 0,
                           .trans_b = (trans & 2) != 0,
                           .dtype = dtype,
                           .c_dtype = kAll[(m + n + k) % 3]});
          }
        }
      }
    }
  }
}

TEST_P(GemmPaths, OddSizesEpiloguesPadsScalesAndBias) {
  RngStream rng({8, 0}, 0);
  const auto pick = [&](int64_t limit) {
    return static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(limit)));
  };
  for (int i = 0; i < 60; ++i) {
    Problem p{.m = 1 + pick(i % 3 == 0 ? 12 : 90),
              .n = 1 + pick(i % 5 == 0 ? 500 : 90),
              .k = 1 + pick(i % 7 == 0 ? 1100 : 200)};
    p.trans_a = pick(2) == 1;
    p.trans_b = pick(2) == 1;
    p.dtype = path().dtypes[pick(static_cast<int64_t>(path().dtypes.size()))];
    p.c_dtype = kAll[pick(3)];
    p.alpha = pick(2) == 1 ? 1.0f : -0.37f;
    p.bias = pick(2) == 1;
    p.epilogue = pick(2) == 1;
    p.store = !p.epilogue || pick(3) > 0;
    p.accumulate = p.c_dtype == DType::f32 && p.store && pick(2) == 1;
    p.pad = pick(3) * 5;
    check(path(), p);
  }
}

TEST_P(GemmPaths, Batched) {
  for (const int trans : {0, 1, 2, 3}) {
    check(path(), {.m = 33,
                   .n = 41,
                   .k = 29,
                   .trans_a = (trans & 1) != 0,
                   .trans_b = (trans & 2) != 0,
                   .epilogue = true,
                   .batch = 7});
  }
  check(path(), {.m = 20, .n = 40, .k = 50, .bias = true, .batch = 5, .share_a = true});
  check(path(), {.m = 20, .n = 40, .k = 50, .alpha = 0.125f, .batch = 5, .share_b = true});
  check(path(), {.m = 1, .n = 64, .k = 65, .trans_b = true, .batch = 12});
  check(path(), {.m = 3, .n = 64, .k = 65, .c_dtype = DType::f32, .accumulate = true, .batch = 3});
}

/// Large enough that operands are packed in several chunks.
TEST_P(GemmPaths, InChunks) {
  const std::vector<Problem> problems = {
      {.m = 70, .n = 67, .k = 5000, .trans_a = true, .epilogue = true},
      {.m = 900, .n = 66, .k = 140, .bias = true, .pad = 948},
      {.m = 40, .n = 2600, .k = 70, .trans_b = true, .epilogue = true, .store = false},
      {.m = 600, .n = 80, .k = 300, .dtype = path().dtypes[0], .epilogue = true},
      {.m = 530, .n = 17, .k = 8100, .c_dtype = DType::f32, .epilogue = true},
      {.m = 17, .n = 530, .k = 8100, .trans_b = true, .bias = true},
      {.m = 100, .n = 70, .k = 9001, .alpha = 0.5f, .bias = true, .epilogue = true},
      {.m = 130, .n = 100, .k = 5000, .bias = true, .epilogue = true},
      {.m = 2100, .n = 2048, .k = 3},  // C goes around the caches
      {.m = 1100, .n = 2080, .k = 2, .c_dtype = DType::f32, .epilogue = true},
      {.m = 45, .n = 70, .k = 9001, .bias = true, .epilogue = true},
  };
  for (const Problem& p : some(problems, 5)) check(path(), p);
}

TEST_P(GemmPaths, SameBitsForAnyNumberOfThreads) {
  for (const DType dtype : path().dtypes) {
    for (const Problem& p :
         {Problem{.m = 150, .n = 420, .k = 333, .dtype = dtype, .bias = true, .epilogue = true},
          Problem{.m = 60, .n = 200, .k = 300, .trans_b = true, .dtype = dtype},
          Problem{.m = 1, .n = 1500, .k = 200, .dtype = dtype, .bias = true},
          Problem{.m = 1, .n = 1500, .k = 200, .trans_b = true, .dtype = dtype},
          Problem{.m = 64, .n = 64, .k = 32, .trans_a = true, .dtype = dtype, .batch = 9}}) {
      SCOPED_TRACE(path().name + " " + p.describe());
      std::vector<std::byte> first;
      for (const int threads : {1, 2, 3, 1}) {
        set_thread_count(threads);
        Operands o(p);
        o.run(path());
        if (first.empty()) first = o.c.bytes;
        EXPECT_EQ(first, o.c.bytes) << threads;
      }
    }
  }
}

/// Decoding one token gives the bits of the same row in a batch: any m, any cut of the columns; the
/// sign of zero, too, where products are too small to be numbers.
TEST_P(GemmPaths, SameBitsForARowByItself) {
  for (const DType dtype : path().dtypes) {
    for (const bool trans_b : {false, true}) {
      for (const bool tiny : {false, true}) {
        Problem p{.m = 264, .n = 96, .k = tiny ? 45 : 801, .trans_b = trans_b, .dtype = dtype};
        p.c_dtype = DType::f32;
        p.bias = !tiny;
        SCOPED_TRACE(path().name + " " + p.describe());
        const auto operands = [&] {
          Operands o(p);
          if (tiny)
            for (Numbers* x : {&o.a, &o.b})
              for (int64_t i = 0; i < x->size(); ++i) x->set(i, 1e-20 * (*x)[i]);
          return o;
        };
        Operands whole = operands();
        whole.run(path());
        const auto row = [&](const Operands& o, int64_t i) {
          return o.c.bytes.data() + static_cast<size_t>(i * o.ldc) * sizeof(float);
        };
        for (const int64_t rows : {1, 2, 7, 64, 255, 256, 257}) {
          Operands part = operands();
          GemmBatch g = part.batch();
          g.args.m = rows;
          g.args.a = offset(g.args.a, dtype, 7 * part.lda);
          path().run(g);
          for (int64_t i = 0; i < rows; ++i) {
            EXPECT_EQ(std::memcmp(row(part, i), row(whole, i + 7), p.n * sizeof(float)), 0)
                << "rows " << rows << " row " << i;
          }
        }
        Operands columns = operands();
        GemmBatch g = columns.batch();
        g.args.n = 37;
        g.args.b = offset(g.args.b, dtype, 50 * (trans_b ? columns.ldb : 1));
        if (p.bias) g.args.bias += 50;
        path().run(g);
        for (int64_t i = 0; i < p.m; ++i) {
          EXPECT_EQ(
              std::memcmp(row(columns, i), row(whole, i) + 50 * sizeof(float), 37 * sizeof(float)),
              0);
        }
      }
    }
  }
}

TEST_P(GemmPaths, NaNStaysInItsRow) {
  Operands o(Problem{.m = 17, .n = 45, .k = 300, .dtype = path().dtypes[0]});
  o.a.set(o.a_at(0, 4, 250), std::numeric_limits<double>::quiet_NaN());
  o.run(path());
  for (int64_t i = 0; i < o.p.m; ++i) {
    for (int64_t j = 0; j < o.p.n; ++j) EXPECT_EQ(std::isnan(o.c[i * o.ldc + j]), i == 4);
  }
}

/// Sums of int8 are exact, so every path gives the same, and the extremes show what overflows.
TEST(GemmInt8, EveryPathIsExact) {
  std::vector<std::pair<std::string, std::function<void(const GemmBatch&)>>> ways = {
      {"amx_emulated", gemm_amx_emulated},
      {"vnni_emulated", gemm_vnni_emulated},
      {"int8", gemm_int8}};
  if (best_isa() >= Isa::kAmx) ways.push_back({"amx", gemm_amx});
  if (best_isa() >= Isa::kAvx512 && has_vnni()) ways.push_back({"vnni", gemm_vnni});
  RngStream rng({9, 0}, 0);
  for (const Problem& p :
       {Problem{.m = 1, .n = 1, .k = 1}, Problem{.m = 33, .n = 50, .k = 130, .pad = 3},
        Problem{.m = 16, .n = 17, .k = 64, .trans_a = true},
        Problem{.m = 40, .n = 70, .k = 99, .trans_b = true, .pad = 1},
        Problem{.m = 5, .n = 31, .k = 63, .trans_a = true, .trans_b = true, .batch = 3},
        Problem{.m = 70, .n = 40, .k = 9001}, Problem{.m = 1, .n = 90, .k = 777, .trans_b = true},
        Problem{.m = 1, .n = 91, .k = 777, .pad = 2}}) {
    for (const bool extremes : {false, true}) {
      Problem q = p;
      q.dtype = DType::i8;
      q.c_dtype = DType::i32;
      Operands o(q);
      for (Numbers* x : {&o.a, &o.b})
        for (int64_t i = 0; i < x->size(); ++i)
          x->set(i, extremes ? -128 : static_cast<double>(rng.next_below(256)) - 128);
      std::vector<double> wanted(static_cast<size_t>(o.c.size()), -7);
      for (int64_t t = 0; t < q.batch; ++t)
        for (int64_t i = 0; i < q.m; ++i)
          for (int64_t j = 0; j < q.n; ++j) {
            double& sum = wanted[static_cast<size_t>(t * o.stride_c + i * o.ldc + j)];
            sum = 0;
            for (int64_t k = 0; k < q.k; ++k) sum += o.a[o.a_at(t, i, k)] * o.b[o.b_at(t, k, j)];
          }
      for (const auto& [name, run] : ways) {
        for (int64_t i = 0; i < o.c.size(); ++i) o.c.set(i, -7);
        run(o.batch());
        EXPECT_EQ(o.c.doubles(), wanted) << name << " " << q.describe();
      }
    }
  }
}

TEST(GemmWithoutTerms, StillHasBiasAndEpilogue) {
  const Path whole{"gemm", Isa::kPortable, Isa::kPortable, kAll, [](const GemmBatch& g) {
                     gemm_batched(g.args, g.batch, g.stride_a, g.stride_b, g.stride_c);
                   }};
  for (const DType c_dtype : kAll) {
    check(whole, {.m = 5, .n = 300, .k = 0, .c_dtype = c_dtype, .bias = true, .epilogue = true});
  }
  check(whole, {.m = 5, .n = 3, .k = 0, .epilogue = true, .store = false, .batch = 2});
  check(whole, {.m = 5, .n = 3, .k = 0, .c_dtype = DType::f32, .accumulate = true, .pad = 2});
  check(whole, {.m = 0, .n = 3, .k = 2, .epilogue = true});
  check(whole, {.m = 3, .n = 0, .k = 2, .epilogue = true});
}

}  // namespace
}  // namespace brrr::cpu
