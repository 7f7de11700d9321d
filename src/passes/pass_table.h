#pragma once
// The pass table: the order in which passes run, and for each of them what it needs, what it gives
// and when it applies. pipeline.cpp runs the table, docs/passes.md is printed from it.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "passes/pipeline.h"

namespace brrr {

/// What a pass that has run makes true of the graph.
enum class Fact : uint8_t {
  cast,               // it computes in 16 bits what autocast allows
  differentiated,     // it has a backward pass
  updating,           // it updates parameters, or sums their gradients
  accumulating,       // products give f32 where f32 is read
  in_8_bits,          // products of blocks multiply 8-bit numbers
  decomposed,         // every op has a kernel or is primitive
  deriving_weights,   // what is made of parameters alone is an input
  recomputing,        // forward values are computed again in the backward pass
  lowering_products,  // f32 products multiply bf16 or tf32 numbers
  fused,              // clusters are nodes
  with_epilogues,     // products have epilogues
  scheduled,          // its order is the one in which it will run
};
std::string_view name_of(Fact fact);

struct PassContext {
  const Target& target;
  const PipelineOptions& options;  // `disabled` also holds what BRRR_DISABLE_PASS names
  /// Runs what the table holds after this pass, without a report.
  std::function<Graph(const Graph&)> finish;
};

struct PassResult {
  Graph graph;
  Notes notes;
};

/// Where a pass may stand.
struct PassOrder {
  std::vector<Fact> needs = {};   // must hold before it runs
  std::vector<Fact> before = {};  // must not hold yet
  std::vector<Fact> gives = {};   // hold once it has run
};

struct Pass {
  std::string name;
  bool optional = false;  // --disable-pass may name it
  std::string_view when;  // `applies` in words
  std::function<bool(const PassContext&)> applies;
  PassOrder order;
  std::string_view file;  // under src/
  std::string_view doc;   // one or two sentences
  std::function<PassResult(const Graph&, const PassContext&)> run;
  /// The runner lets it run on the regions of `if` and `loop`, too, before the graph around them;
  /// it must keep the inputs of a graph, in their order, and the types of its outputs.
  bool enters_regions = false;
};

/// Every pass, in order; simplify stands in several places.
std::span<const Pass> pass_table();

/// run_pipeline() with another table. Throws InternalError when a pass does not find what it needs,
/// or comes after what it must come before.
Graph run_passes(std::span<const Pass> table, const Graph& graph, const Target& target,
                 const PipelineOptions& options, PipelineReport* report = nullptr);

}  // namespace brrr
