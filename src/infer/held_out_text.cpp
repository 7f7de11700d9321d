#include "infer/held_out_text.h"

#include <algorithm>

#include "base/errors.h"
#include "base/human.h"
#include "data/corpus.h"

namespace brrr::infer {
namespace {

constexpr int64_t kLeastTokens = 64, kMostTokens = 8192;
constexpr size_t kMostBytes = size_t{1} << 18;  // of a text that is tokenised
constexpr double kFlopsOfLoss = 6e11;           // in one precision: some seconds on a small machine

std::vector<int32_t> all_tokens(const HeldOutText& held, const io::Tokenizer& tokenizer) {
  try {
    return tokenizer.encode(std::string_view(held.text));
  } catch (const UserError& e) {
    user_error("--text: {}: {}", held.description, e.what());
  }
}

}  // namespace

HeldOutText read_held_out_text(const std::vector<std::string>& files,
                               const io::Tokenizer& tokenizer) {
  io::CorpusOptions c;
  for (const std::string& file : files) c.text.emplace_back(file);
  c.accept_bytes = tokenizer.kind() == "byte";
  io::Corpus corpus = io::load_corpus(c);
  HeldOutText held{std::move(corpus.text), corpus.description, files.empty()};
  if (held.is_default) {
    held.text.erase(0, held.text.size() - held.text.size() / 10);
    held.text.erase(0, held.text.find('\n') + 1);
  }
  if (held.text.size() > kMostBytes) {
    const size_t line = held.text.rfind('\n', kMostBytes);
    held.text.resize(line == std::string::npos ? held.text.size() : line + 1);
  }
  return held;
}

void check_known(std::span<const int32_t> ids, const io::Tokenizer& tokenizer,
                 const std::string& text) {
  const int32_t unknown = tokenizer.unknown_token();
  const auto unknown_count = std::ranges::count(ids, unknown);
  const auto known_count = std::ranges::count_if(
      ids, [&](int32_t id) { return id != unknown && !tokenizer.is_special(id); });
  if (unknown >= 0 && unknown_count > known_count)
    user_error(
        "--text: {} of {} tokens of {} are unknown to the model's tokenizer; name a text of its "
        "vocabulary",
        unknown_count, unknown_count + known_count, text);
}

std::vector<int32_t> tokens_to_compare_on(const HeldOutText& held, const io::Tokenizer& tokenizer,
                                          int64_t parameters) {
  std::vector<int32_t> ids = all_tokens(held, tokenizer);
  check_known(ids, tokenizer, held.description);
  if (std::ssize(ids) < kLeastTokens)
    user_error("--text: {} has {}; expected at least {} to measure a loss on", held.description,
               counted(std::ssize(ids), "token"), kLeastTokens);
  const double affordable = kFlopsOfLoss / (2 * static_cast<double>(parameters));
  const auto most =
      static_cast<size_t>(std::clamp(affordable, double{kMostTokens} / 8, double{kMostTokens}));
  ids.resize(std::min(ids.size(), most));
  return ids;
}

}  // namespace brrr::infer
