#pragma once
// What `brrr embed` makes vectors with: the encoder of a model folder, or an ONNX file with a
// tokenizer beside it.

#include <memory>

#include "folders/model_folder.h"
#include "folders/sentence_folder.h"
#include "infer/embedder.h"
#include "infer/options.h"

namespace brrr::cli {

struct OpenEmbedder {
  fs::path path;  // the folder, or the file
  io::SentenceSettings settings;
  int64_t context = 0;                      // the most tokens of a text
  std::unique_ptr<io::ModelFolder> folder;  // of an encoder
  std::unique_ptr<io::Tokenizer> own_tokenizer;
  const io::Tokenizer* tokenizer = nullptr;
  std::unique_ptr<infer::Embedder> vectors;
};

/// Opens what --model names: an ONNX file, a folder that has one (model.onnx, onnx/model.onnx) and
/// no other weights, or the folder of an encoder. Says on stderr what the files leave open.
OpenEmbedder open_embedder(const infer::EmbedOptions& options);

}  // namespace brrr::cli
