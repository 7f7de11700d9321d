#include "train/preferences/preference_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/human.h"
#include "formats/json_file.h"

namespace brrr::train {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The conversation of `prompt` and then `answer`.
Conversation conversation_of(const std::vector<io::ChatMessage>& prompt,
                             const std::vector<io::ChatMessage>& answer, int64_t line,
                             const jinja::Value& tools) {
  Conversation c;
  c.line = line;
  c.messages = prompt;
  c.first_answer = prompt.size();
  c.messages.insert(c.messages.end(), answer.begin(), answer.end());
  c.tools = tools;
  return c;
}

/// Divides two conversations into the messages that both begin with and what is left of each.
struct Divided {
  OrderedJson prompt = OrderedJson::array(), chosen = prompt, rejected = prompt;
};
Divided divide(const OrderedJson& chosen, const OrderedJson& rejected, const std::string& where) {
  for (const auto& [name, field] : {std::pair{"chosen", &chosen}, {"rejected", &rejected}})
    if (!field->is_array())
      user_error(
          "{}: expected \"prompt\" beside \"chosen\" and \"rejected\", or lists of messages that "
          "begin with the prompt; \"{}\" is {}",
          where, name, io::describe(io::Json(*field)));
  Divided d;
  size_t common = 0;
  while (common < std::min(chosen.size(), rejected.size()) && chosen[common] == rejected[common])
    d.prompt.push_back(chosen[common++]);
  for (size_t i = common; i < chosen.size(); ++i) d.chosen.push_back(chosen[i]);
  for (size_t i = common; i < rejected.size(); ++i) d.rejected.push_back(rejected[i]);
  if (d.chosen.empty() && d.rejected.empty()) return d;  // equal: refused by the caller
  if (d.prompt.empty())
    user_error(
        "{}: \"chosen\" and \"rejected\" begin with different messages, so they have no common "
        "prompt; expected the same first messages in both",
        where);
  for (const auto& [name, other, rest] :
       {std::tuple{"chosen", "rejected", &d.chosen}, std::tuple{"rejected", "chosen", &d.rejected}})
    if (rest->empty())
      user_error("{}: \"{}\" is how \"{}\" begins, and has no answer of its own", where, name,
                 other);
  return d;
}

Preference preference_of(const OrderedJson& row, int64_t line, const std::string& where) {
  const auto prompt = row.find("prompt"), chosen = row.find("chosen"),
             rejected = row.find("rejected");
  if (chosen == row.end() || rejected == row.end())
    user_error("{}: expected \"prompt\", \"chosen\" and \"rejected\"; found {}", where,
               fields_of(row));
  if (*chosen == *rejected)
    user_error("{}: \"chosen\" and \"rejected\" are equal, so neither is preferred", where);
  const std::string in_prompt = where + ", prompt", in_chosen = where + ", chosen",
                    in_rejected = where + ", rejected";
  std::vector<io::ChatMessage> asked, better, worse;
  // A prompt as text beside whole conversations repeats what they begin with, as in TRL.
  const auto has_question = [](const OrderedJson& answer) {
    return answer.is_array() && !answer.empty() && answer[0].is_object() &&
           answer[0].value("role", OrderedJson()) != "assistant";
  };
  const bool is_implicit = prompt == row.end() || (prompt->is_string() && has_question(*chosen) &&
                                                   has_question(*rejected));
  if (!is_implicit) {
    asked = messages_or_text(*prompt, "user", in_prompt);
    better = messages_or_text(*chosen, "assistant", in_chosen);
    worse = messages_or_text(*rejected, "assistant", in_rejected);
  } else {
    const Divided d = divide(*chosen, *rejected, where);
    asked = io::messages_of(d.prompt, in_prompt);
    better = io::messages_of(d.chosen, in_chosen);
    worse = io::messages_of(d.rejected, in_rejected);
  }
  const jinja::Value tools = tools_in(row, where);
  Preference p{conversation_of(asked, better, line, tools),
               conversation_of(asked, worse, line, tools)};
  check_messages(p.chosen, in_chosen);
  check_messages(p.rejected, in_rejected);
  return p;
}

}  // namespace

RowFile<Preference> read_preferences(const fs::path& file) {
  RowFile<Preference> result{file.string(), {}};
  each_json_line(file, R"({"prompt": ..., "chosen": ..., "rejected": ...})",
                 [&](const OrderedJson& row, int64_t number, const std::string& where) {
                   result.rows.push_back(preference_of(row, number, where));
                 });
  if (result.rows.empty())
    user_error("{}: it has no pair of answers; expected one in each line", result.name);
  return result;
}

}  // namespace brrr::train
