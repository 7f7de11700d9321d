#pragma once
// `brrr classify --images` and `brrr embed --images`: what a model says of pictures.

#include "infer/options.h"

namespace brrr::cli {

/// Prints the likeliest classes of each picture with their probabilities.
int classify_pictures(const infer::ClassifyOptions& options);
/// Prints the feature vector of each picture, or writes all to a .npy file.
int embed_pictures(const infer::EmbedOptions& options);

}  // namespace brrr::cli
