#include "runtime/weight_refresher.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr {

bool WeightRefresher::add(size_t program, const Graph& graph) {
  Use use;
  const size_t before = weights_.size() + parameters_.size();
  for (NodeId id : graph.inputs()) {
    const std::string& name = graph.input_name(id);
    if (graph.role(id) == Role::parameter) parameters_.insert(name);
    std::optional<DerivedWeight> weight = derived_weight(graph.node(id).attrs);
    if (!weight) continue;
    use.reads.insert(name);
    const auto [at, fresh] = weights_.try_emplace(name, *weight);
    BRRR_CHECK(fresh || at->second == *weight, "two derived weights are named '{}'", name);
  }
  for (const Output& o : graph.outputs()) {
    if (o.updates == kNoNode || o.value == ValueId{o.updates, 0}) continue;
    const Role role = graph.role(o.updates);
    if (role == Role::parameter || role == Role::derived)
      use.updates.insert(graph.input_name(o.updates));
  }
  programs_[program] = std::move(use);
  return weights_.size() + parameters_.size() != before;
}

bool WeightRefresher::is_refreshed(std::string_view name) const {
  return refreshes_ && std::ranges::all_of(weight(name).sources, [&](const std::string& source) {
           return parameters_.contains(source);
         });
}

std::vector<DerivedWeight> WeightRefresher::refreshable() const {
  std::vector<DerivedWeight> list;
  for (const auto& [name, weight] : weights_)
    if (is_refreshed(name)) list.push_back(weight);
  return list;
}

void WeightRefresher::wrote(std::string_view parameter) {
  for (const auto& [name, weight] : weights_)
    if (std::ranges::find(weight.sources, parameter) != weight.sources.end() && is_refreshed(name))
      stale_.insert(name);
}

bool WeightRefresher::reads_stale(size_t program) const {
  if (stale_.empty()) return false;
  const Names& reads = programs_.at(program).reads;
  return std::ranges::any_of(stale_, [&](const std::string& name) { return reads.contains(name); });
}

bool WeightRefresher::makes_stale(const Use& use, const DerivedWeight& weight,
                                  const std::string& name) const {
  return !use.updates.contains(name) && is_refreshed(name) &&
         std::ranges::any_of(weight.sources, [&](const std::string& source) {
           return use.updates.contains(source);
         });
}

bool WeightRefresher::must_refresh_between(size_t first, size_t second) const {
  const Use& use = programs_.at(first);
  if (use.updates.empty()) return false;
  return std::ranges::any_of(programs_.at(second).reads, [&](const std::string& name) {
    return makes_stale(use, weight(name), name);
  });
}

void WeightRefresher::failed(size_t program) {
  for (const std::string& name : programs_.at(program).updates) wrote(name);
}

void WeightRefresher::ran(size_t program) {
  const Use& use = programs_.at(program);
  if (use.updates.empty()) return;
  for (const auto& [name, weight] : weights_)
    if (makes_stale(use, weight, name)) stale_.insert(name);
}

}  // namespace brrr
