// The attention kernels against the decomposition in fp64: every option, dtype and operand layout.

#include <gtest/gtest.h>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/op.h"
#include "support/attention_attrs.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

struct Case {
  int64_t t, s, d, dv;
  bool causal = false;
  std::optional<int64_t> position = std::nullopt;
  std::optional<Shape> mask = std::nullopt;
  DType mask_dtype = DType::boolean;
  bool lengths = false;
  double p = 0;
  double masked = -INFINITY;
  int64_t batch = 2, heads = 1, kv_heads = 0;  // 0: as many as heads
  int64_t window = 0;
  bool apart_in_time = false;  // each sequence has a position of its own
  bool dlse = false;
  int64_t keys() const { return kv_heads > 0 ? kv_heads : heads; }
};

class AttentionKernels : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionKernels, test::every_isa(), test::isa_of);

const KernelEntry& entry_of(const Call& call) {
  static const std::vector<KernelEntry> list = [] {
    best_isa();
    return attention_kernels();
  }();
  for (const KernelEntry& entry : list)
    if (entry.op == call.node().op->id && entry.accepts(call.view()).empty()) return entry;
  ADD_FAILURE() << "no kernel takes " << call.text();
  return list[0];
}

using Operands = std::vector<std::pair<Type, std::vector<double>>>;

std::vector<double> random_values(int64_t n, double low, double high, RngStream& rng) {
  std::vector<double> v(static_cast<size_t>(n));
  for (double& x : v) x = low + (high - low) * static_cast<double>(rng.next_uniform());
  return v;
}

Attrs attrs_of(const Case& c) {
  Attrs attrs = test::attention_attrs(c.heads, c.keys(), c.d, c.dv);
  attrs.set("causal", c.causal);
  attrs.set("window", c.window);
  attrs.set("lengths", c.lengths);
  attrs.set("mask", c.mask.has_value());
  attrs.set("masked", c.masked);
  attrs.set("p", c.p);
  attrs.set("position", c.position.has_value());
  attrs.set("scale", 1.5 / std::sqrt(static_cast<double>(c.d)));
  attrs.set("stream", int64_t{11});
  return attrs;
}

Operands qkv_of(const Case& c, DType dtype, RngStream& rng) {
  Operands out;
  for (const auto& [heads, rows, width] :
       {std::array<int64_t, 3>{c.heads, c.t, c.d}, {c.keys(), c.s, c.d}, {c.keys(), c.s, c.dv}}) {
    const Type type{dtype, {c.batch, heads, rows, width}};
    out.emplace_back(type, random_values(type.shape.elements(), -2, 2, rng));
  }
  return out;
}

Operands extras_of(const Case& c, RngStream& rng) {
  Operands out;
  if (c.position && c.apart_in_time) {
    std::vector<double> values;
    for (int64_t b = 0; b < c.batch; ++b)
      values.push_back(static_cast<double>(*c.position + 9 * b));
    out.push_back({{i32, {c.batch}}, values});
  } else if (c.position) {
    out.push_back({{i32, {}}, {static_cast<double>(*c.position)}});
  }
  if (c.mask) {
    auto values = random_values(c.mask->elements(), -2, 2, rng);
    if (c.mask_dtype == DType::boolean)
      for (size_t i = 0; i < values.size(); ++i) values[i] = i == 0 || values[i] > -0.5 ? 1 : 0;
    out.push_back({{c.mask_dtype, *c.mask}, values});
  }
  if (c.lengths) {
    auto values = random_values(c.batch, 1, static_cast<double>(c.s), rng);
    for (double& x : values) x = std::floor(x);
    out.push_back({{i32, {c.batch}}, values});
  }
  if (c.p > 0) out.push_back({{i32, {2}}, {17, -4}});
  return out;
}

Call forward_call(const Case& c, DType dtype) {
  RngStream rng({1, 2}, 3);
  Operands in = qkv_of(c, dtype, rng);
  for (auto& extra : extras_of(c, rng)) in.push_back(std::move(extra));
  return Call(op("attention"), std::move(in), attrs_of(c));
}

// y and lse as the forward gives them.
Call backward_call(const Case& c, DType dtype) {
  const auto wanted = forward_call(c, dtype).wanted();
  RngStream rng({1, 2}, 3);
  Operands in = qkv_of(c, dtype, rng);
  Operands extras = extras_of(c, rng);
  for (const RefTensor& t : wanted) in.emplace_back(t.type, t.data);
  in.emplace_back(wanted[0].type, random_values(wanted[0].type.shape.elements(), -1, 1, rng));
  for (auto& extra : extras) in.push_back(std::move(extra));
  Attrs attrs = attrs_of(c);
  attrs.set("dlse", c.dlse);
  if (c.dlse)
    in.emplace_back(wanted[1].type, random_values(wanted[1].type.shape.elements(), -1, 1, rng));
  return Call(op("attention_grad"), std::move(in), attrs);
}

/// Operands [B, H, T, D] side by side in rows, [B, T, sum of H D].
std::pair<Type, std::vector<double>> in_rows(const Operands& from,
                                             std::initializer_list<size_t> parts) {
  int64_t row = 0;
  for (const size_t i : parts) row += from[i].first.shape.size(1) * from[i].first.shape.size(3);
  const Shape& first = from[*parts.begin()].first.shape;
  std::vector<double> values(static_cast<size_t>(first.size(0) * first.size(2) * row));
  int64_t column = 0;
  for (const size_t i : parts) {
    const Shape& s = from[i].first.shape;
    size_t at = 0;
    for (int64_t b = 0; b < s.size(0); ++b)
      for (int64_t h = 0; h < s.size(1); ++h)
        for (int64_t t = 0; t < s.size(2); ++t)
          for (int64_t x = 0; x < s.size(3); ++x)
            values[static_cast<size_t>((b * s.size(2) + t) * row + column + h * s.size(3) + x)] =
                from[i].second[at++];
    column += s.size(1) * s.size(3);
  }
  return {Type{from[*parts.begin()].first.dtype, {first.size(0), first.size(2), row}}, values};
}

enum class Lie { apart, in_one, kv_in_one, v_in_rows };

/// The same call on operands that lie otherwise.
Call laid(const Call& call, Lie lie) {
  if (lie == Lie::apart) return call;
  const bool backward = is(call.node(), Op::attention_grad);
  Operands from;
  for (size_t i = 0; i < call.values.size(); ++i)
    from.emplace_back(call.view().in[i], call.values[i]);
  Attrs attrs = call.node().attrs;
  const auto columns = [&](size_t i) {
    return from[i].first.shape.size(1) * from[i].first.shape.size(3);
  };
  const auto place = [&](const char* name, int64_t source, int64_t column, int64_t rows) {
    attrs.set(name, std::vector<int64_t>{source, column, rows});
  };
  Operands in;
  if (lie == Lie::in_one) {
    in = {in_rows(from, {0, 1, 2})};
    place("q", 0, 0, 1), place("k", 0, columns(0), 1);
    place("v", 0, columns(0) + columns(1), 1);
  } else if (lie == Lie::kv_in_one) {
    in = {in_rows(from, {0}), in_rows(from, {2, 1})};
    place("q", 0, 0, 1), place("k", 1, columns(2), 1), place("v", 1, 0, 1);
  } else {
    in = {from[0], from[1], in_rows(from, {2})};
    place("v", 2, 0, 1);
  }
  const bool y_in_rows = lie != Lie::v_in_rows;
  attrs.set("y_in_rows", y_in_rows);
  if (backward) {
    in.push_back(y_in_rows ? in_rows(from, {3}) : from[3]);
    in.push_back(from[4]);
    in.push_back(y_in_rows ? in_rows(from, {5}) : from[5]);
  }
  in.insert(in.end(), from.begin() + (backward ? 6 : 3), from.end());
  return Call(*call.node().op, std::move(in), attrs);
}

double largest(const std::vector<double>& values) {
  double top = 0;
  for (double x : values) top = std::max(top, std::fabs(x));
  return top;
}

// The largest |a bᵀ| of [heads, T, n] and [heads / group, S, n].
double largest_product(const std::vector<double>& a, const std::vector<double>& b, int64_t t,
                       int64_t s, int64_t n, int64_t group) {
  double top = 0;
  const auto rows = static_cast<int64_t>(a.size()) / n;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t key = row / t / group * s; key < (row / t / group + 1) * s; ++key) {
      double dot = 0;
      for (int64_t j = 0; j < n; ++j)
        dot += a[static_cast<size_t>(row * n + j)] * b[static_cast<size_t>(key * n + j)];
      top = std::max(top, std::fabs(dot));
    }
  return top;
}

// What rounding is relative to: dq and dk are sums of p (dp - delta) k and q, which may cancel.
std::vector<double> magnitudes_of(const Call& apart) {
  if (!is(apart.node(), Op::attention_grad)) return {};
  const double scale = apart.node().attrs.get<double>("scale");
  const Shape q = apart.view().in[0].shape, v = apart.view().in[2].shape;
  const int64_t t = q.size(-2), s = v.size(-2), group = q.size(1) / v.size(1);
  const double score =
      scale * largest_product(apart.values[0], apart.values[1], t, s, q.size(-1), group);
  const double dp = largest_product(apart.values[5], apart.values[2], t, s, v.size(-1), group);
  const double spread = std::max(1.0, score);
  return {scale * dp * largest(apart.values[1]) * spread,
          scale * dp * largest(apart.values[0]) * spread, largest(apart.wanted()[2].data) * spread};
}

/// The magnitudes of a call whose operands lie otherwise: values side by side share the largest.
std::vector<double> magnitudes_of(const Call& apart, Lie lie) {
  const std::vector<double> m = magnitudes_of(apart);
  if (m.empty() || lie == Lie::apart || lie == Lie::v_in_rows) return m;
  if (lie == Lie::in_one) return {std::max({m[0], m[1], m[2]})};
  return {m[0], std::max(m[1], m[2])};
}

/// A call, and the same where its operands lie apart.
struct Checked {
  Call call;
  std::vector<double> magnitudes;
  Checked(const Call& apart, Lie lie)
      : call(laid(apart, lie)), magnitudes(magnitudes_of(apart, lie)) {}
};

void check(const Checked& checked, const KernelEntry& entry) {
  const Call& call = checked.call;
  SCOPED_TRACE(call.text());
  set_thread_count(2);
  const std::vector<Buffer> got = run_kernel(entry, call);
  const auto wanted = call.wanted();
  std::vector<double> magnitudes = checked.magnitudes;
  // Probabilities that tiles multiply are rounded as y will be: as far off again.
  if (entry.name == "flash_tiles" && magnitudes.empty())
    magnitudes = {2 * largest(wanted[0].data), largest(wanted[1].data)};
  expect_close(call, got, wanted, magnitudes);
  for (int threads : {1, 3}) {
    set_thread_count(threads);
    EXPECT_EQ(run_kernel(entry, call), got) << "with " << threads << " threads";
  }
  EXPECT_EQ(run_kernel(entry, call, 1), got) << "with other alignment";
}

void check(const Checked& checked) { check(checked, entry_of(checked.call)); }
void check(const Call& call) { check(Checked(call, Lie::apart)); }

/// Forward and backward, on operands apart and in another way.
std::vector<Checked> calls_of(const Case& c, DType dtype) {
  std::vector<Checked> calls;
  for (const Call& call : {forward_call(c, dtype), backward_call(c, dtype)}) {
    calls.emplace_back(call, Lie::apart);
    if (c.batch == 0 || c.t == 0) continue;
    const Lie other = c.s % 2 == 0 ? Lie::kv_in_one : Lie::v_in_rows;
    calls.emplace_back(call, c.t == c.s && !c.position ? Lie::in_one : other);
  }
  return calls;
}

void check_both(const Case& c, DType dtype = DType::f32) {
  for (const Checked& call : calls_of(c, dtype)) check(call);
}

TEST_P(AttentionKernels, LengthsAndWidthsOfEveryKind) {
  for (bool causal : {false, true})
    for (const auto& [t, s, d, dv] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1},
                                      {1, 97, 64, 64},
                                      {48, 96, 64, 64},
                                      {49, 193, 16, 32},
                                      {97, 97, 80, 80},
                                      {7, 389, 3, 5},
                                      {50, 103, 128, 40},
                                      {99, 2, 9, 100},
                                      {192, 192, 8, 16}})
      check_both({.t = t, .s = s, .d = d, .dv = dv, .causal = causal});
}

TEST_P(AttentionKernels, PositionsMasksLengthsAndDropout) {
  const std::vector<Case> cases = {
      {.t = 1, .s = 250, .d = 64, .dv = 64, .causal = true, .position = 130},
      {.t = 40, .s = 250, .d = 24, .dv = 24, .causal = true, .position = 77},
      {.t = 100, .s = 30, .d = 8, .dv = 8, .causal = true, .position = 500},
      {.t = 5, .s = 120, .d = 16, .dv = 16, .lengths = true, .batch = 3, .heads = 2},
      {.t = 130, .s = 110, .d = 16, .dv = 16, .causal = true, .lengths = true, .heads = 2},
      {.t = 30, .s = 130, .d = 8, .dv = 8, .mask = Shape{2, 1, 1, 130}},
      {.t = 30, .s = 130, .d = 8, .dv = 8, .mask = Shape{130}, .masked = -1e4},
      {.t = 130,
       .s = 110,
       .d = 8,
       .dv = 8,
       .causal = true,
       .mask = Shape{130, 110},
       .mask_dtype = DType::f32,
       .heads = 3},
      {.t = 130,
       .s = 110,
       .d = 8,
       .dv = 8,
       .mask = Shape{3, 1, 110},
       .mask_dtype = DType::bf16,
       .heads = 3},
      {.t = 110, .s = 130, .d = 8, .dv = 8, .mask = Shape{110, 1}, .mask_dtype = DType::f32},
      {.t = 110, .s = 131, .d = 8, .dv = 8, .causal = true, .p = 0.3, .heads = 2},
      {.t = 1, .s = 131, .d = 8, .dv = 8, .p = 0.3, .heads = 3},
      {.t = 99, .s = 131, .d = 40, .dv = 8, .mask = Shape{99, 131}, .p = 0.1, .masked = -2e4},
      {.t = 99,
       .s = 101,
       .d = 8,
       .dv = 8,
       .mask = Shape{99, 101},
       .mask_dtype = DType::f32,
       .p = 0.5,
       .dlse = true},
      {.t = 99, .s = 101, .d = 8, .dv = 8, .causal = true, .batch = 40, .dlse = true},
  };
  for (const Case& c : test::sampled_if_sanitized(cases, 5, "positions")) check_both(c);
}

TEST_P(AttentionKernels, HeadsThatShareKeysAndWindows) {
  const std::vector<Case> cases = {
      {.t = 99, .s = 99, .d = 16, .dv = 8, .causal = true, .heads = 6, .kv_heads = 2},
      {.t = 1,
       .s = 230,
       .d = 64,
       .dv = 24,
       .causal = true,
       .position = 200,
       .batch = 3,
       .heads = 8,
       .kv_heads = 4},
      {.t = 1, .s = 97, .d = 24, .dv = 24, .batch = 1, .heads = 50, .kv_heads = 1},
      {.t = 230,
       .s = 230,
       .d = 8,
       .dv = 8,
       .causal = true,
       .batch = 1,
       .heads = 2,
       .kv_heads = 1,
       .window = 70},
      {.t = 110, .s = 400, .d = 8, .dv = 8, .p = 0.3, .heads = 2, .kv_heads = 1, .window = 20},
      {.t = 70,
       .s = 450,
       .d = 16,
       .dv = 16,
       .causal = true,
       .position = 340,
       .mask = Shape{2, 1, 70, 450},
       .mask_dtype = DType::f32,
       .p = 0.2,
       .heads = 3,
       .window = 130},
      {.t = 70,
       .s = 250,
       .d = 8,
       .dv = 8,
       .causal = true,
       .position = 100,
       .mask = Shape{70, 250},
       .masked = -1e4,
       .batch = 3,
       .heads = 2,
       .window = 33,
       .apart_in_time = true},
      {.t = 1,
       .s = 500,
       .d = 32,
       .dv = 32,
       .causal = true,
       .position = 400,
       .batch = 4,
       .heads = 4,
       .kv_heads = 2,
       .window = 100,
       .apart_in_time = true},
      {.t = 60,
       .s = 200,
       .d = 8,
       .dv = 8,
       .causal = true,
       .position = 40,
       .batch = 3,
       .heads = 4,
       .kv_heads = 2,
       .apart_in_time = true,
       .dlse = true},
  };
  for (const Case& c : cases_for(cases, 4)) check_both(c);
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Case& c : test::sampled(cases, test::is_sanitized() ? 2 : 3, name_of(dtype)))
      check_both(c, dtype);
}

TEST_P(AttentionKernels, BatchWithoutElements) {
  check_both({.t = 3, .s = 4, .d = 8, .dv = 8, .batch = 0});
  check_both({.t = 0, .s = 4, .d = 8, .dv = 8});
}

TEST_P(AttentionKernels, SixteenBits) {
  const std::vector<Case> cases = {
      {.t = 130, .s = 110, .d = 64, .dv = 64, .causal = true, .position = 3},
      {.t = 97, .s = 97, .d = 80, .dv = 80, .causal = true, .batch = 33},
      {.t = 100, .s = 99, .d = 7, .dv = 9, .mask = Shape{100, 99}, .p = 0.2},
      {.t = 1, .s = 130, .d = 64, .dv = 64, .causal = true, .position = 100}};
  for (const Case& c : cases_for(cases, 2))
    for (DType dtype : {DType::bf16, DType::f16}) check_both(c, dtype);
}

// The kernels on tiles, emulated or where the machine has them: the same everything in bf16.
void check_tiles(const Case& c) {
  for (const Checked& checked : calls_of(c, DType::bf16))
    for (const TileUnit unit :
         {TileUnit::emulated_amx, TileUnit::emulated_pairs, TileUnit::pairs}) {
      if (unit == TileUnit::pairs && !has_bf16_pairs()) continue;
      const bool forward = is(checked.call.node(), Op::attention);
      const KernelEntry entry{checked.call.node().op->id, "flash_tiles",
                              [](const NodeView&) { return std::string(); },
                              [forward, unit](const NodeView& node) {
                                return forward ? attention_forward_tiles(node, unit)
                                               : attention_backward_tiles(node, unit);
                              }};
      check(checked, entry);
    }
}

TEST_P(AttentionKernels, TilesOfEveryLengthAndWidth) {
  std::vector<Case> cases;
  for (bool causal : {false, true})
    for (const auto& [t, s, d, dv] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 1, 1, 1},
                                      {64, 128, 64, 64},
                                      {80, 128, 64, 32},  // rows are read where they lie
                                      {65, 193, 16, 48},
                                      {97, 97, 80, 80},
                                      {7, 389, 3, 5},
                                      {50, 130, 128, 40},
                                      {99, 2, 9, 100}})
      cases.push_back({.t = t, .s = s, .d = d, .dv = dv, .causal = causal});
  for (const Case& c : cases_for(cases, 5)) check_tiles(c);
}

TEST_P(AttentionKernels, SideBySide) {
  const std::vector<Case> cases = {
      {.t = 1, .s = 1, .d = 5, .dv = 5, .heads = 3},
      {.t = 99, .s = 99, .d = 16, .dv = 16, .causal = true, .heads = 3, .dlse = true},
      {.t = 200, .s = 200, .d = 7, .dv = 7, .lengths = true, .p = 0.2, .heads = 2},
      {.t = 97, .s = 97, .d = 64, .dv = 64, .mask = Shape{2, 1, 1, 97}, .batch = 2, .heads = 2},
      {.t = 50, .s = 50, .d = 8, .dv = 8, .causal = true, .batch = 20, .heads = 3},
      {.t = 60, .s = 60, .d = 16, .dv = 16, .batch = 1, .heads = 64},  // rows in few sets
  };
  for (const Case& c : cases_for(cases, 2))
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) check_both(c, dtype);
}

TEST_P(AttentionKernels, TilesOfHeadsThatShareKeysAndWindows) {
  const std::vector<Case> cases = {
      {.t = 99, .s = 99, .d = 16, .dv = 8, .causal = true, .heads = 6, .kv_heads = 2},
      {.t = 1,
       .s = 230,
       .d = 64,
       .dv = 24,
       .causal = true,
       .position = 200,
       .batch = 3,
       .heads = 8,
       .kv_heads = 4},
      {.t = 230,
       .s = 230,
       .d = 8,
       .dv = 8,
       .causal = true,
       .batch = 1,
       .heads = 2,
       .kv_heads = 1,
       .window = 70},
      {.t = 70,
       .s = 450,
       .d = 16,
       .dv = 16,
       .causal = true,
       .position = 340,
       .p = 0.2,
       .batch = 3,
       .heads = 2,
       .window = 130,
       .apart_in_time = true},
  };
  for (const Case& c : cases_for(cases, 3)) check_tiles(c);
}

TEST_P(AttentionKernels, TilesWithoutQueries) {
  check_tiles({.t = 0, .s = 4, .d = 8, .dv = 8});
  check_tiles({.t = 3, .s = 4, .d = 8, .dv = 8, .batch = 0});
}

TEST_P(AttentionKernels, TilesSideBySide) {
  std::vector<Case> cases;
  for (const bool causal : {false, true})
    for (const auto& [t, d, heads] : {std::tuple<int64_t, int64_t, int64_t>{64, 64, 3},
                                      {16, 32, 64},  // rows fall into few sets of a cache
                                      {65, 16, 2},
                                      {130, 80, 2},
                                      {33, 5, 3}})
      cases.push_back(
          {.t = t, .s = t, .d = d, .dv = d, .causal = causal, .batch = 1, .heads = heads});
  cases.push_back(
      {.t = 70, .s = 70, .d = 32, .dv = 32, .lengths = true, .p = 0.1, .heads = 2, .dlse = true});
  for (const Case& c : cases_for(cases, 3)) check_tiles(c);
}

TEST_P(AttentionKernels, TilesWithMasksLengthsAndDropout) {
  const std::vector<Case> cases = {
      {.t = 40, .s = 250, .d = 24, .dv = 24, .causal = true, .position = 77},
      {.t = 130, .s = 110, .d = 16, .dv = 16, .causal = true, .lengths = true, .heads = 2},
      {.t = 30, .s = 130, .d = 8, .dv = 8, .mask = Shape{130}, .masked = -1e4},
      {.t = 70, .s = 131, .d = 32, .dv = 8, .causal = true, .batch = 35},
      {.t = 70,
       .s = 131,
       .d = 32,
       .dv = 8,
       .mask = Shape{70, 131},
       .mask_dtype = DType::f32,
       .p = 0.1,
       .dlse = true}};
  for (const Case& c : test::sampled_if_sanitized(cases, 2, "masks")) check_tiles(c);
}

/// With p = 1 and delta = 0 the gradient of a score is that of its probability, rounded.
TEST_P(AttentionKernels, NarrowGradientsAreRounded) {
  const float tiny = std::numeric_limits<float>::min(), inf = INFINITY, nan = NAN;
  const std::vector<float> dp = {
      0.0f,          -0.0f, 1.0f,   1.00390625f, 1.01171875f,
      -1.005859375f, 3e38f, inf,    -inf,        nan,
      tiny,          -tiny, 1e-39f, -1e-39f,     std::nextafter(tiny, 0.0f),
      1e-45f,        0.1f,  2.5f,   -7.75f};
  const auto n = static_cast<int64_t>(dp.size());
  std::vector<float> scores(dp.size(), 0.5f);
  std::vector<uint16_t> weights(dp.size() + 3, 7), ds = weights;
  cpu::ScoreRow row{.scores = scores.data(), .factor = 2.0f, .n = n + 2, .visible = n};
  cpu::attention_rows().backward_narrow(row, 1.0f, 0.0f, dp.data(), weights.data(), ds.data());
  for (size_t i = 0; i < dp.size(); ++i) {
    const float flushed = std::abs(dp[i]) < tiny ? std::copysign(0.0f, dp[i]) : dp[i];
    EXPECT_EQ(ds[i], bf16_from_float(flushed)) << dp[i];
    EXPECT_EQ(weights[i], bf16_from_float(1.0f));
  }
  for (const auto& out : {weights, ds}) {
    EXPECT_EQ(out[dp.size()], 0) << "what is hidden";
    EXPECT_EQ(out[dp.size() + 1], 0);
    EXPECT_EQ(out[dp.size() + 2], 7) << "what is beyond";
  }
}

// A query that sees no key is NaN; its neighbours are not.
TEST_P(AttentionKernels, QueriesThatSeeNothing) {
  check(forward_call({.t = 130, .s = 140, .d = 8, .dv = 8, .causal = true, .position = -5},
                     DType::f32));
  Case c{.t = 4, .s = 100, .d = 8, .dv = 8, .mask = Shape{4, 100}, .mask_dtype = DType::f32};
  RngStream rng({1, 2}, 3);
  Operands in = qkv_of(c, DType::f32, rng);
  in.push_back({{f32, {4, 100}}, std::vector<double>(400, 0)});
  for (size_t i = 0; i < 100; ++i) {
    in[3].second[100 + i] = -INFINITY;                // nothing
    in[3].second[200 + i] = i == 99 ? 0 : -INFINITY;  // the last block only
    in[3].second[300 + i] = i == 0 ? 0 : -INFINITY;   // the first key only
  }
  check(Call(op("attention"), in, attrs_of(c)));
}

TEST(AttentionErrors, RefusalsHaveAReason) {
  for (const auto& [c, dtype, reason] :
       {std::tuple<Case, DType, const char*>{
            {.t = 2, .s = 2, .d = 4, .dv = 4}, DType::f64, "dtype f64: only f32, bf16 and f16"},
        {{.t = 2, .s = 2, .d = 513, .dv = 4},
         DType::f32,
         "a head width of 513 and 4: only 1 to 512"},
        {{.t = 2, .s = 0, .d = 4, .dv = 4}, DType::f32, "no keys"}}) {
    const Call call = forward_call(c, dtype);
    for (const KernelEntry& entry : attention_kernels())
      if (entry.name == "flash") {
        EXPECT_EQ(entry.accepts(call.view()), reason);
      }
  }
}

}  // namespace
}  // namespace brrr::cpu
