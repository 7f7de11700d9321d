#include "models/config_reader.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr::models {

using io::Json;

ConfigReader::ConfigReader(std::string_view text, std::string what)
    : what_(std::move(what)), root_(io::parse_json(text, what_)) {
  if (!root_.is_object())
    user_error("{}: expected a JSON object with the configuration of a model, found {}", what_,
               io::describe(root_));
}

ConfigReader::ConfigReader(const ConfigReader& outer, const char* key)
    : what_(outer.what_ + ": " + key), root_(*outer.find(key)) {
  if (!root_.is_object()) outer.wrong(key, "an object", root_);
}

bool ConfigReader::has(const char* key) const {
  const Json* value = find(key);
  return value != nullptr && !value->is_null();
}

std::string ConfigReader::unknown_keys(const Json& written,
                                       const std::vector<std::string>& understood) const {
  Json unknown = Json::object();
  for (const auto& item : root_.items())
    if (!written.contains(item.key()) &&
        std::find(understood.begin(), understood.end(), item.key()) == understood.end())
      unknown[item.key()] = item.value();
  return unknown.empty() ? "" : unknown.dump();
}

void ConfigReader::refuse_quantization() const {
  const Json* const config = find("quantization_config");
  if (config == nullptr || config->is_null()) return;
  const std::string method =
      config->is_object() ? config->value("quant_method", Json()).dump() : std::string();
  for (const char* known : {"\"awq\"", "\"bitsandbytes\"", "\"compressed-tensors\"",
                            "\"fbgemm_fp8\"", "\"fp8\"", "\"gptq\""})
    if (method == known) return;
  // Early files of bitsandbytes name no quant_method.
  if (config->is_object() && method == "null" &&
      (config->contains("load_in_8bit") || config->contains("load_in_4bit")))
    return;
  user_error(
      "{}: quantization_config is not supported with quant_method {}; expected awq, bitsandbytes, "
      "compressed-tensors, fbgemm_fp8, fp8 or gptq, or weights in f32, bf16 or f16",
      what_, method.empty() ? "null" : method.substr(0, 60));
}

Json ids_text(const std::vector<int64_t>& ids, int64_t vocabulary) {
  Json list = Json::array();
  for (const int64_t id : ids)
    if (id >= 0 && id < vocabulary) list.push_back(id);
  if (list.empty()) return Json();
  return list.size() == 1 ? list[0] : list;
}

const char* dtype_text(DType stored) { return stored == DType::bf16 ? "bfloat16" : "float32"; }

std::string config_text(Json written, const std::string& unknown_keys) {
  if (!unknown_keys.empty()) {
    const Json unknown = Json::parse(unknown_keys);
    for (const auto& [key, value] : unknown.items()) written[key] = value;
  }
  return written.dump(2) + "\n";
}

const Json* ConfigReader::find(const char* key) const {
  const auto at = root_.find(key);
  return at == root_.end() ? nullptr : &*at;
}

int64_t ConfigReader::required_integer(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) user_error("{}: '{}' is missing", what_, key);
  return integer_of(key, *value);
}

std::optional<int64_t> ConfigReader::optional_integer(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return integer_of(key, *value);
}

double ConfigReader::required_number(const char* key) const {
  if (!has(key)) user_error("{}: '{}' is missing", what_, key);
  return number(key, 0);
}

std::vector<int64_t> ConfigReader::integers(const char* key) const {
  std::vector<int64_t> list;
  if (!has(key)) return list;
  const Json& value = *find(key);
  if (!value.is_array()) return {integer_of(key, value)};
  for (const Json& item : value) list.push_back(integer_of(key, item));
  return list;
}

std::vector<std::string> ConfigReader::strings(const char* key) const {
  std::vector<std::string> list;
  if (!has(key)) return list;
  const Json& value = *find(key);
  for (const Json& item : value.is_array() ? value : Json::array({value})) {
    if (!item.is_string()) wrong(key, "a string", item);
    list.push_back(item.get<std::string>());
  }
  return list;
}

double ConfigReader::number(const char* key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_number()) wrong(key, "a number", *value);
  return value->get<double>();
}

bool ConfigReader::flag(const char* key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_boolean()) wrong(key, "true or false", *value);
  return value->get<bool>();
}

std::string ConfigReader::text(const char* key, const char* fallback) const {
  const Json* value = find(key);
  if (value == nullptr || value->is_null()) return fallback;
  if (!value->is_string()) wrong(key, "a string", *value);
  return value->get<std::string>();
}

void ConfigReader::insist(const char* key, const std::vector<Json>& supported) const {
  if (!has(key) || std::ranges::find(supported, *find(key)) != supported.end()) return;
  if (supported[0].is_null()) user_error("{}: {} is not supported", what_, key);
  std::string expected;
  for (const Json& value : supported)
    expected += (expected.empty() ? "" : ", ") +
                (value.is_string() ? value.get<std::string>() : value.dump());
  const Json& found = *find(key);
  user_error("{}: {} = {} is not supported; expected {}", what_, key,
             found.is_string()      ? io::in_quotes(found.get<std::string>())
             : found.is_primitive() ? found.dump()
                                    : io::describe(found),
             expected);
}

void ConfigReader::wrong(const char* key, const char* wanted, const Json& found) const {
  user_error("{}: '{}' must be {}; found {}", what_, key, wanted, io::describe(found));
}

int64_t ConfigReader::integer_of(const char* key, const Json& value) const {
  // Unsigned values beyond int64 would wrap to negative ones.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62);
  if (!fits) wrong(key, "an integer", value);
  return value.get<int64_t>();
}

}  // namespace brrr::models
