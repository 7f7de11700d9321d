#pragma once
// Vectors for texts, by whatever makes them: an encoder (infer/encoder.h), a table of token vectors
// (infer/table_embedder.h), either with layers behind it (infer/layered_embedder.h).

#include <cstdint>
#include <functional>
#include <span>

namespace brrr::infer {

/// What an encoder reads of a text, or of two.
struct EncoderRow {
  std::span<const int32_t> ids;          // at least one, at most the model's context
  std::span<const int32_t> types;        // of each token; empty: 0
  std::span<const int32_t> places = {};  // Head::masked_token: the tokens whose logits are wanted
};

class Embedder {
 public:
  virtual ~Embedder() = default;
  /// The numbers of a vector.
  virtual int64_t width() const = 0;
  /// Told the numbers of row `row`, valid during the call.
  using OnRow = std::function<void(size_t row, std::span<const float> numbers)>;
  /// Results come in the order in which batches are computed. Throws UserError for rows that the
  /// model does not take, and (exit 3) for a single row that does not fit into memory.
  virtual void run(std::span<const EncoderRow> rows, const OnRow& on_row) = 0;
};

/// Limits of a batch. A single row is allowed to exceed them.
struct BatchLimits {
  int64_t tokens = 16384;  // padding counts where rows are padded
  int64_t rows = 0;        // 0: any number
  int64_t places = 64;     // bounds the memory of logits over the vocabulary
};

/// Sorts rows by length and calls f with the indices of each batch, the longest rows first.
/// `padded(longest)` returns the tokens of a row that is padded to the longest of its batch;
/// without it rows are not padded. If f throws UserError with exit code 3 (out of memory), `limits`
/// are halved and the batch is tried again.
void run_in_batches(std::span<const EncoderRow> rows, BatchLimits& limits,
                    const std::function<int64_t(int64_t longest)>& padded,
                    const std::function<void(std::span<const size_t> chosen)>& f);

/// The length that rows of up to `tokens` are padded to.
int64_t padded_length(int64_t tokens, int64_t context);

}  // namespace brrr::infer
