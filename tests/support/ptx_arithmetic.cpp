// Instructions that compute: every lane for itself.

#include <bit>
#include <cmath>
#include <tuple>

#include "support/ptx_machine.h"

namespace brrr::test::ptx {
namespace {

template <typename T>
T flushed(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
}
const float kNan = std::bit_cast<float>(0x7fffffffu);
template <typename T>
T nan_of() {
  if constexpr (sizeof(T) == 4)
    return kNan;
  else
    return std::bit_cast<T>(~u64{0} >> 1);
}

// -- the shape of an instruction: D = F(S...)

template <typename D, typename F, typename... S, size_t... k>
void apply_at(Machine& m, Warp& w, const Instruction& i, u32 lanes, std::index_sequence<k...>) {
  const auto sources = std::make_tuple(m.from<S>(w, i.a[k + 1])...);
  D y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = F::of(std::get<k>(sources)[lane]...);
  // What computes in f32 makes one NaN alone; what changes a sign does not compute.
  if constexpr (std::is_same_v<D, float> && !requires { F::kKeepsNan; })
    for (float& x : y) x = x == x ? x : kNan;
  put(w.to<D>(i.a[0]), y, lanes);
}
template <typename F, typename D, typename... S>
void apply(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  apply_at<D, F, S...>(m, w, i, lanes, std::index_sequence_for<S...>());
}

struct Entry {
  Handler run = nullptr;
  int to = 0;
  std::vector<int> from;
};
template <typename F, typename D, typename... S>
Entry entry() {
  return {apply<F, D, S...>, int{sizeof(D)} * 8, {int{sizeof(S)} * 8 ...}};
}

// -- what they compute; integers wrap, so the unsigned type does for both where it can

struct Move {
  template <typename T>
  static T of(T x) {
    return x;
  }
};
struct Add {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Sub {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a - b);
  }
};
struct Mul {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_same_v<T, u16>)
      return static_cast<T>(u32{a} * b);
    else
      return a * b;
  }
};
struct Div {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a / b;
    else if (b == 0)
      return static_cast<T>(-1);
    else if (std::is_signed_v<T> && b == static_cast<T>(-1))
      return static_cast<T>(std::make_unsigned_t<T>(0) - static_cast<std::make_unsigned_t<T>>(a));
    else
      return static_cast<T>(a / b);
  }
};
struct Rem {
  template <typename T>
  static T of(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Mad {
  template <typename T>
  static T of(T a, T b, T c) {
    return static_cast<T>(Mul::of(a, b) + c);
  }
};
template <typename T>
struct WideOf;
template <>
struct WideOf<u16> {
  using type = u32;
};
template <>
struct WideOf<s16> {
  using type = s32;
};
template <>
struct WideOf<u32> {
  using type = u64;
};
template <>
struct WideOf<s32> {
  using type = s64;
};
template <>
struct WideOf<u64> {
  __extension__ typedef unsigned __int128 type;
};
template <>
struct WideOf<s64> {
  __extension__ typedef __int128 type;
};
struct MulWide {
  template <typename T>
  static auto of(T a, T b) {
    using W = typename WideOf<T>::type;
    return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
  }
};
struct MulHigh {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(MulWide::of(a, b) >> (8 * sizeof(T)));
  }
};
struct MadHigh {
  template <typename T>
  static T of(T a, T b, T c) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(MulHigh::of(a, b)) +
                          static_cast<std::make_unsigned_t<T>>(c));
  }
};
struct MadWide {
  template <typename T, typename W>
  static W of(T a, T b, W c) {
    using U = std::make_unsigned_t<W>;
    return static_cast<W>(static_cast<U>(MulWide::of(a, b)) + static_cast<U>(c));
  }
};
struct Min {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return std::isnan(b) ? nan_of<T>() : b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};
struct Max {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a)) return std::isnan(b) ? nan_of<T>() : b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
  }
};
struct MinNan {
  static float of(float a, float b) {
    return std::isnan(a) || std::isnan(b) ? kNan : Min::of(a, b);
  }
};
struct MaxNan {
  static float of(float a, float b) {
    return std::isnan(a) || std::isnan(b) ? kNan : Max::of(a, b);
  }
};
struct And {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  static T of(T a) {
    return static_cast<T>(~a);
  }
};
struct Neg {
  static constexpr bool kKeepsNan = true;
  template <typename T>
  static T of(T a) {
    if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
  }
};
struct Abs {
  static constexpr bool kKeepsNan = true;
  template <typename T>
  static T of(T a) {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(a);
    else
      return a < 0 ? Neg::of(a) : a;
  }
};
struct Shl {
  template <typename T>
  static T of(T a, u32 by) {
    return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << by);
  }
};
struct Shr {
  template <typename T>
  static T of(T a, u32 by) {
    const u32 most = 8 * sizeof(T) - 1;
    if (by > most) return std::is_signed_v<T> ? static_cast<T>(a >> most) : T{0};
    return static_cast<T>(a >> by);
  }
};
template <bool kLeft, bool kClamps>
struct Funnel {
  static u32 of(u32 low, u32 high, u32 by) {
    const u32 n = kClamps ? std::min(by, 32u) : by & 31u;
    const u64 both = u64{high} << 32 | low;
    return static_cast<u32>(kLeft ? both << n >> 32 : both >> n);
  }
};
/// Four bytes of eight; the fourth bit of a selector asks for the byte's sign instead.
struct Permute {
  static u32 of(u32 a, u32 b, u32 selectors) {
    const u64 both = u64{b} << 32 | a;
    u32 y = 0;
    for (u32 k = 0; k < 4; ++k) {
      const u32 selector = selectors >> (4 * k) & 15u;
      u32 byte = static_cast<u32>(both >> (8 * (selector & 7u))) & 255u;
      if ((selector & 8u) != 0) byte = (byte & 128u) != 0 ? 255u : 0u;
      y |= byte << (8 * k);
    }
    return y;
  }
};
struct InsertBits {
  template <typename T>
  static T of(T from, T into, u32 at, u32 count) {
    at &= 255u, count &= 255u;
    if (at >= 8 * sizeof(T) || count == 0) return into;
    const T ones =
        count >= 8 * sizeof(T) ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << count) - 1);
    const T mask = static_cast<T>(ones << at);
    return static_cast<T>((into & static_cast<T>(~mask)) | (static_cast<T>(from << at) & mask));
  }
};
struct ExtractBits {
  template <typename T>
  static T of(T x, u32 at, u32 count) {
    at &= 255u, count &= 255u;
    if (at >= 8 * sizeof(T) || count == 0) return 0;
    x = static_cast<T>(x >> at);
    return count >= 8 * sizeof(T) ? x : static_cast<T>(x & ((T{1} << count) - 1));
  }
};
struct LeadingZeros {
  static u32 of(u32 x) { return x == 0 ? 32 : static_cast<u32>(__builtin_clz(x)); }
  static u32 of(u64 x) { return x == 0 ? 64 : static_cast<u32>(__builtin_clzll(x)); }
};
struct Ones {
  template <typename T>
  static u32 of(T x) {
    return static_cast<u32>(__builtin_popcountll(x));
  }
};
struct Reverse {
  static u32 of(u32 x) {
    u32 y = 0;
    for (int k = 0; k < 32; ++k) y |= (x >> k & 1u) << (31 - k);
    return y;
  }
};
struct CopySign {  // of a onto b
  static constexpr bool kKeepsNan = true;
  template <typename T>
  static T of(T a, T b) {
    return std::copysign(b, a);
  }
};
struct Fma {
  template <typename T>
  static T of(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
/// Rounded down. The product is exact in f64, and the sum with what it lacks.
struct FmaDown {
  static float of(float a, float b, float c) {
    const double product = double{a} * b, sum = product + c;
    if (!std::isfinite(sum)) return static_cast<float>(sum);
    // Exactly: -0 but of two positive zeros.
    if (sum == 0) return product == 0 && !std::signbit(product) && !std::signbit(c) ? 0.0f : -0.0f;
    const double part = sum - product, lacks = (product - (sum - part)) + (c - part);
    const auto y = static_cast<float>(sum);
    if (y > sum || (y == sum && lacks < 0)) return std::nextafterf(y, -INFINITY);
    return y;
  }
};
struct Sqrt {
  template <typename T>
  static T of(T x) {
    return std::sqrt(x);
  }
};
struct Reciprocal {
  template <typename T>
  static T of(T x) {
    return T{1} / x;
  }
};
/// "div.approx": of a divisor that is too large there is nothing left.
struct DivApprox {
  static float of(float a, float b) {
    if (const float size = std::fabs(b); size > 0x1p126f && std::isfinite(b))
      return std::isinf(a) ? kNan : std::copysign(0.0f, a) * std::copysign(1.0f, b);
    return a / b;
  }
};
/// "rcp.approx.ftz.f64": of the high half of a number the high half of its reciprocal.
struct ReciprocalHigh {
  static double half(double x) {
    return flushed(std::bit_cast<double>(std::bit_cast<u64>(x) & 0xffffffff00000000ull));
  }
  static double of(double x) { return half(1.0 / half(x)); }
};
template <auto kFunction>
struct Approximate {
  static float of(float x) { return kFunction(x); }
};
template <auto kFunction>
struct ApproximateFlushed {
  static float of(float x) { return flushed(kFunction(flushed(x))); }
};
float reciprocal(float x) { return 1.0f / x; }
float reciprocal_root(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }

BRRR_WIDE void fma_lanes(float* y, const float* a, const float* b, const float* c) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const float x = __builtin_fmaf(a[lane], b[lane], c[lane]);
    y[lane] = x == x ? x : kNan;
  }
}
void fma_f32(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  float y[kLanes];
  fma_lanes(y, m.from<float>(w, i.a[1]), m.from<float>(w, i.a[2]), m.from<float>(w, i.a[3]));
  put(w.to<float>(i.a[0]), y, lanes);
}

const std::map<std::string, Entry, std::less<>>& table() {
  static const auto* made = [] {
    auto* t = new std::map<std::string, Entry, std::less<>>;
    auto& e = *t;
    const auto ints = [&]<typename U, typename S>(const std::string& n) {
      for (const char* sign : {"s", "u"}) {
        e["add." + (sign + n)] = entry<Add, U, U, U>();
        e["sub." + (sign + n)] = entry<Sub, U, U, U>();
        e["mul.lo." + (sign + n)] = entry<Mul, U, U, U>();
        e["mad.lo." + (sign + n)] = entry<Mad, U, U, U, U>();
      }
      const auto both = [&]<typename T>(const std::string& type) {
        e["div." + type] = entry<Div, T, T, T>();
        e["rem." + type] = entry<Rem, T, T, T>();
        e["min." + type] = entry<Min, T, T, T>();
        e["max." + type] = entry<Max, T, T, T>();
        e["mul.hi." + type] = entry<MulHigh, T, T, T>();
        e["mad.hi." + type] = entry<MadHigh, T, T, T, T>();
        e["shr." + type] = entry<Shr, T, T, u32>();
        if constexpr (sizeof(T) < 8) {
          using W = typename WideOf<T>::type;
          e["mul.wide." + type] = entry<MulWide, W, T, T>();
          e["mad.wide." + type] = entry<MadWide, W, T, T, W>();
        }
      };
      both.template operator()<U>("u" + n);
      both.template operator()<S>("s" + n);
      e["abs.s" + n] = entry<Abs, S, S>();
      e["neg.s" + n] = entry<Neg, S, S>();
      e["and.b" + n] = entry<And, U, U, U>();
      e["or.b" + n] = entry<Or, U, U, U>();
      e["xor.b" + n] = entry<Xor, U, U, U>();
      e["not.b" + n] = entry<Not, U, U>();
      e["shl.b" + n] = entry<Shl, U, U, u32>();
      e["shr.b" + n] = entry<Shr, U, U, u32>();
      for (const char* type : {"b", "u", "s", "f"}) e["mov." + (type + n)] = entry<Move, U, U>();
    };
    ints.operator()<u16, s16>("16");
    ints.operator()<u32, s32>("32");
    ints.operator()<u64, s64>("64");
    e["bfi.b32"] = entry<InsertBits, u32, u32, u32, u32, u32>();
    e["bfi.b64"] = entry<InsertBits, u64, u64, u64, u32, u32>();
    e["bfe.u32"] = entry<ExtractBits, u32, u32, u32, u32>();
    e["bfe.u64"] = entry<ExtractBits, u64, u64, u32, u32>();
    e["clz.b32"] = entry<LeadingZeros, u32, u32>();
    e["clz.b64"] = entry<LeadingZeros, u32, u64>();
    e["popc.b32"] = entry<Ones, u32, u32>();
    e["popc.b64"] = entry<Ones, u32, u64>();
    e["brev.b32"] = entry<Reverse, u32, u32>();
    e["prmt.b32"] = entry<Permute, u32, u32, u32, u32>();
    e["shf.l.wrap.b32"] = entry<Funnel<true, false>, u32, u32, u32, u32>();
    e["shf.r.wrap.b32"] = entry<Funnel<false, false>, u32, u32, u32, u32>();
    e["shf.l.clamp.b32"] = entry<Funnel<true, true>, u32, u32, u32, u32>();
    e["shf.r.clamp.b32"] = entry<Funnel<false, true>, u32, u32, u32, u32>();
    const auto floats = [&]<typename T>(const std::string& n) {
      for (const char* rounding : {"", "rn."}) {
        e["add." + (rounding + n)] = entry<Add, T, T, T>();
        e["sub." + (rounding + n)] = entry<Sub, T, T, T>();
        e["mul." + (rounding + n)] = entry<Mul, T, T, T>();
      }
      e["div.rn." + n] = entry<Div, T, T, T>();
      e["fma.rn." + n] = entry<Fma, T, T, T, T>();
      e["sqrt.rn." + n] = entry<Sqrt, T, T>();
      e["rcp.rn." + n] = entry<Reciprocal, T, T>();
      e["min." + n] = entry<Min, T, T, T>();
      e["max." + n] = entry<Max, T, T, T>();
      e["abs." + n] = entry<Abs, T, T>();
      e["neg." + n] = entry<Neg, T, T>();
      e["copysign." + n] = entry<CopySign, T, T, T>();
    };
    floats.operator()<float>("f32");
    floats.operator()<double>("f64");
    e["fma.rn.f32"].run = fma_f32;
    e["fma.rm.f32"] = entry<FmaDown, float, float, float, float>();
    e["min.NaN.f32"] = entry<MinNan, float, float, float>();
    e["max.NaN.f32"] = entry<MaxNan, float, float, float>();
    e["div.approx.f32"] = entry<DivApprox, float, float, float>();
    e["div.full.f32"] = entry<Div, float, float, float>();
    e["rcp.approx.ftz.f64"] = entry<ReciprocalHigh, double, double>();
    const auto approximate = [&]<auto kFunction>(const std::string& name) {
      e[name + ".approx.f32"] = entry<Approximate<kFunction>, float, float>();
      e[name + ".approx.ftz.f32"] = entry<ApproximateFlushed<kFunction>, float, float>();
    };
    approximate.operator()<::exp2f>("ex2");
    approximate.operator()<::log2f>("lg2");
    approximate.operator()<reciprocal>("rcp");
    approximate.operator()<reciprocal_root>("rsqrt");
    approximate.operator()<::sqrtf>("sqrt");
    approximate.operator()<::sinf>("sin");
    approximate.operator()<::cosf>("cos");
    approximate.operator()<::tanhf>("tanh");
    return t;
  }();
  return *made;
}

}  // namespace

bool decode_arithmetic(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const auto& o = s.operands;
  const auto found = table().find(s.opcode);
  if (found == table().end()) return false;
  const Entry& e = found->second;
  if (o.size() != e.from.size() + 1) d.refuse("another number of operands");
  // Other registers that count something change while a kernel runs.
  if (o[1].name == "%globaltimer" || o[1].name.starts_with("%clock")) return false;
  i.run = e.run;
  for (size_t k = 0; k < e.from.size(); ++k) i.a[k + 1] = d.source(o[k + 1], e.from[k]);
  i.a[0] = d.destination(o[0], e.to);
  return true;
}

}  // namespace brrr::test::ptx
