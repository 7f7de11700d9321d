#pragma once
// Python's formatting of strings: the operator %, str.format() with its mini-language, and
// format(value, specification).

#include <string_view>

#include "text/jinja/builtins.h"

namespace brrr::jinja {

/// `format % arguments`. Throws UserError where Python raises an error.
Value format_percent(Work& work, const Value& format, const Value& arguments);
/// `format.format(...)`; fields look up attributes and items as expressions of a template do.
Value format_fields(Work& work, const Value& format, const Given& given);
/// format(value, specification).
std::string formatted(Work& work, const Value& value, std::string_view specification);

}  // namespace brrr::jinja
