#pragma once
// Ops that run regions: `if` and `loop`.

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr {

/// The results of `then` where condition: bool[] is true, else those of `otherwise`. Both regions
/// have `captured` as their inputs and results of the same types.
std::vector<Value> branch(Value condition, const Region& then, const Region& otherwise,
                          std::span<const Value> captured);

struct LoopResults {
  std::vector<Value> carried;  // after the last iteration
  std::vector<Value> stacked;  // [bound, ...]: a row of each iteration, zeros behind the last
  Value iterations;            // i32[]: how many there were
};
struct LoopEnd {
  int64_t bound = 0;            // iterations at most
  bool fails_at_bound = false;  // whether it is an error when the condition still holds then
};
/// Runs `body` as long as the condition holds. Body: (iteration i32[], carried..., captured...) ->
/// (condition of the next iteration bool[], carried..., rows to stack...).
LoopResults loop(Value condition, const Region& body, std::span<const Value> carried,
                 std::span<const Value> captured, LoopEnd end);

/// A loop node whose operands and attributes infer has checked: operand 0 is the condition of the
/// first iteration, the carried values follow, then the captured ones.
struct LoopForm {
  const Graph& body;
  LoopEnd end;
  size_t carried = 0, stacked = 0;

  explicit LoopForm(const Node& node);
  /// After the last iteration: throws UserError where the condition must not hold any more.
  void check_end(bool condition) const;
};

}  // namespace brrr
