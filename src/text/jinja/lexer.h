#pragma once
// The tokens of a template, with the white space taken that Hugging Face's environment takes
// (trim_blocks, lstrip_blocks) and the signs in `{%-`, `{%+` and the like ask for.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::jinja {

struct Token {
  enum class Kind {
    data,            // text between tags
    block_begin,     // {%
    block_end,       // %}
    variable_begin,  // {{
    variable_end,    // }}
    name,
    string,
    integer,
    real,
    op,
    end
  };
  Kind kind = Kind::end;
  std::string text;  // what a string means, else as it stands in the template
  size_t at = 0;     // byte in the template
};

/// The source of a template: its name for errors, lines that end in "\n", and no newline at its
/// end.
class Source {
 public:
  Source(std::string_view text, std::string name);
  std::string_view text() const { return text_; }
  const std::string& name() const { return name_; }
  /// "NAME, line 3, column 7": what errors begin with.
  std::string place(size_t at) const;
  /// Throws UserError with the place.
  [[noreturn]] void fail(size_t at, const std::string& message) const;

 private:
  std::string text_, name_;
};

/// Throws UserError for what is no token, and for tags that do not end.
std::vector<Token> tokens_of(const Source& source);

}  // namespace brrr::jinja
