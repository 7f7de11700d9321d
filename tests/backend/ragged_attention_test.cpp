// Attention of ragged batches: every sequence gets the bits that it gets alone, forward and
// backward, whatever lies in front of it and behind it, for every instruction set, dtype and
// kernel.

#include <gtest/gtest.h>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "support/attention_attrs.h"
#include "support/each_isa.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;
using RaggedOperand = std::pair<Type, std::vector<double>>;

struct Ragged {
  const char* name;
  std::vector<int64_t> starts;
  int64_t rows;  // N
  int64_t heads = 2, kv_heads = 2, d = 16, dv = 16;
  bool causal = false;
  int64_t window = 0;
  std::optional<int64_t> window_after = std::nullopt;
  bool in_one = false;  // q, k and v lie side by side in rows
  bool dlse = false;
  int64_t bound = 0;  // the attribute "longest"; 0: how long its sequences are; -1: it is left out
};

// Sequences of 0 and 1 rows, of whole blocks and of one row more, short ones in between.
const std::vector<Ragged> kRaggedBatches = {
    {.name = "all lengths",
     .starts = {0, 1, 1, 49, 145, 340, 352},
     .rows = 352,
     .d = 8,
     .dv = 24,
     .bound = -1},
    {.name = "side by side",
     .starts = {0, 16, 80, 113, 120},
     .rows = 120,
     .heads = 3,
     .kv_heads = 3,
     .d = 32,
     .dv = 32,
     .in_one = true,
     .dlse = true},
    {.name = "shared heads",
     .starts = {0, 70, 166, 167, 231},
     .rows = 231,
     .heads = 6,
     .kv_heads = 2,
     .d = 20,
     .dv = 37,
     .causal = true},
    {.name = "a window",
     .starts = {0, 7, 200, 290},
     .rows = 290,
     .d = 64,
     .dv = 64,
     .causal = true,
     .window = 60,
     .in_one = true},
    {.name = "a window on both sides",
     .starts = {0, 7, 200, 290},
     .rows = 290,
     .d = 64,
     .dv = 64,
     .window = 65,
     .window_after = 64,
     .in_one = true},
    {.name = "rows outside", .starts = {3, 40, 41, 90}, .rows = 99, .d = 5, .dv = 7},
    {.name = "rows outside, side by side",
     .starts = {20, 52, 52, 84},
     .rows = 110,
     .d = 16,
     .dv = 16,
     .causal = true,
     .in_one = true},
    {.name = "no sequence has rows", .starts = {4, 4, 4}, .rows = 6},
    {.name = "one row", .starts = {0, 1}, .rows = 1},
};

/// Values of [heads, rows, width], or [rows, heads * width] where they lie in rows.
struct HeadMatrix {
  int64_t heads, rows, width;
  std::vector<double> data;

  HeadMatrix(int64_t h, int64_t r, int64_t w, RngStream& rng) : heads(h), rows(r), width(w) {
    for (int64_t i = 0; i < h * r * w; ++i)
      data.push_back(4 * static_cast<double>(rng.next_uniform()) - 2);
  }
  HeadMatrix part(int64_t first, int64_t count) const {
    HeadMatrix out = *this;
    out.rows = count;
    out.data.clear();
    for (int64_t h = 0; h < heads; ++h) {
      const auto from = data.begin() + (h * rows + first) * width;
      out.data.insert(out.data.end(), from, from + count * width);
    }
    return out;
  }
  double at(int64_t h, int64_t i, int64_t c) const {
    return data[static_cast<size_t>((h * rows + i) * width + c)];
  }
};

RaggedOperand ragged_operand(const std::vector<const HeadMatrix*>& parts, bool in_rows,
                             DType dtype) {
  const HeadMatrix& first = *parts[0];
  if (!in_rows) return {Type{dtype, {first.heads, first.rows, first.width}}, first.data};
  std::vector<double> data;
  int64_t columns = 0;
  for (const HeadMatrix* m : parts) columns += m->heads * m->width;
  for (int64_t i = 0; i < first.rows; ++i)
    for (const HeadMatrix* m : parts)
      for (int64_t h = 0; h < m->heads; ++h)
        for (int64_t c = 0; c < m->width; ++c) data.push_back(m->at(h, i, c));
  return {Type{dtype, {first.rows, columns}}, data};
}

/// The operands of a whole batch or of one of its sequences.
struct RaggedOperands {
  HeadMatrix q, k, v, y, dy, lse, dlse;

  RaggedOperands(const Ragged& b, RngStream& rng)
      : q(b.heads, b.rows, b.d, rng),
        k(b.kv_heads, b.rows, b.d, rng),
        v(b.kv_heads, b.rows, b.dv, rng),
        y(b.heads, b.rows, b.dv, rng),
        dy(b.heads, b.rows, b.dv, rng),
        lse(b.heads, b.rows, 1, rng),
        dlse(b.heads, b.rows, 1, rng) {
    for (double& x : lse.data) x += 6;
  }
  RaggedOperands part(int64_t first, int64_t count) const {
    RaggedOperands out = *this;
    for (HeadMatrix* m : {&out.q, &out.k, &out.v, &out.y, &out.dy, &out.lse, &out.dlse})
      *m = m->part(first, count);
    return out;
  }
};

Call ragged_call(const Ragged& b, const RaggedOperands& o, DType dtype, bool gradient, bool whole,
                 std::optional<int64_t> position = std::nullopt) {
  Attrs attrs = b.in_one ? test::attention_in_one(b.heads, b.kv_heads, b.d, b.dv)
                         : test::attention_attrs(b.heads, b.kv_heads, b.d, b.dv);
  attrs.set("causal", b.causal);
  attrs.set("window", b.window);
  if (b.window_after) attrs.set("window_after", *b.window_after);
  std::vector<RaggedOperand> in;
  if (b.in_one)
    in = {ragged_operand({&o.q, &o.k, &o.v}, true, dtype)};
  else
    for (const HeadMatrix* m : {&o.q, &o.k, &o.v}) in.push_back(ragged_operand({m}, false, dtype));
  const auto statistic = [](const HeadMatrix& m) {
    return RaggedOperand{Type{DType::f32, {m.heads, m.rows}}, m.data};
  };
  if (gradient) {
    in.push_back(ragged_operand({&o.y}, b.in_one, dtype));
    in.push_back(statistic(o.lse));
    in.push_back(ragged_operand({&o.dy}, b.in_one, dtype));
    attrs.set("dlse", b.dlse);
  }
  if (position) {
    attrs.set("position", true);
    in.push_back({Type{DType::i32, {}}, {static_cast<double>(*position)}});
  }
  if (whole) {
    attrs.set("starts", true);
    int64_t longest = 1;
    for (size_t r = 0; r + 1 < b.starts.size(); ++r)
      longest = std::max(longest, b.starts[r + 1] - b.starts[r]);
    if (b.bound >= 0) attrs.set("longest", b.bound > 0 ? b.bound : longest);
    in.push_back({Type{DType::i32, {std::ssize(b.starts)}},
                  std::vector<double>(b.starts.begin(), b.starts.end())});
  }
  if (gradient && b.dlse) in.push_back(statistic(o.dlse));
  return Call(op(gradient ? "attention_grad" : "attention"), std::move(in), attrs);
}

/// Rows [first, first + count) of a result [heads, rows, ...] or, in rows, [rows, ...].
std::vector<double> rows_of_result(const Type& type, const Buffer& buffer, bool in_rows,
                                   int64_t first, int64_t count) {
  const int64_t heads = in_rows ? 1 : type.shape.size(0), rows = type.shape.size(in_rows ? 0 : 1);
  const int64_t width = rows == 0 ? 0 : type.shape.elements() / heads / rows;
  std::vector<double> out;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = first * width; i < (first + count) * width; ++i)
      out.push_back(load_as_double(type.dtype, buffer.data(), h * rows * width + i));
  return out;
}

bool bits_are_same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) {
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  });
}

using ChooseKernel = std::function<KernelEntry(const Call&)>;

void expect_alone(const Ragged& b, DType dtype, const ChooseKernel& choose) {
  SCOPED_TRACE(fmt::format("{}, {}", b.name, name_of(dtype)));
  RngStream rng({3, 1}, 4);
  const RaggedOperands all(b, rng);
  for (const bool gradient : {false, true}) {
    const Call whole = ragged_call(b, all, dtype, gradient, true);
    set_thread_count(2);
    const std::vector<Buffer> together = run_kernel(choose(whole), whole);
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(choose(whole), whole), together) << threads << " threads";
    }
    const NodeView node = whole.view();
    const std::span<const Type> types = node.out();
    const auto in_rows = [&](size_t i) { return b.in_one && (gradient || i == 0); };
    for (size_t r = 0; r + 1 < b.starts.size(); ++r) {
      const int64_t first = b.starts[r], count = b.starts[r + 1] - first;
      if (count == 0) continue;
      const Call alone = ragged_call(b, all.part(first, count), dtype, gradient, false);
      const std::vector<Buffer> own = run_kernel(choose(alone), alone);
      for (size_t i = 0; i < types.size(); ++i) {
        const auto wanted = rows_of_result(alone.view().out()[i], own[i], in_rows(i), 0, count);
        const auto got = rows_of_result(types[i], together[i], in_rows(i), first, count);
        SCOPED_TRACE(fmt::format("result {} of sequence {}, gradient {}", i, r, gradient));
        // How the blocks of keys of a longer sequence are shared out depends on the batch, and with
        // it the order of dq's sums.
        constexpr int64_t kOneBlock = 96;
        if (!gradient || count <= kOneBlock) {
          EXPECT_TRUE(bits_are_same(got, wanted));
          continue;
        }
        double top = 0, apart = 0;
        for (size_t j = 0; j < got.size(); ++j) {
          top = std::max(top, std::fabs(wanted[j]));
          apart = std::max(apart, std::fabs(wanted[j] - got[j]));
        }
        EXPECT_LE(apart, top * (dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1.6e-2));
      }
    }
    // Outside all sequences everything is 0.
    for (const auto& [first, end] :
         {std::pair{int64_t{0}, b.starts.front()}, std::pair{b.starts.back(), b.rows}})
      for (size_t i = 0; i < types.size(); ++i)
        for (const double x : rows_of_result(types[i], together[i], in_rows(i), first, end - first))
          EXPECT_EQ(x, 0);
  }
}

class RaggedAttention : public test::EachIsa {
 protected:
  void TearDown() override {
    set_thread_count(usable_processors());
    test::EachIsa::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, RaggedAttention, test::every_isa(), test::isa_of);

TEST_P(RaggedAttention, SequencesHaveTheBitsThatTheyHaveAlone) {
  const std::vector<KernelEntry> list = attention_kernels();
  const ChooseKernel first = [&](const Call& call) {
    for (const KernelEntry& entry : list)
      if (entry.op == call.node().op->id && entry.accepts(call.view()).empty()) return entry;
    throw InternalError("no kernel takes " + call.text());
  };
  for (const Ragged& b : test::sampled_if_sanitized(kRaggedBatches, 4, "batches"))
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) expect_alone(b, dtype, first);
}

TEST_P(RaggedAttention, OnTiles) {
  if (GetParam() < Isa::kAvx2) GTEST_SKIP() << "no fused multiply-adds";
  for (const TileUnit unit : {TileUnit::emulated_amx, TileUnit::emulated_pairs, TileUnit::pairs}) {
    if (unit == TileUnit::pairs && !has_bf16_pairs()) continue;
    SCOPED_TRACE(static_cast<int>(unit));
    for (const Ragged& b : test::sampled_if_sanitized(kRaggedBatches, 3, "tiles"))
      expect_alone(b, DType::bf16, [&](const Call& call) {
        const bool gradient = is(call.node(), Op::attention_grad);
        return KernelEntry{call.node().op->id, "tiles",
                           [](const NodeView&) { return std::string(); },
                           [unit, gradient](const NodeView& node) {
                             return gradient ? attention_backward_tiles(node, unit)
                                             : attention_forward_tiles(node, unit);
                           }};
      });
  }
}

// A causal window whose queries stand `after` positions later sees the same keys.
TEST_P(RaggedAttention, AWindowAfterTheQueryIsThatOfALaterPosition) {
  constexpr int64_t kAfter = 33;
  const std::vector<KernelEntry> list = attention_kernels();
  for (const bool gradient : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Ragged both{.name = "both sides", .starts = {0, 290}, .rows = 290, .window = 60};
      Ragged later = both;
      both.window_after = kAfter;
      later.window += kAfter;
      later.causal = true;
      RngStream rng({3, 1}, 4);
      const RaggedOperands operands(both, rng);
      const Call got = ragged_call(both, operands, dtype, gradient, false);
      const Call wanted = ragged_call(later, operands, dtype, gradient, false, kAfter);
      for (const KernelEntry& entry : list)
        if (entry.op == got.node().op->id && entry.accepts(got.view()).empty()) {
          EXPECT_EQ(run_kernel(entry, got), run_kernel(entry, wanted)) << entry.name;
        }
    }
}

TEST_P(RaggedAttention, RefusesStartsThatDoNotAscend) {
  const std::vector<KernelEntry> list = attention_kernels();
  const auto flash = std::ranges::find_if(list, [](const KernelEntry& entry) {
    return entry.op == Op::attention && entry.name == "flash";
  });
  for (const std::vector<int64_t>& starts :
       {std::vector<int64_t>{0, 5, 4, 9}, {0, 5, 12}, {-1, 4, 9}, {0, 9, 1000000}}) {
    const Ragged bad{.name = "bad", .starts = starts, .rows = 9, .bound = -1};
    RngStream rng({3, 1}, 4);
    const Call call = ragged_call(bad, RaggedOperands(bad, rng), DType::f32, false, true);
    EXPECT_USER_ERROR(run_kernel(*flash, call), "starts must ascend within 0 to 9");
  }
}

// The scratch memory of the gradient is that of the longest sequence, not of the whole batch.
TEST_P(RaggedAttention, ABoundOfSequencesSavesScratchAndIsChecked) {
  const std::vector<KernelEntry> list = attention_kernels();
  const auto flash = std::ranges::find_if(list, [](const KernelEntry& entry) {
    return entry.op == Op::attention_grad && entry.name == "flash";
  });
  Ragged batch{.name = "many", .starts = {0}, .rows = 4096, .heads = 4, .kv_heads = 2};
  while (batch.starts.back() < batch.rows) batch.starts.push_back(batch.starts.back() + 64);
  RngStream rng({3, 1}, 4);
  const auto call = [&] {
    return ragged_call(batch, RaggedOperands(batch, rng), DType::bf16, true, true);
  };
  const auto slots = [&](const Call& c) { return flash->prepare(c.view())->scratch_bytes(); };
  const int64_t bounded = slots(call());
  batch.bound = -1;
  EXPECT_LT(bounded, slots(call()) - 3000 * 2 * 16 * 4);
  batch.bound = 63;
  EXPECT_USER_ERROR(run_kernel(*flash, call()), "a sequence of 64 rows; expected at most 63");
}

}  // namespace
}  // namespace brrr::cpu
