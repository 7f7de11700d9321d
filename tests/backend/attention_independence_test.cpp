// A query of attention has the same bits, y and lse, however many queries are computed with it,
// whatever its index in the call, in whatever batch, with any number of threads: decoding with a
// cache gives what the whole prompt gives. For every instruction set, dtype and kernel.

#include <gtest/gtest.h>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "support/attention_attrs.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

constexpr int64_t kLength = 300, kCache = 401;  // queries of the whole prompt, room of the cache

struct Form {
  const char* name;
  int64_t heads, kv_heads, d, dv;
  int64_t window = 0;
  double spread = 2;  // of the scores' factors: large, so that earlier keys vanish at once
};
const Form kForms[] = {
    {.name = "heads of 64", .heads = 2, .kv_heads = 2, .d = 64, .dv = 64},
    {.name = "odd widths", .heads = 2, .kv_heads = 1, .d = 20, .dv = 37},
    {.name = "shared heads, a window", .heads = 4, .kv_heads = 2, .d = 32, .dv = 16, .window = 77},
    {.name = "sharp", .heads = 1, .kv_heads = 1, .d = 16, .dv = 16, .spread = 30},
};

/// Values of [heads, rows, width].
struct Rows {
  int64_t heads, rows, width;
  std::vector<double> data;
  Rows(int64_t h, int64_t r, int64_t w) : heads(h), rows(r), width(w) {
    data.resize(static_cast<size_t>(h * r * w));
  }
  /// Some of the rows, and zeros behind them.
  Rows part(int64_t first, int64_t count, int64_t room) const {
    Rows out(heads, room, width);
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(data.begin() + (h * rows + first) * width, count * width,
                  out.data.begin() + h * room * width);
    return out;
  }
};

struct Prompt {
  Rows q, k, v;
  explicit Prompt(const Form& f)
      : q(f.heads, kLength, f.d), k(f.kv_heads, kLength, f.d), v(f.kv_heads, kLength, f.dv) {
    RngStream rng({5, 6}, 7);
    for (Rows* r : {&q, &k, &v})
      for (double& x : r->data)
        x = (r == &q ? f.spread : 2) * (2 * static_cast<double>(rng.next_uniform()) - 1);
    for (size_t i = 0; i < v.data.size(); i += 5) v.data[i] = i % 2 == 0 ? 0.0 : -0.0;
  }
};

Attrs attrs_of(const Form& f, bool has_position) {
  Attrs attrs = test::attention_attrs(f.heads, f.kv_heads, f.d, f.dv);
  attrs.set("causal", true);
  attrs.set("window", f.window);
  attrs.set("position", has_position);
  return attrs;
}

std::pair<Type, std::vector<double>> operand(const Rows& r, DType dtype, int64_t batch = 1) {
  std::vector<double> data;
  for (int64_t b = 0; b < batch; ++b) data.insert(data.end(), r.data.begin(), r.data.end());
  return {Type{dtype, {batch, r.heads, r.rows, r.width}}, data};
}

Call whole(const Form& f, const Prompt& p, DType dtype) {
  return Call(op("attention"), {operand(p.q, dtype), operand(p.k, dtype), operand(p.v, dtype)},
              attrs_of(f, false));
}
/// `count` queries from `first` on with a cache that holds what has come so far.
Call cached(const Form& f, const Prompt& p, DType dtype, int64_t first, int64_t count) {
  const int64_t seen = first + count;
  return Call(op("attention"),
              {operand(p.q.part(first, count, count), dtype),
               operand(p.k.part(0, seen, kCache), dtype),
               operand(p.v.part(0, seen, kCache), dtype),
               {Type{DType::i32, {}}, {static_cast<double>(first)}}},
              attrs_of(f, true));
}
/// The same for two sequences, of which each has its own position: the second is at `first`.
Call second_of_two(const Form& f, const Prompt& p, DType dtype, int64_t first, int64_t count) {
  const int64_t seen = first + count;
  return Call(op("attention"),
              {operand(p.q.part(first, count, count), dtype, 2),
               operand(p.k.part(0, seen, kCache), dtype, 2),
               operand(p.v.part(0, seen, kCache), dtype, 2),
               {Type{DType::i32, {2}}, {0.0, static_cast<double>(first)}}},
              attrs_of(f, true));
}

/// The bytes of rows [first, first + count) of result [sequences, heads, rows, width].
std::vector<std::byte> rows_of(const Buffer& b, int64_t sequences, int64_t sequence, int64_t heads,
                               int64_t first, int64_t count) {
  const auto head = static_cast<int64_t>(b.size()) / sequences / heads;
  std::vector<std::byte> out;
  const int64_t all = first < 0 ? count : kLength;  // rows of a head
  for (int64_t h = 0; h < heads; ++h) {
    const std::byte* from = b.data() + (sequence * heads + h) * head;
    const int64_t row = head / all;
    out.insert(out.end(), from + std::max<int64_t>(0, first) * row,
               from + (std::max<int64_t>(0, first) + count) * row);
  }
  return out;
}

class AttentionRowsAlone : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionRowsAlone, test::every_isa(), test::isa_of);

using Choose = std::function<KernelEntry(const Call&)>;

void expect_independent(const Form& f, DType dtype, const Choose& choose) {
  SCOPED_TRACE(fmt::format("{}, {}", f.name, name_of(dtype)));
  const Prompt prompt(f);
  set_thread_count(2);
  const Call all = whole(f, prompt, dtype);
  const std::vector<Buffer> together = run_kernel(choose(all), all);
  int threads = 1;
  const auto expect_same = [&](const Call& call, int64_t sequences, int64_t first, int64_t count) {
    set_thread_count(threads = threads % 3 + 1);
    const std::vector<Buffer> alone = run_kernel(choose(call), call);
    for (const size_t result : {size_t{0}, size_t{1}})
      EXPECT_TRUE(rows_of(alone[result], sequences, sequences - 1, f.heads, -1, count) ==
                  rows_of(together[result], 1, 0, f.heads, first, count))
          << (result == 0 ? "y" : "lse") << " of queries " << first << " + " << count << " of "
          << sequences << " sequences with " << threads << " threads";
  };
  for (const int64_t count : {1, 2, 7, 64, 255, 256, 257})
    for (const int64_t first : {int64_t{0}, int64_t{41}, kLength - count}) {
      if (first + count > kLength) continue;
      expect_same(cached(f, prompt, dtype, first, count), 1, first, count);
    }
  for (const int64_t first : {1, 31, 32, 63, 95, 96, 191, 192, 193, 250})
    expect_same(cached(f, prompt, dtype, first, 1), 1, first, 1);
  for (const int64_t count : {1, 7, 64})
    expect_same(second_of_two(f, prompt, dtype, 150, count), 2, 150, count);
}

TEST_P(AttentionRowsAlone, HaveTheBitsThatTheyHaveAmongOthers) {
  const std::vector<KernelEntry> list = [] {
    best_isa();
    return attention_kernels();
  }();
  const Choose first = [&](const Call& call) {
    for (const KernelEntry& entry : list)
      if (entry.op == Op::attention && entry.accepts(call.view()).empty()) return entry;
    throw InternalError("no kernel takes " + call.text());
  };
  for (const Form& f : kForms)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      expect_independent(f, dtype, first);
}

/// Without fused multiply-adds vector code cannot do what tiles do, nor are there such tiles.
TEST_P(AttentionRowsAlone, OnTiles) {
  if (GetParam() < Isa::kAvx2) GTEST_SKIP() << "no fused multiply-adds";
  for (const TileUnit unit : {TileUnit::emulated_amx, TileUnit::emulated_pairs, TileUnit::pairs}) {
    if (unit == TileUnit::pairs && !has_bf16_pairs()) continue;
    SCOPED_TRACE(static_cast<int>(unit));
    for (const Form& f : kForms)
      expect_independent(f, DType::bf16, [&](const Call&) {
        return KernelEntry{
            Op::attention, "tiles", [](const NodeView&) { return std::string(); },
            [unit](const NodeView& node) { return attention_forward_tiles(node, unit); }};
      });
  }
}

}  // namespace
}  // namespace brrr::cpu
