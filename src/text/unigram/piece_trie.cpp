#include "text/unigram/piece_trie.h"

#include <algorithm>

#include "base/errors.h"
#include "base/utf8.h"

namespace brrr::io {

PieceTrie::PieceTrie(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.first < b.first; });
  // Nodes whose children have no place yet: the entries below them, which share `depth` bytes.
  struct Open {
    uint32_t node;
    size_t first, last, depth;
  };
  struct Child {
    uint8_t byte;
    size_t first, last;
  };
  units_.resize(512);
  units_[0].parent = kNone - 1;  // taken, and nobody's child
  std::vector<Open> open = {{0, 0, entries.size(), 0}};
  std::vector<Child> children;
  // Below `first_free` hardly anything is free: it moves on when most of what follows it is taken.
  size_t first_free = 1;
  while (!open.empty()) {
    const Open here = open.back();
    open.pop_back();
    children.clear();
    for (size_t i = here.first; i < here.last; ++i) {
      const std::string_view key = entries[i].first;
      BRRR_CHECK(!key.empty());
      if (key.size() == here.depth) {
        units_[here.node].value = entries[i].second;
        continue;
      }
      const auto byte = static_cast<uint8_t>(key[here.depth]);
      if (children.empty() || children.back().byte != byte) children.push_back({byte, i, i});
      children.back().last = i + 1;
    }
    if (children.empty()) continue;
    size_t base = 0, seen = 0, taken = 0;
    for (size_t place = std::max<size_t>(first_free, children[0].byte + size_t{1});; ++place) {
      base = place - children[0].byte;
      if (units_.size() < base + 512) units_.resize(units_.size() * 2 + 512);
      ++seen;
      if (units_[place].parent != kNone) {
        ++taken;
        continue;
      }
      if (std::all_of(children.begin(), children.end(),
                      [&](const Child& c) { return units_[base + c.byte].parent == kNone; }))
        break;
    }
    BRRR_CHECK(base < kNone - 512);
    if (seen > 32 && taken * 20 >= seen * 19)
      first_free = std::max(first_free, base + children[0].byte);
    units_[here.node].base = static_cast<uint32_t>(base);
    for (const Child& child : children) {
      const auto node = static_cast<uint32_t>(base + child.byte);
      units_[node].parent = here.node;
      open.push_back({node, child.first, child.last, here.depth + 1});
    }
  }
  uint32_t last_base = 0;
  for (const Unit& unit : units_) last_base = std::max(last_base, unit.base);
  units_.resize(last_base + size_t{256});
  units_.shrink_to_fit();
}

uint32_t PieceTrie::find(std::string_view key) const {
  uint32_t node = 0;
  for (const char c : key) {
    const uint32_t next = units_[node].base + static_cast<uint8_t>(c);
    if (units_[next].parent != node) return kNone;
    node = next;
  }
  return units_[node].value;
}

}  // namespace brrr::io
