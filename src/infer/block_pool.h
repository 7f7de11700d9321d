#pragma once
// BlockPool allocates the blocks of a KV cache to sequences and is their prefix cache
// (PagedAttention: Kwon et al. 2023). Blocks are counted by references, so sequences with a common
// prefix share its full blocks. A block without references stays in the prefix cache until its
// memory is needed; the least recently used one is evicted first.

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "models/model.h"

namespace brrr::infer {

class BlockPool {
 public:
  using Tokens = std::array<int32_t, models::kBlockRows>;
  /// Identifies a prefix: the tokens of a full block and of all blocks in front of it. 0: none.
  using Prefix = uint64_t;

  explicit BlockPool(int64_t blocks);

  /// The empty prefix of sequences of an adapter, by its number. Keys and values of one text differ
  /// by adapter, so that sequences of two adapters share no block.
  static constexpr Prefix root(int32_t adapter) {
    constexpr Prefix kAdapters = Prefix{1} << 63;  // prefixes of blocks are counted from 1
    return adapter == 0 ? 0 : kAdapters | static_cast<uint32_t>(adapter);
  }

  /// Looks up the cached block of `tokens` behind the prefix `before` and adds a reference to it.
  /// Returns the block and the prefix that ends with it.
  std::optional<std::pair<int32_t, Prefix>> find(Prefix before, const Tokens& tokens);
  /// Allocates block `index` of a sequence, whose previous block is `last` (-1: none), with one
  /// reference. Consecutive blocks of a sequence are consecutive in memory if possible, because
  /// attention reads them without a copy then. Returns nothing if every block has references.
  std::optional<int32_t> take(int64_t index, int32_t last);
  /// Adds a full block, which holds `tokens` behind `before`, to the prefix cache. Returns the
  /// prefix that ends with it. If the cache has a block for it already, this one stays out of it.
  Prefix cache(int32_t block, Prefix before, const Tokens& tokens);
  /// Adds a reference to a block that has one.
  void retain(int32_t block) { ++at(block).references; }
  /// Removes a reference.
  void release(int32_t block);

  int64_t blocks() const { return std::ssize(state_); }
  /// Number of blocks that take() can allocate: free ones, and cached ones without references.
  int64_t available() const { return std::ssize(free_) + std::ssize(evictable_); }

 private:
  struct Key {
    Prefix before;
    Tokens tokens;
    auto operator<=>(const Key&) const = default;
  };
  struct Block {
    int64_t references = 0;
    Prefix prefix = 0;                         // 0: not cached
    std::map<Key, int32_t>::iterator entry{};  // in cached_, if it is cached
    std::list<int32_t>::iterator evictable{};  // in evictable_, if it is cached without references
  };
  Block& at(int32_t block) { return state_[static_cast<size_t>(block)]; }
  bool is_free_run(int32_t first) const;

  std::vector<Block> state_;
  std::set<int32_t> free_;        // neither cached nor referenced
  std::list<int32_t> evictable_;  // cached without references, the least recently used first
  std::map<Key, int32_t> cached_;
  Prefix next_ = 1;
};

}  // namespace brrr::infer
