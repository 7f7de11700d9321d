#include "backend/cpu/fusion/tile_code.h"

#include <cstddef>

#include "backend/cpu/simd/simd_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/fusion/tile_rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "backend/cpu/simd/functions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brrr::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 8 * kLanes;
static_assert(kBlock * 4 <= kTileBlockBytes);

/// The accumulator. Eight named vectors, not an array, so that they stay in registers.
struct Block {
  VF v0, v1, v2, v3, v4, v5, v6, v7;
};

// Everything is inlined into one function, but not under the sanitizers: the compiler would spend
// the better part of an hour on their checks of all that.
#if defined(BRRR_SANITIZED)
#define BRRR_TILE_INLINE __attribute__((noinline))
constexpr bool kOthersAreLong = true;
#else
#define BRRR_TILE_INLINE HWY_INLINE
constexpr bool kOthersAreLong = false;
#endif

/// f(vector, lane of its first element) for all eight.
template <typename F>
BRRR_TILE_INLINE Block map(const Block& b, F&& f) {
  return {f(b.v0, 0 * kLanes), f(b.v1, 1 * kLanes), f(b.v2, 2 * kLanes), f(b.v3, 3 * kLanes),
          f(b.v4, 4 * kLanes), f(b.v5, 5 * kLanes), f(b.v6, 6 * kLanes), f(b.v7, 7 * kLanes)};
}
template <typename F>
BRRR_TILE_INLINE Block make(F&& f) {
  return {f(0 * kLanes), f(1 * kLanes), f(2 * kLanes), f(3 * kLanes),
          f(4 * kLanes), f(5 * kLanes), f(6 * kLanes), f(7 * kLanes)};
}
template <typename F>
BRRR_TILE_INLINE void each(const Block& b, F&& f) {
  f(b.v0, 0 * kLanes), f(b.v1, 1 * kLanes), f(b.v2, 2 * kLanes), f(b.v3, 3 * kLanes);
  f(b.v4, 4 * kLanes), f(b.v5, 5 * kLanes), f(b.v6, 6 * kLanes), f(b.v7, 7 * kLanes);
}
/// As map, for functions so long that eight copies would only fill the instruction cache.
template <typename F>
BRRR_TILE_INLINE Block map_in_loop(const Block& b, F&& f) {
  alignas(64) float lanes[kBlock];
  each(b, [&](VF v, int64_t at) BRRR_INLINE_BODY { store(v, lanes + at); });
#pragma GCC unroll 1
  for (int64_t at = 0; at < kBlock; at += kLanes) store(f(load(lanes + at), at), lanes + at);
  return make([&](int64_t at) BRRR_INLINE_BODY { return load(lanes + at); });
}

HWY_INLINE hn::Vec<DI> as_int(VF v) { return hn::BitCast(DI(), v); }
HWY_INLINE VF as_float(hn::Vec<DI> v) { return hn::BitCast(DF(), v); }
template <typename M>
HWY_INLINE VF lanes_of(M mask) {
  return hn::VecFromMask(DF(), hn::RebindMask(DF(), mask));
}
HWY_INLINE hn::Mask<DF> mask_of(VF lanes) {
  return hn::RebindMask(DF(), hn::Lt(as_int(lanes), hn::Zero(DI())));
}

// -- memory
HWY_INLINE VF load_bool(const std::byte* p) {
  const auto off = hn::Eq(hn::PromoteTo(DI(), hn::LoadU(D8(), reinterpret_cast<const uint8_t*>(p))),
                          hn::Zero(DI()));
  return lanes_of(hn::Not(off));
}
HWY_INLINE void store_bool(VF lanes, std::byte* p) {
  const auto ones = hn::And(as_int(lanes), hn::Set(DI(), 1));
  hn::StoreU(hn::DemoteTo(D8(), ones), D8(), reinterpret_cast<uint8_t*>(p));
}
HWY_INLINE hn::Vec<DI> load_u16(const std::byte* p) {
  return hn::PromoteTo(DI(), hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(p)));
}

// -- one operand
#define BRRR_UNARY_FUNCTION(Name, f)                   \
  struct Name {                                        \
    HWY_INLINE VF operator()(VF x) const { return f; } \
  };
BRRR_UNARY_FUNCTION(DoNeg, f_neg(x))
BRRR_UNARY_FUNCTION(DoSqrt, f_sqrt(x))
BRRR_UNARY_FUNCTION(DoRsqrt, f_rsqrt(x))
BRRR_UNARY_FUNCTION(DoReciprocal, f_reciprocal(x))
BRRR_UNARY_FUNCTION(DoSquare, f_square(x))
BRRR_UNARY_FUNCTION(DoAbs, f_abs(x))
BRRR_UNARY_FUNCTION(DoRelu, f_relu(x))
BRRR_UNARY_FUNCTION(DoNot, as_float(hn::Not(as_int(x))))
BRRR_UNARY_FUNCTION(DoRoundBf16, round_to_bf16(x))
BRRR_UNARY_FUNCTION(DoIntToFloat, hn::ConvertTo(DF(), as_int(x)))
BRRR_UNARY_FUNCTION(DoMaskToFloat, hn::IfThenElseZero(mask_of(x), splat(1.0f)))
BRRR_UNARY_FUNCTION(DoMaskToInt, as_float(hn::And(as_int(x), hn::Set(DI(), 1))))
#undef BRRR_UNARY_FUNCTION
struct DoRoundF16 {
  HWY_INLINE VF operator()(VF x) const {
    F16 half[kLanes];
    store(x, half);
    return load(half);
  }
};

template <typename F>
constexpr bool kIsLong = kOthersAreLong;
template <>
constexpr bool kIsLong<DoRoundF16> = true;

template <typename F>
BRRR_TILE_INLINE Block unary(const Block& b) {
  auto body = [](VF v, int64_t) BRRR_INLINE_BODY { return F()(v); };
  if constexpr (kIsLong<F>)
    return map_in_loop(b, body);
  else
    return map(b, body);
}

// -- two operands
template <typename F>
struct Arithmetic {
  HWY_INLINE VF operator()(VF a, VF b) const { return F()(a, b); }
};
template <typename F>
struct Compare {
  HWY_INLINE VF operator()(VF a, VF b) const { return lanes_of(F()(a, b)); }
};
template <typename F>
struct OnInts {
  HWY_INLINE VF operator()(VF a, VF b) const { return as_float(F()(as_int(a), as_int(b))); }
};
template <typename F>
struct CompareInts {
  HWY_INLINE VF operator()(VF a, VF b) const { return lanes_of(F()(as_int(a), as_int(b))); }
};
template <typename F>
struct Reversed {
  HWY_INLINE VF operator()(VF a, VF b) const { return F()(b, a); }
};
struct AndLanes {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::And(a, b); }
};
struct OrLanes {
  HWY_INLINE VF operator()(VF a, VF b) const { return hn::Or(a, b); }
};
using DoAdd = Arithmetic<Add>;
using DoSub = Arithmetic<Sub>;
using DoRSub = Reversed<DoSub>;
using DoMul = Arithmetic<Mul>;
using DoDiv = Arithmetic<Div>;
using DoRDiv = Reversed<DoDiv>;
using DoMaximum = Arithmetic<Maximum>;
using DoRMaximum = Reversed<DoMaximum>;
using DoMinimum = Arithmetic<Minimum>;
using DoRMinimum = Reversed<DoMinimum>;
using DoEqual = Compare<Equal>;
using DoNotEqual = Compare<NotEqual>;
using DoLess = Compare<Less>;
using DoLessEqual = Compare<LessEqual>;
using DoGreater = Compare<Greater>;
using DoGreaterEqual = Compare<GreaterEqual>;
using DoAddInt = OnInts<Add>;
using DoSubInt = OnInts<Sub>;
using DoRSubInt = Reversed<DoSubInt>;
using DoMulInt = OnInts<Mul>;
using DoMaximumInt = OnInts<MaxInt>;
using DoMinimumInt = OnInts<MinInt>;
using DoEqualInt = CompareInts<Equal>;
using DoNotEqualInt = CompareInts<NotEqual>;
using DoLessInt = CompareInts<Less>;
using DoLessEqualInt = CompareInts<LessEqualInt>;
using DoGreaterInt = CompareInts<Greater>;
using DoGreaterEqualInt = CompareInts<GreaterEqualInt>;
using DoAnd = AndLanes;
using DoOr = OrLanes;

template <typename F, typename Get>
struct Bound {
  const Get& get;
  HWY_INLINE VF operator()(VF v, int64_t lane) const { return F()(v, get(lane)); }
};
template <typename F, typename Get>
BRRR_TILE_INLINE Block binary(const Block& b, const Get& get) {
  const Bound<F, Get> body{get};
  if constexpr (kOthersAreLong)
    return map_in_loop(b, body);
  else
    return map(b, body);
}

/// All instructions on the block that begins at element i.
HWY_INLINE void run_block(const TileRun& program, int64_t i) {
  Block acc = make([](int64_t) BRRR_INLINE_BODY { return hn::Zero(DF()); });
  const TileInstruction* const end = program.code + program.length;
  for (const TileInstruction* at = program.code; at != end; ++at) {
    auto address = [&](uint16_t k) BRRR_INLINE_BODY {
      return program.memory[k].data + i * program.memory[k].step;
    };
    auto as_f32 = [&](uint16_t k) BRRR_INLINE_BODY { return reinterpret_cast<float*>(address(k)); };
    auto scalar = [&](uint16_t k) BRRR_INLINE_BODY { return splat(program.scalars[k]); };
    auto select = [&](auto&& yes, auto&& no) BRRR_INLINE_BODY {
      acc = map(acc, [&](VF m, int64_t lane) BRRR_INLINE_BODY {
        return hn::IfThenElse(mask_of(m), yes(lane), no(lane));
      });
    };
    switch (at->code) {
      case static_cast<uint16_t>(TileCode::kLoad32): {
        const float* p = as_f32(at->from);
        acc = make([&](int64_t lane) BRRR_INLINE_BODY {
          __builtin_prefetch(p + lane + program.ahead, 0, 2);
          return load(p + lane);
        });
        break;
      }
      case static_cast<uint16_t>(TileCode::kLoadBf16): {
        const auto* p = reinterpret_cast<const Bf16*>(address(at->from));
        acc = make([&](int64_t lane) BRRR_INLINE_BODY { return load(p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kLoadF16): {
        const auto* p = reinterpret_cast<const F16*>(address(at->from));
        acc = make([&](int64_t lane) BRRR_INLINE_BODY { return load(p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kLoadBool): {
        const std::byte* p = address(at->from);
        acc = make([&](int64_t lane) BRRR_INLINE_BODY { return load_bool(p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kLoadU16): {
        const std::byte* p = address(at->from);
        acc = make([&](int64_t lane) BRRR_INLINE_BODY { return as_float(load_u16(p + 2 * lane)); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kLoadScalar): {
        const VF value = scalar(at->from);
        acc = make([&](int64_t) BRRR_INLINE_BODY { return value; });
        break;
      }
      case static_cast<uint16_t>(TileCode::kStore32): {
        float* p = as_f32(at->from);
        each(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY { store(v, p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kStoreBf16): {
        auto* p = reinterpret_cast<Bf16*>(address(at->from));
        each(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY { store(v, p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kStoreF16): {
        auto* p = reinterpret_cast<F16*>(address(at->from));
        each(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY { store(v, p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kStoreBool): {
        std::byte* p = address(at->from);
        each(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY { store_bool(v, p + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kDropout): {
        const std::byte* p = address(at->from);
        const VF factor = splat(at->value);
        const auto limit = hn::Set(DI(), at->bits);
        acc = map(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY {
          const auto drop = hn::RebindMask(DF(), hn::Lt(load_u16(p + 2 * lane), limit));
          return hn::IfThenZeroElse(drop, hn::Mul(v, factor));
        });
        break;
      }
      case static_cast<uint16_t>(TileCode::kSelectScalars): {
        const VF a = scalar(at->from), b = scalar(at->other);
        select([&](int64_t) BRRR_INLINE_BODY { return a; },
               [&](int64_t) BRRR_INLINE_BODY { return b; });
        break;
      }
      case static_cast<uint16_t>(TileCode::kSelectScalar32): {
        const VF a = scalar(at->from);
        const float* b = as_f32(at->other);
        select([&](int64_t) BRRR_INLINE_BODY { return a; },
               [&](int64_t lane) BRRR_INLINE_BODY { return load(b + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kSelect32Scalar): {
        const float* a = as_f32(at->from);
        const VF b = scalar(at->other);
        select([&](int64_t lane) BRRR_INLINE_BODY { return load(a + lane); },
               [&](int64_t) BRRR_INLINE_BODY { return b; });
        break;
      }
      case static_cast<uint16_t>(TileCode::kSelect32s): {
        const float *a = as_f32(at->from), *b = as_f32(at->other);
        select([&](int64_t lane) BRRR_INLINE_BODY { return load(a + lane); },
               [&](int64_t lane) BRRR_INLINE_BODY { return load(b + lane); });
        break;
      }
      case static_cast<uint16_t>(TileCode::kCall): {
        alignas(64) float lanes[kBlock], loaded[kBlock];
        each(acc, [&](VF v, int64_t lane) BRRR_INLINE_BODY { store(v, lanes + lane); });
        Row row;
        row.n = kBlock;
        row.in[at->other] = row.out = lanes;
        const size_t second = 1 - at->other;
        if (at->source == TileSource::kScalar) {
          row.in[second] = program.scalars + at->from;
          row.repeated = 1u << second;
        } else if (at->source == TileSource::k32) {
          row.in[second] = as_f32(at->from);
        } else if (at->source == TileSource::kBf16) {
          const auto* p = reinterpret_cast<const Bf16*>(address(at->from));
          for (int64_t lane = 0; lane < kBlock; lane += kLanes)
            store(load(p + lane), loaded + lane);
          row.in[second] = loaded;
        }
        at->call(row);
        acc = make([&](int64_t lane) BRRR_INLINE_BODY { return load(lanes + lane); });
        break;
      }
#define BRRR_UNARY_CASE(Name)         \
  case tile_code(TileUnary::k##Name): \
    acc = unary<Do##Name>(acc);       \
    break;
        BRRR_TILE_UNARY(BRRR_UNARY_CASE)
#undef BRRR_UNARY_CASE
// A run of the same instruction is a loop of its own: no dispatch in between.
#define BRRR_BINARY_CASE(Name)                                                                    \
  case tile_code(TileBinary::k##Name, TileSource::kScalar):                                       \
    for (const TileInstruction* last = at + at->other;; ++at) {                                   \
      const VF value = scalar(at->from);                                                          \
      acc = binary<Do##Name>(acc, [&](int64_t) BRRR_INLINE_BODY { return value; });               \
      if (at == last) break;                                                                      \
    }                                                                                             \
    break;                                                                                        \
  case tile_code(TileBinary::k##Name, TileSource::k32):                                           \
    for (const TileInstruction* last = at + at->other;; ++at) {                                   \
      const float* p = as_f32(at->from);                                                          \
      acc = binary<Do##Name>(acc, [&](int64_t lane) BRRR_INLINE_BODY { return load(p + lane); }); \
      if (at == last) break;                                                                      \
    }                                                                                             \
    break;
#define BRRR_BF16_CASE(Name)                                                                    \
  case tile_code(TileBinary::k##Name, TileSource::kBf16): {                                     \
    const auto* p = reinterpret_cast<const Bf16*>(address(at->from));                           \
    acc = binary<Do##Name>(acc, [&](int64_t lane) BRRR_INLINE_BODY { return load(p + lane); }); \
    break;                                                                                      \
  }
        BRRR_TILE_BINARY_FLOAT(BRRR_BINARY_CASE)
        BRRR_TILE_BINARY_FLOAT(BRRR_BF16_CASE)
        BRRR_TILE_BINARY_BITS(BRRR_BINARY_CASE)
#undef BRRR_BF16_CASE
#undef BRRR_BINARY_CASE
      default:
        __builtin_unreachable();
    }
  }
}

bool is_store(const TileInstruction& t) {
  return t.code >= static_cast<uint16_t>(TileCode::kStore32) &&
         t.code <= static_cast<uint16_t>(TileCode::kStoreBool);
}

/// Fewer elements than a block: through whole blocks of our own.
void run_rest(const TileRun& program, int64_t i, int64_t n) {
  alignas(64) std::byte pads[kMaxTileMemory][kTileBlockBytes];
  TileMemory memory[kMaxTileMemory];
  for (int64_t k = 0; k < program.memory_length; ++k) {
    const TileMemory& from = program.memory[k];
    memory[k] = from;
    if (from.step == 0) continue;
    memory[k] = {pads[k], from.step};
    const auto bytes = static_cast<size_t>(n * from.step);
    std::memcpy(pads[k], from.data + i * from.step, bytes);
    std::memset(pads[k] + bytes, 0, static_cast<size_t>(kBlock * from.step) - bytes);
  }
  TileRun part = program;
  part.memory = memory;
  run_block(part, 0);
  for (int64_t c = 0; c < program.length; ++c) {
    if (!is_store(program.code[c])) continue;
    const uint16_t k = program.code[c].from;
    const TileMemory& to = program.memory[k];
    if (to.step != 0) std::memcpy(to.data + i * to.step, pads[k], static_cast<size_t>(n * to.step));
  }
}

void run(const TileRun& program, int64_t n) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) run_block(program, i);
  if (i < n) run_rest(program, i, n - i);
}

#undef BRRR_TILE_INLINE

void copy(TileLines from, TileLines to, int64_t rows, int64_t bytes, bool past_caches) {
  constexpr int64_t kLine = 64;
  const hn::ScalableTag<uint8_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = bytes / lanes * lanes;
  past_caches &= (reinterpret_cast<intptr_t>(to.data) | to.stride | bytes) % kLine == 0;
  for (int64_t r = 0; r < rows; ++r, from.data += from.stride, to.data += to.stride) {
    const auto* x = reinterpret_cast<const uint8_t*>(from.data);
    auto* y = reinterpret_cast<uint8_t*>(to.data);
    if (past_caches) {
      for (int64_t i = 0; i < whole; i += lanes) hn::Stream(hn::LoadU(d, x + i), d, y + i);
      continue;
    }
    for (int64_t i = 0; i < whole; i += lanes) hn::StoreU(hn::LoadU(d, x + i), d, y + i);
    if (whole < bytes) std::memcpy(y + whole, x + whole, static_cast<size_t>(bytes - whole));
  }
}

constexpr TileRows kTable{&run, &copy};

}  // namespace

const TileRows& tile_table() { return kTable; }

}  // namespace brrr::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brrr::cpu {
HWY_EXPORT(tile_table);
const TileRows& tile_rows() { return HWY_DYNAMIC_DISPATCH(tile_table)(); }
}  // namespace brrr::cpu
#endif
