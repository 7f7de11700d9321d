#pragma once
// The tokenizers of tests/golden/tokenizer_cases.json, which differ in one part each.

#include <stdexcept>

#include "base/file.h"
#include "formats/json_file.h"
#include "text/tokenizer_json.h"

namespace brrr::test {

inline io::Json read_golden(const std::string& name) {
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "tests/golden" / name;
  return io::parse_json(read_file(path), path.string());
}

/// A case's tokenizer.json: its parts, with the model that it shares with others.
inline io::Json tokenizer_json_of(const io::Json& all, const io::Json& item) {
  io::Json root = item["root"];
  root["model"] = all["models"][item["base"].get<std::string>()];
  root["model"].update(item["model"]);
  return root;
}

inline std::unique_ptr<io::Tokenizer> tokenizer_of(const io::Json& root) {
  return io::read_tokenizer_json({{"tokenizer.json", root.dump()}}, "");
}

/// The tokenizer of the case `name`.
inline std::unique_ptr<io::Tokenizer> golden_tokenizer(const std::string& name) {
  const io::Json all = read_golden("tokenizer_cases.json");
  for (const io::Json& item : all["cases"])
    if (item["name"] == name) return tokenizer_of(tokenizer_json_of(all, item));
  throw std::runtime_error("tokenizer_cases.json has no case " + name);
}

}  // namespace brrr::test
