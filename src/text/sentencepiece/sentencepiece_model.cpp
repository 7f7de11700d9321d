#include "text/sentencepiece/sentencepiece_model.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "formats/protobuf.h"
#include "text/bpe/piece_table.h"

namespace brrr::io {
namespace {

using Piece = SentencePieceModel::Piece;
using PieceKind = SentencePieceModel::PieceKind;

// SentencePiece's own limit.
constexpr size_t kLongestPiece = 8000;

Piece read_piece(std::string_view bytes, const std::string& where) {
  Piece piece;
  ProtobufReader message(bytes, where);
  while (message.next()) {
    if (message.field() == 1) {
      piece.text = message.bytes();
    } else if (message.field() == 2) {
      piece.score = message.number();
    } else if (message.field() == 3) {
      const uint64_t kind = message.varint();
      if (kind < 1 || kind > 6)
        user_error("{} is of the type {}; expected 1 (NORMAL) to 6 (BYTE)", where, kind);
      piece.kind = static_cast<PieceKind>(kind);
    }
  }
  return piece;
}

/// The names of the pieces that the trainer reserved.
struct ReservedNames {
  std::string begin = "<s>", end = "</s>";
};

void read_trainer(ProtobufReader message, SentencePieceModel& model, ReservedNames& names) {
  while (message.next()) {
    switch (message.field()) {
      case 3: {
        const uint64_t type = message.varint();
        if (type != 1 && type != 2)
          user_error("{}.model_type is {}; supported are 1 (UNIGRAM) and 2 (BPE)", message.where(),
                     type == 3   ? "3 (WORD)"
                     : type == 4 ? "4 (CHAR)"
                                 : std::to_string(type));
        model.algorithm =
            type == 1 ? SentencePieceModel::Algorithm::unigram : SentencePieceModel::Algorithm::bpe;
        break;
      }
      case 24:
        model.space_is_suffix = message.flag();
        break;
      case 35:
        model.byte_fallback = message.flag();
        break;
      case 44:
        model.unknown_surface = message.bytes();
        break;
      case 46:
        if (!message.bytes().empty()) names.begin = message.bytes();
        break;
      case 47:
        if (!message.bytes().empty()) names.end = message.bytes();
        break;
      default:
        break;
    }
  }
}

void read_normalizer(ProtobufReader message, SentencePieceModel& model) {
  while (message.next()) {
    if (message.field() == 2) model.charsmap = message.bytes();
    if (message.field() == 3) model.add_dummy_prefix = message.flag();
    if (message.field() == 4) model.remove_extra_whitespaces = message.flag();
    if (message.field() == 5) model.escape_whitespaces = message.flag();
  }
}

void check_pieces(SentencePieceModel& model, const ReservedNames& names, const std::string& where) {
  if (model.pieces.empty()) user_error("{}: it has no pieces", where);
  PieceTable id_of(model.pieces.size());
  std::array<bool, 256> has_byte{};
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    const auto refuse = [&](const std::string& why) {
      user_error("{}: piece {} ({}) {}", where, id, in_quotes(piece.text), why);
    };
    if (piece.text.empty()) refuse("is empty");
    if (piece.text.size() >= kLongestPiece)
      refuse(fmt::format("has {} bytes; the limit is {}", piece.text.size(), kLongestPiece - 1));
    if (piece.text.find('\0') != std::string_view::npos) refuse("holds a NUL byte");
    if (find_invalid_utf8(piece.text)) refuse("is not UTF-8");
    if (!std::isfinite(piece.score)) refuse("has a score that is NaN");
    const uint32_t other = id_of.add(piece.text, static_cast<uint32_t>(id));
    if (other != PieceTable::kNone) refuse(fmt::format("is piece {} already", other));
    if (piece.kind == PieceKind::unknown) {
      if (model.unknown >= 0) refuse(fmt::format("is unknown, as is piece {}", model.unknown));
      model.unknown = static_cast<int32_t>(id);
    }
    if (piece.kind == PieceKind::byte) {
      uint8_t byte = 0;
      if (!is_byte_piece(piece.text, byte)) refuse("is a byte, but not of the form <0x0A>");
      if (!model.byte_fallback) refuse("is a byte, but byte_fallback is false");
      has_byte[byte] = true;
    }
    if (piece.kind == PieceKind::control && piece.text == names.begin)
      model.begin = static_cast<int32_t>(id);
    if (piece.kind == PieceKind::control && piece.text == names.end)
      model.end = static_cast<int32_t>(id);
  }
  if (model.unknown < 0) user_error("{}: it has no unknown piece", where);
  for (size_t byte = 0; model.byte_fallback && byte < 256; ++byte)
    if (!has_byte[byte])
      user_error("{}: byte_fallback is true, but there is no piece <0x{:02X}>", where, byte);
}

}  // namespace

bool is_byte_piece(std::string_view text, uint8_t& byte) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return false;
  for (const char c : text.substr(3, 2))
    if (c >= 'a') return false;  // the digits are upper case
  return std::from_chars(text.data() + 3, text.data() + 5, byte, 16).ptr == text.data() + 5;
}

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& where) {
  SentencePieceModel model;
  ReservedNames names;
  ProtobufReader message(bytes, where);
  const std::string of_piece = where + ": piece ", of_trainer = where + ": trainer_spec",
                    of_normalizer = where + ": normalizer_spec",
                    of_denormalizer = where + ": denormalizer_spec";
  std::string label = of_piece;
  while (message.next()) {
    switch (message.field()) {
      case 1:
        label.resize(of_piece.size());
        label += std::to_string(model.pieces.size());
        if (model.pieces.size() + 1 >= static_cast<size_t>(WordCache::kIdLimit))
          user_error("{}: more than {} pieces", where, WordCache::kIdLimit - 1);
        model.pieces.push_back(read_piece(message.bytes(), label));
        break;
      case 2:
        read_trainer({message.bytes(), of_trainer}, model, names);
        break;
      case 3:
        read_normalizer({message.bytes(), of_normalizer}, model);
        break;
      case 5: {
        ProtobufReader denormalizer(message.bytes(), of_denormalizer);
        while (denormalizer.next())
          if (denormalizer.field() == 2 && !denormalizer.bytes().empty())
            user_error("{} has a charsmap, which is not supported", denormalizer.where());
        break;
      }
      default:
        break;
    }
  }
  check_pieces(model, names, where);
  return model;
}

}  // namespace brrr::io
