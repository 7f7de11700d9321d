#pragma once
// From the names and merges of vocabulary files to a BpeModel, checked: ids, bytes, and that every
// merge is between tokens and makes one.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer_vocab_json.h"

namespace brrr::io {

/// The entry of each id. Throws UserError unless ids are 0 .. V-1, each once.
std::vector<size_t> entries_by_id(const VocabTokens& tokens, const std::string& file);

/// A model without merges whose tokens are spelled in byte letters. Throws UserError unless all 256
/// bytes are there.
BpeModel byte_level_model(const VocabTokens& tokens, const std::string& file);
/// A model without merges whose tokens are text.
BpeModel character_model(const VocabTokens& tokens, const std::string& file);

/// "left right" with exactly one space.
std::optional<std::pair<std::string_view, std::string_view>> split_pair(std::string_view line);
inline constexpr const char* kPairExpected = "expected two tokens with one space between them";

class MergeReader {
 public:
  /// `unit` counts merges in errors: "line" or "merge".
  MergeReader(const VocabTokens& tokens, const std::string& vocab_name, const std::string& file,
              const char* unit, BpeModel& model);

  void reserve(size_t merges) { number_of_.reserve(merges); }
  void add(std::string_view left, std::string_view right, size_t number);
  /// Where the ids are GPT-2's way (the bytes in the order of their letters, then what each merge
  /// makes), they show the order of the merges. Other vocabularies number as they like.
  void check_order(size_t number);
  /// A merges file cut short would silently encode differently: tokens that no merge makes are
  /// special tokens, and of those there are few.
  void check_complete() const;

 private:
  uint32_t id(std::string_view token, std::string_view left, std::string_view right,
              size_t number) const;

  const VocabTokens& tokens_;
  const std::string& vocab_name_;
  const std::string& file_;
  const char* unit_;
  BpeModel& model_;
  std::string joined_;
  std::unordered_map<uint64_t, size_t> number_of_;  // a pair -> its line
  std::vector<bool> made_;
  bool ids_follow_merges_;
  uint32_t next_ = 256;
};

}  // namespace brrr::io
