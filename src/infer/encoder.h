#pragma once
// Inference with encoders: vectors, classes or tokens for texts. Texts of similar length go through
// together, padded to one length, and each gets what it would get alone; results come in the order
// in which batches are computed.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "infer/embedder.h"
#include "infer/room.h"
#include "models/model.h"
#include "runtime/bindings.h"

namespace brrr::infer {

struct EncoderOptions {
  DType precision = DType::f32;  // of weights and products
  int64_t batch_size = 32;       // texts at a time
  Memory memory = {};            // that it may take; by default any
  int64_t beside = 0;            // bytes of that memory which the caller's texts and results take
};

class Encoder final : public Embedder {
 public:
  /// `weights` has each parameter of the model by name.
  Encoder(models::ModelPtr model, const Backend& backend,
          std::shared_ptr<const WeightSource> weights, const EncoderOptions& options = {});

  /// The numbers of a row are [D] of an embedding, [K] of classes and values, [tokens of the row,
  /// K] of token classes. Any head but Head::masked_token. Batches that do not fit the memory limit
  /// go in halves. Throws UserError for a row without tokens, an id outside the vocabulary, rows
  /// that are longer than the model takes, and (exit 3) a single row that does not fit.
  void run(std::span<const EncoderRow> rows, const OnRow& on_row) override;

  /// Head::embedding.
  int64_t width() const override;

  /// Head::masked_token: the logits of tokens `places` of a row, [places, V], valid until the next
  /// call.
  std::span<const float> logits_at(const EncoderRow& row, std::span<const int32_t> places);

  const models::Model& model() const { return *model_; }
  int64_t arena_bytes() const { return engine_.arena_bytes(); }

 private:
  void check(const EncoderRow& row) const;
  size_t program_for(int64_t batch, int64_t length);
  Graph compiled(const Graph& graph) const;
  void run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                 const OnRow& on_row);
  /// The inputs of a program, held while it runs.
  struct Feed {
    std::vector<int32_t> tokens, types, lengths;
    void add(const EncoderRow& row, int64_t length);
    void give(Call& call, bool has_types) const;
  };

  models::ModelPtr model_;
  models::Head head_;
  int64_t vocabulary_, context_;
  EncoderOptions options_;
  Room memory_;
  Engine engine_;
  Bindings bindings_;
  std::vector<std::byte> room_;  // results of a device whose memory is not the host's
};

}  // namespace brrr::infer
