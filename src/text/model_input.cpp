// The inputs of models that read texts and pairs of texts: Tokenizer::model_input.

#include <algorithm>

#include "base/errors.h"
#include "text/post_processor.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct Tokenizer::EncodedText {
  std::vector<int32_t> ids, words;  // `words` is empty where nobody asked for them
};

namespace {

/// How many tokens of each text stay, of `n[0]` and `n[1]`, so that both have at most `room`.
/// `tokenizers` cuts the longer text first, and then both to halves.
void cut_longest_first(size_t room, size_t (&n)[2]) {
  const bool swapped = n[0] > n[1];
  size_t least = std::min(n[0], n[1]);
  size_t most = least > room ? least : std::max(least, room - least);
  if (least + most > room) {
    least = room / 2;
    most = least + room % 2;
  }
  n[0] = swapped ? most : least;
  n[1] = swapped ? least : most;
}

}  // namespace

const NamedTokens& Tokenizer::named_tokens() const {
  static const NamedTokens none;
  return none;
}

const InputLengths& Tokenizer::input_lengths() const {
  static const InputLengths any;
  return any;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view) const { return std::nullopt; }

const PostProcessor& Tokenizer::post_processor() const {
  static const PostProcessor nothing = PostProcessor::around({}, {});
  return nothing;
}

void Tokenizer::encode_words(std::string_view text, std::vector<int32_t>& ids,
                             std::vector<int32_t>& words) const {
  encode(text, {}, ids);
  words.resize(ids.size(), 0);
}

ModelInput Tokenizer::model_input(std::string_view first, std::optional<std::string_view> second,
                                  std::optional<size_t> longest, bool with_words) const {
  const auto encoded = [&](std::string_view text) {
    EncodedText out;
    if (with_words)
      encode_words(text, out.ids, out.words);
    else
      encode(text, {}, out.ids);
    return out;
  };
  std::optional<EncodedText> other;
  if (second) other = encoded(*second);
  ModelInput input = join(encoded(first), std::move(other), longest);
  if (!with_words) {
    input.texts.clear();
    input.words.clear();
  }
  return input;
}

ModelInput Tokenizer::model_input_of_words(Words first, std::optional<Words> second,
                                           std::optional<size_t> longest) const {
  const auto encoded = [&](Words words) {
    EncodedText out;
    for (size_t i = 0; i < words.size(); ++i) {
      encode(words[i], {}, out.ids);
      out.words.resize(out.ids.size(), static_cast<int32_t>(i));
    }
    return out;
  };
  std::optional<EncodedText> other;
  if (second) other = encoded(*second);
  return join(encoded(first), std::move(other), longest);
}

ModelInput Tokenizer::join(EncodedText first, std::optional<EncodedText> second,
                           std::optional<size_t> longest) const {
  using Kind = InputTemplate::Kind;
  const PostProcessor& post = post_processor();
  const InputTemplate& items = second ? post.pair : post.single;
  if (items.empty())
    user_error(
        "this tokenizer does not support pairs of texts: its post-processor has no \"pair\"; give "
        "one text");
  EncodedText none;
  const EncodedText* const texts[2] = {&first, second ? &*second : &none};
  const size_t have[2] = {texts[0]->ids.size(), texts[1]->ids.size()};
  size_t keep[2] = {have[0], have[1]};
  const InputLengths& lengths = input_lengths();
  if (longest) {
    const size_t added = items.added();
    if (*longest < added)
      user_error("the limit is {} tokens, but the special tokens alone are {}; allow more",
                 *longest, added);
    const size_t room = *longest - added;
    if (have[0] + have[1] > room) {
      const size_t over = have[0] + have[1] - room;
      if (!second) {
        keep[0] = room;
      } else if (lengths.cut == InputLengths::Cut::longest_first) {
        cut_longest_first(room, keep);
      } else {
        const int which = lengths.cut == InputLengths::Cut::second ? 1 : 0;
        if (over >= have[which])
          user_error(
              "{} tokens must be truncated to reach {}, but only the {} text is truncated, and it "
              "has {}",
              over, *longest, which == 0 ? "first" : "second", have[which]);
        keep[which] = have[which] - over;
      }
    }
  }
  ModelInput out;
  const size_t size = items.added() + keep[0] + keep[1];
  out.ids.reserve(size);
  out.types.reserve(size);
  out.left_out = have[0] + have[1] - keep[0] - keep[1];
  for (const InputTemplate::Item& item : items.items) {
    if (item.kind == Kind::token) {
      out.ids.push_back(item.id);
      out.types.push_back(item.type);
      out.texts.push_back(-1);
      out.words.push_back(-1);
      continue;
    }
    const int which = item.kind == Kind::first ? 0 : 1;
    const EncodedText& text = *texts[which];
    const size_t begin = lengths.cut_left ? have[which] - keep[which] : 0;
    const auto copy = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
      if (from.empty()) return;
      const auto at = from.begin() + static_cast<ptrdiff_t>(begin);
      to.insert(to.end(), at, at + static_cast<ptrdiff_t>(keep[which]));
    };
    copy(text.ids, out.ids);
    copy(text.words, out.words);
    out.types.resize(out.ids.size(), item.type);
    out.texts.resize(out.ids.size(), which);
  }
  return out;
}

}  // namespace brrr::io
