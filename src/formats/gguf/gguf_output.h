#pragma once
// Writes GGUF files of version 3. Metadata and the list of tensors are known first, so the size of
// the file is known before a byte is written; the bytes of tensors are then made one after the
// other, so that one tensor is in memory at a time.

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/gguf_file.h"

namespace brrr::io {

/// Keys and values, in the order in which they are added. A key must not be added twice.
class GgufMetadata {
 public:
  GgufMetadata& text(std::string_view key, std::string_view value);
  GgufMetadata& flag(std::string_view key, bool value);
  /// Unsigned 32-bit, as llama.cpp expects of counts and ids.
  GgufMetadata& count(std::string_view key, int64_t value);
  GgufMetadata& integer(std::string_view key, int32_t value);
  GgufMetadata& real(std::string_view key, double value);  // f32
  GgufMetadata& texts(std::string_view key, std::span<const std::string> values);
  GgufMetadata& integers(std::string_view key, std::span<const int32_t> values);
  GgufMetadata& flags(std::string_view key, std::span<const bool> values);
  GgufMetadata& reals(std::string_view key, std::span<const float> values);
  /// A value of another file.
  GgufMetadata& copy(std::string_view key, const GgufValue& value);
  /// All keys of another list.
  GgufMetadata& append(const GgufMetadata& other);

  bool has(std::string_view key) const { return keys_.contains(key); }
  size_t size() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, GgufType type);
  void begin_array(std::string_view key, GgufType element, size_t count);

  std::string bytes_;
  std::set<std::string, std::less<>> keys_;
};

/// A tensor that will be written.
struct GgufPlanned {
  std::string name;
  Shape shape;  // row-major: the last axis lies together
  const BlockType* type = nullptr;

  uint64_t bytes() const;
};

class GgufOutput {
 public:
  /// The last axis of each tensor must consist of whole blocks.
  GgufOutput(const GgufMetadata& metadata, std::vector<GgufPlanned> tensors);

  const std::vector<GgufPlanned>& tensors() const { return tensors_; }
  /// The exact size of the file.
  uint64_t bytes() const { return bytes_; }
  /// What stands before the data: a whole GGUF file of metadata, but for its tensors.
  const std::string& header() const { return header_; }

  /// Writes the file under a temporary name and renames it when it is complete. `make` fills the
  /// bytes of each tensor, in order. Throws UserError where the disk is full.
  void write(const fs::path& path,
             const std::function<void(const GgufPlanned&, std::span<std::byte>)>& make) const;

 private:
  std::vector<GgufPlanned> tensors_;
  std::string header_;
  uint64_t bytes_ = 0;
};

}  // namespace brrr::io
