#include <charconv>
#include <optional>

#include "base/encoding/base64.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "text/bpe/piece_table.h"
#include "text/ranked/ranked_tokens.h"

namespace brrr::io {
namespace {

// Llama 3's split and the number of its tokens, which its file does not say.
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr size_t kLlama3Tokens = 128'000;
constexpr int kLlama3Special = 256;

struct RankedLine {
  std::string token;
  size_t rank;
};

/// "base64 rank", or nothing.
std::optional<RankedLine> read_ranked_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  auto token = decode_base64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  size_t rank = 0;
  const char* const end = digits.data() + digits.size();
  const auto number = std::from_chars(digits.data(), end, rank);
  if (!token || token->empty() || number.ec != std::errc() || number.ptr != end)
    return std::nullopt;
  return RankedLine{*std::move(token), rank};
}

/// Takes the next line, without its end.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

bool is_tiktoken(std::string_view text) {
  // A longer line would have no token of a tiktoken file in it.
  std::string_view head = text.substr(0, 10'000);
  return read_ranked_line(take_line(head)).has_value();
}

std::vector<std::string> parse_tiktoken(std::string_view text, const std::string& where) {
  std::vector<std::string> tokens;
  std::vector<RankedLine> lines;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    auto ranked = read_ranked_line(line);
    if (!ranked)
      user_error("{}: line {}: expected a token in base64, a space and its rank; got {}", where,
                 number, in_quotes(line));
    lines.push_back(*std::move(ranked));
  }
  if (lines.size() >= static_cast<size_t>(WordCache::kIdLimit))
    user_error("{}: too many tokens", where);
  tokens.resize(lines.size());
  PieceTable rank_of(lines.size());
  for (RankedLine& line : lines) {
    if (line.rank >= lines.size() || !tokens[line.rank].empty())
      user_error("{}: the rank {} {}; expected the ranks 0 to {}, each once", where, line.rank,
                 line.rank >= lines.size() ? "is too large" : "is there twice", lines.size() - 1);
    std::string& token = tokens[line.rank];
    token = std::move(line.token);
    const uint32_t other = rank_of.add(token, static_cast<uint32_t>(line.rank));
    if (other != PieceTable::kNone)
      user_error("{}: the token {} has the ranks {} and {}; expected one", where, in_quotes(token),
                 other, line.rank);
  }
  return tokens;
}

std::unique_ptr<Tokenizer> read_llama3(std::map<std::string, std::string> files,
                                       const std::string& where) {
  RankedTokens from;
  from.tokens = parse_tiktoken(files.at("tokenizer.model"), where);
  if (from.tokens.size() != kLlama3Tokens)
    user_error(
        "{}: a tiktoken file of {} tokens; only that of Llama 3, with {}, can be read, because "
        "such "
        "a file does not say how a text is split; use the tokenizer.json of this model",
        where, from.tokens.size(), kLlama3Tokens);
  from.pattern = kLlama3Split;
  from.special = {"<|begin_of_text|>",
                  "<|end_of_text|>",
                  "<|reserved_special_token_0|>",
                  "<|reserved_special_token_1|>",
                  "<|reserved_special_token_2|>",
                  "<|reserved_special_token_3|>",
                  "<|start_header_id|>",
                  "<|end_header_id|>",
                  "<|reserved_special_token_4|>",
                  "<|eot_id|>"};
  for (int i = 5; from.special.size() < kLlama3Special; ++i)
    from.special.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  from.begin_of_text = static_cast<int32_t>(kLlama3Tokens);
  from.end_of_text = static_cast<int32_t>(kLlama3Tokens) + 1;
  return make_ranked_tokenizer(std::move(from), std::move(files), where);
}

}  // namespace brrr::io
