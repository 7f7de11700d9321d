#include "cli/model_option.h"

#include <cstdio>

#include "base/tell.h"

namespace brrr::cli {

fs::path find_named_model(const std::string& name) {
  return io::find_model(name, [](const std::string& line) { tell("warning: {}\n", line); });
}

io::ModelFolder open_named_model(const std::string& name) {
  return io::open_model(find_named_model(name));
}

std::vector<int32_t> default_prompt(const io::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode("", {.add_special_tokens = true});
  if (!ids.empty()) return ids;
  try {
    ids = tokenizer.encode(std::string_view("\n"));
  } catch (const UserError&) {  // its text had no newline
  }
  if (ids.empty()) ids.push_back(0);
  return ids;
}

}  // namespace brrr::cli
