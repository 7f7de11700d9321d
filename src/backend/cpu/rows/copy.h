#pragma once
// Strided copies of bytes, split among threads. What slice, pad, concat, transpose and the others
// come down to.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/threads/parallel.h"

namespace brrr::cpu {

/// Below two grains a copy runs on the calling thread.
inline constexpr int64_t kByteGrain = 128 << 10;

/// A run of bytes; short runs of common sizes without a call.
inline void copy_run(std::byte* to, const std::byte* from, int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    case 16:
      std::memcpy(to, from, 16);
      return;
    default:
      std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

/// `count` runs of `bytes`; run i goes from + i * from_stride -> to + i * to_stride.
inline void copy_runs(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
                      int64_t bytes, int64_t count) {
  if (bytes == 0) return;
  if (to_stride == bytes && from_stride == bytes) {  // one run
    bytes *= count;
    count = 1;
  }
  if (count == 1) {
    parallel_for((bytes + 63) / 64, kByteGrain / 64, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin * 64, from + begin * 64,
                  static_cast<size_t>(std::min(end * 64, bytes) - begin * 64));
    });
    return;
  }
  parallel_for(count, std::max<int64_t>(1, kByteGrain / bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_run(to + i * to_stride, from + i * from_stride, bytes);
  });
}

/// Zeroes instead of a copy.
inline void zero_runs(std::byte* to, int64_t to_stride, int64_t bytes, int64_t count) {
  if (bytes == 0) return;
  parallel_for(count, std::max<int64_t>(1, kByteGrain / bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memset(to + i * to_stride, 0, static_cast<size_t>(bytes));
  });
}

/// to[0, count) = one value of `bytes` bytes (1, 2, 4 or 8).
inline void fill_values(std::byte* to, const std::byte* value, int64_t bytes, int64_t count) {
  auto fill = [&](auto sample) {
    using T = decltype(sample);
    T v;
    std::memcpy(&v, value, sizeof(T));
    constexpr int64_t kBlock = 64 / sizeof(T);  // values that are copied at a time
    T block[kBlock];
    std::fill_n(block, kBlock, v);
    int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock)
      std::memcpy(to + i * int64_t{sizeof(T)}, block, sizeof block);
    std::memcpy(to + i * int64_t{sizeof(T)}, block, static_cast<size_t>(count - i) * sizeof(T));
  };
  switch (bytes) {
    case 1:
      return fill(uint8_t{});
    case 2:
      return fill(uint16_t{});
    case 4:
      return fill(uint32_t{});
    default:
      return fill(uint64_t{});
  }
}

}  // namespace brrr::cpu
