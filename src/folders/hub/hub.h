#pragma once
// Models by their names on the Hugging Face Hub, from the cache or downloaded into it.

#include "folders/hub/hub_cache.h"

namespace brrr::io {

/// The folder of a model, or its GGUF file where the name has a type (ORG/NAME:Q4_K_M) or the model
/// has GGUF files alone. A snapshot in the cache that is complete is used without any network;
/// else what it lacks is downloaded, which standard error shows. Returns an empty path where the
/// cache has no such model and the name is not one to download: it has no owner ("bert"), or begins
/// like a folder that is here. Throws UserError where a download is forbidden or fails; what came
/// before that is kept, and the next call goes on from there.
fs::path model_from_hub(const HubName& name);

}  // namespace brrr::io
