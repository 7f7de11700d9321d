#include "models/config_table.h"

#include <algorithm>

namespace brrr::models {

size_t read_choice(const ConfigReader& keys, const char* key, const Spellings& all) {
  const std::string name = keys.text(key, "");
  std::string expected;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::find(all[i], name) != all[i].end()) return i;
    for (const std::string& spelling : all[i])
      expected += (expected.empty() ? "" : ", ") + spelling;
  }
  user_error("{}: {} = {} is not supported; expected {}", keys.what(), key, io::in_quotes(name),
             expected);
}

std::string in_words(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const auto last = names.end() - 1;
  if (names.size() == 1) return *last;
  return fmt::format("{} and {}", fmt::join(names.begin(), last, ", "), *last);
}

}  // namespace brrr::models
