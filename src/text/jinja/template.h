#pragma once
// Templates of Jinja as chat templates use them, in the environment of Hugging Face's library:
// trim_blocks, lstrip_blocks, break and continue, `generation`, raise_exception, strftime_now.
// Values, filters and methods behave as in Python, one-shot iterators and markup included.
// What is not supported is refused by name, with line and column. A template comes from outside: it
// cannot read anything but its variables, and it ends, whatever it is (Limits).

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace brrr::jinja {

/// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

struct MarkedText {
  std::string text;
  /// What `{% generation %}` blocks have written, in order: a model's own words. Blocks inside
  /// macros, captures and recursive loops, whose text may be changed later, are not in the list.
  std::vector<TextRange> generated;
};

class Template {
 public:
  /// `name` stands for the template in errors. Throws UserError for what is no template.
  Template(std::string_view text, std::string name);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  using Variables = std::vector<std::pair<std::string, Value>>;
  /// `now` is what strftime_now writes. Throws UserError for what the template raises itself, for
  /// what it cannot do, and beyond the limits.
  std::string render(const Variables& variables, const std::tm& now,
                     const Limits& limits = {}) const {
    return render_marked(variables, now, limits).text;
  }
  /// The same, with the places that `generation` blocks have written.
  MarkedText render_marked(const Variables& variables, const std::tm& now,
                           const Limits& limits = {}) const;

 private:
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace brrr::jinja
