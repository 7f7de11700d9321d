#pragma once
// tokenizer.model of SentencePiece: a protocol buffer with the pieces, how the text is normalized,
// and what the trainer was told. Only what encoding and decoding need is kept.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

struct SentencePieceModel {
  enum class Algorithm { unigram, bpe };
  /// The numbers are the file's.
  enum class PieceKind : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string_view text;  // of the file
    float score = 0;
    PieceKind kind = PieceKind::normal;
  };

  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  bool space_is_suffix = false;  // a space belongs to the word before it
  int32_t unknown = -1, begin = -1, end = -1;
  std::string unknown_surface = " \u2047 ";  // what the unknown piece decodes to

  std::string_view charsmap;  // of the file; empty: none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

/// `bytes`, the whole file, must outlive the model; `where` goes into errors. Throws UserError for
/// what is broken, and for what is not supported, by name: the models WORD and CHAR, a
/// denormalizer.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where);

/// Is it a byte piece, "<0x0A>", and of which byte?
bool is_byte_piece(std::string_view text, uint8_t& byte);

}  // namespace brrr::io
