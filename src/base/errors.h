#pragma once
// The two kinds of failure. UserError: a flag, a file or a shape is wrong; the message says what
// was expected, what came and what to do, and the command line prints it as one line.
// InternalError: Brrr broke a promise of its own. Expected refusals (a kernel that does not accept
// a node) are neither: they return a reason.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace brrr {

/// Exit codes of the command line.
enum class ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kNoMemory = 3 };

/// Text that may quote files and names of others, made fit for one line of a terminal: control
/// characters and bytes that are not UTF-8 are escaped (\x1b), and of a long text the middle is
/// left out, so that the advice at its end stays.
std::string fit_for_a_line(std::string_view text);

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message, ExitCode code = ExitCode::kFailed)
      : std::runtime_error(fit_for_a_line(message)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws UserError (exit 1) with a formatted message.
template <typename... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws UserError with exit code 2: the command line or a configuration key is wrong.
template <typename... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...), ExitCode::kUsage);
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace brrr

/// A promise of our own code. The message is formatted only when the check fails.
#define BRRR_CHECK(condition, ...)                                                       \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::brrr::check_failed(__FILE__, __LINE__, #condition, fmt::format("" __VA_ARGS__)); \
  } while (false)
