#pragma once
// A hash table from names to their positions in a list that its owner keeps: copies are cheap, and
// no name is held twice. `name_at(position)` gives the name that stands at a position.

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace brrr {

class NameIndex {
 public:
  static constexpr uint32_t kNone = ~0u;

  /// The first position that was added with this name, or kNone.
  template <typename NameAt>
  uint32_t find(std::string_view name, NameAt&& name_at) const {
    if (slots_.empty()) return kNone;
    for (size_t i = slot_of(name);; i = next(i)) {
      if (slots_[i] == kNone) return kNone;
      if (name_at(slots_[i]) == name) return slots_[i];
    }
  }
  /// The next position: they are added from 0, each once.
  template <typename NameAt>
  void add(NameAt&& name_at) {
    if (2 * (size_ + size_t{1}) > slots_.size()) {
      slots_.assign(std::max<size_t>(16, 2 * slots_.size()), kNone);
      for (uint32_t position = 0; position < size_; ++position) place(position, name_at);
    }
    place(size_++, name_at);
  }

 private:
  template <typename NameAt>
  void place(uint32_t position, NameAt&& name_at) {
    size_t i = slot_of(name_at(position));
    while (slots_[i] != kNone) i = next(i);
    slots_[i] = position;
  }
  size_t slot_of(std::string_view name) const {
    return Hash().add(name).value() & (slots_.size() - 1);
  }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  std::vector<uint32_t> slots_;  // a power of two of them, at most half taken
  uint32_t size_ = 0;
};

}  // namespace brrr
