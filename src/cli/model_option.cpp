#include "cli/model_option.h"

#include <cstdio>

#include "base/tell.h"
#include "cli/module_option.h"
#include "data/token_source.h"

namespace brrr::cli {

namespace {

/// The option that a word means.
std::string option_of(const std::string& word, AlsoReads reads) {
  std::error_code ignored;
  const fs::path path(word);
  if (fs::is_directory(path, ignored)) {
    const bool holds_shards = reads == AlsoReads::text_or_shards &&
                              !fs::exists(path / "config.json", ignored) &&
                              (io::TokenSource::has_split(path, ".bin"));
    return holds_shards ? "data" : "model";
  }
  const bool is_of_model = path.extension() == ".safetensors" || path.filename() == "config.json" ||
                           is_module_file(word);
  if (reads == AlsoReads::nothing || is_of_model || !fs::exists(path, ignored)) return "model";
  if (reads == AlsoReads::prompt_file) return "prompt-file";
  return reads == AlsoReads::text_or_shards && path.extension() == ".bin" ? "data" : "text";
}

}  // namespace

KeyValues with_words(const Arguments& args, AlsoReads reads) {
  KeyValues given = args.given;
  std::string model;
  for (const auto& [key, value] : args.given)
    if (canonical_key(key) == "model") model = "--model " + value;
  for (const std::string& word : args.positional) {
    const std::string option = option_of(word, reads);
    if (option == "model") {
      std::error_code ignored;
      if (reads == AlsoReads::prompt_file && word.find(' ') != std::string::npos &&
          !fs::exists(word, ignored))
        usage_error(
            "unexpected '{}': there is no such folder; to continue a text, use --prompt TEXT",
            word);
      if (!model.empty()) usage_error("expected one model folder; got {} and '{}'", model, word);
      model = "'" + word + "'";
    }
    given.emplace_back(option, word);
  }
  return given;
}

fs::path find_named_model(const std::string& name) {
  return io::find_model(name, [](const std::string& line) { tell("warning: {}\n", line); });
}

io::ModelFolder open_named_model(const std::string& name, const io::OpenOptions& options) {
  return io::open_model(find_named_model(name), options);
}

}  // namespace brrr::cli
