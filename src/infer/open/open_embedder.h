#pragma once
// OpenEmbedder: vectors of texts by the encoder of a model folder, or by an ONNX file with a
// tokenizer beside it.

#include <memory>

#include "folders/model_folder.h"
#include "folders/sentence_folder.h"
#include "infer/embedder.h"
#include "infer/open/encoder_inputs.h"
#include "infer/options.h"

namespace brrr::infer {

/// What a text is in a search.
enum class TextRole { document, query };

struct OpenEmbedder {
  fs::path path;  // the folder, or the file
  io::SentenceSettings settings;
  TextForm form = TextForm::with_special_tokens;
  int64_t context = 0;                      // the most tokens of a text
  std::unique_ptr<io::ModelFolder> folder;  // of an encoder
  std::unique_ptr<io::Tokenizer> own_tokenizer;
  const io::Tokenizer* tokenizer = nullptr;
  std::unique_ptr<Embedder> vectors;
};

/// What --prompt-name, or else the folder, puts before texts: of --similarity, before the query and
/// the others as the folder's prompts of these names say. Throws UserError (exit 2) for a name that
/// the folder does not have.
std::string prompt_of(const io::SentenceSettings& settings, const EmbedOptions& options,
                      TextRole role);

/// Opens what --model names: an ONNX file, a folder that has one (model.onnx, onnx/model.onnx) and
/// no other weights, the folder of an encoder, or of a table of token vectors. Says on stderr what
/// the files leave open. `role`: whose prompt pooling leaves out, where the folder wants that.
/// `communicator`: of EncoderOptions; a table of token vectors does not use it.
OpenEmbedder open_embedder(const EmbedOptions& options, TextRole role,
                           Communicator* communicator = nullptr);

}  // namespace brrr::infer
