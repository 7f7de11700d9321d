// GPT-2 (Radford et al. 2019) and its variants: pre-norm blocks, learned positions, tanh GELU,
// the head usually tied to the token embedding. Weights of Linear layers are [in, out]. Attention
// of padded rows is written as a formula, in which a pass finds the attention op.
#include <cmath>
#include <string>

#include "models/gpt2/gpt2_config.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

// Streams of the dropout generator: 0 for the embedding, then three for each layer.
int64_t stream_of(int64_t layer, int64_t which) { return 1 + 3 * layer + which; }

struct Heads {
  Value q, k, v;  // [B, H, T, D]
};

struct Gpt2Block {
  Gpt2Block(Parameters& p, const std::string& name, const Gpt2Config& c)
      : ln_1(p, name + ".ln_1", c.n_embd, c.layer_norm_epsilon, c.bias),
        c_attn(p, name + ".attn.c_attn", c.n_embd, 3 * c.n_embd, c.bias, p.deviation()),
        c_proj(p, name + ".attn.c_proj", c.n_embd, c.n_embd, c.bias, into_stream(c)),
        ln_2(p, name + ".ln_2", c.n_embd, c.layer_norm_epsilon, c.bias),
        mlp_fc(p, name + ".mlp.c_fc", c.n_embd, c.mlp_width(), c.bias, p.deviation()),
        mlp_proj(p, name + ".mlp.c_proj", c.mlp_width(), c.n_embd, c.bias, into_stream(c)) {}

  // What is added to the residual stream is smaller, the more layers add to it (Radford et al.).
  static double into_stream(const Gpt2Config& c) {
    return c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.n_layer));
  }

  // [B, T, C] -> three of [B, H, T, D]: one move puts q, k and v in front, so that they are slices
  // of it without a copy.
  Heads split(Value x, const Gpt2Config& c) const {
    const Dim b = x.shape()[0], t = x.shape()[1];
    const Dim h(c.n_head), d(c.head_width());
    Value parts = transpose(reshape(c_attn(x), {b, t, 3, h, d}), {2, 0, 3, 1, 4});
    auto part = [&](int64_t i) { return reshape(slice(parts, 0, i, 1), {b, h, t, d}); };
    return {part(0), part(1), part(2)};
  }

  // softmax(scale q kᵀ + padding where visible) v, heads joined again. q: [B, H, T, D], k and
  // v: [B, H, S, D], visible: [T, S] bool. Returns [B, T, C].
  Value attend(Heads x, Value visible, const std::optional<Value>& padding, const Gpt2Config& c,
               const Dropout& drop, int64_t layer) const {
    Graph& g = *x.q.graph;
    const Dim b = x.q.shape()[0], t = x.q.shape()[2];
    Value q = x.q * scale_of(c, layer);
    Value scores = matmul(q, x.k, false, true);
    if (padding) scores = scores + *padding;
    Value p = softmax(where(visible, scores, scalar(g, -INFINITY)));
    Value y = matmul(drop(p, stream_of(layer, 0)), x.v);
    return c_proj(reshape(transpose(y, {0, 2, 1, 3}), {b, t, Dim(c.n_embd)}));
  }

  // Attention of concatenated sequences. x: [N, C].
  Value attend_flat(Value x, const CausalRows& rows, const Gpt2Config& c,
                    const std::optional<Value>& rng_key, int64_t layer) const {
    const HeadSources heads = heads_in_one(rows, layer, c_attn(x), c.head_width());
    AttentionPlaces places = heads_in_rows(c.n_head, c.n_head, c.head_width());
    places.q = heads.q, places.k = heads.k, places.v = heads.v;
    AttentionOptions options = rows.attention(scale_of(c, layer));
    options.p = rng_key ? c.attn_pdrop : 0;
    options.key = rng_key;
    options.stream = stream_of(layer, 0);
    return c_proj(attention(heads.sources, places, options).y);
  }

  static double scale_of(const Gpt2Config& c, int64_t layer) {
    double scale = 1;
    if (c.scale_attn_weights) scale /= std::sqrt(static_cast<double>(c.head_width()));
    if (c.scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
    return scale;
  }

  Value mlp(Value x, const Gpt2Config& c) const {
    return mlp_proj(activated(mlp_fc(x), c.activation));
  }

  LayerNorm ln_1;
  Linear c_attn, c_proj;
  LayerNorm ln_2;
  Linear mlp_fc, mlp_proj;
};

class Gpt2 final : public CausalStack<Gpt2Block, LayerNorm> {
 public:
  Gpt2(Parameters& p, const Gpt2Config& config, std::optional<Value> rng_key, CausalHead head)
      : CausalStack(p, "transformer.wte.weight", config.vocab_size, config.n_embd, head),
        c_(config),
        rng_key_(rng_key),
        wpe_(p.table("transformer.wpe.weight", {config.n_positions, config.n_embd})) {
    for (int64_t i = 0; i < c_.n_layer; ++i) add_block(p, "transformer.h", c_);
    finish(p, head, "transformer.ln_f", c_.n_embd, c_.layer_norm_epsilon, c_.bias);
  }

  Value trunk(const CausalRows& rows) const override {
    auto [x, visible] = begin(rows);
    const Dropout attention_dropout(rng_key_, c_.attn_pdrop), dropout(rng_key_, c_.resid_pdrop);
    for (int64_t i = 0; i < c_.n_layer; ++i) {
      const Gpt2Block& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        Value y = block.ln_1(x);
        if (rows.is_flat()) {
          y = block.attend_flat(y, rows, c_, rng_key_, i);
        } else {
          Heads heads = block.split(y, c_);
          heads.k = rows.append_to_cache("key", i, heads.k, c_.head_width());
          heads.v = rows.append_to_cache("value", i, heads.v, c_.head_width());
          y = block.attend(heads, *visible, rows.padding, c_, attention_dropout, i);
        }
        x = x + dropout(y, stream_of(i, 1));
      }
      Scope scope(g_, "mlp");
      x = x + dropout(block.mlp(block.ln_2(x), c_), stream_of(i, 2));
    }
    return x;
  }

 private:
  struct Begin {
    Value x;  // [B, T, C] or [N, C]
    /// [T, positions] bool: which keys each query sees. Flat rows have none.
    std::optional<Value> visible;
  };
  Begin begin(const CausalRows& rows) const {
    if (rows.is_flat())
      return {embed(rows.tokens, embedding(wpe_, *rows.position_ids)), std::nullopt};
    const Dim t = rows.length();
    if (!rows.first && !rows.position_ids && !t.is_symbol()) {
      Value x = embed(rows.tokens, slice(wpe_, 0, 0, rows.positions));
      Value queries = iota(g_, {t, 1}, 0), keys = iota(g_, {1, t}, 1);
      return {x, less_equal(keys, queries)};
    }
    Value places = rows.places();
    Value x = embed(rows.tokens, embedding(wpe_, rows.positions_of_rows()));
    Value keys = iota(g_, {Dim(1), rows.has_cache() ? Dim(rows.positions) : t}, 1);
    return {x, less_equal(keys, reshape(places, {t, 1}))};
  }
  Value embed(Value tokens, Value positions) const {
    Scope scope(g_, "embed");
    return Dropout(rng_key_, c_.embd_pdrop)(embedding(embed_, tokens) + positions, 0);
  }

  const Gpt2Config& c_;
  std::optional<Value> rng_key_;
  Value wpe_;
};

}  // namespace

std::unique_ptr<CausalNet> Gpt2Config::net(Parameters& p, std::optional<Value> rng_key,
                                           CausalHead head) const {
  return std::make_unique<Gpt2>(p, *this, rng_key, head);
}

}  // namespace brrr::models
