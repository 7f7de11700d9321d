#pragma once
// Small GPT-2s for tests: loss graphs, and inputs on which they neither saturate nor vanish.

#include "models/gpt2/gpt2_config.h"
#include "support/tensors.h"

namespace brrr::test {

inline models::Gpt2Config tiny_gpt2(bool bias = true, double dropout = 0) {
  models::Gpt2Config c;
  c.vocab_size = 13;
  c.n_positions = 8;
  c.n_embd = 12;
  c.n_layer = 2;
  c.n_head = 3;
  c.bias = bias;
  c.resid_pdrop = c.embd_pdrop = c.attn_pdrop = dropout;
  return c;
}

/// Values for every input of a loss graph; norm weights near 1, one target ignored.
inline reference::Tensors gpt2_inputs(const Graph& graph, const models::Gpt2Config& config,
                                      uint32_t seed) {
  reference::Tensors in = random_inputs(graph, seed, -0.5, 0.5, config.vocab_size);
  for (auto& [name, t] : in)
    if (name.find(".ln_") != std::string::npos && name.ends_with(".weight"))
      for (double& x : t.data) x += 1;
  if (in.contains("targets")) in["targets"].data.back() = -1;
  if (in.contains("loss_scale")) in["loss_scale"].data = {0.25};
  return in;
}

/// Weights as small as a new model's, so that a rounding stays as small as it was.
inline void cool_weights(reference::Tensors& in) {
  for (auto& [name, t] : in)
    if (t.type.shape.rank() == 2 && name.ends_with(".weight"))
      for (double& x : t.data) x *= 0.1;
}

/// The largest difference between two results, relative to the largest value; infinity when names
/// or types differ.
inline double difference(const reference::Tensors& a, const reference::Tensors& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (const auto& [name, x] : a) {
    const auto at = b.find(name);
    if (at == b.end() || !(at->second.type == x.type)) return INFINITY;
    double top = 1e-300, gap = 0;
    if (!is_float(x.type.dtype) && !(x == at->second)) return INFINITY;
    for (size_t i = 0; i < x.data.size(); ++i) {
      const double y = at->second.data[i];
      if (std::isnan(x.data[i]) && std::isnan(y)) continue;
      if (x.data[i] == y) continue;
      top = std::max({top, std::fabs(x.data[i]), std::fabs(y)});
      gap = std::max(gap, std::fabs(x.data[i] - y));
      if (std::isnan(x.data[i]) != std::isnan(y)) return INFINITY;
    }
    worst = std::max(worst, gap / top);
  }
  return worst;
}

}  // namespace brrr::test
