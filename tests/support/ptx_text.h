#pragma once
// The words of a PTX text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::test::ptx {

struct Token {
  std::string text;
  uint32_t line = 0;
};
/// Names with their dots and double colons, numbers, and every other character for itself. Error: a
/// string that does not end.
std::vector<Token> tokens_of(std::string_view text);

/// Bytes of ".u32" and the like; 0: no such type.
uint32_t bytes_of_type(std::string_view type);

}  // namespace brrr::test::ptx
