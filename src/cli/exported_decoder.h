#pragma once
// `brrr generate` with decoders that `brrr export --generate N` wrote: a loop in a .brrr file,
// beside the tokenizer and the chat template of the model (infer/open/kept_texts.h).

#include "infer/open/kept_texts.h"
#include "infer/options.h"

namespace brrr::cli {

/// `brrr generate` with an ONNX or .brrr file as its model. Throws UserError for a file that is no
/// such decoder, and for options that the loop in the file does not know.
int generate_with_file(const infer::GenerateOptions& options);

}  // namespace brrr::cli
