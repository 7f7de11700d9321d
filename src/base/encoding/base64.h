#pragma once
// Base64 (RFC 4648, section 4), in which tokenizer files keep bytes.

#include <optional>
#include <string>
#include <string_view>

namespace brrr {

/// The bytes that `text` spells. Nothing unless it has the one right form: groups of four
/// characters, the last of them padded with '=', and no bits left over.
std::optional<std::string> decode_base64(std::string_view text);

std::string encode_base64(std::string_view bytes);

}  // namespace brrr
