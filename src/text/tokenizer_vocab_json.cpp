#include "text/tokenizer_vocab_json.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/bpe/tokenizer_cache.h"

namespace brrr::io {

void VocabTokens::grow() {
  slots_.assign(std::bit_ceil(std::max<size_t>(1024, 4 * entries_.size())), 0);
  for (size_t entry = 0; entry < entries_.size(); ++entry) {
    size_t slot = entries_[entry].hash & (slots_.size() - 1);
    while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<uint32_t>(entry + 1);
  }
}

std::optional<size_t> VocabTokens::find(std::string_view wanted) const {
  if (slots_.empty()) return std::nullopt;
  const uint64_t hash = hash_bytes(as_bytes(wanted.data()), wanted.size());
  for (size_t slot = hash & (slots_.size() - 1); slots_[slot] != 0;
       slot = (slot + 1) & (slots_.size() - 1)) {
    const size_t entry = slots_[slot] - 1;
    if (entries_[entry].hash == hash && name(entry) == wanted) return entry;
  }
  return std::nullopt;
}

bool VocabTokens::add(std::string_view name, int64_t id, bool added) {
  if (find(name)) return false;
  const uint64_t hash = hash_bytes(as_bytes(name.data()), name.size());
  entries_.push_back({hash, names_.size(), static_cast<uint32_t>(name.size()), added, id});
  names_ += name;
  if (slots_.size() < 2 * entries_.size()) {
    grow();
    return true;
  }
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = static_cast<uint32_t>(entries_.size());
  return true;
}

void VocabTokens::add_json(std::string_view name, const Json& id, bool added,
                           const std::string& file) {
  if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() >> 62 != 0))
    user_error("{}: the id of token {} is {}; expected a whole number", file, in_quotes(name),
               describe(id));
  if (!add(name, id.get<int64_t>(), added))
    user_error("{}: the token {} is listed twice", file, in_quotes(name));
}

namespace {

/// Four hexadecimal digits, or nothing.
std::optional<uint32_t> hex4(const char* p, const char* end) {
  uint32_t value = 0;
  if (end - p < 4) return std::nullopt;
  const auto result = std::from_chars(p, p + 4, value, 16);
  if (result.ptr != p + 4) return std::nullopt;
  return value;
}

}  // namespace

const char* scan_json_string(const char* p, const char* end, std::string& out) {
  out.clear();
  while (p < end) {
    const auto c = static_cast<uint8_t>(*p);
    if (c == '"') return p + 1;
    if (c < 0x20) return nullptr;
    if (c >= 0x80) {
      const DecodedChar decoded = decode_utf8(as_bytes(p), as_bytes(end));
      if (decoded.code == kInvalidByte) return nullptr;
      out.append(p, decoded.bytes);
      p += decoded.bytes;
    } else if (c != '\\') {
      out.push_back(*p++);
    } else {
      if (end - p < 2) return nullptr;
      const char escape = p[1];
      p += 2;
      if (escape == '"' || escape == '\\' || escape == '/') {
        out.push_back(escape);
      } else if (escape == 'u') {
        const auto code = hex4(p, end);
        if (!code || (*code >= 0xd800 && *code < 0xe000)) return nullptr;
        append_utf8(out, *code);
        p += 4;
      } else {
        return nullptr;
      }
    }
  }
  return nullptr;
}

namespace {

const char* skip_blank(const char* p, const char* end) {
  while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) ++p;
  return p;
}

}  // namespace

/// True when the whole text had the usual form, with distinct names.
bool VocabTokens::scan_all(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto take = [&](char wanted) {
    p = skip_blank(p, end);
    if (p == end || *p != wanted) return false;
    ++p;
    return true;
  };
  std::string token;
  if (!take('{')) return false;
  do {
    if (!take('"')) return false;
    p = scan_json_string(p, end, token);
    if (p == nullptr || !take(':')) return false;
    p = skip_blank(p, end);
    int64_t id = 0;
    const bool leading_zero = end - p >= 2 && *p == '0' && p[1] >= '0' && p[1] <= '9';
    if (p == end || *p < '0' || *p > '9' || leading_zero) return false;
    const auto number = std::from_chars(p, end, id);
    if (number.ec != std::errc() || !add(token, id, false)) return false;
    p = number.ptr;
  } while (take(','));
  return take('}') && skip_blank(p, end) == end;
}

std::optional<VocabTokens> VocabTokens::scan(std::string_view text) {
  VocabTokens tokens;
  tokens.names_.reserve(text.size());
  tokens.entries_.reserve(text.size() / 24);
  tokens.grow();
  if (!tokens.scan_all(text)) return std::nullopt;
  return tokens;
}

VocabTokens VocabTokens::parse(std::string_view text, const std::string& file) {
  if (auto usual = scan(text)) return *std::move(usual);
  VocabTokens tokens;
  const Json root = parse_json(text, file);
  if (!root.is_object())
    user_error("{}: it holds {}; expected {{\"token\": id, ...}}", file, describe(root));
  for (const auto& [name, id] : root.items()) tokens.add_json(name, id, false, file);
  return tokens;
}

}  // namespace brrr::io
