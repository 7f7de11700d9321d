#include "models/freeze.h"

#include <algorithm>
#include <charconv>

#include "base/errors.h"

namespace brrr::models {
namespace {

/// The blocks that "h.3" and "h.0-5" name, both ends included.
struct Blocks {
  int64_t first = 0, last = 0;
};

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<Blocks> blocks_of(std::string_view item) {
  if (!item.starts_with("h.")) return std::nullopt;
  item.remove_prefix(2);
  const size_t dash = item.find('-');
  const auto first = number_in(item.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number_in(item.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return Blocks{*first, *last};
}

bool is_named_by(const ParameterInfo& p, const std::string& item) {
  if (const auto blocks = blocks_of(item)) {
    const auto at = blocks_of(p.place);
    return at && at->first >= blocks->first && at->first <= blocks->last;
  }
  return p.place == item || p.name == item || p.name.starts_with(item + ".");
}

[[noreturn]] void refuse_item(const Model& model, const std::string& item) {
  std::set<std::string> names;
  for (const ParameterInfo& p : model.parameters()) {
    names.insert(p.place);
    for (size_t dot = p.name.find('.'); dot != std::string::npos; dot = p.name.find('.', dot + 1))
      names.insert(p.name.substr(0, dot));
    names.insert(p.name);
  }
  const std::string likely = nearest(item, std::vector<std::string>(names.begin(), names.end()));
  const int64_t layers = model.sizes().layers;
  usage_error(
      "--freeze: the model has no parameters '{}'{}; expected embed, h.N or h.A-B with layers from "
      "0 to {}, norm, head, or the name of a parameter or its beginning",
      item, likely.empty() ? "" : fmt::format("; did you mean '{}'?", likely), layers - 1);
}

}  // namespace

std::set<std::string> frozen_parameters(const Model& model, const std::vector<std::string>& items) {
  std::set<std::string> frozen;
  for (const std::string& item : items) {
    bool is_known = false;
    if (const auto blocks = blocks_of(item); blocks && blocks->last >= model.sizes().layers)
      refuse_item(model, item);
    for (const ParameterInfo& p : model.parameters())
      if (is_named_by(p, item)) {
        frozen.insert(p.name);
        is_known = true;
      }
    if (!is_known) refuse_item(model, item);
  }
  const std::vector<ParameterInfo> all = model.parameters();
  const bool freezes_all = std::ranges::all_of(
      all, [&](const ParameterInfo& p) { return p.is_buffer || frozen.contains(p.name); });
  if (!frozen.empty() && freezes_all)
    usage_error("--freeze {} freezes every parameter: nothing is left to train",
                fmt::join(items, ","));
  return frozen;
}

void freeze(Graph& loss_graph, const std::set<std::string>& names) {
  for (const NodeId id : loss_graph.inputs(InputKind::parameter))
    if (names.contains(loss_graph.input_name(id))) loss_graph.freeze(id);
}

}  // namespace brrr::models
