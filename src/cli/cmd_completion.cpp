// brrr completion: what a shell needs to complete verbs and options, from the table of verbs.

#include "cli/commands.h"

namespace brrr::cli {
namespace {

// A word inside single quotes of any of the shells.
std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
    text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

/// The words that a verb takes where its synopsis is a choice between words: "bash|zsh|fish".
std::vector<std::string> positional_choices(const Command& command) {
  const std::string& synopsis = command.synopsis;
  if (synopsis.find('|') == std::string::npos || synopsis.find_first_of(" []") != std::string::npos)
    return {};
  std::vector<std::string> words = {""};
  for (const char c : synopsis) {
    if (c == '|')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

std::vector<std::string> option_words(const Command& command) {
  std::vector<std::string> words = positional_choices(command);
  words.push_back("--help");
  for (const OptionInfo& info : command.options) {
    if (!info.stands_for.empty()) continue;
    words.push_back("--" + info.name);
    if (info.kind == OptionKind::kFlag) words.push_back("--no-" + info.name);
  }
  return words;
}

std::vector<std::string> names_of(const std::vector<Command>& list) {
  std::vector<std::string> names;
  for (const Command& command : list) names.push_back(command.name);
  return names;
}

struct Case {
  std::string verbs;  // "train", "data prepare"
  const Command* command;
};
std::vector<Case> leaves() {
  std::vector<Case> all;
  for (const Command& command : commands()) {
    if (command.subcommands.empty()) all.push_back({command.name, &command});
    for (const Command& sub : command.subcommands)
      all.push_back({command.name + " " + sub.name, &sub});
  }
  return all;
}

bool takes_files(const OptionInfo& info) {
  return info.value.starts_with("FILE") || info.value.starts_with("FOLDER") ||
         info.value.starts_with("SHARD");
}

// The lines of a case statement over the option before the cursor, for options that take a value:
// `choices` makes those of one with choices, `files` those of one that names files.
template <typename Choices>
std::string value_cases(const Command& command, const std::string& indent, Choices&& choices,
                        const std::string& files, const std::string& other) {
  std::string text;
  for (const OptionInfo& info : command.options) {
    if (info.kind == OptionKind::kFlag || !info.stands_for.empty()) continue;
    std::string spellings = "--" + info.name;
    for (const std::string& alias : info.aliases) spellings += " | --" + alias;
    text += fmt::format("{}{}) {} ;;\n", indent, spellings,
                        !info.choices.empty() ? choices(info)
                        : takes_files(info)   ? files
                                              : other);
  }
  return text;
}

std::string bash() {
  std::string text =
      "# bash completion for brrr: eval \"$(./brrr completion bash)\"\n"
      "_brrr() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
      "  if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi  # --name=value\n"
      "  if [ \"$word\" = = ]; then word=; fi\n"
      "  case \"${COMP_WORDS[*]:1:COMP_CWORD-1}\" in\n";
  text += fmt::format("    '') words={} ;;\n",
                      quoted(fmt::format("{}", fmt::join(names_of(commands()), " "))));
  for (const Command& command : commands())
    if (!command.subcommands.empty())
      text += fmt::format("    {}) words={} ;;\n", quoted(command.name),
                          quoted(fmt::format("{}", fmt::join(names_of(command.subcommands), " "))));
  for (const Case& c : leaves()) {
    text += fmt::format("    {0} | {0}\\ *)\n      words={1}\n      case \"$before\" in\n",
                        fmt::format("'{}'", c.verbs),
                        quoted(fmt::format("{}", fmt::join(option_words(*c.command), " "))));
    text += value_cases(
        *c.command, "        ",
        [](const OptionInfo& info) {
          return "words=" + quoted(fmt::format("{}", fmt::join(info.choices, " ")));
        },
        "words=", "return");
    text += "      esac ;;\n";
  }
  text +=
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "}\n"
      "complete -o default -F _brrr brrr ./brrr\n";
  return text;
}

std::string zsh() {
  std::string text =
      "#compdef brrr\n"
      "# zsh completion for brrr: source <(./brrr completion zsh)\n"
      "_brrr() {\n"
      "  local -a words_here\n"
      "  local before=${words[CURRENT-1]}\n"
      "  if [[ ${words[CURRENT]} == --*=* ]]; then before=${words[CURRENT]%%=*}; compset -P '*='; "
      "fi\n"
      "  case \"${words[2,CURRENT-1]}\" in\n";
  const auto described = [](const std::vector<Command>& list) {
    std::string items;
    for (const Command& command : list) items += " " + quoted(command.name + ":" + command.summary);
    return items;
  };
  text += fmt::format("    '') words_here=({}); _describe verb words_here; return ;;\n",
                      described(commands()));
  for (const Command& command : commands())
    if (!command.subcommands.empty())
      text += fmt::format("    {}) words_here=({}); _describe verb words_here; return ;;\n",
                          quoted(command.name), described(command.subcommands));
  for (const Case& c : leaves()) {
    text += fmt::format("    {0} | {0}\\ *)\n      words_here=({1})\n      case \"$before\" in\n",
                        quoted(c.verbs), fmt::join(option_words(*c.command), " "));
    text += value_cases(
        *c.command, "        ",
        [](const OptionInfo& info) {
          return fmt::format("compadd -- {}; _files; return", fmt::join(info.choices, " "));
        },
        "_files; return", "return");
    text += "      esac ;;\n";
  }
  text +=
      "  esac\n"
      "  compadd -- $words_here\n"
      "  _files\n"
      "}\n"
      "# The first completion loads this file as the function _brrr; `source` only declares it.\n"
      "if [[ ${funcstack[1]} == _brrr ]]; then _brrr \"$@\"; else compdef _brrr brrr ./brrr; fi\n";
  return text;
}

std::string fish() {
  // __brrr_after VERBS: the cursor is somewhere behind these verbs; __brrr_at: right behind them.
  std::string text =
      "# fish completion for brrr: ./brrr completion fish | source\n"
      "function __brrr_verbs\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  string join -- ' ' $words\n"
      "end\n"
      "function __brrr_at; test \"$(__brrr_verbs)\" = \"$argv\"; end\n"
      "function __brrr_after; string match -q -- \"$argv *\" \"$(__brrr_verbs) \"; end\n";
  const auto words = [&](const std::string& verbs, const std::string& word,
                         const std::string& description) {
    text += fmt::format("complete -c brrr -n {} -f -a {} -d {}\n",
                        quoted(verbs.empty() ? "__brrr_at" : "__brrr_at " + verbs), word,
                        quoted(description));
  };
  for (const Command& command : commands()) {
    words("", command.name, command.summary);
    for (const Command& sub : command.subcommands) words(command.name, sub.name, sub.summary);
  }
  const auto value = [](const OptionInfo& info) -> std::string {
    if (info.kind == OptionKind::kFlag) return "";
    if (!info.choices.empty())
      return " -x -a " + quoted(fmt::format("{}", fmt::join(info.choices, " ")));
    return takes_files(info) ? " -r -F" : " -x";
  };
  for (const Case& c : leaves()) {
    for (const std::string& word : positional_choices(*c.command))
      words(c.verbs, word, "write the completion of " + word);
    const std::string condition = quoted("__brrr_after " + c.verbs);
    const auto option = [&](const std::string& name, const std::string& takes,
                            const std::string& description) {
      text += fmt::format("complete -c brrr -n {} -l {}{} -d {}\n", condition, name, takes,
                          quoted(description));
    };
    option("help", "", "what the verb does, and its options");
    for (const OptionInfo& info : c.command->options) {
      if (!info.stands_for.empty()) continue;
      option(info.name, value(info), info.help);
      if (info.kind == OptionKind::kFlag)
        option("no-" + info.name, "", "turn --" + info.name + " off");
    }
  }
  return text;
}

int run_completion(const Arguments& args) {
  const std::string shell = args.positional.empty() ? "" : args.positional[0];
  if (args.positional.size() > 1)
    usage_error("expected one shell; also got '{}'", args.positional[1]);
  if (shell == "bash")
    fmt::print("{}", bash());
  else if (shell == "zsh")
    fmt::print("{}", zsh());
  else if (shell == "fish")
    fmt::print("{}", fish());
  else
    usage_error("expected bash, zsh or fish; got '{}'", shell);
  return 0;
}

}  // namespace

Command completion_command() {
  return {.name = "completion",
          .summary = "completion of verbs, options and values for bash, zsh or fish",
          .synopsis = "bash|zsh|fish",
          .notes = "",
          .options = {},
          .run = run_completion,
          .takes_positional = true};
}

}  // namespace brrr::cli
