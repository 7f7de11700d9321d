#pragma once
// Rows of a table from JSON lines, one object a line: {"text": "...", "label": "pos"}.

#include <deque>
#include <string>
#include <string_view>

#include "data/labelled/tsv.h"

namespace brrr::io {

/// Whether a file consists of JSON lines: by the ending of its name (.jsonl, .ndjson), or because
/// its first line is a JSON object.
bool has_json_rows(std::string_view text, const std::string& path);

/// The objects as rows, behind a first row with the names of all their fields. Strings stand as
/// they are, numbers and booleans as JSON writes them, the elements of an array with spaces in
/// between; null and what an object lacks is an empty field. `kept` holds what the fields are views
/// of. Other values (objects, arrays of arrays, elements with spaces) make a problem of the column,
/// for whoever reads it. Throws UserError, with the line: no JSON, no object.
TsvTable read_json_rows(std::string_view text, const std::string& name,
                        std::deque<std::string>& kept);

}  // namespace brrr::io
