#pragma once
// Attributes of attention for tests that write the node themselves.

#include <cmath>

#include "ops/ops.h"

namespace brrr::test {

/// No mask, no dropout; q, k and v are three operands [..., H, T, D], [..., K, S, D], [..., K, S,
/// Dv].
inline Attrs attention_attrs(int64_t heads, int64_t kv_heads, int64_t width, int64_t value_width) {
  using Place = std::vector<int64_t>;
  return {{"causal", false},
          {"heads", heads},
          {"k", Place{1, 0, 0}},
          {"kv_heads", kv_heads},
          {"lengths", false},
          {"mask", false},
          {"masked", -INFINITY},
          {"p", 0.0},
          {"position", false},
          {"q", Place{0, 0, 0}},
          {"scale", 1 / std::sqrt(static_cast<double>(width))},
          {"stream", int64_t{0}},
          {"v", Place{2, 0, 0}},
          {"value_width", value_width},
          {"width", width},
          {"window", int64_t{0}},
          {"y_in_rows", false}};
}

/// The same where one operand [..., T, H D + K D + K Dv] has all three in its rows.
inline Attrs attention_in_one(int64_t heads, int64_t kv_heads, int64_t width, int64_t value_width) {
  using Place = std::vector<int64_t>;
  Attrs attrs = attention_attrs(heads, kv_heads, width, value_width);
  attrs.set("q", Place{0, 0, 1});
  attrs.set("k", Place{0, heads * width, 1});
  attrs.set("v", Place{0, (heads + kv_heads) * width, 1});
  attrs.set("y_in_rows", true);
  return attrs;
}
inline Attrs attention_in_one(int64_t heads, int64_t width) {
  return attention_in_one(heads, heads, width, width);
}

}  // namespace brrr::test
