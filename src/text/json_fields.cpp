#include "text/json_fields.h"

#include "base/errors.h"

namespace brrr::io {

JsonFields::JsonFields(const Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json.is_object()) user_error("{} is {}; expected an object", where_, describe(json));
}

const Json& JsonFields::get(const char* key) const {
  static const Json null;
  const auto found = json_.find(key);
  return found == json_.end() ? null : *found;
}

void JsonFields::wrong(const char* key, const char* expected) const {
  if (!json_.contains(key)) user_error("{}.{} is missing; expected {}", where_, key, expected);
  user_error("{}.{} is {}; expected {}", where_, key, describe(get(key)), expected);
}

std::string JsonFields::text(const char* key) const {
  const Json& value = get(key);
  if (!value.is_string()) wrong(key, "a string");
  return value.get<std::string>();
}

std::string JsonFields::text(const char* key, const char* otherwise) const {
  return get(key).is_null() ? otherwise : text(key);
}

bool JsonFields::flag(const char* key, bool otherwise) const {
  const Json& value = get(key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) wrong(key, "true or false");
  return value.get<bool>();
}

const Json& JsonFields::list(const char* key) const {
  const Json& value = get(key);
  if (!value.is_array()) wrong(key, "a list");
  return value;
}

const Json& JsonFields::object(const char* key) const {
  const Json& value = get(key);
  if (!value.is_object()) wrong(key, "an object");
  return value;
}

int32_t JsonFields::integer(const char* key, int32_t least, int32_t most) const {
  const Json& value = get(key);
  const std::string expected = fmt::format("a whole number from {} to {}", least, most);
  if (!value.is_number_integer()) wrong(key, expected.c_str());
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > 0x7fffffffu;
  if (huge || value.get<int64_t>() < least || value.get<int64_t>() > most)
    wrong(key, expected.c_str());
  return value.get<int32_t>();
}

std::pair<bool, std::string> JsonFields::pattern(const char* key) const {
  const Json& value = get(key);
  for (const char* kind : {"Regex", "String"})
    if (value.is_object() && value.size() == 1 && value.contains(kind) && value[kind].is_string())
      return {kind[0] == 'R', value[kind].get<std::string>()};
  wrong(key, "{\"Regex\": \"...\"} or {\"String\": \"...\"}");
}

void JsonFields::expect(const char* key, const Json& wanted) const {
  const Json& value = get(key);
  if (!value.is_null() && value != wanted)
    user_error("{}.{} is {}, which is not supported; expected {}", where_, key, describe(value),
               wanted.dump());
}

}  // namespace brrr::io
