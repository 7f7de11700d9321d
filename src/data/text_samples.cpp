#include "data/text_samples.h"

#include <numeric>

#include "base/errors.h"
#include "base/threads/parallel_tasks.h"

namespace brrr::io {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;

struct Stretch {
  size_t file;
  uint64_t begin, end;
};

/// Whole files where the rule never cuts.
std::vector<Stretch> pieces_of(const TextFiles& text, const CutRule& rule) {
  std::vector<Stretch> pieces;
  for (size_t file = 0; file < text.count(); ++file)
    for (uint64_t begin = 0; begin < text.bytes(file); begin = pieces.back().end)
      pieces.push_back(
          {file, begin,
           rule.never() ? text.bytes(file) : text.cut(file, begin + kPieceBytes, rule)});
  return pieces;
}

}  // namespace

std::unique_ptr<Tokenizer> make_char_tokenizer(const TextFiles& text) {
  const std::vector<Stretch> pieces = pieces_of(text, CutRule::at_words());
  std::vector<std::string> characters(pieces.size());
  parallel_tasks(std::ssize(pieces), [&](size_t i) {
    const auto [file, begin, end] = pieces[i];
    const auto of_piece = make_char_tokenizer(text.read(file, begin, end));
    std::vector<int32_t> ids(static_cast<size_t>(of_piece->vocab_size()));
    std::iota(ids.begin(), ids.end(), 0);
    characters[i] = of_piece->decode(ids);
  });
  std::string all;
  for (const std::string& some : characters) all += some;
  return make_char_tokenizer(all);
}

std::string sample_text(const TextFiles& text, uint64_t bytes) {
  constexpr uint64_t kSample = 1 << 16;
  const uint64_t count = bytes >= text.bytes() ? 0 : std::max<uint64_t>(1, bytes / kSample);
  std::string sample;
  for (size_t file = 0; count == 0 && file < text.count(); ++file)
    sample += text.read(file, 0, text.bytes(file));
  for (uint64_t i = 0; i < count; ++i) {
    const auto [file, offset] = text.place(text.bytes() / count * i);
    const uint64_t begin = text.cut(file, offset);
    sample += text.read(file, begin, text.cut(file, begin + kSample));
  }
  return sample;
}

std::vector<int32_t> encode_all(const TextFiles& text, const Tokenizer& tokenizer) {
  const std::vector<Stretch> pieces = pieces_of(text, tokenizer.cut_rule());
  std::vector<std::vector<int32_t>> parts(pieces.size());
  parallel_tasks(std::ssize(pieces), [&](size_t i) {
    const auto [file, begin, end] = pieces[i];
    tokenizer.encode(text.read(file, begin, end), {.inside = begin > 0}, parts[i]);
  });
  std::vector<int32_t> ids;
  for (const auto& part : parts) ids.insert(ids.end(), part.begin(), part.end());
  return ids;
}

}  // namespace brrr::io
