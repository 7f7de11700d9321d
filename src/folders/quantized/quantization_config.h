#pragma once
// Reads the keys of a quantization_config and refuses values that no code reads.

#include <string>
#include <vector>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {

/// The key of config.json.
inline constexpr const char* kQuantizationKey = "quantization_config";

class QuantizationConfig {
 public:
  /// `config` outlives this. `what`: the file's name.
  QuantizationConfig(const Json& config, std::string what);

  const Json& json() const { return config_; }
  /// null if there is no such key.
  Json get(const std::string& key) const { return config_.value(key, Json()); }
  bool flag(const std::string& key) const;
  /// The names in a list of layers that are not quantised; null stands for none.
  std::vector<std::string> names(const std::string& key) const;
  /// A group size that is a multiple of 8, or -1 for whole rows (returned as 0).
  int64_t group_size(const std::string& key) const;

  /// Refuses a value of `object` that is not one of `supported`.
  void expect(const Json& object, const std::string& prefix, const char* key,
              const std::vector<Json>& supported) const;
  void expect(const char* key, const std::vector<Json>& supported) const {
    expect(config_, "", key, supported);
  }
  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& expected) const;

 private:
  const Json& config_;
  std::string what_;
};

}  // namespace brrr::io
