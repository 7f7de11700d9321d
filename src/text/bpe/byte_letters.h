#pragma once
// GPT-2's names for bytes: the vocabulary files of byte-level tokenizers write each byte as one
// letter.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace brrr::io {

/// The letter (a code point) that stands for a byte in vocabulary files: itself where it is
/// printable Latin-1, else U+0100 and up in byte order. GPT-2's table.
const std::array<uint16_t, 256>& byte_letters();
/// Bytes in the order of their letters, which is the order of GPT-2's first 256 ids.
const std::array<uint8_t, 256>& bytes_by_letter();

/// Appends the bytes that a name spells in byte letters; false, and nothing, when some character is
/// no byte letter.
bool spell_bytes(std::string_view name, std::string& out);
std::string spell_letters(std::string_view bytes);

}  // namespace brrr::io
