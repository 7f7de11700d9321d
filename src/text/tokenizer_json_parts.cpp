#include "text/tokenizer_json_parts.h"

namespace brrr::io {
namespace {

/// Walks over JSON text. Every step answers false, and the walk is over, where the text has not the
/// form that was asked for.
class Walker {
 public:
  explicit Walker(std::string_view text)
      : begin_(text.data()), p_(begin_), end_(p_ + text.size()) {}

  size_t at() const { return static_cast<size_t>(p_ - begin_); }
  bool done() {
    skip_blank();
    return p_ == end_;
  }
  bool take(char wanted) {
    skip_blank();
    if (p_ == end_ || *p_ != wanted) return false;
    ++p_;
    return true;
  }
  bool take_string(std::string& out) {
    if (!take('"')) return false;
    const char* const after = scan_json_string(p_, end_, out);
    if (after == nullptr) return false;
    p_ = after;
    return true;
  }
  /// Over one value of any kind; what is inside is not checked.
  bool skip_value(std::string_view& span) {
    skip_blank();
    const char* const start = p_;
    int depth = 0;
    do {
      if (p_ == end_) return false;
      if (*p_ == '"') {
        if (!skip_string()) return false;
      } else {
        depth += *p_ == '{' || *p_ == '[';
        depth -= *p_ == '}' || *p_ == ']';
        ++p_;
      }
    } while (depth > 0 || (p_ != end_ && *p_ != ',' && *p_ != '}' && *p_ != ']'));
    span = {start, static_cast<size_t>(p_ - start)};
    return true;
  }

 private:
  void skip_blank() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }
  bool skip_string() {
    for (++p_; p_ < end_ && *p_ != '"'; ++p_)
      if (*p_ == '\\' && ++p_ == end_) return false;
    if (p_ == end_) return false;
    ++p_;
    return true;
  }

  const char *begin_, *p_, *end_;
};

/// visit(key, walker) for each member of an object; it goes over the value.
template <typename Visit>
bool for_each_member(Walker& walker, Visit&& visit) {
  if (!walker.take('{')) return false;
  if (walker.take('}')) return true;
  std::string key;
  do {
    if (!walker.take_string(key) || !walker.take(':') || !visit(key, walker)) return false;
  } while (walker.take(','));
  return walker.take('}');
}

/// "a b", or ["a", "b"].
bool read_merge(Walker& walker, std::pair<std::string, std::string>& merge) {
  if (walker.take('['))
    return walker.take_string(merge.first) && walker.take(',') &&
           walker.take_string(merge.second) && walker.take(']');
  std::string both;
  if (!walker.take_string(both)) return false;
  const size_t space = both.find(' ');
  if (space == std::string::npos) return false;
  merge = {both.substr(0, space), both.substr(space + 1)};
  return !merge.first.empty() && !merge.second.empty() &&
         both.find(' ', space + 1) == std::string::npos;
}

bool read_merges(std::string_view text, std::vector<std::pair<std::string, std::string>>& merges) {
  Walker walker(text);
  if (!walker.take('[')) return false;
  if (walker.take(']')) return true;
  do {
    if (!read_merge(walker, merges.emplace_back())) return false;
  } while (walker.take(','));
  return walker.take(']') && walker.done();
}

}  // namespace

std::optional<TokenizerJsonParts> split_tokenizer_json(std::string_view text) {
  std::string_view vocab, merges;
  Walker walker(text);
  const auto take_part = [](std::string_view& part, Walker& w) {
    return part.empty() && w.skip_value(part);
  };
  const auto in_model = [&](const std::string& key, Walker& w) {
    std::string_view skipped;
    if (key == "vocab") return take_part(vocab, w);
    if (key == "merges") return take_part(merges, w);
    return w.skip_value(skipped);
  };
  const auto in_root = [&](const std::string& key, Walker& w) {
    std::string_view skipped;
    return key == "model" ? for_each_member(w, in_model) : w.skip_value(skipped);
  };
  if (!for_each_member(walker, in_root) || !walker.done() || vocab.empty()) return std::nullopt;
  TokenizerJsonParts parts;
  std::optional<VocabTokens> tokens = VocabTokens::scan(vocab);
  if (!tokens || (!merges.empty() && !read_merges(merges, parts.merges))) return std::nullopt;
  parts.vocab = *std::move(tokens);
  // The parts in the order of the file, and what stands for each.
  std::vector<std::pair<std::string_view, std::string_view>> large = {{vocab, "{}"}};
  if (!merges.empty())
    large.insert(merges.data() < vocab.data() ? large.begin() : large.end(), {merges, "[]"});
  size_t done = 0;
  for (const auto& [part, instead] : large) {
    const auto at = static_cast<size_t>(part.data() - text.data());
    parts.rest += text.substr(done, at - done);
    parts.rest += instead;
    done = at + part.size();
  }
  parts.rest += text.substr(done);
  return parts;
}

}  // namespace brrr::io
