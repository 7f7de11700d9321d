#pragma once
// Texts and the ids that they have, for vocabularies of 100,000 and more tokens that every start-up
// waits for: one cache line per look-up that fails.

#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/bpe/tokenizer_cache.h"

namespace brrr::io {

class PieceTable {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  PieceTable() : PieceTable(0) {}
  /// Room for `most` texts.
  explicit PieceTable(size_t most) : slots_(std::bit_ceil(2 * most + 2)) { texts_.reserve(most); }

  /// The views must outlive the table. Returns the id that the text has already, else kNone.
  uint32_t add(std::string_view text, uint32_t id) {
    Slot& slot = find_slot(text);
    if (slot.place != 0) return texts_[slot.place - 1].id;
    texts_.push_back({text, id});
    slot = {static_cast<uint32_t>(hash_of(text) >> 32), static_cast<uint32_t>(texts_.size())};
    return kNone;
  }
  uint32_t find(std::string_view text) const {
    const Slot& slot = const_cast<PieceTable*>(this)->find_slot(text);
    return slot.place == 0 ? kNone : texts_[slot.place - 1].id;
  }
  bool empty() const { return texts_.empty(); }

 private:
  struct Slot {
    uint32_t tag = 0, place = 0;  // place + 1 in texts_; 0: free
  };
  struct Entry {
    std::string_view text;
    uint32_t id;
  };
  static uint64_t hash_of(std::string_view text) {
    return hash_bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  Slot& find_slot(std::string_view text) {
    const uint64_t hash = hash_of(text);
    for (size_t i = hash;; ++i) {
      Slot& slot = slots_[i & (slots_.size() - 1)];
      const bool is_it = slot.place == 0 || (slot.tag == static_cast<uint32_t>(hash >> 32) &&
                                             texts_[slot.place - 1].text == text);
      if (is_it) return slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<Entry> texts_;
};

}  // namespace brrr::io
