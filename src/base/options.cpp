#include "base/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

namespace brrr {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

// "--n-layer N", "--[no-]bias", "--text FILE..."
std::string left_column(const OptionInfo& info) {
  if (info.kind == OptionKind::kFlag) return "--[no-]" + info.name;
  if (info.kind == OptionKind::kOptional) return "--" + info.name + " [" + info.value + "]";
  return "--" + info.name + " " + info.value;
}

std::vector<std::string> groups_of(std::span<const OptionInfo> infos) {
  std::vector<std::string> groups;
  for (const OptionInfo& info : infos)
    if (info.stands_for.empty() &&
        std::find(groups.begin(), groups.end(), info.group) == groups.end())
      groups.push_back(info.group);
  return groups;
}

std::string joined(const std::vector<std::string>& items, std::string_view mark = "") {
  std::string all;
  for (const std::string& item : items)
    all.append(all.empty() ? "" : ", ").append(mark).append(item).append(mark);
  return all;
}

}  // namespace

bool is_bool_word(std::string_view text) {
  const std::string word = lower(text);
  for (const char* known : {"true", "false", "1", "0", "on", "off", "yes", "no"})
    if (word == known) return true;
  return false;
}

bool parse_bool(std::string_view text) {
  const std::string word = lower(text);
  if (!is_bool_word(word)) usage_error("expected true or false; got '{}'", text);
  return word == "true" || word == "1" || word == "on" || word == "yes";
}

int64_t parse_integer(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= low && value <= high)
    return value;
  if (high == std::numeric_limits<int64_t>::max())
    usage_error("expected a whole number of at least {}; got '{}'", low, text);
  usage_error("expected a whole number from {} to {}; got '{}'", low, high, text);
}

namespace {

/// The finite number that is the whole text; nullopt for other text.
std::optional<double> finite_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

}  // namespace

bool is_real(std::string_view text) { return finite_number(text).has_value(); }

double parse_real(std::string_view text, const RealRange& range) {
  const std::optional<double> value = finite_number(text);
  if (value && (range.low_open ? *value > range.low : *value >= range.low) &&
      (range.high_open ? *value < range.high : *value <= range.high))
    return *value;
  constexpr double kNone = std::numeric_limits<double>::max();
  std::string bounds;
  if (range.low > -kNone)
    bounds += fmt::format(" {} {}", range.low_open ? "above" : "of at least", range.low);
  if (range.high < kNone)
    bounds += fmt::format("{} {} {}", bounds.empty() ? "" : " and",
                          range.high_open ? "below" : "at most", range.high);
  usage_error("expected a number{}; got '{}'", bounds, text);
}

std::string show_real(double value) { return fmt::format("{}", value); }

std::string canonical_key(std::string_view key) {
  while (!key.empty() && key.front() == '-') key.remove_prefix(1);
  std::string result(key);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

int edit_distance(std::string_view a, std::string_view b) {
  // Optimal string alignment: three rows of the usual table.
  const size_t n = b.size();
  std::vector<int> two(n + 1), one(n + 1), now(n + 1);
  for (size_t j = 0; j <= n; ++j) one[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      now[j] = std::min({one[j] + 1, now[j - 1] + 1, one[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], two[j - 2] + 1);
    }
    two.swap(one);
    one.swap(now);
  }
  return one[n];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  // Far-fetched suggestions are worse than none: at most a third of the letters may differ. A word
  // of hostile length is no misspelling of anything.
  if (word.size() > 64) return "";
  int best = std::max<int>(2, static_cast<int>(word.size()) / 3) + 1;
  std::string result;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best && distance < static_cast<int>(candidate.size())) {
      best = distance;
      result = candidate;
    }
  }
  if (!result.empty()) return result;
  for (const std::string& candidate : candidates)  // "layers" is a part of "n-layers", say
    if (word.size() >= 4 && candidate.find(word) != std::string::npos) return candidate;
  return "";
}

size_t match_choice(const std::string& text, const std::vector<std::vector<std::string>>& choices) {
  std::vector<std::string> first, all;
  for (size_t i = 0; i < choices.size(); ++i) {
    for (const std::string& spelling : choices[i])
      if (canonical_key(text) == canonical_key(spelling)) return i;
    // A choice whose canonical spelling is empty (a default) is listed by its first alias.
    first.push_back(choices[i][0].empty() && choices[i].size() > 1 ? choices[i][1] : choices[i][0]);
    all.insert(all.end(), choices[i].begin(), choices[i].end());
  }
  const std::string likely = nearest(text, all);
  usage_error("expected one of {}; got '{}'{}", fmt::join(first, ", "), text,
              likely.empty() ? "" : fmt::format("; did you mean '{}'?", likely));
}

size_t find_option(std::span<const OptionInfo> infos, std::string_view key,
                   const std::string& where) {
  const std::string name = canonical_key(key);
  std::vector<std::string> known;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].name == name) return i;
    known.push_back(infos[i].name);
    for (const std::string& alias : infos[i].aliases) {
      if (alias == name) return i;
      known.push_back(alias);
    }
  }
  const std::string likely = nearest(name, known);
  if (likely.empty()) usage_error("{}unknown option '{}'; --help lists all", where, key);
  // In a file the key is suggested as it is written there.
  std::string suggestion = likely;
  if (key.starts_with("-"))
    suggestion = "--" + suggestion;
  else
    std::replace(suggestion.begin(), suggestion.end(), '-', '_');
  usage_error("{}unknown option '{}'; did you mean '{}'?", where, key, suggestion);
}

Arguments parse_arguments(std::span<const OptionInfo> infos, std::span<const std::string> args,
                          const std::string& command) {
  Arguments result;
  const std::string see = fmt::format("; see `{} --help`", command);
  struct Given {
    std::string value, shown;
  };
  std::map<std::string, Given> values;  // the first of each option
  const auto is_option = [](const std::string& s) { return s.size() > 1 && s[0] == '-'; };
  // Options begin with "--" and a letter, so "-5", "-" and "- a line" are values.
  const auto is_value = [](const std::string& s) {
    return s != "-h" && s != "--" &&
           !(s.size() > 2 && s.starts_with("--") && s.find(' ') == std::string::npos);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "-h" || arg == "--help") {
      result.help = true;
      continue;
    }
    if (arg == "--") {
      result.positional.insert(result.positional.end(), args.begin() + static_cast<int64_t>(i) + 1,
                               args.end());
      break;
    }
    if (!is_option(arg)) {
      result.positional.push_back(arg);
      continue;
    }
    if (!arg.starts_with("--")) usage_error("unknown option '{}'{}", arg, see);
    const size_t equals = arg.find('=');
    const std::string key = arg.substr(0, equals);
    std::string name = canonical_key(key);
    // --no-x, unless "no-x" itself is a name.
    bool negated = false;
    const auto names = [&](const OptionInfo& info, const std::string& n) {
      return info.name == n ||
             std::find(info.aliases.begin(), info.aliases.end(), n) != info.aliases.end();
    };
    if (name.starts_with("no-") &&
        std::none_of(infos.begin(), infos.end(), [&](const auto& o) { return names(o, name); })) {
      for (const OptionInfo& info : infos)
        if ((info.kind == OptionKind::kFlag || info.kind == OptionKind::kOptional) &&
            names(info, name.substr(3)))
          negated = true;
      if (negated) name = name.substr(3);
    }
    const OptionInfo& info = infos[negated ? find_option(infos, name) : find_option(infos, key)];
    const auto add = [&](const std::string& value) {
      const bool is_bare = negated || (value == "true" && info.kind == OptionKind::kFlag);
      const Given now{value, is_bare ? key : key + " " + value};
      const auto [first, is_new] = values.emplace(info.name, now);
      if (!is_new && info.kind != OptionKind::kList && first->second.value != value)
        usage_error("{} and {} contradict each other; keep one of the two{}", first->second.shown,
                    now.shown, see);
      result.given.emplace_back(name, value);
    };
    if (negated) {
      if (equals != std::string::npos) usage_error("{} takes no value; got '{}'{}", key, arg, see);
      add("false");
      continue;
    }
    if (equals != std::string::npos) {
      add(arg.substr(equals + 1));
      continue;
    }
    const bool more = i + 1 < args.size();
    switch (info.kind) {
      case OptionKind::kFlag:
        if (more && is_bool_word(args[i + 1]))
          add(args[++i]);
        else
          add("true");
        break;
      case OptionKind::kOptional:
        if (more && is_value(args[i + 1]))
          add(args[++i]);
        else
          add("true");
        break;
      case OptionKind::kList:
        if (!more || !is_value(args[i + 1]))
          usage_error("{} needs a value ({}){}", key, info.value, see);
        do add(args[++i]);
        while (!info.repeats && i + 1 < args.size() && is_value(args[i + 1]));
        break;
      default:
        if (!more || !is_value(args[i + 1]))
          usage_error("{} needs a value ({}){}", key, info.value, see);
        add(args[++i]);
    }
  }
  return result;
}

/// Not where the help says it in words: "-1" is only how the table writes "not given".
static bool shows_default(const OptionInfo& info) {
  return !info.shown_default.empty() && info.help.find("(default:") == std::string::npos;
}

namespace {

constexpr size_t kHelpColumn = 34, kHelpWidth = 100;

/// `line`, which ends at the column of the help, and the text behind it, its words wrapped.
std::string wrapped(std::string line, std::string_view text) {
  std::string all;
  bool is_first = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (!is_first && line.size() + 1 + end > kHelpWidth) {
      all += line + "\n";
      line.assign(kHelpColumn, ' ');
      is_first = true;
    }
    if (!is_first) line += ' ';
    line += text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    is_first = false;
  }
  return all + line + "\n";
}

}  // namespace

std::string options_help(std::span<const OptionInfo> infos, bool colour) {
  std::string text;
  for (const std::string& group : groups_of(infos)) {
    text += fmt::format("\n{}{}:{}\n", colour ? "\x1b[1m" : "", group, colour ? "\x1b[0m" : "");
    for (const OptionInfo& info : infos) {
      if (info.group != group || !info.stands_for.empty()) continue;
      std::string line = "  " + left_column(info);
      if (line.size() + 2 > kHelpColumn) {
        text += line + "\n";
        line.clear();
      }
      line.resize(kHelpColumn, ' ');
      text += wrapped(
          line, shows_default(info) ? info.help + " [" + info.shown_default + "]" : info.help);
      if (!info.aliases.empty())
        text += wrapped(std::string(kHelpColumn, ' '), "also: " + joined(info.aliases));
    }
  }
  return text;
}

std::string options_markdown(std::span<const OptionInfo> infos) {
  std::string text;
  for (const std::string& group : groups_of(infos)) {
    text += fmt::format("\n### {}\n\n| option | default | meaning | also |\n|---|---|---|---|\n",
                        group);
    for (const OptionInfo& info : infos) {
      if (info.group != group || !info.stands_for.empty()) continue;
      std::string help = info.help;
      for (size_t at = 0; (at = help.find('|', at)) != std::string::npos; at += 2)
        help.insert(at, "\\");
      text += fmt::format("| `{}` | {} | {} | {} |\n", left_column(info),
                          !shows_default(info) ? "" : "`" + info.shown_default + "`", help,
                          joined(info.aliases, "`"));
    }
  }
  return text;
}

}  // namespace brrr
