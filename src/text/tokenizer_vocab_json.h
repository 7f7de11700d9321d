#pragma once
// The tokens of a vocabulary file by name, before their ids are checked. vocab.json is one flat
// object of some 50,000 entries that every start-up waits for, so its usual form is scanned
// directly; whatever is unusual or broken goes through the general JSON reader, which also words
// the errors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

/// The JSON string at `p` (after its opening quote) into `out`; returns the end after the closing
/// quote, or nullptr for anything unusual: control characters, broken UTF-8, lone surrogates, rare
/// escapes.
const char* scan_json_string(const char* p, const char* end, std::string& out);

class VocabTokens {
 public:
  VocabTokens() = default;
  /// Throws UserError for anything but an object of whole numbers with distinct names.
  static VocabTokens parse(std::string_view text, const std::string& file);

  /// The same for the usual form alone; nothing for any other.
  static std::optional<VocabTokens> scan(std::string_view text);

  /// `added`: a token of tokenizer.json's added_tokens, whose name is its text. Throws UserError
  /// when `id` is no whole number or the name is taken.
  void add_json(std::string_view name, const Json& id, bool added, const std::string& file);

  size_t size() const { return entries_.size(); }
  std::string_view name(size_t entry) const {
    return std::string_view(names_).substr(entries_[entry].begin, entries_[entry].length);
  }
  int64_t id(size_t entry) const { return entries_[entry].id; }
  bool is_added(size_t entry) const { return entries_[entry].added; }
  std::optional<size_t> find(std::string_view name) const;

 private:
  struct Entry {
    uint64_t hash;
    size_t begin;
    uint32_t length;
    bool added;
    int64_t id;
  };
  /// False when the name is taken.
  bool add(std::string_view name, int64_t id, bool added);
  bool scan_all(std::string_view text);
  void grow();

  std::string names_;  // end to end
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // open addressing: entry + 1, or 0
};

}  // namespace brrr::io
