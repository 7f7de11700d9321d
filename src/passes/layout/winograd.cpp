#include "passes/layout/winograd.h"

#include "base/human.h"
#include "ops/spatial/windows.h"
#include "ops/spatial/winograd.h"
#include "passes/layout/channels_last.h"

namespace brrr {
namespace {

bool is_suitable(const Graph& g, NodeId conv) {
  const Node& node = g.node(conv);
  const Shape& w = g.type(node.operands[1]).shape;
  const Windows windows = ops::windows_of(node.attrs);
  const std::vector<int64_t> ones(2, 1);
  return node.results[0].dtype == DType::f32 && w.rank() == 4 && w.size(2) == 3 && w.size(3) == 3 &&
         node.attrs.get<int64_t>("groups") == 1 && windows.strides == ones &&
         windows.dilations == ones;
}

}  // namespace

int64_t winograd_tile(int64_t high, int64_t wide, int64_t channels, int64_t outputs) {
  // Fewer terms and columns leave the register tiles of products too little to do.
  constexpr int64_t kLeastChannels = 16;
  if (std::min(channels, outputs) < kLeastChannels) return 0;
  // Costs for each pair of channels, in multiply-adds. Transforms cost as much as kTransform more
  // output channels, and again as much as so many more input channels. A weight that a picture
  // reads costs kReading where a cache does not keep it: half of what it takes from memory on two
  // cores, because pictures of a batch share it. Fitted to bench/micro_conv --winograd.
  constexpr double kTransform = 5.5, kReading = 9, kKeptWeights = 1 << 18, kLeastGain = 1.1;
  const auto pairs = static_cast<double>(channels * outputs);
  const double transforms =
      kTransform / static_cast<double>(channels) + kTransform / static_cast<double>(outputs);
  const auto reading = [&](double weights) {
    return weights * pairs > kKeptWeights ? weights * kReading : 0;
  };
  double least = (9 * static_cast<double>(high * wide) + reading(9)) / kLeastGain;
  int64_t best = 0;
  for (const int64_t tile : {2, 4}) {
    const auto places = static_cast<double>(ops::winograd_size(tile) * ops::winograd_size(tile));
    const auto tiles =
        static_cast<double>(ops::winograd_tiles(high, tile) * ops::winograd_tiles(wide, tile));
    const double cost = places * tiles * (1 + transforms) + reading(places);
    if (cost >= least) continue;
    least = cost;
    best = tile;
  }
  return best;
}

Graph winograd(const Graph& graph, const Target& target, Notes* notes) {
  WindowWeights result =
      store_window_weights(graph, target, [&](NodeId conv) -> std::optional<WindowForm> {
        if (!is_suitable(graph, conv)) return std::nullopt;
        const Node& node = graph.node(conv);
        const Shape &y = node.results[0].shape, &w = graph.type(node.operands[1]).shape;
        const int64_t tile = winograd_tile(y.size(1), y.size(2), w.size(1), w.size(0));
        if (tile == 0) return std::nullopt;
        return WindowForm{{Layout::transposed_panels}, tile};
      });
  if (notes && result.convolutions > 0)
    notes->push_back(
        fmt::format("{} by Winograd's algorithm", counted(result.convolutions, "convolution")));
  return std::move(result.graph);
}

}  // namespace brrr
