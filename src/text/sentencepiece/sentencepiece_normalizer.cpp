#include "text/sentencepiece/sentencepiece_normalizer.h"

#include "base/encoding/utf8.h"

namespace brrr::io {
namespace {

constexpr std::string_view kSpacePiece = "\u2581", kReplacementCharacter = "\ufffd";

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model,
                                                 const std::string& where)
    : add_dummy_(model.add_dummy_prefix),
      remove_extra_(model.remove_extra_whitespaces),
      escape_(model.escape_whitespaces),
      space_is_suffix_(model.space_is_suffix) {
  if (!model.charsmap.empty())
    charsmap_ = Precompiled::read(model.charsmap, where + ": precompiled_charsmap");
  std::vector<PieceTrie::Entry> entries;
  for (const SentencePieceModel::Piece& piece : model.pieces)
    if (piece.kind == SentencePieceModel::PieceKind::user_defined) {
      entries.emplace_back(piece.text, 0);
      is_special_[static_cast<uint8_t>(piece.text[0])] = true;
    }
  user_defined_ = PieceTrie(std::move(entries));
  for (size_t byte = 0; byte < 256; ++byte)
    is_special_[byte] |=
        byte == ' ' || byte >= 0x80 || charsmap_.may_start(static_cast<uint8_t>(byte));
}

/// What the text begins with, and what becomes of it.
SentencePieceNormalizer::Step SentencePieceNormalizer::step(std::string_view text) const {
  const uint8_t* const p = as_bytes(text.data());
  const uint8_t* const end = p + text.size();
  size_t length = 0;
  user_defined_.visit(
      p, end, [&](const uint8_t* stop, uint32_t) { length = static_cast<size_t>(stop - p); });
  if (length > 0) return {text.substr(0, length), length};
  if (const auto found = charsmap_.longest(text)) return {found->replacement, found->length};
  const DecodedChar c = decode_utf8(p, end);
  if (c.code == kInvalidByte) return {kReplacementCharacter, 1};
  return {text.substr(0, c.bytes), c.bytes};
}

std::string SentencePieceNormalizer::apply(std::string_view text, bool inside) const {
  std::string out;
  if (text.empty()) return out;
  const std::string_view space = escape_ ? kSpacePiece : " ";
  bool after_space = remove_extra_ && !inside;
  if (after_space) {
    while (!text.empty()) {
      const Step first = step(text);
      if (first.to != " ") break;
      text.remove_prefix(first.from);
    }
    if (text.empty()) return out;
  }
  out.reserve(text.size() + text.size() / 2 + 3);
  if (add_dummy_ && !space_is_suffix_ && !inside) out += space;
  while (!text.empty()) {
    size_t plain = 0;
    while (plain < text.size() && !is_special_[static_cast<uint8_t>(text[plain])]) ++plain;
    if (plain > 0) {
      out.append(text.substr(0, plain));
      after_space = false;
      text.remove_prefix(plain);
      continue;
    }
    const Step next = step(text);
    std::string_view to = next.to;
    text.remove_prefix(next.from);
    while (after_space && to.starts_with(' ')) to.remove_prefix(1);
    if (to.empty()) continue;
    after_space = remove_extra_ && to.ends_with(' ');
    for (;;) {
      const size_t found = escape_ ? to.find(' ') : std::string_view::npos;
      out.append(to.substr(0, found));
      if (found == std::string_view::npos) break;
      out += space;
      to.remove_prefix(found + 1);
    }
  }
  while (remove_extra_ && out.ends_with(space)) out.resize(out.size() - space.size());
  if (add_dummy_ && space_is_suffix_) out += space;
  return out;
}

}  // namespace brrr::io
