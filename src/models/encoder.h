#pragma once
// What encoders share: the loss and the forward graphs around a trunk in which every token sees all
// tokens of its text. Texts lie one behind the other, without padding, or are rows of a batch with
// padding behind them, of which "lengths" says how many tokens are real. An architecture brings an
// EncoderNet.

#include <memory>
#include <optional>

#include "models/model.h"

namespace brrr::models {

/// The tokens of a batch: R concatenated texts [N], separated by `starts`, or padded rows [B, T],
/// of which `lengths` or `is_real` marks the real tokens.
struct EncoderRows {
  Value tokens;                    // [N] or [B, T] i32
  std::optional<Value> types;      // like tokens: which of two texts a token belongs to
  std::optional<Value> starts;     // [R + 1] i32: text r is tokens [starts[r], starts[r + 1])
  std::optional<Value> positions;  // [N] i32: of a token in its text
  int64_t longest = 0;             // upper bound on the length of a flat text; 0: N
  std::optional<Value> lengths;    // [B] i32, each from 1 to T: padding stands behind a text
  std::optional<Value> is_real;    // [B, T] bool: padding stands anywhere
  bool is_flat() const { return starts.has_value(); }
  Dim batch() const { return tokens.shape()[0]; }
  Dim length() const { return tokens.shape()[1]; }
  /// Number of texts: R or B.
  Dim texts() const { return starts ? Dim(starts->shape().size(0) - 1) : batch(); }
};

class EncoderNet {
 public:
  virtual ~EncoderNet() = default;
  /// Returns [N, C] or [B, T, C].
  virtual Value trunk(const EncoderRows& rows) const = 0;
  /// x: [..., C]. The head of masked language models; returns [..., V].
  virtual Value token_logits(Value x) const = 0;
  /// pooled: [R, C], one vector per text, pooled by EncoderModel::text_pooling(). Returns [R, K].
  virtual Value text_logits(Value pooled) const = 0;
  /// x: [..., C], a trunk's. Returns [..., K].
  virtual Value tag_logits(Value x) const = 0;
};

/// x: [B, C], each row divided by its length, or by 1e-12 where that is more.
Value unit_length(Value x);
/// Pools the token vectors of each text. x: [N, C] or [B, T, C]; returns [texts, P C] for P pooling
/// methods, whose results are concatenated.
Value pooled(Value x, const EncoderRows& rows, const Task& task);

/// The loss of texts, summed over those whose target is not -1. logits: [B, K]; targets: [B] i32;
/// values: [B, K] f32, for which a text's loss is the mean of its squared errors; without them the
/// targets are classes. Returns f32[].
Value text_loss(Value logits, Value targets, const std::optional<Value>& values);

class EncoderModel : public Model {
 public:
  /// Inputs "tokens", where the model has token types "types" [B, T] i32, "lengths" [B] i32,
  /// "targets", "loss_scale" f32[] and "rng_key" i32[2] where it has dropout. Output "loss" f32[],
  /// a sum over what is scored times the scale. By head, "targets" is
  ///   masked_token, token_classes  [B, T] i32, -1: not scored;
  ///   classes                      [B] i32, -1: not scored;
  ///   values                       [B] i32, -1: not scored, and "values" [B, K] f32; the loss of a
  ///                                text is the mean of the K squared errors.
  /// Throws UserError for a head without a loss (embedding; classes of which several may hold).
  Graph loss(int64_t batch, int64_t length) const final;
  /// `loss` without dropout, and an output "logits" as forward() has it.
  Graph scored(int64_t batch, int64_t length) const final;
  /// Inputs "tokens", "types" and "lengths". Output "logits": [B, T, V], [B, K] or [B, T, K] by
  /// head; of Head::embedding "embedding" [B, D].
  Graph forward(Dim batch, Dim length) const final;
  /// Inputs "tokens", "types", "lengths" and "places" [P] i32, which of the B T tokens to tell.
  /// Output "logits" [P, V]. Head::masked_token.
  Graph forward_at(int64_t batch, int64_t length, int64_t places) const final;
  bool has_flat() const final { return true; }
  Graph flat(const FlatBinding& binding) const final;
  bool has_flat_loss() const override { return true; }
  Graph flat_loss(const FlatBinding& binding) const final;
  Graph flat_scored(const FlatBinding& binding) const final;
  Graph exchange(const ExchangeBinding& binding) const final;
  /// Throws UserError: an encoder does not generate.
  Graph decode(const DecodeBinding& binding) const final;

 protected:
  /// Declares the parameters. `rng_key`: i32[2] (seed, step); without it nothing is dropped.
  virtual std::unique_ptr<EncoderNet> build(Parameters& p, std::optional<Value> rng_key) const = 0;
  virtual bool has_dropout() const = 0;
  void declare(Parameters& p) const final { build(p, std::nullopt); }
  /// The pooling in front of EncoderNet::text_logits().
  virtual Pooling text_pooling() const { return Pooling::cls; }

 private:
  /// Append the inputs of padded rows, or of concatenated texts, to the graph.
  EncoderRows padded_rows(Graph& g, Dim batch, Dim length) const;
  EncoderRows flat_rows(Graph& g, const FlatBinding& binding) const;
  Value head_of(const EncoderNet& net, Value x, const EncoderRows& rows) const;
  /// Appends the loss of `rows` to the graph, as the output "loss".
  void add_loss(Graph& g, const EncoderRows& rows, bool trains) const;
};

}  // namespace brrr::models
