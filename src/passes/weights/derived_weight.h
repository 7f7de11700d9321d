#pragma once
// A derived weight: a weight in another form (in 16 bits, in panels, the weights of q, k and v side
// by side) is the result of a small closed graph over one or more parameters. It is an input of
// Role::derived that carries this graph {form} and, for each of its inputs a0, a1, ..., the name of
// the parameter {a0}, {a1}, .... The parameters are the source: who writes one of them has to make
// the derived weights again. An optimizer's update does it in its program (derive_weights),
// everyone else through the engine (runtime/weight_refresher.h) or load_parameters().

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace brrr {

struct DerivedWeight {
  std::vector<std::string> sources;  // parameters, in the order of the inputs of `form`
  Region form;                       // its output "0" is the weight

  /// That of the result of its form.
  const Type& type() const;
  /// Its input is called after its sources and its form, so that programs that share parameters
  /// share it: "wte.weight:bf16", "wte.weight:store:1f2e3d4c".
  std::string name() const;
  bool operator==(const DerivedWeight&) const = default;
};

/// The input that holds it; it is added where there is none yet.
Value derived_input(Graph& graph, const DerivedWeight& weight);
/// What the attributes of an input say; nothing: it is no derived weight. UserError for one that
/// does not say what it is made of, or whose name or type are not those of what it says.
std::optional<DerivedWeight> derived_weight(const Attrs& input);

/// Appends the nodes that make it out of its sources; the weight.
Value make_weight(Graph& graph, const DerivedWeight& weight, std::span<const Value> sources);

/// The program that makes all of them out of the parameters: an update for each.
Graph refresh_graph(std::span<const DerivedWeight> weights);

}  // namespace brrr
