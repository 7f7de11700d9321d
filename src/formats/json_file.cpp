#include "formats/json_file.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/errors.h"

namespace brrr::io {

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

Json parse_json(std::string_view text, const std::string& what) {
  // One set of keys per open object; the library would silently let the last duplicate win.
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepestJson)
      user_error("{}: JSON is nested more than {} levels deep", what, kDeepestJson);
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second && duplicate.empty()) duplicate = in_quotes(key);
    }
    return true;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), watch);
    if (!duplicate.empty())
      user_error("{}: the key {} appears twice in one JSON object", what, duplicate);
    return value;
  } catch (const Json::parse_error& e) {
    const size_t at = std::min(e.byte == 0 ? 0 : e.byte - 1, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start =
        before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    const char* reason = text.empty()        ? "the file is empty"
                         : at >= text.size() ? "the text ends too early"
                                             : "unexpected text or a byte that is not UTF-8";
    user_error("{}: not valid JSON at line {}, column {}: {}", what, line, at - line_start + 1,
               reason);
  } catch (const Json::exception& e) {  // a number beyond the range of double
    user_error("{}: not valid JSON: {}", what, e.what());
  }
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string " + in_quotes(value.get_ref<const std::string&>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "the number " + value.dump();
    default:
      return value.dump();
  }
}

}  // namespace brrr::io
