// The fields of a model of LSTM or GRU layers: config.json both ways, options, checks and presets.

#include "models/lstm/lstm_config.h"
#include "models/configured_model.h"

namespace brrr::models {

const ConfigTable<LstmConfig>& LstmConfig::table() {
  static const ConfigTable<LstmConfig> table = [] {
    using C = LstmConfig;
    ConfigTable<C> t(C{});  // char-lstm
    t.size("vocab_size", &C::vocab_size, 1 << 24).required();
    t.size("max_position_embeddings", &C::max_position_embeddings, 1 << 24);
    t.size("num_hidden_layers", &C::num_hidden_layers, 4096)
        .required()
        .option("n-layer", "recurrent layers", {"num-hidden-layers", "num-layers"});
    t.size("hidden_size", &C::hidden_size, 1 << 16)
        .required()
        .option("n-embd", "width of the hidden state", {"hidden-size"});
    t.size_or_null("embedding_size", &C::embedding_size, 1 << 16)
        .option("embedding-size", "width of the embedding (0: that of the hidden state)", {}, 0);
    t.choice("cell", &C::cell, {{"lstm"}, {"gru"}})
        .option("cell", "kind of the recurrent layers: lstm or gru");
    t.tied("tie_word_embeddings", &C::tie_word_embeddings);
    t.dropout("dropout", &C::dropout);
    t.deviation("initializer_range", &C::initializer_range);
    t.token("bos_token_id", &C::bos_token_id);
    t.token("eos_token_id", &C::eos_token_id);
    t.constant("model_type", {"lstm"});
    return t;
  }();
  return table;
}

void LstmConfig::validate() const {
  table().check(*this);
  if (tie_word_embeddings && embedding_width() != hidden_size)
    user_error(
        "[lstm config] tie_word_embeddings needs an embedding as wide as the hidden state; got "
        "embedding_size {} and hidden_size {}",
        embedding_size, hidden_size);
}

LstmConfig parse_lstm_config(std::string_view text, const std::string& what) {
  return config_from(ConfigReader(text, what), LstmConfig{}, [](LstmConfig&) {});
}

std::string LstmConfig::json(DType stored) const {
  return config_json_of(*this, stored, "LstmForCausalLM");
}

namespace {

void complete_lstm(LstmConfig& c, const Description& d) {
  c.max_position_embeddings = d.context;
  if (c.tie_word_embeddings && c.embedding_width() != c.hidden_size)
    usage_error(
        "--tie-word-embeddings needs an embedding as wide as the hidden state; got "
        "--embedding-size {} and --n-embd {}",
        c.embedding_size, c.hidden_size);
}

std::vector<Preset> lstm_presets() {
  const std::string characters =
      "--tokenizer char --n-layer 2 --dropout 0 --context 128 --batch-size 32 --learning-rate 2e-3 "
      "--warmup-steps 100 --weight-decay 0 --adam-beta2 0.99 --max-grad-norm 1.0 --eval-steps 250 "
      "--eval-batches 20 --logging-steps 1 ";
  return {
      {"char-lstm", "characters, two LSTM layers of width 256, 0.8M parameters, 1,000 steps",
       preset_values(characters + "--n-embd 256 --max-steps 1000")},
      {"char-gru", "characters, two GRU layers of width 256, 0.6M parameters, 1,000 steps",
       preset_values(characters + "--cell gru --n-embd 256 --max-steps 1000")},
      {"text-lstm", "classes of texts (--task classify), one LSTM layer of width 128, 5 epochs",
       preset_values("--task classify --tokenizer bpe:2000 --n-layer 1 --n-embd 128 --dropout 0 "
                     "--context 128 --batch-size 32 --learning-rate 3e-3 --warmup-steps 0.1 "
                     "--weight-decay 0 --max-grad-norm 1.0 --sampling epoch --num-train-epochs 5 "
                     "--max-steps 0 --eval-steps 0.2 --eval-batches 0 --samples 0 "
                     "--logging-steps 1")},
  };
}

}  // namespace

ModelSizes LstmConfig::sizes() const {
  // An LSTM has no attention heads and no cache: its state has a fixed size.
  return {.vocabulary = vocab_size,
          .context = max_position_embeddings,
          .layers = num_hidden_layers,
          .width = hidden_size};
}

FileNames LstmConfig::file_names() const {
  FileNames names;
  names.trunk = {"embedding.", "rnn."};
  if (tie_word_embeddings) names.tied = {"head.weight", "embedding.weight"};
  return names;
}

ModelPtr LstmConfig::model() const { return causal_model(*this); }

const Architecture& LstmConfig::architecture() {
  static const Architecture architecture =
      architecture_of<LstmConfig>({.name = "lstm",
                                   .title = "LSTM",
                                   .model_types = {"lstm"},
                                   .class_names = {"LstmFor"},
                                   .presets = lstm_presets()},
                                  complete_lstm, parse_lstm_config);
  return architecture;
}

}  // namespace brrr::models
