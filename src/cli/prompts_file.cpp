#include "cli/prompts_file.h"

#include <functional>
#include <limits>
#include <map>
#include <set>

#include "cli/texts/encoder_texts.h"
#include "formats/json_file.h"

namespace brrr::cli {
namespace {

using io::Json;

double number_of(const Json& value, const std::string& key) {
  if (!value.is_number()) user_error("\"{}\" must be a number; found {}", key, io::describe(value));
  return value.get<double>();
}
int64_t integer_of(const Json& value, const std::string& key, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  const int64_t n = fits ? value.get<int64_t>() : least - 1;
  if (n < least || n > most)
    user_error("\"{}\" must be an integer from {} to {}; found {}", key, least, most,
               io::describe(value));
  return n;
}
std::vector<std::string> strings_of(const Json& value, const std::string& key) {
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> strings;
  if (value.is_array())
    for (const Json& each : value)
      if (each.is_string()) strings.push_back(each.get<std::string>());
  if (!value.is_array() || strings.size() != value.size())
    user_error("\"{}\" must be a string or a list of strings; found {}", key, io::describe(value));
  return strings;
}

using Setter = std::function<void(Prompt&, const Json&, const std::string& key)>;

Setter real(double infer::Sampling::*field) {
  return [field](Prompt& p, const Json& v, const std::string& key) {
    p.sampling.*field = number_of(v, key);
  };
}

/// Setters of the keys that a line may have: names of options, and aliases of other programs.
const std::map<std::string, Setter>& prompt_keys() {
  static const std::map<std::string, Setter> keys = [] {
    std::map<std::string, Setter> k;
    k["prompt"] = [](Prompt& p, const Json& v, const std::string&) {
      if (!v.is_string()) user_error("\"prompt\" must be a string; found {}", io::describe(v));
      p.text = v.get<std::string>();
    };
    k["id"] = [](Prompt& p, const Json& v, const std::string&) {
      if (!v.is_string() && !v.is_number_integer())
        user_error("\"id\" must be a string or an integer; found {}", io::describe(v));
      p.id = v;
    };
    k["max_new_tokens"] = k["max_tokens"] = [](Prompt& p, const Json& v, const std::string& key) {
      p.max_new_tokens = integer_of(v, key, 1, 1 << 30);
    };
    k["temperature"] = real(&infer::Sampling::temperature);
    k["top_p"] = real(&infer::Sampling::top_p);
    k["min_p"] = real(&infer::Sampling::min_p);
    k["repetition_penalty"] = real(&infer::Sampling::repetition_penalty);
    k["presence_penalty"] = real(&infer::Sampling::presence_penalty);
    k["frequency_penalty"] = real(&infer::Sampling::frequency_penalty);
    k["top_k"] = [](Prompt& p, const Json& v, const std::string& key) {
      p.sampling.top_k = integer_of(v, key, 0, 1 << 24);
    };
    k["seed"] = [](Prompt& p, const Json& v, const std::string& key) {
      p.sampling.seed = static_cast<uint32_t>(integer_of(v, key, 0, (int64_t{1} << 32) - 1));
    };
    k["adapter"] = [](Prompt& p, const Json& v, const std::string&) {
      if (!v.is_string() && !v.is_null())
        user_error("\"adapter\" must be the name of an adapter or null; found {}", io::describe(v));
      p.adapter = v.is_null() ? "" : v.get<std::string>();
    };
    k["stop"] = [](Prompt& p, const Json& v, const std::string& key) {
      p.stop = strings_of(v, key);
    };
    k["n"] = k["num_samples"] = [](Prompt& p, const Json& v, const std::string& key) {
      p.answers = integer_of(v, key, 1, 1 << 20);
    };
    return k;
  }();
  return keys;
}

Prompt parse_prompt(const std::string& line, const Prompt& defaults) {
  const Json object = io::parse_json(line, "the line");
  if (!object.is_object())
    user_error("expected a JSON object with \"prompt\"; found {}", io::describe(object));
  Prompt p = defaults;
  p.id = nullptr;
  p.text.clear();
  if (!object.contains("prompt")) user_error("\"prompt\" is missing");
  for (const auto& [key, value] : object.items()) {
    const auto known = prompt_keys().find(key);
    if (known == prompt_keys().end()) {
      std::string names;
      for (const auto& [name, setter] : prompt_keys()) names += (names.empty() ? "" : ", ") + name;
      user_error("unknown key {}; expected one of {}", io::in_quotes(key), names);
    }
    known->second(p, value, key);
  }
  infer::validate(p.sampling);
  return p;
}

}  // namespace

PromptsFile read_prompts(const std::string& file, const Prompt& defaults) {
  LineReader reader(file == "-" ? std::vector<std::string>() : std::vector{file});
  PromptsFile read;
  std::set<Json> ids;
  int64_t number = 0;
  for (std::vector<std::string> lines; !(lines = reader.next(1024)).empty();)
    for (size_t i = 0; i < lines.size(); ++i) {
      ++number;
      if (lines[i].find_first_not_of(" \t\r") == std::string::npos) continue;
      try {
        Prompt p = parse_prompt(lines[i], defaults);
        p.line = number;
        if (p.id.is_null()) p.id = number;
        if (!ids.insert(p.id).second) user_error("duplicate id {}", p.id.dump());
        read.prompts.push_back(std::move(p));
      } catch (const UserError& e) {
        std::string problem = e.what();
        // The parser counts lines within the text of this line.
        constexpr std::string_view kInner = "the line: not valid JSON at line 1, ";
        if (problem.starts_with(kInner))
          problem = "not valid JSON at " + problem.substr(kInner.size());
        read.problems.push_back(fmt::format("{}: {}", reader.where(i), problem));
      }
    }
  return read;
}

}  // namespace brrr::cli
