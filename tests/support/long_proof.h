#pragma once
// Proofs that take minutes run whole with `./brrr test --long`; every other run takes a sample of
// them that is the same each time. Tests whose name begins with "Long" run only with --long.

#include <cstddef>
#include <set>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/rng.h"

namespace brrr::test {

/// Whether `./brrr test --long` (BRRR_TEST_LONG) asked for everything.
inline bool is_long() { return env::get("BRRR_TEST_LONG").has_value(); }

/// Whether a sanitizer watches, under which everything takes several times as long.
constexpr bool is_sanitized() {
#if defined(BRRR_SANITIZED)
  return true;
#else
  return false;
#endif
}

/// How many of something to run: `all` of a long proof, else `sample`.
inline int rounds(int all, int sample) { return is_long() ? all : sample; }

/// Every case of a long proof; else `count` (at least 2) of them in their order, drawn by a seed
/// that `name` gives. The first and the last are always among them.
template <typename T>
std::vector<T> sampled(const std::vector<T>& cases, size_t count, std::string_view name) {
  if (is_long() || cases.size() <= count) return cases;
  uint32_t seed = 2166136261u;  // FNV-1a
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 16777619u;
  RngStream random({seed, 0}, 0);
  std::set<size_t> drawn{0, cases.size() - 1};
  while (drawn.size() < count) drawn.insert(random.next_below(cases.size()));
  std::vector<T> chosen;
  for (const size_t i : drawn) chosen.push_back(cases[i]);
  return chosen;
}

/// Returns all cases, or under a sanitizer a sample of `count` cases drawn by sampled().
template <typename T>
std::vector<T> sampled_if_sanitized(const std::vector<T>& cases, size_t count,
                                    std::string_view name) {
  return is_sanitized() ? sampled(cases, count, name) : cases;
}

}  // namespace brrr::test
