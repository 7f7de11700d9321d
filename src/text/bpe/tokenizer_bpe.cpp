#include "text/bpe/tokenizer_bpe.h"
#include "base/threads/thread_local.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/encoding/utf8.h"
#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr uint32_t kNoRank = 0xffffffffu;
constexpr uint32_t kMark = 0x2581;
// Up to here scanning for the lowest rank beats a heap.
constexpr size_t kLongestScan = 160;

/// The first and the last code point of a token's text.
std::pair<uint32_t, uint32_t> ends_of(std::string_view text) {
  const uint8_t* p = as_bytes(text.data());
  const uint8_t* const end = p + text.size();
  std::pair<uint32_t, uint32_t> ends{kInvalidByte, kInvalidByte};
  for (bool first = true; p < end; first = false) {
    const DecodedChar c = decode_utf8(p, end);
    if (first) ends.first = c.code;
    ends.second = c.code;
    p += c.bytes;
  }
  return ends;
}

}  // namespace

BpeEncoder::BpeEncoder(BpeModel model) : model_(std::move(model)) {
  BRRR_CHECK(model_.size() < static_cast<uint32_t>(WordCache::kIdLimit));
  build_merge_table();
  if (model_.ignore_merges || model_.has_affixes()) {
    whole_ = PieceTable(model_.size());
    for (uint32_t id = 0; id < model_.size(); ++id)
      if (!std::binary_search(model_.verbatim.begin(), model_.verbatim.end(), id))
        whole_.add(model_.token(id), id);
  }
  if (model_.alphabet == BpeModel::Alphabet::characters) build_characters();
}

void BpeEncoder::build_merge_table() {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * model_.merges.size()));
  slot_shift_ = 64 - std::countr_zero(capacity);
  slots_.assign(capacity + 1, MergeSlot{kNoPair, kNoRank, 0});
  BRRR_CHECK(model_.ranks.empty() || model_.ranks.size() == model_.merges.size());
  for (size_t i = 0; i < model_.merges.size(); ++i) {
    const BpeMerge& merge = model_.merges[i];
    const auto rank = model_.ranks.empty() ? static_cast<uint32_t>(i) : model_.ranks[i];
    auto& slot = const_cast<MergeSlot&>(find_merge(merge.left, merge.right));
    slot = {static_cast<uint64_t>(merge.left) << 32 | merge.right, rank, merge.result};
  }
  if (model_.alphabet == BpeModel::Alphabet::characters) return;
  byte_pairs_.resize(256 * 256);
  for (size_t left = 0; left < 256; ++left)
    for (size_t right = 0; right < 256; ++right) {
      const MergeSlot& slot = find_merge(model_.byte_ids[left], model_.byte_ids[right]);
      byte_pairs_[256 * left + right] = static_cast<uint32_t>(
          slot.rank == kNoRank ? capacity : static_cast<size_t>(&slot - slots_.data()));
    }
}

void BpeEncoder::build_characters() {
  ascii_ids_.assign(128, kNoId);
  for (const auto& [code, id] : model_.character_ids) {
    if (code < 128)
      ascii_ids_[code] = id;
    else
      wide_ids_.emplace(code, id);
    if (code == kMark) mark_id_ = id;
  }
  std::vector<bool> is_fallback(model_.size());
  for (const uint32_t id : model_.fallback_ids) is_fallback[id] = true;
  if (model_.unknown >= 0) is_fallback[static_cast<size_t>(model_.unknown)] = true;
  // What is left out brings its neighbours together.
  merges_fallbacks_ = model_.unknown < 0 && model_.fallback_ids.empty();
  joined_.assign(kClasses * kClasses, 0);
  for (const BpeMerge& merge : model_.merges) {
    merges_fallbacks_ |= is_fallback[merge.left] || is_fallback[merge.right];
    const size_t before = class_of(ends_of(model_.token(merge.left)).second);
    const size_t after = class_of(ends_of(model_.token(merge.right)).first);
    joined_[before * kClasses + after] = 1;
  }
}

size_t BpeEncoder::class_of(uint32_t code) {
  return code < 128 ? code : code == kMark ? kSpaceMark : kOthers;
}

uint32_t BpeEncoder::id_of_character(uint32_t code) const {
  if (code < 128) return ascii_ids_[code];
  if (code == kMark) return mark_id_;
  const auto found = wide_ids_.find(code);
  return found == wide_ids_.end() ? kNoId : found->second;
}

/// The merge of a pair, or a slot of rank kNoRank (the empty one where it would stand).
inline const BpeEncoder::MergeSlot& BpeEncoder::find_merge(uint32_t left, uint32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
  const size_t mask = slots_.size() - 2;
  size_t i = (pair * 0x9e3779b97f4a7c15u) >> slot_shift_;
  while (slots_[i].pair != pair && slots_[i].pair != kNoPair) i = (i + 1) & mask;
  return slots_[i];
}

inline const BpeEncoder::MergeSlot& BpeEncoder::find_byte_merge(uint8_t left, uint8_t right) const {
  return slots_[byte_pairs_[256u * left + right]];
}

/// What a word is before the first merge.
void BpeEncoder::add_symbols(const uint8_t* p, size_t length,
                             std::vector<uint32_t>& symbols) const {
  const uint8_t* const begin = p;
  const uint8_t* const end = p + length;
  if (model_.alphabet == BpeModel::Alphabet::bytes) {
    for (; p < end; ++p) symbols.push_back(model_.byte_ids[*p]);
    return;
  }
  // An unknown token waits until a known character comes, behind bytes even, as in `tokenizers`.
  bool waiting = false;
  std::string name;
  for (uint32_t bytes = 0; p < end; p += bytes) {
    const DecodedChar c = decode_utf8(p, end);
    bytes = c.bytes;
    std::string_view text(reinterpret_cast<const char*>(p), bytes);
    uint32_t id = kNoId;
    if (model_.has_affixes()) {
      name = p == begin ? "" : model_.continuing;
      name += text;
      if (p + bytes == end) name += model_.ending;
      text = name;
      id = whole_.find(text);
    } else if (c.code != kInvalidByte) {
      id = id_of_character(c.code);
    }
    if (id != kNoId) {
      if (waiting) symbols.push_back(static_cast<uint32_t>(model_.unknown));
      waiting = false;
      symbols.push_back(id);
    } else if (!model_.fallback_ids.empty()) {
      for (const char byte : text)
        symbols.push_back(model_.fallback_ids[static_cast<uint8_t>(byte)]);
    } else if (model_.unknown >= 0) {
      if (waiting && !model_.fuse_unknown) symbols.push_back(static_cast<uint32_t>(model_.unknown));
      waiting = true;
    }
  }
  if (waiting) symbols.push_back(static_cast<uint32_t>(model_.unknown));
}

void BpeEncoder::merge_by_scan(const uint8_t* p, std::span<const uint32_t> symbols,
                               std::vector<int32_t>& ids) const {
  uint32_t id[kLongestScan], rank[kLongestScan], result[kLongestScan];
  size_t n = symbols.size();
  std::copy(symbols.begin(), symbols.end(), id);
  const bool bytes = model_.alphabet == BpeModel::Alphabet::bytes;
  for (size_t i = 0; i + 1 < n; ++i) {
    const MergeSlot& merge = bytes ? find_byte_merge(p[i], p[i + 1]) : find_merge(id[i], id[i + 1]);
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

void BpeEncoder::merge_by_heap(std::span<const uint32_t> symbol_ids,
                               std::vector<int32_t>& ids) const {
  // A doubly linked list of symbols and a heap of (rank, position), so a word of n symbols costs
  // n log n. Entries whose pair has changed since are recognised by their rank and dropped.
  struct Symbol {
    uint32_t id, rank, result;
    uint32_t previous, next;
  };
  constexpr uint32_t kNone = 0xffffffffu;
  if (symbol_ids.size() >= kNone)
    user_error("a single word of {} bytes cannot be encoded: the limit is 4 GiB; split the text",
               symbol_ids.size());
  const auto n = static_cast<uint32_t>(symbol_ids.size());
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> heap;
  const auto entry = [&](uint32_t i) { return static_cast<uint64_t>(symbols[i].rank) << 32 | i; };
  const auto look_up = [&](uint32_t i) {
    Symbol& s = symbols[i];
    s.rank = kNoRank;
    if (s.next == kNone) return false;
    const MergeSlot& merge = find_merge(s.id, symbols[s.next].id);
    s.rank = merge.rank;
    s.result = merge.result;
    return s.rank != kNoRank;
  };
  for (uint32_t i = 0; i < n; ++i)
    symbols[i] = {symbol_ids[i], kNoRank, 0, i - 1, i + 1 < n ? i + 1 : kNone};
  for (uint32_t i = 0; i < n; ++i)
    if (look_up(i)) heap.push_back(entry(i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto offer = [&](uint32_t i) {
    if (!look_up(i)) return;
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
    offer(i);
    if (s.previous != kNone) offer(s.previous);
  }
  for (uint32_t i = 0; i != kNone && i < n; i = symbols[i].next)
    ids.push_back(static_cast<int32_t>(symbols[i].id));
}

void BpeEncoder::merge_word(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const {
  if (model_.ignore_merges) {
    const uint32_t found = whole_.find({reinterpret_cast<const char*>(p), length});
    if (found != PieceTable::kNone) {
      ids.push_back(static_cast<int32_t>(found));
      return;
    }
  }
  BRRR_THREAD_LOCAL std::vector<uint32_t> symbols;
  symbols.clear();
  add_symbols(p, length, symbols);
  if (symbols.size() <= kLongestScan) {
    merge_by_scan(p, symbols, ids);
  } else {
    merge_by_heap(symbols, ids);
  }
}

void BpeEncoder::encode_characters(std::string_view piece, const char* readable_end,
                                   WordSession& session) const {
  const uint8_t* begin = as_bytes(piece.data());
  const uint8_t* const end = begin + piece.size();
  const auto merge = [this](const uint8_t* p, size_t length, std::vector<int32_t>& ids) {
    merge_word(p, length, ids);
  };
  const auto word_until = [&](const uint8_t* stop) {
    session.add_word(begin, static_cast<size_t>(stop - begin), as_bytes(readable_end), merge);
    begin = stop;
  };
  size_t before = 0;
  bool known_before = false;
  for (const uint8_t* p = begin; p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    const bool known = c.code != kInvalidByte && id_of_character(c.code) != kNoId;
    const size_t after = class_of(c.code);
    const bool cut = known && p > begin && !joined_[before * kClasses + after] &&
                     (known_before || !merges_fallbacks_);
    if (cut) word_until(p);
    before = after;
    known_before = known;
    p += c.bytes;
  }
  word_until(end);
}

bool BpeEncoder::may_cut(uint32_t before, uint32_t after) const {
  if (takes_whole_words()) return false;
  if (after == kInvalidByte || id_of_character(after) == kNoId) return false;
  const bool known = before < 128 && id_of_character(before) != kNoId;
  return !joined_[class_of(before) * kClasses + class_of(after)] && (known || !merges_fallbacks_);
}

void BpeEncoder::encode(std::span<const std::string_view> pieces, const char* readable_end,
                        std::vector<int32_t>& ids) const {
  WordSession session(caches_, ids);
  if (takes_whole_words()) {
    session.add_words(pieces, readable_end,
                      [this](const uint8_t* p, size_t length, std::vector<int32_t>& word_ids) {
                        merge_word(p, length, word_ids);
                      });
  } else {
    for (const std::string_view piece : pieces) encode_characters(piece, readable_end, session);
  }
  session.finish();
}

}  // namespace brrr::io
