#include "text/pre_tokenizer.h"

#include <optional>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/bpe/byte_letters.h"
#include "text/json_fields.h"
#include "text/patterns/matches.h"
#include "text/tokenizer_split.h"
#include "text/unicode/char_traits.h"

namespace brrr::io {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int kDeepestSequence = 16;
constexpr size_t kMostStages = 64;

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Turns matches and the gaps between them, in their order, into pieces.
class Pieces {
 public:
  Pieces(Behavior behavior, bool invert, std::string_view text, const NextStage& next)
      : behavior_(behavior), invert_(invert), text_(text), next_(next) {}

  void add(size_t begin, size_t end, bool is_match) {
    is_match ^= invert_;
    bool joins = false;  // the stretch before it
    switch (behavior_) {
      case Behavior::removed:
        if (!is_match) next_(text_.substr(begin, end - begin));
        return;
      case Behavior::isolated:
        next_(text_.substr(begin, end - begin));
        return;
      case Behavior::contiguous:
        joins = is_match == last_is_match_;
        break;
      case Behavior::merged_with_previous:
        joins = is_match && !last_is_match_;
        break;
      case Behavior::merged_with_next:
        joins = !is_match && last_is_match_;
        break;
    }
    if (!joins || !waiting_) {
      finish();
      begin_ = begin;
    }
    end_ = end;
    waiting_ = true;
    last_is_match_ = is_match;
  }
  void finish() {
    if (waiting_) next_(text_.substr(begin_, end_ - begin_));
    waiting_ = false;
  }

 private:
  Behavior behavior_;
  bool invert_;
  std::string_view text_;
  const NextStage& next_;
  size_t begin_ = 0, end_ = 0;
  bool waiting_ = false, last_is_match_ = false;
};

/// Removes what a pattern's analysis does not prove.
void restrict_by(const PatternSyntax& syntax, CutRule& rule, Symbols& ends) {
  const bool unknown = !syntax.local || syntax.matches_nothing;
  for (size_t before = 0; before < kSymbols; ++before)
    for (const char c : kCutsBefore) {
      const auto after = static_cast<uint8_t>(c);
      if (unknown || syntax.adjacent[before][after] || syntax.looked_at[after])
        rule.allow(before, after, false);
    }
  if (!unknown) ends |= syntax.sure;
}

class SplitStage final : public PreTokenizerStage {
 public:
  SplitStage(SplitPattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(std::string_view piece, const NextStage& next) const override {
    Pieces pieces(behavior_, invert_, piece, next);
    size_t done = 0;
    for_each_match(pattern_, piece, [&](size_t begin, size_t end) {
      if (begin > done) pieces.add(done, begin, false);
      pieces.add(begin, end, true);
      done = end;
    });
    if (done < piece.size()) pieces.add(done, piece.size(), false);
    pieces.finish();
  }

  void restrict_cuts(CutRule& rule, Symbols& ends) const override {
    if (behavior_ != Behavior::isolated || invert_) rule = CutRule();
    restrict_by(pattern_.syntax(), rule, ends);
  }
  bool needs_utf8() const override { return true; }

 private:
  SplitPattern pattern_;
  Behavior behavior_;
  bool invert_;
};

/// GPT-2's pattern, written by hand (tokenizer_split.h).
class Gpt2Stage final : public PreTokenizerStage {
 public:
  void split(std::string_view piece, const NextStage& next) const override {
    const CharTable& table = CharTable::get();
    const uint8_t* p = as_bytes(piece.data());
    const uint8_t* const end = p + piece.size();
    const auto each = [&](auto&& take) {
      while (p < end) {
        const uint8_t* const q = next_piece(table, p, end);
        take(std::string_view(reinterpret_cast<const char*>(p), static_cast<size_t>(q - p)));
        p = q;
      }
    };
    if (PieceSink* const sink = next.last())
      each([sink](std::string_view word) { sink->add(word); });
    else
      each(next);
  }
  void restrict_cuts(CutRule& rule, Symbols& ends) const override {
    restrict_by(read_pattern(kGpt2Pattern, "GPT-2's split"), rule, ends);
  }
};

/// Calls matches(code) for each character: those that match are matches, one by one.
template <typename Matches>
void split_at_characters(std::string_view piece, Behavior behavior, const NextStage& next,
                         const Matches& matches) {
  Pieces pieces(behavior, false, piece, next);
  const uint8_t* const begin = as_bytes(piece.data());
  const uint8_t* const end = begin + piece.size();
  const uint8_t* gap = begin;
  const auto offset = [begin](const uint8_t* p) { return static_cast<size_t>(p - begin); };
  for (const uint8_t* p = begin; p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (matches(c.code)) {
      if (gap < p) pieces.add(offset(gap), offset(p), false);
      pieces.add(offset(p), offset(p) + c.bytes, true);
      gap = p + c.bytes;
    }
    p += c.bytes;
  }
  if (gap < end) pieces.add(offset(gap), piece.size(), false);
  pieces.finish();
}

class DigitsStage final : public PreTokenizerStage {
 public:
  explicit DigitsStage(bool individual) : individual_(individual) {}
  void split(std::string_view piece, const NextStage& next) const override {
    const CharTable& table = CharTable::get();
    split_at_characters(piece, individual_ ? Behavior::isolated : Behavior::contiguous, next,
                        [&](uint32_t code) { return table.of(code) == CharClass::kNumber; });
  }
  // A number never joins white space, and white space is no number: it lies in a gap.
  void restrict_cuts(CutRule&, Symbols&) const override {}

 private:
  bool individual_;
};

class PunctuationStage final : public PreTokenizerStage {
 public:
  explicit PunctuationStage(Behavior behavior) : behavior_(behavior) {}
  void split(std::string_view piece, const NextStage& next) const override {
    const CharTraits& traits = CharTraits::get();
    split_at_characters(piece, behavior_, next,
                        [&](uint32_t code) { return traits.has(code, CharTraits::kPunctuation); });
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }

 private:
  Behavior behavior_;
};

class DelimiterStage final : public PreTokenizerStage {
 public:
  explicit DelimiterStage(uint32_t delimiter) : delimiter_(delimiter) {}
  void split(std::string_view piece, const NextStage& next) const override {
    split_at_characters(piece, Behavior::removed, next,
                        [this](uint32_t code) { return code == delimiter_; });
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }

 private:
  uint32_t delimiter_;
};

/// Pieces of so many characters.
class FixedLengthStage final : public PreTokenizerStage {
 public:
  explicit FixedLengthStage(size_t length) : length_(length) {}
  void split(std::string_view piece, const NextStage& next) const override {
    const uint8_t* p = as_bytes(piece.data());
    const uint8_t* const end = p + piece.size();
    while (p < end) {
      const uint8_t* q = p;
      for (size_t i = 0; i < length_ && q < end; ++i) q += decode_utf8(q, end).bytes;
      next({reinterpret_cast<const char*>(p), static_cast<size_t>(q - p)});
      p = q;
    }
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }

 private:
  size_t length_;
};

/// Parts a text at white space, which it drops: WhitespaceSplit, and two that part words further.
class WordsStage final : public PreTokenizerStage {
 public:
  enum class Kind {
    spaces,       // WhitespaceSplit: at white space alone
    words,        // Whitespace: runs of \w, and runs of what is neither \w nor white space
    punctuation,  // BertPreTokenizer: every character of punctuation by itself
  };
  explicit WordsStage(Kind kind) : kind_(kind) {
    for (uint32_t c = 0; c < 128; ++c) ascii_[c] = class_of(c);
  }

  void split(std::string_view piece, const NextStage& next) const override {
    if (PieceSink* const sink = next.last())
      split_into(piece, [sink](std::string_view word) { sink->add(word); });
    else
      split_into(piece, next);
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }
  bool drops_spaces() const override { return true; }

 private:
  enum Class : uint8_t { kWordPart, kMark, kAlone, kBlank };

  Class class_of(uint32_t code) const {
    if (spaces_.of(code) == CharClass::kSpace) return kBlank;
    switch (kind_) {
      case Kind::spaces:
        return kWordPart;
      case Kind::words:
        return traits_.has(code, CharTraits::kWord) ? kWordPart : kMark;
      case Kind::punctuation:
        return traits_.has(code, CharTraits::kPunctuation) ? kAlone : kWordPart;
    }
    return kWordPart;
  }

  template <typename OnWord>
  void split_into(std::string_view piece, const OnWord& on_word) const {
    const uint8_t* p = as_bytes(piece.data());
    const uint8_t* const end = p + piece.size();
    const uint8_t* begin = p;
    Class before = kBlank;
    const auto finish = [&](const uint8_t* stop) {
      if (before != kBlank)
        on_word(std::string_view(reinterpret_cast<const char*>(begin),
                                 static_cast<size_t>(stop - begin)));
    };
    while (p < end) {
      uint32_t bytes = 1;
      Class now;
      if (*p < 0x80) {
        now = ascii_[*p];
      } else {
        const DecodedChar c = decode_utf8(p, end);
        now = class_of(c.code);
        bytes = c.bytes;
      }
      if (now != before || now == kAlone) {
        finish(p);
        begin = p;
        before = now;
      }
      p += bytes;
    }
    finish(end);
  }

  Kind kind_;
  Class ascii_[128];
  const CharTable& spaces_ = CharTable::get();
  const CharTraits& traits_ = CharTraits::get();
};

/// Parts a text where the script changes. Characters of no script (the space is one) stay with what
/// is before them; at the beginning of a piece they are dropped, as in `tokenizers`.
class ScriptsStage final : public PreTokenizerStage {
 public:
  void split(std::string_view piece, const NextStage& next) const override {
    const uint8_t* const end = as_bytes(piece.data()) + piece.size();
    const uint8_t* begin = nullptr;
    const auto finish = [&](const uint8_t* stop) {
      if (begin != nullptr)
        next({reinterpret_cast<const char*>(begin), static_cast<size_t>(stop - begin)});
    };
    int script = CharTraits::kNoScript;
    for (const uint8_t* p = as_bytes(piece.data()); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      const int now = CharTraits::script(c.code);
      if (now != CharTraits::kNoScript && now != script) {
        finish(p);
        begin = p;
        script = now;
      }
      p += c.bytes;
    }
    finish(end);
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }
};

/// Every byte as its letter, for models that take no bytes.
class ByteLettersStage final : public PreTokenizerStage {
 public:
  void split(std::string_view piece, const NextStage& next) const override {
    const std::string text = spell_letters(piece);
    PieceSink::Buffer buffer(*next.sink, text);
    next.within(text)(text);
    buffer.done();
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override { rule = CutRule(); }
  bool rewrites() const override { return true; }
};

/// Lets every piece begin with a space.
class PrefixSpaceStage final : public PreTokenizerStage {
 public:
  void split(std::string_view piece, const NextStage& next) const override {
    if (piece.starts_with(' ')) {
      next(piece);
      return;
    }
    std::string text = " ";
    text += piece;
    PieceSink::Buffer buffer(*next.sink, text);
    next.within(text)(text);
    buffer.done();
  }
  void restrict_cuts(CutRule& rule, Symbols&) const override {
    for (size_t before = 0; before < kSymbols; ++before)
      for (const char after : kCutsBefore)
        if (after != ' ') rule.allow(before, static_cast<uint8_t>(after), false);
  }
};

class MetaspaceStage final : public PreTokenizerStage {
 public:
  enum class Prepend { always, first, never };
  MetaspaceStage(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

  void split(std::string_view piece, const NextStage& next) const override {
    std::string text;
    text.reserve(piece.size() + piece.size() / 2 + mark_.size());
    const bool may_prepend =
        prepend_ == Prepend::always || (prepend_ == Prepend::first && next.at_start);
    if (may_prepend && !piece.starts_with(' ') && !piece.starts_with(mark_)) text = mark_;
    for (const char c : piece) {
      if (c == ' ')
        text += mark_;
      else
        text += c;
    }
    PieceSink::Buffer buffer(*next.sink, text);
    const NextStage inner = next.within(text);
    const std::string_view all = text;
    for (size_t begin = 0; begin < all.size();) {
      const size_t found =
          split_ ? all.find(mark_, begin + mark_.size() * all.substr(begin).starts_with(mark_))
                 : std::string_view::npos;
      const size_t end = std::min(found, all.size());
      inner(all.substr(begin, end - begin));
      begin = end;
    }
    buffer.done();
  }
  void restrict_cuts(CutRule& rule, Symbols& ends) const override {
    PrefixSpaceStage().restrict_cuts(rule, ends);
    if (split_) ends.set(' ');
  }
  bool rewrites() const override { return true; }

 private:
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

Behavior behavior_of(const std::string& name, const std::string& where) {
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  user_error(
      "{}.behavior is {}; expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous",
      where, in_quotes(name));
}

std::unique_ptr<PreTokenizerStage> read_split(const JsonFields& fields) {
  const Behavior behavior = behavior_of(fields.text("behavior"), fields.where());
  const bool invert = fields.flag("invert", false);
  const auto [is_regex, pattern] = fields.pattern("pattern");
  if (is_regex && pattern == kGpt2Pattern && behavior == Behavior::isolated && !invert)
    return std::make_unique<Gpt2Stage>();
  const std::string where = fields.where() + ".pattern";
  return std::make_unique<SplitStage>(
      is_regex ? SplitPattern::regex(pattern, where) : SplitPattern::literal(pattern, where),
      behavior, invert);
}

std::unique_ptr<PreTokenizerStage> read_metaspace(const JsonFields& fields,
                                                  const std::string& mark) {
  std::string scheme = fields.text("prepend_scheme", "");
  if (scheme.empty()) scheme = fields.flag("add_prefix_space", true) ? "always" : "never";
  const auto prepend = scheme == "always"  ? MetaspaceStage::Prepend::always
                       : scheme == "first" ? MetaspaceStage::Prepend::first
                                           : MetaspaceStage::Prepend::never;
  if (prepend == MetaspaceStage::Prepend::never && scheme != "never")
    user_error("{}.prepend_scheme is {}; expected always, first or never", fields.where(),
               in_quotes(scheme));
  return std::make_unique<MetaspaceStage>(mark, prepend, fields.flag("split", true));
}

/// One character: its text and its code point.
std::pair<std::string, uint32_t> read_character(const JsonFields& fields, const char* key) {
  std::string text = fields.text(key);
  if (!text.empty()) {
    const DecodedChar c = decode_utf8(as_bytes(text.data()), as_bytes(text.data() + text.size()));
    if (c.bytes == text.size() && c.code != kInvalidByte) return {std::move(text), c.code};
  }
  user_error("{}.{} is {}; expected one character", fields.where(), key, in_quotes(text));
}

/// One stage by its type, or nullptr for an unknown one.
std::unique_ptr<PreTokenizerStage> read_stage(const std::string& type, const JsonFields& fields) {
  using Kind = WordsStage::Kind;
  if (type == "Split") return read_split(fields);
  if (type == "BertPreTokenizer") return std::make_unique<WordsStage>(Kind::punctuation);
  if (type == "Whitespace") return std::make_unique<WordsStage>(Kind::words);
  if (type == "WhitespaceSplit") return std::make_unique<WordsStage>(Kind::spaces);
  if (type == "UnicodeScripts") return std::make_unique<ScriptsStage>();
  if (type == "Digits")
    return std::make_unique<DigitsStage>(fields.flag("individual_digits", false));
  if (type == "Punctuation")
    return std::make_unique<PunctuationStage>(
        behavior_of(fields.text("behavior", "Isolated"), fields.where()));
  if (type == "CharDelimiterSplit")
    return std::make_unique<DelimiterStage>(read_character(fields, "delimiter").second);
  if (type == "FixedLength")
    return std::make_unique<FixedLengthStage>(
        fields.get("length").is_null() ? size_t{5}
                                       : static_cast<size_t>(fields.integer("length", 1, 1 << 30)));
  return nullptr;
}

}  // namespace

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer all;
  all.stages_.push_back(std::make_unique<Gpt2Stage>());
  all.byte_level_ = true;
  return all;
}

PreTokenizer PreTokenizer::bert() {
  PreTokenizer all;
  all.stages_.push_back(std::make_unique<WordsStage>(WordsStage::Kind::punctuation));
  return all;
}

PreTokenizer PreTokenizer::read(const Json& json, const std::string& where) {
  PreTokenizer all;
  all.read_into(json, where, 0);
  for (const auto& stage : all.stages_) {
    all.needs_utf8_ |= stage->needs_utf8();
    all.rewritten_ |= stage->rewrites() && stage != all.stages_.back();
  }
  return all;
}

void PreTokenizer::spell_letters() {
  if (!byte_level_) return;
  byte_level_ = false;
  stages_.push_back(std::make_unique<ByteLettersStage>());
}

void PreTokenizer::read_into(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return;
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == kDeepestSequence)
      user_error("{}: sequences nested deeper than {}", where, kDeepestSequence);
    const Json& list = fields.list("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i)
      read_into(list[i], fmt::format("{}.pretokenizers[{}]", where, i), depth + 1);
    return;
  }
  spell_letters();  // a stage behind ByteLevel sees letters
  if (type == "ByteLevel") {
    if (fields.flag("add_prefix_space", true))
      stages_.push_back(std::make_unique<PrefixSpaceStage>());
    if (fields.flag("use_regex", true)) stages_.push_back(std::make_unique<Gpt2Stage>());
    byte_level_ = true;
  } else if (type == "Metaspace") {
    const auto [mark, code] = read_character(fields, "replacement");
    stages_.push_back(read_metaspace(fields, mark));
    space_ = code;
  } else if (auto stage = read_stage(type, fields)) {
    stages_.push_back(std::move(stage));
  } else {
    user_error(
        "{}.type is {}, which is not supported (supported: Sequence, BertPreTokenizer, Whitespace, "
        "WhitespaceSplit, Punctuation, Digits, Split, ByteLevel, Metaspace, CharDelimiterSplit, "
        "FixedLength, UnicodeScripts)",
        where, in_quotes(type));
  }
  if (stages_.size() > kMostStages)
    user_error("{}: more than {} pre-tokenizers", where, kMostStages);
}

void PreTokenizer::split(std::string_view text, PieceSink& sink, bool at_start) const {
  const NextStage first{this, 0, &sink, at_start, text.data()};
  if (!needs_utf8_) {
    first(text);
    return;
  }
  // Patterns match characters: bytes that are none stand apart.
  for_each_valid_stretch(text, first, [&](std::string_view bytes) { sink.add(bytes); });
}

CutRule PreTokenizer::cut_rule(
    const std::function<bool(uint32_t before, uint32_t after)>& model_may_cut) const {
  if (drops_spaces()) return CutRule::at_words();
  if (rewritten_) return CutRule();
  CutRule rule = CutRule::at_words();
  Symbols ends;
  for (const auto& stage : stages_) stage->restrict_cuts(rule, ends);
  for (size_t before = 0; before < kSymbols; ++before)
    for (const char c : kCutsBefore) {
      const auto after = static_cast<uint8_t>(c);
      if (!rule.allows(before, after) || ends[after]) continue;
      const uint32_t code = before == kWideSymbol ? kInvalidByte : static_cast<uint32_t>(before);
      rule.allow(before, after, model_may_cut(code, c == ' ' ? space_ : after));
    }
  return rule;
}

}  // namespace brrr::io
