// dtypes, shapes, random numbers: the ground that the graph stands on.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/rng.h"
#include "base/shape.h"

namespace brrr {
namespace {

double f16_value(uint32_t x) {
  const double sign = x & 0x8000 ? -1 : 1;
  const int exponent = static_cast<int>(x >> 10 & 31);
  const double mantissa = x & 1023;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TEST(Float16, AllValuesSurviveBothWays) {
  for (uint32_t x = 0; x < 65536; ++x) {
    const auto bits = static_cast<uint16_t>(x);
    const float f = float_from_f16(bits);
    if ((x & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(f), (x & 0x3ff) != 0) << x;
      if (std::isnan(f)) {
        EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(f)))) << x;
        continue;
      }
    } else {
      ASSERT_EQ(static_cast<double>(f), f16_value(x)) << x;
    }
    ASSERT_EQ(f16_from_float(f), bits) << x;
  }
}

TEST(Bfloat16, AllValuesSurviveBothWays) {
  for (uint32_t x = 0; x < 65536; ++x) {
    const auto bits = static_cast<uint16_t>(x);
    const float f = float_from_bf16(bits);
    if (!std::isnan(f)) {
      ASSERT_EQ(bf16_from_float(f), bits) << x;
      continue;
    }
    ASSERT_TRUE(std::isnan(float_from_bf16(bf16_from_float(f)))) << x;
  }
  // A NaN whose payload lies only in the low half must not become infinity.
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
}

// Between each pair of neighbours: the middle goes to the even one, the rest to the nearer.
template <typename From, typename To>
void check_rounding(uint32_t infinity, From value, To round) {
  for (uint32_t x = 0; x + 1 < infinity; ++x) {
    const double low = value(static_cast<uint16_t>(x)), high = value(static_cast<uint16_t>(x + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const uint32_t even = x % 2 == 0 ? x : x + 1;
    for (uint32_t sign : {0u, 0x8000u}) {
      auto rounded = [&](float f) { return static_cast<uint32_t>(round(sign ? -f : f)); };
      ASSERT_EQ(rounded(middle), even | sign) << x;
      ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), x | sign) << x;
      ASSERT_EQ(rounded(std::nextafter(middle, INFINITY)), (x + 1) | sign) << x;
    }
  }
}
TEST(Float16, RoundsToNearestEven) { check_rounding(0x7c00, float_from_f16, f16_from_float); }
TEST(Bfloat16, RoundsToNearestEven) { check_rounding(0x7f80, float_from_bf16, bf16_from_float); }

TEST(Float16, OverflowsToInfinity) {
  EXPECT_EQ(f16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(-1e30f), 0xfc00);
  EXPECT_EQ(f16_from_float(std::ldexp(1.0f, -25)), 0);  // half of the least subnormal: to even
  EXPECT_EQ(f16_from_float(std::nextafter(std::ldexp(1.0f, -25), 1.0f)), 1);
}

// The 8-bit formats from their definition: sign, exponent, mantissa.
struct Format8 {
  const char* name;
  int mantissa_bits, bias;
  uint32_t largest;  // bits of the largest number
  uint8_t (*round)(float);
  float (*value)(uint8_t);
  DType dtype;
  double defined(uint32_t bits) const {
    const int exponent = static_cast<int>((bits & 0x7fu) >> mantissa_bits);
    const double fraction = std::ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return (bits & 0x80u) != 0 ? -magnitude : magnitude;
  }
};
const Format8 kFormats8[] = {
    {"e4m3", 3, 7, 0x7e, f8e4m3_from_float, float_from_f8e4m3, DType::f8e4m3},
    {"e5m2", 2, 15, 0x7b, f8e5m2_from_float, float_from_f8e5m2, DType::f8e5m2}};

TEST(Float8, EveryValueIsAsDefined) {
  for (const Format8& f : kFormats8) {
    SCOPED_TRACE(f.name);
    for (uint32_t bits = 0; bits < 256; ++bits) {
      const auto byte = static_cast<uint8_t>(bits);
      const uint32_t magnitude = bits & 0x7fu;
      if (magnitude <= f.largest) {
        EXPECT_EQ(f.value(byte), f.defined(bits)) << bits;
        EXPECT_EQ(std::signbit(f.value(byte)), bits >= 0x80) << bits;
        EXPECT_EQ(f.round(f.value(byte)), bits) << bits;
        EXPECT_EQ(load_as_double(f.dtype, &byte, 0), f.defined(bits)) << bits;
      } else if (f.mantissa_bits == 2 && magnitude == 0x7c) {
        EXPECT_TRUE(std::isinf(f.value(byte))) << bits;
      } else {
        EXPECT_TRUE(std::isnan(f.value(byte))) << bits;
      }
    }
  }
  EXPECT_EQ(float_from_f8e4m3(0x7e), kLargestE4m3);
  EXPECT_EQ(float_from_f8e5m2(0x7b), kLargestE5m2);
}

TEST(Float8, RoundsToNearestEvenOnceAndSaturates) {
  for (const Format8& f : kFormats8) {
    SCOPED_TRACE(f.name);
    for (uint32_t low = 0; low < f.largest; ++low) {
      const double middle = (f.defined(low) + f.defined(low + 1)) / 2;
      const auto even = static_cast<uint8_t>(low % 2 == 0 ? low : low + 1);
      const auto below = std::nextafter(static_cast<float>(middle), 0.0f);
      const auto above = std::nextafter(static_cast<float>(middle), INFINITY);
      EXPECT_EQ(f.round(static_cast<float>(middle)), even) << low;
      EXPECT_EQ(f.round(below), low) << low;
      EXPECT_EQ(f.round(above), low + 1) << low;
      EXPECT_EQ(f.round(-above), (low + 1) | 0x80u) << low;
      uint8_t stored = 0;  // nearer to the middle than a float can say
      store_from_double(f.dtype, &stored, 0, std::nextafter(middle, 1e9));
      EXPECT_EQ(stored, low + 1) << low;
    }
    const auto top = static_cast<uint8_t>(f.largest);
    for (float x : {1e9f, INFINITY, 3.4e38f, static_cast<float>(f.defined(top)) * 1.001f}) {
      EXPECT_EQ(f.round(x), top) << x;
      EXPECT_EQ(f.round(-x), top | 0x80u) << x;
    }
    EXPECT_TRUE(std::isnan(f.value(f.round(NAN))));
    EXPECT_EQ(f.round(1e-30f), 0);
    EXPECT_EQ(f.round(-0.0f), 0x80);
  }
}

TEST(StoreFromDouble, RoundsOnce) {
  // Just above the middle of two bf16 values, by less than a float can say.
  const double bf = 1 + 0x1p-8 + 0x1p-40;
  uint16_t bits = 0;
  store_from_double(DType::bf16, &bits, 0, bf);
  EXPECT_EQ(bits, 0x3f81);
  store_from_double(DType::bf16, &bits, 0, 1 + 0x1p-8);
  EXPECT_EQ(bits, 0x3f80);
  store_from_double(DType::bf16, &bits, 0, 1 + 3 * 0x1p-8 - 0x1p-40);
  EXPECT_EQ(bits, 0x3f81);
  store_from_double(DType::f16, &bits, 0, 1 + 0x1p-11 + 0x1p-40);
  EXPECT_EQ(bits, 0x3c01);
}

TEST(DTypes, HaveNamesAndSizes) {
  std::set<std::string_view> names;
  for (DType t : kAllDTypes) {
    EXPECT_EQ(dtype_from_name(name_of(t)), t);
    EXPECT_TRUE(names.insert(name_of(t)).second);
    alignas(8) std::byte bytes[16] = {};
    for (double x : {0.0, 1.0}) {
      store_from_double(t, bytes, 1, x);
      EXPECT_EQ(load_as_double(t, bytes, 1), x) << name_of(t);
    }
    for (size_t i = 0; i < bytes_of(t); ++i)
      EXPECT_EQ(bytes[i], std::byte{0}) << "element 0 was touched";
    EXPECT_EQ(load_as_double(t, bytes, 0), 0);
    EXPECT_FALSE(is_float(t) && is_integer(t));
  }
  EXPECT_EQ(dtype_from_name("float"), std::nullopt);
}

TEST(Dim, IsASizeOrASymbol) {
  EXPECT_EQ(Dim(7).size(), 7);
  EXPECT_FALSE(Dim(7).is_symbol());
  for (const char* name :
       {"a", "batch", "length", "z9_", "abcdefghij", "zzzzzzzzzz", "a_________"}) {
    const Dim d = Dim::symbol(name);
    EXPECT_TRUE(d.is_symbol());
    EXPECT_EQ(d.name(), name);
    EXPECT_EQ(d, Dim::symbol(name));
    EXPECT_THROW(d.size(), InternalError);
  }
  EXPECT_FALSE(Dim::symbol("a") == Dim::symbol("aa"));
  for (const char* name : {"", "abcdefghijk", "9a", "_a", "A", "a-b", "a b"})
    EXPECT_THROW(Dim::symbol(name), UserError) << name;
  EXPECT_THROW(Dim(-1), InternalError);
}

TEST(Shape, CountsAndPrints) {
  const Shape s{2, 3, 4};
  EXPECT_EQ(s.elements(), 24);
  EXPECT_EQ(s.strides(), (std::vector<int64_t>{12, 4, 1}));
  EXPECT_EQ(s.size(-1), 4);
  EXPECT_EQ(s.str(), "[2,3,4]");
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_EQ((Shape{2, 0, 5}).elements(), 0);
  EXPECT_THROW(s.size(3), InternalError);
  EXPECT_THROW((void)(Shape{1ll << 40, 1ll << 40}).elements(), UserError);
  const Shape symbolic{Dim::symbol("batch"), 3};
  EXPECT_FALSE(symbolic.is_static());
  EXPECT_EQ(symbolic.str(), "[batch,3]");
  EXPECT_THROW((void)symbolic.elements(), InternalError);
}

// Philox4x32-7 as Random123 defines it, written again with the paper's S-box and key schedule on
// arrays.
std::array<uint32_t, 4> philox_again(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k,
                                     int rounds) {
  for (int r = 0; r < rounds; ++r) {
    const uint64_t left = 0xCD9E8D57ull * c[2], right = 0xD2511F53ull * c[0];
    const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
    c = {high(left) ^ c[1] ^ k[0], static_cast<uint32_t>(left), high(right) ^ c[3] ^ k[1],
         static_cast<uint32_t>(right)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

TEST(Philox, TheSecondWritingHasThePublishedAnswers) {
  using A = std::array<uint32_t, 4>;
  // Random123's known answers for philox4x32 with 10 rounds.
  EXPECT_EQ(philox_again({0, 0, 0, 0}, {0, 0}, 10),
            (A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t f = 0xffffffff;
  EXPECT_EQ(philox_again({f, f, f, f}, {f, f}, 10),
            (A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox_again({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, 10),
      (A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, AgreesWithTheSecondWriting) {
  for (uint32_t i = 0; i < 10000; ++i) {
    const RngKey key{i * 2654435761u, i * 40503u + 7};
    const uint64_t block = i * 0x9E3779B97F4A7C15ull;
    const uint32_t stream = i * 97;
    EXPECT_EQ(
        philox(key, stream, block),
        philox_again({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream, 0},
                     {key.seed, key.step}, 7));
  }
}

TEST(Philox, SixteenBitStreamIsTheHalvesOfTheBlocks) {
  const RngKey key{3, 4};
  for (uint64_t i = 0; i < 64; ++i) {
    const uint32_t word = philox(key, 9, i / 8)[i % 8 / 2];
    EXPECT_EQ(philox_u16(key, 9, i), i % 2 == 0 ? word & 0xffff : word >> 16);
  }
}

TEST(RngStream, IsUniformBelowAndResumes) {
  RngStream stream({1, 2}, 3);
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i) ++counts[stream.next_below(7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard deviations
  RngStream again({1, 2}, 3, stream.position());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(again.next_u32(), stream.next_u32());
  for (int i = 0; i < 1000; ++i) {
    const float u = stream.next_uniform();
    EXPECT_TRUE(u >= 0 && u < 1);
  }
}

}  // namespace
}  // namespace brrr
