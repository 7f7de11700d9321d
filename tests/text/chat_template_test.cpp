// Templates against Hugging Face's library (tests/golden/make_chat_goldens.py), their errors, and
// that hostile ones end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "text/jinja/python_text.h"
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

/// The hash that the goldens have, byte by byte.
std::string hash_of(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

TEST(ChatTemplate, CharactersAreThoseOfPython) {
  const Json& golden = goldens()["characters"];
  std::vector<std::string> letters;
  for (const Json& range : golden["ranges"])
    for (uint32_t c = range[0].get<uint32_t>(); c <= range[1].get<uint32_t>(); ++c)
      append_code_point(c, letters.emplace_back());
  const std::pair<const char*, std::string (*)(std::string_view)> texts[] = {
      {"upper", upper}, {"lower", lower}, {"title", title_of_words}, {"swapcase", swapcase}};
  for (const auto& [name, change] : texts) {
    std::string all;
    for (const std::string& letter : letters) all += change(letter);
    EXPECT_EQ(hash_of(all), golden["hashes"][name]) << name;
  }
  const std::pair<const char*, CharClass> classes[] = {
      {"isalpha", CharClass::alpha},        {"isdecimal", CharClass::decimal},
      {"isdigit", CharClass::digit},        {"isnumeric", CharClass::numeric},
      {"isalnum", CharClass::alphanumeric}, {"isspace", CharClass::space},
      {"isprintable", CharClass::printable}};
  for (const auto& [name, kind] : classes) {
    std::string all;
    for (const std::string& letter : letters) all += all_are(letter, kind) ? '1' : '0';
    EXPECT_EQ(hash_of(all), golden["hashes"][name]) << name;
  }
  std::string of_upper, of_lower, of_title;
  for (const std::string& letter : letters) {
    of_upper += all_cased(letter, true) ? '1' : '0';
    of_lower += all_cased(letter, false) ? '1' : '0';
    of_title += is_title(letter) ? '1' : '0';
  }
  EXPECT_EQ(hash_of(of_upper), golden["hashes"]["isupper"]);
  EXPECT_EQ(hash_of(of_lower), golden["hashes"]["islower"]);
  EXPECT_EQ(hash_of(of_title), golden["hashes"]["istitle"]);
}

TEST(ChatTemplate, ErrorsSayWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% include 'x' %}", "t, line 2, column 6: the tag 'include' is not supported"},
      {"{{ x|nosuch }}", "t, line 1, column 6: the filter 'nosuch' is not supported"},
      {"{{ 1 is nosuch }}", "t, line 1, column 9: the test 'nosuch' is not supported"},
      {"\n{{ 'a'.nosuch() }}", "t, line 2, column 7: a string has no method 'nosuch'"},
      {"{{ lipsum() }}", "line 1, column 4: 'lipsum' is undefined"},
      {"{{ missing.x }}", "line 1, column 11: 'missing' is undefined"},
      {"ä {{ 'a' + 1 }}",
       "line 1, column 10: the operator + cannot be applied to a string and an integer"},
      {"{{ 'a' + (1,) }}", "the operator + cannot be applied to a string and a tuple"},
      {"{% for x in [1] %}{{ loop(x) }}{% endfor %}", "the loop is not recursive"},
      {"{{ range(*5) }}", "an integer has no elements"},
      {"{{ range(**5) }}", "** unpacks a dictionary, found an integer"},
      {"{{ dict(a=1, **{'a': 2}) }}", "the argument 'a' is given twice"},
      {"{{ dict(**{1: 2}) }}", "the name of an argument is an integer"},
      {"{{ [1]|map('upper') }}", "an iterator cannot be printed"},
      {"{% set ns = namespace() %}{% set ns.x = [1]|map('default', ns) %}",
       "a namespace cannot be put into"},
      {"{% set it = [1]|map('nosuch') %}{{ it|list }}", "the filter 'nosuch' is not supported"},
      {"{{ '%s %s' % 1 }}", "the format has more fields than arguments"},
      {"{{ '%s' % (1, 2) }}", "the format has fewer fields than arguments"},
      {"{{ '%(a)s' % 1 }}", "the format names a field; expected a dictionary"},
      {"{{ '%(a)s' % {} }}", "the format names the field 'a', which is not given"},
      {"{{ '%(a' % {} }}", "a field whose name does not end"},
      {"{{ '%d' % 'a' }}", "%d takes a number, found a string"},
      {"{{ '%x' % 1.5 }}", "%x takes an integer, found a number"},
      {"{{ '%f' % 'a' }}", "%f takes a number, found a string"},
      {"{{ '%c' % 'ab' }}", "%c takes a number or one character"},
      {"{{ '%c' % -1 }}", "-1 is not the number of a character"},
      {"{{ '%*d' % ('a', 1) }}", "* takes an integer, found a string"},
      {"{{ '%y' % 1 }}", "the format character 'y' is not supported"},
      {"{{ 'a%' % 1 }}", "the format ends inside a field"},
      {"{{ '{'.format(1) }}", "without its '}'"},
      {"{{ '}'.format(1) }}", "without its '{'"},
      {"{{ '{}'.format() }}", "the format has a field 0; 0 values are given"},
      {"{{ '{a}'.format() }}", "the format names the field 'a', which is not given"},
      {"{{ '{0}{}'.format(1, 2) }}", "mixes fields with and without numbers"},
      {"{{ '{!x}'.format(1) }}", "an unknown conversion '!x'"},
      {"{{ '{!}'.format(1) }}", "no conversion behind '!'"},
      {"{{ '{0.}'.format(1) }}", "an empty attribute"},
      {"{{ '{0[}'.format(1) }}", "without its '}'"},
      {"{{ '{0[a]b}'.format({'a': 1}) }}", "a field that is not valid"},
      {"{{ '{:.}'.format(1) }}", "no precision behind its point"},
      {"{{ '{:5y5}'.format(1) }}", "the format is not valid at '5'"},
      {"{{ '{:s}'.format(1) }}", "the format 's' is not for an integer"},
      {"{{ '{:.2d}'.format(1) }}", "a precision is not allowed for an integer"},
      {"{{ '{:+}'.format('a') }}", "are for numbers, not for a string"},
      {"{{ '{:5}'.format([]) }}", "a list takes no format, found '5'"},
      {"{{ '{:5}'.format('a'|safe) }}{{ ('{:5}'|safe).format('a'|safe) }}",
       "markup takes no format"},
      {"{{ '{:.99999f}'.format(1.5) }}", "a precision is larger than 10000"},
      {"{{ '{:99999999999999999999}'.format(1) }}", "a width or a precision is too large"},
      {"{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}", "the format is nested too deeply"},
      {"{{ 'a'|format(1, b=2) }}", "takes values by place or by name, not both"},
      {"{{ 'a'.format_map(1) }}", "format_map takes a dictionary, found an integer"},
      {"{{ 'a'.partition('') }}", "a separator that is not empty"},
      {"{{ 'a'.ljust(3, 'xy') }}", "ljust takes one character to fill with"},
      {"{{ [1]|slice(0)|list }}", "a number of slices other than 0"},
      {"{{ ['a', ['b']]|unique|list }}", "unique cannot compare a list"},
      {"{{ 'abc'|truncate(1) }}", "a length of at least that of its end"},
      {"{{ 'x'|filesizeformat }}", "filesizeformat takes a number"},
      {"{{ 'x'|sum(start='a') }}", "sum does not add strings"},
      {"{{ [1, 2]|urlencode }}", "an integer has no elements"},
      {"{{ ['abc']|urlencode }}", "pairs of a name and a value"},
      {"{{ [1]|map('upper')|last }}", "what can be read backwards, found an iterator"},
      {"{{ 1e300|round|int }}", "more than 64 bits"},
      {"{{ 10.0 ** 400 }}", "too large for a number of 64 bits"},
      {"{{ 010 }}", "an integer begins with 0"},
      {"{{ 0b12 }}", "0b12 is not an integer"},
      {"{{ loop.changed(a=1) }}", "'loop' is undefined"},
      {"{% for i in [1] %}{{ loop.changed(a=1) }}{% endfor %}", "takes values without names"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}{% call m() %}{% endcall %}",
       "a macro cannot be put into"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "or is given it twice"},
      {"{{ 1.7e308|round(-308) }}", "the rounded value is too large"},
      {"{{ ('inf'|float)|round(none) }}", "inf has no integer value"},
      {"{{ 5|round(method='up') }}", "knows common, ceil and floor"},
      {"{{ [1] is filter }}", "a list cannot be a name"},
      {"{{ {[1]: 2} }}", "a list cannot be the key of a dictionary"},
      {"{{ {}.get([1]) }}", "a list cannot be the key of a dictionary"},
      {"{{ [1] in {} }}", "a list cannot be the key of a dictionary"},
      {"{{ 5[1:] }}", "an integer has no slices"},
      {"{{ 'abc'['a':] }}", "a string cannot bound a slice"},
      {"{{ range(2)|tojson }}", "a range cannot be written as JSON"},
      {"{{ {(1,): 2}|tojson }}", "a tuple cannot be written as JSON"},
      {"{{ dict([1]) }}", "an integer has no elements"},
      {"{{ dict(['abc']) }}", "pairs of a name and a value"},
      {"{{ f(*x, *y) }}", "more arguments are unpacked"},
      {"{{ f(**x, a=1) }}", "a keyword argument follows an unpacked dictionary"},
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

/// Comparing large tuples and dictionaries, also as dictionary keys, counts towards the step limit.
TEST(ChatTemplate, ComparisonsOfLargeValuesEnd) {
  // A tuple that holds itself twice, 20 levels deep: a million parts in 20 objects. Its twin is
  // equal and shares nothing with it.
  const std::string twins =
      "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(20) %}"
      "{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}";
  const std::string often = "{% for i in range(99999) %}";
  for (const std::string& text :
       {twins + "{% set d = {ns.a: 1} %}" + often + "{{ d[ns.b] }}{% endfor %}",
        twins + "{% set d = {ns.a: 1} %}" + often + "{{ ns.b in d }}{% endfor %}",
        twins + "{% set d = {ns.a: 1} %}" + often + "{{ d.get(ns.b) }}{% endfor %}",
        twins + often + "{{ {ns.a: 1, ns.b: 2}|length }}{% endfor %}",
        twins + often + "{{ loop.changed(ns.a if i % 2 else ns.b) }}{% endfor %}",
        twins + often + "{{ {}[ns.a] }}{% endfor %}",
        "{% set x = dict(range(2000)|batch(2)) %}{% set y = dict(range(2000)|batch(2)) %}" + often +
            "{{ x == y }}{{ x.items() == y.items() }}{% endfor %}"}) {
    EXPECT_TRUE(outcome(text, Json::object()).starts_with("error: t")) << text;
  }
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
      "{{ [1]|slice(99999999999)|list }}",
      "{% set ns = namespace(x=[1]) %}" + range + "{% set ns.x = ns.x|map('abs') %}{% endfor %}",
      "{{ '%999999999999d' % 1 }}",
      "{{ '%.999999999999d' % 1 }}",
      "{{ '{:999999999999}'.format(1) }}",
      "{{ '{:0999999999999,}'.format(1) }}",
      "{{ 'a'.center(999999999999) }}",
      "{{ '\\t'.expandtabs(999999999999) }}",
      "{% for x in [[1]] recursive %}{{ loop(x) }}{{ loop([x]) }}{% endfor %}",
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
