#pragma once
// The modules that a folder of sentence-transformers puts behind the pooling (Dense, LayerNorm,
// Normalize), on the vectors of any Embedder.

#include <memory>
#include <vector>

#include "folders/sentence_folder.h"
#include "infer/embedder.h"
#include "runtime/runnable_session.h"

namespace brrr::infer {

class LayeredEmbedder final : public Embedder {
 public:
  /// Reads the weights of the modules, at least one. Throws UserError for a module that does not
  /// take what the one before it gives, or whose weights are missing or have another shape.
  LayeredEmbedder(std::unique_ptr<Embedder> vectors, const std::vector<io::SentenceLayer>& layers,
                  const Backend& backend);
  int64_t width() const override { return width_; }
  void run(std::span<const EncoderRow> rows, const OnRow& on_row) override;

 private:
  std::unique_ptr<Embedder> vectors_;
  int64_t width_ = 0;
  std::unique_ptr<RunnableSession> layers_;  // "x" [1, C] to "y" [1, D]
};

}  // namespace brrr::infer
