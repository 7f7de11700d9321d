#include "ops/panels.h"

#include <charconv>

namespace brrr {
namespace {

constexpr std::string_view kPrefix = "panels:";

}  // namespace

std::string panels_state(const Panels& panels) {
  std::string state(kPrefix);
  if (panels.rows) state += std::to_string(*panels.rows) + ":";
  return state + panels.parameter;
}

std::optional<Panels> panels_in(std::string_view state) {
  if (!state.starts_with(kPrefix)) return std::nullopt;
  state.remove_prefix(kPrefix.size());
  int64_t rows = 0;
  const auto [end, error] = std::from_chars(state.data(), state.data() + state.size(), rows);
  const auto digits = static_cast<size_t>(end - state.data());
  if (error != std::errc() || digits == state.size() || state[digits] != ':')
    return Panels{std::string(state), std::nullopt};
  return Panels{std::string(state.substr(digits + 1)), rows};
}

}  // namespace brrr
