#include "models/gpt_neox/gpt_neox.h"

#include <cmath>

#include "base/errors.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

// Streams of the dropout generator: 0 for the embedding, then three for each layer.
int64_t neox_stream(int64_t layer, int64_t which) { return 1 + 3 * layer + which; }

Value activated(Value x, NeoxActivation activation) {
  switch (activation) {
    case NeoxActivation::gelu:
      return gelu(x, Gelu::erf);
    case NeoxActivation::gelu_new:
      return gelu(x, Gelu::tanh);
    case NeoxActivation::relu:
      return relu(x);
    case NeoxActivation::silu:
      break;
  }
  return silu(x);
}

/// What all layers share.
struct NeoxPositions {
  RotaryTables tables;
  Value rows;                  // i32[T]: where each row of tokens stands
  std::optional<Value> first;  // i32[]: where the first does; absent: 0
};

/// q, k and v of all heads as attention reads them: each lies in one of the sources, its heads side
/// by side from a column on.
struct NeoxHeads {
  std::vector<Value> sources;
  HeadPlace q, k, v;
};

/// What an attention layer does with its keys and values, columns [C, 3 C) of x: [B, T, 3 C].
using NeoxCache = std::function<NeoxHeads(int64_t layer, Value x)>;

struct NeoxBlock {
  NeoxBlock(Graph& g, const GptNeoxConfig& c, const std::string& name)
      : input_norm(g, name + ".input_layernorm", c.hidden_size, c.layer_norm_eps),
        mlp_norm(g, name + ".post_attention_layernorm", c.hidden_size, c.layer_norm_eps),
        query_key_value(g, name + ".attention.query_key_value", c.hidden_size, 3 * c.hidden_size,
                        c.attention_bias),
        dense(g, name + ".attention.dense", c.hidden_size, c.hidden_size, c.attention_bias),
        up(g, name + ".mlp.dense_h_to_4h", c.hidden_size, c.intermediate_size, true),
        down(g, name + ".mlp.dense_4h_to_h", c.intermediate_size, c.hidden_size, true) {}

  /// x: [B, T, C]. Returns [B, T, 3 C]: the heads of q, those of k, both turned, and those of v.
  /// The product has q, k and v of the first head, then those of the second; one move puts all q
  /// first.
  Value turned_heads(Value x, const NeoxPositions& at, const GptNeoxConfig& c) const {
    x = query_key_value(x);
    const Shape rows = x.shape();
    const Dim b = rows[0], t = rows[1], h(c.num_attention_heads), d(c.head_width());
    x = transpose(reshape(x, {b, t, h, 3, d}), {0, 1, 3, 2, 4});
    x = reshape(x, {b, t, Dim(3 * c.num_attention_heads), d});
    x = rotary(x, at.rows, at.tables.cos, at.tables.sin, {.heads = 2 * c.num_attention_heads});
    return reshape(x, rows);
  }

  Value attend(Value x, int64_t layer, const NeoxPositions& at, const GptNeoxConfig& c,
               const std::optional<Value>& rng_key, const NeoxCache& keep) const {
    const NeoxHeads heads = keep(layer, turned_heads(input_norm(x), at, c));
    const AttentionPlaces places{.heads = c.num_attention_heads,
                                 .kv_heads = c.num_attention_heads,
                                 .width = c.head_width(),
                                 .value_width = c.head_width(),
                                 .q = heads.q,
                                 .k = heads.k,
                                 .v = heads.v,
                                 .y_in_rows = true};
    AttentionOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(c.head_width()));
    options.causal = true;
    options.position = at.first;
    if (rng_key && c.attention_dropout > 0) {
      options.p = c.attention_dropout;
      options.key = rng_key;
    }
    options.stream = neox_stream(layer, 0);
    return dense(attention(heads.sources, places, options).y);
  }

  Value mlp(Value x, const GptNeoxConfig& c) const {
    return down(activated(up(mlp_norm(x)), c.hidden_act));
  }

  LayerNorm input_norm, mlp_norm;
  Projection query_key_value, dense, up, down;
};

class GptNeox {
 public:
  GptNeox(Graph& g, const GptNeoxConfig& config, std::optional<Value> rng_key = std::nullopt)
      : g_(g), c_(config), rng_key_(rng_key) {
    c_.validate();
    embed_ = g.parameter("gpt_neox.embed_in.weight", {c_.vocab_size, c_.hidden_size});
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer)
      blocks_.emplace_back(g, c_, fmt::format("gpt_neox.layers.{}", layer));
    norm_.emplace(g, "gpt_neox.final_layer_norm", c_.hidden_size, c_.layer_norm_eps);
    if (!c_.tie_word_embeddings)
      head_ = g.parameter("lm_head.weight", {c_.vocab_size, c_.hidden_size});
  }

  /// tokens: [B, T] i32, of which the first stands at `first`; the tables have `positions` rows.
  /// Returns [B, T, C], before the last norm.
  Value trunk(Value tokens, int64_t positions, std::optional<Value> first,
              const NeoxCache& keep) const {
    const Dropout drop(rng_key_, c_.hidden_dropout);
    Value x;
    NeoxPositions at;
    {
      Scope scope(g_, "embed");
      x = drop(embedding(*embed_, tokens), 0);
      at.tables = rotary_tables(g_, c_.rope, c_.rotated_width(), positions);
      at.rows = iota(g_, {tokens.shape()[1]}, 0);
      if (first) at.rows = at.rows + *first;
      at.first = first;
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const NeoxBlock& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      const Value before = x;
      {
        Scope scope(g_, "attn");
        x = x + drop(block.attend(x, i, at, c_, rng_key_, keep), neox_stream(i, 1));
      }
      Scope scope(g_, "mlp");
      x = x + drop(block.mlp(c_.use_parallel_residual ? before : x, c_), neox_stream(i, 2));
    }
    return x;
  }
  Value logits(Value x) const {
    Value y = (*norm_)(x);
    Scope scope(g_, "lm_head");
    return matmul(y, head_ ? *head_ : *embed_, false, true);
  }

 private:
  Graph& g_;
  GptNeoxConfig c_;
  std::optional<Value> rng_key_;
  std::optional<Value> embed_, head_;
  std::vector<NeoxBlock> blocks_;
  std::optional<LayerNorm> norm_;
};

void check_neox_length(Dim length, const GptNeoxConfig& c) {
  if (length.is_symbol() || length.size() > c.max_position_embeddings)
    user_error(
        "[gpt_neox] the length must be known and at most max_position_embeddings = {}; got {}",
        c.max_position_embeddings, length.str());
}

/// Without a cache all three lie in one source.
NeoxCache no_cache(int64_t width) {
  return [width](int64_t, Value x) {
    return NeoxHeads{{x}, {0, 0, true}, {0, width, true}, {0, 2 * width, true}};
  };
}

}  // namespace

Graph gpt_neox_loss_graph(const GptNeoxConfig& config, int64_t batch, int64_t length) {
  check_neox_length(Dim(length), config);
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  Value targets = g.input("targets", {batch, length}, DType::i32);
  Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (config.attention_dropout > 0 || config.hidden_dropout > 0)
    key = g.input("rng_key", {2}, DType::i32);
  const GptNeox model(g, config, key);
  Value logits =
      model.logits(model.trunk(tokens, length, std::nullopt, no_cache(config.hidden_size)));
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0, 1}) * scale);
  return g;
}

Graph gpt_neox_logits_graph(const GptNeoxConfig& config, Dim batch, Dim length) {
  check_neox_length(length, config);
  Graph g;
  Value tokens = g.input("tokens", {batch, length}, DType::i32);
  const GptNeox model(g, config);
  g.output("logits", model.logits(model.trunk(tokens, length.size(), std::nullopt,
                                              no_cache(config.hidden_size))));
  return g;
}

Graph gpt_neox_decode_graph(const GptNeoxConfig& config, const DecodeBinding& binding) {
  if (binding.capacity < 1 || binding.capacity > config.max_position_embeddings)
    user_error("[gpt_neox] the cache must have room for 1 to {} positions; got {}",
               config.max_position_embeddings, binding.capacity);
  Graph g;
  Value tokens = g.input("tokens", {binding.batch, binding.length}, DType::i32);
  Value position = g.input("position", {}, DType::i32);
  const GptNeox model(g, config);
  const int64_t width = config.hidden_size;
  // Keys are kept as they were turned; a row of the cache is that of a position.
  const NeoxCache keep = [&](int64_t layer, Value x) {
    NeoxHeads heads{{x}, {0, 0, true}, {1, 0, true}, {2, 0, true}};
    for (const char* name : {"k", "v"}) {
      const auto which = static_cast<int64_t>(heads.sources.size());
      Value cache = g.input(fmt::format("cache.{}.{}", name, layer),
                            {binding.batch, binding.capacity, width}, binding.cache, Role::cache);
      Value part = cast(slice(x, -1, which * width, width), binding.cache);
      Value grown = update_slice(cache, part, position, 1);
      g.update(cache, grown);
      heads.sources.push_back(cast(grown, x.dtype()));
    }
    return heads;
  };
  Value x = model.trunk(tokens, binding.capacity, position, keep);
  x = reshape(slice(x, 1, binding.length - 1, 1), {binding.batch, width});
  g.output("logits", model.logits(x));
  return g;
}

}  // namespace brrr::models
