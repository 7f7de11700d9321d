#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/errors.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

constexpr uint32_t kNoRank = 0xffffffffu;
// Up to here scanning for the lowest rank beats a heap.
constexpr size_t kLongestScan = 160;

}  // namespace

BpeTokenizer::BpeTokenizer(BpeModel model) : model_(std::move(model)) {
  BRRR_CHECK(model_.size() < static_cast<uint32_t>(WordCache::kIdLimit));
  build_merge_table();
}

void BpeTokenizer::build_merge_table() {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * model_.merges.size()));
  slot_shift_ = 64 - std::countr_zero(capacity);
  slots_.assign(capacity + 1, MergeSlot{kNoPair, kNoRank, 0});
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    const BpeMerge& merge = model_.merges[rank];
    auto& slot = const_cast<MergeSlot&>(find_merge(merge.left, merge.right));
    slot = {static_cast<uint64_t>(merge.left) << 32 | merge.right, static_cast<uint32_t>(rank),
            merge.result};
  }
  byte_pairs_.resize(256 * 256);
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right) {
      const MergeSlot& slot = find_merge(model_.byte_ids[left], model_.byte_ids[right]);
      byte_pairs_[256 * left + right] = static_cast<uint32_t>(
          slot.rank == kNoRank ? capacity : static_cast<size_t>(&slot - slots_.data()));
    }
}

/// The merge of a pair, or a slot of rank kNoRank (the empty one where it would stand).
inline const BpeTokenizer::MergeSlot& BpeTokenizer::find_merge(uint32_t left,
                                                               uint32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
  const size_t mask = slots_.size() - 2;
  size_t i = (pair * 0x9e3779b97f4a7c15u) >> slot_shift_;
  while (slots_[i].pair != pair && slots_[i].pair != kNoPair) i = (i + 1) & mask;
  return slots_[i];
}

inline const BpeTokenizer::MergeSlot& BpeTokenizer::find_byte_merge(uint8_t left,
                                                                    uint8_t right) const {
  return slots_[byte_pairs_[256u * left + right]];
}

void BpeTokenizer::merge_by_scan(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const {
  uint32_t id[kLongestScan], rank[kLongestScan], result[kLongestScan];
  size_t n = length;
  for (size_t i = 0; i < n; ++i) id[i] = model_.byte_ids[p[i]];
  for (size_t i = 0; i + 1 < n; ++i) {
    const MergeSlot& merge = find_byte_merge(p[i], p[i + 1]);
    rank[i] = merge.rank;
    result[i] = merge.result;
  }
  const auto look_up = [&](size_t i) {
    const MergeSlot& merge = find_merge(id[i], id[i + 1]);
    rank[i] = merge.rank;
    result[i] = merge.result;
  };
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == kNoRank) break;
    id[best] = result[best];
    --n;
    std::copy(id + best + 2, id + n + 1, id + best + 1);
    std::copy(rank + best + 1, rank + n, rank + best);
    std::copy(result + best + 1, result + n, result + best);
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.insert(ids.end(), id, id + n);
}

void BpeTokenizer::merge_by_heap(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const {
  // A doubly linked list of symbols and a heap of (rank, position), so a piece of n bytes costs
  // n log n. Entries whose pair has changed since are recognised by their rank and dropped.
  struct Symbol {
    uint32_t id, rank, result;
    uint32_t previous, next;
  };
  constexpr uint32_t kNone = 0xffffffffu;
  if (length >= kNone)
    user_error("a single word of {} bytes cannot be encoded: the limit is 4 GiB; break the text up",
               length);
  const auto n = static_cast<uint32_t>(length);
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> heap;
  const auto entry = [&](uint32_t i) { return static_cast<uint64_t>(symbols[i].rank) << 32 | i; };
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i] = {model_.byte_ids[p[i]], kNoRank, 0, i - 1, i + 1 < n ? i + 1 : kNone};
    if (i + 1 == n) break;
    const MergeSlot& merge = find_byte_merge(p[i], p[i + 1]);
    symbols[i].rank = merge.rank;
    symbols[i].result = merge.result;
    if (merge.rank != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto look_up = [&](uint32_t i) {
    Symbol& s = symbols[i];
    if (s.next == kNone) {
      s.rank = kNoRank;
      return;
    }
    const MergeSlot& merge = find_merge(s.id, symbols[s.next].id);
    s.rank = merge.rank;
    s.result = merge.result;
    if (merge.rank == kNoRank) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<uint32_t>(top);
    Symbol& s = symbols[i];
    if (s.rank != static_cast<uint32_t>(top >> 32)) continue;
    Symbol& eaten = symbols[s.next];
    s.id = s.result;
    s.next = eaten.next;
    eaten.rank = kNoRank;
    if (s.next != kNone) symbols[s.next].previous = i;
    look_up(i);
    if (s.previous != kNone) look_up(s.previous);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next)
    ids.push_back(static_cast<int32_t>(symbols[i].id));
}

void BpeTokenizer::encode_piece(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const {
  if (length <= kLongestScan) {
    merge_by_scan(p, length, ids);
  } else {
    merge_by_heap(p, length, ids);
  }
}

/// A piece that the short-word cache does not know. Leaves its ids in `piece_ids`.
void BpeTokenizer::encode_uncached(const uint8_t* p, size_t length, const ShortWord& word,
                                   WordCache& cache, std::vector<int32_t>& piece_ids) const {
  piece_ids.clear();
  if (length > WordCache::kLongestWord) {
    encode_piece(p, length, piece_ids);
    return;
  }
  const uint64_t hash = hash_bytes(p, length);
  const auto known = cache.find_long(p, length, hash);
  if (!known.empty()) {
    piece_ids.assign(known.begin(), known.end());
    return;
  }
  encode_piece(p, length, piece_ids);
  if (length <= ShortWord::kLongest && piece_ids.size() <= 4) {
    cache.insert(word, piece_ids);
  } else {
    cache.insert_long(p, length, hash, piece_ids);
  }
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const CharTable& table = CharTable::get();
  std::unique_ptr<WordCache> cache = take_cache();
  // Ids gather here first: four are stored at once, and `ids` grows in large steps.
  constexpr size_t kGathered = 2048;
  int32_t gathered[kGathered + 4];
  size_t count = 0;
  const auto flush = [&] {
    ids.insert(ids.end(), gathered, gathered + count);
    count = 0;
  };
  std::vector<int32_t> piece_ids;
  const uint8_t* p = as_bytes(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const uint8_t* const q = next_piece(table, p, end);
    const auto length = static_cast<size_t>(q - p);
    ShortWord word{0, 0};
    if (length <= ShortWord::kLongest) [[likely]] {
      word = ShortWord::load(p, length, static_cast<size_t>(end - p));
      if (const WordCache::Short* found = cache->find(word)) [[likely]] {
        if (count >= kGathered) flush();
        std::memcpy(gathered + count, found->ids, sizeof(found->ids));
        gathered[count] &= WordCache::kIdLimit - 1;
        count += static_cast<size_t>(found->count());
        p = q;
        continue;
      }
    }
    encode_uncached(p, length, word, *cache, piece_ids);
    if (count + piece_ids.size() > kGathered) flush();
    if (piece_ids.size() > kGathered) {
      ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
    } else {
      std::copy(piece_ids.begin(), piece_ids.end(), gathered + count);
      count += piece_ids.size();
    }
    p = q;
  }
  flush();
  return_cache(std::move(cache));
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  size_t bytes = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size())
      user_error(
          "token {} (at position {}) is not in the vocabulary: ids go from 0 to {}; were these ids "
          "made "
          "by another tokenizer?",
          ids[i], i, vocab_size() - 1);
    bytes += model_.token(static_cast<uint32_t>(ids[i])).size();
  }
  std::string out;
  out.reserve(bytes);
  for (const int32_t id : ids) out += model_.token(static_cast<uint32_t>(id));
  return out;
}

std::unique_ptr<WordCache> BpeTokenizer::take_cache() const {
  {
    const std::lock_guard lock(caches_mutex_);
    if (!caches_.empty()) {
      auto cache = std::move(caches_.back());
      caches_.pop_back();
      return cache;
    }
  }
  return std::make_unique<WordCache>();
}

void BpeTokenizer::return_cache(std::unique_ptr<WordCache> cache) const {
  const std::lock_guard lock(caches_mutex_);
  caches_.push_back(std::move(cache));
}

}  // namespace brrr::io
