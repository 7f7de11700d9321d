#include "cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/env.h"
#include "base/file.h"
#include "base/human.h"
#include "base/threads/parallel.h"
#include "cli/launch/local_ranks.h"
#include "cli/model_option.h"
#include "cli/run_options.h"
#include "cli/runnable_option.h"
#include "data/token_source.h"
#include "runtime/ranks/launcher_memory.h"
#include "runtime/ranks/place.h"
#include "train/runs/run_list.h"

namespace brrr::cli {
namespace {

/// The option that a word of `train` means. A run and a model are refused: one goes on by --resume,
/// the other begins a run by --init-from.
std::string option_of_word(const std::string& word, bool has_task) {
  if (train::is_options_file(word)) return "config";  // nanoGPT: train.py x.py
  std::error_code ignored;
  const fs::path path(word);
  if (!fs::exists(path, ignored))
    usage_error(
        "unexpected '{}': there is no such file; a text, a TOML file or nanoGPT's .py may stand "
        "alone, see `brrr train --help`",
        word);
  if (!fs::is_directory(path, ignored))
    return has_task || path.extension() == ".bin" ? "data" : "text";
  if (train::is_run(path) || fs::exists(path / "trainer_state.json", ignored))
    usage_error("{} is a run; go on with it: `brrr train --resume {}`", word, shell_word(word));
  if (!train::list_runs(path).empty())
    usage_error("{} holds runs; go on with the newest that is not done: `brrr train --resume {}`",
                word, shell_word(word));
  if (fs::exists(path / "config.json", ignored) || io::holds_adapter(path))
    usage_error("{} holds a model; begin a run with it: `brrr train --init-from {} --text FILE`",
                word, shell_word(word));
  return io::TokenSource::has_split(path, ".bin") ? "data" : "text";
}

}  // namespace

train::TrainOptions train_options(const Arguments& args) {
  KeyValues given;
  for (const auto& option : args.given)
    if (canonical_key(option.first) != "print-config") given.push_back(option);
  const bool has_task = std::ranges::any_of(
      given, [](const auto& option) { return canonical_key(option.first) == "task"; });
  for (const std::string& word : args.positional)
    given.emplace_back(option_of_word(word, has_task), word);
  return train::resolve(given);
}

namespace {

int run_train(const Arguments& args) {
  bool print_config = false;
  for (const auto& [key, value] : args.given)
    if (canonical_key(key) == "print-config") print_config = parse_bool(value);
  train::TrainOptions options = train_options(args);
  if (print_config) {
    adopt_folder(options);
    fmt::print("{}", train::to_toml(options));
    return 0;
  }
  const bool is_launched = LauncherMemory::is_set();
  if ((options.ranks > 1 || options.elastic) && find_place().ranks == 1 && !is_launched) {
    std::vector<std::string> words{"train"};
    for (const auto& [key, value] : args.given)
      words.push_back(fmt::format("--{}={}", canonical_key(key), value));
    words.insert(words.end(), args.positional.begin(), args.positional.end());
    return run_local_ranks(
        {.ranks = static_cast<int>(options.ranks),
         .command = std::move(words),
         .max_restarts = options.elastic ? std::optional(options.max_restarts) : std::nullopt,
         .timeout_seconds = options.rank_timeout});
  }
  use_threads(options.threads);
  return train_main(options);
}

int run_generate(const Arguments& args) {
  const infer::GenerateOptions options =
      infer::resolve_generate(with_words(args, AlsoReads::prompt_file));
  use_threads(options.threads);
  return generate_main(options);
}

int run_eval(const Arguments& args) {
  const infer::EvalOptions options =
      infer::resolve_eval(with_words(args, AlsoReads::text_or_shards));
  use_threads(options.threads);
  return eval_main(options);
}

/// The words of `rerank`: a folder or a file of a model unless --model names one, the query unless
/// --query does, and files.
int run_rerank(const Arguments& args) {
  KeyValues given = args.given;
  const auto has = [&](const char* name) {
    return std::ranges::any_of(
        given, [&](const auto& option) { return canonical_key(option.first) == name; });
  };
  std::vector<std::string> words = args.positional;
  const auto take_as = [&](const char* option) {
    given.emplace_back(option, words.front());
    words.erase(words.begin());
  };
  std::error_code ignored;
  if (!words.empty() && !has("model") &&
      (fs::is_directory(words[0], ignored) || is_module_file(words[0])))
    take_as("model");
  if (!words.empty() && !has("query")) take_as("query");
  for (const std::string& file : words) {
    if (file != "-" && !fs::exists(file, ignored))
      usage_error(
          "there is no file '{}'; expected `brrr rerank [FOLDER] QUERY [FILE...]`, or --model for "
          "a model of the Hub",
          file);
    given.emplace_back("text", file);
  }
  const infer::RerankOptions options = infer::resolve_rerank(given);
  use_threads(options.threads);
  return rerank_main(options);
}

template <auto Resolve, auto Main>
int run_on_texts(const Arguments& args) {
  const auto options = Resolve(with_words(args, AlsoReads::text));
  use_threads(options.threads);
  return Main(options);
}

std::vector<OptionInfo> train_infos() {
  std::vector<OptionInfo> infos = train::train_option_table().infos();
  OptionInfo print;
  print.name = "print-config";
  print.group = "general";
  print.help = "print all options as a TOML file and exit";
  print.kind = OptionKind::kFlag;
  infos.insert(infos.begin() + 2, print);
  return infos;
}

std::string train_notes() {
  std::string notes = "Without options: a small GPT on tiny Shakespeare. Presets:\n";
  for (const models::Preset* preset : train::presets())
    notes += fmt::format("  {:<12} {}\n", preset->name, preset->summary);
  notes +=
      "Options may be spelled with - or _, and by the names of nanoGPT and of Hugging Face's\n"
      "TrainingArguments; the same names work in a TOML file and in a .py file of nanoGPT, whose\n"
      "`name = value` lines are parsed (not run) over the defaults of its train.py. Defaults in\n"
      "brackets are those of the preset, char-cpu unless another is named. Each architecture has\n"
      "options of its own: add --preset NAME, --architecture NAME or --init-from FOLDER to "
      "--help.\n";
  return notes;
}

}  // namespace

void check_place(const std::string& file) {
  if (file.empty()) return;
  std::error_code ignored;
  const fs::path folder = fs::absolute(file).parent_path();
  if (!fs::is_directory(folder, ignored))
    user_error("{}: expected a file in an existing folder; {} does not exist", file,
               folder.string());
  if (fs::is_directory(file, ignored)) user_error("{}: expected a file, but it is a folder", file);
  // Files are replaced by new ones; a device or a pipe is written to.
  const bool is_other = fs::exists(file, ignored) && !fs::is_regular_file(file, ignored);
  if (!is_other && ::access(folder.c_str(), W_OK) != 0)
    user_error("{}: expected a file in a writable folder; {} is not writable", file,
               folder.string());
}

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size())
    throw std::system_error(errno, std::generic_category());
}

void flush_output() {
  if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
}

void check_team() {
  if (const int team = thread_count(); team > kMostThreads)
    usage_error(
        "OMP_NUM_THREADS asks for {} threads; expected at most {}: set it to the number of "
        "processors, or leave it out",
        team, kMostThreads);
}

void use_threads(int64_t threads) {
  if (threads > 0) set_thread_count(static_cast<int>(threads));
  check_team();
}

bool colour_on_stdout() {
  return ::isatty(STDOUT_FILENO) == 1 && !env::get("NO_COLOR") && env::get("TERM") != "dumb";
}

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {.name = "train",
       .summary = "train a model on text, or on texts with labels; writes a run folder",
       .synopsis = "[FILE... | FILE.toml | FILE.py] [--preset NAME] [options]",
       .notes = train_notes(),
       .options = train_infos(),
       .run = run_train,
       .takes_positional = true,
       .works_unread = true,
       .options_for_help = options_for_help},
      {.name = "generate",
       .summary = "continue a prompt with a trained model",
       .synopsis = "[FOLDER] [--prompt TEXT | FILE] [options]",
       .notes = "",
       .options = infer::generate_option_table().infos(),
       .run = run_generate,
       .takes_positional = true},
      {.name = "eval",
       .summary = "loss and perplexity of a model on any text; its scores on a file of labels",
       .synopsis = "[FOLDER] (FILE... | --text FILE... | --data FILE...) [options]",
       .notes =
           "A language model gets its loss and perplexity, a masked one its loss and accuracy on "
           "tokens\n"
           "that are masked. A classifier, regressor or tagger needs a file of texts and labels, "
           "and gets\n"
           "accuracy, F1, precision and recall for each label and a confusion matrix, or "
           "correlations.\n"
           "A .jsonl file of conversations gets the loss on the assistant's tokens, and one of "
           "pairs "
           "of\n"
           "answers, for a model with an adapter, DPO's loss and rewards against the adapter's "
           "base.\n"
           "Where a tokenizer begins texts with a token, each window of --text begins with it.\n",
       .options = infer::eval_option_table().infos(),
       .run = run_eval,
       .takes_positional = true},
      {.name = "embed",
       .summary = "a vector for each line of text, or each picture, by an encoder",
       .synopsis =
           "[FOLDER | FILE.onnx] [FILE... | --images PATH...] [--output FILE.npy] [options]",
       .notes =
           "An ONNX file has tokenizer.json beside it, or it is model.onnx or onnx/model.onnx of "
           "a\n"
           "folder that has one. Its inputs are input_ids, attention_mask, token_type_ids; its "
           "output\n"
           "is sentence_embedding, or last_hidden_state, which is pooled as the folder says.\n",
       .options = infer::embed_option_table().infos(),
       .run = run_on_texts<infer::resolve_embed, embed_main>,
       .takes_positional = true},
      {.name = "classify",
       .summary = "labels or ratings for each line of text, or each picture",
       .synopsis = "[FOLDER] [FILE... | --images PATH...] [--pairs] [options]",
       .notes = "",
       .options = infer::classify_option_table().infos(),
       .run = run_on_texts<infer::resolve_classify, classify_main>,
       .takes_positional = true},
      {.name = "rerank",
       .summary = "lines of text in the order of their scores for a query",
       .synopsis = "[FOLDER | FILE.onnx] QUERY [FILE...] [--top-k N] [--json] [options]",
       .notes =
           "A cross-encoder (a model with classes or values) reads the query and a document "
           "together. The\n"
           "score is the sigmoid of its one output, or the activation that the folder names, or "
           "the\n"
           "probability of a class. With another encoder the score is the similarity of the two "
           "vectors, as\n"
           "in `embed --similarity`.\n",
       .options = infer::rerank_option_table().infos(),
       .run = run_rerank,
       .takes_positional = true},
      {.name = "fill-mask",
       .summary = "the most likely tokens for the masks in each line of text, by an encoder",
       .synopsis = "[FOLDER] [FILE...] [--top-k N] [options]",
       .notes = "",
       .options = infer::fill_mask_option_table().infos(),
       .run = run_on_texts<infer::resolve_fill_mask, fill_mask_main>,
       .takes_positional = true},
      run_command(),
      export_command(),
      quantize_command(),
      merge_command(),
      plan_command(),
      ladder_command(),
      profile_command(),
      report_command(),
      runs_command(),
      data_command(),
      launch_command(),
      bench_command(),
      info_command(),
      completion_command(),
  };
  return all;
}

}  // namespace brrr::cli
