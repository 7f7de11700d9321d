#pragma once
// Strings that end a text. What may be the beginning of one is held back until it is known.

#include <string>
#include <string_view>
#include <vector>

namespace brrr::infer {

class StopStrings {
 public:
  /// Empty strings end nothing.
  explicit StopStrings(std::vector<std::string> strings);
  /// Takes text as it comes; returns what certainly stands before any of the strings. Nothing comes
  /// once one was found.
  std::string add(std::string_view text);
  /// What was held back and turned out to be text.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace brrr::infer
