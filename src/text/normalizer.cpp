#include "text/normalizer.h"

#include <algorithm>

#include "base/encoding/ascii.h"
#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/bpe/byte_letters.h"
#include "text/json_fields.h"
#include "text/patterns/matches.h"
#include "text/precompiled.h"
#include "text/tokenizer_split.h"
#include "text/unicode/char_traits.h"
#include "text/unicode/normal_forms.h"

namespace brrr::io {
namespace {

constexpr int kDeepestNormalizer = 16;
constexpr size_t kMostSteps = 64;
// A step may make a text longer, and steps multiply.
constexpr size_t kLongestReplacement = 64;
constexpr int kMostGrowth = 1000;

bool is_white_space(uint32_t code) { return CharTable::get().of(code) == CharClass::kSpace; }

class PrependStep final : public NormalizerStep {
 public:
  explicit PrependStep(std::string text) : text_(std::move(text)) {}
  void apply(std::string& text, bool inside) const override {
    if (!inside && !text.empty()) text.insert(0, text_);
  }
  bool is_local(std::string_view) const override { return true; }
  bool keeps_wide() const override { return true; }

 private:
  std::string text_;
};

class ReplaceTextStep final : public NormalizerStep {
 public:
  ReplaceTextStep(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void apply(std::string& text, bool) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4 + to_.size());
    const std::string_view in = text;
    for (size_t at = 0;;) {
      const size_t found = in.find(from_, at);
      out += in.substr(at, found - at);
      if (found == std::string_view::npos) break;
      out += to_;
      at = found + from_.size();
    }
    text = std::move(out);
  }
  bool is_local(std::string_view) const override {
    const uint8_t* const p = as_bytes(from_.data());
    return decode_utf8(p, p + from_.size()).bytes == from_.size();
  }
  bool keeps_wide() const override { return static_cast<uint8_t>(from_[0]) < 0x80; }
  double growth() const override {
    return std::max(1.0, static_cast<double>(to_.size()) / static_cast<double>(from_.size()));
  }

 private:
  std::string from_, to_;
};

class ReplacePatternStep final : public NormalizerStep {
 public:
  ReplacePatternStep(SplitPattern pattern, std::string to)
      : pattern_(std::move(pattern)), to_(std::move(to)) {}
  void apply(std::string& text, bool) const override {
    std::string out;
    out.reserve(text.size());
    for_each_valid_stretch(
        text,
        [&](std::string_view stretch) {
          size_t done = 0;
          for_each_match(pattern_, stretch, [&](size_t begin, size_t end) {
            out += stretch.substr(done, begin - done);
            out += to_;
            done = end;
          });
          out += stretch.substr(done);
        },
        [&](std::string_view bytes) { out += bytes; });
    text = std::move(out);
  }
  bool is_local(std::string_view) const override { return false; }
  // An empty match puts the text between any two characters.
  double growth() const override { return 2 + static_cast<double>(to_.size()); }

 private:
  SplitPattern pattern_;
  std::string to_;
};

/// A step that treats characters one by one.
template <typename Derived>
class CharacterStep : public NormalizerStep {
 public:
  void apply(std::string& text, bool) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 8);
    const uint8_t* const end = as_bytes(text.data()) + text.size();
    for (const uint8_t* p = as_bytes(text.data()); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      const std::string_view character(reinterpret_cast<const char*>(p), c.bytes);
      if (c.code == kInvalidByte)
        out += character;
      else
        static_cast<const Derived&>(*this).append(c.code, character, out);
      p += c.bytes;
    }
    text = std::move(out);
  }
  bool is_local(std::string_view) const override { return true; }
};

class LowercaseStep final : public CharacterStep<LowercaseStep> {
 public:
  void append(uint32_t code, std::string_view character, std::string& out) const {
    if (code < 0x80)
      out += ascii_lowercase(character[0]);
    else
      traits_.append_lowercase(code, out);
  }
  double growth() const override { return 1.5; }  // two bytes become three

 private:
  const CharTraits& traits_ = CharTraits::get();
};

class StripAccentsStep final : public CharacterStep<StripAccentsStep> {
 public:
  void append(uint32_t code, std::string_view character, std::string& out) const {
    if (!traits_.has(code, CharTraits::kAccent)) out += character;
  }

 private:
  const CharTraits& traits_ = CharTraits::get();
};

/// The cleaning of sentencepiece's NMT rules: control characters go, unusual spaces become plain.
class NmtStep final : public CharacterStep<NmtStep> {
 public:
  void append(uint32_t code, std::string_view character, std::string& out) const {
    const bool control = (code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) ||
                         code == 0x7f || code == 0x8f || code == 0x9f;
    const bool space = code == 9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
                       (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 ||
                       code == 0x2581 || code == 0xfeff || code == 0xfffd;
    if (!control) out += space ? " " : character;
  }
};

/// Every byte as its letter. A model of characters follows, whose vocabulary is spelled so.
class ByteLettersStep final : public NormalizerStep {
 public:
  void apply(std::string& text, bool) const override { text = spell_letters(text); }
  bool is_local(std::string_view) const override { return false; }
  double growth() const override { return 2; }
};

class StripStep final : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, bool) const override {
    const uint8_t* const begin = as_bytes(text.data());
    const uint8_t* const end = begin + text.size();
    size_t first = text.size(), last = 0;  // what is no white space
    for (const uint8_t* p = begin; p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      if (!is_white_space(c.code)) {
        first = std::min(first, static_cast<size_t>(p - begin));
        last = static_cast<size_t>(p - begin) + c.bytes;
      }
      p += c.bytes;
    }
    if (right_) text.resize(last);
    if (left_) text.erase(0, std::min(first, text.size()));
  }
  bool is_local(std::string_view) const override { return false; }

 private:
  bool left_, right_;
};

class NormalFormStep final : public NormalizerStep {
 public:
  explicit NormalFormStep(NormalForm form) : form_(form) {}
  void apply(std::string& text, bool) const override {
    const bool ascii = std::all_of(text.begin(), text.end(),
                                   [](char c) { return static_cast<uint8_t>(c) < 0x80; });
    if (!ascii) text = normal_form(text, form_);
  }
  double growth() const override {
    return form_ == NormalForm::nfc || form_ == NormalForm::nfd ? 3 : 11;
  }
  bool settles() const override { return true; }
  // Nothing is composed with an ASCII character behind it.
  bool is_local(std::string_view text) const override {
    return text.empty() || static_cast<uint8_t>(text[0]) < 0x80;
  }

 private:
  NormalForm form_;
};

/// The charsmap of SentencePiece. It replaces clusters of characters, so no place for cuts is
/// known.
class PrecompiledStep final : public NormalizerStep {
 public:
  explicit PrecompiledStep(Precompiled map) : map_(std::move(map)) {}
  void apply(std::string& text, bool) const override { text = map_.normalized(text); }
  bool is_local(std::string_view) const override { return false; }
  double growth() const override { return static_cast<double>(map_.most_growth()); }

 private:
  Precompiled map_;
};

class BertStep final : public NormalizerStep {
 public:
  BertStep(bool clean, bool chinese, bool strip_accents, bool lowercase)
      : clean_(clean), chinese_(chinese), strip_accents_(strip_accents), lowercase_(lowercase) {
    for (uint32_t c = 0; c < 128; ++c) {
      const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
      drops_[c] = clean_ && !space && (c < 0x20 || c == 0x7f);
      becomes_[c] = clean_ && space ? ' ' : static_cast<char>(c);
      if (lowercase_) becomes_[c] = ascii_lowercase(becomes_[c]);
    }
  }

  void apply(std::string& text, bool) const override {
    Writer out(*this);
    out.text.reserve(text.size() + text.size() / 4);
    const uint8_t* const end = as_bytes(text.data()) + text.size();
    for (const uint8_t* p = as_bytes(text.data()); p < end;) {
      if (*p < 0x80) {
        out.finish_marks();
        if (!drops_[*p]) out.text += becomes_[*p];
        ++p;
        continue;
      }
      const DecodedChar c = decode_utf8(p, end);
      if (c.code == kInvalidByte) {
        out.finish_marks();
        out.text += static_cast<char>(*p);
      } else {
        add(c.code, out);
      }
      p += c.bytes;
    }
    out.finish_marks();
    text = std::move(out.text);
  }
  bool is_local(std::string_view) const override { return true; }
  double growth() const override { return 3; }

 private:
  struct Writer {
    explicit Writer(const BertStep& s) : step(s) {}
    /// A character that is decomposed and in its order.
    void put(uint32_t code) {
      if (step.strip_accents_ && step.traits_.has(code, CharTraits::kNonspacing)) return;
      if (!step.lowercase_)
        append_utf8(text, code);
      else if (code < 0x80)
        text += ascii_lowercase(static_cast<char>(code));
      else
        step.traits_.append_lowercase(code, text);
    }
    void finish_marks() {
      if (waiting.empty()) return;
      order_marks(waiting);
      for (const int32_t code : waiting) put(static_cast<uint32_t>(code));
      waiting.clear();
    }
    const BertStep& step;
    std::string text;
    std::vector<int32_t> waiting;  // decomposed, marks not yet in their order
  };

  void add(uint32_t code, Writer& out) const {
    const uint8_t traits = traits_.of(code);
    if (clean_) {
      if ((traits & CharTraits::kControl) != 0) return;
      if (is_white_space(code)) {
        out.finish_marks();
        out.text += ' ';
        return;
      }
    }
    const bool spaces = chinese_ && (traits & CharTraits::kChinese) != 0;
    if (spaces) {
      out.finish_marks();
      out.text += ' ';
    }
    const bool moves = (traits & (CharTraits::kMoves | CharTraits::kNoForm)) == CharTraits::kMoves;
    if (strip_accents_ && moves) {
      append_decomposed(code, out.waiting);
    } else {
      out.finish_marks();
      out.put(code);
    }
    if (spaces) {
      out.finish_marks();
      out.text += ' ';
    }
  }

  bool clean_, chinese_, strip_accents_, lowercase_;
  bool drops_[128];
  char becomes_[128];
  const CharTraits& traits_ = CharTraits::get();
};

std::optional<NormalForm> normal_form_of(const std::string& type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

std::shared_ptr<const NormalizerStep> read_replace(const JsonFields& fields) {
  auto [is_regex, from] = fields.pattern("pattern");
  std::string to = fields.text("content");
  if (to.size() > kLongestReplacement)
    user_error("{}.content has {} bytes; the limit is {}", fields.where(), to.size(),
               kLongestReplacement);
  const std::string where = fields.where() + ".pattern";
  if (from.empty()) user_error("{} is empty; expected the text to replace", where);
  if (is_regex)
    return std::make_shared<ReplacePatternStep>(SplitPattern::regex(from, where), std::move(to));
  return std::make_shared<ReplaceTextStep>(std::move(from), std::move(to));
}

/// One step by its type, or nullptr for an unknown one.
std::shared_ptr<const NormalizerStep> read_step(const std::string& type, const JsonFields& fields) {
  if (const auto form = normal_form_of(type)) return std::make_shared<NormalFormStep>(*form);
  if (type == "Replace") return read_replace(fields);
  if (type == "Lowercase") return std::make_shared<LowercaseStep>();
  if (type == "StripAccents") return std::make_shared<StripAccentsStep>();
  if (type == "Nmt") return std::make_shared<NmtStep>();
  if (type == "ByteLevel") return std::make_shared<ByteLettersStep>();
  if (type == "Precompiled")
    return std::make_shared<PrecompiledStep>(Precompiled::read_base64(
        fields.text("precompiled_charsmap", ""), fields.where() + ".precompiled_charsmap"));
  if (type == "Strip")
    return std::make_shared<StripStep>(fields.flag("strip_left", true),
                                       fields.flag("strip_right", true));
  if (type == "BertNormalizer") {
    const bool lowercase = fields.flag("lowercase", true);
    return std::make_shared<BertStep>(fields.flag("clean_text", true),
                                      fields.flag("handle_chinese_chars", true),
                                      fields.flag("strip_accents", lowercase), lowercase);
  }
  if (type != "Prepend") return nullptr;
  std::string text = fields.text("prepend");
  if (text.size() > kLongestReplacement)
    user_error("{}.prepend has {} bytes; the limit is {}", fields.where(), text.size(),
               kLongestReplacement);
  return std::make_shared<PrependStep>(std::move(text));
}

}  // namespace

Normalizer Normalizer::read(const Json& json, const std::string& where) {
  Normalizer all;
  all.read_into(json, where, 0);
  double growth = 1;
  bool settled = false;
  for (const auto& step : all.steps_) {
    if (!settled || !step->settles()) growth *= step->growth();
    settled = step->settles() || (settled && step->growth() == 1);
    if (growth > kMostGrowth)
      user_error("{}: its steps make a text more than {} times as long", where, kMostGrowth);
  }
  return all;
}

Normalizer Normalizer::bert(bool clean_text, bool chinese, std::optional<bool> strip_accents,
                            bool lowercase) {
  Normalizer all;
  all.steps_.push_back(std::make_shared<BertStep>(clean_text, chinese,
                                                  strip_accents.value_or(lowercase), lowercase));
  return all;
}

void Normalizer::read_into(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return;
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == kDeepestNormalizer)
      user_error("{}: sequences nested deeper than {}", where, kDeepestNormalizer);
    const Json& list = fields.list("normalizers");
    for (size_t i = 0; i < list.size(); ++i)
      read_into(list[i], fmt::format("{}.normalizers[{}]", where, i), depth + 1);
  } else if (auto step = read_step(type, fields)) {
    steps_.push_back(std::move(step));
  } else {
    user_error(
        "{}.type is {}, which is not supported (supported: Sequence, NFC, NFD, NFKC, NFKD, "
        "Lowercase, StripAccents, Strip, Replace, Prepend, BertNormalizer, Nmt, ByteLevel, "
        "Precompiled)",
        where, in_quotes(type));
  }
  if (steps_.size() > kMostSteps) user_error("{}: more than {} normalizers", where, kMostSteps);
}

std::string Normalizer::apply(std::string_view text, bool inside) const {
  std::string out(text);
  for (const auto& step : steps_) step->apply(out, inside);
  return out;
}

std::optional<std::pair<uint32_t, uint32_t>> Normalizer::mapped(uint8_t character) const {
  std::string text(1, static_cast<char>(character));
  for (const auto& step : steps_) {
    if (!step->is_local(text)) return std::nullopt;
    step->apply(text, true);
  }
  if (text.empty()) return std::nullopt;
  std::optional<uint32_t> first;
  uint32_t last = 0;
  const uint8_t* const end = as_bytes(text.data()) + text.size();
  for (const uint8_t* p = as_bytes(text.data()); p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (!first) first = c.code;
    last = c.code;
    p += c.bytes;
  }
  return std::pair{*first, last};
}

bool Normalizer::keeps_wide() const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [](const auto& step) { return step->keeps_wide(); });
}

}  // namespace brrr::io
