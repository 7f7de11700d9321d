// cvt and cvta: from one type to another.

#include <bit>
#include <cmath>
#include <limits>

#include "support/ptx_machine.h"

namespace brrr::test::ptx {
namespace {

/// Registers have 16 bits at least.
template <typename T>
using RegisterOf = std::conditional_t<sizeof(T) == 1, u16, std::make_unsigned_t<T>>;

// -- floats of 16 and 8 bits

struct Format {
  int exponent_bits, mantissa_bits;
  u32 largest, infinity, nan;  // without their signs
};
constexpr Format kF16{5, 10, 0x7bff, 0x7c00, 0x7fff}, kBf16{8, 7, 0x7f7f, 0x7f80, 0x7fff},
    kE4m3{4, 3, 0x7e, 0x7f, 0x7f}, kE5m2{5, 2, 0x7b, 0x7c, 0x7f};

/// Round to nearest even. `saturates`: to the largest number instead of infinity.
u32 encode(double x, const Format& f, bool saturates) {
  const int bits = 1 + f.exponent_bits + f.mantissa_bits;
  if (std::isnan(x)) return f.nan;
  const u32 sign = std::signbit(x) ? 1u << (bits - 1) : 0;
  x = std::fabs(x);
  const u32 top = saturates ? f.largest : f.infinity;
  if (std::isinf(x)) return sign | top;
  if (x == 0) return sign;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  int exponent = std::max(std::ilogb(x), 1 - bias);
  // In units of the last bit that this exponent has.
  const double units = std::nearbyint(std::ldexp(x, f.mantissa_bits - exponent));
  auto mantissa = static_cast<u32>(units);
  u32 y = 0;
  if (mantissa < 1u << f.mantissa_bits)
    y = mantissa;  // subnormal
  else
    y = (static_cast<u32>(exponent + bias - 1) << f.mantissa_bits) + mantissa;
  return sign | (y > f.largest ? top : y);
}
double decode(u32 bits, const Format& f) {
  const int all = 1 + f.exponent_bits + f.mantissa_bits;
  const bool negative = (bits >> (all - 1) & 1u) != 0;
  const u32 magnitude = bits & ((1u << (all - 1)) - 1);
  const u32 mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  double y = 0;
  if (magnitude > f.largest)
    y = magnitude == f.infinity && f.infinity != f.nan ? INFINITY : NAN;
  else if (exponent == 0)
    y = std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  else
    y = std::ldexp(mantissa + (1u << f.mantissa_bits), exponent - bias - f.mantissa_bits);
  return negative ? -y : y;
}

u16 to_bf16(float x) {
  const u32 bits = std::bit_cast<u32>(x);
  if (std::isnan(x)) return kBf16.nan;
  return static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
u16 to_f16(float x) {
  // Where the result is a normal number its bits are those of x, rounded.
  const u32 bits = std::bit_cast<u32>(x), magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x38800000u && magnitude < 0x477fe000u) {
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<u16>((bits >> 16 & 0x8000u) | ((rounded - 0x38000000u) >> 13));
  }
  return static_cast<u16>(encode(x, kF16, false));
}
// -- one lane

enum class Round { none, nearest, zero, down, up };

template <typename T>
T rounded(T x, Round how) {
  switch (how) {
    case Round::nearest:
      return std::nearbyint(x);
    case Round::zero:
      return std::trunc(x);
    case Round::down:
      return std::floor(x);
    case Round::up:
      return std::ceil(x);
    case Round::none:
      break;
  }
  return x;
}
template <typename To, typename From>
To integer_of(From x, Round how) {
  if (std::isnan(x)) {
    if (sizeof(From) < 8 && sizeof(To) < 8) return 0;
    return static_cast<To>(std::make_unsigned_t<To>(1) << (8 * sizeof(To) - 1));
  }
  x = rounded(x, how);
  constexpr auto kLeast = std::numeric_limits<To>::min();
  constexpr auto kMost = std::numeric_limits<To>::max();
  if (x <= static_cast<From>(kLeast)) return kLeast;
  if (x >= std::ldexp(static_cast<From>(1), std::numeric_limits<To>::digits)) return kMost;
  return static_cast<To>(x);
}

// -- handlers

/// Integers are cut or widened by the sign of what they come from.
template <typename To, typename From, typename R>
void between_integers(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const R* x = m.from<R>(w, i.a[1]);
  RegisterOf<To> y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    y[lane] = static_cast<RegisterOf<To>>(static_cast<To>(static_cast<From>(x[lane])));
  put(w.to<RegisterOf<To>>(i.a[0]), y, lanes);
}
template <typename To, typename From>
void from_integer(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const auto* x = m.from<RegisterOf<From>>(w, i.a[1]);
  To y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = static_cast<To>(static_cast<From>(x[lane]));
  put(w.to<To>(i.a[0]), y, lanes);
}
template <typename To, typename From>
void to_integer(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const From* x = m.from<From>(w, i.a[1]);
  RegisterOf<To> y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    y[lane] =
        static_cast<RegisterOf<To>>(integer_of<To, From>(x[lane], static_cast<Round>(i.number[0])));
  put(w.to<RegisterOf<To>>(i.a[0]), y, lanes);
}
/// number[1]: 1 saturates to [0, 1].
template <typename To, typename From>
void between_floats(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const From* x = m.from<From>(w, i.a[1]);
  To y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    y[lane] = static_cast<To>(rounded(x[lane], static_cast<Round>(i.number[0])));
    if (i.number[1] != 0) y[lane] = y[lane] > 0 ? std::min(y[lane], To{1}) : To{0};
  }
  put(w.to<To>(i.a[0]), y, lanes);
}
template <u16 (*kOf)(float)>
void to_16(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const float* x = m.from<float>(w, i.a[1]);
  u16 y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = kOf(x[lane]);
  put(w.to<u16>(i.a[0]), y, lanes);
}
void from_f16(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u16* x = m.from<u16>(w, i.a[1]);
  const float* values = f16_values();
  float y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = values[x[lane]];
  put(w.to<float>(i.a[0]), y, lanes);
}
void from_bf16(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u16* x = m.from<u16>(w, i.a[1]);
  u32 y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = u32{x[lane]} << 16;
  put(w.to<u32>(i.a[0]), y, lanes);
}
/// Two floats in one register, the first in the high half.
template <u16 (*kOf)(float)>
void to_pair(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const float *high = m.from<float>(w, i.a[1]), *low = m.from<float>(w, i.a[2]);
  u32 y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    y[lane] = static_cast<u32>(kOf(high[lane])) << 16 | kOf(low[lane]);
  put(w.to<u32>(i.a[0]), y, lanes);
}
/// number[0]: 1 e4m3, 2 e5m2.
void to_pair_of_8(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const float *high = m.from<float>(w, i.a[1]), *low = m.from<float>(w, i.a[2]);
  const Format& f = i.number[0] == 1 ? kE4m3 : kE5m2;
  u16 y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    y[lane] = static_cast<u16>(encode(high[lane], f, true) << 8 | encode(low[lane], f, true));
  put(w.to<u16>(i.a[0]), y, lanes);
}

struct TypeName {
  const char* name;
  int bits;  // of a register
};
constexpr TypeName kIntegers[] = {{"u8", 16},  {"s8", 16},  {"u16", 16}, {"s16", 16},
                                  {"u32", 32}, {"s32", 32}, {"u64", 64}, {"s64", 64}};
int integer_named(const std::string& name) {
  for (int k = 0; k < 8; ++k)
    if (name == kIntegers[k].name) return k;
  return -1;
}
template <int k>
using IntegerAt =
    std::tuple_element_t<k, std::tuple<uint8_t, int8_t, u16, int16_t, u32, int32_t, u64, int64_t>>;

/// A register may be wider than the number in it.
template <typename To, typename From>
Handler integers_in(int bits) {
  if constexpr (sizeof(From) <= 2)
    if (bits == 16) return between_integers<To, From, u16>;
  if constexpr (sizeof(From) <= 4)
    if (bits == 32) return between_integers<To, From, u32>;
  return bits == 64 ? between_integers<To, From, u64> : nullptr;
}
template <typename To, int... from>
Handler integers_to(int which, int bits, std::integer_sequence<int, from...>) {
  const Handler all[] = {integers_in<To, IntegerAt<from>>(bits)...};
  return all[which];
}
template <int... to>
Handler integers(int a, int b, int bits, std::integer_sequence<int, to...> all) {
  const Handler found[] = {integers_to<IntegerAt<to>>(b, bits, all)...};
  return found[a];
}
template <typename F, int... k>
Handler float_from(int which, std::integer_sequence<int, k...>) {
  static constexpr Handler kAll[] = {from_integer<F, IntegerAt<k>>...};
  return kAll[which];
}
template <typename F, int... k>
Handler float_to(int which, std::integer_sequence<int, k...>) {
  static constexpr Handler kAll[] = {to_integer<IntegerAt<k>, F>...};
  return kAll[which];
}

/// cvta.to.space: an address within a window; cvta.space: the generic address of one.
void to_window(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u64* x = m.from<u64>(w, i.a[1]);
  const u64 window = uint64_t{i.number[0]} << 56;
  u64 y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = x[lane] | window;
  put(w.to<u64>(i.a[0]), y, lanes);
}
void from_window(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u64* x = m.from<u64>(w, i.a[1]);
  u64 y[kLanes];
  for (u32 lane = 0; lane < kLanes; ++lane) y[lane] = x[lane] & ~kWindows;
  each_lane(lanes, [&](u32 lane) {
    if (x[lane] >> 56 != i.number[0]) m.refuse(i, "an address of other memory");
  });
  put(w.to<u64>(i.a[0]), y, lanes);
}
bool decode_cvta(Decoder& d, const Statement& s) {
  const bool to = s.parts[1] == "to";
  if (s.parts.size() != (to ? 4u : 3u) || s.parts.back() != "u64") return false;
  std::string space = s.parts[to ? 2 : 1];
  if (space == "shared::cta") space = "shared";
  const char* const names[] = {"global", "shared", "local", "param"};
  u32 window = 0;
  while (window < 4 && space != names[window]) ++window;
  if (window == 4) return false;
  Instruction& i = *d.now;
  i.run = to ? from_window : to_window;
  i.number[0] = window;
  i.a[1] = d.source(s.operands.at(1), 64);
  i.a[0] = d.destination(s.operands.at(0), 64);
  return true;
}

}  // namespace

const float* f16_values() {
  static const auto* all = [] {
    auto* values = new float[65536];
    for (u32 k = 0; k < 65536; ++k) values[k] = static_cast<float>(decode(k, kF16));
    return values;
  }();
  return all;
}

bool decode_conversion(Decoder& d, const Statement& s) {
  if (s.is("cvta")) return s.parts.size() > 2 && decode_cvta(d, s);
  if (!s.is("cvt")) return false;
  Instruction& i = *d.now;
  const auto& o = s.operands;
  const auto take = [&](Handler run, int to, int from, size_t sources = 1) {
    i.run = run;
    for (size_t k = 1; k <= sources; ++k) i.a[k] = d.source(o.at(k), from);
    i.a[0] = d.destination(o.at(0), to);
    return true;
  };
  const std::string& op = s.opcode;
  if (op == "cvt.f32.f16") return take(from_f16, 32, 16);
  if (op == "cvt.f32.bf16") return take(from_bf16, 32, 16);
  if (op == "cvt.rn.f16.f32") return take(to_16<to_f16>, 16, 32);
  if (op == "cvt.rn.bf16.f32") return take(to_16<to_bf16>, 16, 32);
  if (op == "cvt.rn.f16x2.f32") return take(to_pair<to_f16>, 32, 32, 2);
  if (op == "cvt.rn.bf16x2.f32") return take(to_pair<to_bf16>, 32, 32, 2);
  if (op == "cvt.rn.satfinite.e4m3x2.f32" || op == "cvt.rn.satfinite.e5m2x2.f32") {
    i.number[0] = s.parts[3] == "e4m3x2" ? 1 : 2;
    return take(to_pair_of_8, 16, 32, 2);
  }
  // Rounding, saturation, then both types.
  size_t at = 1;
  Round to_whole = Round::none;
  bool is_nearest = false;
  const std::string& mode = s.parts[at];
  if (mode == "rni" || mode == "rzi" || mode == "rmi" || mode == "rpi") {
    to_whole = mode == "rni"   ? Round::nearest
               : mode == "rzi" ? Round::zero
               : mode == "rmi" ? Round::down
                               : Round::up;
    ++at;
  } else if (mode == "rn") {
    is_nearest = true;
    ++at;
  }
  const bool saturates = s.parts.size() > at && s.parts[at] == "sat";
  if (saturates) ++at;
  if (s.parts.size() != at + 2) return false;
  const std::string &to = s.parts[at], &from = s.parts[at + 1];
  const int integer = integer_named(to), of = integer_named(from);
  const bool to_float = to == "f32" || to == "f64", of_float = from == "f32" || from == "f64";
  const std::make_integer_sequence<int, 8> all;
  i.number[0] = static_cast<u32>(to_whole);
  if (integer >= 0 && of >= 0) {
    if (at != 1) return false;
    const int in_register = d.bits_of(o.at(1));
    const int bits = in_register != 0 ? in_register : kIntegers[of].bits;
    const Handler run = integers(integer, of, bits, all);
    return run != nullptr && take(run, kIntegers[integer].bits, bits);
  }
  if (to_float && of >= 0) {
    if (!is_nearest || saturates) return false;
    return to == "f32" ? take(float_from<float>(of, all), 32, kIntegers[of].bits)
                       : take(float_from<double>(of, all), 64, kIntegers[of].bits);
  }
  if (integer >= 0 && of_float) {
    if (to_whole == Round::none || saturates) return false;
    return from == "f32" ? take(float_to<float>(integer, all), kIntegers[integer].bits, 32)
                         : take(float_to<double>(integer, all), kIntegers[integer].bits, 64);
  }
  if (to_float && of_float) {
    const bool narrows = to == "f32" && from == "f64";
    if (is_nearest != narrows) return false;
    i.number[1] = saturates ? 1 : 0;
    if (to == from)
      return to == "f32" ? take(between_floats<float, float>, 32, 32)
                         : take(between_floats<double, double>, 64, 64);
    return narrows ? take(between_floats<float, double>, 32, 64)
                   : take(between_floats<double, float>, 64, 32);
  }
  return false;
}

}  // namespace brrr::test::ptx
