// The update kernels against the meaning of their ops in fp64: many tensors of odd sizes, zero and
// 16-bit gradients, 16-bit parameters, gradients that are not finite; and that bits depend neither
// on threads nor on alignment nor on being in place.

#include <gtest/gtest.h>
#include <bit>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/updates/optimizer_8bit_rows.h"
#include "backend/kernel_runner.h"
#include "base/panels.h"
#include "base/threads/thread_team.h"
#include "ops/quantized/dynamic_code.h"
#include "ops/update.h"
#include "support/long_proof.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

Sample::Operand operand(Shape shape, double low = -1, double high = 1, DType dtype = DType::f32) {
  return {{dtype, std::move(shape)}, low, high};
}

struct Optimizer {
  const char* op;
  size_t states;
};
void PrintTo(const Optimizer& o, std::ostream* out) { *out << o.op; }
/// Each copy is the new parameter rounded, whatever the scale of the gradients is; everything else
/// is as without copies.
template <typename Run>
void expect_copies(Call call, const std::vector<Buffer>& plain, Run&& run) {
  const DType dtype = call.node().attrs.get<DType>("copy_dtype");
  const auto& copies = call.node().attrs.get<std::vector<int64_t>>("copies");
  for (const bool is_finite : {true, false}) {
    SCOPED_TRACE(call.text());
    if (!is_finite) call.values[2][0] = NAN;
    const std::vector<Buffer> got = run(call);
    ASSERT_GT(got.size(), plain.size());
    for (size_t k = 0; k < plain.size() && is_finite; ++k) EXPECT_EQ(got[k], plain[k]) << k;
    size_t next = plain.size();
    for (size_t i = 0; i < copies.size(); ++i) {
      const Shape& shape = call.node().results[i].shape;
      for (const Layout layout : ops::kCopyLayouts) {
        if ((copies[i] & ops::copy_bit(layout)) == 0) continue;
        const Buffer& copy = got[next++];
        Buffer wanted(static_cast<int64_t>(copy.size()));
        std::memset(wanted.data(), 0, copy.size());
        for (int64_t j = 0; j < shape.elements(); ++j) {
          int64_t at = j;
          if (layout != Layout::rows) {
            const int64_t rows = shape.size(0), columns = shape.size(1);
            const int64_t row = j / columns, column = j % columns;
            at = layout == Layout::panels ? place_in_panels(row, column, rows)
                                          : place_in_panels(column, row, columns);
          }
          store_from_double(dtype, wanted.data(), at, load_as_double(DType::f32, got[i].data(), j));
        }
        EXPECT_EQ(copy, wanted) << "of parameter " << i << " in " << Storage{layout}.str();
      }
    }
    EXPECT_EQ(next, got.size());
  }
}

constexpr Optimizer kOptimizers[] = {{"adamw", 2}, {"sgd", 1}, {"lion", 1}, {"muon", 0}};

class OptimizerKernels : public ::testing::TestWithParam<std::tuple<Isa, Optimizer>> {
 protected:
  void SetUp() override {
    const Isa isa = std::get<0>(GetParam());
    if (isa > machine_isa()) GTEST_SKIP() << "this machine has no " << isa_name(isa);
    limit_isa(isa);
  }
  void TearDown() override {
    limit_isa(machine_isa());
    set_thread_count(usable_processors());
  }

  const OpDef& op() const { return brrr::op(std::get<1>(GetParam()).op); }
  size_t states() const { return std::get<1>(GetParam()).states; }
  const KernelEntry& kernel() const {
    static const std::vector<KernelEntry> list = cpu_kernels();
    for (const KernelEntry& e : list)
      if (e.op == op().id) return e;
    throw InternalError("no kernel");
  }

  /// A sample over tensors of these shapes.
  Sample sample(const std::vector<Shape>& shapes, DType param = DType::f32,
                DType grad = DType::f32) const {
    Sample s;
    s.in = ops::update_scalars();
    if (param == DType::bf16) s.in.push_back(operand({2}, 0, 1000, DType::i32));
    for (const Shape& shape : shapes) s.in.push_back(operand(shape, -1, 1, param));
    for (const Shape& shape : shapes) s.in.push_back(operand(shape, -1, 1, grad));
    for (size_t k = 0; k < states(); ++k)
      for (const Shape& shape : shapes) s.in.push_back(operand(shape, k == 1 ? 0 : -1, 1));
    s.attrs = op().samples()[0].attrs;
    std::vector<int64_t> decays;
    for (const Shape& shape : shapes) decays.push_back(shape.rank() >= 2);
    s.attrs.set("decays", decays);
    s.attrs.set("weight_decay", 0.1);
    if (param == DType::bf16) s.attrs.set("stream", int64_t{77});
    return s;
  }

  /// Threads, alignment and being in place change nothing; returns the results.
  std::vector<Buffer> run(const Call& call) const {
    SCOPED_TRACE(call.text());
    EXPECT_EQ(kernel().accepts(call.view()), "");
    set_thread_count(2);
    auto got = run_kernel(kernel(), call);
    for (int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(kernel(), call), got) << "with " << threads << " threads";
    }
    EXPECT_EQ(run_kernel(kernel(), call, 1), got) << "with other alignment";
    EXPECT_EQ(run_kernel(kernel(), call, 0, true), got) << "in place";
    return got;
  }

  const std::vector<Shape> many_ = {{65}, {300, 300}, {}, {131072 + 13}, {0}, {1}, {7, 3}, {1031}};
};

TEST_P(OptimizerKernels, ManyTensors) {
  const Call call(op(), sample(many_));
  expect_close(call, run(call), call.wanted());
}

TEST_P(OptimizerKernels, NoTensors) {
  const Call call(op(), sample({}));
  EXPECT_TRUE(run(call).empty());
}

TEST_P(OptimizerKernels, SixteenBitGradients) {
  const Call call(op(), sample(many_, DType::f32, DType::bf16));
  expect_close(call, run(call), call.wanted());
}

TEST_P(OptimizerKernels, ZeroGradientsAndStates) {
  Sample s = sample({{301}, {5, 5}});
  s.attrs.set("weight_decay", 0.0);
  Call call(op(), s);
  for (size_t i = 3 + 2; i < call.values.size(); ++i)
    std::fill(call.values[i].begin(), call.values[i].end(), 0.0);
  const auto got = run(call);
  expect_close(call, got, call.wanted());
  for (size_t i = 2; i < got.size(); ++i)
    for (size_t b = 0; b < got[i].size(); ++b) EXPECT_EQ(got[i].data()[b], std::byte{0});
}

TEST_P(OptimizerKernels, GradientsThatAreNotFiniteChangeNothing) {
  for (DType param : {DType::f32, DType::bf16}) {
    Call call(op(), sample(many_, param));
    call.values[2][0] = NAN;
    const auto got = run(call), in = call.operand_buffers();
    const size_t scalars = param == DType::bf16 ? 4 : 3, n = many_.size();
    for (size_t i = 0; i < n; ++i) {
      EXPECT_EQ(got[i], in[scalars + i]);
      for (size_t k = 0; k < states(); ++k)
        EXPECT_EQ(got[(1 + k) * n + i], in[scalars + (2 + k) * n + i]);
    }
    const auto wanted = call.wanted();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(wanted[i].data.size() > 0, got[i].size() > 0);
  }
}

TEST_P(OptimizerKernels, CopiesInSixteenBits) {
  for (DType dtype : {DType::bf16, DType::f16})
    for (DType grad : {DType::f32, DType::bf16}) {
      const Sample plain = sample(many_, DType::f32, grad);
      expect_copies(Call(op(), ops::with_copies(plain, dtype)), run(Call(op(), plain)),
                    [&](const Call& call) { return run(call); });
    }
}

TEST_P(OptimizerKernels, CopiesInPanels) {
  // Odd rows and columns, more columns than go through together, no elements.
  const std::vector<Shape> shapes = {{64, 96}, {7},     {320, 301}, {33, 64}, {96, 4131},
                                     {1, 32},  {32, 1}, {5, 5},     {0, 64},  {64, 0}};
  std::vector<std::pair<DType, DType>> dtypes;  // of the copies and of the gradients
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const DType grad : {DType::f32, DType::bf16}) dtypes.emplace_back(dtype, grad);
  for (const auto& [dtype, grad] : test::sampled_if_sanitized(dtypes, 2, "dtypes")) {
    const Sample plain = sample(shapes, DType::f32, grad);
    expect_copies(Call(op(), ops::with_copies_in_panels(plain, dtype)), run(Call(op(), plain)),
                  [&](const Call& call) { return run(call); });
  }
}

// More than the caches hold: written around them.
TEST_P(OptimizerKernels, LargeCopiesInPanels) {
  if (op().name != "sgd") GTEST_SKIP() << "one optimizer is enough";
  const Sample plain = sample({{2080, 2048}});
  expect_copies(Call(op(), ops::with_copies_in_panels(plain, DType::bf16)), run(Call(op(), plain)),
                [&](const Call& call) { return run(call); });
}

// Parameters in bf16: rounded up or down at random, the same as the reference wherever the f32 sum
// does not lie on the very edge between the two.
TEST_P(OptimizerKernels, SixteenBitParameters) {
  for (DType grad : {DType::f32, DType::bf16}) {
    const Call call(op(), sample({{300, 301}, {7}, {1025}}, DType::bf16, grad));
    const auto got = run(call);
    const auto wanted = call.wanted();
    for (size_t i = 0; i < 3; ++i) {
      size_t others = 0;
      for (size_t j = 0; j < wanted[i].data.size(); ++j) {
        const double w = wanted[i].data[j];
        const double g = load_as_double(DType::bf16, got[i].data(), static_cast<int64_t>(j));
        others += g != w;
        ASSERT_LE(std::fabs(g - w), std::ldexp(std::fabs(w) + 1e-3, -7)) << i << " " << j;
      }
      EXPECT_LE(others, wanted[i].data.size() / 500) << "of tensor " << i;
    }
  }
}

// An update far below a step of bf16 arrives on average.
TEST_P(OptimizerKernels, RandomRoundingIsUnbiased) {
  const int64_t n = 200000;
  Call low(op(), sample({{n}}, DType::bf16)), wide(op(), sample({{n}}));
  low.values[0] = {0x1p-17};
  std::fill(low.values[4].begin(), low.values[4].end(), 1.0);
  for (size_t i = 5; i < low.values.size(); ++i)  // all move the same way
    for (double& x : low.values[i]) x = std::fabs(x) + 0.01;
  const auto got = run_kernel(kernel(), low);
  for (size_t i = 0; i < wide.values.size(); ++i) wide.values[i] = low.values[i < 3 ? i : i + 1];
  const auto wanted = wide.wanted();
  double moved = 0, should = 0;
  for (int64_t j = 0; j < n; ++j) {
    moved += 1 - load_as_double(DType::bf16, got[0].data(), j);
    should += 1 - wanted[0].data[static_cast<size_t>(j)];
  }
  ASSERT_GT(should, 0);
  ASSERT_LT(should / static_cast<double>(n), 0x1p-9) << "too large for the point of this test";
  // Each element moves by a step of 2^-8 or not at all: a sum of independent such moves has the
  // variance 2^-8 times what it should be. Five deviations.
  EXPECT_NEAR(moved, should, 5 * std::sqrt(should * 0x1p-8));
  EXPECT_LT(5 * std::sqrt(should * 0x1p-8), should) << "the bound would accept no movement";
}

INSTANTIATE_TEST_SUITE_P(Paths, OptimizerKernels,
                         ::testing::Combine(::testing::Values(Isa::kPortable, Isa::kSse4,
                                                              Isa::kAvx2, Isa::kAvx512),
                                            ::testing::ValuesIn(kOptimizers)),
                         [](const auto& param) {
                           return std::string(isa_name(std::get<0>(param.param))) + "_" +
                                  std::get<1>(param.param).op;
                         });

// Optimizers that look at more than one element.
class BlockOptimizers : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > machine_isa()) GTEST_SKIP() << "this machine has no " << isa_name(GetParam());
    limit_isa(GetParam());
  }
  void TearDown() override {
    limit_isa(machine_isa());
    set_thread_count(usable_processors());
  }
  static const KernelEntry& kernel(Op op) {
    static const std::vector<KernelEntry> list = cpu_kernels();
    for (const KernelEntry& e : list)
      if (e.op == op) return e;
    throw InternalError("no kernel");
  }
  /// The results, which threads, alignment and being in place do not change.
  static std::vector<Buffer> run(const Call& call) {
    const KernelEntry& entry = kernel(call.node().op->id);
    SCOPED_TRACE(call.text());
    EXPECT_EQ(entry.accepts(call.view()), "");
    set_thread_count(2);
    auto got = run_kernel(entry, call);
    for (int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(entry, call), got) << "with " << threads << " threads";
    }
    EXPECT_EQ(run_kernel(entry, call, 1), got) << "with other alignment";
    EXPECT_EQ(run_kernel(entry, call, 0, true), got) << "in place";
    return got;
  }
  static Sample adafactor(const std::vector<Shape>& shapes, bool factored, bool scaled) {
    const OpDef& d = op(factored ? "adafactor" : "adafactor_vector");
    Sample s;
    s.in = ops::update_scalars();
    for (int part = 0; part < 2; ++part)
      for (const Shape& shape : shapes) s.in.push_back(operand(shape));
    for (int axis : {-1, -2})
      for (const Shape& shape : shapes) {
        if (!factored && axis == -2) continue;
        std::vector<Dim> dims(shape.dims().begin(), shape.dims().end());
        if (factored) dims.erase(dims.end() + axis);
        s.in.push_back(operand(Shape(dims), 0, 1));
      }
    s.attrs = d.samples()[0].attrs;
    s.attrs.set("decays", std::vector<int64_t>(shapes.size(), 1));
    s.attrs.set("scale_parameter", scaled);
    return s;
  }
  static Sample adamw_8bit(const std::vector<Shape>& shapes, DType param = DType::f32) {
    Sample s;
    s.in = ops::update_scalars();
    if (param == DType::bf16) s.in.push_back(operand({2}, 0, 1000, DType::i32));
    for (const Shape& shape : shapes) s.in.push_back(operand(shape, -1, 1, param));
    for (const Shape& shape : shapes) s.in.push_back(operand(shape, -1, 1, param));
    for (int k = 0; k < 2; ++k)
      for (const Shape& shape : shapes) s.in.push_back(operand(shape, 0, 256, DType::u8));
    for (int k = 0; k < 2; ++k)
      for (const Shape& shape : shapes)
        s.in.push_back(operand({ops::code_blocks(shape.elements())}, 0.1, 1));
    s.attrs = op("adamw_8bit").samples()[0].attrs;
    s.attrs.set("decays", std::vector<int64_t>(shapes.size(), 1));
    if (param == DType::bf16) s.attrs.set("stream", int64_t{5});
    return s;
  }
};

TEST_P(BlockOptimizers, AdafactorOnMatricesOfEverySize) {
  for (bool scaled : {false, true}) {
    const Call call(op("adafactor"), adafactor({{1, 1},
                                                {3, 37},
                                                {300, 300},
                                                {0, 4},
                                                {1031, 129},
                                                {3, 40, 1031},
                                                {2, 70001},
                                                {70001, 2},
                                                {1, 5}},
                                               true, scaled));
    expect_close(call, run(call), call.wanted());
    const Call vectors(op("adafactor_vector"), adafactor({{1}, {}, {0}, {4099}}, false, scaled));
    expect_close(vectors, run(vectors), vectors.wanted());
  }
}

TEST_P(BlockOptimizers, AdafactorWithoutGradientsAndWithoutTensors) {
  Call call(op("adafactor"), adafactor({{31, 17}, {300, 300}}, true, true));
  for (size_t i = 5; i < call.values.size(); ++i)
    std::fill(call.values[i].begin(), call.values[i].end(), 0.0);
  expect_close(call, run(call), call.wanted());
  const Call none(op("adafactor"), adafactor({}, true, true));
  EXPECT_TRUE(run(none).empty());
  call.values[2][0] = NAN;
  const auto got = run(call), in = call.operand_buffers();
  EXPECT_EQ(got[0], in[3]);
  EXPECT_EQ(got[2], in[7]);
  EXPECT_EQ(got[5], in[10]);
}

// Codes may differ by one where f32 arithmetic falls on the other side of the edge between two.
TEST_P(BlockOptimizers, Adamw8bitOnTensorsOfEverySize) {
  const std::vector<Shape> shapes = {{65}, {300, 300}, {},    {131072 + 13}, {0},
                                     {1},  {7, 3},     {256}, {255},         {257}};
  for (DType param : {DType::f32, DType::bf16}) {
    const Call call(op("adamw_8bit"), adamw_8bit(shapes, param));
    const auto got = run(call);
    const auto wanted = call.wanted();
    for (size_t k = 0; k < wanted.size(); ++k) {
      const Type& type = wanted[k].type;
      size_t others = 0;
      for (size_t i = 0; i < wanted[k].data.size(); ++i) {
        const double w = wanted[k].data[i];
        const double g = load_as_double(type.dtype, got[k].data(), static_cast<int64_t>(i));
        if (type.dtype == DType::f32) {
          ASSERT_NEAR(g, w, 2e-6 * std::fabs(w) + 1e-7) << k << " " << i;
        } else {
          others += g != w;
          const double step = type.dtype == DType::u8 ? 1 : std::ldexp(std::fabs(w) + 1e-3, -7);
          ASSERT_LE(std::fabs(g - w), step) << k << " " << i;
        }
      }
      EXPECT_LE(others, wanted[k].data.size() / 500) << k;
    }
  }
}

TEST_P(BlockOptimizers, Adamw8bitOfNothing) {
  Sample s = adamw_8bit({{301}, {5, 5}});
  s.attrs.set("weight_decay", 0.0);
  Call zero(op("adamw_8bit"), s);
  for (size_t i = 5; i < zero.values.size(); ++i)
    std::fill(zero.values[i].begin(), zero.values[i].end(), 0.0);
  const auto got = run(zero), in = zero.operand_buffers();
  EXPECT_EQ(got[0], in[3]) << "zero gradients and states move nothing";
  EXPECT_EQ(got[1], in[4]);
  for (size_t k = 6; k < 10; ++k) EXPECT_EQ(got[k], in[k + 5]) << "scales stay zero";
  EXPECT_TRUE(run(Call(op("adamw_8bit"), adamw_8bit({}))).empty());

  Call nan(op("adamw_8bit"), adamw_8bit({{301}, {300, 300}}));
  nan.values[2][0] = NAN;
  const auto kept = run(nan), before = nan.operand_buffers();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(kept[i], before[3 + i]);
  for (size_t i = 2; i < 10; ++i) EXPECT_EQ(kept[i], before[5 + i]);
}

TEST_P(BlockOptimizers, CopiesInSixteenBits) {
  const std::vector<Shape> matrices = {{300, 300}, {3, 37}, {1031, 129}, {0, 4}, {3, 40, 1031}};
  const std::vector<Shape> vectors = {{4099}, {1}, {}, {0}, {257}};
  for (DType dtype : {DType::bf16, DType::f16})
    for (const auto& [name, plain] : {std::pair{"adamw_8bit", adamw_8bit(matrices)},
                                      {"adamw_8bit", adamw_8bit(vectors)},
                                      {"adafactor", adafactor(matrices, true, true)},
                                      {"adafactor_vector", adafactor(vectors, false, true)}})
      for (const bool in_panels : {false, true}) {
        const Sample copying =
            in_panels ? ops::with_copies_in_panels(plain, dtype) : ops::with_copies(plain, dtype);
        const auto& copies = copying.attrs.get<std::vector<int64_t>>("copies");
        if (std::all_of(copies.begin(), copies.end(), [](int64_t c) { return c == 0; })) continue;
        expect_copies(Call(op(name), copying), run(Call(op(name), plain)),
                      [](const Call& call) { return run(call); });
      }
}

// Every float that can decide: the bounds between codes and their neighbours, each bucket's ends,
// and a sweep over all magnitudes.
TEST_P(BlockOptimizers, CodesAreTheNearest) {
  for (bool is_signed : {true, false}) {
    const ops::CodeBook& book = ops::dynamic_codes(is_signed);
    std::vector<float> x{0.0f, 1.0f, 0x1p-126f, 1e-30f, 0x1p-23f};
    for (size_t i = 0; i + 1 < 256; ++i) {
      const float bound = (book[i] + book[i + 1]) / 2.0f;
      for (float value :
           {bound, std::nextafter(bound, 2.0f), std::nextafter(bound, -2.0f), book[i]})
        x.push_back(value);
    }
    for (uint32_t bits = 0x33000000u; bits < 0x3f800000u; bits += 997)
      x.push_back(std::bit_cast<float>(bits));
    const size_t positive = x.size();
    for (size_t i = 0; is_signed && i < positive; ++i) x.push_back(-x[i]);
    std::vector<uint8_t> codes(x.size());
    optimizer_8bit_rows().encode(x.data(), is_signed, codes.data(), static_cast<int64_t>(x.size()));
    uint8_t all[256];
    float numbers[256];
    for (size_t i = 0; i < 256; ++i) all[i] = static_cast<uint8_t>(i);
    optimizer_8bit_rows().decode(all, is_signed, numbers, 256);
    for (size_t i = 0; i < 256; ++i)
      EXPECT_NEAR(numbers[i], book[i], 0x1p-20f * std::fabs(book[i])) << is_signed << " " << i;
    int shown = 0;
    for (size_t i = 0; i < x.size() && shown < 5; ++i) {
      const uint8_t wanted = ops::nearest_code(book, static_cast<double>(x[i]));
      if (codes[i] == wanted) continue;
      const size_t lower = std::min(codes[i], wanted);
      const float bound = (book[lower] + book[lower + 1]) / 2.0f;
      const bool is_halfway = std::abs(codes[i] - wanted) == 1 &&
                              std::fabs(x[i] - bound) <= 4 * 0x1p-23f * std::fabs(bound);
      if (is_halfway) continue;
      ADD_FAILURE() << x[i] << " has code " << int{codes[i]} << ", wanted " << int{wanted};
      ++shown;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, BlockOptimizers,
                         ::testing::Values(Isa::kPortable, Isa::kSse4, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& param) { return std::string(isa_name(param.param)); });

}  // namespace
}  // namespace brrr::cpu
