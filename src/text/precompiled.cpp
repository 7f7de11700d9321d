#include "text/precompiled.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/encoding/base64.h"
#include "base/encoding/utf8.h"
#include "base/errors.h"

namespace brrr::io {
namespace {

// A unit of the double array: what it is.
bool is_leaf_above(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffffu; }
/// The byte that leads to it; a unit that holds a value has a bit that no byte has.
uint32_t label_of(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200u) >> 6); }

constexpr size_t kUnitBytes = 4;
// Replacements in use have up to 33 bytes; a text must not become arbitrarily long.
constexpr size_t kLongestMapped = 1024;
// `tokenizers` replaces clusters below this length as a whole.
constexpr size_t kLongCluster = 6;

uint32_t little_endian(const char* p) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(p[i]);
  return value;
}

}  // namespace

template <typename Visit>
void Precompiled::visit_entries(std::string_view text, Visit&& found) const {
  if (units_.empty()) return;
  size_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (at >= units_.size()) return;
    if (is_leaf_above(unit) && !found(i + 1, value_of(units_[at]))) return;
  }
}

Precompiled Precompiled::read(std::string_view charsmap, const std::string& where) {
  Precompiled map;
  if (charsmap.size() < kUnitBytes)
    user_error("{} has {} bytes; expected the size of a trie, a trie and replacements", where,
               charsmap.size());
  const size_t trie_bytes = little_endian(charsmap.data());
  charsmap.remove_prefix(kUnitBytes);
  if (trie_bytes == 0 || trie_bytes % kUnitBytes != 0 || trie_bytes > charsmap.size())
    user_error(
        "{} says that its trie has {} bytes; expected a multiple of {} from {} to {}, the bytes "
        "that follow",
        where, trie_bytes, kUnitBytes, kUnitBytes, charsmap.size());
  map.units_.resize(trie_bytes / kUnitBytes);
  for (size_t i = 0; i < map.units_.size(); ++i)
    map.units_[i] = little_endian(charsmap.data() + kUnitBytes * i);
  map.pool_ = charsmap.substr(trie_bytes);
  if (!map.pool_.ends_with('\0'))
    user_error("{}: its replacements do not end with a NUL byte; is it truncated?", where);
  if (const auto invalid = find_invalid_utf8(map.pool_))
    user_error("{}: its replacements are not UTF-8 at byte {}", where, *invalid);
  size_t longest = 1;
  for (size_t i = 0; i < map.units_.size(); ++i) {
    if (!is_leaf_above(map.units_[i]) || (map.units_[i] >> 31) != 0) continue;
    const size_t leaf = i ^ offset_of(map.units_[i]);
    if (leaf >= map.units_.size())
      user_error("{}: unit {} of its trie points to unit {} of {}", where, i, leaf,
                 map.units_.size());
    if (value_of(map.units_[leaf]) >= map.pool_.size())
      user_error("{}: unit {} of its trie points to byte {} of {} of replacements", where, leaf,
                 value_of(map.units_[leaf]), map.pool_.size());
    const std::string_view rest = std::string_view(map.pool_).substr(value_of(map.units_[leaf]));
    const size_t bytes = rest.substr(0, kLongestMapped + 1).find('\0');
    if (bytes == std::string_view::npos)
      user_error("{}: unit {} of its trie represents a text of more than {} bytes", where, leaf,
                 kLongestMapped);
    longest = std::max(longest, bytes);
  }
  map.most_growth_ = longest;
  const size_t root = offset_of(map.units_[0]);
  for (size_t byte = 1; byte < 256; ++byte)
    map.starts_[byte] =
        (root ^ byte) < map.units_.size() && label_of(map.units_[root ^ byte]) == byte;
  return map;
}

Precompiled Precompiled::read_base64(std::string_view text, const std::string& where) {
  const auto bytes = decode_base64(text);
  if (!bytes) user_error("{} is not base64", where);
  return read(*bytes, where);
}

std::string_view Precompiled::replacement(uint32_t value) const {
  return std::string_view(pool_).substr(value, pool_.find('\0', value) - value);
}

std::optional<Precompiled::Found> Precompiled::longest(std::string_view text) const {
  size_t length = 0;
  uint32_t value = 0;
  visit_entries(text, [&](size_t bytes, uint32_t v) {
    length = bytes;
    value = v;
    return true;
  });
  if (length == 0) return std::nullopt;
  return Found{replacement(value), length};
}

std::optional<std::string_view> Precompiled::shortest(std::string_view text) const {
  std::optional<std::string_view> found;
  visit_entries(text, [&](size_t, uint32_t value) {
    found = replacement(value);
    return false;
  });
  return found;
}

std::string Precompiled::normalized(uint8_t character) const {
  const std::string text(1, static_cast<char>(character));
  return std::string(shortest(text).value_or(text));
}

void Precompiled::append_normalized(std::string_view text, std::string& out) const {
  const uint8_t* const begin = as_bytes(text.data());
  const uint8_t* const end = begin + text.size();
  const auto between = [](const uint8_t* from, const uint8_t* to) {
    return std::string_view(reinterpret_cast<const char*>(from), static_cast<size_t>(to - from));
  };
  const auto plain = [&](const uint8_t* p) { return *p < 0x80 && *p != '\r' && !starts_[*p]; };
  for (const uint8_t* p = begin; p < end;) {
    // ASCII that stays and that ASCII follows: nothing joins it.
    const uint8_t* stop = p;
    while (stop < end && plain(stop) && (stop + 1 == end || stop[1] < 0x80)) ++stop;
    out.append(between(p, stop));
    if ((p = stop) == end) return;
    DecodedChar c = decode_utf8(p, end);
    if (c.code == kInvalidByte) {
      out.push_back(static_cast<char>(*p++));
      continue;
    }
    // The end of the cluster that begins here.
    utf8proc_int32_t state = 0;
    stop = p + c.bytes;
    for (uint32_t last = c.code; stop < end; stop += c.bytes, last = c.code) {
      if (last < 0x80 && *stop < 0x80 && last != '\r') break;
      c = decode_utf8(stop, end);
      if (c.code == kInvalidByte ||
          utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                           static_cast<utf8proc_int32_t>(c.code), &state))
        break;
    }
    const std::string_view cluster = between(p, stop);
    p = stop;
    if (cluster.size() < kLongCluster) {
      if (const auto found = shortest(cluster)) {
        out += *found;
        continue;
      }
    }
    for (const uint8_t* q = as_bytes(cluster.data()); q < stop;) {
      const uint8_t* const next = q + decode_utf8(q, stop).bytes;
      out += shortest(between(q, next)).value_or(between(q, next));
      q = next;
    }
  }
}

}  // namespace brrr::io
