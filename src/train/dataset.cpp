#include "train/dataset.h"

#include <charconv>
#include <set>

#include "base/file.h"
#include "io/corpus.h"
#include "io/fetch.h"

namespace brrr::train {
namespace {

bool holds_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  for (const char* file : {"vocab.json", "merges.txt", "tokenizer.json", "char.json", "byte.json"})
    if (fs::exists(folder / file, ignored)) return true;
  return false;
}

/// Shards stand beside the tokenizer that made them.
fs::path folder_of(const std::string& shard) {
  const fs::path path(shard);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::unique_ptr<io::Tokenizer> make_tokenizer(const TrainOptions& options, std::string_view text) {
  const std::string& name = options.tokenizer;
  if (name.empty()) {
    const fs::path folder = folder_of(options.data.at(0));
    if (!holds_tokenizer(folder))
      user_error(
          "{}: no tokenizer stands beside the shards; name the one that made them: --tokenizer "
          "gpt2, byte, or its folder",
          folder.string());
    return io::load_tokenizer(folder);
  }
  if (name == "byte") return io::make_byte_tokenizer();
  if (name == "gpt2") return io::load_tokenizer(io::find_gpt2_tokenizer());
  if (fs::is_directory(name)) return io::load_tokenizer(name);
  if (name == "char" || name.starts_with("bpe:")) {
    if (text.empty())
      user_error(
          "--tokenizer {} learns from text, and --data gives only token shards: name the tokenizer "
          "that made them (byte, gpt2, or its folder)",
          name);
    if (name == "char") return io::make_char_tokenizer(text);
    int32_t size = 0;
    const char *begin = name.data() + 4, *end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, size);
    if (error != std::errc() || stop != end || size < 257)
      usage_error("--tokenizer bpe:N needs a vocabulary of at least 257; got '{}'", name);
    return io::train_bpe(text, size);
  }
  usage_error(
      "--tokenizer must be byte, char, gpt2, bpe:N or a folder with tokenizer files; got '{}'",
      name);
}

bool same_tokens(const io::Tokenizer& a, const io::Tokenizer& b) {
  if (a.kind() != b.kind() || a.vocab_size() != b.vocab_size()) return false;
  for (int32_t id = 0; id < a.vocab_size(); ++id)
    if (a.decode(std::span(&id, 1)) != b.decode(std::span(&id, 1))) return false;
  return true;
}

/// Ids of one tokenizer read with another are noise that trains without an error. `name` is where
/// the one in use comes from.
void check_tokenizer(const io::Tokenizer& used, const std::string& name,
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
    if (!same_tokens(used, *beside))
      user_error(
          "the tokenizer {} ({} of {}) did not make the shards in {}, whose own is {} of {}; leave "
          "--tokenizer out, or make shards with the other one",
          name, used.kind(), used.vocab_size(), folder.string(), beside->kind(),
          beside->vocab_size());
  }
}

// The split falls between characters: never inside a UTF-8 sequence.
size_t split_point(std::string_view text, double val_fraction) {
  size_t at = static_cast<size_t>(static_cast<double>(text.size()) * (1 - val_fraction));
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// Validation needs at least one sample; without it the run goes on, and says so.
bool enough_for_validation(const io::TokenSource& val, int64_t context, std::string& note) {
  if (val.tokens() >= context + 1) return true;
  if (!note.empty()) note += "; ";
  note += fmt::format("no validation: {} has {} tokens, one sample needs {}", val.description(),
                      val.tokens(), context + 1);
  return false;
}

void check_length(const io::TokenSource& source, const char* what, int64_t context) {
  if (source.tokens() < context + 1)
    user_error(
        "{} has {} tokens, one sample needs {} (context {} + 1): use more text or a smaller "
        "--context",
        what, source.tokens(), context + 1, context);
}

}  // namespace

Dataset load_dataset(const TrainOptions& options, const std::string& tokenizer_folder) {
  auto known_tokenizer = [&]() -> std::unique_ptr<io::Tokenizer> {
    if (tokenizer_folder.empty()) return nullptr;
    return io::load_tokenizer(tokenizer_folder);
  };
  if (!options.data.empty()) {
    const bool folder = options.data.size() == 1 && fs::is_directory(options.data[0]);
    const bool split = folder && options.val_data.empty();
    io::TokenSource train = split ? io::TokenSource::open_split(options.data[0], "train")
                                  : io::TokenSource::open(options.data);
    const bool val_in_folder = split && io::TokenSource::has_split(options.data[0], "val");
    io::TokenSource val = val_in_folder ? io::TokenSource::open_split(options.data[0], "val")
                          : options.val_data.empty()
                              ? io::TokenSource::from_ids({}, "no validation data")
                              : io::TokenSource::open(options.val_data);
    std::unique_ptr<io::Tokenizer> tokenizer = known_tokenizer();
    if (!tokenizer) tokenizer = make_tokenizer(options, {});
    std::vector<std::string> shards = options.data;
    shards.insert(shards.end(), options.val_data.begin(), options.val_data.end());
    if (!tokenizer_folder.empty() || !options.tokenizer.empty())
      check_tokenizer(*tokenizer,
                      tokenizer_folder.empty() ? options.tokenizer : "of " + tokenizer_folder,
                      shards);
    check_length(train, train.description().c_str(), options.context);
    std::string note;
    bool has_val = val_in_folder || !options.val_data.empty();
    if (has_val)
      has_val = enough_for_validation(val, options.context, note);
    else
      note = split ? fmt::format("no validation: {} holds no *val*.bin shards", options.data[0])
                   : "no validation: name shards for it with --val-data";
    std::string description = fmt::format("{} ({} tokens)", train.description(), train.tokens());
    return {std::move(tokenizer),   std::move(train), std::move(val), has_val,
            std::move(description), std::move(note)};
  }

  io::CorpusOptions corpus_options;
  for (const std::string& t : options.text) corpus_options.text.emplace_back(t);
  corpus_options.accept_bytes = options.tokenizer == "byte";
  corpus_options.offer_bytes = true;
  const io::Corpus corpus = io::load_corpus(corpus_options);
  std::unique_ptr<io::Tokenizer> tokenizer = known_tokenizer();
  if (!tokenizer) tokenizer = make_tokenizer(options, corpus.text);
  const std::string_view text = corpus.text;
  const size_t at = split_point(text, options.val_fraction);
  io::TokenSource train = io::TokenSource::from_ids(
      std::as_const(*tokenizer).encode(text.substr(0, at)), "the training text");
  io::TokenSource val = io::TokenSource::from_ids(std::as_const(*tokenizer).encode(text.substr(at)),
                                                  "the validation text");
  check_length(train, "the training text", options.context);
  std::string note = corpus.note;
  const bool has_val = enough_for_validation(val, options.context, note);
  std::string description =
      fmt::format("{}; {} + {} tokens, {} tokenizer of {}", corpus.description, train.tokens(),
                  val.tokens(), tokenizer->kind(), tokenizer->vocab_size());
  return {std::move(tokenizer),   std::move(train), std::move(val), has_val,
          std::move(description), std::move(note)};
}

}  // namespace brrr::train
