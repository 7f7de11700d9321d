#pragma once
// What is said to people on standard error. That nobody can read it is no failure: the terminal may
// be gone, the pipe closed, the disk of a log full. Callable from any thread.

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace brrr {

/// Text that may hold any byte.
void tell_text(std::string_view text);

/// Where text goes instead of standard error: the library's caller decides. An empty function:
/// standard error again.
void set_tell_sink(std::function<void(std::string_view)> sink);
/// Whether text goes to a sink: then there is no terminal to draw on.
bool has_tell_sink();

template <typename... Args>
void tell(fmt::format_string<Args...> text, Args&&... args) {
  tell_text(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace brrr
