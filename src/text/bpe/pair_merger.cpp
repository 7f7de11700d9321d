#include "text/bpe/pair_merger.h"

#include "base/errors.h"
#include "text/bpe/tokenizer_cache.h"

namespace brrr::io {

PairMerger::PairMerger(std::vector<std::string> tokens, Spell spell, std::vector<std::string> taken)
    : tokens_(std::move(tokens)), spell_(std::move(spell)) {
  spelled_.insert(tokens_.begin(), tokens_.end());
  spelled_.insert(taken.begin(), taken.end());
}

void PairMerger::add_word(std::span<const uint32_t> tokens, int64_t count) {
  const size_t first = symbols_.size();
  if (first + tokens.size() >= kNone)
    user_error(
        "the distinct words of the text have more than {} tokens, which is too many to learn "
        "from",
        kNone);
  const auto word = static_cast<uint32_t>(counts_.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto at = static_cast<uint32_t>(first + i);
    symbols_.push_back(
        {tokens[i], i == 0 ? kNone : at - 1, i + 1 == tokens.size() ? kNone : at + 1, word});
  }
  counts_.push_back(count);
}

void PairMerger::begin() {
  for (uint32_t i = 0; i < symbols_.size(); ++i)
    if (symbols_[i].next != kNone) add_pair(i);
  offer_new_pairs();
  has_begun_ = true;
}

bool PairMerger::step() {
  if (!has_begun_) begin();
  while (!heap_.empty()) {
    const Candidate best = heap_.top();
    heap_.pop();
    Pair& pair = pairs_[best.pair];
    if (pair.count < 2) continue;
    if (pair.count != best.count) {
      heap_.push({pair.count, best.left, best.right, best.pair});
      continue;
    }
    std::string spelling = spell_(tokens_[best.left], tokens_[best.right]);
    if (!spelled_.insert(spelling).second) continue;
    tokens_.push_back(std::move(spelling));
    merge(best);
    return true;
  }
  return false;
}

uint32_t PairMerger::PairIndex::find_or_add(uint32_t left, uint32_t right, uint32_t next_index) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  Slot& slot = locate(static_cast<uint64_t>(left) << 32 | right);
  if (slot.index == kNone) {
    slot = {static_cast<uint64_t>(left) << 32 | right, next_index};
    ++used_;
  }
  return slot.index;
}

PairMerger::PairIndex::Slot& PairMerger::PairIndex::locate(uint64_t key) {
  size_t i = fold_multiply(key, 0x9e3779b97f4a7c15u) & (slots_.size() - 1);
  while (slots_[i].index != kNone && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  return slots_[i];
}

void PairMerger::PairIndex::grow() {
  std::vector<Slot> old(std::max<size_t>(1 << 12, 2 * slots_.size()));
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.index != kNone) locate(slot.key) = slot;
}

PairMerger::Pair& PairMerger::pair_at(uint32_t place) {
  const Symbol& left = symbols_[place];
  const uint32_t right = symbols_[left.next].id;
  const uint32_t found = index_.find_or_add(left.id, right, static_cast<uint32_t>(pairs_.size()));
  if (found == pairs_.size()) {
    pairs_.emplace_back();
    keys_.emplace_back(left.id, right);
  }
  return pairs_[found];
}

void PairMerger::add_pair(uint32_t place) {
  Pair& pair = pair_at(place);
  pair.count += counts_[symbols_[place].word];
  pair.places.push_back(place);
}

void PairMerger::offer_new_pairs() {
  for (; offered_ < pairs_.size(); ++offered_)
    if (pairs_[offered_].count > 1)
      heap_.push({pairs_[offered_].count, keys_[offered_].first, keys_[offered_].second,
                  static_cast<uint32_t>(offered_)});
}

void PairMerger::merge(const Candidate& best) {
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

}  // namespace brrr::io
