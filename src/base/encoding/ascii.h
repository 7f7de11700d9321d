#pragma once
// Letters of ASCII whatever the locale, for names, units and headers that are compared without
// regard to case. Other languages' letters are CharTraits' (text/unicode).

#include <string>

namespace brrr {

inline char ascii_lowercase(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

inline std::string ascii_lowercase(std::string text) {
  for (char& c : text) c = ascii_lowercase(c);
  return text;
}

}  // namespace brrr
