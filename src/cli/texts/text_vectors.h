#pragma once
// The vectors of lines of text, which `brrr embed` prints and `brrr rerank` compares.

#include <span>
#include <string>
#include <vector>

#include "cli/texts/embedder.h"
#include "cli/texts/encoder_texts.h"

namespace brrr::cli {

/// How near two vectors are; more is nearer, so distances are negative.
double similarity_of(std::span<const float> a, std::span<const float> b, io::Similarity how);

class TextVectors {
 public:
  /// Opens what --model names, which outlives this as `options` do. Throws UserError (exit 2) where
  /// --truncate-dim is more than the vectors have.
  explicit TextVectors(const infer::EmbedOptions& options);

  EncoderTexts& texts() { return texts_; }
  const OpenEmbedder& model() const { return model_; }
  int64_t width() const { return width_; }
  /// Returns the vectors of the lines that texts() holds, one behind the other.
  std::vector<float> of_lines();
  /// Returns the vector of the text that the lines are compared with, behind the folder's prompt
  /// for queries. `where` names it in messages.
  std::vector<float> of_query(const std::string& text, const std::string& where);

 private:
  template <typename Where>
  std::vector<float> vectors_of(const std::vector<io::ModelInput>& inputs,
                                const OpenEmbedder& model, const Where& where) const;

  const infer::EmbedOptions& options_;
  OpenEmbedder model_;
  std::string prompt_;  // before each line
  EncoderTexts texts_;
  int64_t width_ = 0;
};

}  // namespace brrr::cli
