#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "models/layers.h"
#include "models/modernbert/modernbert_config.h"

namespace brrr::models {
namespace {

/// Standard deviation of weights that add to the residual stream; deeper models have a smaller one.
double deviation_of_outputs(const ModernBertConfig& c) {
  return c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.num_hidden_layers));
}

/// A Projection whose weights are initialised with a standard deviation of its own.
Projection projection(Parameters& p, const std::string& name, int64_t in, int64_t out, bool bias,
                      double deviation) {
  const double before = p.deviation();
  p.set_deviation(deviation);
  Projection made(p, name, in, out, bias);
  p.set_deviation(before);
  return made;
}

LayerNorm norm_of(Parameters& p, const std::string& name, const ModernBertConfig& c) {
  return {p, name, c.hidden_size, c.norm_eps, c.norm_bias};
}

struct ModernBertBlock {
  ModernBertBlock(Parameters& p, const std::string& name, const ModernBertConfig& c, bool is_first)
      : qkv(p, name + "attn.Wqkv", c.hidden_size, 3 * c.hidden_size, c.attention_bias),
        attention_output(projection(p, name + "attn.Wo", c.hidden_size, c.hidden_size,
                                    c.attention_bias, deviation_of_outputs(c))),
        mlp_norm(norm_of(p, name + "mlp_norm", c)),
        up(p, name + "mlp.Wi", c.hidden_size, 2 * c.intermediate_size, c.mlp_bias),
        down(projection(p, name + "mlp.Wo", c.intermediate_size, c.hidden_size, c.mlp_bias,
                        deviation_of_outputs(c))) {
    if (!is_first) attention_norm.emplace(norm_of(p, name + "attn_norm", c));
  }

  std::optional<LayerNorm> attention_norm;  // the first layer has none: its input is a norm's
  Projection qkv, attention_output;
  LayerNorm mlp_norm;
  Projection up;  // the columns that the activation takes, then the gates
  Projection down;
};

class ModernBert final : public EncoderNet {
 public:
  ModernBert(Parameters& p, const ModernBertConfig& config, std::optional<Value> rng_key)
      : g_(p.graph()),
        c_(config),
        rng_key_(rng_key),
        embedding_dropout_(rng_key, config.embedding_dropout),
        attention_dropout_(rng_key, config.attention_dropout),
        mlp_dropout_(rng_key, config.mlp_dropout),
        head_dropout_(rng_key, config.classifier_dropout) {
    const bool is_multiplied = c_.task.head == Head::masked_token && c_.tie_word_embeddings;
    p.set_place("embed");
    words_ = p.table("model.embeddings.tok_embeddings.weight", {c_.vocab_size, c_.hidden_size},
                     is_multiplied);
    embedding_norm_.emplace(norm_of(p, "model.embeddings.norm", c_));
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      p.set_place(fmt::format("h.{}", layer));
      blocks_.emplace_back(p, fmt::format("model.layers.{}.", layer), c_, layer == 0);
    }
    p.set_place("norm");
    final_norm_.emplace(norm_of(p, "model.final_norm", c_));
    p.set_place("head");
    declare_head(p);
  }

  Value trunk(const EncoderRows& rows) const override {
    Value x;
    RotaryPositions global, local;
    {
      Scope scope(g_, "embed");
      x = embedding_dropout_((*embedding_norm_)(embedding(*words_, rows.tokens)),
                             stream(0, kEmbedding));
      global = positions(c_.global_rope, rows);
      local = positions(c_.local_rope, rows);
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const ModernBertBlock& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        const Value y = block.attention_norm ? (*block.attention_norm)(x) : x;
        x = x + attend(block, y, i, rows, c_.slides_in(i) ? local : global);
      }
      Scope scope(g_, "mlp");
      x = x + mlp(block, block.mlp_norm(x), i);
    }
    Scope scope(g_, "norm");
    return (*final_norm_)(x);
  }

  Value token_logits(Value x) const override {
    Scope scope(g_, "lm_head");
    const Value y = matmul(transformed(x), *decoder_, false, true);
    return decoder_bias_ ? y + *decoder_bias_ : y;
  }

  Value text_logits(Value pooled) const override {
    Scope scope(g_, "classifier");
    return (*output_)(head_dropout_(transformed(pooled), stream(0, kHead)));
  }

  Value tag_logits(Value x) const override {
    Scope scope(g_, "classifier");
    return (*output_)(head_dropout_(transformed(x), stream(0, kHead)));
  }

 private:
  // Streams of dropout: three of each layer, and those of the rest behind them.
  enum Stream : int64_t { kScores, kAttention, kMlp, kEmbedding, kHead };
  int64_t stream(int64_t layer, Stream part) const {
    return part <= kMlp ? 3 * layer + part : 3 * c_.num_hidden_layers + part;
  }

  void declare_head(Parameters& p) {
    const int64_t C = c_.hidden_size;
    const Head head = c_.task.head;
    if (head == Head::embedding) return;
    // These learn in pre-training, and every task goes on from them.
    p.set_part(head == Head::masked_token ? Part::head : Part::pooler);
    head_dense_.emplace(
        projection(p, "head.dense", C, C, c_.classifier_bias, deviation_of_outputs(c_)));
    head_norm_.emplace(norm_of(p, "head.norm", c_));
    p.set_part(Part::head);
    if (head != Head::masked_token) {
      output_.emplace(projection(p, "classifier", C, std::ssize(c_.task.labels), true,
                                 1 / std::sqrt(static_cast<double>(C))));
      return;
    }
    decoder_ = c_.tie_word_embeddings
                   ? *words_
                   : p.weight("decoder.weight", {c_.vocab_size, C}, deviation_of_outputs(c_));
    if (c_.decoder_bias) decoder_bias_ = p.bias("decoder.bias", c_.vocab_size);
  }

  /// The dense layer, activation and norm that all heads share.
  Value transformed(Value x) const {
    return (*head_norm_)(activated((*head_dense_)(x), c_.classifier_activation));
  }

  /// y: [..., C], rows of texts.
  Value attend(const ModernBertBlock& block, Value y, int64_t layer, const EncoderRows& rows,
               const RotaryPositions& at) const {
    const int64_t C = c_.hidden_size, H = c_.num_attention_heads, D = C / H;
    Value qkv = block.qkv(y);  // [..., 3 C]: the heads of q, of k and of v
    const Shape columns = qkv.shape();
    Shape heads = columns;
    heads[-1] = Dim(3 * H);
    heads.push_back(Dim(D));
    qkv = rotary(reshape(qkv, heads), at.places, at.tables.cos, at.tables.sin, {.heads = 2 * H});
    qkv = reshape(qkv, columns);
    const AttentionPlaces places{.heads = H,
                                 .kv_heads = H,
                                 .width = D,
                                 .value_width = D,
                                 .q = {0, 0, true},
                                 .k = {0, C, true},
                                 .v = {0, 2 * C, true},
                                 .y_in_rows = true};
    AttentionOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(D));
    options.starts = rows.starts;
    if (c_.slides_in(layer)) {
      const int64_t reach = c_.local_attention / 2;  // keys on each side
      options.window = reach + 1;
      options.window_after = reach;
      if (!rows.is_flat()) options.mask = hidden_padding(is_real(rows));
    } else if (rows.is_real) {
      options.mask = hidden_padding(*rows.is_real);
    } else {
      options.lengths = rows.lengths;
    }
    options.p = rng_key_ ? c_.attention_dropout : 0;
    options.key = rng_key_;
    options.stream = stream(layer, kScores);
    const Value summed = attention(std::span(&qkv, 1), places, options).y;
    return attention_dropout_(block.attention_output(summed), stream(layer, kAttention));
  }

  /// GeGLU (Shazeer 2020).
  Value mlp(const ModernBertBlock& block, Value x, int64_t layer) const {
    const Value both = block.up(x);
    const Value input = slice(both, -1, 0, c_.intermediate_size);
    const Value gate = slice(both, -1, c_.intermediate_size, c_.intermediate_size);
    const Value y = activated(input, c_.hidden_activation) * gate;
    return block.down(mlp_dropout_(y, stream(layer, kMlp)));
  }

  /// bool [B, T]. A window may leave a row of padding no real key, and then {lengths} gave NaN,
  /// which reaches the gradients of weights.
  Value is_real(const EncoderRows& rows) const {
    if (rows.is_real) return *rows.is_real;
    return less(iota(g_, {Dim(1), rows.length()}, 1),
                reshape(*rows.lengths, {rows.batch(), Dim(1)}));
  }

  RotaryPositions positions(const RopeConfig& rope, const EncoderRows& rows) const {
    // No text has more tokens than all texts together. A file for other runtimes takes any length.
    const Dim tokens = rows.is_flat() ? rows.tokens.shape()[0] : rows.length();
    const bool is_open = rows.is_real || tokens.is_symbol();
    const int64_t longest =
        is_open ? c_.max_position_embeddings : std::min(tokens.size(), c_.max_position_embeddings);
    return {rotary_tables(g_, rope, c_.hidden_size / c_.num_attention_heads, longest),
            rows.positions ? *rows.positions : iota(g_, {rows.length()}, 0)};
  }

  Graph& g_;
  const ModernBertConfig& c_;
  std::optional<Value> rng_key_;
  Dropout embedding_dropout_, attention_dropout_, mlp_dropout_, head_dropout_;
  std::optional<Value> words_, decoder_, decoder_bias_;
  std::optional<LayerNorm> embedding_norm_, final_norm_, head_norm_;
  std::vector<ModernBertBlock> blocks_;
  std::optional<Projection> head_dense_, output_;
};

}  // namespace

std::unique_ptr<EncoderNet> modernbert_net(Parameters& p, const ModernBertConfig& config,
                                           std::optional<Value> rng_key) {
  return std::make_unique<ModernBert>(p, config, rng_key);
}

}  // namespace brrr::models
