// The matrix units: ldmatrix, mma.sync and wgmma, with their fragments and descriptors as the PTX
// ISA's tables have them.

#include <fmt/format.h>

#include "support/ptx_machine.h"

namespace brrr::test::ptx {
namespace {

constexpr int kRows = 16, kTerms = 16, kMostColumns = 256;  // of a warp's product

float widened(u32 bits, bool is_bf16) {
  if (!is_bf16) return f16_values()[bits & 0xffffu];
  const u32 word = bits << 16;
  float y;
  std::memcpy(&y, &word, sizeof y);
  return y;
}

/// c [16, n] += a [16, 16] b [16, n], sums in f32.
BRRR_WIDE void multiply(float* c, const float* a, const float* b, int n) {
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kTerms; ++k) {
      const float x = a[row * kTerms + k];
      for (int column = 0; column < n; ++column)
        c[row * n + column] = __builtin_fmaf(x, b[k * n + column], c[row * n + column]);
    }
}

void need_all(const Machine& m, const Instruction& i, u32 lanes) {
  if (lanes != kAllLanes) m.refuse(i, fmt::format("only lanes {:08x} are here", lanes));
}

// -- ldmatrix: lanes 8 k to 8 k + 7 give the rows of matrix k; number[0]: matrices, number[1]:
// transposed, number[2]: addresses of 32 bits

void ldmatrix(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  Access access = m.access(w, i, lanes, false);
  const std::byte* rows[kLanes];
  for (u32 lane = 0; lane < 8 * i.number[0]; ++lane) {
    u64 at = (i.number[2] != 0 ? m.from<u32>(w, i.a[1])[lane] : m.from<u64>(w, i.a[1])[lane]);
    at += static_cast<u64>(i.offset);
    rows[lane] = m.shared(i, at, 16, 16);
    m.touch(access, static_cast<u32>(at), 16);
    m.touch_by_lane(w, i, kLanes, static_cast<u32>(at), 16, false);
  }
  for (u32 k = 0; k < i.number[0]; ++k) {
    u32* r = w.to<u32>(m.program.lists[i.list + k]);
    for (u32 lane = 0; lane < kLanes; ++lane) {
      u16 pair[2];
      for (u32 e = 0; e < 2; ++e) {
        const u32 row = i.number[1] != 0 ? lane % 4 * 2 + e : lane / 4;
        const u32 column = i.number[1] != 0 ? lane / 4 : lane % 4 * 2 + e;
        std::memcpy(&pair[e], rows[8 * k + row] + 2 * column, 2);
      }
      r[lane] = pair[0] | u32{pair[1]} << 16;
    }
  }
}

// -- fragments of 16 rows: lane 4 g + t has of A rows g and g + 8, terms 2 t + {0, 1} and 8 more,
// and of a sum rows g and g + 8, columns 2 t + {0, 1} of every eight

void left_fragment(const Machine& m, const Warp& w, u32 list, bool is_bf16, float* a) {
  for (u32 r = 0; r < 4; ++r) {
    const u32* words = m.from<u32>(w, m.program.lists[list + r]);
    for (u32 lane = 0; lane < kLanes; ++lane)
      for (u32 e = 0; e < 2; ++e) {
        const u32 row = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + e + r / 2 * 8;
        a[row * kTerms + k] = widened(words[lane] >> (16 * e), is_bf16);
      }
  }
}
template <bool kStores>
void sums(Machine& m, Warp& w, u32 list, int n, float* c) {
  for (u32 r = 0; r < static_cast<u32>(n) / 2; ++r) {
    const Value v = m.program.lists[list + r];
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 row = lane / 4 + r % 4 / 2 * 8, column = r / 4 * 8 + lane % 4 * 2 + r % 2;
      float& x = c[row * static_cast<u32>(n) + column];
      if constexpr (kStores)
        w.to<float>(v)[lane] = x;
      else
        x = m.from<float>(w, v)[lane];
    }
  }
}

/// mma.m16n8k16: the list is d (4), a (4), b (2), c (4); number[0]: bf16.
void mma(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  float a[kRows * kTerms], b[kTerms * 8], c[kRows * 8];
  left_fragment(m, w, i.list + 4, i.number[0] != 0, a);
  for (u32 r = 0; r < 2; ++r) {
    const u32* words = m.from<u32>(w, m.program.lists[i.list + 8 + r]);
    for (u32 lane = 0; lane < kLanes; ++lane)
      for (u32 e = 0; e < 2; ++e)
        b[(lane % 4 * 2 + e + r * 8) * 8 + lane / 4] =
            widened(words[lane] >> (16 * e), i.number[0] != 0);
  }
  sums<false>(m, w, i.list + 10, 8, c);
  multiply(c, a, b, 8);
  sums<true>(m, w, i.list, 8, c);
}

// -- wgmma: a product of four warps; number[0]: bf16, number[1]: columns, number[2]: bits 0 A is
// transposed, 1 B is, 2 A is in registers, number[3]: bits 0 and 1: A and B are negated.
// a[1], a[2]: descriptors; a[3]: whether the sums are kept. The list: sums, then A's registers.

enum : u32 { kTransposedA = 1, kTransposedB = 2, kRegistersA = 4 };

struct Descriptor {
  u32 start, leading, stride, base, swizzle;
  explicit Descriptor(u64 bits)
      : start(static_cast<u32>(bits & 0x3fff) << 4),
        leading(static_cast<u32>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<u32>(bits >> 32 & 0x3fff) << 4),
        base(static_cast<u32>(bits >> 49 & 7)),
        swizzle(static_cast<u32>(bits >> 62)) {}
  /// Where element `line` (a row of A, a column of B), term `k` lies.
  u32 at(u32 line, u32 k, bool is_transposed) const {
    const u32 plain =
        is_transposed ? start + line % 64 * 2 + line / 64 * leading + k % 8 * 128 + k / 8 * stride
                      : start + line / 8 * stride + line % 8 * 128 + k * 2;
    return plain ^ (plain >> 7 & 7u) << 4;
  }
};

Descriptor checked(const Machine& m, const Instruction& i, u64 bits) {
  const Descriptor d(bits);
  if (d.swizzle != 1) m.refuse(i, "a descriptor with another swizzle than 128 bytes");
  if (d.base != 0) m.refuse(i, "a descriptor with a base offset");
  const u64 unused =
      bits & ~(u64{0x3fff} | u64{0x3fff} << 16 | u64{0x3fff} << 32 | u64{7} << 49 | u64{3} << 62);
  if (unused != 0) m.refuse(i, fmt::format("a descriptor with unknown bits {:#x}", unused));
  return d;
}

/// Visits the 16 bytes that neighbouring elements share: f(line, k, address of the first of eight).
template <typename F>
void each_chunk(const Descriptor& d, u32 first, u32 lines, bool is_transposed, F&& f) {
  if (is_transposed)
    for (u32 k = 0; k < kTerms; ++k)
      for (u32 line = first; line < first + lines; line += 8) f(line, k, d.at(line, k, true));
  else
    for (u32 line = first; line < first + lines; ++line)
      for (u32 k = 0; k < kTerms; k += 8) f(line, k, d.at(line, k, false));
}

/// The elements as [kTerms, lines] (or [lines, kTerms] where `by_lines`).
void fetch(Machine& m, const Instruction& i, const Descriptor& d, u32 first, u32 lines,
           bool is_transposed, bool by_lines, float* to) {
  const bool is_bf16 = i.number[0] != 0;
  each_chunk(d, first, lines, is_transposed, [&](u32 line, u32 k, u32 at) {
    u16 words[8];
    std::memcpy(words, m.shared(i, at, 16, 16), 16);
    for (u32 e = 0; e < 8; ++e) {
      const u32 l = line - first + (is_transposed ? e : 0), term = k + (is_transposed ? 0 : e);
      to[by_lines ? l * kTerms + term : term * lines + l] = widened(words[e], is_bf16);
    }
  });
}

void run_product(Machine& m, Warp& w, Product& p) {
  if (p.is_done) return;
  p.is_done = true;
  const Instruction& i = *p.instruction;
  const u32 n = i.number[1];
  float a[kRows * kTerms], b[kTerms * kMostColumns], c[kRows * kMostColumns] = {};
  if ((i.number[2] & kRegistersA) != 0)
    left_fragment(m, w, i.list + n / 2, i.number[0] != 0, a);
  else
    fetch(m, i, Descriptor(p.a), w.index % 4 * kRows, kRows, (i.number[2] & kTransposedA) != 0,
          true, a);
  fetch(m, i, Descriptor(p.b), 0, n, (i.number[2] & kTransposedB) != 0, false, b);
  for (float& x : a) x = (i.number[3] == 1 || i.number[3] == 2) ? -x : x;
  if (p.adds) sums<false>(m, w, i.list, static_cast<int>(n), c);
  multiply(c, a, b, static_cast<int>(n));
  sums<true>(m, w, i.list, static_cast<int>(n), c);
}

void wgmma(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  if (m.warps.size() % 4 != 0) m.refuse(i, "no whole group of four warps");
  const u32 n = i.number[1];
  const bool from_registers = (i.number[2] & kRegistersA) != 0;
  const auto same = [&](Value v) {
    const u64* all = m.from<u64>(w, v);
    for (int lane = 1; lane < kLanes; ++lane)
      if (all[lane] != all[0]) m.refuse(i, "lanes with different descriptors");
    return all[0];
  };
  const u32 keeps = m.predicate(w, i.a[3]);
  if (keeps != 0 && keeps != kAllLanes) m.refuse(i, "lanes that differ in whether sums are kept");
  Product p{&i, w.committed, from_registers ? 0 : same(i.a[1]), same(i.a[2]), keeps != 0, false};
  // The group's warps ask for the same products in the same order.
  Machine::Sequence& sequence = m.asked[w.index / 4];
  u32& number = sequence.next[w.index % 4];
  const Asked mine{&i, p.a, p.b, p.adds};
  if (number - sequence.first == sequence.list.size()) {
    sequence.list.push_back(mine);
  } else {
    const Asked& theirs = sequence.list[number - sequence.first];
    if (theirs.instruction != &i || theirs.a != mine.a || theirs.b != mine.b ||
        theirs.adds != mine.adds)
      m.refuse(i, fmt::format("another warp of the group asked for another product: {}",
                              m.program.at(theirs.instruction->line)));
  }
  ++number;
  const u32 least = *std::min_element(sequence.next.begin(), sequence.next.end());
  for (; sequence.first < least; ++sequence.first) sequence.list.pop_front();
  // Registers: fenced since anybody else touched them, and of no other product's kind.
  const u32 registers = i.count;
  if (w.fences == 0) m.refuse(i, "no wgmma.fence before the first product");
  for (u32 k = 0; k < registers; ++k) {
    const Value v = m.program.lists[i.list + k];
    const u32 r = v.at / 64;
    const bool is_sum = k < n / 2;
    if (w.touched[r] > w.fences)
      m.refuse(i, fmt::format("no wgmma.fence since a register of {} {} was touched",
                              is_sum ? "sum" : "operand", is_sum ? k : k - n / 2));
    if (w.owned[r] != 0 && w.owned[r] != (is_sum ? 2 : 1))
      m.refuse(i, "a register that is a sum and an operand of products under way");
    w.owned[r] = is_sum ? 2 : 1;
    // Without a fence products follow each other in a register only if they have one shape.
    const u32 use = is_sum ? n : 0;
    if (w.used_at[r] == w.fences && w.used_as[r] != use)
      m.refuse(i, fmt::format("no wgmma.fence since a register of {} {} was one of another shape",
                              is_sum ? "sum" : "operand", is_sum ? k : k - n / 2));
    w.used_at[r] = w.fences, w.used_as[r] = use;
  }
  // What it reads, it reads from now on.
  const u64 event = Machine::event(kWgmmaOf + w.index, w.committed + 1, m.index_of(i), false, true);
  Access access = m.access(w, lanes, event);
  const auto visit = [&](u64 bits, u32 first, u32 lines, bool is_transposed) {
    const Descriptor d = checked(m, i, bits);
    each_chunk(d, first, lines, is_transposed, [&](u32, u32, u32 at) {
      m.shared(i, at, 16, 16);
      m.touch(access, at, 16);
    });
  };
  if (!from_registers) visit(p.a, w.index % 4 * kRows, kRows, (i.number[2] & kTransposedA) != 0);
  visit(p.b, 0, n, (i.number[2] & kTransposedB) != 0);
  w.products.push_back(p);
}

void wgmma_fence(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  ++w.fences;
}
void wgmma_commit(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  ++w.committed;
  if (!m.is_late)
    for (Product& p : w.products) run_product(m, w, p);
}
/// Until at most number[0] groups are under way.
void wgmma_wait(Machine& m, Warp& w, const Instruction& i, u32 lanes) {
  need_all(m, i, lanes);
  const u32 done = w.committed - std::min(w.committed, i.number[0]);
  for (Product& p : w.products)
    if (p.group < done) run_product(m, w, p);
  std::erase_if(w.products, [&](const Product& p) { return p.group < done; });
  std::fill(w.owned.begin(), w.owned.end(), uint8_t{0});
  for (const Product& p : w.products)
    for (u32 k = 0; k < p.instruction->count; ++k)
      w.owned[m.program.lists[p.instruction->list + k].at / 64] =
          k < p.instruction->number[1] / 2 ? 2 : 1;
  m.change_clocks(w, lanes, [&](Clocks& clocks) {
    u32& seen = clocks.seen[kWgmmaOf + w.index];
    seen = std::max(seen, done);
  });
  m.tick(w);
}

int number_behind(const std::string& text, char letter) {
  const size_t at = text.find(letter);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 1);
}

/// wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
bool decode_product(Decoder& d, const Statement& s) {
  if (s.parts.size() != 8 || s.parts[2] != "sync" || s.parts[3] != "aligned") return false;
  const std::string& shape = s.parts[4];
  const int n = number_behind(shape, 'n');
  if (shape != fmt::format("m64n{}k16", n) || n % 8 != 0 || n < 8 || n > 256) return false;
  if (s.parts[5] != "f32" || s.parts[6] != s.parts[7]) return false;
  if (s.parts[6] != "bf16" && s.parts[6] != "f16") return false;
  const auto& o = s.operands;
  const bool from_registers = o.at(1).kind == Operand::Kind::list;
  if (o.size() != (from_registers ? 7u : 8u)) d.refuse("another number of operands");
  if (o[0].kind != Operand::Kind::list || o[0].items.size() != static_cast<size_t>(n) / 2)
    d.refuse(fmt::format("{} sums, where {} has {}", o[0].items.size(), shape, n / 2));
  Instruction& i = *d.now;
  i.run = wgmma;
  d.program->has_wgmma = true;
  i.number[0] = s.parts[6] == "bf16" ? 1 : 0;
  i.number[1] = static_cast<u32>(n);
  for (const Operand& item : o[0].items) d.add_to_list(d.destination(item, 32));
  if (from_registers) {
    if (o[1].items.size() != 4) d.refuse("A has four registers");
    for (const Operand& item : o[1].items) d.add_to_list(d.source(item, 32));
    i.number[2] |= kRegistersA;
  } else {
    i.a[1] = d.source(o[1], 64);
  }
  i.a[2] = d.source(o[2], 64);
  i.a[3] = d.source(o[3], 1);
  const auto flag = [&](const Operand& x, u64 yes, u64 no) {
    if (x.kind != Operand::Kind::number || (x.bits != yes && x.bits != no))
      d.refuse("a number that it may not have");
    return x.bits == yes;
  };
  for (u32 k = 0; k < 2; ++k)
    if (flag(o[4 + k], ~u64{0}, 1)) i.number[3] |= 1u << k;
  size_t at = 6;
  if (!from_registers && flag(o[at++], 1, 0)) i.number[2] |= kTransposedA;
  if (flag(o[at], 1, 0)) i.number[2] |= kTransposedB;
  return true;
}

}  // namespace

void check_registers(Machine& m, Warp& w, const Instruction& i) {
  if (i.run == wgmma) return;
  const u32* r = m.program.registers_of.data() + i.first_read;
  const bool any = !w.products.empty();
  for (u32 k = 0; k < i.reads + i.writes; ++k) {
    if (any && w.owned[r[k]] != 0)
      m.refuse(i, fmt::format("it {} a register that is {} of a product under way",
                              k < i.reads ? "reads" : "writes",
                              w.owned[r[k]] == 2 ? "a sum" : "an operand"));
    w.touched[r[k]] = w.fences + 1;
  }
}

bool decode_matrix(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const auto& o = s.operands;
  if (s.is("ldmatrix") && s.has("aligned")) {
    // ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16
    const bool is_transposed = s.has("trans");
    const int n = number_behind(s.parts.at(4), 'x');
    const std::string space = s.parts.at(is_transposed ? 6 : 5);
    if (s.opcode != fmt::format("ldmatrix.sync.aligned.m8n8.x{}{}.{}.b16", n,
                                is_transposed ? ".trans" : "", space) ||
        (space != "shared" && space != "shared::cta") || (n != 1 && n != 2 && n != 4))
      return false;
    i.run = ldmatrix;
    i.number[0] = static_cast<u32>(n);
    i.number[1] = is_transposed ? 1 : 0;
    i.a[1] = d.address(o.at(1));
    i.number[2] = d.bits_of(o[1]) == 32 ? 1 : 0;
    if (o[0].items.size() != static_cast<size_t>(n)) d.refuse("another number of registers");
    for (const Operand& item : o[0].items) d.add_to_list(d.destination(item, 32));
    return true;
  }
  if (s.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" ||
      s.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
    i.run = mma;
    i.number[0] = s.has("bf16") ? 1 : 0;
    const size_t counts[] = {4, 4, 2, 4};
    for (size_t k = 0; k < 4; ++k) {
      if (o.at(k).items.size() != counts[k]) d.refuse("another number of registers");
      for (const Operand& item : o[k].items)
        d.add_to_list(k == 0 ? d.destination(item, 32) : d.source(item, 32));
    }
    return true;
  }
  if (s.opcode == "wgmma.fence.sync.aligned") {
    i.run = wgmma_fence;
  } else if (s.opcode == "wgmma.commit_group.sync.aligned") {
    i.run = wgmma_commit;
  } else if (s.opcode == "wgmma.wait_group.sync.aligned") {
    i.run = wgmma_wait;
    i.number[0] = static_cast<u32>(o.at(0).bits);
  } else {
    return s.is("wgmma", "mma_async") && decode_product(d, s);
  }
  return true;
}

}  // namespace brrr::test::ptx
