// Every option of the verbs in base_lines() does something, is refused, or has its reason here: the
// program is run with and without it, and what it prints, writes and returns is compared. Verbs
// that need a trained encoder or an ONNX file, and those whose output differs from run to run
// (profile, bench, ladder), have tests of their own options. The options are those of `brrr help
// --markdown`, which is made from the tables, so a new one is tried without being listed here: a
// flag is turned over, a number changed, a name made up (which may be refused).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/file.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

struct ListedOption {
  std::string verb, name, value, shown_default;
  bool is_flag = false;
};

/// What a run of the program leaves behind.
struct Effect {
  int code = -1;
  std::vector<std::string> words;                         // of both streams
  std::map<std::string, std::vector<std::string>> files;  // words of each, by name
};

std::vector<std::string> words_of(const std::string& text) {
  static const std::regex word("[A-Za-z0-9_./%+-]+");
  return {std::sregex_token_iterator(text.begin(), text.end(), word), {}};
}

/// The command line of each verb to which an option is added; files are those of the fixture.
const std::map<std::string, std::string>& base_lines() {
  static const std::string tiny = " --n-layer 1 --n-head 2 --n-embd 16 --context 16 --batch-size 2";
  static const std::map<std::string, std::string> all{
      {"train",
       "train ../text.txt --tokenizer char --max-steps 2 --eval-batches 1 --output-dir run" + tiny},
      {"generate", "generate ../run --prompt to --max-new-tokens 40 --device cpu"},
      {"eval", "eval ../run ../text.txt --json"},
      {"export", "export ../run --format onnx"},
      {"plan", "plan --no-measure" + tiny},
      {"data prepare", "data prepare --text ../text.txt --tokenizer char --output-dir shards"},
      {"data encode", "data encode --tokenizer ../run"},
      {"data train-tokenizer",
       "data train-tokenizer --text ../text.txt --output-dir tokens --vocab-size 270"},
      {"info", "info --no-measure"}};
  return all;
}

/// What is added for an option whose value cannot be made up from its default.
const std::map<std::string, std::string>& chosen_values() {
  static const std::map<std::string, std::string> all{{"temperature", "0"},
                                                      {"top-k", "1"},
                                                      {"top-p", "0.01"},
                                                      {"min-p", "0.9"},
                                                      {"repetition-penalty", "100"},
                                                      {"stop", "e"},
                                                      {"memory-limit", "1MiB"},
                                                      {"activation-memory", "1MiB"},
                                                      {"seed", "7"},
                                                      {"max-grad-norm", "0"},
                                                      {"learning-rate", "0.5"},
                                                      {"min-lr", "0.0002"},
                                                      {"weight-decay", "0"},
                                                      {"dropout", "0.5"},
                                                      {"val-fraction", "0.4"},
                                                      {"adam-beta2", "0.5"},
                                                      {"sample-steps", "1"},
                                                      {"logging-steps", "2"},
                                                      {"separator", "question"},
                                                      {"kernel-rates", "memory=2"}};
  return all;
}

/// Options that leave no trace in a run of seconds, each with its reason.
std::string reason_of(const std::string& verb, const std::string& option) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return option == name; });
  };
  if (is({"threads"})) return "results have the same bits for any number of threads";
  if (is({"disable-tqdm"})) return "there is no bar where standard error is a file";
  if (verb == "generate" && is({"cache", "stream"})) return "the text is the same, only its pace";
  if (verb == "eval" && is({"batch-size"})) return "the loss is the same, only its pace";
  if (verb == "export" && is({"verify"})) return "a file that is right is written in either case";
  if (verb == "generate" && is({"precision"})) return "so small a model writes the same text";
  if (verb == "data prepare" && is({"end-of-text"})) return "characters have no such token";
  if (verb == "data prepare" && is({"overwrite"})) return "there is nothing to discard";
  if (verb != "train" && is({"text-column"})) return "plain text has no columns";
  if (verb == "data encode" && is({"add-special-tokens"})) return "characters have none";
  if (is({"momentum", "muon-learning-rate"})) return "it belongs to another optimizer";
  if (is({"samples", "sample-tokens", "sample-prompt", "sample-temperature"}) && verb != "train")
    return "it belongs to --sample-steps";
  if (verb == "plan" && is({"val-fraction"})) return "no text is read";
  if (verb == "plan" && is({"max-steps"})) return "it decides only how long the curves get";
  return "";
}

class EveryOption : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
    std::string text;
    for (int i = 0; i < 400; ++i) text += i % 3 == 0 ? "to be or not\n" : "the question is\n";
    write_file_atomically(folder_ / "text.txt", text);
    write_file_atomically(folder_ / "lines.txt", "to be\nnot\n");
    const Effect made = effect_of(base_lines().at("train"));
    ASSERT_EQ(made.code, 0);
    fs::rename(place_ / "run", folder_ / "run");
  }

  /// Runs the program in a folder of its own, which it finds empty.
  Effect effect_of(const std::string& arguments) {
    place_ = folder_ / "place";
    fs::remove_all(place_);
    fs::create_directory(place_);
    const std::string command = fmt::format(
        "cd '{0}' && BRRR_OFFLINE=1 OMP_NUM_THREADS=2 timeout 60 '{1}' {2} <../lines.txt >../out "
        "2>&1",
        place_.string(), BRRR_BINARY, arguments);
    const int status = std::system(command.c_str());
    Effect effect;
    effect.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    EXPECT_NE(effect.code, 124) << "it ran over the time limit: " << command;
    said_ = read_file(folder_ / "out");
    effect.words = words_of(said_);
    for (const auto& entry : fs::recursive_directory_iterator(place_)) {
      if (!entry.is_regular_file()) continue;
      const std::string name = entry.path().filename().string();
      if (name.starts_with("events.out")) continue;  // its name holds the time
      const bool is_record = name == "train_config.json";
      std::vector<std::string>& content = effect.files[entry.path().string()];
      if (is_record) content = words_of(read_file(entry.path()));
      if (arguments.starts_with("data ")) content = {std::to_string(entry.file_size())};
    }
    return effect;
  }

  /// Whether two runs differ in more than what two runs of the base differ in: `noise`.
  static bool differs(const Effect& base, const Effect& other, const std::set<size_t>& noise) {
    if (base.code != other.code || base.words.size() != other.words.size()) return true;
    if (base.files != other.files) return true;
    for (size_t i = 0; i < base.words.size(); ++i)
      if (!noise.contains(i) && base.words[i] != other.words[i]) return true;
    return false;
  }

  /// Words that are measured: those that differ between two runs, and numbers before a unit of
  /// time.
  static std::set<size_t> noise_of(const Effect& a, const Effect& b) {
    static const std::set<std::string> units{"ms", "s", "us", "tokens/s", "GB/s", "CPUs"};
    std::set<size_t> noise;
    for (size_t i = 0; i < a.words.size(); ++i)
      if (i >= b.words.size() || a.words[i] != b.words[i] ||
          (i + 1 < a.words.size() && units.contains(a.words[i + 1])))
        noise.insert(i);
    return noise;
  }

  test::TempFolder folder_;
  fs::path place_;
  std::string said_;  // by the last run
};

/// The options of the verbs above, in the order of the page.
std::vector<ListedOption> listed_options(const std::string& page) {
  static const std::regex row(R"(\| `--(\[no-\])?([a-z0-9-]+) ?([^`]*)` \| `?([^|`]*)`? \|.*)");
  std::vector<ListedOption> list;
  std::string verb;
  for (size_t begin = 0; begin < page.size();) {
    const size_t end = std::min(page.find('\n', begin), page.size());
    const std::string line = page.substr(begin, end - begin);
    begin = end + 1;
    std::smatch match;
    if (line.starts_with("## brrr ")) verb = line.substr(8);
    if (base_lines().contains(verb) && std::regex_match(line, match, row))
      list.push_back({verb, match[2], match[3], match[4], match[1].matched});
  }
  return list;
}

/// The line with the option at a value, in place of the one that it has.
std::string with_value(std::string line, const ListedOption& option, const std::string& value) {
  const std::string name = " --" + option.name + " ";
  if (const size_t at = line.find(name); at != std::string::npos) {
    const size_t from = at + name.size();
    return line.replace(from, std::min(line.find(' ', from), line.size()) - from, value);
  }
  return line + name + value;
}

/// Command lines that change the option, the likeliest first.
std::vector<std::string> changed_lines(const ListedOption& o) {
  const std::string& base = base_lines().at(o.verb);
  if (o.is_flag) {
    const std::string bare = " --" + o.name, negated = " --no-" + o.name;
    if (base.find(negated) != std::string::npos) {
      std::string line = base;
      return {line.replace(line.find(negated), negated.size(), bare)};
    }
    if (base.ends_with(bare)) return {base.substr(0, base.size() - bare.size()) + negated};
    return {base + (o.shown_default == "true" ? negated : bare)};
  }
  if (const auto at = chosen_values().find(o.name); at != chosen_values().end())
    return {with_value(base, o, at->second)};
  char* end = nullptr;
  const double number = std::strtod(o.shown_default.c_str(), &end);
  if (!o.shown_default.empty() && *end == '\0')
    return {with_value(base, o, fmt::format("{}", number + 1)),
            with_value(base, o, fmt::format("{}", number / 2 + 0.25))};
  return {
      with_value(base, o, o.value.starts_with("N") && !o.value.starts_with("NAME") ? "1" : "x")};
}

/// The choices that a refusal lists: "expected one of a, b; got 'x'".
std::vector<std::string> choices_in(const std::string& said) {
  const std::string mark = "expected one of ";
  const size_t at = said.find(mark);
  if (at == std::string::npos) return {};
  const size_t from = at + mark.size();
  std::vector<std::string> choices;
  for (const std::string& word : words_of(said.substr(from, said.find(';', from) - from)))
    choices.push_back(word);
  return choices;
}

TEST_F(EveryOption, DoesSomethingOrIsRefusedOrHasAReason) {
  ASSERT_EQ(effect_of("help --markdown").code, 0);
  std::vector<ListedOption> all = listed_options(said_);
  ASSERT_GT(all.size(), 300u);
  all = test::sampled(all, 24, "EveryOption");
  std::map<std::string, std::pair<Effect, std::set<size_t>>> bases;
  for (const ListedOption& o : all) {
    if (!bases.contains(o.verb)) {
      const Effect first = effect_of(base_lines().at(o.verb));
      ASSERT_EQ(first.code, 0) << o.verb << ": " << said_;
      const Effect second = effect_of(base_lines().at(o.verb));
      bases[o.verb] = {first, noise_of(first, second)};
    }
    const auto& [base, noise] = bases.at(o.verb);
    bool shows = false;
    std::vector<std::string> lines = changed_lines(o);
    for (size_t i = 0; i < lines.size() && !shows; ++i) {
      const Effect effect = effect_of(lines[i]);
      const std::vector<std::string> choices = choices_in(said_);
      if (effect.code == 2 && !choices.empty() && i == 0)  // a value was made up: take real ones
        for (const std::string& choice : choices)
          lines.push_back(with_value(base_lines().at(o.verb), o, choice));
      else
        shows = differs(base, effect, noise);
    }
    EXPECT_TRUE(shows || !reason_of(o.verb, o.name).empty()) << "no effect: brrr " << lines.back();
  }
}

}  // namespace
}  // namespace brrr
