// BlockPool: shared prefixes, eviction order and consecutive blocks.

#include "infer/block_pool.h"

#include <gtest/gtest.h>

namespace brrr::infer {
namespace {

BlockPool::Tokens tokens_of(int32_t first) {
  BlockPool::Tokens tokens;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

TEST(BlockPool, AllocatesConsecutiveBlocks) {
  BlockPool pool(48);
  std::vector<int32_t> a, b;
  for (int64_t i = 0; i < 24; ++i) {
    a.push_back(*pool.take(i, a.empty() ? -1 : a.back()));
    b.push_back(*pool.take(i, b.empty() ? -1 : b.back()));
  }
  for (const auto& blocks : {a, b})
    for (size_t i = 0; i < blocks.size(); ++i)
      if (i % 12 != 0) {
        EXPECT_EQ(blocks[i], blocks[i - 1] + 1) << i;
      }
  EXPECT_EQ(pool.available(), 0);
  EXPECT_FALSE(pool.take(0, -1));
}

TEST(BlockPool, FindsAPrefixWhileItIsReferencedAndAfterwards) {
  BlockPool pool(4);
  const int32_t first = *pool.take(0, -1);
  const auto content = pool.cache(first, 0, tokens_of(1));
  const int32_t second = *pool.take(1, first);
  const auto behind = pool.cache(second, content, tokens_of(50));
  // The same tokens behind another prefix are another prefix.
  EXPECT_FALSE(pool.find(0, tokens_of(50)));
  EXPECT_FALSE(pool.find(behind, tokens_of(50)));
  const auto shared = pool.find(0, tokens_of(1));
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->first, first);
  EXPECT_EQ(pool.find(shared->second, tokens_of(50))->first, second);
  for (int i = 0; i < 2; ++i)
    for (const int32_t block : {second, first}) pool.release(block);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.find(0, tokens_of(1))->first, first);  // not evicted in between
}

TEST(BlockPool, TextsOfTwoAdaptersShareNoBlock) {
  BlockPool pool(4);
  for (const int32_t adapter : {0, 1, 2}) {
    EXPECT_FALSE(pool.find(BlockPool::root(adapter), tokens_of(1)));
    pool.cache(*pool.take(0, -1), BlockPool::root(adapter), tokens_of(1));
    EXPECT_TRUE(pool.find(BlockPool::root(adapter), tokens_of(1)));
  }
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedBlock) {
  BlockPool pool(3);
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < 3; ++i) {
    blocks.push_back(*pool.take(0, -1));
    pool.cache(blocks.back(), 0, tokens_of(100 * i));
  }
  for (const int32_t i : {1, 2, 0}) pool.release(blocks[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.take(0, -1), blocks[1]);
  EXPECT_FALSE(pool.find(0, tokens_of(100)));
  ASSERT_TRUE(pool.find(0, tokens_of(200)));  // referenced again: not evictable
  EXPECT_EQ(pool.take(0, -1), blocks[0]);
  EXPECT_FALSE(pool.take(0, -1));
}

TEST(BlockPool, DoesNotCacheASecondBlockOfOnePrefix) {
  BlockPool pool(2);
  const int32_t a = *pool.take(0, -1), b = *pool.take(0, -1);
  const auto content = pool.cache(a, 0, tokens_of(7));
  EXPECT_EQ(pool.cache(b, 0, tokens_of(7)), content);
  pool.release(b);
  EXPECT_EQ(pool.take(0, -1), b);  // free, because it is not cached
}

}  // namespace
}  // namespace brrr::infer
