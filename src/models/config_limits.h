#pragma once
// Checks of a configuration's fields. What is out of range is a UserError "[MODEL config] FIELD
// must be EXPECTED; got VALUE".

#include <cstdint>
#include <string>
#include <string_view>

#include "base/errors.h"

namespace brrr::models {

class ConfigLimits {
 public:
  explicit ConfigLimits(std::string_view model) : model_(model) {}

  template <typename T>
  [[noreturn]] void fail(const char* name, const std::string& expected, const T& found) const {
    user_error("[{} config] {} must be {}; got {}", model_, name, expected, found);
  }
  void size(const char* name, int64_t value, int64_t most) const {
    if (value < 1 || value > most) fail(name, fmt::format("between 1 and {}", most), value);
  }
  void multiple(const char* name, int64_t value, const char* divisor_name, int64_t divisor) const {
    if (value % divisor != 0)
      fail(name, fmt::format("a multiple of {} {}", divisor_name, divisor), value);
  }

 private:
  std::string_view model_;
};

}  // namespace brrr::models
