#pragma once
// The functions that every template may call: range, dict, namespace, raise_exception and
// strftime_now.

#include <ctime>
#include <string>
#include <string_view>

#include "text/jinja/builtins.h"

namespace brrr::jinja {

/// What raise_exception says: the template itself refuses the conversation.
class Refusal : public UserError {
 public:
  using UserError::UserError;
};

bool is_global(std::string_view name);
/// Throws UserError for what is not a global function.
Value call_global(Work& work, const std::string& name, const Given& given, const std::tm& now);

}  // namespace brrr::jinja
