#pragma once
// Low-rank adapters of products (LoRA, Hu et al. 2021): x W becomes x W + s (x Aᵀ) Bᵀ. A 1 x 1
// convolution is such a product over the channels of each place.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/storage.h"
#include "ir/graph.h"

namespace brrr {

/// The adapter of one weight, whose products it changes wherever a graph has them.
struct ProductAdapter {
  /// The parameter W: [in, out] or, transposed, [out, in]; of a convolution [out, in, 1, 1].
  std::string weight = {};
  /// The parameters A, f32 [rank, in], and B, f32 [out, rank]; of a convolution with the axes 1, 1.
  std::string a = {}, b = {};
  int64_t rank = 0;         // at least 1
  double scale = 1;         // s
  double dropout = 0;       // probability of dropping an element of x in front of A, in training
  int64_t stream = 0;       // random stream of the dropout
  std::string factor = {};  // f32 [out]: multiplies x W + s (x Aᵀ) Bᵀ, as DoRA does; "": none
  bool is_trained = true;   // A and B; the factor never is
  int64_t number = 0;       // the adapter's number where rows choose (choose_adapters.h), from 1
};

/// Name of a boolean attribute of inputs: A, B or a factor of an adapter, which stays a float where
/// weights are quantised.
inline constexpr std::string_view kOfAdapter = "of_adapter";

/// Name of a boolean attribute of inputs: a frozen parameter below adapters. Training neither
/// changes nor saves it, so that it may be held in any form that products read.
inline constexpr std::string_view kOfBase = "of_base";
bool is_of_base(const Graph& graph, NodeId parameter);
/// Freezes a parameter and sets kOfBase.
void put_below_adapters(Graph& graph, NodeId parameter);

/// The quantised form in which training holds a parameter below adapters.
struct BaseForm {
  /// Panels, packed from the integers and scales that the weight source lists (integers_name,
  /// scales_name), or blocks. Nothing: the files hold integers of a kind that training cannot use
  /// as they are, so that the weight is held as floats.
  std::optional<Storage> storage = std::nullopt;
  std::string tensor = {};  // the source's tensor in these blocks; "": the parameter's own
  bool is_made = false;     // blocks are made by the loader, from the floats of the source
};
/// Forms by the name of the parameter.
using BaseForms = std::map<std::string, BaseForm, std::less<>>;

/// Records the form in the attributes of a parameter.
void set_base_form(Graph& graph, NodeId parameter, const BaseForm& form);
/// The recorded form; it has no storage where nothing was recorded.
BaseForm base_form(const Graph& graph, NodeId parameter);

/// What a graph with adapters is for.
enum class AdapterUse {
  training,  // drops elements; the key is the input "rng_key", which is added where it is missing
  inference,
};

/// Adds the adapters to every matmul, linear and conv node whose right operand is the weight.
/// Several adapters of one weight are summed; those that have a factor stand alone. A graph without
/// the weight stays as it is.
Graph add_adapters(const Graph& graph, std::span<const ProductAdapter> adapters, AdapterUse use);

/// The parameter that a node multiplies by, as W of x W or x Wᵀ with x on the left, or of a 1 x 1
/// convolution without groups; kNoNode: the node is no such product.
NodeId multiplied_parameter(const Graph& graph, NodeId node);

}  // namespace brrr
