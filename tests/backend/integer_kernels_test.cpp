// Integers of 64 bits on the CPU: its kernels, and the reference loops for what has none, give the
// bits of the reference.

#include <gtest/gtest.h>

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
