// sort: sorts the lines of a tensor, or finds the first k elements of that order (top-k). Elements
// are mapped to unsigned keys of the same order and paired with their index. Few wanted elements
// are kept in a sorted list while the line is scanned; otherwise the keys are radix sorted. Both
// are stable.

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/lines.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kTogether = 16;      // adjacent lines that are read together
constexpr int64_t kFewInOrder = 64;    // the largest k for which a sorted list is kept
constexpr int64_t kLeastDigits = 256;  // the shortest line for which the radix sort is faster

template <typename T>
using Key =
    std::conditional_t<sizeof(T) == 1, uint8_t,
                       std::conditional_t<sizeof(T) == 2, uint16_t,
                                          std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;

/// Maps x to an unsigned number of the same order. Zeros of both signs are equal, as are all NaN,
/// which are the largest.
template <typename T>
Key<T> key_of(T x) {
  using K = Key<T>;
  constexpr K kTop = static_cast<K>(K{1} << (8 * sizeof(T) - 1));
  const K bits = std::bit_cast<K>(x);
  if constexpr (std::is_unsigned_v<T>) {
    return bits;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<K>(bits ^ kTop);
  } else {
    const auto number = number_of(x);
    if (std::isnan(number)) return std::numeric_limits<K>::max();
    if (number == 0) return kTop;
    return static_cast<K>((bits & kTop) != 0 ? ~bits : bits | kTop);
  }
}

/// A key and the index of its element. Keys of up to 32 bits are packed with it into one word.
struct WideEntry {
  uint64_t key;
  uint32_t place;
  bool operator<(const WideEntry& other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
};
template <typename K>
using Entry = std::conditional_t<sizeof(K) == 8, WideEntry, uint64_t>;

template <typename K>
Entry<K> entry_of(K key, int64_t place) {
  if constexpr (sizeof(K) == 8)
    return {key, static_cast<uint32_t>(place)};
  else
    return uint64_t{key} << 32 | static_cast<uint64_t>(place);
}
template <typename K>
K key_in(const Entry<K>& entry) {
  if constexpr (sizeof(K) == 8)
    return entry.key;
  else
    return static_cast<K>(entry >> 32);
}
template <typename K>
int64_t place_in(const Entry<K>& entry) {
  if constexpr (sizeof(K) == 8)
    return entry.place;
  else
    return static_cast<int64_t>(entry & 0xffffffffu);
}

/// Radix sorts n entries by their keys, a byte at a time from the lowest, which is stable. Returns
/// the one of the two buffers that holds the result.
template <typename K>
Entry<K>* sort_by_digits(Entry<K>* entries, Entry<K>* other, int64_t n) {
  constexpr size_t kDigits = sizeof(K), kValues = 256;
  const auto digit = [](K key, size_t d) { return static_cast<size_t>(key >> (8 * d)) % kValues; };
  std::array<std::array<uint32_t, kValues>, kDigits> counts{};
  for (int64_t i = 0; i < n; ++i)
    for (size_t d = 0; d < kDigits; ++d) ++counts[d][digit(key_in<K>(entries[i]), d)];
  for (size_t d = 0; d < kDigits; ++d) {
    if (counts[d][digit(key_in<K>(entries[0]), d)] == static_cast<uint32_t>(n)) continue;
    uint32_t begin = 0;
    for (uint32_t& count : counts[d]) begin += std::exchange(count, begin);
    for (int64_t i = 0; i < n; ++i)
      other[counts[d][digit(key_in<K>(entries[i]), d)]++] = entries[i];
    std::swap(entries, other);
  }
  return entries;
}

template <typename T>
class SortKernel final : public Kernel {
 public:
  explicit SortKernel(const NodeView& node)
      : lines_(node),
        wanted_(node.attrs().get<int64_t>("count")),
        flips_(node.attrs().get<bool>("descending") ? std::numeric_limits<K>::max() : K{0}),
        keeps_few_(wanted_ <= kFewInOrder && wanted_ * 8 <= lines_.count),
        parts_(lines_.parts(kTogether)) {}

  // The sorted list of each line of a group; or the entries of a group and a buffer for one line.
  int64_t scratch_bytes() const override {
    return parts_ * part_entries() * static_cast<int64_t>(sizeof(Entry<K>));
  }

  void run(const KernelArgs& args) override {
    if (wanted_ == 0) return;
    lines_.each_group(kTogether, [&](int64_t part, int64_t outer, int64_t first, int64_t n) {
      const Group group{
          static_cast<const T*>(args.in[0]) + outer * lines_.count * lines_.inner + first,
          static_cast<T*>(args.out[0]) + outer * wanted_ * lines_.inner + first,
          static_cast<int64_t*>(args.out[1]) + outer * wanted_ * lines_.inner + first, n};
      auto* const room = reinterpret_cast<Entry<K>*>(args.scratch) + part * part_entries();
      if (keeps_few_)
        find_few(group, room);
      else
        sort_lines(group, room);
    });
  }

 private:
  using K = Key<T>;
  struct Group {
    const T* x;
    T* values;
    int64_t* indices;
    int64_t lines;
  };

  int64_t part_entries() const {
    const int64_t lines = lines_.together(kTogether);
    return keeps_few_ ? lines * wanted_ : (lines + 1) * lines_.count;
  }
  K ordered(T x) const { return static_cast<K>(key_of(x) ^ flips_); }

  void put(const Group& group, int64_t line, const Entry<K>* sorted) const {
    for (int64_t k = 0; k < wanted_; ++k) {
      const int64_t place = place_in<K>(sorted[k]);
      group.values[k * lines_.inner + line] = group.x[place * lines_.inner + line];
      group.indices[k * lines_.inner + line] = place;
    }
  }

  void sort_lines(const Group& group, Entry<K>* room) const {
    const int64_t count = lines_.count;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t line = 0; line < group.lines; ++line)
        room[line * count + i] = entry_of<K>(ordered(group.x[i * lines_.inner + line]), i);
    Entry<K>* const other = room + lines_.together(kTogether) * count;
    for (int64_t line = 0; line < group.lines; ++line) {
      Entry<K>* sorted = room + line * count;
      if (count < kLeastDigits)
        std::sort(sorted, sorted + count);
      else
        sorted = sort_by_digits<K>(sorted, other, count);
      put(group, line, sorted);
    }
  }

  /// Scans the lines of a group and keeps a sorted list of the best elements of each. An element
  /// goes behind its equals, so that ties keep their order.
  void find_few(const Group& group, Entry<K>* room) const {
    std::array<K, kTogether> worst;
    for (int64_t line = 0; line < group.lines; ++line) {
      Entry<K>* const best = room + line * wanted_;
      for (int64_t i = 0; i < wanted_; ++i)
        best[i] = entry_of<K>(ordered(group.x[i * lines_.inner + line]), i);
      std::sort(best, best + wanted_);
      worst[static_cast<size_t>(line)] = key_in<K>(best[wanted_ - 1]);
    }
    const int64_t inner = lines_.inner;
    for (int64_t i = wanted_; i < lines_.count; ++i)
      for (int64_t line = 0; line < group.lines; ++line) {
        const K key = ordered(group.x[i * inner + line]);
        if (key >= worst[static_cast<size_t>(line)]) continue;
        Entry<K>* const best = room + line * wanted_;
        int64_t at = wanted_ - 1;
        for (; at > 0 && key < key_in<K>(best[at - 1]); --at) best[at] = best[at - 1];
        best[at] = entry_of<K>(key, i);
        worst[static_cast<size_t>(line)] = key_in<K>(best[wanted_ - 1]);
      }
    for (int64_t line = 0; line < group.lines; ++line) put(group, line, room + line * wanted_);
  }

  Lines lines_;
  int64_t wanted_;
  K flips_;  // all ones in descending order
  bool keeps_few_;
  int64_t parts_;
};

}  // namespace

KernelEntry sort_entry() {
  KernelEntry entry = entry_by_dtype(Op::sort, "keys", []<typename T>(const NodeView& node, T) {
    return std::unique_ptr<Kernel>(std::make_unique<SortKernel<T>>(node));
  });
  entry.accepts = [before = entry.accepts](const NodeView& node) -> std::string {
    if (split_at(node.in[0].shape, node.attrs().get<int64_t>("axis")).count >> 32 != 0)
      return "lines of 2^32 elements or more";
    return before(node);
  };
  return entry;
}

}  // namespace brrr::cpu
