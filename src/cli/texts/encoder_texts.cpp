#include "cli/texts/encoder_texts.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/encoding/utf8.h"
#include "base/human.h"
#include "base/tell.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::cli {
namespace {

constexpr size_t kReadAtOnce = size_t{1} << 16;
constexpr size_t kLongestLine = size_t{64} << 20;

}  // namespace

LineReader::LineReader(const std::vector<std::string>& files) : files_(files) {
  if (files_.empty()) files_.push_back("-");
  open_next();
}

void LineReader::open_next() {
  file_.reset();
  reads_stdin_ = is_terminal_ = false;
  line_ = 0;
  if (next_file_ == files_.size()) return;
  name_ = files_[next_file_++];
  if (name_ != "-") {
    file_.emplace(name_);
    return;
  }
  name_ = "standard input";
  reads_stdin_ = true;
  is_terminal_ = ::isatty(STDIN_FILENO) == 1;
  if (is_terminal_) tell("one text per line; Ctrl-D ends\n");
}

bool LineReader::refill() {
  buffer_.resize(kReadAtOnce);
  at_ = 0;
  size_t count = 0;
  if (file_) {
    count = file_->read(buffer_.data(), buffer_.size());
  } else {
    const Stopwatch watch;
    ssize_t got = -1;
    do got = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    while (got < 0 && errno == EINTR);
    seconds_waited_ += watch.seconds();
    if (got < 0) user_error("standard input cannot be read: {}", std::strerror(errno));
    count = static_cast<size_t>(got);
  }
  buffer_.resize(count);
  return count > 0;
}

bool LineReader::read_line(std::string& line) {
  line.clear();
  bool has_some = false;
  for (;;) {
    if (at_ == buffer_.size() && !refill()) break;
    has_some = true;
    const size_t end = buffer_.find('\n', at_);
    line.append(buffer_, at_, end == std::string::npos ? end : end - at_);
    if (line.size() > kLongestLine)
      user_error("{}, line {}: it is longer than {} MiB; expected one text per line", name_,
                 line_ + 1, kLongestLine >> 20);
    at_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (end != std::string::npos) break;
  }
  if (line.ends_with('\r')) line.pop_back();
  return has_some;
}

std::vector<std::string> LineReader::next(size_t most_lines, size_t most_bytes) {
  std::vector<std::string> lines;
  size_t bytes = 0;
  places_.clear();
  std::string line;
  while ((file_ || reads_stdin_) && lines.size() < most_lines && bytes < most_bytes) {
    if (!read_line(line)) {
      open_next();
      continue;
    }
    ++line_;
    bytes += line.size();
    lines.push_back(line);
    places_.push_back(fmt::format("{}, line {}", name_, line_));
    if (is_terminal_) break;
  }
  return lines;
}

std::string LineReader::where(size_t i) const { return places_[i]; }

EncoderTexts::EncoderTexts(const infer::TextsOptions& options, const io::Tokenizer& tokenizer,
                           int64_t longest, infer::TextForm form, Communicator* communicator)
    : options_(options),
      tokenizer_(tokenizer),
      longest_(static_cast<size_t>(longest)),
      form_(form),
      communicator_(communicator) {
  if (is_first_rank(communicator)) reader_.emplace(options.text);
}

void EncoderTexts::read_lines() {
  lines_ = reader_->next(infer::window_lines(options_), infer::kWindowBytes);
  places_.clear();
  for (size_t i = 0; i < lines_.size(); ++i) places_.push_back(reader_->where(i));
}

void EncoderTexts::get_lines_of_first() {
  Packed packed(text_of_first(communicator_, [&] {
    read_lines();
    Packed own;
    own.put_value(lines_.size());
    for (const std::string& line : lines_) own.put_text(line);
    for (const std::string& place : places_) own.put_text(place);
    return own.bytes();
  }));
  if (is_first_rank(communicator_)) return;
  lines_.resize(packed.take_value<size_t>());
  places_.resize(lines_.size());
  for (std::string& line : lines_) line = packed.take_text();
  for (std::string& place : places_) place = packed.take_text();
}

bool EncoderTexts::next() {
  if (communicator_ == nullptr)
    read_lines();
  else
    get_lines_of_first();
  count_ += std::ssize(lines_);
  for (const std::string& line : lines_) {
    empty_ += line.empty();
    broken_ += io::find_invalid_utf8(line).has_value();
  }
  return !lines_.empty();
}

io::ModelInput EncoderTexts::encode(size_t line, std::string_view first,
                                    std::optional<std::string_view> second) {
  return checked(where(line), infer::encoder_input(tokenizer_, form_, longest_, first, second));
}

io::ModelInput EncoderTexts::encode_other(std::string_view text, const std::string& where) {
  const int64_t cut = cut_;
  io::ModelInput input = checked(where, infer::encoder_input(tokenizer_, form_, longest_, text));
  if (cut_ > cut)
    tell("note: {} is longer than {} tokens: only its beginning was read\n", where, longest_);
  cut_ = cut;  // counts lines only
  return input;
}

io::ModelInput EncoderTexts::encode_words(size_t line, std::span<const std::string_view> words) {
  return checked(where(line), tokenizer_.model_input_of_words(words, std::nullopt, longest_));
}

io::ModelInput EncoderTexts::checked(const std::string& where, io::ModelInput input) {
  // Without special tokens a text may have none: its vector is zeros.
  if (input.ids.empty() && form_ != infer::TextForm::without_special_tokens)
    user_error("{}: the text has no tokens; expected at least one", where);
  if (input.left_out > 0) {
    if (!options_.truncate)
      user_error(
          "{}: the text has {} tokens, more than the limit of {}; leave --no-truncate out to "
          "truncate such texts",
          where, input.ids.size() + input.left_out, longest_);
    ++cut_;
  }
  return input;
}

void EncoderTexts::say_notes() const {
  if (cut_ > 0)
    tell("note: {} of {} {} longer than {} tokens: only {} beginning was read\n", cut_,
         brrr::counted(count_, "text"), cut_ == 1 ? "is" : "are", longest_,
         cut_ == 1 ? "its" : "their");
  if (broken_ > 0)
    tell("note: {} not UTF-8: invalid bytes are read as they are\n",
         broken_ == 1 ? "1 line is" : fmt::format("{} lines are", broken_));
  if (empty_ > 0)
    tell("note: {} empty: each still gets a result\n",
         empty_ == 1 ? "1 line is" : fmt::format("{} lines are", empty_));
}

void ResultList::print(const std::string& result) {
  fmt::print("{}{}", has_begun_ ? "," : fmt::format("{{\"{}\":[", name_), result);
  has_begun_ = true;
}

void ResultList::finish(const std::string& rest) {
  fmt::print("{}],{}\n", has_begun_ ? "" : fmt::format("{{\"{}\":[", name_), rest.substr(1));
}

double rate_of(int64_t texts, double seconds) {
  return seconds > 0 ? static_cast<double>(texts) / seconds : 0;
}

void say_rate(int64_t texts, double seconds, const std::string& model) {
  const double rate = rate_of(texts, seconds);
  tell("{} in {}, {:.{}f} texts/s ({})\n", counted(texts, "text"), duration_text(seconds), rate,
       rate < 9.95 ? 1 : 0, model);
}

}  // namespace brrr::cli
