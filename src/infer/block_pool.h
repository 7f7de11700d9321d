#pragma once
// BlockPool: which blocks of a KV cache pool belong to which sequence (PagedAttention: Kwon et al.
// 2023). Full blocks are found again by the tokens that they and all blocks in front of them hold,
// so that sequences with a common prefix share its blocks, at the same time or later: a block that
// nobody uses keeps its content until its memory is needed, the least recently used first.

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
  /// Names the content of a block: its tokens and those of all blocks in front of it. 0: no block.
  using Content = uint64_t;

  explicit BlockPool(int64_t blocks);

  /// Finds the block that holds `tokens` behind the content `before`, and adds a user to it.
  std::optional<std::pair<int32_t, Content>> share(Content before, const Tokens& tokens);
  /// Takes a block without content for the block `index` of a sequence, whose last block is `last`
  /// (-1: none). Neighbours in the sequence become neighbours in memory where possible, which
  /// attention reads faster. Returns nothing if all blocks are in use.
  std::optional<int32_t> take(int64_t index, int32_t last);
  /// Tells that the block now holds `tokens` behind `before`. Returns its content; the block stays
  /// private if another block has the same content already.
  Content publish(int32_t block, Content before, const Tokens& tokens);
  /// Adds a user to a block that has some.
  void add_user(int32_t block) { ++at(block).users; }
  /// Removes a user of the block.
  void release(int32_t block);

  int64_t blocks() const { return std::ssize(state_); }
  /// Blocks that take() can still give.
  int64_t available() const { return std::ssize(free_) + std::ssize(unused_); }

 private:
  struct Key {
    Content before;
    Tokens tokens;
    auto operator<=>(const Key&) const = default;
  };
  struct Block {
    int64_t users = 0;
    Content content = 0;                       // 0: not published
    std::map<Key, int32_t>::iterator entry{};  // in published_, if it has a content
    std::list<int32_t>::iterator unused{};     // in unused_, if it has a content and no users
  };
  Block& at(int32_t block) { return state_[static_cast<size_t>(block)]; }
  bool is_free_run(int32_t first) const;

  std::vector<Block> state_;
  std::set<int32_t> free_;     // without content and users
  std::list<int32_t> unused_;  // with content and without users, the least recently used first
  std::map<Key, int32_t> published_;
  Content next_ = 1;
};

}  // namespace brrr::infer
