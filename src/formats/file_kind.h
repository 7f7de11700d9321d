#pragma once
// What a file is, by its first bytes: for the message that refuses it where a model, an input or a
// tokenizer was expected. It reads at most a few thousand bytes and trusts none of them.

#include <optional>
#include <string>
#include <string_view>

#include "base/file.h"

namespace brrr::io {

struct FileKind {
  std::string name;    // "a GGUF file", "a NumPy array (.npy)"
  std::string advice;  // what to do with it; may be empty
  /// Weights of a model in some format: whoever names it means a model, not a text.
  bool is_model = false;
  /// An ONNX or a .brrr file, which `run` takes.
  bool is_module = false;
  /// Readable as a text, which may be what was wanted.
  bool is_text = false;
  /// "a GGUF file, which is not read yet; ..."
  std::string str() const { return advice.empty() ? name : name + "; " + advice; }
};

/// The kind that the first bytes of a file show; nothing where no known format begins so.
std::optional<FileKind> kind_of_bytes(std::string_view beginning);
/// The kind of a file; nothing where it cannot be read, or is a folder. Never throws.
std::optional<FileKind> kind_of_file(const fs::path& path);

/// UserError: "NAME is a GGUF file; ...", or, for a file that nobody knows, "NAME is a file" and
/// `expected`, which says what was expected in its place.
[[noreturn]] void refuse_file(const std::string& name, const std::string& expected);

}  // namespace brrr::io
