#pragma once
// Loss and perplexity of a model on any tokens: every token but the first is predicted once, each
// from at most `context` tokens of its own window. Windows of a model whose tokenizer begins texts
// with a token begin with it, too, as in llama.cpp's perplexity: it takes the place of the token
// before the window.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/token_source.h"
#include "folders/model_folder.h"
#include "infer/room.h"
#include "passes/weights/weight_choice.h"
#include "runtime/backend.h"

namespace brrr {
class Communicator;
}

namespace brrr::infer {

struct Evaluation {
  double loss = 0;  // mean, nats per token; where it is no finite number the rest is of no use
  double perplexity = 0;
  int64_t tokens = 0;  // predicted
  double seconds = 0;
  std::string fault;  // why the loss is no finite number; empty where it is one
};

struct EvaluateOptions {
  int64_t batch_size = 8;
  int64_t context = 0;                          // 0: the model's
  std::optional<int32_t> begin = std::nullopt;  // the first token of each window
  DType precision = DType::f32;
  WeightQuantization quantization = {};  // of weights
  Memory memory = {};                    // that it may take; by default any
  std::function<void(int64_t done, int64_t total)> progress = {};  // in batches
  /// Divides the batches among these ranks, which all get the whole result. Null: no others.
  Communicator* communicator = nullptr;
};

/// The token that the tokenizer puts before every text; nothing where it puts none.
std::optional<int32_t> begin_of_windows(const io::Tokenizer& tokenizer);

/// Why a model's loss is no finite number, in a sentence that names the first tensor with NaN or
/// infinity.
std::string fault_of_loss(double loss, const io::ModelFolder& model);

/// Throws UserError for text with fewer than two tokens, a context the model does not have, or ids
/// outside its vocabulary.
Evaluation evaluate(const io::ModelFolder& model, const io::TokenSource& tokens,
                    const Backend& backend, const EvaluateOptions& options = {});

}  // namespace brrr::infer
