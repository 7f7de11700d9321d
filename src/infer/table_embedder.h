#pragma once
// Vectors for texts without an encoder: each token has a vector in a table, and the vectors of a
// text's tokens are pooled (sentence-transformers' StaticEmbedding and WordEmbeddings).

#include <vector>

#include "folders/sentence_folder.h"
#include "infer/embedder.h"
#include "models/task.h"

namespace brrr::infer {

class TableEmbedder final : public Embedder {
 public:
  /// Reads the table into memory as f32: "embedding.weight", or model2vec's "embeddings" with
  /// "mapping" and "weights" where there are such; of WordEmbeddings "emb_layer.weight". Pools, and
  /// makes the length of vectors 1, as `task` says. Throws UserError for a table that is missing or
  /// has another form.
  TableEmbedder(const io::SentenceTable& table, models::Task task);
  int64_t width() const override;
  /// The tokens that the table has.
  int64_t vocabulary() const;
  /// A row without tokens gets zeros.
  void run(std::span<const EncoderRow> rows, const OnRow& on_row) override;

 private:
  /// The vector of a token, times its factor.
  void read_row(int32_t id, std::vector<float>& row) const;
  std::vector<double> pooled(std::span<const int32_t> ids, models::Pooling pooling) const;

  models::Task task_;
  int64_t columns_ = 0;
  std::vector<float> table_;     // [rows, columns_]
  std::vector<int32_t> row_of_;  // [vocabulary] rows of the table; empty: a token's own row
  std::vector<float> factors_;   // [vocabulary]; empty: 1
};

}  // namespace brrr::infer
