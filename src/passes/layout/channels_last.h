#pragma once
// channels_last: pictures lie as [N, H, W, C] between convolutions. The layout is the shape itself:
// convolutions and pools have the attribute {channels_last}, everything else computes on transposed
// shapes, so that fusion, autodiff, memory planning and every kernel work as on any other graph.

#include <functional>
#include <optional>

#include "ir/graph.h"
#include "passes/passes.h"

namespace brrr {

/// Which graphs change their layout.
enum class LayoutChoice {
  always,
  /// Those whose dense convolutions with windows of several elements do at least a quarter of the
  /// multiply-adds of all convolutions. In f32 inference, products and depthwise convolutions are
  /// as fast with channels first.
  by_windows,
};

/// Convolutions and pools over two axes for which the target has kernels read and write pictures
/// with channels last, and so do the element-wise ops, reductions, concats, pads and slices between
/// them. Transposes remain at the borders. Before differentiate: the backward pass follows. Results
/// are rounded in another order than before.
Graph channels_last(const Graph& graph, const Target& target,
                    LayoutChoice choice = LayoutChoice::always, Notes* notes = nullptr);

/// The storage in which a convolution is to read its weight; nothing: the weight stays as it is.
using StorageOfWindows = std::function<std::optional<Storage>(NodeId conv)>;
struct WindowWeights {
  Graph graph;
  size_t convolutions = 0;  // whose weights are stored otherwise now
  int64_t elements = 0;     // of these weights
};
/// Weights of convolutions with channels last that are made of parameters alone become matrices
/// [M, kernel... C/G] in the storage that is asked for, where the target has a kernel for it.
WindowWeights store_window_weights(const Graph& graph, const Target& target,
                                   const StorageOfWindows& storage_of);

/// Weights of such convolutions that are made of parameters alone become matrices in panels, as
/// kernels read them. For a loader, who makes them once.
Graph window_panels(const Graph& graph, const Target& target, Notes* notes = nullptr);

}  // namespace brrr
