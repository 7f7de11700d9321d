#include "passes/memory/min_cut.h"

#include <algorithm>

namespace brrr {

uint32_t MinCut::add_node() {
  edges_of_.emplace_back();
  return static_cast<uint32_t>(edges_of_.size() - 1);
}

void MinCut::add_edge(uint32_t from, uint32_t to, double price) {
  edges_of_[from].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({to, 0});
  edges_of_[to].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({from, 0});
  prices_.push_back(price);
}

std::vector<bool> MinCut::solve() {
  double top = 0;
  for (size_t i = 0; i < prices_.size(); ++i) {
    edges_[2 * i].room = prices_[i];
    edges_[2 * i + 1].room = 0;
    if (prices_[i] < kInfinite) top = std::max(top, prices_[i]);
  }
  least_ = top * 1e-12;
  while (find_levels()) {
    next_.assign(edges_of_.size(), 0);
    while (push()) {
    }
  }
  std::vector<bool> with_source(edges_of_.size());
  for (size_t node = 0; node < with_source.size(); ++node) with_source[node] = level_[node] >= 0;
  return with_source;
}

// Distances from the source along edges with room.
bool MinCut::find_levels() {
  level_.assign(edges_of_.size(), -1);
  level_[kSource] = 0;
  std::vector<uint32_t> queue{kSource};
  for (size_t i = 0; i < queue.size(); ++i)
    for (uint32_t e : edges_of_[queue[i]])
      if (edges_[e].room > least_ && level_[edges_[e].to] < 0) {
        level_[edges_[e].to] = level_[queue[i]] + 1;
        queue.push_back(edges_[e].to);
      }
  return level_[kSink] >= 0;
}

// One path along rising levels, and as much flow as it has room for.
bool MinCut::push() {
  path_.clear();
  for (uint32_t node = kSource; node != kSink;) {
    size_t& i = next_[node];
    const auto& edges = edges_of_[node];
    while (i < edges.size() &&
           (edges_[edges[i]].room <= least_ || level_[edges_[edges[i]].to] != level_[node] + 1))
      ++i;
    if (i < edges.size()) {
      path_.push_back(edges[i]);
      node = edges_[edges[i]].to;
      continue;
    }
    if (node == kSource) return false;
    node = edges_[path_.back() ^ 1].to;  // a dead end: back, and on to the next edge
    path_.pop_back();
    ++next_[node];
  }
  double most = kInfinite;
  for (uint32_t e : path_) most = std::min(most, edges_[e].room);
  for (uint32_t e : path_) {
    edges_[e].room -= most;
    edges_[e ^ 1].room += most;
  }
  return true;
}

}  // namespace brrr
