#pragma once
// Low-rank adapters that each row of a graph chooses: one of them, all, or none. Texts of several
// adapters are generated side by side over one base (Punica: Chen et al. 2023; S-LoRA: Sheng et al.
// 2023).

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/graph.h"
#include "passes/adapters/add_adapters.h"

namespace brrr {

/// Name of a boolean attribute of an `add`: both operands are products, whose sum has the rounding
/// of one product. Autocast adds them in f32 and rounds once, where it would round a product.
inline constexpr std::string_view kRoundsAsProduct = "rounds_as_product";

/// The number in "adapters" of a row that uses the sum of all adapters.
inline constexpr int32_t kAllAdapters = -1;

/// Adds adapters to a graph of Model::decode_sequences(). The new input "adapters", i32 [N], has
/// for each token the number of its adapter (ProductAdapter::number), 0 for the base alone, or
/// kAllAdapters.
///
/// The matrices A of all adapters are stacked along the rank axis, and so are the columns of B:
/// x W becomes x W + (where(a column is of the row's adapter, s x Aᵀ, 0)) Bᵀ. Both are products of
/// ordinary packed weights; ranks and scales may differ, and layers that an adapter leaves alone
/// have no columns of it. A column of another adapter adds an exact 0, and a row without an adapter
/// has the bits of the graph without adapters. Products of the same rows
/// share one stack of A. Dropout and factors are not supported: this is for inference.
Graph add_chosen_adapters(const Graph& graph, std::span<const ProductAdapter> adapters);

}  // namespace brrr
