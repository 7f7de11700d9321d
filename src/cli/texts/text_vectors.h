#pragma once
// TextVectors computes a vector for each line of text, for `brrr embed` and `brrr rerank`.

#include <span>
#include <string>
#include <vector>

#include "cli/texts/encoder_texts.h"
#include "infer/open/open_embedder.h"

namespace brrr::cli {

using infer::OpenEmbedder;

/// Returns the similarity of two vectors: cosine, dot product, or a negative distance.
double similarity_of(std::span<const float> a, std::span<const float> b, io::Similarity how);

class TextVectors {
 public:
  /// Opens the model that --model names. `options` must outlive this. Throws UserError (exit 2) if
  /// --truncate-dim exceeds the dimension of the vectors.
  /// `communicator`: the ranks that compute the vectors of lines together; all of them make the
  /// same calls. Null: no others.
  explicit TextVectors(const infer::EmbedOptions& options, Communicator* communicator = nullptr);

  EncoderTexts& texts() { return texts_; }
  const OpenEmbedder& model() const { return model_; }
  int64_t width() const { return width_; }
  /// Returns the concatenated vectors of the current window of lines, texts().lines().
  std::vector<float> of_lines();
  /// Returns the vector of a query, which the folder's prompt for queries precedes. `where` names
  /// the query in messages.
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
