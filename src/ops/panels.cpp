#include "ops/panels.h"

#include <charconv>

#include "base/errors.h"

namespace brrr {
namespace {

constexpr std::string_view kPrefix = "panels:", kTransposed = "panels^T:";

}  // namespace

std::string panels_state(const Panels& panels) {
  if (!panels.rows) return std::string(kPrefix) + panels.parameter;
  return std::string(kTransposed) + std::to_string(*panels.rows) + ":" + panels.parameter;
}

std::optional<Panels> panels_in(std::string_view state) {
  if (state.starts_with(kPrefix))
    return Panels{std::string(state.substr(kPrefix.size())), std::nullopt};
  if (!state.starts_with(kTransposed)) return std::nullopt;
  state.remove_prefix(kTransposed.size());
  int64_t rows = 0;
  const char* end = std::from_chars(state.data(), state.data() + state.size(), rows).ptr;
  const auto digits = static_cast<size_t>(end - state.data());
  BRRR_CHECK(digits > 0 && state.substr(digits).starts_with(':'), "panels without rows: {}", state);
  return Panels{std::string(state.substr(digits + 1)), rows};
}

}  // namespace brrr
