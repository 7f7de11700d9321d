#include "folders/quantized/quantization_config.h"

#include <algorithm>
#include <utility>

namespace brrr::io {
namespace {

constexpr int64_t kLargestGroupSize = int64_t{1} << 20;

}  // namespace

QuantizationConfig::QuantizationConfig(const Json& config, std::string what)
    : config_(config), what_(std::move(what)) {
  if (!config_.is_object()) refuse("", config_, "an object");
}

bool QuantizationConfig::flag(const std::string& key) const {
  const Json value = get(key);
  if (value.is_null()) return false;
  if (!value.is_boolean()) refuse(key, value, "true or false");
  return value.get<bool>();
}

std::vector<std::string> QuantizationConfig::names(const std::string& key) const {
  const Json list = get(key);
  if (list.is_null()) return {};
  if (!list.is_array()) refuse(key, list, "a list of names");
  std::vector<std::string> names;
  for (const Json& name : list) {
    if (!name.is_string()) refuse(key, name, "names of layers");
    names.push_back(name.get<std::string>());
  }
  return names;
}

int64_t QuantizationConfig::group_size(const std::string& key) const {
  const Json size = get(key);
  if (size == -1) return 0;
  if (!size.is_number_integer() || size.get<int64_t>() < 8 ||
      size.get<int64_t>() > kLargestGroupSize || size.get<int64_t>() % 8 != 0)
    refuse(key, size, "a multiple of 8, or -1 for whole rows");
  return size.get<int64_t>();
}

void QuantizationConfig::expect(const Json& object, const std::string& prefix, const char* key,
                                const std::vector<Json>& supported) const {
  const Json value = object.value(key, Json());
  if (std::ranges::find(supported, value) != supported.end()) return;
  std::vector<std::string> texts;
  for (const Json& one : supported)
    if (!one.is_null()) texts.push_back(one.is_string() ? one.get<std::string>() : one.dump());
  refuse(prefix + key, value, fmt::format("{}", fmt::join(texts, " or ")));
}

void QuantizationConfig::refuse(const std::string& key, const Json& value,
                                const std::string& expected) const {
  user_error("{}: {}{}{} is not supported: expected {}; found {}", what_, kQuantizationKey,
             key.empty() ? "" : ".", key, expected, describe(value));
}

}  // namespace brrr::io
