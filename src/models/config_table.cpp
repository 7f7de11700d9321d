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

std::vector<int64_t> parse_sizes(const std::string& text, size_t longest, int64_t most) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    sizes.push_back(parse_integer(std::string_view(text).substr(begin, end - begin), 1, most));
    begin = end + 1;
  }
  if (sizes.size() > longest)
    usage_error("expected up to {} numbers with commas between them; got '{}'", longest, text);
  return sizes;
}

std::string in_words(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const auto last = names.end() - 1;
  if (names.size() == 1) return *last;
  return fmt::format("{} and {}", fmt::join(names.begin(), last, ", "), *last);
}

}  // namespace brrr::models
