#pragma once
// What is said to people on standard error. That nobody can read it is no failure: the terminal may
// be gone, the pipe closed, the disk of a log full. Callable from any thread.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace brrr {

/// Text that may hold any byte.
inline void tell_text(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stderr) < text.size()) std::clearerr(stderr);
}

template <typename... Args>
void tell(fmt::format_string<Args...> text, Args&&... args) {
  tell_text(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace brrr
