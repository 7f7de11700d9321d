// GPT-NeoX (Black et al. 2022): one product for q, k and v, rotary positions in a part of each
// head, and attention and MLP side by side.
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt_neox/gpt_neox_config.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

// Streams of the dropout generator: 0 for the embedding, then three for each layer.
int64_t neox_stream(int64_t layer, int64_t which) { return 1 + 3 * layer + which; }

struct NeoxBlock {
  NeoxBlock(Parameters& p, const std::string& name, const GptNeoxConfig& c)
      : input_norm(p, name + ".input_layernorm", c.hidden_size, c.layer_norm_eps),
        mlp_norm(p, name + ".post_attention_layernorm", c.hidden_size, c.layer_norm_eps),
        query_key_value(p, name + ".attention.query_key_value", c.hidden_size, 3 * c.hidden_size,
                        c.attention_bias),
        dense(p, name + ".attention.dense", c.hidden_size, c.hidden_size, c.attention_bias),
        up(p, name + ".mlp.dense_h_to_4h", c.hidden_size, c.intermediate_size, true),
        down(p, name + ".mlp.dense_4h_to_h", c.intermediate_size, c.hidden_size, true) {}

  /// x: [..., C]. Returns [..., 3 C]: the rotated heads of q, those of k, and the heads of v. The
  /// weights interleave q, k and v by head, so a transpose separates them first.
  Value turned_heads(Value x, const RotaryPositions& at, const GptNeoxConfig& c) const {
    x = query_key_value(x);
    const Shape rows = x.shape();
    const Dim d(c.head_width());
    Shape by_head = rows.without_last(1), side_by_side = by_head;
    for (const Dim& dim : {Dim(c.num_attention_heads), Dim(3), d}) by_head.push_back(dim);
    for (const Dim& dim : {Dim(3 * c.num_attention_heads), d}) side_by_side.push_back(dim);
    std::vector<int64_t> axes(static_cast<size_t>(by_head.rank()));
    std::iota(axes.begin(), axes.end(), 0);
    std::swap(axes[axes.size() - 3], axes[axes.size() - 2]);
    x = reshape(transpose(reshape(x, by_head), axes), side_by_side);
    x = rotary(x, at.places, at.tables.cos, at.tables.sin, {.heads = 2 * c.num_attention_heads});
    return reshape(x, rows);
  }

  Value attend(Value x, int64_t layer, const CausalRows& rows, const RotaryPositions& at,
               const GptNeoxConfig& c, const std::optional<Value>& rng_key) const {
    const HeadSources heads =
        heads_in_one(rows, layer, turned_heads(input_norm(x), at, c), c.head_width());
    AttentionPlaces places =
        heads_in_rows(c.num_attention_heads, c.num_attention_heads, c.head_width());
    places.q = heads.q, places.k = heads.k, places.v = heads.v;
    AttentionOptions options = rows.attention(1 / std::sqrt(static_cast<double>(c.head_width())));
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

class GptNeox final : public CausalStack<NeoxBlock, LayerNorm> {
 public:
  GptNeox(Parameters& p, const GptNeoxConfig& config, std::optional<Value> rng_key, CausalHead head)
      : CausalStack(p, "gpt_neox.embed_in.weight", config.vocab_size, config.hidden_size, head),
        c_(config),
        rng_key_(rng_key) {
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) add_block(p, "gpt_neox.layers", c_);
    finish(p, head, "gpt_neox.final_layer_norm", c_.hidden_size, c_.layer_norm_eps);
  }

  Value trunk(const CausalRows& rows) const override {
    const Dropout drop(rng_key_, c_.hidden_dropout);
    Value x;
    RotaryPositions at;
    {
      Scope scope(g_, "embed");
      x = drop(embedding(embed_, rows.tokens), 0);
      at = {rotary_tables(g_, c_.rope, c_.rotated_width(),
                          rows.table_rows(longest_context(c_.rope, c_.max_position_embeddings))),
            rows.positions_of_rows()};
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const NeoxBlock& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      const Value before = x;
      {
        Scope scope(g_, "attn");
        x = x + drop(block.attend(x, i, rows, at, c_, rng_key_), neox_stream(i, 1));
      }
      Scope scope(g_, "mlp");
      x = x + drop(block.mlp(c_.use_parallel_residual ? before : x, c_), neox_stream(i, 2));
    }
    return x;
  }

 private:
  const GptNeoxConfig& c_;
  std::optional<Value> rng_key_;
};

}  // namespace

std::unique_ptr<CausalNet> GptNeoxConfig::net(Parameters& p, std::optional<Value> rng_key,
                                              CausalHead head) const {
  return std::make_unique<GptNeox>(p, *this, rng_key, head);
}

}  // namespace brrr::models
