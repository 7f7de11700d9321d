#include "runtime/ranks/division.h"

#include <algorithm>

#include "base/integers.h"
#include "ir/op_def.h"
#include "ops/op.h"

namespace brrr {
namespace {

/// Granularity of the parts in all_reduce, finer than that of shards, so that small tensors are
/// divided as well.
constexpr int64_t kReduced = 16;

bool sums(const Node& node) { return is(node, Op::all_reduce, Op::reduce_scatter); }
bool gathers(const Node& node) { return is(node, Op::all_reduce, Op::all_gather); }

int64_t element_bytes(const Graph& graph, const Node& node) {
  return bytes_of(graph.type(node.operands[0]).dtype);
}

}  // namespace

Division::Division(std::span<const Type> tensors, int64_t ranks, int64_t multiple) : ranks_(ranks) {
  int64_t room = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    elements_.push_back(tensors[i].shape.elements());
    each_.push_back(round_up(ceil_div(elements_[i], ranks), multiple));
    for (int64_t at = 0; at < std::min(each_[i], elements_[i]);) {
      if (room == 0) exchanges_.emplace_back(), room = kExchanged;
      const int64_t count = std::min(room, each_[i] - at);
      exchanges_.back().push_back({i, at, count});
      at += count, room -= count;
    }
  }
}

Division division_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto ranks = node.attrs.get<int64_t>("ranks");
  if (is(node, Op::all_gather)) return {node.results, ranks, node.attrs.get<int64_t>("block")};
  return {operand_types(graph, node), ranks, is(node, Op::all_reduce) ? kReduced : kShardBlock};
}

Sent sent_by(const Graph& graph, NodeId id, int64_t rank) {
  const Node& node = graph.node(id);
  const Division division = division_of(graph, id);
  Sent sent;
  if (sums(node)) sent.exchanges += std::ssize(division.exchanges());
  if (gathers(node)) ++sent.exchanges;
  for (size_t i = 0; i < division.tensors(); ++i) {
    const int64_t own = division.part(i, rank).size();
    if (sums(node)) sent.bytes += (division.elements(i) - own) * element_bytes(graph, node);
    if (gathers(node)) sent.bytes += own * (division.ranks() - 1) * element_bytes(graph, node);
  }
  return sent;
}

double mean_bytes_sent(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Division division = division_of(graph, id);
  double elements = 0;
  for (size_t i = 0; i < division.tensors(); ++i)
    elements += static_cast<double>(division.elements(i));
  const auto ranks = static_cast<double>(division.ranks());
  return (static_cast<double>(sums(node)) + static_cast<double>(gathers(node))) * (ranks - 1) /
         ranks * elements * static_cast<double>(element_bytes(graph, node));
}

}  // namespace brrr
