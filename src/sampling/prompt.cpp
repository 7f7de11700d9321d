#include "sampling/prompt.h"

#include <string_view>

#include "base/errors.h"

namespace brrr::infer {

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

}  // namespace brrr::infer
