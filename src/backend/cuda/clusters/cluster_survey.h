#pragma once
// What a body computes, before any text: its elements and rows, where every value is found, and in
// which phase. A row op ends a phase: what depends on its sums comes in the next one.

#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"

namespace brrr::cuda {

/// What stands at the end of a body and is read by nothing in it: a sum over rows, the scale of all
/// elements, a transposed copy.
bool is_end(const Node& node);

struct ClusterSurvey {
  explicit ClusterSurvey(const Graph& body);

  struct Place {
    enum Kind { nowhere, operand, constant, computed } kind = nowhere;
    uint32_t number = 0;  // of the operand
    Shape view;           // as which the operand is seen
    std::string literal;  // of the constant
    ValueId value;        // computed: without the reshapes in between
  };

  std::string refusal;
  int64_t elements = 0, width = 0, rows = 0;  // width 0: no rows
  int phases = 1;
  std::vector<NodeId> row_ops, sums, scales, transposed;
  std::vector<int> phase;            // in which the node's result is there
  std::vector<uint32_t> operand_of;  // of an input: its number
  const Place& place(ValueId v) const { return places_[v.node][v.port]; }

 private:
  void survey(const Graph& body);
  void look_at(const Graph& body, NodeId id);
  void check_row_op(const Graph& body, const Node& node);
  void check_sum(const Graph& body, const Node& node);
  void check_transposed(const Graph& body, const Node& node);
  void set_rows(const Shape& x);
  void refuse(std::string reason) {
    if (refusal.empty()) refusal = std::move(reason);
  }
  std::vector<std::vector<Place>> places_;
};

}  // namespace brrr::cuda
