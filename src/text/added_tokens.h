#pragma once
// Tokens that are found in the text itself before anything else is done with it: special tokens and
// what else a tokenizer.json lists in added_tokens. The leftmost match wins, of several there the
// longest, as in the library `tokenizers`.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/cut_rule.h"

namespace brrr::io {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool single_word = false;  // only where no letter touches it
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;       // ... on its right
  bool normalized = false;   // looked for in the normalized text
};

/// One set of tokens that are looked for together.
class AddedTokens {
 public:
  /// `spelling`: what is looked for, which differs from the content when that is normalized, too.
  void add(const AddedToken& token, const std::string& spelling);
  bool empty() const { return tokens_.empty(); }

  /// on_text(stretch) and on_id(id), in the order of the text; no stretch is empty.
  template <typename OnText, typename OnId>
  void split(std::string_view text, OnText&& on_text, OnId&& on_id) const {
    if (tokens_.empty()) {
      if (!text.empty()) on_text(text);
      return;
    }
    size_t done = 0;
    for (size_t from = 0; from < text.size();) {
      const Found found = find(text, from, done);
      if (found.token == nullptr) break;
      if (done < found.begin) on_text(text.substr(done, found.begin - done));
      if (found.begin < found.end) on_id(found.token->id);
      done = found.end;
      from = found.next;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

  /// Might a cut between two characters part a token, or change what is around it?
  bool touches(size_t before, size_t after) const {
    return ends_[before] || pairs_[before][after] || words_begin_[after];
  }
  /// Removes those pairs.
  void restrict_cuts(CutRule& rule) const;

 private:
  struct Found {
    const AddedToken* token = nullptr;
    size_t begin = 0, end = 0;  // with the white space that it takes
    size_t next = 0;            // where the search goes on
  };
  Found find(std::string_view text, size_t from, size_t done) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> spellings_;
  // A trie: (node << 8 | byte) to a node; token_of_[node] is a token and one, or 0.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<uint32_t> token_of_ = {0};
  bool starts_[256] = {};
  // As a cut sees them: characters side by side in a token, last ones, and the first ones of tokens
  // that must be single words.
  std::array<Symbols, kSymbols> pairs_{};
  Symbols ends_, words_begin_;
};

}  // namespace brrr::io
