#include "infer/block_pool.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr::infer {
namespace {

/// Blocks of 192 keys, which attention reads without a copy if they are consecutive.
constexpr int32_t kRun = 12;

}  // namespace

BlockPool::BlockPool(int64_t blocks) : state_(static_cast<size_t>(blocks)) {
  for (int32_t b = 0; b < blocks; ++b) free_.insert(free_.end(), b);
}

std::optional<std::pair<int32_t, BlockPool::Prefix>> BlockPool::find(Prefix before,
                                                                     const Tokens& tokens) {
  const auto found = cached_.find({before, tokens});
  if (found == cached_.end()) return std::nullopt;
  Block& block = at(found->second);
  if (block.references++ == 0) evictable_.erase(block.evictable);
  return std::pair{found->second, block.prefix};
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
    at(block).references = 1;
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
  if (evictable_.empty()) return std::nullopt;
  const int32_t block = evictable_.front();
  evictable_.pop_front();
  cached_.erase(at(block).entry);
  at(block).prefix = 0;
  return use(block);
}

BlockPool::Prefix BlockPool::cache(int32_t block, Prefix before, const Tokens& tokens) {
  BRRR_CHECK(at(block).references > 0 && at(block).prefix == 0, "block {} cannot be cached", block);
  const auto [entry, is_new] = cached_.try_emplace({before, tokens}, block);
  if (!is_new) return at(entry->second).prefix;
  at(block).entry = entry;
  return at(block).prefix = next_++;
}

void BlockPool::release(int32_t block) {
  Block& b = at(block);
  BRRR_CHECK(b.references > 0, "block {} has no references", block);
  if (--b.references > 0) return;
  if (b.prefix == 0)
    free_.insert(block);
  else
    b.evictable = evictable_.insert(evictable_.end(), block);
}

}  // namespace brrr::infer
