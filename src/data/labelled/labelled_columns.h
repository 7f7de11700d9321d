#pragma once
// Which columns of a table are the text, the second text and the label.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/labelled/labelled_file.h"
#include "data/labelled/tsv.h"

namespace brrr::io {

struct LabelledColumns {
  bool has_header = false;  // the first row names the columns
  bool was_told = true;     // by names or options; else the fields showed it
  size_t text = 0, label = 0;
  std::optional<size_t> text2;
};

/// As labelled_file.h says. `name` stands for the file in messages. Throws UserError where columns
/// are missing or cannot be told apart, and says which options tell them apart.
LabelledColumns find_columns(const TsvTable& table, const LabelledFileOptions& options,
                             const std::string& name);

/// One line for the user: what was found.
std::string describe(const LabelledColumns& columns, const TsvTable& table);

/// Whether one of the fields is the name of a column of tags.
bool names_tags(const std::vector<std::string_view>& fields);

/// Without the spaces around it.
std::string_view without_spaces(std::string_view text);
/// The words between spaces.
std::vector<std::string_view> split_at_spaces(std::string_view text);
/// A field for messages: its beginning, on one line.
std::string shown_field(std::string_view field);
/// A finite decimal number, spaces around it allowed; nothing when it is none.
std::optional<float> number_in(std::string_view text);

}  // namespace brrr::io
