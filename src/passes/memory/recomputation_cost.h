#pragma once
// What it costs to run forward nodes again, and the cheapest choice for a price of memory.
//
// For each forward node r: it runs again. For each value n: the backward pass, or a node that runs
// again, needs it. Needed and not made again is kept, at bytes times the price; what runs again
// needs its operands. Each of these is a price for "this, but not that", so that the cheapest
// choice is a minimum cut of a graph with a node for every r and n (as in the partitioners of
// compilers, which know no price of time).

#include <vector>

#include "passes/memory/cost_model.h"
#include "passes/memory/min_cut.h"
#include "passes/memory/recomputation.h"

namespace brrr {

class RecomputationCost {
 public:
  RecomputationCost(const Recomputation& r, const Rates& rates);

  /// Predicted time of all copies of a choice.
  double seconds(const Recomputation::Choice& again) const;
  /// Predicted time of one copy, but for what it reads from other copies.
  double seconds_of(NodeId id) const { return seconds_[id]; }
  /// The cheapest choice without the nodes of `kept`, at a price in seconds per byte.
  Recomputation::Choice cheapest(double price, const Recomputation::Choice& kept);
  /// A price at which every value of some size runs again.
  double highest_price() const { return highest_price_; }

 private:
  struct Read {
    NodeId from;  // a copy of it hands the value over without memory
    double seconds;
  };
  bool may_fuse(NodeId id) const;
  bool joins(NodeId from, uint32_t port, NodeId reader) const;
  void find_costs(const Rates& rates);
  void build();

  const Recomputation& r_;
  std::vector<double> seconds_;                 // [node]: but for the reads below
  std::vector<std::vector<Read>> reads_;        // [node]
  std::vector<std::vector<double>> read_back_;  // [node][port]: what joined readers save
  double highest_price_ = 0;

  MinCut cut_;
  struct ValueEdge {
    NodeId node;
    uint32_t port;
    MinCut::EdgeId edge;
  };
  std::vector<uint32_t> runs_;  // [node]: its r
  std::vector<std::pair<NodeId, MinCut::EdgeId>> run_edges_;
  std::vector<ValueEdge> value_edges_;
};

}  // namespace brrr
