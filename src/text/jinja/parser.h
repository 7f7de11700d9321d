#pragma once
// Reads the tokens of a template into its tree.

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace brrr::jinja {

/// Throws UserError with line and column for what is no template, for tags that are not supported
/// (by name) and for nesting beyond a limit.
Body parse(const Source& source);

}  // namespace brrr::jinja
