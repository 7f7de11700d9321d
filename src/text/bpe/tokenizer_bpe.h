#pragma once
// BPE: the data that defines a model, its readers (in memory, so that tests and fuzzers need no
// files), and its encoder.
//
// A text is split into pieces (pre_tokenizer.h). A piece begins as symbols: its bytes (GPT-2's
// kind), or its characters (SentencePiece's kind), where what the vocabulary lacks becomes its
// bytes or the unknown token. While some adjacent pair has a merge, the merge of lowest rank is
// applied, leftmost first.

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/bpe/piece_table.h"
#include "text/cached_words.h"
#include "text/token_model.h"
#include "text/tokenizer.h"

namespace brrr::io {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeMerge {
  uint32_t left, right, result;
  bool operator==(const BpeMerge&) const = default;
};

/// Everything that defines a BPE model.
struct BpeModel {
  enum class Alphabet { bytes, characters };

  Alphabet alphabet = Alphabet::bytes;
  std::string bytes;                    // the bytes of all tokens, end to end
  std::vector<uint32_t> offsets = {0};  // [V + 1] into `bytes`
  std::vector<BpeMerge> merges;         // by rank
  std::vector<uint32_t> ranks;          // of merges, where some have the same one; ascending
  int32_t end_of_text = -1;
  bool ignore_merges = false;  // a piece that is a token needs no merges
  // Bytes
  std::array<uint32_t, 256> byte_ids{};
  std::vector<uint32_t>
      verbatim;  // ids whose name in the files is their text, not byte letters; ascending
  // Characters
  std::vector<std::pair<uint32_t, uint32_t>> character_ids;  // code point, id
  std::vector<uint32_t> fallback_ids;  // by byte, where unknown characters become bytes; else empty
  int32_t unknown = -1;                // the token for what is in neither; -1: it is left out
  bool fuse_unknown = false;           // one for a run of unknown characters
  // What the name of a character begins with inside a word, and ends with at the word's end.
  std::string continuing, ending;

  bool has_affixes() const { return !continuing.empty() || !ending.empty(); }

  uint32_t size() const { return static_cast<uint32_t>(offsets.size()) - 1; }
  std::string_view token(uint32_t id) const {
    return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  bool operator==(const BpeModel&) const = default;
};

/// `vocab` and `merges` are whole files; the names go into errors. Throws UserError.
BpeModel parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_name,
                                std::string_view merges, const std::string& merges_name);
/// Writes vocab.json and merges.txt of a model of bytes.
void save_bpe(const BpeModel& model, const std::filesystem::path& folder);

/// See train_bpe in tokenizer.h.
BpeModel train_bpe_model(std::string_view text, int32_t vocab_size);

/// GPT-2's tokenizer with this model of bytes: no text makes a special token.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeModel model);

class BpeEncoder final : public TokenModel {
 public:
  explicit BpeEncoder(BpeModel model);
  std::string kind() const override { return "bpe"; }
  void encode(std::span<const std::string_view> pieces, const char* readable_end,
              std::vector<int32_t>& ids) const override;
  bool may_cut(uint32_t before, uint32_t after) const override;
  void save(const std::filesystem::path& folder) const override { save_bpe(model_, folder); }
  void prepare(int64_t threads) const override { caches_.prepare(threads); }

  const BpeModel& model() const { return model_; }

 private:
  struct MergeSlot {
    uint64_t pair;  // left << 32 | right
    uint32_t rank, result;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  // Characters by which a piece is cut where no merge could join them: ASCII, all others, and
  // U+2581, which stands for a space.
  static constexpr size_t kOthers = 128, kSpaceMark = 129, kClasses = 130;
  static constexpr uint32_t kNoId = PieceTable::kNone;

  void build_merge_table();
  void build_characters();
  const MergeSlot& find_merge(uint32_t left, uint32_t right) const;
  const MergeSlot& find_byte_merge(uint8_t left, uint8_t right) const;
  uint32_t id_of_character(uint32_t code) const;
  static size_t class_of(uint32_t code);

  /// A piece of characters, cut where no merge passes.
  void encode_characters(std::string_view piece, const char* readable_end,
                         WordSession& session) const;
  /// Appends the ids of one word.
  void merge_word(const uint8_t* p, size_t length, std::vector<int32_t>& ids) const;
  void add_symbols(const uint8_t* p, size_t length, std::vector<uint32_t>& symbols) const;
  /// Words are encoded whole: no character of one may be cut off.
  bool takes_whole_words() const {
    return model_.alphabet == BpeModel::Alphabet::bytes || model_.ignore_merges ||
           model_.has_affixes();
  }
  void merge_by_scan(const uint8_t* p, std::span<const uint32_t> symbols,
                     std::vector<int32_t>& ids) const;
  void merge_by_heap(std::span<const uint32_t> symbols, std::vector<int32_t>& ids) const;

  BpeModel model_;
  std::vector<MergeSlot>
      slots_;  // open addressing, at most half full; the last one is the empty answer
  int slot_shift_ = 0;
  std::vector<uint32_t> byte_pairs_;  // [256 * 256] index into slots_; of a model of bytes
  PieceTable whole_;                  // tokens by their bytes, for ignore_merges and affixes
  std::vector<uint32_t> ascii_ids_;   // [128]; of a model of characters
  std::unordered_map<uint32_t, uint32_t> wide_ids_;
  uint32_t mark_id_ = kNoId;       // of U+2581
  std::vector<uint8_t> joined_;    // [kClasses * kClasses]: may a merge join the two?
  bool merges_fallbacks_ = false;  // merges may pass what is no known character
  mutable WordCaches caches_;
};

}  // namespace brrr::io
