#pragma once
// Encoding word by word with a memory of the words before (bpe/tokenizer_cache.h): what BPE and
// WordPiece share. Any number of threads may encode; each takes a cache of its own.

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/encoding/utf8.h"
#include "text/bpe/tokenizer_cache.h"

namespace brrr::io {

/// One call of encode. `encode_word(p, length, ids)` appends the ids of a word that the cache does
/// not know; it is a function of the word's bytes alone. Call finish() at the end.
class WordSession {
 public:
  WordSession(WordCaches& caches, std::vector<int32_t>& ids) : cache_(caches), ids_(ids) {}

  /// Appends the ids of one word, whose buffer may be read up to `readable_end`.
  template <typename EncodeWord>
  void add_word(const uint8_t* p, size_t length, const uint8_t* readable_end,
                const EncodeWord& encode_word) {
    if (length > ShortWord::kLongest) {
      encode_uncached(p, length, ShortWord{}, encode_word);
      return;
    }
    const ShortWord word = ShortWord::load(p, length, static_cast<size_t>(readable_end - p));
    if (const WordCache::Short* const found = cache_->find(word))
      put(*found);
    else
      encode_uncached(p, length, word, encode_word);
  }

  template <typename EncodeWord>
  void add_words(std::span<const std::string_view> words, const char* readable_end,
                 const EncodeWord& encode_word) {
    // Some words at a time, so that the cache loads all of them at once.
    constexpr size_t kAtOnce = 32;
    ShortWord loaded[kAtOnce];
    const WordCache::Short* bucket[kAtOnce];
    while (!words.empty()) {
      const auto now = words.first(std::min(kAtOnce, words.size()));
      for (size_t i = 0; i < now.size(); ++i) {
        if (now[i].size() > ShortWord::kLongest) continue;
        loaded[i] = ShortWord::load(as_bytes(now[i].data()), now[i].size(),
                                    static_cast<size_t>(readable_end - now[i].data()));
        bucket[i] = cache_->bucket_for(loaded[i]);
      }
      for (size_t i = 0; i < now.size(); ++i) {
        const size_t length = now[i].size();
        const WordCache::Short* const found =
            length <= ShortWord::kLongest ? WordCache::find_in(bucket[i], loaded[i]) : nullptr;
        if (found != nullptr) [[likely]]
          put(*found);
        else
          encode_uncached(as_bytes(now[i].data()), length, loaded[i], encode_word);
      }
      words = words.subspan(now.size());
    }
  }

  void finish() { flush(); }

 private:
  /// A word that the cache of short ones does not know.
  template <typename EncodeWord>
  void encode_uncached(const uint8_t* p, size_t length, const ShortWord& word,
                       const EncodeWord& encode_word) {
    word_ids_.clear();
    if (length > WordCache::kLongestWord) {
      encode_word(p, length, word_ids_);
      put(word_ids_);
      return;
    }
    const uint64_t hash = hash_bytes(p, length);
    if (const auto known = cache_->find_long(p, length, hash); !known.empty()) {
      put(known);
      return;
    }
    encode_word(p, length, word_ids_);
    if (length <= ShortWord::kLongest && word_ids_.size() <= 4)
      cache_->insert(word, word_ids_);
    else
      cache_->insert_long(p, length, hash, word_ids_);
    put(word_ids_);
  }

  // Ids are gathered: four are stored at once, and the vector behind grows in large steps.
  void put(const WordCache::Short& word) {
    if (count_ >= kGathered) flush();
    std::memcpy(gathered_ + count_, word.ids, sizeof(word.ids));
    gathered_[count_] &= WordCache::kIdLimit - 1;
    count_ += static_cast<size_t>(word.count());
  }
  void put(std::span<const int32_t> ids) {
    if (count_ + ids.size() > kGathered) flush();
    if (ids.size() > kGathered) {
      ids_.insert(ids_.end(), ids.begin(), ids.end());
    } else {
      std::copy(ids.begin(), ids.end(), gathered_ + count_);
      count_ += ids.size();
    }
  }
  void flush() {
    ids_.insert(ids_.end(), gathered_, gathered_ + count_);
    count_ = 0;
  }

  WordCaches::Lease cache_;
  std::vector<int32_t>& ids_;
  std::vector<int32_t> word_ids_;  // room for one word
  static constexpr size_t kGathered = 2048;
  size_t count_ = 0;
  int32_t gathered_[kGathered + 4];
};

}  // namespace brrr::io
