#pragma once
// Calls of attention that every kernel of it must get right: every option, lengths that fill no
// tile, both head widths of the matrix unit.

#include <cmath>
#include <utility>
#include <vector>

#include "backend/kernel_runner.h"
#include "support/attention_attrs.h"

namespace brrr::cuda {

using test::Buffer;
using test::Call;

inline Sample::Operand operand(Shape shape, double low = -1, double high = 1,
                               DType dtype = DType::f32) {
  return {{dtype, std::move(shape)}, low, high};
}

struct Case {
  int64_t heads, queries, keys, width;
  bool causal = false, position = false, mask = false, added_mask = false, lengths = false;
  double p = 0;
  bool dlse = false;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t window = 0;
  bool positions = false;  // the heads are sequences, each with a position of its own
};

inline const Case kCases[] = {
    {.heads = 2, .queries = 64, .keys = 64, .width = 64, .causal = true},
    {.heads = 2, .queries = 100, .keys = 100, .width = 64, .causal = true, .dlse = true},
    {.heads = 1, .queries = 130, .keys = 130, .width = 128, .causal = true},
    {.heads = 1, .queries = 200, .keys = 200, .width = 64, .causal = true, .p = 0.3},
    {.heads = 2, .queries = 3, .keys = 150, .width = 64, .causal = true, .position = true},
    {.heads = 3, .queries = 65, .keys = 33, .width = 64},
    {.heads = 2, .queries = 70, .keys = 90, .width = 128, .mask = true},
    {.heads = 2, .queries = 70, .keys = 90, .width = 64, .added_mask = true, .p = 0.5},
    {.heads = 3, .queries = 70, .keys = 90, .width = 64, .lengths = true},
    {.heads = 1, .queries = 1, .keys = 1, .width = 128},
    {.heads = 1, .queries = 130, .keys = 900, .width = 64},
    {.heads = 3, .queries = 390, .keys = 390, .width = 64, .causal = true},
    {.heads = 2, .queries = 40, .keys = 50, .width = 48, .causal = true},
};

/// What only the simple kernel computes.
inline const Case kSimpleCases[] = {
    {.heads = 6, .queries = 70, .keys = 70, .width = 64, .causal = true, .kv_heads = 2},
    {.heads = 4, .queries = 33, .keys = 90, .width = 16, .p = 0.3, .dlse = true, .kv_heads = 1},
    {.heads = 2, .queries = 150, .keys = 150, .width = 64, .causal = true, .window = 40},
    {.heads = 2, .queries = 75, .keys = 130, .width = 8, .added_mask = true, .window = 5},
    {.heads = 3, .queries = 40, .keys = 150, .width = 64, .causal = true, .positions = true},
    {.heads = 3,
     .queries = 40,
     .keys = 190,
     .width = 32,
     .causal = true,
     .window = 33,
     .positions = true},
};

inline Call call_of(const Case& c, DType t, bool backward) {
  // Positions and lengths are of sequences.
  const bool sequences = c.lengths || c.positions;
  const int64_t heads = sequences ? 1 : c.heads;
  const int64_t kv_heads = c.kv_heads > 0 ? c.kv_heads : heads;
  Shape q{heads, c.queries, c.width}, k{kv_heads, c.keys, c.width}, rows{heads, c.queries};
  if (sequences)
    for (Shape* shape : {&q, &k, &rows}) shape->insert(0, Dim(c.heads));
  Sample s{{operand(q, -1, 1, t), operand(k, -1, 1, t), operand(k, -1, 1, t)},
           test::attention_attrs(heads, kv_heads, c.width, c.width)};
  s.attrs.set("causal", c.causal);
  s.attrs.set("lengths", c.lengths);
  s.attrs.set("mask", c.mask || c.added_mask);
  s.attrs.set("p", c.p);
  s.attrs.set("position", c.position || c.positions);
  s.attrs.set("stream", int64_t{5});
  s.attrs.set("window", c.window);
  if (backward) {
    s.in.push_back(operand(q, -1, 1, t));
    s.in.push_back(operand(rows, 2, 4));
    s.in.push_back(operand(q, -1, 1, t));
    s.attrs.set("dlse", c.dlse);
  }
  if (c.position) s.in.push_back(operand({}, 100, 110, DType::i32));
  if (c.positions) s.in.push_back(operand({c.heads}, 0, 110, DType::i32));
  if (c.mask) s.in.push_back(operand({c.queries, c.keys}, 0, 2, DType::boolean));
  if (c.added_mask) s.in.push_back(operand({c.heads, 1, c.keys}));
  if (c.lengths) s.in.push_back(operand({c.heads}, 1, static_cast<double>(c.keys) + 1, DType::i32));
  if (c.p > 0) s.in.push_back(operand({2}, 0, 1000, DType::i32));
  if (backward && c.dlse) s.in.push_back(operand(rows));
  return Call(op(backward ? "attention_grad" : "attention"), s);
}

/// Probabilities and their gradients are rounded to 16 bits before they are multiplied: terms of
/// the size of v (or of the gradients) with an error of half a unit, twice.
inline std::vector<double> magnitudes(const Call& call, const std::vector<RefTensor>& wanted,
                                      bool backward) {
  std::vector<double> m;
  for (const RefTensor& t : wanted) {
    double largest = 0;
    for (double x : t.data) largest = std::max(largest, std::isfinite(x) ? std::fabs(x) : 0);
    m.push_back(backward ? 2 * largest : std::max(1.0, largest));
  }
  (void)call;
  return m;
}

/// q, k and v side by side: several batch entries and heads, so that every stride counts.
struct PackedCase {
  int64_t batches, length, heads, width;
  bool causal = false, mask = false, added_mask = false, lengths = false;
  double p = 0;
  bool dlse = false;
};

inline const PackedCase kPackedCases[] = {
    {.batches = 2, .length = 64, .heads = 2, .width = 64, .causal = true},
    {.batches = 2, .length = 75, .heads = 3, .width = 64, .causal = true, .dlse = true},
    {.batches = 1, .length = 131, .heads = 2, .width = 128, .causal = true},
    {.batches = 1, .length = 150, .heads = 2, .width = 64, .causal = true, .p = 0.3},
    {.batches = 2, .length = 70, .heads = 2, .width = 64, .mask = true},
    {.batches = 2, .length = 70, .heads = 2, .width = 64, .added_mask = true, .p = 0.5},
    {.batches = 3, .length = 33, .heads = 2, .width = 64, .causal = true, .lengths = true},
    {.batches = 3, .length = 1, .heads = 1, .width = 128},
    {.batches = 2, .length = 40, .heads = 3, .width = 48, .causal = true},
    {.batches = 2, .length = 37, .heads = 3, .width = 5},
};

inline Call call_of(const PackedCase& c, DType t, bool backward) {
  const int64_t all = c.heads * c.width;
  const Shape y{c.batches, c.length, all}, rows{c.batches, c.heads, c.length};
  Sample s{{operand({c.batches, c.length, 3 * all}, -1, 1, t)},
           test::attention_in_one(c.heads, c.width)};
  s.attrs.set("causal", c.causal);
  s.attrs.set("lengths", c.lengths);
  s.attrs.set("mask", c.mask || c.added_mask);
  s.attrs.set("p", c.p);
  s.attrs.set("stream", int64_t{5});
  if (backward) {
    s.in.push_back(operand(y, -1, 1, t));
    s.in.push_back(operand(rows, 2, 4));
    s.in.push_back(operand(y, -1, 1, t));
    s.attrs.set("dlse", c.dlse);
  }
  if (c.mask) s.in.push_back(operand({c.length, c.length}, 0, 2, DType::boolean));
  if (c.added_mask) s.in.push_back(operand({c.batches, 1, 1, c.length}));
  if (c.lengths)
    s.in.push_back(operand({c.batches}, 1, static_cast<double>(c.length) + 1, DType::i32));
  if (c.p > 0) s.in.push_back(operand({2}, 0, 1000, DType::i32));
  if (backward && c.dlse) s.in.push_back(operand(rows));
  return Call(op(backward ? "attention_grad" : "attention"), s);
}

}  // namespace brrr::cuda
