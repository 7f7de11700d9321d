#pragma once
// The members of one object of tokenizer.json, asked for by name and type. Errors name the file,
// the field and the value.

#include <string>
#include <utility>

#include "formats/json_file.h"

namespace brrr::io {

class JsonFields {
 public:
  /// Throws UserError unless `json` is an object. `json` must outlive it.
  JsonFields(const Json& json, std::string where);

  const std::string& where() const { return where_; }
  /// Null where it is absent.
  const Json& get(const char* key) const;
  std::string text(const char* key) const;
  /// `otherwise` where it is absent or null.
  std::string text(const char* key, const char* otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  const Json& list(const char* key) const;
  const Json& object(const char* key) const;
  int32_t integer(const char* key, int32_t least, int32_t most) const;
  /// {"Regex": "..."} or {"String": "..."}: is it a regular expression, and the text.
  std::pair<bool, std::string> pattern(const char* key) const;
  /// Throws UserError unless the value is absent, null or `wanted`.
  void expect(const char* key, const Json& wanted) const;

 private:
  [[noreturn]] void wrong(const char* key, const char* expected) const;

  const Json& json_;
  std::string where_;
};

}  // namespace brrr::io
