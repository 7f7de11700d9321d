#pragma once
// A model with weights as Runnables (runtime/runnable.h): its forward pass for any batch and
// length, one call of its decoding loop, and the graph that other runtimes know. `weights` has each
// parameter of the model by name.

#include <memory>

#include "models/model.h"
#include "runtime/backend.h"
#include "runtime/runnable.h"

namespace brrr::infer {

/// The layout of a batch of texts: concatenated without padding, or padded rows.
enum class TextLayout { flat, padded };

/// Returns `flat` for an encoder if the backend has an attention kernel for ragged batches.
TextLayout text_layout(const models::Model& model, const Backend& backend);

/// Runs Model::flat() or, padded, Model::forward(). The inputs of the flat layout are those of
/// Model::flat(). The padded layout has the input "tokens" i32 [batch, length]; models of texts
/// also have "lengths" i32 [batch] and, with token types, "types" i32 [batch, length]. A masked
/// language model takes the optional input "places" i32 [places], the tokens whose logits are
/// wanted. The output is "logits", or "embedding" for Head::embedding.
std::shared_ptr<const Runnable> forward_runnable(models::ModelPtr model,
                                                 std::shared_ptr<const WeightSource> weights,
                                                 TextLayout layout);

/// Model::decode() of one row: "tokens" i32 [1, length] behind `capacity` positions of a cache,
/// "position" i32[] gives "logits" [1, V]. The cache is state of the session that runs it.
std::shared_ptr<const Runnable> decode_runnable(models::ModelPtr model,
                                                std::shared_ptr<const WeightSource> weights,
                                                int64_t capacity, DType cache);

/// Model::decode_sequences() with a pool of `blocks` blocks: the inputs of that graph, of any
/// number of tokens, sequences and wanted rows, give "logits" [P, V]. The pool is state of the
/// session that runs it. `chooses_adapters`: as SequencesBinding has it.
std::shared_ptr<const Runnable> sequences_runnable(models::ModelPtr model,
                                                   std::shared_ptr<const WeightSource> weights,
                                                   int64_t blocks, DType cache,
                                                   bool chooses_adapters = false);

/// Model::exchange() without a cache: "input_ids" and "attention_mask" i64 [batch_size,
/// sequence_length], and what else the model's files for other runtimes have.
std::shared_ptr<const Runnable> exchange_runnable(models::ModelPtr model,
                                                  std::shared_ptr<const WeightSource> weights);

}  // namespace brrr::infer
