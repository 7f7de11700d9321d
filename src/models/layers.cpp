#include "models/layers.h"

namespace brrr::models {

Linear::Linear(Graph& g, const std::string& name, int64_t in, int64_t out, bool bias)
    : weight_(g.parameter(name + ".weight", {in, out})) {
  if (bias) bias_ = g.parameter(name + ".bias", {out});
}

Value Linear::operator()(Value x) const {
  return bias_ ? linear(x, weight_, *bias_) : matmul(x, weight_);
}

LayerNorm::LayerNorm(Graph& g, const std::string& name, int64_t width, double eps, bool bias)
    : weight_(g.parameter(name + ".weight", {width})), eps_(eps) {
  if (bias) bias_ = g.parameter(name + ".bias", {width});
}

Value LayerNorm::operator()(Value x) const {
  Value shift = bias_ ? *bias_ : full(*x.graph, weight_.shape(), 0, weight_.dtype());
  return layer_norm(x, weight_, shift, eps_).y;
}

}  // namespace brrr::models
