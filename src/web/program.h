#pragma once
// Other programs as child processes, with no shell in between.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

/// How a program ended.
struct ProgramEnd {
  int exit_status = 0;  // as waitpid gives it
  std::string message;  // what the program wrote to standard error

  bool is_success() const { return exit_status == 0; }
  bool is_killed() const;
  /// Why it failed, on one line that begins with its name.
  std::string failure_of(const std::string& program) const;
};

/// Takes a piece of what a program writes to standard output.
using TakeOutput = std::function<void(std::string_view)>;

/// Runs a program found on PATH to its end; nothing when there is no such program. `input`, some
/// kilobytes at most, is its standard input. Without `take` its output is dropped; an exception
/// that `take` throws ends the program first.
std::optional<ProgramEnd> run_program(const std::vector<std::string>& arguments,
                                      std::string_view input = {}, const TakeOutput& take = {});

}  // namespace brrr::io
