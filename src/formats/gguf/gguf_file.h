#pragma once
// The GGUF format, versions 2 and 3: metadata by key and named tensors in one file, or in the parts
// NAME-00001-of-000NN.gguf of a split one. Reading maps the files and checks every number in them
// before use, so a damaged or hostile file ends in a UserError that names the file and the fault,
// never in a bad access; values stay where they lie, so that opening takes little memory. What keys
// and tensors mean is nothing that this folder knows.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/file.h"
#include "base/shape.h"

namespace brrr::io {

/// Types of metadata; the numbers are the file's.
enum class GgufType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  array,
  u64,
  i64,
  f64,
};

/// "u32", "string", "array".
std::string_view name_of(GgufType type);

/// A value of the metadata, or an element of an array. It shows bytes of the file, which were
/// checked when the file was opened.
struct GgufValue {
  GgufType type = GgufType::u8;
  GgufType element = GgufType::u8;        // of an array
  uint64_t count = 0;                     // elements of an array
  std::span<const std::byte> bytes = {};  // of a scalar, of a string's text, of all elements

  /// Returns nothing if the value has another type, or is an integer above 2^63 - 1.
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;
  std::optional<bool> flag() const;
  std::optional<std::string_view> text() const;
  /// Calls `see` for each element of an array, in order.
  void each(const std::function<void(const GgufValue&)>& see) const;
  /// "an array of 3 strings", "the u32 7", "the string 'x'": what the value is, for errors.
  std::string describe() const;
};

struct GgufTensor {
  std::string_view name;  // of the file
  Shape shape;            // row-major: the last axis lies together. ggml's order is the reverse.
  const BlockType* type = nullptr;
  std::span<const std::byte> bytes;
};

/// Views stay valid as long as the object. Reading is safe from any thread.
class GgufFile {
 public:
  /// Opens all parts of a split file, whichever part `path` is. Throws UserError.
  explicit GgufFile(const fs::path& path);
  /// Over bytes that outlive the object, of a file that is not split; `what` stands for the path in
  /// errors.
  GgufFile(std::span<const std::byte> bytes, const std::string& what);
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& what() const { return what_; }
  uint32_t version() const { return version_; }
  /// The files that were opened, in the order of the parts.
  const std::vector<fs::path>& paths() const { return paths_; }

  using Metadata = std::map<std::string_view, GgufValue, std::less<>>;
  /// That of the first part.
  const Metadata& metadata() const { return metadata_; }
  const GgufValue* find(std::string_view key) const;

  // Values of a type by key. Nothing where the key is absent; throws UserError, which names the key
  // and what it holds, for a value of another type. Any integer type, and any float type, will do.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // an integer, too
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;  // empty where absent
  std::vector<int64_t> integers(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;

  /// In the order of the files.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;
  /// Gives the pages of bytes of this file back to the system after they were read.
  void let_go(std::span<const std::byte> bytes) const;

 private:
  void add(std::vector<GgufTensor> tensors, const std::string& what);
  void open_parts(const fs::path& path, int64_t count);
  [[noreturn]] void wrong(std::string_view key, const char* wanted, const GgufValue& found) const;

  std::string what_;
  uint32_t version_ = 0;
  std::vector<fs::path> paths_;
  std::deque<MappedFile> maps_;
  Metadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string_view, size_t, std::less<>> tensor_index_;
};

/// Whether a file begins as a GGUF file does.
bool is_gguf_file(const fs::path& path);

/// The path of part `part` (from 1) of `count` of the split file that `path` is a part of; nothing
/// where the name of `path` does not end in "-00001-of-00002.gguf" with this count.
std::optional<fs::path> gguf_part(const fs::path& path, int64_t part, int64_t count);

}  // namespace brrr::io
