// brrr data: texts to token shards, text to ids and back, training a tokenizer, and sets of
// pictures.

#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/human.h"
#include "base/tell.h"
#include "base/terminal/progress.h"
#include "cli/commands.h"
#include "cli/data_images.h"
#include "cli/token_lines.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "folders/model_folder.h"
#include "formats/json_file.h"
#include "text/tokenizer.h"
#include "train/dataset_tokenizer.h"
#include "web/fetch.h"

namespace brrr::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename T>
T apply(const OptionTable<T>& table, const KeyValues& given) {
  T options;
  for (const auto& [key, value] : given) {
    const auto& row = table.find(key);
    if (row.kind == OptionKind::kText && value.empty() && row.name != "separator")
      usage_error("--{}: expected a value; got an empty one", canonical_key(key));
    table.set(options, row, value, "--" + canonical_key(key));
  }
  return options;
}

/// A tokenizer that exists already: by name or folder.
std::unique_ptr<io::Tokenizer> existing_tokenizer(const std::string& name) {
  if (name.empty())
    usage_error("--tokenizer: expected byte, gpt2 or a folder with tokenizer files; got none");
  if (name == "byte") return io::make_byte_tokenizer();
  if (name == "gpt2") return io::load_tokenizer(io::find_gpt2_tokenizer());
  if (name == "char" || name.starts_with("bpe:"))
    usage_error(
        "--tokenizer: {} is learned from a text: expected byte, gpt2, or the folder of a run, of "
        "`brrr data prepare` or of `brrr data train-tokenizer`",
        name);
  return io::open_tokenizer(name);
}

void announce(const io::CorpusFiles& files) {
  if (!files.note.empty()) tell("{}\n", files.note);
  tell("text: {}\n", files.description);
}

std::vector<fs::path> as_paths(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

// ---- prepare
// --------------------------------------------------------------------------------------

struct PrepareArguments {
  std::vector<std::string> text;
  std::string output_dir = "data";
  std::string tokenizer = "gpt2";
  std::string format = "llmc";
  double val_fraction = 0.1;
  int64_t val_every = 0;
  int64_t shard_tokens = 0;
  bool end_of_text = true;
  std::string separator, text_column;
  bool overwrite = false;
  bool disable_tqdm = false;
  bool json = false;
  int64_t threads = 0;
};

const OptionTable<PrepareArguments>& prepare_table() {
  static const OptionTable<PrepareArguments> table = [] {
    using O = PrepareArguments;
    OptionTable<O> t;
    t.group("options");
    t.list("text", &O::text, false, "FILE...",
           "text files and folders, .jsonl, .gz and .zst, too (default: tiny Shakespeare)",
           {"train-file"});
    t.text("output-dir", &O::output_dir, "FOLDER", "output folder for the shards and the tokenizer",
           {"out-dir"});
    t.text("tokenizer", &O::tokenizer, "KIND",
           "byte, char, gpt2, bpe:N or wordpiece:N (N entries, learned from the text), or a folder")
        .set = [](O& arguments, const std::string& name) {
      train::learnt_tokenizer(name);
      arguments.tokenizer = name;
    };
    t.choice("format", &O::format, {{"llmc", "llm.c"}, {"nanogpt"}}, "NAME",
             "llmc (header, 16 or 32 bits) or nanogpt (no header, 16 bits)");
    t.real("val-fraction", &O::val_fraction, {.low = 0, .high = 1, .high_open = true}, "X",
           "fraction of the text held out for validation, taken from its end");
    t.integer("val-every", &O::val_every, 0, int64_t{1} << 40, "N",
              "hold out every N-th document for validation instead (0: off)");
    t.integer("shard-tokens", &O::shard_tokens, 0, int64_t{1} << 40, "N",
              "tokens per shard (0: one shard)");
    t.flag("end-of-text", &O::end_of_text, "end each document with the end-of-text token");
    t.text("separator", &O::separator, "TEXT",
           "text that ends a document inside a file, as <|endoftext|> (default: one per file, or "
           "per line of a .jsonl file)");
    t.text("text-column", &O::text_column, "NAME",
           "field with the text in .jsonl files (default: text, or the only string)",
           {"text-column-name"});
    t.flag("overwrite", &O::overwrite, "discard what an earlier run left in the folder");
    t.flag("disable-tqdm", &O::disable_tqdm, "plain lines instead of a progress bar");
    t.flag("json", &O::json, "one JSON object with the result on standard output");
    t.integer("threads", &O::threads, 0, 4096, "N", "threads (0: all)", {"num-threads"});
    return t;
  }();
  return table;
}

int run_prepare(const Arguments& args) {
  const auto o = apply(prepare_table(), args.given);
  use_threads(o.threads);
  const bool bytes = o.tokenizer == "byte";
  io::PrepareOptions options;
  std::unique_ptr<io::Tokenizer> tokenizer;
  {
    const io::CorpusFiles files = io::find_corpus({.text = as_paths(o.text),
                                                   .accept_bytes = bytes,
                                                   .text_field = o.text_column,
                                                   .by_document = true,
                                                   .separator = o.separator});
    announce(files);
    options.inputs = files.files;
    options.separator = files.separator;
  }
  const auto learnt = train::learnt_tokenizer(o.tokenizer);
  if (o.tokenizer == "char" || learnt) {
    const io::Corpus corpus = io::load_corpus(
        {.text = options.inputs, .offer_bytes = true, .separator = options.separator});
    if (learnt) tell("learning {} entries\n", learnt->entries);
    std::string without_marks;
    tokenizer = train::learn_tokenizer(io::text_to_learn_from(corpus, without_marks), learnt);
  } else {
    tokenizer = existing_tokenizer(o.tokenizer);
  }
  options.output = o.output_dir;
  options.format = io::shard_format_from_name(o.format);
  options.val_fraction = o.val_fraction;
  options.val_every = o.val_every;
  options.shard_tokens = o.shard_tokens;
  options.end_of_text = o.end_of_text;
  options.accept_bytes = bytes;
  options.restart = o.overwrite;
  std::optional<Progress> progress;
  options.progress = [&](const io::PrepareProgress& p) {
    const auto done = static_cast<int64_t>(p.bytes_done);
    if (!progress) {
      ProgressOptions look;
      look.label = "encode";
      look.total = static_cast<int64_t>(p.bytes_total);
      look.start = done;
      look.bytes = true;
      look.plain_interval_seconds = 2;
      if (o.disable_tqdm) look.is_terminal = false;
      progress.emplace(look);
    }
    progress->update(done, {.tokens_per_second = p.tokens_per_second});
  };
  const io::PrepareSummary s = io::prepare_shards(*tokenizer, options);
  if (progress) progress->finish();
  progress.reset();
  tell("{}{} training and {} validation tokens from {} ({:.2f} bytes per token){}\n",
       s.already_done ? "done before: " : "", with_commas(s.train_tokens),
       with_commas(s.val_tokens), format_bytes(static_cast<double>(s.bytes)), s.bytes_per_token,
       s.already_done
           ? ""
           : fmt::format(", {} tokens/s", with_commas(static_cast<int64_t>(s.tokens_per_second))));
  tell("next: {} train --data {}\n", env::program(), shell_word(o.output_dir));
  if (o.json) {
    const auto names = [](const std::vector<fs::path>& paths) {
      OrderedJson list = OrderedJson::array();
      for (const fs::path& path : paths) list.push_back(path.string());
      return list;
    };
    fmt::print("{}\n", io::json_line(OrderedJson{{"output_dir", o.output_dir},
                                                 {"train_tokens", s.train_tokens},
                                                 {"val_tokens", s.val_tokens},
                                                 {"documents", s.documents},
                                                 {"bytes", s.bytes},
                                                 {"bytes_per_token", s.bytes_per_token},
                                                 {"vocab_size", tokenizer->vocab_size()},
                                                 {"train_shards", names(s.train_shards)},
                                                 {"val_shards", names(s.val_shards)},
                                                 {"resumed", s.resumed},
                                                 {"already_done", s.already_done},
                                                 {"seconds", s.seconds},
                                                 {"tokens_per_second", s.tokens_per_second}}));
  }
  return 0;
}

// ---- encode, decode
// ---------------------------------------------------------------------------------

struct CodeArguments {
  std::string tokenizer;
  bool special_tokens = false;
  bool json = false;
  int64_t threads = 0;
};

OptionTable<CodeArguments> code_table(const char* flag, const char* meaning) {
  using O = CodeArguments;
  OptionTable<O> t;
  t.group("options");
  t.text("tokenizer", &O::tokenizer, "FOLDER",
         "folder with tokenizer files (a run, a model, shards), or byte, or gpt2",
         {"tokenizer-name"});
  t.flag(flag, &O::special_tokens, meaning);
  t.flag("json", &O::json, "one JSON object instead of lines");
  t.integer("threads", &O::threads, 0, 4096, "N", "threads (0: all)", {"num-threads"});
  return t;
}

const OptionTable<CodeArguments>& encode_table() {
  static const auto table =
      code_table("add-special-tokens", "add the tokens that the tokenizer puts around a text");
  return table;
}

const OptionTable<CodeArguments>& decode_table() {
  static const auto table = code_table("skip-special-tokens", "omit special tokens");
  return table;
}

int run_encode(const Arguments& args) {
  const auto o = apply(encode_table(), args.given);
  use_threads(o.threads);
  const auto tokenizer = existing_tokenizer(o.tokenizer);
  const io::EncodeOptions special{.add_special_tokens = o.special_tokens};
  if (!o.json) {
    encode_lines(*tokenizer, special, stdin, [](std::string_view out) { write_output(out); });
    return 0;
  }
  // The lines of ids are a JSON array each once the spaces are commas.
  std::string ids;
  const Stopwatch watch;
  const CodeCounts counts = encode_lines(*tokenizer, special, stdin, [&](std::string_view out) {
    for (const char c : out) ids += c == ' ' ? "," : c == '\n' ? "],[" : std::string(1, c);
  });
  if (!ids.empty()) ids = "[" + ids.substr(0, ids.size() - 2);
  fmt::print("{{\"lines\":{},\"tokens\":{},\"bytes\":{},\"seconds\":{},\"ids\":[{}]}}\n",
             counts.lines, counts.tokens, counts.bytes, watch.seconds(), ids);
  return 0;
}

int run_decode(const Arguments& args) {
  const auto o = apply(decode_table(), args.given);
  const auto tokenizer = existing_tokenizer(o.tokenizer);
  std::string text;
  const CodeCounts counts =
      decode_lines(*tokenizer, o.special_tokens, stdin, [&](std::string_view out) {
        if (o.json)
          text += out;
        else
          write_output(out);
      });
  if (o.json)
    fmt::print("{}\n", io::json_line(OrderedJson{{"text", text},
                                                 {"lines", counts.lines},
                                                 {"tokens", counts.tokens},
                                                 {"bytes", counts.bytes}}));
  return 0;
}

// ---- train-tokenizer
// --------------------------------------------------------------------------------

struct TokenizerArguments {
  std::vector<std::string> text;
  std::string kind = "bpe";
  int64_t vocab_size = 4096;
  std::string output_dir = "tokenizer";
  bool json = false;
  int64_t threads = 0;
};

const OptionTable<TokenizerArguments>& tokenizer_table() {
  static const OptionTable<TokenizerArguments> table = [] {
    using O = TokenizerArguments;
    OptionTable<O> t;
    t.group("options");
    t.list("text", &O::text, false, "FILE...", "text files and folders (default: tiny Shakespeare)",
           {"train-file"});
    t.choice("kind", &O::kind, {{"bpe"}, {"wordpiece"}, {"char"}}, "NAME",
             "bpe (byte-level, like GPT-2), wordpiece (like BERT, lower-case) or char (one entry "
             "per character)");
    t.integer("vocab-size", &O::vocab_size, 6, 1 << 24, "N",
              "vocabulary size of bpe (256 bytes, merges, end-of-text token) or wordpiece (5 "
              "special tokens, characters, merges)");
    t.text("output-dir", &O::output_dir, "FOLDER", "output folder for the tokenizer files",
           {"out-dir"});
    t.flag("json", &O::json, "one JSON object with the result on standard output");
    t.integer("threads", &O::threads, 0, 4096, "N", "threads (0: all)", {"num-threads"});
    return t;
  }();
  return table;
}

// A folder has one tokenizer: files of another kind beside the new ones would be read in their
// stead.
void check_tokenizer_folder(const TokenizerArguments& o) {
  for (const std::string_view name : io::tokenizer_file_names()) {
    const bool may_stay = name == "tokenizer_config.json" ||
                          (name == "tokenizer.json" && fs::exists(fs::path(o.output_dir) / name) &&
                           io::load_tokenizer(o.output_dir)->kind() == o.kind);
    if (!may_stay && fs::exists(fs::path(o.output_dir) / name))
      user_error(
          "{} already holds a tokenizer of another kind ({}): remove it, or name another "
          "--output-dir",
          o.output_dir, name);
  }
}

int run_train_tokenizer(const Arguments& args) {
  const auto o = apply(tokenizer_table(), args.given);
  check_tokenizer_folder(o);
  use_threads(o.threads);
  const Stopwatch watch;
  const io::Corpus corpus = io::load_corpus({.text = as_paths(o.text)});
  if (!corpus.note.empty()) tell("{}\n", corpus.note);
  tell("text: {}\n", corpus.description);
  const auto tokenizer = train::learn_tokenizer(
      corpus.text, o.kind == "char" ? std::optional<train::LearntTokenizer>()
                                    : train::LearntTokenizer{o.kind, o.vocab_size});
  create_folder(o.output_dir);
  tokenizer->save(o.output_dir);
  tell("{} entries in {}, {:.1f} s\n", with_commas(tokenizer->vocab_size()), o.output_dir,
       watch.seconds());
  if (o.json)
    fmt::print("{}\n", io::json_line(OrderedJson{{"output_dir", o.output_dir},
                                                 {"kind", tokenizer->kind()},
                                                 {"vocab_size", tokenizer->vocab_size()},
                                                 {"bytes", corpus.text.size()},
                                                 {"seconds", watch.seconds()}}));
  return 0;
}

}  // namespace

Command data_command() {
  Command data;
  data.name = "data";
  data.summary = "prepare token shards; encode, decode; train a tokenizer; describe pictures";
  data.synopsis = "prepare|encode|decode|train-tokenizer|images [options]";
  data.subcommands = {
      {.name = "prepare",
       .summary = "convert text files to token shards, in parallel and resumable",
       .synopsis = "[--text FILE...] [--tokenizer KIND] [--output-dir FOLDER] [options]",
       .notes = "To continue after an interruption, run the same command again.\n",
       .options = prepare_table().infos(),
       .run = run_prepare,
       .works_unread = true},
      {.name = "encode",
       .summary = "encode standard input as token ids, line by line",
       .synopsis = "--tokenizer FOLDER < TEXT",
       .notes = "The ids of a line include those of its newline character.\n",
       .options = encode_table().infos(),
       .run = run_encode},
      {.name = "decode",
       .summary = "decode token ids on standard input to text",
       .synopsis = "--tokenizer FOLDER < IDS",
       .notes = "Restores exactly what `brrr data encode` read.\n",
       .options = decode_table().infos(),
       .run = run_decode},
      {.name = "train-tokenizer",
       .summary = "learn a tokenizer from text",
       .synopsis = "[--text FILE...] [--vocab-size N] [--output-dir FOLDER] [options]",
       .notes = "",
       .options = tokenizer_table().infos(),
       .run = run_train_tokenizer,
       .works_unread = true},
      data_images_command(),
  };
  return data;
}

}  // namespace brrr::cli
