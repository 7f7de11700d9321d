// BPE training on the distinct pieces of a text, with their counts (pair_merger.h).

#include <algorithm>
#include <array>
#include <functional>

#include "base/errors.h"
#include "base/threads/parallel.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/pair_merger.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

struct Word {
  const uint8_t* begin = nullptr;
  size_t length = 0;
  uint64_t hash = 0;
  int64_t count = 0;
};

/// Distinct words and how often each occurs. Words point into the text.
class WordCounts {
 public:
  void add(const uint8_t* p, size_t length, uint64_t hash, int64_t count) {
    if (2 * (words_.size() + 1) > slots_.size()) grow();
    size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
      Word& word = words_[slots_[slot] - 1];
      if (word.hash == hash && word.length == length && std::memcmp(word.begin, p, length) == 0) {
        word.count += count;
        return;
      }
    }
    words_.push_back({p, length, hash, count});
    slots_[slot] = words_.size();
  }
  const std::vector<Word>& words() const { return words_; }

 private:
  void grow() {
    slots_.assign(std::max<size_t>(1024, 2 * slots_.size()), 0);
    for (size_t i = 0; i < words_.size(); ++i) {
      size_t slot = words_[i].hash & (slots_.size() - 1);
      while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = i + 1;
    }
  }
  std::vector<Word> words_;
  std::vector<size_t> slots_;
};

/// Where a text may be cut without changing its pieces: between an ASCII character that is no white
/// space and a space or newline, no piece passes and none looks further.
size_t cut_at_or_after(std::string_view text, size_t at) {
  for (at = std::max<size_t>(at, 1); at < text.size(); ++at) {
    const auto before = static_cast<uint8_t>(text[at - 1]);
    if ((text[at] == ' ' || text[at] == '\n') && before > ' ' && before < 0x7f) return at;
  }
  return text.size();
}

WordCounts count_words(std::string_view text) {
  constexpr size_t kChunkBytes = size_t{1} << 20;
  std::vector<size_t> cuts = {0};
  while (cuts.back() < text.size())
    cuts.push_back(cut_at_or_after(text, cuts.back() + kChunkBytes));
  std::vector<WordCounts> parts(cuts.size() - 1);
  const CharTable& table = CharTable::get();
  parallel_chunks(static_cast<int64_t>(parts.size()), [&](int64_t part) {
    const uint8_t* p = as_bytes(text.data()) + cuts[part];
    const uint8_t* const end = as_bytes(text.data()) + cuts[part + 1];
    while (p < end) {
      const uint8_t* const q = next_piece(table, p, end);
      const auto length = static_cast<size_t>(q - p);
      parts[part].add(p, length, hash_bytes(p, length), 1);
      p = q;
    }
  });
  WordCounts all;
  for (const WordCounts& part : parts)
    for (const Word& word : part.words()) all.add(word.begin, word.length, word.hash, word.count);
  return all;
}

void append(BpeModel& model, std::string_view token) {
  model.bytes += token;
  model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
}

BpeModel model_of(const PairMerger& learnt) {
  BpeModel model;
  for (const std::string& token : learnt.tokens()) append(model, token);
  model.end_of_text = static_cast<int32_t>(learnt.tokens().size());
  append(model, kEndOfText);
  for (const LearntMerge& m : learnt.merges()) model.merges.push_back({m.left, m.right, m.result});
  for (uint32_t id = 0; id < 256; ++id) model.byte_ids[bytes_by_letter()[id]] = id;
  return model;
}

}  // namespace

BpeModel train_bpe_model(std::string_view text, int32_t vocab_size) {
  if (vocab_size < 257)
    user_error("a BPE vocabulary of {} tokens is too small: 256 bytes and {} make 257", vocab_size,
               kEndOfText);
  if (vocab_size > WordCache::kIdLimit)
    user_error("a BPE vocabulary of {} tokens is too large: the limit is {}", vocab_size,
               WordCache::kIdLimit);
  std::vector<std::string> letters;
  std::array<uint32_t, 256> id_of{};
  for (uint32_t id = 0; id < 256; ++id) {
    letters.emplace_back(1, static_cast<char>(bytes_by_letter()[id]));
    id_of[bytes_by_letter()[id]] = id;
  }
  PairMerger merger(std::move(letters), std::plus<std::string>(), {std::string(kEndOfText)});
  const WordCounts words = count_words(text);
  std::vector<uint32_t> symbols;
  for (const Word& word : words.words()) {
    symbols.clear();
    for (size_t i = 0; i < word.length; ++i) symbols.push_back(id_of[word.begin[i]]);
    merger.add_word(symbols, word.count);
  }
  while (merger.tokens().size() + 1 < static_cast<size_t>(vocab_size))
    if (!merger.step())
      user_error(
          "a BPE vocabulary of {} tokens needs more text: after {} tokens no pair of tokens occurs "
          "twice in "
          "these {} bytes; ask for {} or fewer",
          vocab_size, merger.tokens().size() + 1, text.size(), merger.tokens().size() + 1);
  return model_of(merger);
}

}  // namespace brrr::io
