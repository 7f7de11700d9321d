#include "train/chat/encode_conversation.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.h"

namespace brrr::train {
namespace {

using jinja::TextRange;

/// The date for templates that call strftime_now. It is always the same, so that a run resumed on
/// another day has the same data: the one in Llama 3's templates.
std::tm day_of_training() {
  std::tm day{};
  day.tm_year = 2024 - 1900;
  day.tm_mon = 6;
  day.tm_mday = 26;
  day.tm_wday = 5;
  day.tm_yday = 207;
  return day;
}

/// Ids, and the range of bytes of the text that each stands for.
struct PlacedIds {
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
};

/// Encodes a text and finds the range of each id by following their decoded texts.
class Placer {
 public:
  Placer(const io::Tokenizer& tokenizer, std::string_view text)
      : tokenizer_(tokenizer), text_(text) {}

  /// Returns nothing if the ids do not spell the text, because the tokenizer normalizes it.
  std::optional<PlacedIds> place() {
    PlacedIds placed{tokenizer_.encode(text_), {}};
    io::DecodeState state;
    for (const int32_t id : placed.ids) {
      std::string piece;
      tokenizer_.decode(std::span(&id, 1), state, piece);
      const std::optional<TextRange> range = advance(piece);
      if (!range) return std::nullopt;
      placed.ranges.push_back(*range);
      if (takes_spaces(id, piece)) {
        at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
        placed.ranges.back().end = at_;
      }
    }
    std::string rest;
    tokenizer_.finish(state, rest);
    if (!advance(rest) || at_ != text_.size()) return std::nullopt;
    return placed;
  }

 private:
  /// Advances by the decoded text of an id. Tokenizers of the Llama family insert a space before
  /// the text and after special tokens; such a space gets the range of the character that follows.
  std::optional<TextRange> advance(std::string_view piece) {
    const std::string_view rest = text_.substr(at_);
    const bool is_added = !rest.starts_with(piece) && piece.starts_with(' ');
    if (is_added) piece.remove_prefix(1);
    if (!rest.starts_with(piece)) return std::nullopt;
    const size_t begin = at_;
    at_ += piece.size();
    return TextRange{begin, is_added ? std::max(at_, begin + 1) : at_};
  }
  /// Whether the token includes the white space behind it, as added tokens with "rstrip" do.
  bool takes_spaces(int32_t id, const std::string& piece) {
    const auto [at, is_new] = takes_spaces_.try_emplace(id, false);
    if (is_new && piece.ends_with('>')) {
      const std::vector<int32_t> ids = tokenizer_.encode(piece + "\n");
      at->second = ids.size() == 1 && ids[0] == id;
    }
    return at->second;
  }

  const io::Tokenizer& tokenizer_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<int32_t, bool> takes_spaces_;  // by id
};

/// Marks the ids that overlap a range.
void mark_placed(const PlacedIds& placed, const TextRange& range, std::vector<uint8_t>& learnt) {
  for (size_t i = 0; i < placed.ids.size(); ++i)
    if (placed.ranges[i].begin < range.end && placed.ranges[i].end > range.begin) learnt[i] = 1;
}

/// The number of ids of the first `bytes` of the text. Throws UserError if they are not the first
/// ids of the whole text.
size_t ids_before(const io::Tokenizer& tokenizer, std::string_view text, size_t bytes,
                  const std::vector<int32_t>& whole) {
  const std::vector<int32_t> ids = tokenizer.encode(text.substr(0, bytes));
  if (ids.size() > whole.size() || !std::equal(ids.begin(), ids.end(), whole.begin()))
    user_error(
        "the tokenizer joins the end of a turn and what follows it into one token, so the "
        "assistant's tokens cannot be told apart; expected a chat template with special tokens "
        "around turns");
  return ids.size();
}

bool is_system(const io::ChatMessage& m) { return m.role == "system" || m.role == "developer"; }

/// The range that an answer adds to the text, for templates without marks: what the text with the
/// answer has beyond the text that asks for it.
TextRange range_of_answer(const io::ChatTemplate& chat, const std::vector<io::ChatMessage>& all,
                          size_t answer, const jinja::Value& tools, const std::string& whole) {
  const auto begin = all.begin();
  const std::vector<io::ChatMessage> before(begin, begin + static_cast<int64_t>(answer)),
      with(begin, begin + static_cast<int64_t>(answer) + 1);
  const std::string asked = chat.render_marked(before, true, day_of_training(), tools).text;
  const std::string answered = chat.render_marked(with, false, day_of_training(), tools).text;
  if (!answered.starts_with(asked))
    user_error(
        "the chat template has no {{% generation %}} block, and the text that asks for message {} "
        "is not how the text with it begins; mark the assistant's turns in a template of your own "
        "and name it with --chat-template",
        answer + 1);
  if (!whole.starts_with(answered))
    user_error(
        "the chat template has no {{% generation %}} block, and writes the first {} messages in "
        "another way when others follow; mark the assistant's turns in a template of your own and "
        "name it with --chat-template",
        answer + 1);
  return {asked.size(), answered.size()};
}

}  // namespace

std::vector<TextRange> ConversationEncoder::learnt_ranges(
    const Conversation& c, const std::vector<TextRange>& generated) const {
  if (generated.empty()) return {};
  // The ranges of a message are those that the text gains with it. Only their number is compared,
  // because a template may write earlier messages otherwise once others follow.
  const auto ranges_before = [&](size_t message) {
    if (message == 0) return size_t{0};
    const std::vector<io::ChatMessage> before(c.messages.begin(),
                                              c.messages.begin() + static_cast<int64_t>(message));
    const bool asks = message == c.first_answer;
    const size_t count =
        chat_.render_marked(before, asks, day_of_training(), c.tools).generated.size();
    return std::min(count, generated.size());
  };
  std::vector<uint8_t> is_left_out(generated.size());
  const auto leave_out = [&](size_t first, size_t last) {
    for (size_t r = first; r < last; ++r) is_left_out[r] = 1;
  };
  leave_out(0, ranges_before(c.first_answer));
  for (size_t i = c.first_answer; i < c.messages.size(); ++i)
    if (c.messages[i].role == "assistant" && !c.is_learnt(i))
      leave_out(ranges_before(i), ranges_before(i + 1));
  std::vector<TextRange> learnt;
  for (size_t r = 0; r < generated.size(); ++r)
    if (is_left_out[r] == 0) learnt.push_back(generated[r]);
  return learnt;
}

EncodedConversation ConversationEncoder::encode_whole(const Conversation& c) const {
  const auto [text, generated] = chat_.render_marked(c.messages, false, day_of_training(), c.tools);
  std::vector<TextRange> answers = learnt_ranges(c, generated);
  if (generated.empty())
    for (size_t i = c.first_answer; i < c.messages.size(); ++i)
      if (c.is_learnt(i)) answers.push_back(range_of_answer(chat_, c.messages, i, c.tools, text));
  std::erase_if(answers, [](const TextRange& r) { return r.begin == r.end; });
  EncodedConversation encoded;
  if (std::optional<PlacedIds> placed = Placer(tokenizer_, text).place()) {
    encoded.learnt.resize(placed->ids.size());
    for (const TextRange& range : answers) mark_placed(*placed, range, encoded.learnt);
    encoded.ids = std::move(placed->ids);
    return encoded;
  }
  encoded.ids = tokenizer_.encode(text);
  encoded.learnt.resize(encoded.ids.size());
  for (const TextRange& range : answers) {
    const size_t begin = ids_before(tokenizer_, text, range.begin, encoded.ids),
                 end = ids_before(tokenizer_, text, range.end, encoded.ids);
    std::fill(encoded.learnt.begin() + static_cast<int64_t>(begin),
              encoded.learnt.begin() + static_cast<int64_t>(end), uint8_t{1});
  }
  return encoded;
}

std::string ConversationEncoder::question_of(const Conversation& c) const {
  std::vector<io::ChatMessage> before;
  for (size_t i = 0; i < c.messages.size(); ++i) {
    if (i >= c.first_answer && c.messages[i].role == "assistant") break;
    before.push_back(c.messages[i]);
  }
  return chat_.render_marked(before, true, day_of_training(), c.tools).text;
}

bool learns(const EncodedConversation& e) {
  // The first id is not a target.
  return std::find(e.learnt.begin() + std::min<int64_t>(1, std::ssize(e.learnt)), e.learnt.end(),
                   1) != e.learnt.end();
}

EncodedConversation ConversationEncoder::encode_undivided(const Conversation& c) const {
  EncodedConversation all = encode_whole(c);
  if (!learns(all))
    user_error(
        "the chat template marks no token of the assistant, so nothing is learnt from it; its "
        "{{% generation %}} blocks have to hold the assistant's messages");
  return all;
}

std::vector<EncodedConversation> ConversationEncoder::encode(const Conversation& c) const {
  EncodedConversation all = encode_undivided(c);
  std::vector<EncodedConversation> parts;
  if (all.ids.size() <= longest_) {
    parts.push_back(std::move(all));
    return parts;
  }
  // An exchange is a turn of the user and all that follows it. A prompt is not divided.
  const auto& m = c.messages;
  size_t system = 0;
  while (system < m.size() && is_system(m[system])) ++system;
  std::vector<size_t> begins;
  for (size_t i = system; i < m.size(); ++i)
    if (begins.empty() || (m[i].role == "user" && i >= c.first_answer)) begins.push_back(i);
  begins.push_back(m.size());
  const auto part_of = [&](size_t first, size_t last) {
    Conversation part{.line = c.line, .messages = {}, .tools = c.tools};
    part.messages.assign(m.begin(), m.begin() + static_cast<int64_t>(system));
    part.messages.insert(part.messages.end(), m.begin() + static_cast<int64_t>(begins[first]),
                         m.begin() + static_cast<int64_t>(begins[last]));
    part.first_answer = first == 0 ? c.first_answer : 0;
    return encode_whole(part);
  };
  for (size_t first = 0; first + 1 < begins.size();) {
    std::optional<EncodedConversation> fitting;
    size_t next = first + 1;
    for (size_t last = first + 1; last < begins.size(); ++last) {
      EncodedConversation part = part_of(first, last);
      if (part.ids.size() > longest_) break;
      fitting = std::move(part);
      next = last;
    }
    if (fitting && learns(*fitting)) parts.push_back(*std::move(fitting));
    first = next;
  }
  return parts;
}

}  // namespace brrr::train
