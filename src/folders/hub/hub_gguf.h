#pragma once
// Which GGUF file of a model of the Hub a name means: ORG/NAME:Q4_K_M, or ORG/NAME where the model
// has GGUF files alone.

#include <string>
#include <vector>

namespace brrr::io {

/// The type that a name without one means.
inline constexpr const char* kUsualGgufType = "Q4_K_M";

/// The files, by name, of the model in GGUF that `type` means, in the order of their parts; `files`
/// are those of the repository. The type stands before ".gguf", in letters of any case. "": the
/// usual one, or the only one there is. Empty: there is none, or, for "", several.
std::vector<std::string> gguf_files_of(const std::vector<std::string>& files,
                                       const std::string& type);

/// "Q4_0, Q8_0": the types that gguf_files_of() finds.
std::vector<std::string> gguf_types_in(const std::vector<std::string>& files);

}  // namespace brrr::io
