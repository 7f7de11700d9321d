#include "train/dataset_tokenizer.h"

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/human.h"
#include "folders/model_folder.h"
#include "web/fetch.h"

namespace brrr::train {
namespace {

bool holds_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  // tokenizer_config.json alone is none.
  return std::ranges::any_of(io::tokenizer_file_names(), [&](std::string_view file) {
    return file != "tokenizer_config.json" && file != "special_tokens_map.json" &&
           fs::exists(folder / file, ignored);
  });
}

constexpr int32_t kGpt2Entries = 50257;

/// As --tokenizer names it: "byte", "gpt2", "char of 65 tokens".
std::string name_of(const io::Tokenizer& tokenizer) {
  if (asks_for("byte", tokenizer)) return "byte";
  if (asks_for("gpt2", tokenizer)) return "gpt2";
  return fmt::format("{} of {} tokens", tokenizer.kind(), tokenizer.vocab_size());
}

std::string with_slash(const fs::path& folder) { return (folder / "").string(); }

/// Shards stand beside the tokenizer that made them.
fs::path folder_of(const std::string& shard) {
  const fs::path path(shard);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// `shown`: the tokenizer that --tokenizer `asked` for, as it is called.
[[noreturn]] void refuse_asked(const fs::path& folder, const io::Tokenizer& beside,
                               const std::string& asked, const std::string& shown) {
  user_error(
      "{} was prepared with {}; you asked for {}. Leave --tokenizer out, or prepare the text once "
      "more: `brrr data prepare --text FILE... --tokenizer {} --output-dir FOLDER`",
      with_slash(folder), name_of(beside), shown, shell_word(asked));
}

}  // namespace

std::unique_ptr<io::Tokenizer> make_tokenizer(const TrainOptions& options, const Learn& learn) {
  const std::string& name = options.tokenizer;
  if (name.empty()) {
    const fs::path folder = folder_of(options.data.at(0));
    if (!holds_tokenizer(folder))
      user_error(
          "{}: there is no tokenizer next to the shards; name the one that made them: --tokenizer "
          "gpt2, byte, or its folder",
          folder.string());
    return io::load_tokenizer(folder);
  }
  if (name == "byte") return io::make_byte_tokenizer();
  if (name == "gpt2") return io::load_tokenizer(io::find_gpt2_tokenizer());
  if (fs::is_directory(name) || (name != "char" && fs::is_regular_file(name)))
    return io::open_tokenizer(name);
  const std::optional<LearntTokenizer> kind = learnt_tokenizer(name);
  if (name != "char" && !kind)
    usage_error(
        "--tokenizer must be byte, char, gpt2, bpe:N, wordpiece:N or a folder with tokenizer "
        "files; got '{}'",
        name);
  if (!learn) {
    const fs::path folder = folder_of(options.data.at(0));
    if (holds_tokenizer(folder)) {
      auto beside = io::load_tokenizer(folder);
      if (asks_for(name, *beside)) return beside;
      refuse_asked(folder, *beside, name, name);
    }
    user_error(
        "--tokenizer {} learns from text, and --data gives only token shards: name the tokenizer "
        "that made them (byte, gpt2, or its folder)",
        name);
  }
  return learn(kind);
}

std::unique_ptr<io::Tokenizer> learn_tokenizer(std::string_view text,
                                               const std::optional<LearntTokenizer>& kind) {
  if (!kind) return io::make_char_tokenizer(text);
  const auto entries = static_cast<int32_t>(kind->entries);
  return kind->kind == "wordpiece" ? io::train_wordpiece(text, entries)
                                   : io::train_bpe(text, entries);
}

bool asks_for(const std::string& name, const io::Tokenizer& model) {
  if (name == "byte" || name == "char") return model.kind() == name;
  if (name == "gpt2") return model.kind() == "bpe" && model.vocab_size() == kGpt2Entries;
  if (const auto learnt = learnt_tokenizer(name))
    return model.kind() == learnt->kind && model.vocab_size() == learnt->entries;
  return same_tokens(*io::open_tokenizer(name), model);
}

bool same_tokens(const io::Tokenizer& a, const io::Tokenizer& b) {
  if (a.kind() != b.kind() || a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < a.vocab_size(); ++id)
    if (a.decode(std::span(&id, 1)) != b.decode(std::span(&id, 1))) return false;
  return true;
}

void check_tokenizer(const io::Tokenizer& used, const std::string& asked, const std::string& model,
                     const std::vector<std::string>& shards) {
  std::set<fs::path> folders;
  for (const std::string& shard : shards) folders.insert(folder_of(shard));
  for (const fs::path& folder : folders) {
    if (!holds_tokenizer(folder)) continue;
    std::unique_ptr<io::Tokenizer> beside;
    try {
      beside = io::load_tokenizer(folder);
    } catch (const UserError&) {  // of a kind that we cannot read; the one in use was named
      continue;
    }
    if (same_tokens(used, *beside)) continue;
    if (!asked.empty())
      refuse_asked(
          folder, *beside, asked,
          fs::exists(asked) ? fmt::format("{} ({})", asked, name_of(used)) : name_of(used));
    user_error(
        "{} was prepared with {}; the model in {} has {}. Prepare the text with the tokenizer of "
        "the model: `brrr data prepare --text FILE... --tokenizer {} --output-dir FOLDER`",
        with_slash(folder), name_of(*beside), model, name_of(used), shell_word(model));
  }
}

}  // namespace brrr::train
