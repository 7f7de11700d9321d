#pragma once
// Layers: each declares its parameters in a graph under a dotted name and builds nodes when called.
// Layers know no device and hold no numbers.

#include <optional>
#include <string>

#include "models/activation.h"
#include "models/parameters.h"
#include "models/rope.h"
#include "ops/ops.h"

namespace brrr::models {

/// y = x w + b. x: [..., K], w: [K, N] (Hugging Face's Conv1D layout), b: [N] or none.
class Linear {
 public:
  Linear(Parameters& p, const std::string& name, int64_t in, int64_t out, bool bias,
         double deviation);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
};

/// y = x wᵀ + b. x: [..., K], w: [N, K] (the layout of PyTorch's Linear), b: [N] or none.
class Projection {
 public:
  Projection(Parameters& p, const std::string& name, int64_t in, int64_t out, bool bias);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
};

/// Layer normalisation over the last axis; without `bias` the shift is zero.
class LayerNorm {
 public:
  LayerNorm(Parameters& p, const std::string& name, int64_t width, double eps, bool bias = true);
  Value operator()(Value x) const;

 private:
  Value weight_;
  std::optional<Value> bias_;
  double eps_;
};

/// x divided by the root of its mean square over the last axis, times w, or times 1 + w.
class RmsNorm {
 public:
  enum class Scale { weight, one_plus_weight };
  RmsNorm(Parameters& p, const std::string& name, int64_t width, double eps,
          Scale scale = Scale::weight);
  Value operator()(Value x) const;

 private:
  Value weight_;
  double eps_;
  Scale scale_;
};

/// y = down(activation(gate(x)) * up(x)), without biases unless `bias` (SwiGLU, GeGLU).
class GatedMlp {
 public:
  GatedMlp(Parameters& p, const std::string& name, int64_t width, int64_t inner, bool bias,
           Activation activation);
  Value operator()(Value x) const;

 private:
  Projection gate_, up_, down_;
  Activation activation_;
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

/// What all layers share: the tables, and where the rows stand.
struct RotaryPositions {
  RotaryTables tables;
  Value places;  // i32[T] or i32[B, T]
};

/// The heads of q, k and v side by side in the rows of three sources: [B, T, heads * width].
AttentionPlaces heads_in_rows(int64_t heads, int64_t kv_heads, int64_t width);

/// is_real: bool [B, S]. Returns f32 [B, 1, 1, S], which added to scores hides padding. It is
/// finite: a query that sees nothing else must not become NaN.
Value hidden_padding(Value is_real);

}  // namespace brrr::models
