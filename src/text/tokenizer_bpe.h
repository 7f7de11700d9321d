#pragma once
// Byte-level BPE: the data that defines a tokenizer, its readers (in memory, so that tests and
// fuzzers need no files), and its encoder.
//
// A text is split into pieces (tokenizer_split.h); the bytes of a piece become tokens; while some
// adjacent pair has a merge, the merge of lowest rank is applied, leftmost first. Special tokens
// are only ids here: no text produces them.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_cache.h"

namespace brrr::io {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeMerge {
  uint32_t left, right, result;
  bool operator==(const BpeMerge&) const = default;
};

/// Everything that defines a byte-level BPE tokenizer.
struct BpeModel {
  std::string bytes;              // the bytes of all tokens, end to end
  std::vector<uint32_t> offsets;  // [V + 1] into `bytes`
  std::vector<BpeMerge> merges;   // by rank
  std::array<uint32_t, 256> byte_ids{};
  std::vector<uint32_t>
      verbatim;  // ids whose name in the files is their text, not byte letters; ascending
  int32_t end_of_text = -1;

  uint32_t size() const { return static_cast<uint32_t>(offsets.size()) - 1; }
  std::string_view token(uint32_t id) const {
    return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  bool operator==(const BpeModel&) const = default;
};

/// The letter (a code point) that stands for a byte in vocabulary files: itself where it is
/// printable Latin-1, else U+0100 and up in byte order. GPT-2's table.
const std::array<uint16_t, 256>& byte_letters();
/// Bytes in the order of their letters, which is the order of GPT-2's first 256 ids.
const std::array<uint8_t, 256>& bytes_by_letter();

/// `vocab` and `merges` are whole files; the names go into errors. Throws UserError.
BpeModel parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_name,
                                std::string_view merges, const std::string& merges_name);
/// Hugging Face's tokenizer.json, when it means the same thing as GPT-2's; UserError says what does
/// not.
BpeModel parse_tokenizer_json(std::string_view text, const std::string& name);
/// Writes vocab.json and merges.txt.
void save_bpe(const BpeModel& model, const std::filesystem::path& folder);

/// See train_bpe in tokenizer.h.
BpeModel train_bpe_model(std::string_view text, int32_t vocab_size);

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeModel model);
  std::string kind() const override { return "bpe"; }
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.size()); }
  int32_t end_of_text() const override { return model_.end_of_text; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  std::string decode(std::span<const int32_t> ids) const override;
  void save(const std::filesystem::path& folder) const override { save_bpe(model_, folder); }

  const BpeModel& model() const { return model_; }

 private:
  class Output;
  struct MergeSlot {
    uint64_t pair;  // left << 32 | right
    uint32_t rank, result;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  void build_merge_table();
  const MergeSlot& find_merge(uint32_t left, uint32_t right) const;
  const MergeSlot& find_byte_merge(uint8_t left, uint8_t right) const;
  /// Appends the ids of one piece: at most `length` of them.
  void encode_piece(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const;
  void merge_by_scan(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const;
  void merge_by_heap(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const;
  void encode_uncached(const uint8_t* p, size_t length, const ShortWord& word, WordCache& cache,
                       std::vector<int32_t>& piece_ids) const;
  std::unique_ptr<WordCache> take_cache() const;
  void return_cache(std::unique_ptr<WordCache> cache) const;

  BpeModel model_;
  std::vector<MergeSlot>
      slots_;  // open addressing, at most half full; the last one is the empty answer
  int slot_shift_ = 0;
  std::vector<uint32_t> byte_pairs_;  // [256 * 256] index into slots_
  mutable std::mutex caches_mutex_;
  mutable std::vector<std::unique_ptr<WordCache>>
      caches_;  // idle ones, at most one per thread that encoded
};

}  // namespace brrr::io
