#pragma once
// silero's voice activity detector from its weights alone (safetensors), with the inputs and
// outputs of its ONNX files: "input" f32 [batch, context + samples], "state" f32 [2, batch, H] give
// "output" f32 [batch, 1], the probability of speech, and "stateN", the state for the next samples.

#include <memory>

#include "base/file.h"
#include "runtime/runnable.h"

namespace brrr::modules {

/// Whether the path is a .safetensors file with the tensors of silero's detector. Never throws.
bool is_silero_file(const fs::path& path);
/// The only such file of a folder that has no config.json; "" where there is none, or several.
fs::path silero_file_in(const fs::path& folder);
/// All sizes follow from the shapes of the tensors. Throws UserError for tensors that are missing,
/// have shapes that do not go together, or are not f32.
std::shared_ptr<const Runnable> open_silero(const fs::path& path);

}  // namespace brrr::modules
