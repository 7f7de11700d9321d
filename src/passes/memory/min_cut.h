#pragma once
// Minimum s-t cut by Dinic's algorithm (1970): the cheapest set of edges whose removal parts the
// source from the sink. A choice between two sides for each node, with prices for pairs that are
// parted, is such a cut.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace brrr {

class MinCut {
 public:
  static constexpr uint32_t kSource = 0, kSink = 1;
  static constexpr double kInfinite = 1e300;

  /// Another node; source and sink are there from the start.
  uint32_t add_node();
  /// `price` is paid when `from` is on the source's side and `to` is not.
  void add_edge(uint32_t from, uint32_t to, double price);
  /// Prices of edges may change between calls of solve().
  struct EdgeId {
    size_t index;
  };
  EdgeId last_edge() const { return {edges_.size() - 2}; }
  void set_price(EdgeId edge, double price) { prices_[edge.index / 2] = price; }

  /// Which nodes are on the source's side: of all cheapest cuts, the one with the fewest of them.
  std::vector<bool> solve();

 private:
  struct Edge {
    uint32_t to;
    double room;  // what more can flow
  };
  bool find_levels();
  bool push();

  std::vector<Edge> edges_;  // each with its reverse after it
  std::vector<double> prices_;
  std::vector<std::vector<uint32_t>> edges_of_{2};
  std::vector<int> level_;
  std::vector<size_t> next_;
  std::vector<uint32_t> path_;
  double least_ = 0;  // what is less than this is rounding
};

}  // namespace brrr
