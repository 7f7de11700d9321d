#pragma once
// Encoder: the vectors or logits of texts, by any Runnable that takes their tokens: an encoder of
// models/, whose texts lie one behind the other without padding, or a file with the inputs that
// exporters name, where texts of similar length share a padded batch. Padding is masked, so a
// result does not depend on the other texts of its batch, except in files that quantise activations
// by the maximum of the whole batch. If a file gives token vectors, they are pooled as for our own
// encoders.

#include <memory>
#include <optional>
#include <string>

#include "infer/embedder.h"
#include "infer/runner.h"
#include "models/model.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
class Communicator;
}

namespace brrr::infer {

struct EncoderOptions {
  DType precision = DType::f32;                 // of weights and products
  WeightQuantization quantization = {};         // of weights
  int64_t batch_size = 0;                       // the most texts of a batch; 0: any number
  int64_t batch_tokens = BatchLimits().tokens;  // the most tokens; a longer text goes alone
  Memory memory = {};
  int64_t beside = 0;  // bytes of that memory which the caller's texts and results take
  /// Divides the batches of run() among these ranks, which all call it with the same rows and all
  /// get all results. Null: this process computes them alone.
  Communicator* communicator = nullptr;
};

/// What is read of a text, and what is made of it.
struct EncoderTask {
  std::string name;        // of the file or folder, for errors
  models::Task task;       // how token vectors become one, where the Runnable gives those
  int64_t context = 512;   // the longest text, in tokens
  int64_t vocabulary = 0;  // ids are below it; 0: not known
};

class Encoder final : public Embedder {
 public:
  /// Allocates memory, loads the weights and runs one token to learn the width of the output.
  /// Throws UserError if an input is none of those of forward_runnable() or Model::exchange(), or
  /// if no output fits the task.
  Encoder(const std::shared_ptr<const Runnable>& runnable, const Backend& backend, EncoderTask task,
          const EncoderOptions& options = {});
  /// `weights` has each parameter of the model by name.
  Encoder(const models::ModelPtr& model, const Backend& backend,
          std::shared_ptr<const WeightSource> weights, const EncoderOptions& options = {});

  /// The numbers of a row are [D] of an embedding, [K] of classes and values, [tokens of the row,
  /// K] of token classes, [places of the row, V] of masked tokens, where each row has a place.
  /// Batches that do not fit the memory limit are halved. Throws UserError for a row without
  /// tokens, an id outside the vocabulary, rows that are longer than the model takes, and (exit 3)
  /// a single row that does not fit.
  void run(std::span<const EncoderRow> rows, const OnRow& on_row) override;

  /// The numbers of an embedding, or of the logits of a text or a token.
  int64_t width() const override { return width_; }
  /// The most tokens of a text: what the task says, or a file's fixed length.
  int64_t context() const { return task_.context; }
  /// Whether the Runnable gives a vector for each text itself.
  bool is_pooled() const { return is_pooled_; }

  /// Head::masked_token: the logits of tokens `places` of one row, [places, V], valid until the
  /// next call.
  std::span<const float> logits_at(EncoderRow row, std::span<const int32_t> places);

  int64_t arena_bytes() const { return runner_->session().engine().arena_bytes(); }

 private:
  /// What an input holds.
  enum class Holds : uint8_t { ids, mask, types, positions, lengths, starts, places };
  struct Input {
    Port port;
    Holds holds;
  };
  struct Batch {
    PortValues inputs;
    std::vector<int32_t> lengths;  // of the texts
    /// Number of rows of the output (one per text, token or place), and the first row of each text.
    int64_t rows = 0;
    std::vector<int64_t> first;
  };
  static std::optional<Holds> known_input(std::string_view name);
  void find_inputs(const Runnable& runnable);
  void find_output(const Runnable& runnable);
  void check(const EncoderRow& row) const;
  /// Returns how many rows of the output a row has.
  int64_t output_rows(const EncoderRow& row) const;
  Batch batch_of(std::span<const EncoderRow> rows, std::span<const size_t> chosen) const;
  Batch flat_batch_of(std::span<const EncoderRow> rows, std::span<const size_t> chosen) const;
  Batch padded_batch_of(std::span<const EncoderRow> rows, std::span<const size_t> chosen) const;
  /// Appends the places of a row whose first token is token `first` of the batch.
  void add_places(Batch& batch, std::vector<int32_t>& places, const EncoderRow& row,
                  int64_t first) const;
  /// What the Runnable gives, as f32.
  OutputView output_of(const Batch& batch);
  /// The tokens of a row that is padded to the longest of its batch; empty: rows are not padded.
  std::function<int64_t(int64_t longest)> padding() const;
  void run_divided(std::span<const EncoderRow> rows, const OnRow& on_row);
  void run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                 const OnRow& on_row);
  /// [B, width()] of the vectors of tokens.
  std::span<const float> pooled(const OutputView& tokens, const Batch& batch);
  [[noreturn]] void refuse(const Shape& shape, const std::string& expected) const;

  EncoderTask task_;
  BatchLimits limits_;
  Communicator* communicator_ = nullptr;
  std::vector<Input> inputs_;
  std::string output_;
  DType output_dtype_ = DType::f32;
  bool is_flat_ = false;  // texts lie one behind the other
  bool is_pooled_ = false;
  std::optional<int64_t> fixed_batch_, fixed_length_;
  int64_t width_ = 0;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RunnableSession> pooling_;
  std::vector<float> floats_;  // of an output in another format
};

}  // namespace brrr::infer
