#include "text/pre_tokenizer.h"

#include <optional>

#include "base/errors.h"
#include "base/utf8.h"
#include "text/json_fields.h"
#include "text/patterns/split_pattern.h"
#include "text/tokenizer_split.h"

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

  // An empty match right behind a match is none; any other parts the text.
  void split(std::string_view piece, const NextStage& next) const override {
    Pieces pieces(behavior_, invert_, piece, next);
    size_t done = 0, from = 0;
    std::optional<size_t> last_end;
    while (from <= piece.size()) {
      const auto match = pattern_.find(piece, from);
      if (!match) break;
      const auto [begin, end] = *match;
      if (begin == end && last_end == end) {
        if (from == piece.size()) break;
        from +=
            decode_utf8(as_bytes(piece.data()) + from, as_bytes(piece.data()) + piece.size()).bytes;
        continue;
      }
      if (begin > done) pieces.add(done, begin, false);
      pieces.add(begin, end, true);
      done = from = end;
      last_end = end;
    }
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

class DigitsStage final : public PreTokenizerStage {
 public:
  explicit DigitsStage(bool individual) : individual_(individual) {}
  void split(std::string_view piece, const NextStage& next) const override {
    const CharTable& table = CharTable::get();
    Pieces pieces(individual_ ? Behavior::isolated : Behavior::contiguous, false, piece, next);
    const uint8_t* const begin = as_bytes(piece.data());
    const uint8_t* const end = begin + piece.size();
    const uint8_t* gap = begin;
    const auto offset = [begin](const uint8_t* p) { return static_cast<size_t>(p - begin); };
    for (const uint8_t* p = begin; p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      if (table.of(c.code) == CharClass::kNumber) {
        if (gap < p) pieces.add(offset(gap), offset(p), false);
        pieces.add(offset(p), offset(p) + c.bytes, true);
        gap = p + c.bytes;
      }
      p += c.bytes;
    }
    if (gap < end) pieces.add(offset(gap), piece.size(), false);
    pieces.finish();
  }
  // A number never joins white space, and white space is no number: it lies in a gap.
  void restrict_cuts(CutRule&, Symbols&) const override {}

 private:
  bool individual_;
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
    next(text);
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
    const std::string_view all = text;
    for (size_t begin = 0; begin < all.size();) {
      const size_t found =
          split_ ? all.find(mark_, begin + mark_.size() * all.substr(begin).starts_with(mark_))
                 : std::string_view::npos;
      const size_t end = std::min(found, all.size());
      next(all.substr(begin, end - begin));
      begin = end;
    }
    buffer.done();
  }
  void restrict_cuts(CutRule& rule, Symbols& ends) const override {
    PrefixSpaceStage().restrict_cuts(rule, ends);
    if (split_) ends.set(' ');
  }

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

}  // namespace

PreTokenizer PreTokenizer::gpt2() {
  PreTokenizer all;
  all.stages_.push_back(std::make_unique<Gpt2Stage>());
  all.byte_level_ = true;
  return all;
}

PreTokenizer PreTokenizer::read(const Json& json, const std::string& where) {
  PreTokenizer all;
  all.read_into(json, where, 0);
  return all;
}

void PreTokenizer::read_into(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return;
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (byte_level_)
    user_error("{}: {} stands behind ByteLevel, which must be the last pre-tokenizer", where, type);
  if (type == "Sequence") {
    if (depth == kDeepestSequence)
      user_error("{}: sequences nested deeper than {}", where, kDeepestSequence);
    const Json& list = fields.list("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i)
      read_into(list[i], fmt::format("{}.pretokenizers[{}]", where, i), depth + 1);
  } else if (type == "ByteLevel") {
    if (fields.flag("add_prefix_space", true))
      stages_.push_back(std::make_unique<PrefixSpaceStage>());
    if (fields.flag("use_regex", true)) stages_.push_back(std::make_unique<Gpt2Stage>());
    byte_level_ = true;
  } else if (type == "Split") {
    stages_.push_back(read_split(fields));
  } else if (type == "Digits") {
    stages_.push_back(std::make_unique<DigitsStage>(fields.flag("individual_digits", false)));
  } else if (type == "Metaspace") {
    const std::string mark = fields.text("replacement");
    const DecodedChar c = decode_utf8(as_bytes(mark.data()), as_bytes(mark.data() + mark.size()));
    if (c.bytes != mark.size() || c.code == kInvalidByte)
      user_error("{}.replacement is {}; expected one character", where, in_quotes(mark));
    if (!stages_.empty())
      user_error("{}: Metaspace stands behind another pre-tokenizer, which is not supported",
                 where);
    stages_.push_back(read_metaspace(fields, mark));
    space_ = c.code;
  } else {
    user_error(
        "{}.type is {}, which is not supported (supported: Sequence, ByteLevel, Split, Digits, "
        "Metaspace)",
        where, in_quotes(type));
  }
  if (stages_.size() > kMostStages)
    user_error("{}: more than {} pre-tokenizers", where, kMostStages);
  for (const auto& stage : stages_) needs_utf8_ |= stage->needs_utf8();
}

void PreTokenizer::split(std::string_view text, PieceSink& sink, bool at_start) const {
  const NextStage first{this, 0, &sink, at_start};
  if (!needs_utf8_) {
    first(text);
    return;
  }
  // Patterns match characters: bytes that are none stand apart.
  while (!text.empty()) {
    const size_t good = find_invalid_utf8(text).value_or(text.size());
    first(text.substr(0, good));
    text.remove_prefix(good);
    size_t bad = 0;
    while (bad < text.size() &&
           decode_utf8(as_bytes(text.data()) + bad, as_bytes(text.data()) + text.size()).code ==
               kInvalidByte)
      ++bad;
    if (bad > 0) sink.add(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

CutRule PreTokenizer::cut_rule(
    const std::function<bool(uint32_t before, uint32_t after)>& model_may_cut) const {
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
