#pragma once
// What the options mean to the parts of a run that they set up.

#include "data/loader.h"
#include "models/model.h"
#include "optim/schedule.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

/// The model that the options describe, for a tokenizer of that many tokens, of which one pads.
/// Throws UserError (exit 2) for a --vocab-size below it.
models::ModelPtr model_of(const TrainOptions& options, int64_t vocab_size,
                          std::optional<int64_t> pad_token = std::nullopt);

/// "12 layers, 12 heads, width 768, context 1024", or of a model for pictures "9 blocks, 64
/// channels, pictures of 3 x 32 x 32, 10 classes".
std::string text_of_sizes(const models::ModelSizes& sizes, int64_t context);

/// Whether the run has flat batches (io::BatchOptions::flat). Encoders and text classifiers do if
/// the backend has kernels for ragged attention and its gradient; language models do if documents
/// are packed. Throws UserError if the model or the device cannot pack documents.
bool trains_flat(const TrainOptions& options, const models::Model& model);

/// What a batch holds besides padding: tokens (of a causal model those with a target), and rows.
struct BatchContent {
  int64_t tokens = 0;
  double rows = 0;  // windows of the whole context, or sequences, or pairs of them
};
BatchContent content_of(const io::Batch& batch, const TrainOptions& options);

/// How the options ask for steps to be compiled and run.
SessionOptions session_options(const TrainOptions& options);

/// Returns the form to which --qat rounds the linear layers of the model's blocks; its bits are 0
/// without --qat.
WeightQuantization fake_quantization_of(const TrainOptions& options, const models::Model& model);

/// What people should know of a precision that this device has no unit for, a note each. Where none
/// multiplies 16-bit numbers, the kernels widen them as they read; where none takes 8-bit numbers,
/// they are rounded as such a unit would and multiplied in 16.
std::vector<std::string> emulation_notes(Precision precision, const Program& program);

/// "reading and tokenising 45.6 MB of text", where that takes long enough for somebody to wonder;
/// else "": an error in a small file stands alone.
std::string reading_line(const TrainOptions& o);

/// What a run says when it is compiled: its model, its memory, and what was asked to be explained.
std::vector<std::string> start_lines(const Session& session, const models::Model& model,
                                     const TrainOptions& options);

/// The learning rate over the steps.
optim::Schedule schedule_of(const TrainOptions& options);
/// What to say where the warm-up is not over before the run is, or "".
std::string warmup_note(const TrainOptions& options);

/// Returns the loader options of training data in padded rows, or in flat rows of packed documents.
io::LoaderOptions loader_options(const TrainOptions& options, int64_t vocab_size);
/// Returns the loader options in the layout that the model is trained on.
io::LoaderOptions loader_options(const TrainOptions& options, const models::Model& model);

}  // namespace brrr::train
