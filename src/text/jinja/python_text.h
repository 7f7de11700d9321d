#pragma once
// What Python's strings can do, over UTF-8: positions and lengths count code points. Bytes that are
// no UTF-8 count as a character each, and stay as they are.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::jinja {

/// A byte b that is no UTF-8 becomes kByte + b.
constexpr uint32_t kByte = 0x110000;
std::vector<uint32_t> code_points(std::string_view text);
void append_code_point(uint32_t code, std::string& out);
size_t count_characters(std::string_view text);

/// str.isspace() of one character.
bool is_space(uint32_t code);
/// Without the characters of `set` at the ends that are asked for; a null set means white space.
std::string_view strip(std::string_view text, const std::string* set, bool left, bool right);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string casefold(std::string_view text);
std::string swapcase(std::string_view text);
/// The first character in title case, the others in lower case.
std::string capitalize(std::string_view text);
/// str.title(): letters behind what is no letter are large.
std::string title_of_words(std::string_view text);
/// The filter `title`: large is what follows white space and one of -({[<.
std::string title_of_filter(std::string_view text);
std::vector<std::string_view> split_lines(std::string_view text, bool keeps_ends = false);
std::string expand_tabs(std::string_view text, int64_t size);
/// str.split() and, `from_right`, str.rsplit(). An empty separator means white space; most < 0:
/// all.
std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t most,
                                    bool from_right);
/// The first `most` places are replaced; most < 0: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t most);
/// repr() of a string; `ascii`: ascii().
std::string python_quoted(std::string_view text, bool ascii = false);

/// The value of a decimal digit, in whatever script.
std::optional<int> decimal_digit(uint32_t code);
/// \w of Python's regular expressions.
bool continues_word(uint32_t code);

/// The methods isalpha(), isdecimal() and so on.
enum class CharClass {
  alpha,
  decimal,
  digit,
  numeric,
  alphanumeric,
  space,
  ascii,
  printable,
  identifier
};
bool all_are(std::string_view text, CharClass kind);
/// At least one letter has a case, and all that have one have this.
bool all_cased(std::string_view text, bool upper);
/// Upper case follows what has no case, lower case what has one.
bool is_title(std::string_view text);

}  // namespace brrr::jinja
