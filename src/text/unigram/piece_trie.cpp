#include "text/unigram/piece_trie.h"

#include <algorithm>
#include <bit>

#include "base/encoding/utf8.h"
#include "base/errors.h"

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
  std::vector<Open> open = {{0, 0, entries.size(), 0}};
  std::vector<Child> children;
  // Which places are taken, and the end of those. Only the last kWindow of them are looked at for
  // room, so that the time is linear in the number of nodes.
  constexpr size_t kWindow = 4096;
  std::vector<uint64_t> taken(units_.size() / 64, 0);
  size_t top = 1;
  const auto take = [&](size_t place, uint32_t parent) {
    units_[place].parent = parent;
    taken[place / 64] |= uint64_t{1} << (place % 64);
    top = std::max(top, place + 1);
  };
  const auto next_free = [&](size_t place) {
    uint64_t free = ~taken[place / 64] >> (place % 64);
    while (free == 0) {
      place = (place / 64 + 1) * 64;
      free = ~taken[place / 64];
    }
    return place + static_cast<size_t>(std::countr_zero(free));
  };
  take(0, kNone - 1);  // nobody's child
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
    if (units_.size() < top + 1024) {
      units_.resize(units_.size() * 2 + 1024);
      taken.resize(units_.size() / 64, 0);
    }
    size_t place = std::max(top > kWindow ? top - kWindow : 1, children[0].byte + size_t{1});
    const auto has_room = [&](size_t base) {
      return std::all_of(children.begin(), children.end(), [&](const Child& child) {
        return units_[base + child.byte].parent == kNone;
      });
    };
    for (place = next_free(place); !has_room(place - children[0].byte);)
      place = next_free(place + 1);
    const size_t base = place - children[0].byte;
    BRRR_CHECK(base < kNone - 1024);
    units_[here.node].base = static_cast<uint32_t>(base);
    for (const Child& child : children) {
      const auto node = static_cast<uint32_t>(base + child.byte);
      take(node, here.node);
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
