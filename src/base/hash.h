#pragma once
// A hash of several things in order, for tables in memory: the same in every run, not for files.

#include <concepts>
#include <cstdint>
#include <string_view>

namespace brrr {

class Hash {
 public:
  Hash& add(std::integral auto word) {
    // The finalizer of SplitMix64 (Steele, Lea, Flood 2014) over what came before and the word.
    uint64_t x = (value_ ^ static_cast<uint64_t>(word)) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    value_ = x ^ (x >> 31);
    return *this;
  }
  Hash& add(std::string_view text) {
    uint64_t sum = 14695981039346656037u;  // FNV-1a
    for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211u;
    return add(sum).add(text.size());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace brrr
