#pragma once
// A graph's text, cut and damaged at every place.

#include <gtest/gtest.h>

#include <string>

#include "ir/text.h"
#include "ops/ops.h"

namespace brrr::test {

/// What is left is an error that names its line, or a graph; never a crash.
inline void expect_survives_damage(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    std::string cut = text.substr(0, i), changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 7));
    for (const std::string& damaged : {cut, changed}) {
      try {
        const Graph g = parse(damaged, find_op);
        verify(g);
        EXPECT_EQ(print(parse(print(g), find_op)), print(g));
      } catch (const UserError& e) {
        EXPECT_EQ(std::string(e.what()).rfind("graph text, line ", 0), 0u) << e.what();
      }
    }
  }
}

}  // namespace brrr::test
