#pragma once
// How a process ended that a launcher waited for.

#include <string>

namespace brrr::cli {

/// Signals are numbered from 1.
inline constexpr int kMostSignals = 64;
/// As shells have it: 128 + N where signal N ended the process.
int code_of(int status);
/// Whether the signal means that somebody ended the run on purpose, or that nobody reads what it
/// prints; the run is not started again then.
bool asks_for_the_end(int signal);
/// "was ended by signal 9 (Killed; ...)"
std::string ended_by_signal(int signal);

}  // namespace brrr::cli
