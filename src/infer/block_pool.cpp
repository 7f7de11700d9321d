#include "infer/block_pool.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr::infer {
namespace {

/// Blocks that attention reads as one, if they are neighbours: 192 keys.
constexpr int32_t kRun = 12;

}  // namespace

BlockPool::BlockPool(int64_t blocks) : state_(static_cast<size_t>(blocks)) {
  for (int32_t b = 0; b < blocks; ++b) free_.insert(free_.end(), b);
}

std::optional<std::pair<int32_t, BlockPool::Content>> BlockPool::share(Content before,
                                                                       const Tokens& tokens) {
  const auto found = published_.find({before, tokens});
  if (found == published_.end()) return std::nullopt;
  Block& block = at(found->second);
  if (block.users++ == 0) unused_.erase(block.unused);
  return std::pair{found->second, block.content};
}

bool BlockPool::is_free_run(int32_t first) const {
  const auto begin = free_.find(first);
  if (begin == free_.end() || first + kRun > blocks()) return false;
  int32_t next = first;
  for (auto i = begin; i != free_.end() && next < first + kRun && *i == next; ++i) ++next;
  return next == first + kRun;
}

std::optional<int32_t> BlockPool::take(int64_t index, int32_t last) {
  const auto use = [&](int32_t block) {
    at(block).users = 1;
    return block;
  };
  if (!free_.empty()) {
    auto chosen = free_.begin();
    if (index % kRun != 0 && last >= 0) {
      if (const auto next = free_.find(last + 1); next != free_.end()) chosen = next;
    } else {
      for (int32_t first = 0; first + kRun <= blocks(); first += kRun)
        if (is_free_run(first)) {
          chosen = free_.find(first);
          break;
        }
    }
    const int32_t block = *chosen;
    free_.erase(chosen);
    return use(block);
  }
  if (unused_.empty()) return std::nullopt;
  const int32_t block = unused_.front();
  unused_.pop_front();
  published_.erase(at(block).entry);
  at(block).content = 0;
  return use(block);
}

BlockPool::Content BlockPool::publish(int32_t block, Content before, const Tokens& tokens) {
  BRRR_CHECK(at(block).users > 0 && at(block).content == 0, "block {} cannot be published", block);
  const auto [entry, is_new] = published_.try_emplace({before, tokens}, block);
  if (!is_new) return at(entry->second).content;
  at(block).entry = entry;
  return at(block).content = next_++;
}

void BlockPool::release(int32_t block) {
  Block& b = at(block);
  BRRR_CHECK(b.users > 0, "block {} has no users", block);
  if (--b.users > 0) return;
  if (b.content == 0)
    free_.insert(block);
  else
    b.unused = unused_.insert(unused_.end(), block);
}

}  // namespace brrr::infer
