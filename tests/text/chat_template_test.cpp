// Templates against Hugging Face's library (tests/golden/make_chat_goldens.py), their errors, and
// that hostile ones end.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "text/jinja/template.h"

namespace brrr::jinja {
namespace {

using Json = nlohmann::ordered_json;

const Json& goldens() {
  static const Json json = Json::parse(
      read_file(fs::path(BRRR_SOURCE_DIR) / "tests" / "golden" / "chat_templates.json"));
  return json;
}

/// The date that the goldens were made on: Saturday, 6 July 2024, 09:05:03.
std::tm now() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 6;
  time.tm_hour = 9;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 6;
  time.tm_yday = 187;
  return time;
}

Template::Variables variables_of(const Json& json) {
  Template::Variables variables;
  for (const auto& [name, value] : json.items())
    variables.emplace_back(name, Value::from_json(value));
  return variables;
}

/// What a template gives, or "error: " and the message.
std::string outcome(const std::string& text, const Json& variables, const Limits& limits = {}) {
  try {
    return Template(text, "t").render(variables_of(variables), now(), limits);
  } catch (const UserError& e) {
    return std::string("error: ") + e.what();
  }
}

void expect_golden(const Json& golden, const std::string& found) {
  if (golden.contains("error"))
    EXPECT_TRUE(found.starts_with("error: t, line ")) << golden["error"] << "\n" << found;
  else
    EXPECT_EQ(found, golden["text"].get<std::string>());
}

TEST(ChatTemplate, ConversationsAreWrittenAsTheLibraryWritesThem) {
  size_t texts = 0;
  for (const Json& t : goldens()["templates"]) {
    SCOPED_TRACE(t["name"].get<std::string>());
    for (const Json& c : t["cases"]) {
      SCOPED_TRACE(c["conversation"].get<std::string>());
      Json variables = goldens()["tokens"];
      for (const auto& [name, value] :
           goldens()["conversations"][c["conversation"].get<std::string>()].items())
        variables[name] = value;
      const std::string found = outcome(t["template"].get<std::string>(), variables);
      expect_golden(c, found);
      if (c.contains("error") && c["error"].get<std::string>().starts_with("TemplateError: ")) {
        EXPECT_NE(
            found.find("refuses the conversation: " + c["error"].get<std::string>().substr(15)),
            std::string::npos)
            << found;
      }
      texts += c.contains("text") ? 1 : 0;
    }
  }
  EXPECT_GT(texts, 100u);
}

TEST(ChatTemplate, TheLanguageIsTheLibrarys) {
  for (const Json& s : goldens()["snippets"]) {
    const std::string text = s["template"].get<std::string>();
    SCOPED_TRACE(text);
    expect_golden(s, outcome(text, goldens()["variables"]));
  }
}

TEST(ChatTemplate, ErrorsSayWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% include 'x' %}", "t, line 2, column 6: the tag 'include' is not supported"},
      {"{{ x|nosuch }}", "t, line 1, column 6: the filter 'nosuch' is not supported"},
      {"{{ 1 is nosuch }}", "t, line 1, column 9: the test 'nosuch' is not supported"},
      {"\n{{ 'a'.nosuch() }}", "t, line 2, column 7: a string has no method 'nosuch'"},
      {"{{ lipsum() }}", "line 1, column 4: 'lipsum' is undefined"},
      {"{{ missing.x }}", "line 1, column 11: 'missing' is undefined"},
      {"ä {{ 'a' + 1 }}", "line 1, column 10: the operator + takes no a string and an integer"},
      {"{% for x in y recursive %}{% endfor %}", "'recursive' is not supported"},
      {"{{ f(*x) }}", "are not supported"},
      {"{% if a %}\n{% for x in y %}", "line 2, column 4: the block is not closed"},
      {"{# a", "line 1, column 1: the comment is not closed"},
      {"{{ 'a", "line 1, column 4: the string does not end"},
      {"{{ raise_exception('no ' ~ 1) }}", "the chat template refuses the conversation: no 1"},
      {"\xff", "not UTF-8 at byte 0"},
      {"{{ '\\N{DASH}' }}", "\\N is not supported"},
      {"{{ 99999999999999999999 }}", "more than 64 bits"},
      {"{{ 9223372036854775807 + 1 }}", "more than 64 bits"}};
  for (const auto& [text, expected] : cases)
    EXPECT_NE(outcome(text, Json::object()).find(expected), std::string::npos)
        << text << "\n"
        << outcome(text, Json::object());
}

std::string repeated(std::string_view text, size_t times) {
  std::string out;
  for (; times > 0; --times) out += text;
  return out;
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const std::string range = "{% for i in range(99999) %}";
  const std::string cases[] = {
      range + range + range + "{% endfor %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}" + range + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}" + range + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}" + range + "{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}" + range +
          "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ f() }}{% endcall %}",
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 9 ** 9 ** 9 ** 9 }}",
      "{{ 'a'|indent(99999999999, true) }}",
      "{{ [1]|tojson(indent=99999999999) }}",
      "{{ 'aaaa'|replace('a', 'b' * 60000000) }}",
      "{{ [1]|batch(99999999999, 1)|list }}",
      "{{ strftime_now('%Y' * 99999) }}",
      "{{ strftime_now('%9999999999Y') }}",
      "{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}",
      "{{ " + repeated("not ", 5000) + "1 }}",
      "{{ " + repeated("-", 5000) + "1 }}",
      "{{ 1" + repeated(" + 1", 5000) + " }}",
      "{{ x" + repeated(".x", 5000) + " }}",
      "{{ x" + repeated("|first", 5000) + " }}",
      "{{ x" + repeated("[0]", 5000) + " }}",
      "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}",
      repeated("{% if true %}", 5000) + repeated("{% endif %}", 5000),
      "{{ 1" + repeated(" if 1 else 1", 5000) + " }}",
      std::string(2 << 20, 'x')};
  for (const std::string& text : cases)
    EXPECT_TRUE(outcome(text, Json::object()).starts_with("error: t"))
        << text.substr(0, 100) << "\n"
        << outcome(text, Json::object()).substr(0, 200);
  // A long chain of branches, or of text, is no nesting.
  EXPECT_EQ(outcome("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% else %}a{% endif %}",
                    Json::object()),
            "a");
  EXPECT_EQ(outcome("{{ ''" + repeated(" ~ 'a'", 5000) + " }}", Json::object()),
            std::string(5000, 'a'));
}

}  // namespace
}  // namespace brrr::jinja
