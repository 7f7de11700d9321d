#pragma once
// The post-processor of tokenizer.json: which tokens stand before, between and behind texts, and
// the type ids. Read from JSON; whatever is not supported is refused by name.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

/// The order in which texts and tokens stand in an input.
struct InputTemplate {
  enum class Kind { first, second, token };
  struct Item {
    Kind kind;
    int32_t id = 0;  // of a token
    int32_t type = 0;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;

  bool empty() const { return items.empty(); }
  /// How many tokens it adds.
  size_t added() const;
  /// The tokens before the first text, or those behind the last one.
  std::vector<int32_t> before() const;
  std::vector<int32_t> behind() const;
};

struct PostProcessor {
  InputTemplate single, pair;  // `pair` is empty where the file has no template for pairs

  /// Tokens around each text; the texts of a pair have the types 0 and 1.
  static PostProcessor around(const std::vector<int32_t>& prefix,
                              const std::vector<int32_t>& suffix);
  /// [CLS] A [SEP] and [CLS] A [SEP] B [SEP], as BERT has it.
  static PostProcessor bert(int32_t cls, int32_t sep);
  /// <s> A </s> and <s> A </s></s> B </s>, as RoBERTa has it; all types are 0.
  static PostProcessor roberta(int32_t cls, int32_t sep);
  /// `vocab_size` bounds the ids.
  static PostProcessor read(const Json& json, const std::string& where, size_t vocab_size);
};

}  // namespace brrr::io
