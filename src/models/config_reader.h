#pragma once
// Typed access to the keys of a config.json, for the architectures that read one. Every mismatch is
// a UserError that names the file, the key, what was expected and what it holds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "formats/json_file.h"

namespace brrr::models {

class ConfigReader {
 public:
  /// `text` is the file, `what` its name. Throws UserError for text that is no JSON object.
  ConfigReader(std::string_view text, std::string what);

  /// An object inside of another one, which `key` names.
  ConfigReader(const ConfigReader& outer, const char* key);

  int64_t required_integer(const char* key) const;
  double required_number(const char* key) const;
  /// Nothing when the key is absent or null.
  std::optional<int64_t> optional_integer(const char* key) const;
  /// One integer or a list of them; empty when the key is absent or null.
  std::vector<int64_t> integers(const char* key) const;
  /// One string or a list of them; empty when the key is absent or null.
  std::vector<std::string> strings(const char* key) const;
  /// `fallback` when the key is absent or null.
  int64_t integer(const char* key, int64_t fallback) const {
    return optional_integer(key).value_or(fallback);
  }
  double number(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const char* fallback) const;
  /// Throws UserError where the key has a value, and one that is not among `supported`.
  void insist(const char* key, const std::vector<io::Json>& supported) const;

  /// Throws UserError for weights in a format that is not read.
  void refuse_quantization() const;

  /// Whether the key is there and not null.
  bool has(const char* key) const;
  const io::Json* find(const char* key) const;
  /// The keys that are neither in `written` nor in `understood`, as the text of an object; "" where
  /// there are none.
  std::string unknown_keys(const io::Json& written,
                           const std::vector<std::string>& understood = {}) const;
  const std::string& what() const { return what_; }

 private:
  [[noreturn]] void wrong(const char* key, const char* wanted, const io::Json& found) const;
  int64_t integer_of(const char* key, const io::Json& value) const;

  std::string what_;
  io::Json root_;
};

/// Token ids as config.json has them: null, one, or a list; those outside the vocabulary mean none.
io::Json ids_text(const std::vector<int64_t>& ids, int64_t vocabulary);
/// "bfloat16" or "float32".
const char* dtype_text(DType stored);
/// The text of a config.json: `written`, and the unknown keys that a file had.
std::string config_text(io::Json written, const std::string& unknown_keys);

}  // namespace brrr::models
