// Pictures between convolutions lie with channels last, results stay, and transposes remain at the
// borders alone.

#include "passes/layout/channels_last.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "ops/spatial/windows.h"
#include "support/gpt2.h"
#include "support/tensors.h"

namespace brrr {
namespace {

const Windows kSame{{1, 1}, {1, 1}, {1, 1, 1, 1}};
const Windows kHalf{{2, 2}, {1, 1}, {1, 1, 1, 1}};

/// A target that has kernels for everything but for what `refused` names.
Target target_that_refuses(std::optional<Op> refused = std::nullopt) {
  Target t;
  t.runs = [refused](const Graph& g, NodeId id) { return !refused || !is(g.node(id), *refused); };
  return t;
}

size_t count(const Graph& g, Op op) {
  return static_cast<size_t>(
      std::ranges::count_if(g.nodes(), [&](const Node& n) { return is(n, op); }));
}

/// Runs the pass, compares results, and returns the new graph.
Graph changed(const Graph& g, const Target& target = target_that_refuses()) {
  const reference::Tensors in = test::random_inputs(g, 3, -1, 1, 3);
  Notes notes;
  const Graph out = channels_last(g, target, LayoutChoice::always, &notes);
  EXPECT_LT(test::difference(reference::evaluate(g, in), reference::evaluate(out, in)), 1e-12);
  EXPECT_EQ(notes.empty(), out == g);
  return out;
}

struct Pictures {
  Graph g;
  Value x = g.input("x", {2, 5, 9, 8}, DType::f32);
  Value w = g.parameter("w", {6, 5, 3, 3}), b = g.parameter("b", {6});
  Value v = g.parameter("v", {6, 6, 3, 3});
  Value first() { return conv(x, w, b, kSame, 1); }
};

TEST(ChannelsLast, ResidualBlockHasTransposesAtItsBorders) {
  Pictures p;
  const Value y = relu(p.first());
  const Value scale = p.g.parameter("s", {6, 1, 1}), shift = p.g.parameter("t", {1, 6, 1, 1});
  const Value z = conv(y, p.v, std::nullopt, kSame, 1) * scale + shift;
  p.g.output("y", relu(z + y) * 0.5);
  const Graph out = changed(p.g);
  EXPECT_EQ(count(out, Op::transpose), 2u);
  EXPECT_TRUE(std::ranges::all_of(out.nodes(), [](const Node& node) {
    return !is(node, Op::conv) || ops::has_channels_last(node.attrs);
  }));
}

TEST(ChannelsLast, PoolsFollowConvolutions) {
  Pictures p;
  const Value y = max_pool(p.first(), {3, 3}, kHalf).values;
  p.g.output("pooled", sum_pool(y, {2, 2}, {{1, 1}, {1, 1}, {0, 0, 0, 0}}));
  p.g.output("features", mean(y, {2, 3}));
  p.g.output("rows", max(y, {3}, true));
  p.g.output("columns", sum(y, {1}));
  const Graph out = changed(p.g);
  EXPECT_EQ(count(out, Op::transpose), 3u);
}

TEST(ChannelsLast, IndicesOfAPoolKeepItWithChannelsFirst) {
  Pictures p;
  const MaxPool pool = max_pool(p.first(), {2, 2}, kHalf);
  p.g.output("values", pool.values);
  p.g.output("indices", pool.indices);
  const Graph out = changed(p.g);
  EXPECT_TRUE(std::ranges::none_of(out.nodes(), [](const Node& node) {
    return is(node, Op::max_pool) && ops::has_channels_last(node.attrs);
  }));
}

TEST(ChannelsLast, AxesOfMovementsAreMapped) {
  Pictures p;
  const Value y = p.first();
  const Value parts[] = {y, slice(y, 1, 1, 3)};
  p.g.output("channels", concat(parts, 1));
  p.g.output("rows", pad(slice(y, 2, 2, 4), 3, 1, 2));
  const Value ids = p.g.input("ids", {3}, DType::i32);
  p.g.output("taken", relu(gather(y, ids, 2)));
  changed(p.g);
}

TEST(ChannelsLast, BatchNormAndItsGradient) {
  Pictures p;
  const Value weight = p.g.parameter("weight", {6}), bias = p.g.parameter("bias", {6});
  const BatchNorm n = batch_norm(p.first(), weight, bias, 1e-5);
  p.g.output("loss", sum(square(n.y) * 0.5 + n.y, {0, 1, 2, 3}));
  p.g.output("mean", n.mean);
  const Graph out = changed(p.g);
  EXPECT_EQ(count(out, Op::transpose), 1u);
  const reference::Tensors in = test::random_inputs(p.g, 3, -1, 1, 3);
  EXPECT_LT(test::difference(reference::evaluate(differentiate(p.g), in),
                             reference::evaluate(differentiate(out), in)),
            1e-9);
}

TEST(ChannelsLast, BroadcastsAgainstPictures) {
  Pictures p;
  const Value y = p.first();
  const Value row = p.g.input("row", {8}, DType::f32),
              plane = p.g.input("plane", {9, 8}, DType::f32),
              channel = p.g.input("channel", {6, 1, 1}, DType::f32),
              image = p.g.input("image", {2, 1, 1, 1}, DType::f32);
  p.g.output("y", (y + row) * plane + channel - image);
  changed(p.g);
}

TEST(ChannelsLast, NodesWithoutAKernelStay) {
  Pictures p;
  p.g.output("y", relu(p.first()));
  EXPECT_EQ(changed(p.g, target_that_refuses(Op::conv)), p.g);
  Graph line;  // one spatial axis
  const Value x = line.input("x", {2, 5, 9}, DType::f32), w = line.parameter("w", {6, 5, 3});
  line.output("y", conv(x, w, std::nullopt, {{1}, {1}, {1, 1}}, 1));
  EXPECT_EQ(changed(line), line);
}

TEST(ChannelsLast, TransposedConvolutions) {
  Graph g;
  const Value x = g.input("x", {2, 4, 5, 6}, DType::f32), w = g.parameter("w", {4, 3, 2, 2});
  g.output("y", relu(conv_transpose(x, w, {10, 12}, {{2, 2}, {1, 1}, {0, 0, 0, 0}}, 1)));
  const Graph out = changed(g);
  EXPECT_EQ(count(out, Op::transpose), 2u);
}

TEST(ChannelsLast, NetsOfProductsAndDepthwiseConvolutionsMayStay) {
  // A block of a mobile net: product, depthwise convolution, product.
  Graph mobile;
  const Value x = mobile.input("x", {1, 8, 6, 6}, DType::f32);
  const Windows whole{{1, 1}, {1, 1}, {0, 0, 0, 0}};
  const Value wide = conv(x, mobile.parameter("a", {32, 8, 1, 1}), std::nullopt, whole, 1);
  const Value deep = conv(wide, mobile.parameter("d", {32, 1, 3, 3}), std::nullopt, kSame, 32);
  mobile.output("y", conv(deep, mobile.parameter("b", {8, 32, 1, 1}), std::nullopt, whole, 1));
  const Target target = target_that_refuses();
  EXPECT_EQ(channels_last(mobile, target, LayoutChoice::by_windows), mobile);
  EXPECT_NE(channels_last(mobile, target, LayoutChoice::always), mobile);

  Pictures dense;
  dense.g.output("y", dense.first());
  EXPECT_NE(channels_last(dense.g, target, LayoutChoice::by_windows), dense.g);
}

TEST(WindowPanels, WeightsOfParametersBecomeMatrices) {
  Pictures p;
  const Value scale = p.g.parameter("s", {6, 1, 1, 1});
  const Value y = conv(p.first(), p.v * scale, std::nullopt, kSame, 1);
  p.g.output("y", y);
  const Graph last = changed(p.g);
  Notes notes;
  const Graph out = window_panels(last, target_that_refuses(), &notes);
  EXPECT_EQ(notes.size(), 1u);
  const reference::Tensors in = test::random_inputs(p.g, 3, -1, 1, 3);
  EXPECT_LT(test::difference(reference::evaluate(p.g, in), reference::evaluate(out, in)), 1e-12);
  EXPECT_EQ(count(out, Op::store), 2u);
  // A weight that is data stays as it is.
  Graph data;
  const Value x = data.input("x", {1, 3, 4, 4}, DType::f32),
              w = data.input("w", {2, 3, 3, 3}, DType::f32);
  data.output("y", conv(x, w, std::nullopt, kSame, 1));
  const Graph with_data = channels_last(data, target_that_refuses());
  EXPECT_EQ(window_panels(with_data, target_that_refuses()), with_data);
}

}  // namespace
}  // namespace brrr
