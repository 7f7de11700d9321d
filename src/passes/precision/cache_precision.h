#pragma once
// The values of --kv-cache: the numbers that a KV cache holds.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/options.h"

namespace brrr {

enum class CachePrecision : uint8_t {
  computed,  // the numbers that the model computes in
  int8,      // integers of 8 bits, with a scale for each head and token
};

/// "auto", "int8".
inline std::string_view name_of(CachePrecision precision) {
  return precision == CachePrecision::int8 ? "int8" : "auto";
}

/// Reads any spelling. Throws UserError for others.
inline CachePrecision parse_cache_precision(const std::string& text) {
  const size_t which =
      match_choice(text, {{"auto", "computed", "none"}, {"int8", "q8", "q8_0", "i8"}});
  return which == 1 ? CachePrecision::int8 : CachePrecision::computed;
}

/// Adds the row --kv-cache, whose field is a CachePrecision.
template <typename T, typename Owner>
void add_cache_precision_row(OptionTable<T>& t, CachePrecision Owner::*field) {
  Option<T>& row = t.template parsed<CachePrecision>(
      "kv-cache", field, parse_cache_precision,
      [](CachePrecision p) { return std::string(name_of(p)); }, "NAME",
      "keys and values of the cache: auto, as --precision computes them; int8: in 8 bits, with a "
      "scale per head and token",
      {"kv-cache-dtype", "cache-type"});
  row.choices = {"auto", "int8"};
}

}  // namespace brrr
