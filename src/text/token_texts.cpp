#include "text/token_texts.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/errors.h"
#include "text/bpe/byte_letters.h"
#include "text/json_fields.h"
#include "text/patterns/matches.h"

namespace brrr::io {

/// One step of a decoder. Each makes a list of tokens of a list of tokens.
struct DecoderStep {
  enum class Kind {
    byte_level,
    byte_fallback,
    replace,
    strip,
    metaspace,
    fuse,
    wordpiece,
    bpe,
    ctc
  } kind;
  std::string from = {}, to = {};
  size_t least = 0, most = 0;  // of strip: at the start, at the end
  bool cleanup = false;
  std::string delimiter = {};                // of words, to CTC
  std::optional<SplitPattern> pattern = {};  // what is replaced, instead of `from`
};

namespace {

using StepKind = DecoderStep::Kind;

constexpr int kDeepestDecoder = 16;
constexpr size_t kLongestText = size_t{1} << 20;
constexpr size_t kMostTextBytes = size_t{1} << 31;
constexpr size_t kMostReplacement = 64;

DecoderStep read_decoder_replace(const JsonFields& fields) {
  auto [is_regex, from] = fields.pattern("pattern");
  DecoderStep step{StepKind::replace, std::move(from), fields.text("content")};
  if (step.from.empty() || step.to.size() > kMostReplacement)
    user_error("{}: expected to replace a text by one of at most {} bytes; got {} by {}",
               fields.where(), kMostReplacement, in_quotes(step.from), in_quotes(step.to));
  if (is_regex) step.pattern = SplitPattern::regex(step.from, fields.where() + ".pattern");
  return step;
}

DecoderStep read_decoder_strip(const JsonFields& fields) {
  DecoderStep step{StepKind::strip, fields.text("content")};
  if (step.from.empty()) user_error("{}.content is empty; expected a character", fields.where());
  step.least = static_cast<size_t>(fields.integer("start", 0, 1000));
  step.most = static_cast<size_t>(fields.integer("stop", 0, 1000));
  return step;
}

DecoderStep read_decoder_metaspace(const JsonFields& fields) {
  std::string scheme = fields.text("prepend_scheme", "");
  if (scheme.empty()) scheme = fields.flag("add_prefix_space", true) ? "always" : "never";
  DecoderStep step{StepKind::metaspace, fields.text("replacement"), scheme == "never" ? " " : ""};
  if (step.from.empty())
    user_error("{}.replacement is empty; expected a character", fields.where());
  return step;
}

void read_steps(const Json& json, const std::string& where, int depth,
                std::vector<DecoderStep>& steps) {
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == kDeepestDecoder)
      user_error("{}: sequences nested deeper than {}", where, kDeepestDecoder);
    const Json& list = fields.list("decoders");
    for (size_t i = 0; i < list.size(); ++i)
      read_steps(list[i], fmt::format("{}.decoders[{}]", where, i), depth + 1, steps);
  } else if (type == "ByteLevel") {
    steps.push_back({StepKind::byte_level});
  } else if (type == "ByteFallback") {
    steps.push_back({StepKind::byte_fallback});
  } else if (type == "Fuse") {
    steps.push_back({StepKind::fuse});
  } else if (type == "Replace") {
    steps.push_back(read_decoder_replace(fields));
  } else if (type == "Strip") {
    steps.push_back(read_decoder_strip(fields));
  } else if (type == "Metaspace") {
    steps.push_back(read_decoder_metaspace(fields));
  } else if (type == "WordPiece") {
    steps.push_back({StepKind::wordpiece, fields.text("prefix", "##")});
    steps.back().cleanup = fields.flag("cleanup", true);
  } else if (type == "BPEDecoder") {
    steps.push_back({StepKind::bpe, fields.text("suffix", "</w>")});
    if (steps.back().from.empty()) user_error("{}.suffix is empty; expected a text", where);
  } else if (type == "CTC") {
    steps.push_back({StepKind::ctc, fields.text("pad_token", "<pad>")});
    steps.back().delimiter = fields.text("word_delimiter_token", "|");
    steps.back().cleanup = fields.flag("cleanup", true);
    if (steps.back().from.empty() || steps.back().delimiter.empty())
      user_error("{}: \"pad_token\" and \"word_delimiter_token\" must not be empty", where);
  } else {
    user_error(
        "{}.type is {}, which is not supported (supported: Sequence, ByteLevel, ByteFallback, "
        "Fuse, Replace, Strip, Metaspace, WordPiece, BPEDecoder, CTC)",
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

std::string replaced(std::string_view text, const SplitPattern& pattern, std::string_view to) {
  std::string out;
  for_each_valid_stretch(
      text,
      [&](std::string_view stretch) {
        size_t done = 0;
        for_each_match(pattern, stretch, [&](size_t begin, size_t end) {
          out += stretch.substr(done, begin - done);
          out += to;
          done = end;
        });
        out += stretch.substr(done);
      },
      [&](std::string_view bytes) { out += bytes; });
  return out;
}

/// English without the spaces that a split at punctuation has put into it.
std::string cleaned_up(std::string text) {
  // Every rule begins with a space and one of these; most tokens of a large vocabulary have
  // neither.
  bool may_change = false;
  for (size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1))
    may_change |= at + 1 < text.size() &&
                  std::string_view(".?!,'nd").find(text[at + 1]) != std::string_view::npos;
  if (!may_change) return text;
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules)
    if (text.find(from) != std::string::npos) text = replaced(text, from, to);
  return text;
}

/// "<0x0A>" is one byte.
bool is_byte_token(std::string_view name, uint8_t& byte) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return false;
  return std::from_chars(name.data() + 3, name.data() + 5, byte, 16).ptr == name.data() + 5;
}

/// What a step makes of one token, if it is no step that looks at others. `first`: it is the first
/// of its text.
std::string apply_to_token(const DecoderStep& step, std::string text, bool first) {
  uint8_t byte = 0;
  std::string bytes;
  switch (step.kind) {
    case StepKind::byte_level:
      if (spell_bytes(text, bytes)) return bytes;
      return text;
    case StepKind::byte_fallback:
      if (is_byte_token(text, byte)) return std::string(1, static_cast<char>(byte));
      return text;
    case StepKind::replace:
      return step.pattern ? replaced(text, *step.pattern, step.to)
                          : replaced(text, step.from, step.to);
    case StepKind::metaspace:
      return replaced(text, step.from, first ? step.to : " ");
    case StepKind::wordpiece:
      if (!first) {
        if (text.starts_with(step.from))
          text.erase(0, step.from.size());
        else
          text.insert(0, 1, ' ');
      }
      return step.cleanup ? cleaned_up(std::move(text)) : text;
    case StepKind::strip:
      for (size_t i = 0; i < step.least && text.starts_with(step.from); ++i)
        text.erase(0, step.from.size());
      for (size_t i = 0; i < step.most && text.ends_with(step.from); ++i)
        text.resize(text.size() - step.from.size());
      return text;
    case StepKind::fuse:
    case StepKind::bpe:
    case StepKind::ctc:
      break;
  }
  return text;
}

/// What one token becomes in a decoder that treats tokens one by one.
std::string text_of(std::string text, const std::vector<DecoderStep>& steps, bool first,
                    const std::string& where) {
  for (const DecoderStep& step : steps) {
    if (step.kind == StepKind::fuse) break;
    text = apply_to_token(step, std::move(text), first);
    if (text.size() > kLongestText)
      user_error("{}: a token decodes to more than {} bytes", where, kLongestText);
  }
  return text;
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

/// A step on the tokens of a whole text.
void apply_to_all(const DecoderStep& step, std::vector<std::string>& tokens) {
  if (step.kind == StepKind::ctc) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      token = replaced(token, step.from, "");
      if (step.cleanup) token = replaced(cleaned_up(std::move(token)), step.delimiter, " ");
    }
    std::erase(tokens, "");
    return;
  }
  if (step.kind == StepKind::byte_fallback) {
    std::vector<std::string> out;
    bool bytes = false;  // the last one is a run of bytes
    for (std::string& token : tokens) {
      uint8_t byte = 0;
      if (!is_byte_token(token, byte)) {
        out.push_back(std::move(token));
        bytes = false;
        continue;
      }
      if (!bytes) out.emplace_back();
      out.back() += static_cast<char>(byte);
      bytes = true;
    }
    tokens = std::move(out);
    return;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (step.kind == StepKind::bpe)
      tokens[i] = replaced(tokens[i], step.from, i + 1 == tokens.size() ? "" : " ");
    else
      tokens[i] = apply_to_token(step, std::move(tokens[i]), i == 0);
  }
  if (step.kind == StepKind::fuse || step.kind == StepKind::byte_level) fuse(tokens);
}

}  // namespace

TokenTexts TokenTexts::read(const Json& json, const std::vector<std::string_view>& names,
                            const std::string& where) {
  TokenTexts texts;
  std::vector<DecoderStep> steps;
  if (json.is_null())
    texts.between_ = " ";
  else
    read_steps(json, where, 0, steps);
  // Behind a step that joins tokens, only stripping the beginning of the text is possible one by
  // one.
  bool fused = false, joined_bytes = false, all = false;
  for (const DecoderStep& step : steps) {
    const bool strips_beginning = step.kind == StepKind::strip && step.most == 0;
    if (step.kind == StepKind::ctc || step.kind == StepKind::bpe) all = true;
    if (fused && strips_beginning && texts.strip_.empty()) {
      texts.strip_ = step.from;
      texts.most_strips_ = step.least;
    } else if ((fused || joined_bytes) && step.kind != StepKind::fuse) {
      all = true;
    }
    fused |= step.kind == StepKind::fuse || step.kind == StepKind::byte_level;
    joined_bytes |= step.kind == StepKind::byte_fallback;
  }
  if (!all) {
    texts.fill(steps, names, where);
    return texts;
  }
  for (const std::string_view name : names) texts.add_bytes(name, where);
  texts.all_steps_ = std::make_shared<const std::vector<DecoderStep>>(std::move(steps));
  return texts;
}

TokenTexts TokenTexts::wordpiece(const std::vector<std::string_view>& names, bool cleanup) {
  TokenTexts texts;
  std::vector<DecoderStep> steps = {{StepKind::wordpiece, "##"}};
  steps[0].cleanup = cleanup;
  texts.fill(steps, names, "decoder");
  return texts;
}

void TokenTexts::fill(const std::vector<DecoderStep>& steps,
                      const std::vector<std::string_view>& names, const std::string& where) {
  const bool differs_at_first = std::any_of(steps.begin(), steps.end(), [](const DecoderStep& s) {
    return s.kind == StepKind::metaspace || s.kind == StepKind::wordpiece;
  });
  const auto work_out = [&](bool first) {
    offsets_.assign(1, 0);
    offsets_.reserve(names.size() + 1);
    for (const std::string_view name : names)
      add_bytes(text_of(std::string(name), steps, first, where), where);
  };
  if (differs_at_first) {
    work_out(true);
    first_bytes_ = std::move(bytes_);
    first_offsets_ = std::move(offsets_);
    bytes_.clear();
  }
  work_out(false);
}

void TokenTexts::add_bytes(std::string_view text, const std::string& where) {
  bytes_ += text;
  if (bytes_.size() > kMostTextBytes) user_error("{}: the tokens decode to more than 2 GiB", where);
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
}

void TokenTexts::append(int32_t id, bool begun, size_t& stripped, std::string& out) const {
  std::string_view text = inside(id);
  if (begun) {
    out += between_;
  } else if (!first_offsets_.empty()) {
    const auto i = static_cast<size_t>(id);
    text = std::string_view(first_bytes_)
               .substr(first_offsets_[i], first_offsets_[i + 1] - first_offsets_[i]);
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

void TokenTexts::append_all(std::span<const int32_t> ids, std::string& out) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) tokens.emplace_back(inside(id));
  for (const DecoderStep& step : *all_steps_) {
    apply_to_all(step, tokens);
    size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    if (bytes > kMostTextBytes) user_error("the tokens decode to more than 2 GiB");
  }
  for (const std::string& token : tokens) out += token;
}

}  // namespace brrr::io
