#include "cli/model_option.h"

#include <cstdio>

#include "base/human.h"
#include "base/tell.h"
#include "cli/runnable_option.h"
#include "data/token_source.h"
#include "formats/file_kind.h"

namespace brrr::cli {

namespace {

/// Whether a word has the ending of a text file, which no model has.
bool is_text_name(const std::string& word) {
  const std::string extension = fs::path(word).extension().string();
  for (const char* known : {".txt", ".text", ".md", ".csv", ".tsv", ".jsonl", ".gz", ".zst"})
    if (extension == known) return true;
  return false;
}

/// The option that a positional word stands for.
std::string option_of(const std::string& word, AlsoReads reads) {
  std::error_code ignored;
  const fs::path path(word);
  if (word == "-" && (reads == AlsoReads::prompt_file || reads == AlsoReads::text))
    return reads == AlsoReads::prompt_file ? "prompt-file" : "text";
  if (fs::is_directory(path, ignored)) {
    const bool holds_shards = reads == AlsoReads::text_or_shards &&
                              !fs::exists(path / "config.json", ignored) &&
                              (io::TokenSource::has_split(path, ".bin"));
    return holds_shards ? "data" : "model";
  }
  const auto kind = io::kind_of_file(path);
  const bool is_of_model = path.extension() == ".safetensors" || path.extension() == ".pth" ||
                           path.filename() == "config.json" || is_module_file(word) ||
                           (kind && kind->is_model);
  if (reads == AlsoReads::nothing || is_of_model || !fs::exists(path, ignored)) return "model";
  if (reads == AlsoReads::prompt_file) return "prompt-file";
  return reads == AlsoReads::text_or_shards && path.extension() == ".bin" ? "data" : "text";
}

}  // namespace

KeyValues with_words(const Arguments& args, AlsoReads reads) {
  KeyValues given = args.given;
  std::string model, missing;  // the model that was named, and a word that is no file here
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
      const bool is_missing = !fs::exists(word, ignored);
      if (is_missing && (!model.empty() || is_text_name(word))) missing = word;
      if (!missing.empty() && (!model.empty() || is_text_name(missing)))
        usage_error("there is no file or folder '{}'", missing);
      if (is_missing) missing = word;  // perhaps a model of the Hub
      if (!model.empty() && io::holds_adapter(word))
        usage_error("expected one model folder; got {} and '{}', an adapter: add --adapter {}",
                    model, word, shell_word(word));
      if (!model.empty()) usage_error("expected one model folder; got {} and '{}'", model, word);
      model = "'" + word + "'";
    }
    given.emplace_back(option, word);
  }
  return given;
}

void refuse_pictures(const models::Model& model, const fs::path& folder, const char* what) {
  if (!model.sees_pictures()) return;
  const std::string name = shell_word(folder.string());
  user_error(
      "{}: a {} sees pictures and is not {}; write it as ONNX: `brrr export {} --output "
      "model.onnx`",
      folder.string(), model.architecture().title, what, name);
}

}  // namespace brrr::cli
