#pragma once
// JSON that came from outside: parsed strictly (UTF-8, no duplicate keys, no trailing text), with
// errors that name the file and the place. Used by every reader of JSON in this folder.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace brrr::io {

using Json = nlohmann::json;

/// Text from outside made safe to print inside one line: quoted, control characters escaped, cut at
/// 100 bytes.
std::string in_quotes(std::string_view text);

/// Objects and arrays inside one another beyond which JSON is refused.
constexpr int kDeepestJson = 256;

/// Parses `text`; `what` names its source in the error ("run/config.json"). Throws UserError for
/// text that is not JSON (with the line, the column and the reason), for a key that appears twice
/// in one object, and for nesting beyond kDeepestJson.
Json parse_json(std::string_view text, const std::string& what);

/// The same, with the members of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what);

/// The text of `json` on one line. Bytes that are no UTF-8, as names of files may have them, become
/// U+FFFD.
template <typename AnyJson>
std::string json_line(const AnyJson& json) {
  return json.dump(-1, ' ', false, AnyJson::error_handler_t::replace);
}

/// "an object", "the string \"x\"", "the number 3": what a value is, for errors.
std::string describe(const Json& value);

}  // namespace brrr::io
