// The policy `auto`: minimum cuts at rising prices of memory until the budget holds, then as much
// of it undone as the budget has room for.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "passes/memory/recomputation_choice.h"
#include "passes/memory/recomputation_cost.h"

namespace brrr {
namespace {

using Choice = Recomputation::Choice;

/// Without a budget, a byte is worth the time of moving so many bytes: cheap ops run again, most
/// products do not.
constexpr double kBytesMovedPerByte = 4;
constexpr int kPrices = 10;     // bisections of the price
constexpr size_t kRefined = 3;  // the best so many are undone where there is room
constexpr size_t kFew = 1024;   // groups of copies that are looked at one by one
constexpr int kRefused = 32;    // of more groups: so many may find no room before the search ends

struct Candidate {
  Choice again;
  Choice cheaper;  // what a lower price chooses, and the budget has no room for
  double seconds = 0;
};

class Search {
 public:
  Search(const Recomputation& r, const Rates& rates) : r_(r), cost_(r, rates), rates_(rates) {}

  // With every restart point kept: a chain of cheap ops over all layers would hold what it makes.
  Choice balance() {
    const Choice again =
        cost_.cheapest(kBytesMovedPerByte / rates_.bytes, kept_at(narrow_places(r_)));
    return undone({again, nothing()}, r_.peak_bytes(again)).again;
  }

  std::optional<Choice> within(int64_t budget) {
    const Choice none = nothing();
    if (r_.peak_bytes(none) <= budget) return none;
    std::vector<Candidate> found;
    for (const Choice& kept : restarts())
      if (auto candidate = within(budget, kept)) found.push_back(std::move(*candidate));
    if (found.empty()) return std::nullopt;
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    if (found.size() > kRefined) found.resize(kRefined);
    for (Candidate& c : found) c = undone(std::move(c), budget);
    return std::min_element(found.begin(), found.end(),
                            [](const auto& a, const auto& b) { return a.seconds < b.seconds; })
        ->again;
  }

 private:
  Choice nothing() const { return Choice(r_.graph().size()); }

  Choice kept_at(const std::vector<NodeId>& places) const {
    Choice kept = all_between(r_, places);
    for (NodeId id = 0; id < kept.size(); ++id) kept[id] = r_.is_forward(id) && !kept[id];
    return kept;
  }

  // Sets of nodes that are kept so that no chain of copies is longer than from one of them to the
  // next: none, and those of every first, second, third... narrow place.
  std::vector<Choice> restarts() const {
    std::vector<Choice> sets{nothing()};
    const std::vector<NodeId> places = narrow_places(r_);
    for (size_t stride : {1, 2, 3, 4, 6, 8})
      for (size_t start = 0; start < std::min<size_t>(stride, 2); ++start) {
        if (stride > places.size()) continue;
        std::vector<NodeId> some;
        for (size_t i = start; i < places.size(); i += stride) some.push_back(places[i]);
        sets.push_back(kept_at(some));
      }
    return sets;
  }

  std::optional<Candidate> within(int64_t budget, const Choice& kept) {
    double high = cost_.highest_price(), low = high * 1e-6;
    Candidate found{cost_.cheapest(high, kept), nothing()};
    if (r_.peak_bytes(found.again) > budget) return std::nullopt;
    for (int i = 0; i < kPrices; ++i) {
      const double price = std::sqrt(low * high);
      Choice next = cost_.cheapest(price, kept);
      if (r_.peak_bytes(next) <= budget) {
        found.again = std::move(next);
        high = price;
      } else {
        found.cheaper = std::move(next);
        low = price;
      }
    }
    found.seconds = cost_.seconds(found.again);
    return found;
  }

  // Keeps what the choice runs again although the budget has room: first what a lower price keeps,
  // then whole groups of copies that hand values to each other, then single ones; of equal ones the
  // last, which the backward pass reads first.
  Candidate undone(Candidate c, int64_t budget) const {
    Choice dearer = c.again;
    for (NodeId id = 0; id < dearer.size(); ++id) dearer[id] = dearer[id] && !c.cheaper[id];
    std::vector<std::vector<NodeId>> singles;
    for (NodeId id : r_.copies(c.again)) singles.push_back({id});
    c.seconds = cost_.seconds(c.again);
    for (auto groups : {groups_of(c.again, dearer), groups_of(c.again, c.again), singles}) {
      sort_by_worth(groups, c.again);
      const bool one_by_one = groups.size() <= kFew;
      int refused = 0;
      // Many groups are tried several at a time, twice as many as long as there is room.
      for (size_t at = 0, count = 1; at < groups.size() && (one_by_one || refused < kRefused);) {
        count = std::min(count, groups.size() - at);
        const bool kept = keeps(c, std::span(groups).subspan(at, count), budget);
        if (kept || count == 1) at += count;
        refused += !kept && count == 1;
        if (!one_by_one) count = kept ? 2 * count : std::max<size_t>(1, count / 2);
      }
    }
    return c;
  }

  // Whether the budget has room for what these groups make; then they do not run again.
  bool keeps(Candidate& c, std::span<const std::vector<NodeId>> groups, int64_t budget) const {
    Choice fewer = c.again;
    for (const auto& group : groups)
      for (NodeId id : group) fewer[id] = false;
    const double less = cost_.seconds(fewer);
    if (less >= c.seconds || r_.peak_bytes(fewer) > budget) return false;
    c.again = std::move(fewer);
    c.seconds = less;
    return true;
  }

  // The copies of a choice that are `some`, joined where one reads the other.
  std::vector<std::vector<NodeId>> groups_of(const Choice& again, const Choice& some) const {
    std::vector<NodeId> leader(again.size(), kNoNode);
    auto find = [&](NodeId id) {
      while (leader[id] != id) id = leader[id] = leader[leader[id]];
      return id;
    };
    std::vector<NodeId> copies;
    for (NodeId id : r_.copies(again))
      if (some[id]) copies.push_back(id);
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
      double bytes = 1, seconds = 0;
      for (NodeId id : groups[i]) {
        seconds += cost_.seconds_of(id);
        for (const Type& t : r_.graph().node(id).results) bytes += static_cast<double>(t.bytes());
      }
      if (groups.size() <= kFew) {
        Choice fewer = again;
        for (NodeId id : groups[i]) fewer[id] = false;
        seconds = before - cost_.seconds(fewer);
      }
      // Rounded, so that equal layers are equal.
      worth.push_back({-std::round(seconds / bytes * 1e16), i});
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

std::optional<Choice> cheapest(const Recomputation& r, const Rates& rates, int64_t budget_bytes) {
  return Search(r, rates).within(budget_bytes);
}

Choice balanced(const Recomputation& r, const Rates& rates) { return Search(r, rates).balance(); }

double copy_seconds(const Recomputation& r, const Rates& rates, const Choice& again) {
  return RecomputationCost(r, rates).seconds(again);
}

}  // namespace brrr
