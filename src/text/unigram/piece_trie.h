#pragma once
// A set of byte strings in which every one that a text begins with is found in one walk over the
// text: a double array, one look-up per byte. Immutable once built.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace brrr::io {

class PieceTrie {
 public:
  /// A key and what it stands for (below kNone).
  using Entry = std::pair<std::string_view, uint32_t>;
  static constexpr uint32_t kNone = 0xffffffffu;

  PieceTrie() : PieceTrie(std::vector<Entry>{}) {}
  /// Keys are not empty. Of equal keys the last one counts.
  explicit PieceTrie(std::vector<Entry> entries);

  /// found(end, value) for every key that begins at `p`, shortest first.
  template <typename Found>
  void visit(const uint8_t* p, const uint8_t* end, Found&& found) const {
    const Unit* const units = units_.data();
    uint32_t node = 0;
    while (p < end) {
      const uint32_t next = units[node].base + *p++;
      if (units[next].parent != node) return;
      node = next;
      if (units[node].value != kNone) found(p, units[node].value);
    }
  }
  /// What `key` stands for, or kNone.
  uint32_t find(std::string_view key) const;

 private:
  struct Unit {
    uint32_t base = 0;        // where its children are, by byte
    uint32_t parent = kNone;  // none: the place is free
    uint32_t value = kNone;
  };
  // Always 256 units longer than the last base, so that no look-up leaves it.
  std::vector<Unit> units_;
};

}  // namespace brrr::io
