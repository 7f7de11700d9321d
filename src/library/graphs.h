#pragma once
// A graph of the C interface, with the initial values of its parameters.

#include <cstdint>
#include <map>
#include <string>

#include "base/weight_source.h"
#include "ir/graph.h"
#include "library/api.h"
#include "models/parameters.h"

namespace brrr::library {

/// Tells graphs of this process apart: 1, 2, ...
uint64_t new_graph_id();

}  // namespace brrr::library

struct brrr_graph {
  brrr::Graph graph;
  const uint64_t id = brrr::library::new_graph_id();
  std::map<std::string, brrr::models::Fill, std::less<>> fills;
  std::map<std::string, brrr::Shape, std::less<>> shapes;  // of parameters
  int64_t next_stream = 0;                                 // of random numbers of dropout
};

namespace brrr::library {

/// The initial values of the graph's parameters: functions of the seed and their names.
FloatWeights initial_weights(const brrr_graph& graph, uint32_t seed);

}  // namespace brrr::library
