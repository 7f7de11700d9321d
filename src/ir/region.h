#pragma once
// Region: a graph that a node carries as an attribute, such as the body of `fused` or of `loop`. It
// never changes, copies share it, and it compares by content. A region is closed: it reads the
// outside through the operands of its node alone, which are its inputs a0, a1, ..., and gives the
// outputs "0", "1", ....

#include <cstdint>
#include <memory>
#include <string>

namespace brrr {

class Graph;

class Region {
 public:
  explicit Region(Graph graph);

  const Graph& graph() const;
  /// The hash of the content, computed once.
  uint64_t hash() const;
  /// Why the graph is no region: an input that is no operand, an update, ...; empty: it is one.
  const std::string& problem() const;

  /// Equal content; the same object is found equal without looking.
  bool operator==(const Region& other) const;

 private:
  struct Content;
  std::shared_ptr<const Content> content_;
};

}  // namespace brrr
