#pragma once
// How a folder of sentence-transformers wants the vectors of its texts to be made: modules.json,
// the config.json of each module, sentence_bert_config.json and config_sentence_transformers.json.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/task.h"

namespace brrr::io {

/// A module behind the pooling: it makes a vector of a vector.
struct SentenceLayer {
  enum class Kind { dense, layer_norm, normalize };
  Kind kind = Kind::normalize;
  std::filesystem::path folder = {};  // of its config.json and weights; normalize has none
  int64_t inputs = 0, outputs = 0;    // numbers of the vectors; 0: any, as many as come
  bool has_bias = true;               // of Dense, as all below
  bool adds_input = false;            // a residual connection around it
  std::string activation = {};        // a name that models::torch_activation knows

  bool operator==(const SentenceLayer&) const = default;
};

/// A folder without an encoder: a vector for each token, and no more.
struct SentenceTable {
  enum class Kind {
    static_embedding,  // StaticEmbedding: the mean over the tokens, none of them special
    word_embeddings,   // WordEmbeddings: pooled as other tokens are
  };
  Kind kind = Kind::static_embedding;
  std::filesystem::path folder = {};  // of the table and tokenizer.json

  bool operator==(const SentenceTable&) const = default;
};

/// The measures of sentence-transformers.
enum class Similarity { cosine, dot, euclidean, manhattan };

struct SentenceSettings {
  models::Task task{.head = models::Head::embedding};  // the mean, where the folder says nothing
  std::optional<int64_t> longest;                      // tokens of a text, special ones counted
  std::string prompt;                                  // what is put before every text
  std::map<std::string, std::string> prompts;          // every prompt by its name
  bool pools_prompt = true;                    // pooling takes the tokens of the prompt, too
  bool lowercase = false;                      // capitals become small letters before all else
  Similarity similarity = Similarity::cosine;  // how vectors are compared
  std::filesystem::path model;                 // the folder of the encoder: this one, or one in it
  bool is_said = false;                        // the folder says how rows become a vector
  /// What follows pooling, but for a single normalisation, which is task.normalize.
  std::vector<SentenceLayer> layers;
  std::optional<SentenceTable> table;

  /// Whether the last thing that is done to a vector is to make its length 1.
  bool ends_normalized() const {
    return layers.empty() ? task.normalize : layers.back().kind == SentenceLayer::Kind::normalize;
  }
  /// Leaves that normalisation out.
  void keep_lengths();
};

/// Throws UserError that names the file and the value for a module, a pooling or an activation that
/// is not supported.
SentenceSettings read_sentence_settings(const std::filesystem::path& folder);

/// The most tokens of a text by config.json and tokenizer_config.json, for a model that is not
/// described otherwise; nothing where they do not say.
std::optional<int64_t> read_context(const std::filesystem::path& folder);

}  // namespace brrr::io
