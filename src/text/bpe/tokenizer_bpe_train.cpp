// BPE training. Only distinct pieces matter, with their counts. Their symbols lie end to end in one
// array, linked so that merging is local; each pair knows its count and the places where it occurs.
// One merge costs its occurrences, not the text, so a text without spaces is no slower than
// another.
//
// A token is made in exactly one step (a pair that would spell an existing token is passed over),
// hence the occurrences of a pair are all born in one step, in ascending order, and its count only
// falls afterwards. That makes a lazy heap exact and keeps "leftmost first" without sorting.

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_set>

#include "base/errors.h"
#include "base/parallel.h"
#include "text/bpe/byte_letters.h"
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

class Trainer {
 public:
  explicit Trainer(const std::vector<Word>& words) {
    size_t symbols = 0;
    for (const Word& word : words) symbols += word.length;
    if (symbols >= kNone)
      user_error(
          "the distinct words of the text have {} bytes; BPE training takes up to 4 GiB of them",
          symbols);
    symbols_.reserve(symbols);
    std::array<uint32_t, 256> id_of{};
    for (uint32_t id = 0; id < 256; ++id) {
      tokens_.emplace_back(1, static_cast<char>(bytes_by_letter()[id]));
      id_of[bytes_by_letter()[id]] = id;
    }
    spelled_.insert(tokens_.begin(), tokens_.end());
    spelled_.emplace(kEndOfText);
    for (const Word& word : words) {
      const auto first = static_cast<uint32_t>(symbols_.size());
      const auto last = static_cast<uint32_t>(first + word.length - 1);
      for (uint32_t i = first; i <= last; ++i)
        symbols_.push_back({id_of[word.begin[i - first]], i == first ? kNone : i - 1,
                            i == last ? kNone : i + 1, static_cast<uint32_t>(counts_.size())});
      counts_.push_back(word.count);
    }
    for (uint32_t i = 0; i < symbols_.size(); ++i)
      if (symbols_[i].next != kNone) add_pair(i);
    offer_new_pairs();
  }

  /// One merge; false when no pair occurs twice.
  bool step() {
    while (!heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      Pair& pair = pairs_[best.pair];
      if (pair.count < 2) continue;
      if (pair.count != best.count) {
        heap_.push({pair.count, best.left, best.right, best.pair});
        continue;
      }
      std::string spelling = tokens_[best.left] + tokens_[best.right];
      if (!spelled_.insert(spelling).second) continue;
      tokens_.push_back(std::move(spelling));
      merge(best);
      return true;
    }
    return false;
  }

  size_t token_count() const { return tokens_.size(); }

  BpeModel model() const {
    BpeModel model;
    for (const std::string& token : tokens_) append(model, token);
    model.end_of_text = static_cast<int32_t>(tokens_.size());
    append(model, kEndOfText);
    model.merges = merges_;
    for (uint32_t id = 0; id < 256; ++id) model.byte_ids[bytes_by_letter()[id]] = id;
    return model;
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;

  struct Symbol {
    uint32_t id, previous, next, word;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> places;  // of the left symbol, ascending; some may have changed since
  };
  struct Candidate {
    int64_t count;
    uint32_t left, right, pair;
    bool operator<(const Candidate& other) const {  // the top of the heap is the greatest
      if (count != other.count) return count < other.count;
      if (left != other.left) return left > other.left;
      return right > other.right;
    }
  };
  /// (left, right) -> index into pairs_: open addressing, at most half full.
  class PairIndex {
   public:
    uint32_t find_or_add(uint32_t left, uint32_t right, uint32_t next_index) {
      if (2 * (used_ + 1) > slots_.size()) grow();
      Slot& slot = locate(static_cast<uint64_t>(left) << 32 | right);
      if (slot.index == kNone) {
        slot = {static_cast<uint64_t>(left) << 32 | right, next_index};
        ++used_;
      }
      return slot.index;
    }

   private:
    struct Slot {
      uint64_t key = 0;
      uint32_t index = kNone;
    };
    Slot& locate(uint64_t key) {
      size_t i = fold_multiply(key, 0x9e3779b97f4a7c15u) & (slots_.size() - 1);
      while (slots_[i].index != kNone && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
      return slots_[i];
    }
    void grow() {
      std::vector<Slot> old(std::max<size_t>(1 << 12, 2 * slots_.size()));
      old.swap(slots_);
      for (const Slot& slot : old)
        if (slot.index != kNone) locate(slot.key) = slot;
    }
    std::vector<Slot> slots_;
    size_t used_ = 0;
  };

  static void append(BpeModel& model, std::string_view token) {
    model.bytes += token;
    model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
  }

  Pair& pair_at(uint32_t place) {
    const Symbol& left = symbols_[place];
    const uint32_t found =
        index_.find_or_add(left.id, symbols_[left.next].id, static_cast<uint32_t>(pairs_.size()));
    if (found == pairs_.size()) {
      pairs_.emplace_back();
      keys_.emplace_back(left.id, symbols_[left.next].id);
    }
    return pairs_[found];
  }

  void add_pair(uint32_t place) {
    Pair& pair = pair_at(place);
    pair.count += counts_[symbols_[place].word];
    pair.places.push_back(place);
  }

  void offer_new_pairs() {
    for (; offered_ < pairs_.size(); ++offered_)
      if (pairs_[offered_].count > 1)
        heap_.push({pairs_[offered_].count, keys_[offered_].first, keys_[offered_].second,
                    static_cast<uint32_t>(offered_)});
  }

  void merge(const Candidate& best) {
    const auto result = static_cast<uint32_t>(tokens_.size() - 1);
    merges_.push_back({best.left, best.right, result});
    const std::vector<uint32_t> places = std::move(pairs_[best.pair].places);
    pairs_[best.pair].places.clear();
    for (const uint32_t place : places) {
      Symbol& left = symbols_[place];
      if (left.id != best.left || left.next == kNone || symbols_[left.next].id != best.right)
        continue;
      const int64_t count = counts_[left.word];
      const uint32_t eaten = left.next;
      if (left.previous != kNone) pair_at(left.previous).count -= count;
      if (symbols_[eaten].next != kNone) pair_at(eaten).count -= count;
      left.id = result;
      left.next = symbols_[eaten].next;
      symbols_[eaten].id = kNone;
      if (left.next != kNone) symbols_[left.next].previous = place;
      if (left.previous != kNone) add_pair(left.previous);
      if (left.next != kNone) add_pair(place);
    }
    pairs_[best.pair].count = 0;
    offer_new_pairs();
  }

  std::vector<Symbol> symbols_;
  std::vector<int64_t> counts_;  // by word
  std::vector<std::string> tokens_;
  std::unordered_set<std::string> spelled_;
  std::vector<BpeMerge> merges_;
  PairIndex index_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<uint32_t, uint32_t>> keys_;  // of pairs_
  std::priority_queue<Candidate> heap_;
  size_t offered_ = 0;
};

}  // namespace

BpeModel train_bpe_model(std::string_view text, int32_t vocab_size) {
  if (vocab_size < 257)
    user_error("a BPE vocabulary of {} tokens is too small: 256 bytes and {} make 257", vocab_size,
               kEndOfText);
  if (vocab_size > WordCache::kIdLimit)
    user_error("a BPE vocabulary of {} tokens is too large: the limit is {}", vocab_size,
               WordCache::kIdLimit);
  const WordCounts words = count_words(text);
  Trainer trainer(words.words());
  while (trainer.token_count() + 1 < static_cast<size_t>(vocab_size))
    if (!trainer.step())
      user_error(
          "a BPE vocabulary of {} tokens needs more text: after {} tokens no pair of tokens occurs "
          "twice in "
          "these {} bytes; ask for {} or fewer",
          vocab_size, trainer.token_count() + 1, text.size(), trainer.token_count() + 1);
  return trainer.model();
}

}  // namespace brrr::io
