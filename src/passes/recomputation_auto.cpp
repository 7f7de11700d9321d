// The policy `auto`: minimum cuts at rising prices of memory until the budget holds, then as much
// of it undone as the budget has room for.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/errors.h"
#include "base/human.h"
#include "passes/recomputation_choice.h"
#include "passes/recomputation_cost.h"

namespace brrr {
namespace {

using Choice = Recomputation::Choice;

/// Without a budget, a byte is worth the time of moving so many bytes: cheap ops run again, most
/// products do not.
constexpr double kBytesMovedPerByte = 8;
constexpr int kPrices = 12;  // bisections of the price

struct Candidate {
  Choice again;
  double seconds = 0;
};

class Search {
 public:
  Search(const Recomputation& r, const Rates& rates) : r_(r), cost_(r, rates), rates_(rates) {}

  Choice balance() {
    const Choice again = cost_.cheapest(kBytesMovedPerByte / rates_.bytes, nothing());
    return undone(again, r_.peak_bytes(again));
  }

  Choice within(int64_t budget) {
    const Choice none = nothing();
    const int64_t all_bytes = r_.peak_bytes(none);
    if (all_bytes <= budget) return none;
    std::optional<Candidate> best;
    int64_t fewest = all_bytes;
    for (const Choice& kept : restarts()) {
      const auto found = within(budget, kept, fewest);
      if (found && (!best || found->seconds < best->seconds)) best = found;
    }
    if (!best)
      throw UserError(
          fmt::format("[rematerialize] activations need at least {} ({} bytes) however much runs "
                      "again; the budget is {}. A smaller batch or context needs less",
                      format_bytes(static_cast<double>(fewest)), fewest,
                      format_bytes(static_cast<double>(budget))),
          ExitCode::kNoMemory);
    return undone(best->again, budget);
  }

 private:
  Choice nothing() const { return Choice(r_.graph().size()); }

  // Sets of nodes that are kept so that no chain of copies is longer than from one of them to the
  // next: none, and those of every first, second, third... narrow place.
  std::vector<Choice> restarts() const {
    std::vector<Choice> sets{nothing()};
    const std::vector<NodeId> places = narrow_places(r_);
    for (size_t stride = 1; stride <= std::min<size_t>(places.size(), 6); ++stride)
      for (size_t start = 0; start < stride; ++start) {
        std::vector<NodeId> some;
        for (size_t i = start; i < places.size(); i += stride) some.push_back(places[i]);
        Choice kept = all_between(r_, some);
        for (NodeId id = 0; id < kept.size(); ++id) kept[id] = r_.is_forward(id) && !kept[id];
        sets.push_back(std::move(kept));
      }
    return sets;
  }

  std::optional<Candidate> within(int64_t budget, const Choice& kept, int64_t& fewest) {
    double high = cost_.highest_price(), low = high * 1e-7;
    Choice again = cost_.cheapest(high, kept);
    const int64_t bytes = r_.peak_bytes(again);
    fewest = std::min(fewest, bytes);
    if (bytes > budget) return std::nullopt;
    for (int i = 0; i < kPrices; ++i) {
      const double price = std::sqrt(low * high);
      Choice next = cost_.cheapest(price, kept);
      if (r_.peak_bytes(next) <= budget) {
        again = std::move(next);
        high = price;
      } else {
        low = price;
      }
    }
    again = undone(again, budget);
    const double seconds = cost_.seconds(again);
    return Candidate{std::move(again), seconds};
  }

  // What the choice runs again although the budget has room to keep it: first whole groups of
  // copies that hand values to each other, then single ones; of equal ones the last, which the
  // backward pass reads first.
  Choice undone(Choice again, int64_t budget) const {
    std::vector<std::vector<NodeId>> groups = groups_of(again);
    std::vector<std::vector<NodeId>> singles;
    for (const auto& group : groups)
      if (group.size() > 1)
        for (NodeId id : group) singles.push_back({id});
    for (auto* list : {&groups, &singles}) {
      sort_by_worth(*list, again);
      for (const auto& group : *list) {
        Choice fewer = again;
        for (NodeId id : group) fewer[id] = false;
        if (r_.peak_bytes(fewer) <= budget && cost_.seconds(fewer) < cost_.seconds(again))
          again = std::move(fewer);
      }
    }
    return again;
  }

  // The copies of a choice, joined where one reads the other.
  std::vector<std::vector<NodeId>> groups_of(const Choice& again) const {
    std::vector<NodeId> leader(again.size(), kNoNode);
    auto find = [&](NodeId id) {
      while (leader[id] != id) id = leader[id] = leader[leader[id]];
      return id;
    };
    std::vector<NodeId> copies = r_.copies(again);
    std::sort(copies.begin(), copies.end());
    for (NodeId id : copies) leader[id] = id;
    for (NodeId id : copies)
      for (const ValueId& v : r_.graph().node(id).operands) {
        const NodeId from = r_.root(v).node;
        if (leader[from] != kNoNode) leader[find(id)] = find(from);
      }
    std::map<NodeId, std::vector<NodeId>> groups;
    for (NodeId id : copies) groups[find(id)].push_back(id);
    std::vector<std::vector<NodeId>> out;
    for (auto& [first, group] : groups) out.push_back(std::move(group));
    return out;
  }

  void sort_by_worth(std::vector<std::vector<NodeId>>& groups, const Choice& again) const {
    std::vector<std::pair<double, size_t>> worth;
    const double before = cost_.seconds(again);
    for (size_t i = 0; i < groups.size(); ++i) {
      Choice fewer = again;
      double bytes = 1;
      for (NodeId id : groups[i]) {
        fewer[id] = false;
        for (const Type& t : r_.graph().node(id).results) bytes += static_cast<double>(t.bytes());
      }
      // Rounded, so that equal layers are equal.
      worth.push_back({-std::round((before - cost_.seconds(fewer)) / bytes * 1e16), i});
    }
    std::sort(worth.begin(), worth.end(), [&](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first
                                : groups[a.second].back() > groups[b.second].back();
    });
    std::vector<std::vector<NodeId>> sorted;
    for (const auto& [w, i] : worth) sorted.push_back(std::move(groups[i]));
    groups = std::move(sorted);
  }

  const Recomputation& r_;
  RecomputationCost cost_;
  const Rates rates_;
};

}  // namespace

Choice cheapest(const Recomputation& r, const Rates& rates, int64_t budget_bytes) {
  Search search(r, rates);
  return budget_bytes > 0 ? search.within(budget_bytes) : search.balance();
}

double copy_seconds(const Recomputation& r, const Rates& rates, const Choice& again) {
  return RecomputationCost(r, rates).seconds(again);
}

}  // namespace brrr
