// Predicates and what they choose, numbers of several words by a carry, and registers as parts of a
// wider one.

#include <cmath>

#include "support/ptx_machine.h"

namespace brrr::test::ptx {
namespace {

// -- predicates

/// number[0]: 0 and, 1 or, 2 xor, 3 not, 4 mov; the bits of number[1] say which are negated.
void logic(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u32 a = m.predicate(w, i.a[1]) ^ ((i.number[1] & 1u) != 0 ? kAllLanes : 0);
  const u32 b =
      i.a[2].is_there() ? m.predicate(w, i.a[2]) ^ ((i.number[1] & 2u) != 0 ? kAllLanes : 0) : 0;
  const u32 results[] = {a & b, a | b, a ^ b, ~a, a};
  u32& y = *w.to<u32>(i.a[0]);
  y = (y & ~lanes) | (results[i.number[0]] & lanes);
}

enum class Compare { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
template <Compare kHow, typename T>
bool holds(T a, T b) {
  constexpr bool kUnordered = kHow >= Compare::equ && kHow <= Compare::geu;
  if constexpr (std::is_floating_point_v<T>) {
    const bool is_nan = std::isnan(a) || std::isnan(b);
    if constexpr (kHow == Compare::num) return !is_nan;
    if constexpr (kHow == Compare::nan) return is_nan;
    if (is_nan) return kUnordered;
  }
  constexpr auto kPlain = static_cast<Compare>(static_cast<int>(kHow) - (kUnordered ? 6 : 0));
  if constexpr (kPlain == Compare::eq) return a == b;
  if constexpr (kPlain == Compare::ne) return a != b;
  if constexpr (kPlain == Compare::lt) return a < b;
  if constexpr (kPlain == Compare::le) return a <= b;
  if constexpr (kPlain == Compare::gt) return a > b;
  return a >= b;
}
/// a[0] = a[1] < a[2]; where there is a[3]: that and (number[0]: 1 and, 2 or, 3 xor) a[3]; a[4] is
/// the same of what did not hold.
template <Compare kHow, typename T>
void setp(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const T *a = m.from<T>(w, i.a[1]), *b = m.from<T>(w, i.a[2]);
  u32 p = 0;
  for (u32 lane = 0; lane < kLanes; ++lane)
    p |= static_cast<u32>(holds<kHow, T>(a[lane], b[lane])) << lane;
  u32 q = ~p;
  if (i.number[0] != 0) {
    const u32 c = m.predicate(w, i.a[3]) ^ (i.number[1] != 0 ? kAllLanes : 0);
    const auto with = [&](u32 x) {
      return i.number[0] == 1 ? x & c : i.number[0] == 2 ? x | c : x ^ c;
    };
    p = with(p), q = with(q);
  }
  const auto store = [&](Value v, u32 x) {
    if (!v.is_there()) return;
    u32& y = *w.to<u32>(v);
    y = (y & ~lanes) | (x & lanes);
  };
  store(i.a[0], p);
  store(i.a[4], q);
}
template <typename T, size_t... k>
Handler setp_of(size_t how, std::index_sequence<k...>) {
  static constexpr Handler kAll[] = {setp<static_cast<Compare>(k), T>...};
  return how < sizeof...(k) ? kAll[how] : nullptr;
}
bool decode_setp(Decoder& d, const Statement& s) {
  static const char* const kNames[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                       "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  size_t how = 0;
  while (how < 14 && s.parts[1] != kNames[how]) ++how;
  std::string cmp = s.parts[1];
  if (how == 14) {  // of unsigned numbers they have other names
    static const std::map<std::string, size_t> kUnsigned{
        {"lo", 2}, {"ls", 3}, {"hi", 4}, {"hs", 5}};
    const auto found = kUnsigned.find(cmp);
    if (found == kUnsigned.end()) return false;
    how = found->second;
  }
  Instruction& i = *d.now;
  size_t next = 2;
  if (s.parts.at(2) == "and" || s.parts[2] == "or" || s.parts[2] == "xor") {
    i.number[0] = s.parts[2] == "and" ? 1 : s.parts[2] == "or" ? 2 : 3;
    ++next;
  }
  if (s.parts.size() != next + 1) return false;
  const std::string& type = s.parts[next];
  const std::index_sequence<0, 1, 2, 3, 4, 5> plain;
  const std::make_index_sequence<14> all;
  int bits = 0;
  const auto take = [&](const char* name, int width, Handler h) {
    if (type == name) i.run = h, bits = width;
  };
  take("b16", 16, how < 2 ? setp_of<u16>(how, plain) : nullptr);
  take("u16", 16, setp_of<u16>(how, plain));
  take("s16", 16, setp_of<s16>(how, plain));
  take("b32", 32, how < 2 ? setp_of<u32>(how, plain) : nullptr);
  take("u32", 32, setp_of<u32>(how, plain));
  take("s32", 32, setp_of<s32>(how, plain));
  take("b64", 64, how < 2 ? setp_of<u64>(how, plain) : nullptr);
  take("u64", 64, setp_of<u64>(how, plain));
  take("s64", 64, setp_of<s64>(how, plain));
  take("f32", 32, setp_of<float>(how, all));
  take("f64", 64, setp_of<double>(how, all));
  if (i.run == nullptr) return false;
  const auto& o = s.operands;
  const bool is_pair = o.at(0).kind == Operand::Kind::pair;
  i.a[0] = d.destination(is_pair ? o[0].items[0] : o[0], 1);
  if (is_pair) i.a[4] = d.destination(o[0].items[1], 1);
  i.a[1] = d.source(o.at(1), bits);
  i.a[2] = d.source(o.at(2), bits);
  if (i.number[0] != 0) {
    i.a[3] = d.source(o.at(3), 1);
    i.number[1] = o[3].is_negated ? 1 : 0;
  }
  return true;
}

template <typename T>
void selp(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const T *a = m.from<T>(w, i.a[1]), *b = m.from<T>(w, i.a[2]);
  const u32 p = m.predicate(w, i.a[3]);
  T y[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) y[lane] = (p >> lane & 1u) != 0 ? a[lane] : b[lane];
  put(w.to<T>(i.a[0]), y, lanes);
}

// -- numbers of several words, by a carry

/// number[0]: 0 add, 1 sub, 2 mad.lo, 3 mad.hi; number[1]: takes the carry; number[2]: leaves it.
void carrying(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const u32 *a = m.from<u32>(w, i.a[1]), *b = m.from<u32>(w, i.a[2]);
  const u32* c = i.a[3].is_there() ? m.from<u32>(w, i.a[3]) : nullptr;
  u32 y[kLanes], carries = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u64 in = i.number[1] != 0 ? w.carries >> lane & 1u : 0, product = u64{a[lane]} * b[lane];
    u64 sum = 0;
    switch (i.number[0]) {
      case 0:
        sum = u64{a[lane]} + b[lane] + in;
        break;
      case 1:
        sum = u64{a[lane]} - b[lane] - in;
        break;
      case 2:
        sum = (product & 0xffffffffu) + c[lane] + in;
        break;
      default:
        sum = (product >> 32) + c[lane] + in;
    }
    y[lane] = static_cast<u32>(sum);
    carries |= static_cast<u32>(sum >> 32 & 1u) << lane;
  }
  put(w.to<u32>(i.a[0]), y, lanes);
  if (i.number[2] != 0) w.carries = (w.carries & ~lanes) | (carries & lanes);
}
bool decode_carrying(Decoder& d, const Statement& s) {
  const std::string& op = s.parts[0];
  const bool takes = op == "addc" || op == "subc" || op == "madc", leaves = s.has("cc");
  const bool is_mad = op == "mad" || op == "madc";
  if (!takes && !leaves) return false;
  if (!is_mad && op != "add" && op != "addc" && op != "sub" && op != "subc") return false;
  if (s.parts.back() != "u32" && s.parts.back() != "s32") return false;
  if (s.parts.size() != 2u + (is_mad ? 1 : 0) + (leaves ? 1 : 0)) return false;
  Instruction& i = *d.now;
  i.run = carrying;
  i.number[0] = is_mad ? (s.parts[1] == "hi" ? 3 : 2) : op.starts_with("add") ? 0 : 1;
  i.number[1] = takes ? 1 : 0;
  i.number[2] = leaves ? 1 : 0;
  i.a[0] = d.destination(s.operands.at(0), 32);
  for (size_t k = 1; k < (is_mad ? 4u : 3u); ++k) i.a[k] = d.source(s.operands.at(k), 32);
  return true;
}

// -- registers as parts of a wider one

template <typename Part, typename Whole>
void join_parts(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  Whole y[kLanes] = {};
  for (u32 k = 0; k < i.count; ++k) {
    const Part* part = m.from<Part>(w, m.program.lists[i.list + k]);
    for (int lane = 0; lane < kLanes; ++lane)
      y[lane] |= static_cast<Whole>(static_cast<Whole>(part[lane]) << (8 * sizeof(Part) * k));
  }
  put(w.to<Whole>(i.a[0]), y, lanes);
}
template <typename Part, typename Whole>
void split_parts(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  const Whole* x = m.from<Whole>(w, i.a[0]);
  Whole all[kLanes];
  std::memcpy(all, x, sizeof all);
  for (u32 k = 0; k < i.count; ++k) {
    const Value v = m.program.lists[i.list + k];
    if (!v.is_there()) continue;
    Part y[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      y[lane] = static_cast<Part>(all[lane] >> (8 * sizeof(Part) * k));
    put(w.to<Part>(v), y, lanes);
  }
}
bool decode_parts(Decoder& d, const Statement& s) {
  const int bits = s.opcode == "mov.b32" ? 32 : 64;
  const bool joins = s.operands[1].kind == Operand::Kind::list;
  const Operand& list = s.operands[joins ? 1 : 0];
  const auto count = static_cast<int>(list.items.size());
  if (count == 0 || bits % count != 0) return false;
  const int part = bits / count;
  Instruction& i = *d.now;
  if (bits == 32 && part == 16)
    i.run = joins ? join_parts<u16, u32> : split_parts<u16, u32>;
  else if (bits == 64 && part == 32)
    i.run = joins ? join_parts<u32, u64> : split_parts<u32, u64>;
  else if (bits == 64 && part == 16)
    i.run = joins ? join_parts<u16, u64> : split_parts<u16, u64>;
  else
    return false;
  i.a[0] = joins ? d.destination(s.operands[0], bits) : d.source(s.operands[1], bits);
  for (const Operand& o : list.items)
    d.add_to_list(joins ? d.source(o, part) : d.destination(o, part));
  return true;
}

}  // namespace

bool decode_predicates(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const auto& o = s.operands;
  if (s.is("setp") && s.parts.size() >= 3) return decode_setp(d, s);
  if (s.is("selp") && s.parts.size() == 2 && o.size() == 4) {
    const int bits = std::atoi(s.parts[1].c_str() + 1);
    i.run = bits == 16 ? selp<u16> : bits == 32 ? selp<u32> : bits == 64 ? selp<u64> : nullptr;
    if (i.run == nullptr) return false;
    i.a[0] = d.destination(o[0], bits);
    i.a[1] = d.source(o[1], bits);
    i.a[2] = d.source(o[2], bits);
    i.a[3] = d.source(o[3], 1);
    if (o[3].is_negated) std::swap(i.a[1], i.a[2]);
    return true;
  }
  if (s.parts.size() == 2 && s.parts[1] == "pred") {
    static const char* const kNames[] = {"and", "or", "xor", "not", "mov"};
    u32 which = 0;
    while (which < 5 && s.parts[0] != kNames[which]) ++which;
    if (which == 5) return false;
    i.run = logic;
    i.number[0] = which;
    i.a[0] = d.destination(o.at(0), 1);
    for (size_t k = 1; k <= (which < 3 ? 2u : 1u); ++k) {
      i.a[k] = d.source(o.at(k), 1);
      i.number[1] |= o[k].is_negated ? 1u << (k - 1) : 0;
    }
    return true;
  }
  if ((s.opcode == "mov.b32" || s.opcode == "mov.b64") && o.size() == 2 &&
      (o[0].kind == Operand::Kind::list || o[1].kind == Operand::Kind::list))
    return decode_parts(d, s);
  return decode_carrying(d, s);
}

}  // namespace brrr::test::ptx
