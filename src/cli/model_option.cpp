#include "cli/model_option.h"

#include <cstdio>

#include "base/memory.h"
#include "base/tell.h"

namespace brrr::cli {

fs::path find_named_model(const std::string& name) {
  return io::find_model(name, [](const std::string& line) { tell("warning: {}\n", line); });
}

io::ModelFolder open_named_model(const std::string& name) {
  return io::open_model(find_named_model(name));
}

int64_t arena_limit(const std::string& memory_limit, const Backend& backend) {
  if (memory_limit.empty()) return 0;
  const int64_t limit = parse_memory(memory_limit);
  if (backend.memory_bytes > 0) return limit;
  const int64_t needed = resident_memory().needed();
  if (needed >= limit)
    throw UserError(
        fmt::format("the program and the model's files need {}, and --memory-limit is {}",
                    memory_text(needed), memory_text(limit)),
        ExitCode::kNoMemory);
  return limit - needed;
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
