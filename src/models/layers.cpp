#include "models/layers.h"

namespace brrr::models {

namespace {

std::optional<Value> bias_if(bool wanted, Parameters& p, const std::string& name, int64_t width) {
  if (!wanted) return std::nullopt;
  return p.bias(name + ".bias", width);
}

}  // namespace

Linear::Linear(Parameters& p, const std::string& name, int64_t in, int64_t out, bool bias,
               double deviation)
    : weight_(p.weight(name + ".weight", {in, out}, deviation)),
      bias_(bias_if(bias, p, name, out)) {}

Value Linear::operator()(Value x) const {
  return bias_ ? linear(x, weight_, *bias_) : matmul(x, weight_);
}

Projection::Projection(Parameters& p, const std::string& name, int64_t in, int64_t out, bool bias)
    : weight_(p.weight(name + ".weight", {out, in})), bias_(bias_if(bias, p, name, out)) {}

Value Projection::operator()(Value x) const {
  const Value y = matmul(x, weight_, false, true);
  return bias_ ? y + *bias_ : y;
}

LayerNorm::LayerNorm(Parameters& p, const std::string& name, int64_t width, double eps, bool bias)
    : weight_(p.vector(name + ".weight", width, Fill::Kind::ones)),
      bias_(bias_if(bias, p, name, width)),
      eps_(eps) {}

Value LayerNorm::operator()(Value x) const {
  Value shift = bias_ ? *bias_ : full(*x.graph, weight_.shape(), 0, weight_.dtype());
  return layer_norm(x, weight_, shift, eps_).y;
}

RmsNorm::RmsNorm(Parameters& p, const std::string& name, int64_t width, double eps, Scale scale)
    : weight_(p.vector(name + ".weight", width,
                       scale == Scale::weight ? Fill::Kind::ones : Fill::Kind::zeros)),
      eps_(eps),
      scale_(scale) {}

Value RmsNorm::operator()(Value x) const {
  return rms_norm(x, scale_ == Scale::weight ? weight_ : weight_ + 1.0, eps_).y;
}

GatedMlp::GatedMlp(Parameters& p, const std::string& name, int64_t width, int64_t inner, bool bias,
                   Activation activation)
    : gate_(p, name + ".gate_proj", width, inner, bias),
      up_(p, name + ".up_proj", width, inner, bias),
      down_(p, name + ".down_proj", inner, width, bias),
      activation_(activation) {}

Value GatedMlp::operator()(Value x) const {
  return down_(activated(gate_(x), activation_) * up_(x));
}

AttentionPlaces heads_in_rows(int64_t heads, int64_t kv_heads, int64_t width) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .width = width,
          .value_width = width,
          .q = {0, 0, true},
          .k = {1, 0, true},
          .v = {2, 0, true},
          .y_in_rows = true};
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
