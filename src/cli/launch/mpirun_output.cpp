#include "cli/launch/mpirun_output.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/system_text.h"
#include "base/tell.h"

namespace brrr::cli {
namespace {

bool is_all_dashes(std::string_view line) {
  return std::ranges::all_of(line, [](char c) { return c == '-'; });
}
bool is_rule(std::string_view line) { return line.size() >= 60 && is_all_dashes(line); }

}  // namespace

void MpirunOutput::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    const bool is_whole = end != std::string_view::npos;
    // A progress line has no end for long, and does not begin with dashes.
    if (!is_in_block_ && (is_passed_on_ || !is_all_dashes(line_))) {
      tell("{}{}", line_, is_whole ? "\n" : "");
      line_.clear();
      is_passed_on_ = !is_whole;
    } else if (is_whole) {
      add_line(line_);
      line_.clear();
    }
    bytes.remove_prefix(is_whole ? end + 1 : bytes.size());
  }
}

void MpirunOutput::add_line(std::string_view line) {
  if (!is_in_block_ && !is_rule(line)) return tell("{}\n", line);
  if (is_rule(line)) is_in_block_ = !is_in_block_;
  blocks_.append(line).append("\n");
}

void MpirunOutput::tell_blocks() const { tell("{}", blocks_); }

std::optional<MpirunOutput::Killed> MpirunOutput::killed() const {
  // Open MPI breaks the sentence into lines at any space.
  constexpr const char* kWords[] = {"process", "rank", "",       "with", "PID",    "", "on",
                                    "node",    "",     "exited", "on",   "signal", ""};
  std::vector<std::string> words, values;
  std::istringstream text(blocks_);
  for (std::string word; text >> word;) words.push_back(word);
  for (size_t at = 0; at + std::size(kWords) <= words.size(); ++at) {
    values.clear();
    for (size_t i = 0; i < std::size(kWords); ++i)
      if (*kWords[i] == 0)
        values.push_back(words[at + i]);
      else if (words[at + i] != kWords[i])
        break;
    if (values.size() < 4) continue;
    const auto rank = system_text::number(values[0]), process = system_text::number(values[1]),
               signal = system_text::number(values[3]);
    if (rank && process && signal) return Killed{*rank, *process, values[2], *signal};
  }
  return {};
}

bool MpirunOutput::lost_a_daemon() const {
  return blocks_.find("lost communication with a remote daemon") != std::string::npos;
}

}  // namespace brrr::cli
