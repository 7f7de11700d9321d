// Integers are exact on the reference, up to the ends of 64 bits: every op that takes them, casts
// between all pairs, constants as text.

#include <gtest/gtest.h>

#include <limits>

#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"

namespace brrr {
namespace {

constexpr int64_t kLow = INT64_MIN, kHigh = INT64_MAX, kOdd = (int64_t{1} << 53) + 1;
constexpr uint64_t kTop = UINT64_MAX;

RefTensor of(DType dtype, std::vector<uint64_t> bits, Shape shape = {}) {
  if (shape.rank() == 0) shape = {static_cast<int64_t>(bits.size())};
  RefTensor t(Type{dtype, std::move(shape)});
  for (size_t i = 0; i < bits.size(); ++i) t.set_bits(i, bits[i]);
  return t;
}
RefTensor signed_of(std::vector<int64_t> values, Shape shape = {}) {
  return of(DType::i64, {values.begin(), values.end()}, std::move(shape));
}
RefTensor unsigned_of(std::vector<uint64_t> values) { return of(DType::u64, std::move(values)); }
RefTensor booleans(std::vector<double> values) {
  const auto n = static_cast<int64_t>(values.size());
  return {Type{DType::boolean, {n}}, std::move(values)};
}

/// Result 0 of the op on the operands; the graph is printed and parsed on the way.
RefTensor result(std::string_view name, const std::vector<RefTensor>& in, Attrs attrs = {}) {
  Graph g;
  reference::Tensors values;
  std::vector<ValueId> operands;
  for (size_t i = 0; i < in.size(); ++i) {
    const std::string input = fmt::format("x{}", i);
    operands.push_back(g.input(input, in[i].type).id);
    values[input] = in[i];
  }
  const Scope scope(g, "h.3");
  g.output("y", g.value(g.add(op(name), operands, std::move(attrs))));
  const Graph back = parse(print(g), find_op);
  EXPECT_TRUE(back == g) << print(g);
  return reference::evaluate(back, values).at("y");
}

std::string refusal(std::string_view name, const std::vector<RefTensor>& in, Attrs attrs = {}) {
  try {
    result(name, in, std::move(attrs));
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(Integers, ArithmeticWrapsAround) {
  EXPECT_EQ(result("add", {signed_of({kHigh, kOdd, kLow}), signed_of({1, 1, -1})}),
            signed_of({kLow, kOdd + 1, kHigh}));
  EXPECT_EQ(result("sub", {signed_of({kLow, kOdd, 0}), signed_of({1, 2, kLow})}),
            signed_of({kHigh, kOdd - 2, kLow}));
  EXPECT_EQ(result("mul", {signed_of({kOdd, kLow, kHigh}), signed_of({3, -1, kHigh})}),
            signed_of({27021597764222979, kLow, 1}));
  EXPECT_EQ(result("add", {unsigned_of({kTop, 1u << 31}), unsigned_of({2, kTop})}),
            unsigned_of({1, (1u << 31) - 1}));
  EXPECT_EQ(result("sub", {unsigned_of({0, kTop}), unsigned_of({1, 1})}),
            unsigned_of({kTop, kTop - 1}));
  EXPECT_EQ(result("mul", {unsigned_of({kTop, kOdd}), unsigned_of({kTop, 5})}),
            unsigned_of({1, 45035996273704965}));
  EXPECT_EQ(result("mul", {of(DType::i32, {65537}), of(DType::i32, {65537})}),
            of(DType::i32, {131073}));
  EXPECT_EQ(result("add", {of(DType::i8, {127}), of(DType::i8, {1})}).integer<int64_t>(0), -128);
  EXPECT_EQ(result("sub", {of(DType::u16, {0}), of(DType::u16, {1})}).integer<int64_t>(0), 65535);
}

TEST(Integers, DivisionTruncatesAndRefusesZero) {
  EXPECT_EQ(result("div", {signed_of({-7, 7, kLow, kHigh, kOdd}), signed_of({2, -2, -1, 1, 1})}),
            signed_of({-3, -3, kLow, kHigh, kOdd}));
  EXPECT_EQ(result("div", {unsigned_of({kTop, kTop, 6}), unsigned_of({1, kTop, kTop})}),
            unsigned_of({kTop, 1, 0}));
  EXPECT_EQ(refusal("div", {signed_of({4, kLow}), signed_of({2, 0})}),
            "[div] an integer divided by zero: -9223372036854775808 / 0 (at h.3)");
  EXPECT_EQ(refusal("div", {unsigned_of({kTop}), unsigned_of({0})}),
            "[div] an integer divided by zero: 18446744073709551615 / 0 (at h.3)");
}

TEST(Integers, PowersAreExact) {
  EXPECT_EQ(result("pow", {signed_of({3, -2, 10, -1, 7}), signed_of({39, 63, 18, kLow, 0})}),
            signed_of({4052555153018976267, kLow, 1000000000000000000, 1, 1}));
  EXPECT_EQ(result("pow", {signed_of({5, 1, -1, -3}), signed_of({-1, -9, -9, -2})}),
            signed_of({0, 1, -1, 0}));
  EXPECT_EQ(result("pow", {unsigned_of({3, kTop}), unsigned_of({40, 2})}),
            unsigned_of({12157665459056928801u, 1}));
  EXPECT_NE(refusal("pow", {signed_of({0}), signed_of({-1})}).find("zero"), std::string::npos);
}

TEST(Integers, ComparisonsAndExtremesSeeTheLastBit) {
  const RefTensor a = signed_of({kOdd, kOdd, kLow, kHigh}),
                  b = signed_of({kOdd - 1, kOdd, kHigh, kHigh - 1});
  EXPECT_EQ(result("equal", {a, b}), booleans({0, 1, 0, 0}));
  EXPECT_EQ(result("not_equal", {a, b}), booleans({1, 0, 1, 1}));
  EXPECT_EQ(result("less", {a, b}), booleans({0, 0, 1, 0}));
  EXPECT_EQ(result("less_equal", {a, b}), booleans({0, 1, 1, 0}));
  EXPECT_EQ(result("greater", {a, b}), booleans({1, 0, 0, 1}));
  EXPECT_EQ(result("greater_equal", {a, b}), booleans({1, 1, 0, 1}));
  EXPECT_EQ(result("maximum", {a, b}), signed_of({kOdd, kOdd, kHigh, kHigh}));
  EXPECT_EQ(result("minimum", {a, b}), signed_of({kOdd - 1, kOdd, kLow, kHigh - 1}));
  const RefTensor c = unsigned_of({kTop, 1}), d = unsigned_of({kTop - 1, kTop});
  EXPECT_EQ(result("less", {c, d}), booleans({0, 1}));
  EXPECT_EQ(result("equal", {c, d}), booleans({0, 0}));
  EXPECT_EQ(result("maximum", {c, d}), unsigned_of({kTop, kTop}));
  EXPECT_EQ(result("minimum", {c, d}), unsigned_of({kTop - 1, 1}));
}

TEST(Integers, ReductionsAreExact) {
  const Attrs rows{{"axes", std::vector<int64_t>{1}}, {"keep", false}};
  const RefTensor x = signed_of({kOdd, kOdd, 1, kHigh, 1, 0}, {2, 3});
  EXPECT_EQ(result("sum", {x}, rows), signed_of({2 * kOdd + 1, kLow}));
  EXPECT_EQ(result("max", {x}, rows), signed_of({kOdd, kHigh}));
  const Attrs all{{"axes", std::vector<int64_t>{0}}, {"keep", false}};
  EXPECT_EQ(result("sum", {unsigned_of({kTop, kTop})}, all).unsigned_data,
            std::vector<uint64_t>{kTop - 1});
  EXPECT_EQ(result("max", {unsigned_of({kTop - 1, kTop, 3})}, all).unsigned_data,
            std::vector<uint64_t>{kTop});
  for (DType t : kAllDTypes) {
    if (!is_integer(t)) continue;
    EXPECT_EQ(result("max", {RefTensor(Type{t, {0}})}, all).bits(0), lowest_integer(t))
        << name_of(t);
  }
}

TEST(Integers, MovingLosesNothing) {
  const RefTensor x = signed_of({kLow, kHigh, kOdd, -kOdd, 0, 7}, {2, 3});
  EXPECT_EQ(result("reshape", {x}, {{"shape", Shape{6}}}).signed_data, x.signed_data);
  EXPECT_EQ(result("transpose", {x}, {{"permutation", std::vector<int64_t>{1, 0}}}),
            signed_of({kLow, -kOdd, kHigh, 0, kOdd, 7}, {3, 2}));
  EXPECT_EQ(
      result("slice", {x}, {{"axis", int64_t{1}}, {"start", int64_t{1}}, {"size", int64_t{2}}}),
      signed_of({kHigh, kOdd, 0, 7}, {2, 2}));
  EXPECT_EQ(
      result("pad", {x}, {{"axis", int64_t{0}}, {"before", int64_t{1}}, {"after", int64_t{0}}}),
      signed_of({0, 0, 0, kLow, kHigh, kOdd, -kOdd, 0, 7}, {3, 3}));
  EXPECT_EQ(result("concat", {signed_of({kLow}), signed_of({kOdd, kHigh})}, {{"axis", int64_t{0}}}),
            signed_of({kLow, kOdd, kHigh}));
  EXPECT_EQ(result("broadcast_to", {unsigned_of({kTop})}, {{"shape", Shape{3}}}),
            unsigned_of({kTop, kTop, kTop}));
  EXPECT_EQ(result("where", {booleans({1, 0}), signed_of({kOdd, 1}), signed_of({2, kLow})}),
            signed_of({kOdd, kLow}));
  RefTensor position(Type{DType::i32, {}});
  position.set_bits(0, 1);
  EXPECT_EQ(result("update_slice", {signed_of({1, 2, 3}), signed_of({kHigh}), position},
                   {{"axis", int64_t{0}}}),
            signed_of({1, kHigh, 3}));
  EXPECT_EQ(result("after", {unsigned_of({kTop}), signed_of({1})}), unsigned_of({kTop}));
}

TEST(Integers, GatherTakesWideIdsAndNamesThoseOutside) {
  const RefTensor table(Type{DType::f32, {3, 2}}, {0, 1, 10, 11, 20, 21});
  EXPECT_EQ(result("embedding", {table, signed_of({2, 0})}).data,
            (std::vector<double>{20, 21, 0, 1}));
  // As doubles both would be 2^53.
  EXPECT_EQ(refusal("embedding", {table, signed_of({0, kOdd})}),
            "[embedding] id 9007199254740993 lies outside the table of 3 rows (at h.3)");
  EXPECT_NE(refusal("embedding", {table, signed_of({kLow})}).find("-9223372036854775808"),
            std::string::npos);
  const RefTensor dy(Type{DType::f32, {2, 1}}, {3, 4});
  EXPECT_EQ(result("embedding_grad", {dy, signed_of({1, 1})}, {{"rows", int64_t{2}}}).data,
            (std::vector<double>{0, 7}));
}

// -- casts

TEST(Integers, CastsBetweenIntegersKeepTheLowBits) {
  for (DType from : kAllDTypes)
    for (DType to : kAllDTypes) {
      if (!is_integer(from) || !is_integer(to)) continue;
      const std::vector<uint64_t> ends{lowest_integer(from), greatest_integer(from), 0, 1,
                                       wrapped_to(from, static_cast<uint64_t>(kOdd))};
      const RefTensor x = of(from, ends), y = result("cast", {x}, {{"dtype", to}});
      // What C does with two's complement, stored and read again.
      for (size_t i = 0; i < ends.size(); ++i) {
        uint64_t room = 0;
        store_integer(to, &room, 0, ends[i]);
        EXPECT_EQ(y.bits(i), load_integer(to, &room, 0))
            << name_of(from) << " to " << name_of(to) << " of " << static_cast<int64_t>(ends[i]);
      }
    }
  EXPECT_EQ(result("cast", {signed_of({-1, kOdd, 300})}, {{"dtype", DType::u64}}),
            unsigned_of({kTop, static_cast<uint64_t>(kOdd), 300}));
  EXPECT_EQ(result("cast", {signed_of({-1, kOdd, 300})}, {{"dtype", DType::u8}}),
            of(DType::u8, {255, 1, 44}));
}

TEST(Integers, CastsFromFloatsStopAtTheEnds) {
  const RefTensor x(Type{DType::f64, {6}}, {-1e300, 1e300, NAN, -0.9, 127.9, INFINITY});
  for (DType to : kAllDTypes) {
    if (!is_integer(to)) continue;
    const RefTensor y = result("cast", {x}, {{"dtype", to}});
    EXPECT_EQ(y.bits(0), lowest_integer(to)) << name_of(to);
    EXPECT_EQ(y.bits(1), greatest_integer(to)) << name_of(to);
    EXPECT_EQ(y.bits(2), 0u) << name_of(to);
    EXPECT_EQ(y.bits(3), 0u) << name_of(to);
    EXPECT_EQ(y.bits(4), 127u) << name_of(to);
    EXPECT_EQ(y.bits(5), greatest_integer(to)) << name_of(to);
  }
  const RefTensor edge(Type{DType::f64, {3}}, {0x1p63, -0x1p63, 0x1p64});
  EXPECT_EQ(result("cast", {edge}, {{"dtype", DType::i64}}), signed_of({kHigh, kLow, kHigh}));
  EXPECT_EQ(result("cast", {edge}, {{"dtype", DType::u64}}),
            unsigned_of({uint64_t{1} << 63, 0, kTop}));
}

TEST(Integers, CastsToFloatsAndBool) {
  EXPECT_EQ(result("cast", {unsigned_of({kTop, 3})}, {{"dtype", DType::f64}}).data,
            (std::vector<double>{0x1p64, 3}));
  EXPECT_EQ(result("cast", {signed_of({kLow, kHigh})}, {{"dtype", DType::f64}}).data,
            (std::vector<double>{-0x1p63, 0x1p63}));
  EXPECT_EQ(result("cast", {signed_of({kLow, 0, kOdd})}, {{"dtype", DType::boolean}}),
            booleans({1, 0, 1}));
  EXPECT_EQ(result("cast", {booleans({1, 0})}, {{"dtype", DType::u64}}), unsigned_of({1, 0}));
}

// -- constants

TEST(Integers, ConstantsArePrintedAndParsedExactly) {
  Graph g;
  g.output("low", full(g, {2}, kLow, DType::i64));
  g.output("top", scalar(g, kTop, DType::u64));
  g.output("odd", scalar(g, kOdd, DType::i64));
  g.output("list", literal(g, {4}, {kLow, kOdd, kHigh, 0}, DType::i64));
  g.output("naturals", literal(g, {3}, {0, kTop, kOdd}, DType::u64));
  g.output("small", literal(g, {2}, {1, 2}, DType::u64));
  const std::string text = print(g);
  for (const char* part :
       {"value=-9223372036854775808}", "value=18446744073709551615}", "value=9007199254740993}",
        "values=(-9223372036854775808,9007199254740993,9223372036854775807,0)}",
        "values=(0,18446744073709551615,9007199254740993)}", "values=(1,2)}"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  const Graph back = parse(text, find_op);
  EXPECT_TRUE(back == g) << text;
  EXPECT_EQ(print(back), text);
  const auto y = reference::evaluate(back, {});
  EXPECT_EQ(y.at("low"), signed_of({kLow, kLow}));
  EXPECT_EQ(y.at("top").unsigned_data, std::vector<uint64_t>{kTop});
  EXPECT_EQ(y.at("odd").signed_data, std::vector<int64_t>{kOdd});
  EXPECT_EQ(y.at("list"), signed_of({kLow, kOdd, kHigh, 0}));
  EXPECT_EQ(y.at("naturals"), unsigned_of({0, kTop, static_cast<uint64_t>(kOdd)}));
}

TEST(Integers, ConstantsThatDoNotFitAreRefused) {
  Graph g;
  EXPECT_THROW(full(g, {}, 0.5, DType::i32), UserError);
  EXPECT_THROW(full(g, {}, NAN, DType::i64), UserError);
  EXPECT_THROW(full(g, {}, 0x1p63, DType::i64), UserError);
  EXPECT_THROW(full(g, {}, 0x1p64, DType::u64), UserError);
  EXPECT_THROW(full(g, {}, -0x1p64, DType::i64), UserError);
  EXPECT_THROW(full(g, {}, 256, DType::u8), UserError);
  EXPECT_THROW(full(g, {}, -1, DType::u64), UserError);
  EXPECT_THROW(full(g, {}, kTop, DType::i64), UserError);
  EXPECT_EQ(refusal("full", {}, {{"shape", Shape{}}, {"value", int64_t{-1}}, {"dtype", DType::u8}}),
            "[full] u8 does not hold -1 (at h.3)");
  EXPECT_EQ(refusal("full", {}, {{"shape", Shape{}}, {"value", 2.0}, {"dtype", DType::i32}}),
            "[full] a value of i32 must be written as an integer (at h.3)");
  EXPECT_EQ(
      refusal(
          "literal", {},
          {{"shape", Shape{2}}, {"values", std::vector<int64_t>{1, 128}}, {"dtype", DType::i8}}),
      "[literal] i8 does not hold 128 (at h.3)");
  EXPECT_EQ(refusal("literal", {},
                    {{"shape", Shape{1}}, {"values", std::vector{1.5}}, {"dtype", DType::i64}}),
            "[literal] values of i64 must be written as integers (at h.3)");
}

TEST(Integers, TextWithTooLongIntegersIsRefused) {
  for (const char* value : {"18446744073709551616", "-9223372036854775809",
                            "(-1,18446744073709551615)", "(99999999999999999999)"}) {
    const std::string text =
        fmt::format("%0 : i64[] = full() {{dtype=i64, shape=[], value={}}}\n", value);
    EXPECT_THROW(parse(text, find_op), UserError) << value;
  }
}

TEST(Integers, IotaCountsInItsDtype) {
  const Attrs attrs{{"shape", Shape{300}}, {"axis", int64_t{0}}, {"dtype", DType::i8}};
  const RefTensor y = result("iota", {}, attrs);
  EXPECT_EQ(y.integer<int64_t>(127), 127);
  EXPECT_EQ(y.integer<int64_t>(128), -128);
  EXPECT_EQ(y.integer<int64_t>(299), 43);
}

// -- memory

TEST(Integers, TensorsGoThroughMemoryUnchanged) {
  for (DType t : kAllDTypes) {
    if (!is_integer(t)) continue;
    const RefTensor x = of(
        t, {lowest_integer(t), greatest_integer(t), 1, wrapped_to(t, static_cast<uint64_t>(kOdd))});
    std::vector<uint64_t> memory(4);
    write_tensor(x, memory.data());
    EXPECT_EQ(read_tensor(x.type, memory.data()), x) << name_of(t);
  }
}

}  // namespace
}  // namespace brrr
