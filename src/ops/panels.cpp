#include "ops/panels.h"

#include <charconv>

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
  state.remove_prefix(static_cast<size_t>(end - state.data()) + 1);
  return Panels{std::string(state), rows};
}

}  // namespace brrr
