#include "models/layers.h"

namespace brrr::models {

Linear::Linear(Graph& g, const std::string& name, int64_t in, int64_t out, bool bias)
    : weight_(g.parameter(name + ".weight", {in, out})) {
  if (bias) bias_ = g.parameter(name + ".bias", {out});
}

Value Linear::operator()(Value x) const {
  return bias_ ? linear(x, weight_, *bias_) : matmul(x, weight_);
}

Projection::Projection(Graph& g, const std::string& name, int64_t in, int64_t out, bool bias)
    : weight_(g.parameter(name + ".weight", {out, in})) {
  if (bias) bias_ = g.parameter(name + ".bias", {out});
}

Value Projection::operator()(Value x) const {
  const Value y = matmul(x, weight_, false, true);
  return bias_ ? y + *bias_ : y;
}

LayerNorm::LayerNorm(Graph& g, const std::string& name, int64_t width, double eps, bool bias)
    : weight_(g.parameter(name + ".weight", {width})), eps_(eps) {
  if (bias) bias_ = g.parameter(name + ".bias", {width});
}

Value LayerNorm::operator()(Value x) const {
  Value shift = bias_ ? *bias_ : full(*x.graph, weight_.shape(), 0, weight_.dtype());
  return layer_norm(x, weight_, shift, eps_).y;
}

Value hidden_padding(Value is_real) {
  constexpr double kHidden = -1e30;
  Graph& g = *is_real.graph;
  const Value added = where(is_real, scalar(g, 0), scalar(g, kHidden));
  return reshape(added, {is_real.shape()[0], Dim(1), Dim(1), is_real.shape()[1]});
}

RotaryTables rotary_tables(Graph& g, const RopeConfig& config, int64_t width, int64_t positions) {
  const RopeFrequencies f = rope_frequencies(config, width);
  Value angles =
      iota(g, {positions, 1}, 0, DType::f32) *
      literal(g, {1, width / 2}, {f.radians_per_position.begin(), f.radians_per_position.end()});
  Value c = cos(angles), s = sin(angles);
  if (f.scale != 1) c = c * f.scale, s = s * f.scale;
  return {c, s};
}

}  // namespace brrr::models
