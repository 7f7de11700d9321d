#pragma once
// Every environment variable that Brrr reads, in one table (`brrr info --env` prints it).

#include <optional>
#include <span>
#include <string>

namespace brrr::env {

struct Variable {
  const char* name;
  const char* meaning;
};

/// The table. Reading a variable that is not in it is an InternalError.
std::span<const Variable> all();

/// The value, or nothing when unset or empty.
std::optional<std::string> get(const char* name);

/// How the user starts this program, for messages that suggest a command: as the script ./brrr was
/// named, else "brrr".
std::string program();
/// A message in which commands stand in quotes (`brrr VERB ...`), with them as the user types them.
std::string as_typed(std::string message);

}  // namespace brrr::env
