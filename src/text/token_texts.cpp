#include "text/token_texts.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"
#include "text/bpe/byte_letters.h"
#include "text/json_fields.h"

namespace brrr::io {
namespace {

constexpr int kDeepestDecoder = 16;
constexpr size_t kLongestText = size_t{1} << 20;
constexpr size_t kMostTextBytes = size_t{1} << 31;

/// One step of a decoder, as far as it treats tokens one by one.
struct DecoderStep {
  enum class Kind { byte_level, byte_fallback, replace, strip, metaspace, fuse } kind;
  std::string from = {}, to = {};
  size_t least = 0, most = 0;  // of strip: at the start, at the end
};

void read_steps(const Json& json, const std::string& where, int depth,
                std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == kDeepestDecoder)
      user_error("{}: sequences nested deeper than {}", where, kDeepestDecoder);
    const Json& list = fields.list("decoders");
    for (size_t i = 0; i < list.size(); ++i)
      read_steps(list[i], fmt::format("{}.decoders[{}]", where, i), depth + 1, steps);
  } else if (type == "ByteLevel") {
    steps.push_back({Kind::byte_level});
  } else if (type == "ByteFallback") {
    steps.push_back({Kind::byte_fallback});
  } else if (type == "Fuse") {
    steps.push_back({Kind::fuse});
  } else if (type == "Replace") {
    auto [is_regex, from] = fields.pattern("pattern");
    if (is_regex)
      user_error("{}.pattern is the regular expression {}; only a string can be replaced", where,
                 in_quotes(from));
    std::string to = fields.text("content");
    if (from.empty() || to.size() > 64)
      user_error("{}: expected to replace a text by one of at most 64 bytes; got {} by {}", where,
                 in_quotes(from), in_quotes(to));
    steps.push_back({Kind::replace, std::move(from), std::move(to)});
  } else if (type == "Strip") {
    DecoderStep step{Kind::strip, fields.text("content")};
    if (step.from.empty()) user_error("{}.content is empty; expected a character", where);
    step.least = static_cast<size_t>(fields.integer("start", 0, 1000));
    step.most = static_cast<size_t>(fields.integer("stop", 0, 1000));
    steps.push_back(std::move(step));
  } else if (type == "Metaspace") {
    std::string scheme = fields.text("prepend_scheme", "");
    if (scheme.empty()) scheme = fields.flag("add_prefix_space", true) ? "always" : "never";
    steps.push_back({Kind::metaspace, fields.text("replacement"), scheme == "never" ? " " : ""});
    if (steps.back().from.empty())
      user_error("{}.replacement is empty; expected a character", where);
  } else {
    user_error(
        "{}.type is {}, which is not supported (supported: Sequence, ByteLevel, ByteFallback, "
        "Fuse, "
        "Replace, Strip, Metaspace)",
        where, in_quotes(type));
  }
  if (steps.size() > 64) user_error("{}: more than 64 decoders", where);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (;;) {
    const size_t found = text.find(from);
    out += text.substr(0, found);
    if (found == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(found + from.size());
  }
}

/// "<0x0A>" is one byte.
bool is_byte_token(std::string_view name, uint8_t& byte) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return false;
  return std::from_chars(name.data() + 3, name.data() + 5, byte, 16).ptr == name.data() + 5;
}

/// What one token becomes. `first`: it is the first of its text.
std::string text_of(std::string text, const std::vector<DecoderStep>& steps, bool first,
                    const std::string& where) {
  using Kind = DecoderStep::Kind;
  for (const DecoderStep& step : steps) {
    if (text.size() > kLongestText)
      user_error("{}: a token decodes to more than {} bytes", where, kLongestText);
    uint8_t byte = 0;
    std::string bytes;
    switch (step.kind) {
      case Kind::byte_level:
        if (spell_bytes(text, bytes)) text = std::move(bytes);
        break;
      case Kind::byte_fallback:
        if (is_byte_token(text, byte)) return std::string(1, static_cast<char>(byte));
        break;
      case Kind::replace:
        text = replaced(text, step.from, step.to);
        break;
      case Kind::metaspace:
        text = replaced(text, step.from, first ? step.to : " ");
        break;
      case Kind::strip: {
        for (size_t i = 0; i < step.least && text.starts_with(step.from); ++i)
          text.erase(0, step.from.size());
        for (size_t i = 0; i < step.most && text.ends_with(step.from); ++i)
          text.resize(text.size() - step.from.size());
        break;
      }
      case Kind::fuse:
        return text;
    }
  }
  return text;
}

}  // namespace

TokenTexts TokenTexts::read(const Json& json, const std::vector<std::string_view>& names,
                            const std::string& where) {
  using Kind = DecoderStep::Kind;
  TokenTexts texts;
  std::vector<DecoderStep> steps;
  if (json.is_null())
    texts.between_ = " ";
  else
    read_steps(json, where, 0, steps);
  // What comes behind Fuse sees the whole text: only stripping its beginning is possible then.
  bool fused = false;
  for (const DecoderStep& step : steps) {
    if (fused && step.kind == Kind::strip && texts.strip_.empty() && step.most == 0) {
      texts.strip_ = step.from;
      texts.most_strips_ = step.least;
    } else if (fused && step.kind != Kind::fuse) {
      user_error(
          "{}: behind Fuse only one Strip with \"stop\": 0 is supported, because ids are decoded "
          "one by one",
          where);
    }
    fused |= step.kind == Kind::fuse;
  }
  const bool differs_at_first = std::any_of(
      steps.begin(), steps.end(), [](const DecoderStep& s) { return s.kind == Kind::metaspace; });
  texts.offsets_.reserve(names.size() + 1);
  for (size_t id = 0; id < names.size(); ++id) {
    const std::string text = text_of(std::string(names[id]), steps, false, where);
    if (differs_at_first)
      if (std::string first = text_of(std::string(names[id]), steps, true, where); first != text)
        texts.first_.emplace(static_cast<int32_t>(id), std::move(first));
    texts.bytes_ += text;
    if (texts.bytes_.size() > kMostTextBytes)
      user_error("{}: the tokens decode to more than 2 GiB", where);
    texts.offsets_.push_back(static_cast<uint32_t>(texts.bytes_.size()));
  }
  return texts;
}

void TokenTexts::append(int32_t id, bool begun, size_t& stripped, std::string& out) const {
  std::string_view text = inside(id);
  if (begun) {
    out += between_;
  } else if (!first_.empty()) {
    if (const auto found = first_.find(id); found != first_.end()) text = found->second;
  }
  // A token that is not all stripped ends the beginning.
  while (stripped < most_strips_ && !text.empty()) {
    if (text.starts_with(strip_)) {
      text.remove_prefix(strip_.size());
      ++stripped;
    } else {
      stripped = most_strips_;
    }
  }
  out += text;
}

}  // namespace brrr::io
