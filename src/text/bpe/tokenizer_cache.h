#pragma once
// A bounded memory of encoded words. Most words of a text occur again and again, and looking one up
// costs one cache line. It only saves time: a word that is not in it is encoded anew, with the same
// ids. One thread at a time; models keep a pool of them (WordCaches).

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace brrr::io {

/// A word of up to 15 bytes in 16: the bytes, zeros, and the length in the last byte.
struct ShortWord {
  static constexpr size_t kLongest = 15;
  uint64_t low, high;

  /// `readable`: how many bytes may be read from `p` on; a whole 16-byte load is several times
  /// faster.
  static ShortWord load(const uint8_t* p, size_t length, size_t readable) {
    uint64_t words[2] = {0, 0};
    if (readable >= 16) {
      std::memcpy(words, p, 16);
      const uint64_t keep = ~uint64_t{0} >> ((64 - 8 * length) & 63);
      words[0] = length >= 8 ? words[0] : words[0] & keep;
      words[1] = length > 8 ? words[1] & keep : 0;
    } else {
      std::memcpy(words, p, length);
    }
    return {words[0], words[1] | static_cast<uint64_t>(length) << 56};
  }
  bool operator==(const ShortWord&) const = default;
};

__extension__ using Wide = unsigned __int128;

/// Both halves of a product folded: every input bit reaches every output bit.
inline uint64_t fold_multiply(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_bytes(const uint8_t* p, size_t length) {
  uint64_t hash = length * 0x9e3779b97f4a7c15u, word = 0;
  for (; length >= 8; p += 8, length -= 8) {
    std::memcpy(&word, p, 8);
    hash = fold_multiply(hash ^ word, 0xd6e8feb86659fd93u);
  }
  word = 0;
  std::memcpy(&word, p, length);
  return fold_multiply(hash ^ word, 0xa0761d6478bd642fu);
}

class WordCache {
 public:
  static constexpr size_t kLongestWord = 256;   // bytes; longer words are not kept
  static constexpr int32_t kIdLimit = 1 << 30;  // two bits of the first id hold the count

  /// Up to four ids beside their word: half a cache line, found by one comparison.
  struct Short {
    ShortWord word;
    int32_t ids[4];  // the two top bits of the first: count - 1
    int count() const { return static_cast<int>(static_cast<uint32_t>(ids[0]) >> 30) + 1; }
  };

  WordCache() : memory_(std::calloc(kShortBuckets + 1, 2 * sizeof(Short)), &std::free) {
    if (!memory_) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    short_ = reinterpret_cast<Short*>((address + 63) & ~uintptr_t{63});
  }

  const Short* find(const ShortWord& word) const { return find_in(bucket_for(word), word); }
  /// The two steps of it: what is looked up begins to load, and the look-up.
  const Short* bucket_for(const ShortWord& word) const {
    const Short* bucket = short_ + 2 * bucket_of(word);
    __builtin_prefetch(bucket);
    return bucket;
  }
  static const Short* find_in(const Short* bucket, const ShortWord& word) {
    if (bucket[0].word == word) return bucket;
    if (bucket[1].word == word) return bucket + 1;
    return nullptr;
  }

  void insert(const ShortWord& word, std::span<const int32_t> ids) {
    if (ids.empty() || ids.size() > 4) return;
    Short* bucket = short_ + 2 * bucket_of(word);
    bucket[1] = bucket[0];
    bucket[0] = Short{word, {}};
    std::memcpy(bucket[0].ids, ids.data(), ids.size_bytes());
    bucket[0].ids[0] |= static_cast<int32_t>(static_cast<uint32_t>(ids.size() - 1) << 30);
  }

  /// The ids of a word of any length up to kLongestWord; empty when unknown.
  std::span<const int32_t> find_long(const uint8_t* p, size_t length, uint64_t hash) const {
    if (long_.empty()) return {};
    for (size_t i = 0; i < kProbes; ++i) {
      const Long& entry = long_[(hash + i) % kLongSlots];
      if (entry.length == 0) return {};
      if (entry.hash == hash && entry.length == length &&
          std::memcmp(bytes_.data() + entry.bytes_at, p, length) == 0)
        return {ids_.data() + entry.ids_at, entry.count};
    }
    return {};
  }

  void insert_long(const uint8_t* p, size_t length, uint64_t hash, std::span<const int32_t> ids) {
    if (long_used_ >= kLongSlots / 2 || bytes_.size() + length > kLongBytes) {
      long_.clear();
      bytes_.clear();
      ids_.clear();
      long_used_ = 0;
    }
    if (long_.empty()) long_.resize(kLongSlots);
    for (size_t i = 0; i < kProbes; ++i) {
      Long& entry = long_[(hash + i) % kLongSlots];
      if (entry.length != 0) continue;
      entry = {hash, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(ids_.size()),
               static_cast<uint32_t>(length), static_cast<uint32_t>(ids.size())};
      bytes_.insert(bytes_.end(), p, p + length);
      ids_.insert(ids_.end(), ids.begin(), ids.end());
      ++long_used_;
      return;
    }
  }

  /// Lets the cache take now what it comes to take while texts are encoded.
  void make_resident() {
    constexpr size_t kPage = 4096, kBytes = kShortBuckets * 2 * sizeof(Short);
    auto* const bytes = reinterpret_cast<volatile char*>(short_);
    for (size_t at = 0; at < kBytes; at += kPage) bytes[at] = bytes[at];
    if (long_.empty()) long_.resize(kLongSlots);
  }

 private:
  static constexpr size_t kShortBuckets = 1 << 15;  // of two words: 2 MiB, touched as it fills
  static constexpr size_t kLongSlots = 1 << 14;     // 384 KiB
  static constexpr size_t kLongBytes = size_t{1} << 19;
  static constexpr size_t kProbes = 16;

  struct Long {
    uint64_t hash = 0;
    uint32_t bytes_at = 0, ids_at = 0, length = 0, count = 0;
  };

  static size_t bucket_of(const ShortWord& word) {
    return fold_multiply(word.low ^ 0x9e3779b97f4a7c15u, word.high ^ 0xd6e8feb86659fd93u) %
           kShortBuckets;
  }

  std::unique_ptr<void, void (*)(void*)> memory_;
  Short* short_;
  std::vector<Long> long_;
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> ids_;
  size_t long_used_ = 0;
};

/// The caches of a model. There are no more of them than processors, however many threads encode: a
/// cache is megabytes, and more would not be used at the same time. A thread that finds none idle
/// waits until another has encoded its text.
class WordCaches {
 public:
  /// A cache while one thread uses it.
  class Lease {
   public:
    explicit Lease(WordCaches& caches) : caches_(caches), cache_(caches.take()) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { caches_.give_back(std::move(cache_)); }
    WordCache* operator->() const { return cache_.get(); }

   private:
    WordCaches& caches_;
    std::unique_ptr<WordCache> cache_;
  };

  /// Makes the caches that `threads` threads will use and lets them take their memory now, so that
  /// how much they take can be measured.
  void prepare(int64_t threads) {
    const std::lock_guard lock(mutex_);
    for (; made_ < std::min(threads, most_); ++made_)
      idle_.push_back(std::make_unique<WordCache>());
    for (const auto& cache : idle_) cache->make_resident();
  }

 private:
  std::unique_ptr<WordCache> take() {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [&] { return !idle_.empty() || made_ < most_; });
    if (!idle_.empty()) {
      auto cache = std::move(idle_.back());
      idle_.pop_back();
      return cache;
    }
    auto cache = std::make_unique<WordCache>();
    ++made_;
    return cache;
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(std::move(cache));
    }
    returned_.notify_one();
  }

  const int64_t most_ = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<WordCache>> idle_;
  int64_t made_ = 0;
};

}  // namespace brrr::io
