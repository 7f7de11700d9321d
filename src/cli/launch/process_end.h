#pragma once
// How a child process of a launcher ended.

#include <string>

namespace brrr::cli {

/// Signals are numbered from 1.
inline constexpr int kMostSignals = 64;
/// The exit code, as shells report it: 128 + N if signal N ended the process.
int code_of(int status);
/// Whether the signal means that somebody ended the run on purpose or that nobody reads its output.
/// Such a run is not started again.
bool asks_for_the_end(int signal);
/// "was ended by signal 9 (Killed; ...)"
std::string ended_by_signal(int signal);

}  // namespace brrr::cli
