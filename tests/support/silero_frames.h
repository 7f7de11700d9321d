#pragma once
// Synthetic audio for tests of silero's voice detectors, sample by sample the same as that of
// tests/golden/make_onnx_goldens.py.

#include <cstdint>
#include <vector>

namespace brrr::test {

inline constexpr int64_t kFrames = 100;
using Floats = std::vector<float>;

/// Integers below 2^15, by a linear congruential generator.
inline std::vector<int64_t> noise(int64_t count, int64_t seed) {
  std::vector<int64_t> numbers;
  for (int64_t x = seed; count-- > 0; numbers.push_back(x >> 16))
    x = (x * 1103515245 + 12345) % (int64_t{1} << 31);
  return numbers;
}

/// A saw with noise that grows and fades.
inline Floats sound(int64_t samples, int64_t period) {
  const std::vector<int64_t> random = noise(samples, 1);
  Floats x;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t saw = i % period * 32768 / period - 16384;
    const int64_t whole = (saw + ((random[static_cast<size_t>(i)] - 16384) >> 2)) * (i / 512 % 20);
    x.push_back(static_cast<float>(static_cast<double>(whole) / (1 << 19)));
  }
  return x;
}

/// Frames with their context: [width] each.
inline std::vector<Floats> frames(int64_t rate) {
  const int64_t width = rate == 16000 ? 512 : 256, context = width / 8;
  Floats x(static_cast<size_t>(context));
  const Floats heard = sound(kFrames * width, rate / 160);
  x.insert(x.end(), heard.begin(), heard.end());
  std::vector<Floats> all;
  for (int64_t k = 0; k < kFrames; ++k)
    all.emplace_back(x.begin() + k * width, x.begin() + k * width + context + width);
  return all;
}

}  // namespace brrr::test
