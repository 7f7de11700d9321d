#pragma once
// What a language model loses in other precisions: its loss on a text, and how far the
// distributions of the next token are from those of the first variant.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "infer/room.h"
#include "infer/run_precision.h"
#include "models/model.h"

namespace brrr::infer {

/// A model's weights, and what they are computed in.
struct ComparedModel {
  std::shared_ptr<const WeightSource> weights;
  RunPrecision precision;
};

/// Means over the predicted tokens. The rest is against the first variant.
struct TokenComparison {
  double loss = 0;              // nats per token; not finite where logits are not
  double loss_difference = 0;   // of this variant's loss and the first one's
  double difference_error = 0;  // the standard error of that mean over these tokens
  double divergence = 0;        // Kullback-Leibler, KL(first || this), in nats per token
  double agreement = 1;         // share of tokens with the same most likely next token
  double cosine = 1;            // of the logits, each row less its mean

  /// Whether the difference of the losses is more than chance on a text of this length.
  bool is_beyond_noise() const;
};

/// Predicts every token but the first from at most `context` tokens before it, in windows that
/// follow one another as in evaluate(). All variants lie in memory at the same time. A variant with
/// logits that are not finite ends the comparison; its loss says so. Throws UserError (exit 3)
/// where there is too little memory.
std::vector<TokenComparison> compare_on_tokens(const models::ModelPtr& definition,
                                               std::span<const ComparedModel> variants,
                                               std::span<const int32_t> ids, int64_t context,
                                               const Memory& memory = {});

}  // namespace brrr::infer
