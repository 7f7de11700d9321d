#pragma once
// Layers: each declares its parameters in a graph under a dotted name and builds nodes when called.
// Layers know no device and hold no numbers.

#include <optional>
#include <string>

#include "models/rope.h"
#include "ops/ops.h"

namespace brrr::models {

/// y = x w + b. x: [..., K], w: [K, N] (Hugging Face's Conv1D layout), b: [N] or none.
class Linear {
 public:
  Linear(Graph& g, const std::string& name, int64_t in, int64_t out, bool bias = true);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
};

/// y = x wᵀ + b. x: [..., K], w: [N, K] (the layout of PyTorch's Linear), b: [N] or none.
class Projection {
 public:
  Projection(Graph& g, const std::string& name, int64_t in, int64_t out, bool bias);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
};

/// Layer normalisation over the last axis; without `bias` the shift is zero.
class LayerNorm {
 public:
  LayerNorm(Graph& g, const std::string& name, int64_t width, double eps, bool bias = true);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
  double eps_;
};

/// Dropout that draws its masks from `key` (i32[2]: seed, step); every call is a stream of its own.
class Dropout {
 public:
  Dropout(std::optional<Value> key, double p) : key_(key), p_(p) {}
  Value operator()(Value x, int64_t stream) const {
    return key_ && p_ > 0 ? dropout(x, *key_, p_, stream) : x;
  }

 private:
  std::optional<Value> key_;
  double p_;
};

/// What rotary() turns by: [positions, width / 2] f32. Constants, because they depend on no input.
struct RotaryTables {
  Value cos, sin;
};
RotaryTables rotary_tables(Graph& g, const RopeConfig& config, int64_t width, int64_t positions);

/// is_real: bool [B, S]. Returns f32 [B, 1, 1, S], which added to scores hides padding. It is
/// finite: a query that sees nothing else must not become NaN.
Value hidden_padding(Value is_real);

}  // namespace brrr::models
