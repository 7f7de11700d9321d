#include "passes/memory/recomputation_cost.h"

#include <algorithm>

#include "ops/fused.h"

namespace brrr {

RecomputationCost::RecomputationCost(const Recomputation& r, const Rates& rates) : r_(r) {
  find_costs(rates);
  build();
}

bool RecomputationCost::may_fuse(NodeId id) const {
  const OpDef& op = *r_.graph().node(id).op;
  return is_pointwise(op) || is_row_function(op);
}

// Whether the reader can have a copy's value without a way through memory.
bool RecomputationCost::joins(NodeId from, uint32_t port, NodeId reader) const {
  const Graph& g = r_.graph();
  return port == 0 && may_fuse(from) && may_fuse(reader) &&
         g.type({from, 0}).shape.elements() == g.type({reader, 0}).shape.elements();
}

void RecomputationCost::find_costs(const Rates& rates) {
  const Graph& g = r_.graph();
  seconds_.resize(g.size());
  reads_.resize(g.size());
  read_back_.resize(g.size());
  double total = 0, largest = 1;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!r_.is_forward(id)) continue;
    const Node& node = g.node(id);
    read_back_[id].resize(node.results.size());
    double traffic = 0;
    for (uint32_t port = 0; port < node.results.size(); ++port) {
      const double bytes = static_cast<double>(node.results[port].bytes());
      largest = std::max(largest, bytes);
      bool written = port > 0, late_join = false;
      for (const Recomputation::Reader& reader : r_.readers({id, port})) {
        const bool join = joins(id, port, reader.node);
        written = written || !join;
        late_join = late_join || (join && reader.late);
      }
      if (written) traffic += bytes;
      if (late_join) read_back_[id][port] = bytes / rates.bytes;
    }
    if (may_fuse(id)) {
      for (const ValueId& v : node.operands) {
        const ValueId from = r_.root(v);
        const double bytes = static_cast<double>(g.type(v).bytes());
        if (r_.is_forward(from.node) && joins(from.node, from.port, id))
          reads_[id].push_back({from.node, bytes / rates.bytes});
        else
          traffic += bytes;
      }
      seconds_[id] = rates.node_seconds + compute_seconds(g, id, rates) + traffic / rates.bytes;
    } else {
      seconds_[id] = predicted_seconds(g, id, rates);
    }
    total += seconds_[id];
    for (const Read& read : reads_[id]) total += read.seconds;
  }
  highest_price_ = 8 * total / largest;
}

double RecomputationCost::seconds(const Recomputation::Choice& again) const {
  double total = 0;
  std::vector<bool> is_copy(again.size());
  for (NodeId id : r_.copies(again)) is_copy[id] = true;
  for (NodeId id = 0; id < again.size(); ++id) {
    if (!is_copy[id]) continue;
    total += seconds_[id];
    for (const Read& read : reads_[id])
      if (!is_copy[read.from]) total += read.seconds;
    for (double seconds : read_back_[id]) total -= seconds;
  }
  return total;
}

void RecomputationCost::build() {
  const Graph& g = r_.graph();
  runs_.assign(g.size(), MinCut::kSink);
  std::vector<std::vector<uint32_t>> needed(g.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!r_.is_forward(id)) continue;
    const Node& node = g.node(id);
    runs_[id] = cut_.add_node();
    cut_.add_edge(runs_[id], MinCut::kSink, seconds_[id]);
    run_edges_.push_back({id, cut_.last_edge()});
    for (const Read& read : reads_[id]) cut_.add_edge(runs_[id], runs_[read.from], read.seconds);
    for (const ValueId& v : node.operands) {
      const ValueId from = r_.root(v);
      if (r_.is_forward(from.node))
        cut_.add_edge(runs_[id], needed[from.node][from.port], MinCut::kInfinite);
    }
    for (uint32_t port = 0; port < node.results.size(); ++port) {
      needed[id].push_back(cut_.add_node());
      cut_.add_edge(needed[id][port], runs_[id], 0);
      value_edges_.push_back({id, port, cut_.last_edge()});
      const auto& readers = r_.readers({id, port});
      if (std::any_of(readers.begin(), readers.end(), [](const auto& x) { return x.late; }))
        cut_.add_edge(MinCut::kSource, needed[id][port], MinCut::kInfinite);
    }
  }
}

Recomputation::Choice RecomputationCost::cheapest(double price, const Recomputation::Choice& kept) {
  for (const auto& [id, edge] : run_edges_)
    cut_.set_price(edge, kept[id] ? MinCut::kInfinite : seconds_[id]);
  for (const ValueEdge& v : value_edges_)
    cut_.set_price(v.edge, price * static_cast<double>(r_.graph().type({v.node, v.port}).bytes()) +
                               read_back_[v.node][v.port]);
  const std::vector<bool> with_source = cut_.solve();
  Recomputation::Choice again(kept.size());
  for (const auto& [id, edge] : run_edges_) again[id] = with_source[runs_[id]];
  return again;
}

}  // namespace brrr
