#pragma once
// Runs the tree of a template.

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"
#include "text/jinja/template.h"

namespace brrr::jinja {

/// Throws UserError that names the place in the source.
MarkedText interpret(const Source& source, const Body& body,
                     const std::vector<std::pair<std::string, Value>>& variables,
                     const std::tm& now, const Limits& limits);

}  // namespace brrr::jinja
