#pragma once
// The sizes of a language model of LSTM or GRU layers. Its config.json is Brrr's own: transformers
// has no such model. Parameters have the names and shapes of PyTorch's torch.nn.Embedding, LSTM or
// GRU, and Linear.

#include <cstdint>
#include <string>
#include <string_view>

#include "models/causal_lm.h"
#include "models/config_table.h"

namespace brrr::models {

enum class RecurrentCell { lstm, gru };

struct LstmConfig {
  int64_t vocab_size = 65;                // V
  int64_t max_position_embeddings = 128;  // length of a training text, T; states have no limit
  int64_t hidden_size = 256;              // H
  int64_t embedding_size = 0;             // E; 0: H
  int64_t num_hidden_layers = 2;          // L
  RecurrentCell cell = RecurrentCell::lstm;
  double dropout = 0;               // of what a layer gives to the next one
  double initializer_range = 0.05;  // of the embedding and the head
  bool tie_word_embeddings = false;
  // Ids outside [0, vocab_size) mean "none".
  int64_t bos_token_id = -1;
  int64_t eos_token_id = -1;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  int64_t embedding_width() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  int64_t gates() const { return cell == RecurrentCell::lstm ? 4 : 3; }
  TextEnds text_ends() const { return text_ends_within(vocab_size, bos_token_id, {eos_token_id}); }
  /// Throws UserError naming the field, what is allowed and what it holds.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("lstm"); }
  static const ConfigTable<LstmConfig>& table();
  ModelSizes sizes() const;
  FileNames file_names() const;
  /// Declares the parameters, as CausalModel::build; this configuration outlives the net.
  std::unique_ptr<CausalNet> net(Parameters& p, std::optional<Value> rng_key,
                                 CausalHead head) const;
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json.
  std::string json(DType stored = DType::f32) const;
  bool operator==(const LstmConfig&) const = default;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
LstmConfig parse_lstm_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
