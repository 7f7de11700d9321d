#include "models/rotary_attention.h"

#include <array>

#include "models/configured_model.h"

namespace brrr::models {

RotaryAttention::RotaryAttention(Parameters& p, const std::string& name,
                                 const RotaryAttentionSizes& s)
    : s_(s),
      q_(p, name + ".q_proj", s.width, s.heads * s.head_width, s.qkv_bias),
      k_(p, name + ".k_proj", s.width, s.kv_heads * s.head_width, s.qkv_bias),
      v_(p, name + ".v_proj", s.width, s.kv_heads * s.head_width, s.qkv_bias) {
  if (s.qk_norm) {
    q_norm_.emplace(p, name + ".q_norm", s.head_width, s.norm_eps, s.norm_scale);
    k_norm_.emplace(p, name + ".k_norm", s.head_width, s.norm_eps, s.norm_scale);
  }
  output_.emplace(p, name + ".o_proj", s.heads * s.head_width, s.width, s.output_bias);
}

/// Applies the norm of q or of k to each head, where there is one, then the rotary embedding.
/// x: [..., T, heads * D].
Value RotaryAttention::rotated(Value x, const std::optional<RmsNorm>& norm,
                               const RotaryPositions& at) const {
  const Shape rows = x.shape();
  Shape heads = rows;
  heads[-1] = Dim(rows.size(-1) / s_.head_width);
  heads.push_back(Dim(s_.head_width));
  x = reshape(x, heads);
  if (norm) x = (*norm)(x);
  return reshape(rotary(x, at.places, at.tables.cos, at.tables.sin), rows);
}

Value RotaryAttention::operator()(Value x, int64_t layer, int64_t window, const CausalRows& rows,
                                  const RotaryPositions& at,
                                  const std::optional<Value>& rng_key) const {
  Value q = rotated(q_(x), q_norm_, at), k = rotated(k_(x), k_norm_, at), v = v_(x);
  k = rows.append_to_cache("key", layer, k, s_.head_width);
  v = rows.append_to_cache("value", layer, v, s_.head_width);
  AttentionOptions options = rows.attention(s_.scale, window);
  options.p = rng_key ? s_.dropout : 0;
  options.key = rng_key;
  options.stream = layer;
  const std::array<Value, 3> sources{q, k, v};
  const AttentionPlaces places = heads_in_rows(s_.heads, s_.kv_heads, s_.head_width);
  return (*output_)(attention(sources, places, options).y);
}

void complete_heads(int64_t width, int64_t heads, int64_t& kv_heads, int64_t& head_width) {
  if (head_width == 0) {
    check_heads_divide(width, heads);
    head_width = width / heads;
  }
  if (kv_heads == 0) kv_heads = heads;
  if (heads % kv_heads != 0)
    usage_error("n-head must be a multiple of num-key-value-heads; got n-head {} and {}", heads,
                kv_heads);
  if (head_width % 2 != 0)
    usage_error("the width of a head must be even, for rotary embeddings; got {}", head_width);
}

void check_groups(const ConfigLimits& limits, int64_t heads, int64_t kv_heads, int64_t head_width) {
  limits.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads);
  if (head_width % 2 != 0) limits.fail("head_dim", "even, for rotary embeddings", head_width);
  limits.size("num_attention_heads * head_dim", heads * head_width, 1 << 20);
}

std::vector<bool> read_layer_types(const ConfigReader& keys) {
  using namespace layer_kinds;
  std::vector<bool> slides;
  for (const std::string& kind : keys.strings("layer_types")) {
    if (kind != kSliding && kind != kFull)
      user_error("{}: layer_types may hold {} and {}; found {}", keys.what(), kFull, kSliding,
                 io::in_quotes(kind));
    slides.push_back(kind == kSliding);
  }
  return slides;
}

io::Json written_layer_types(int64_t layers, const std::function<bool(int64_t layer)>& slides) {
  io::Json kinds = io::Json::array();
  for (int64_t layer = 0; layer < layers; ++layer)
    kinds.push_back(slides(layer) ? layer_kinds::kSliding : layer_kinds::kFull);
  return kinds;
}

FileNames rotary_file_names(bool is_tied) {
  FileNames names;
  names.prefix = "model.";
  names.trunk = {"layers.", "embed_tokens.", "norm."};
  names.is_buffer = [](std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); };
  if (is_tied) names.tied = {"lm_head.weight", "model.embed_tokens.weight"};
  return names;
}

}  // namespace brrr::models
