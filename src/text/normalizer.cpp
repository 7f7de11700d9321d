#include "text/normalizer.h"

#include "base/errors.h"
#include "base/utf8.h"
#include "text/json_fields.h"

namespace brrr::io {
namespace {

constexpr int kDeepestNormalizer = 16;
constexpr size_t kMostSteps = 64;
// A step may make a text longer, and steps multiply.
constexpr size_t kLongestReplacement = 64;
constexpr int kMostGrowth = 1000;

std::string replace_all(std::string_view text, const std::string& from, const std::string& to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4 + to.size());
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += to;
    at = found + from.size();
  }
}

}  // namespace

Normalizer Normalizer::read(const Json& json, const std::string& where) {
  Normalizer all;
  all.read_into(json, where, 0);
  double growth = 1;
  for (const Step& step : all.steps_) {
    const auto bytes = static_cast<double>(step.to.size());
    growth *= step.prepend ? 1 : std::max(1.0, bytes / static_cast<double>(step.from.size()));
    if (growth > kMostGrowth)
      user_error("{}: its steps make a text more than {} times as long", where, kMostGrowth);
  }
  return all;
}

void Normalizer::read_into(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return;
  const JsonFields fields(json, where);
  const std::string type = fields.text("type");
  const auto bounded = [&](const char* key) {
    std::string text = fields.text(key);
    if (text.size() > kLongestReplacement)
      user_error("{}.{} has {} bytes; the limit is {}", where, key, text.size(),
                 kLongestReplacement);
    return text;
  };
  if (type == "Sequence") {
    if (depth == kDeepestNormalizer)
      user_error("{}: sequences nested deeper than {}", where, kDeepestNormalizer);
    const Json& list = fields.list("normalizers");
    for (size_t i = 0; i < list.size(); ++i)
      read_into(list[i], fmt::format("{}.normalizers[{}]", where, i), depth + 1);
  } else if (type == "Prepend") {
    steps_.push_back({true, "", bounded("prepend")});
  } else if (type == "Replace") {
    auto [is_regex, from] = fields.pattern("pattern");
    if (is_regex)
      user_error("{}.pattern is the regular expression {}; only a string can be replaced", where,
                 in_quotes(from));
    if (from.empty()) user_error("{}.pattern is empty; expected the text to replace", where);
    steps_.push_back({false, std::move(from), bounded("content")});
  } else {
    user_error("{}.type is {}, which is not supported (supported: Sequence, Prepend, Replace)",
               where, in_quotes(type));
  }
  if (steps_.size() > kMostSteps) user_error("{}: more than {} normalizers", where, kMostSteps);
}

std::string Normalizer::apply(std::string_view text, bool inside) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (!step.prepend) {
      out = replace_all(out, step.from, step.to);
    } else if (!inside && !out.empty()) {
      out.insert(0, step.to);
    }
  }
  return out;
}

std::optional<uint32_t> Normalizer::mapped(uint8_t character) const {
  std::string text(1, static_cast<char>(character));
  for (const Step& step : steps_) {
    if (step.prepend) continue;
    const uint8_t* const p = as_bytes(step.from.data());
    if (decode_utf8(p, p + step.from.size()).bytes != step.from.size()) return std::nullopt;
    text = replace_all(text, step.from, step.to);
  }
  if (text.empty()) return std::nullopt;
  return decode_utf8(as_bytes(text.data()), as_bytes(text.data() + text.size())).code;
}

}  // namespace brrr::io
