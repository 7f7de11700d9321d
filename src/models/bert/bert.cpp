#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "models/bert/bert_config.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

struct BertBlock {
  BertBlock(Parameters& p, const std::string& layer, const BertConfig& c, const BertNames& n)
      : query(p, layer + n.query, c.hidden_size, c.hidden_size, true),
        key(p, layer + n.key, c.hidden_size, c.hidden_size, true),
        value(p, layer + n.value, c.hidden_size, c.hidden_size, true),
        attention_output(p, layer + n.attention_output, c.hidden_size, c.hidden_size, true),
        attention_norm(p, layer + n.attention_norm, c.hidden_size, c.layer_norm_eps),
        up(p, layer + n.up, c.hidden_size, c.intermediate_size, true),
        down(p, layer + n.down, c.intermediate_size, c.hidden_size, true),
        output_norm(p, layer + n.output_norm, c.hidden_size, c.layer_norm_eps) {}

  Projection query, key, value, attention_output;
  LayerNorm attention_norm;
  Projection up, down;
  LayerNorm output_norm;
};

/// The head for masked tokens.
struct TokenHead {
  TokenHead(Parameters& p, const BertConfig& c, const BertNames& n, Value embedding)
      : transform(p, n.transform, c.hidden_size, c.hidden_size, true),
        norm(p, n.transform_norm, c.hidden_size, c.layer_norm_eps),
        table(c.tie_word_embeddings ? embedding
                                    : p.weight(n.decoder + ".weight", embedding.shape())),
        bias(p.bias(n.bias_of_decoder(c.tie_word_embeddings), c.vocab_size)) {}

  Projection transform;
  LayerNorm norm;
  Value table, bias;
};

/// The bucket of T5's relative positions (Raffel et al. 2020) for the key `distance` behind the
/// query: half of the buckets for each direction, the nearer half of those one distance each, the
/// rest logarithmic up to 128.
int64_t bucket_of(int64_t distance, int64_t buckets) {
  constexpr double kFarthest = 128;
  const int64_t half = buckets / 2, exact = half / 2;
  const int64_t side = distance > 0 ? half : 0;
  const int64_t far = std::abs(distance);
  if (far < exact) return side + far;
  // In f32, as the published code computes it: which distance begins a bucket depends on it.
  const float share = std::log(static_cast<float>(far) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(kFarthest / static_cast<double>(exact)));
  const auto beyond = static_cast<int64_t>(share * static_cast<float>(half - exact));
  return side + std::min(exact + beyond, half - 1);
}

class Bert final : public EncoderNet {
 public:
  Bert(Parameters& p, const BertConfig& config, std::optional<Value> rng_key)
      : g_(p.graph()),
        c_(config),
        n_(names_of(config.type)),
        rng_key_(rng_key),
        hidden_dropout_(rng_key, config.hidden_dropout_prob),
        head_dropout_(rng_key, config.classifier_dropout) {
    const int64_t C = c_.hidden_size;
    const std::string embeddings = n_.prefix + "embeddings.";
    const bool is_multiplied = c_.task.head == Head::masked_token && c_.tie_word_embeddings;
    p.set_place("embed");
    words_ = p.table(embeddings + "word_embeddings.weight", {c_.vocab_size, C}, is_multiplied);
    positions_ =
        p.table(embeddings + "position_embeddings.weight", {c_.max_position_embeddings, C});
    if (c_.type_vocab_size > 0)
      types_ = p.table(embeddings + "token_type_embeddings.weight", {c_.type_vocab_size, C});
    embedding_norm_.emplace(p, embeddings + "LayerNorm", C, c_.layer_norm_eps);
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      p.set_place(fmt::format("h.{}", layer));
      blocks_.emplace_back(p, fmt::format("{}{}.{}.", n_.prefix, n_.layers, layer), c_, n_);
    }
    p.set_place("embed");
    if (c_.type == BertType::mpnet)
      distance_bias_ = p.table(n_.prefix + "encoder.relative_attention_bias.weight",
                               {c_.relative_attention_num_buckets, c_.num_attention_heads});
    p.set_place("head");
    declare_head(p);
  }

  Value trunk(const EncoderRows& rows) const override {
    Value x;
    std::optional<Value> bias;
    {
      Scope scope(g_, "embed");
      x = embedding(*words_, rows.tokens) + positions_of(rows);
      if (types_) x = x + (rows.types ? embedding(*types_, *rows.types) : slice(*types_, 0, 0, 1));
      x = hidden_dropout_((*embedding_norm_)(x), stream(0, kEmbedding));
      if (distance_bias_ && rows.is_flat())
        bias = transpose(bias_by_distance(c_.context()), {1, 0});
      else if (distance_bias_)
        bias = bias_of_scores(rows.length(), is_open(rows) ? c_.context() : rows.length().size());
    }
    for (int64_t i = 0; i < c_.num_hidden_layers; ++i) {
      const BertBlock& block = blocks_[static_cast<size_t>(i)];
      Scope layer(g_, fmt::format("h.{}", i));
      {
        Scope scope(g_, "attn");
        x = block.attention_norm(x + attend(block, x, i, rows, bias));
      }
      Scope scope(g_, "mlp");
      const Value y = block.down(activated(block.up(x), c_.hidden_act));
      x = block.output_norm(x + hidden_dropout_(y, stream(i, kMlp)));
    }
    return x;
  }

  Value token_logits(Value x) const override {
    Scope scope(g_, "lm_head");
    const TokenHead& head = *token_head_;
    // Only BERT and DistilBERT take the activation of the trunk.
    const bool own = c_.type == BertType::bert || c_.type == BertType::distilbert;
    const Value h = head.norm(activated(head.transform(x), own ? c_.hidden_act : Activation::gelu));
    return matmul(h, head.table, false, true) + head.bias;
  }

  Value text_logits(Value first) const override {
    Scope scope(g_, "classifier");
    switch (c_.type) {
      case BertType::bert:
        first = tanh((*text_dense_)(first));
        break;
      case BertType::distilbert:
        first = relu((*text_dense_)(first));
        break;
      default:
        first = tanh((*text_dense_)(head_dropout_(first, stream(0, kHeadInput))));
    }
    return (*output_)(head_dropout_(first, stream(0, kHead)));
  }

  Value tag_logits(Value x) const override {
    Scope scope(g_, "classifier");
    // DistilBERT and MPNet have no dropout of their own for this head.
    const bool own = c_.type != BertType::distilbert && c_.type != BertType::mpnet;
    return (*output_)((own ? head_dropout_ : hidden_dropout_)(x, stream(0, kHead)));
  }

 private:
  // Streams of dropout: four of each layer, and those of the rest behind them.
  enum Stream : int64_t { kScores, kAttention, kMlp, kEmbedding, kHeadInput, kHead };
  int64_t stream(int64_t layer, Stream part) const {
    return part <= kMlp ? 4 * layer + part : 4 * c_.num_hidden_layers + part;
  }

  void declare_head(Parameters& p) {
    const int64_t C = c_.hidden_size;
    const auto outputs = static_cast<int64_t>(c_.task.labels.size());
    p.set_part(Part::head);
    switch (c_.task.head) {
      case Head::masked_token:
        token_head_.emplace(p, c_, n_, *words_);
        break;
      case Head::classes:
      case Head::values:
        // BERT's pooler learns in pre-training, and serves every task.
        if (c_.type == BertType::bert) p.set_part(Part::pooler);
        text_dense_.emplace(
            p, c_.type == BertType::bert ? n_.prefix + "pooler.dense" : n_.text_dense, C, C, true);
        p.set_part(Part::head);
        output_.emplace(p, n_.text_output, C, outputs, true);
        break;
      case Head::token_classes:
        output_.emplace(p, "classifier", C, outputs, true);
        break;
      case Head::embedding:
      case Head::next_token:
        break;
    }
  }

  Value attend(const BertBlock& block, Value x, int64_t layer, const EncoderRows& rows,
               const std::optional<Value>& bias) const {
    const int64_t D = c_.hidden_size / c_.num_attention_heads;
    const AttentionPlaces places = heads_in_rows(c_.num_attention_heads, c_.num_attention_heads, D);
    AttentionOptions options;
    options.scale = 1 / std::sqrt(static_cast<double>(D));
    options.lengths = rows.lengths;
    options.starts = rows.starts;
    options.longest = rows.longest;
    options.mask = added_to_scores(rows, bias);
    options.mask_by_distance = rows.is_flat() && bias;
    options.p = rng_key_ ? c_.attention_probs_dropout_prob : 0;
    options.key = rng_key_;
    options.stream = stream(layer, kScores);
    const std::array<Value, 3> sources{block.query(x), block.key(x), block.value(x)};
    const Value y = block.attention_output(attention(sources, places, options).y);
    // DistilBERT drops nothing here.
    return c_.type == BertType::distilbert ? y : hidden_dropout_(y, stream(layer, kAttention));
  }

  /// What is added to scores: `bias`, and what hides padding that `lengths` does not tell.
  static std::optional<Value> added_to_scores(const EncoderRows& rows,
                                              const std::optional<Value>& bias) {
    if (!rows.is_real) return bias;
    const Value padding = hidden_padding(*rows.is_real);
    return bias ? *bias + padding : padding;
  }

  /// Returns the relative position bias by distance, [2 L - 1, H] for L = `longest`: row i is added
  /// to the score of a key i - L + 1 positions after the query.
  Value bias_by_distance(int64_t longest) const {
    std::vector<Number> buckets;
    for (int64_t distance = 1 - longest; distance < longest; ++distance)
      buckets.emplace_back(bucket_of(distance, c_.relative_attention_num_buckets));
    return embedding(*distance_bias_, literal(g_, {2 * longest - 1}, buckets, DType::i32));
  }
  /// Returns the relative position bias of all scores, [H, T, T], for texts of at most `longest`
  /// tokens.
  Value bias_of_scores(Dim length, int64_t longest) const {
    const Shape scores{length, length};
    const Value distance = iota(g_, scores, 1) - iota(g_, scores, 0);
    const Value rows =
        embedding(bias_by_distance(longest), distance + full(g_, {}, longest - 1, DType::i32));
    return transpose(rows, {2, 0, 1});
  }

  /// Whether the length is not known, or one of several for which the graph must be the same.
  static bool is_open(const EncoderRows& rows) {
    return rows.is_real.has_value() || rows.length().is_symbol();
  }

  /// [N, C], [T, C] or [B, T, C]: rows of the table of positions. Models whose first rows stand for
  /// padding count the real tokens, wherever padding stands.
  Value positions_of(const EncoderRows& rows) const {
    const int64_t first = c_.first_position();
    if (rows.positions)
      return embedding(*positions_, *rows.positions + full(g_, {}, first, DType::i32));
    if (!rows.is_real || first == 0) {
      if (!rows.length().is_symbol()) return slice(*positions_, 0, first, rows.length().size());
      return embedding(*positions_, iota(g_, {rows.length()}, 0) + full(g_, {}, first, DType::i32));
    }
    const Value is_real = cast(*rows.is_real, DType::i32);
    const Value counted = running_sum(is_real, 1) * is_real;
    return embedding(*positions_, counted + full(g_, {}, first - 1, DType::i32));
  }

  Graph& g_;
  const BertConfig& c_;
  const BertNames& n_;
  std::optional<Value> rng_key_;
  Dropout hidden_dropout_, head_dropout_;
  std::optional<Value> words_, positions_, types_, distance_bias_;
  std::optional<LayerNorm> embedding_norm_;
  std::vector<BertBlock> blocks_;
  std::optional<TokenHead> token_head_;
  std::optional<Projection> text_dense_, output_;
};

}  // namespace

std::unique_ptr<EncoderNet> bert_net(Parameters& p, const BertConfig& config,
                                     std::optional<Value> rng_key) {
  return std::make_unique<Bert>(p, config, rng_key);
}

}  // namespace brrr::models
