#pragma once
// A model with weights as Runnables (runtime/runnable.h): its forward pass for any batch and
// length, one call of its decoding loop, and the graph that other runtimes know. `weights` has each
// parameter of the model by name.

#include <memory>

#include "models/model.h"
#include "runtime/backend.h"
#include "runtime/runnable.h"

namespace brrr::infer {

/// How the tokens of a batch of texts lie: one text behind the other, or in rows with padding.
enum class TextLayout { flat, padded };

/// Flat for encoders where the backend's attention reads texts of different lengths.
TextLayout text_layout(const models::Model& model, const Backend& backend);

/// Runs Model::flat(), whose inputs and outputs it has ("places" where they are wanted), or
/// Model::forward(): input "tokens" i32 [batch, length]; output "logits", or "embedding" for
/// Head::embedding. For texts, forward() also has the inputs "lengths" i32 [batch] and, if the
/// model has token types, "types" i32 [batch, length]; Head::masked_token also takes "places" i32
/// [places], which selects tokens of a single row (Model::forward_at()).
std::shared_ptr<const Runnable> forward_runnable(models::ModelPtr model,
                                                 std::shared_ptr<const WeightSource> weights,
                                                 TextLayout layout);

/// Model::decode() of one row: "tokens" i32 [1, length] behind `capacity` positions of a cache,
/// "position" i32[] gives "logits" [1, V]. The cache is state of the session that runs it.
std::shared_ptr<const Runnable> decode_runnable(models::ModelPtr model,
                                                std::shared_ptr<const WeightSource> weights,
                                                int64_t capacity, DType cache);

/// Model::exchange() without a cache: "input_ids" and "attention_mask" i64 [batch_size,
/// sequence_length], and what else the model's files for other runtimes have.
std::shared_ptr<const Runnable> exchange_runnable(models::ModelPtr model,
                                                  std::shared_ptr<const WeightSource> weights);

}  // namespace brrr::infer
