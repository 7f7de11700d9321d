// Integers of every width and f64 on the CPU: its kernels, and the reference loops for what has
// none, give the bits of the reference.

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/target.h"
#include "backend/kernel_runner.h"
#include "ops/ops.h"
#include "support/engine_run.h"

namespace brrr {
namespace {

using test::Call;

constexpr int64_t kWideOdd = (int64_t{1} << 53) + 1;

/// The ends of a dtype, what no double holds, and ties of the narrow floats.
RefTensor limits_of(DType t) {
  if (is_float(t)) {
    const double top = is_fp8(t) || t == DType::f16 ? 400 : 1e30;
    std::vector<double> values{-top, top, NAN, -0.5, 100, 0};
    for (double& x : values) x = rounded_to(t, x);
    return {Type{t, {6}}, std::move(values)};
  }
  std::vector<uint64_t> bits{0, 1};
  if (t != DType::boolean) {
    bits.insert(bits.end(), {lowest_integer(t), greatest_integer(t), greatest_integer(t) - 1});
    for (const uint64_t x : {static_cast<uint64_t>(kWideOdd), (uint64_t{257} << 54) + 1,
                             (uint64_t{1} << 62) + (uint64_t{1} << 38) + 1})
      bits.push_back(wrapped_to(t, x));
  }
  RefTensor x(Type{t, {static_cast<int64_t>(bits.size())}});
  for (size_t i = 0; i < bits.size(); ++i) x.set_bits(i, bits[i]);
  return x;
}

TEST(IntegerKernels, CastsAtTheLimits) {
  for (const KernelEntry& entry : cpu::cast_kernels()) {
    for (DType from : kAllDTypes)
      for (DType to : kAllDTypes) {
        if (!is_integer(from) && !is_integer(to)) continue;
        if (to == DType::f16 || is_fp8(to)) continue;  // infinity, or not: cast of floats
        const Call call = Call::on(op("cast"), {limits_of(from)}, {{"dtype", to}});
        expect_close(call, run_kernel(entry, call), call.wanted());
      }
  }
}

// A double would be rounded to the tie first, and the tie to the even neighbour below.
TEST(IntegerKernels, WideIntegersRoundOnceToNarrowFloats) {
  for (const KernelEntry& entry : cpu::cast_kernels()) {
    for (const int64_t sign : {1, -1}) {
      const int64_t above_bf16 = sign * ((int64_t{257} << 54) + 1);
      const int64_t above_f32 = sign * ((int64_t{1} << 62) + (int64_t{1} << 38) + 1);
      for (const auto& [dtype, x, wanted] : {std::tuple{DType::bf16, above_bf16, 0x1.02p62},
                                             {DType::f32, above_f32, 0x1.000002p62}}) {
        RefTensor one(Type{DType::i64, {1}});
        one.set_bits(0, static_cast<uint64_t>(x));
        const Call call = Call::on(op("cast"), {one}, {{"dtype", dtype}});
        const auto got = run_kernel(entry, call);
        EXPECT_EQ(load_as_double(dtype, got[0].data(), 0), static_cast<double>(sign) * wanted)
            << x << " as " << name_of(dtype);
      }
    }
  }
}

/// Inputs a and b of 64 bits, both beyond what a double holds.
reference::Tensors two_inputs(DType t) {
  RefTensor a(Type{t, {5}}), b(Type{t, {5}});
  for (size_t i = 0; i < 5; ++i) {
    a.set_bits(i, greatest_integer(t) - i);
    b.set_bits(i, static_cast<uint64_t>(kWideOdd) + 2 * i);
  }
  return {{"a", a}, {"b", b}};
}

TEST(IntegerKernels, AProgramGivesTheBitsOfTheReference) {
  for (const DType t : {DType::i64, DType::u64}) {
    Graph g;
    Value a = g.input("a", {5}, t), b = g.input("b", {5}, t);
    g.output("add", a + b);
    g.output("sub", a - b);
    g.output("mul", a * b);
    g.output("div", a / b);
    g.output("pow", pow(b, scalar(g, 3, t)));
    g.output("max", maximum(a, b));
    g.output("less", less(b, a));
    g.output("equal", equal(a, b + (a - b)));
    g.output("where", where(less(b, a), a, b));
    g.output("sum", sum(a, {0}));
    g.output("top", max(concat(std::vector{a, b}, 0), {0}));
    g.output("moved", transpose(reshape(pad(a, 0, 1, 0), {2, 3}), {1, 0}));
    g.output("constant", a + full(g, {5}, kWideOdd, t));
    g.output("list", b - literal(g, {5}, {1, kWideOdd, 3, INT64_MAX, 0}, t));
    g.output("count", a - iota(g, {5}, 0, t));
    g.output("turned", cast(cast(a, t == DType::i64 ? DType::u64 : DType::i64), t));
    const auto in = two_inputs(t);
    const auto wanted = reference::evaluate(g, in);
    const auto got = test::run_on_cpu(g, in);
    for (const auto& [name, x] : wanted)
      EXPECT_EQ(read_tensor(x.type, got.at(name).data()), x) << name << " of " << name_of(t);
  }
}

constexpr DType kNumbers[] = {DType::i8,  DType::u8,  DType::i16, DType::u16, DType::i32,
                              DType::u32, DType::i64, DType::u64, DType::f64};

/// Numbers over the whole range of a dtype and small ones, none of them zero.
RefTensor some_numbers(DType t, const Shape& shape, uint64_t seed, uint64_t below = 0) {
  RefTensor x(Type{t, shape});
  for (size_t i = 0; i < x.size(); ++i) {
    const auto words = philox({static_cast<uint32_t>(seed), 3}, 0, i);
    const uint64_t wide = (uint64_t{words[0]} << 32) | words[1];
    const uint64_t number = below > 0 || words[2] % 3 == 0 ? wide % (below > 0 ? below : 7) : wide;
    if (is_float(t))
      x.set_number(i, (static_cast<double>(static_cast<int64_t>(number % 1000)) - 500.5) / 64);
    else
      x.set_bits(i, std::max<uint64_t>(1, wrapped_to(t, number)));
  }
  return x;
}

/// The number of kernels that take the call, each of which must give what the reference gives.
int kernels_for(const Call& call) {
  static const std::vector<KernelEntry> all = cpu::cpu_kernels();
  int accepted = 0;
  for (const KernelEntry& entry : all) {
    if (entry.op != call.node().op->id || !entry.refusal(call.view()).empty()) continue;
    SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
    ++accepted;
    expect_close(call, run_kernel(entry, call), call.wanted());
  }
  return accepted;
}

TEST(IntegerKernels, ElementWiseOpsOfEveryDtype) {
  const std::vector<std::pair<Shape, Shape>> shapes{
      {{3, 1030}, {3, 1030}}, {{3, 1030}, {}}, {{}, {1030}}, {{5, 7}, {7}}, {{5, 1}, {1, 7}}};
  for (const char* name : {"add", "sub", "mul", "div", "fmod", "pow", "maximum", "minimum", "equal",
                           "not_equal", "less", "less_equal", "greater", "greater_equal", "bit_and",
                           "bit_or", "bit_xor", "shift_left", "shift_right"})
    for (const DType t : kNumbers) {
      const std::string_view op_name(name);
      const bool is_of_bits = op_name.starts_with("bit_") || op_name.starts_with("shift_");
      if (is_of_bits && is_float(t)) continue;
      const bool wants_small = op_name.starts_with("shift_") || op_name == "pow";
      for (const auto& [a, b] : shapes) {
        const Call call = Call::on(
            op(name), {some_numbers(t, a, 1), some_numbers(t, b, 2, wants_small ? 70 : 0)});
        EXPECT_GE(kernels_for(call), 1) << call.text();
      }
    }
}

TEST(IntegerKernels, UnaryOpsOfF64) {
  for (const OpDef* d : all_ops()) {
    if (d->op_class != OpClass::elementwise || !d->samples) continue;
    for (Sample sample : d->samples()) {
      if (sample.in.size() != 1 || sample.in[0].type.dtype != DType::f32 || d->decompose) continue;
      if (d->id == Op::cast || !sample.attrs.empty()) continue;
      sample.in[0].type.dtype = DType::f64;
      EXPECT_GE(kernels_for(Call(*d, sample)), 1) << d->name;
    }
  }
}

TEST(IntegerKernels, ReductionsAndLinesOfEveryDtype) {
  for (const DType t : kNumbers)
    for (const Shape& shape : {Shape{4, 33, 5}, Shape{1, 700, 1}, Shape{3, 2, 300}}) {
      const RefTensor x = some_numbers(t, shape, 5);
      for (const char* name : {"sum", "max", "min", "product"})
        for (const std::vector<int64_t>& axes :
             {std::vector<int64_t>{0}, {1}, {2}, {0, 2}, {0, 1, 2}}) {
          const Call call = Call::on(op(name), {x}, {{"axes", axes}, {"keep", false}});
          EXPECT_GE(kernels_for(call), 1) << call.text();
        }
      for (const int64_t axis : {1, 2}) {
        const bool back = axis == 2;
        for (const auto& [name, attrs] : std::vector<std::pair<const char*, Attrs>>{
                 {"sort",
                  {{"axis", axis},
                   {"descending", back},
                   {"count",
                    std::min<int64_t>(back ? 2 : 1 << 20, shape.size(static_cast<int>(axis)))}}},
                 {"argmax", {{"axis", axis}, {"smallest", back}, {"last", back}, {"keep", false}}},
                 {"cumsum", {{"axis", axis}, {"exclusive", back}, {"reverse", back}}},
                 {"cumprod", {{"axis", axis}, {"exclusive", back}, {"reverse", back}}}}) {
          Attrs own = attrs;
          const Call call = Call::on(op(name), {x}, own);
          EXPECT_GE(kernels_for(call), 1) << call.text();
        }
      }
    }
}

// By radix, by comparison and by a list of the best; contiguous and adjacent lines.
TEST(SortKernels, NaNZerosAndTiesLieAsInTheReference) {
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i8, DType::boolean})
    for (const int64_t length : {7, 600})
      for (const int64_t inner : {1, 19})
        for (const bool descending : {false, true})
          for (const int64_t count : {int64_t{3}, length}) {
            RefTensor x(Type{t, {2, length, inner}});
            for (size_t i = 0; i < x.size(); ++i) {
              const auto number = static_cast<double>(i * 37 % 11) - 5;
              if (!is_float(t))
                x.set_bits(i, wrapped_to(t, t == DType::boolean ? i * 37 % 2 : i * 37 % 251));
              else
                x.data[i] = i % 13 == 0 ? NAN : i % 5 == 0 ? -0.0 : i % 17 == 0 ? INFINITY : number;
            }
            const Call call =
                Call::on(op("sort"), {x},
                         {{"axis", int64_t{1}}, {"descending", descending}, {"count", count}});
            EXPECT_GE(kernels_for(call), 1) << call.text();
          }
}

TEST(IntegerKernels, EmptyReductionsGiveTheIdentity) {
  for (const DType t : kNumbers)
    for (const char* name : {"sum", "max", "min", "product"}) {
      const Call call = Call::on(op(name), {RefTensor(Type{t, {3, 0}})},
                                 {{"axes", std::vector<int64_t>{1}}, {"keep", false}});
      EXPECT_GE(kernels_for(call), 1) << call.text();
    }
}

TEST(IntegerKernels, NaNOfF64GoesThroughFolds) {
  RefTensor x(Type{DType::f64, {2, 3}});
  x.data = {1, NAN, 3, INFINITY, -2, 5};
  for (const char* name : {"sum", "max", "min", "product"})
    EXPECT_GE(
        kernels_for(Call::on(op(name), {x}, {{"axes", std::vector<int64_t>{1}}, {"keep", false}})),
        1);
  for (const char* name : {"maximum", "minimum", "less", "equal"})
    EXPECT_GE(kernels_for(Call::on(op(name), {x, x})), 1);
}

/// What a program of a op b says when it fails.
std::string failure_of(Value (*f)(Value, Value), DType t, int64_t a, int64_t b) {
  Graph g;
  g.output("y", f(g.input("a", {2}, t), g.input("b", {2}, t)));
  RefTensor x(Type{t, {2}}), y(Type{t, {2}});
  x.set_bits(0, 1), x.set_bits(1, wrapped_to(t, static_cast<uint64_t>(a)));
  y.set_bits(0, 1), y.set_bits(1, wrapped_to(t, static_cast<uint64_t>(b)));
  try {
    test::run_on_cpu(g, {{"a", x}, {"b", y}});
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(IntegerKernels, DivisorsOfZeroAreNamedForEveryDtype) {
  for (const DType t : kNumbers) {
    if (is_float(t)) continue;
    EXPECT_EQ(failure_of(div, t, 7, 0), "[div] an integer divided by zero: 7 / 0");
    EXPECT_EQ(failure_of(fmod, t, 7, 0), "[fmod] an integer divided by zero: 7 mod 0");
    if (is_signed_integer(t)) {
      EXPECT_EQ(failure_of(pow, t, 0, -1), "[pow] an integer divided by zero: 1 / 0");
      EXPECT_EQ(failure_of(pow, t, 2, -1), "");
    }
  }
}

// The quotient cannot be part of the cluster around it, whose tiles do not look for zeros.
TEST(IntegerKernels, AQuotientBesideAClusterIsStillChecked) {
  Graph g;
  const Value a = g.input("a", {64}, DType::i32), b = g.input("b", {64}, DType::i32);
  g.output("y", (a + b) * a / (b - a) + b);
  RefTensor x(Type{DType::i32, {64}}), y(Type{DType::i32, {64}});
  for (size_t i = 0; i < 64; ++i) x.set_bits(i, i), y.set_bits(i, 64 - i);
  EXPECT_THROW(test::run_on_cpu(g, {{"a", x}, {"b", y}}), UserError);
  x.set_bits(32, 5);
  const auto got = test::run_on_cpu(g, {{"a", x}, {"b", y}}).at("y");
  EXPECT_EQ(read_tensor({DType::i32, {64}}, got.data()),
            reference::evaluate(g, {{"a", x}, {"b", y}}).at("y"));
}

TEST(IntegerKernels, DivisionByZeroSaysWhere) {
  Graph g;
  Value a = g.input("a", {5}, DType::i64);
  {
    const Scope scope(g, "shape");
    g.output("y", a / (a - a));
  }
  try {
    test::run_on_cpu(g, {{"a", two_inputs(DType::i64).at("a")}});
    FAIL() << "divided by zero";
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "[div] an integer divided by zero: 9223372036854775807 / 0 (at shape)");
  }
}

TEST(IntegerKernels, GatherTakesWideIds) {
  Graph g;
  g.output("y", embedding(g.input("table", {3, 2}, f32), g.input("ids", {2}, DType::i64)));
  reference::Tensors in{{"table", {Type{f32, {3, 2}}, {0, 1, 10, 11, 20, 21}}},
                        {"ids", {Type{DType::i64, {2}}, {2, 0}}}};
  const auto y = test::run_on_cpu(g, in).at("y");
  EXPECT_EQ(read_tensor({f32, {2, 2}}, y.data()).data, (std::vector<double>{20, 21, 0, 1}));
  in.at("ids").set_bits(1, static_cast<uint64_t>(kWideOdd));
  EXPECT_THROW(test::run_on_cpu(g, in), UserError);
}

}  // namespace
}  // namespace brrr
