#include "cli/launch/mpirun_output.h"

#include <sstream>
#include <vector>

#include "base/system_text.h"
#include "base/tell.h"

namespace brrr::cli {
namespace {

constexpr size_t kDashesOfRule = 60, kMostBytesOfBlocks = 4 << 10;
/// Bytes at the end of the output that are searched for mpirun's reports.
constexpr size_t kRecentBytes = 16 << 10;

/// Returns the number of dashes at the end of the line.
size_t dashes_at_end(std::string_view line) {
  const size_t last = line.find_last_not_of('-');
  return line.size() - (last == std::string_view::npos ? 0 : last + 1);
}

/// Finds the first occurrence of a sequence in which "" matches any word; returns those words.
std::optional<std::vector<std::string>> values_in(const std::vector<std::string>& words,
                                                  const std::vector<std::string_view>& sequence) {
  for (size_t at = 0; at + sequence.size() <= words.size(); ++at) {
    std::vector<std::string> values;
    size_t same = 0;
    for (; same < sequence.size(); ++same)
      if (sequence[same].empty())
        values.push_back(words[at + same]);
      else if (words[at + same] != sequence[same])
        break;
    if (same == sequence.size()) return values;
  }
  return {};
}

}  // namespace

void MpirunOutput::add(std::string_view bytes) {
  recent_.append(bytes);
  if (recent_.size() > 2 * kRecentBytes) recent_.erase(0, recent_.size() - kRecentBytes);
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (end != std::string_view::npos) {
      end_line();
    } else if (!is_in_block_ && dashes_at_end(line_) == 0) {
      tell("{}", line_);  // a progress line, which has no newline for a long time
      is_passed_on_ = !line_.empty();
      line_.clear();
    }
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
  }
}

void MpirunOutput::end_line() {
  const size_t dashes = dashes_at_end(line_);
  const bool is_rule = dashes >= kDashesOfRule;
  if (is_in_block_ || is_rule) {
    // A rule may follow the unfinished line of a rank.
    std::string_view rest = line_;
    if (!is_in_block_) {
      rest = rest.substr(0, rest.size() - dashes);
      if (is_passed_on_ || !rest.empty()) tell("{}\n", rest);
    }
    blocks_.append(std::string_view(line_).substr(is_in_block_ ? 0 : rest.size())).append("\n");
    if (is_rule) is_in_block_ = !is_in_block_;
    if (is_in_block_ && blocks_.size() > kMostBytesOfBlocks) {
      tell("{}", blocks_);  // longer than mpirun's blocks: a rank printed the line of dashes
      blocks_.clear();
      is_in_block_ = false;
    }
  } else {
    tell("{}\n", line_);
  }
  is_passed_on_ = false;
  line_.clear();
}

void MpirunOutput::tell_blocks() const { tell("{}", blocks_); }

std::optional<MpirunOutput::Killed> MpirunOutput::killed() const {
  std::vector<std::string> words;
  std::istringstream text(recent_);
  for (std::string word; text >> word;) words.push_back(word);
  // Open MPI breaks the sentence into lines at any space.
  if (const auto v = values_in(words, {"process", "rank", "", "with", "PID", "", "on", "node", "",
                                       "exited", "on", "signal", ""})) {
    const auto rank = system_text::number((*v)[0]), process = system_text::number((*v)[1]),
               signal = system_text::number((*v)[3]);
    if (rank && process && signal) return Killed{*rank, *process, (*v)[2], *signal};
  }
  return {};
}

bool MpirunOutput::lost_a_daemon() const {
  return recent_.find("lost communication with a remote daemon") != std::string::npos;
}

}  // namespace brrr::cli
