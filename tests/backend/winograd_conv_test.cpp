// 3 x 3 convolutions by Winograd's algorithm, against the op's fp64 reference on every instruction
// set of the machine: sizes around tiles, panels and blocks, pads, what follows the product in
// registers, and pictures in a batch. The error against the plain sum in double, beside that of the
// kernel that computes the plain sum.

#include "backend/cpu/spatial/winograd_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/ops.h"
#include "ops/spatial/conv.h"
#include "ops/spatial/winograd.h"
#include "support/each_isa.h"
#include "support/engine_run.h"
#include "support/tensors.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

class WinogradConvs : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, WinogradConvs, test::every_isa(), test::isa_of);

struct WinogradCase {
  int64_t tile = 4;
  int64_t n = 1, high = 8, wide = 8, channels = 4, outputs = 1;
  std::vector<int64_t> pads{1, 1, 1, 1};

  Call call() const {
    const int64_t places = ops::winograd_size(tile) * ops::winograd_size(tile);
    Sample sample;
    sample.in = {
        {{DType::f32, Shape{n, high, wide, channels}}, -1, 1},
        {{DType::f32, Shape{outputs, places * channels}, {Layout::transposed_panels}}, -1, 1}};
    sample.attrs = {{"strides", std::vector<int64_t>(2, 1)},
                    {"dilations", std::vector<int64_t>(2, 1)},
                    {"pads", pads},
                    {"kernel", std::vector<int64_t>(2, 3)},
                    {"groups", int64_t{1}},
                    {"winograd", tile},
                    {"channels_last", true},
                    {"bias", outputs % 2 == 0}};
    if (outputs % 2 == 0) sample.in.push_back({{DType::f32, Shape{outputs}}, -1, 1});
    return Call(op(Op::conv), sample);
  }
};

std::vector<WinogradCase> winograd_cases() {
  std::vector<WinogradCase> list;
  for (const int64_t tile : {2, 4}) {
    for (const int64_t wide : {1, 2, 3, 4, 5, 9, 14})
      for (const int64_t outputs : {1, 16, 33, 64})
        list.push_back({.tile = tile, .high = 5, .wide = wide, .channels = 7, .outputs = outputs});
    for (const int64_t channels : {1, 4, 16, 33, 64})
      list.push_back({.tile = tile, .n = 2, .high = 6, .channels = channels, .outputs = 34});
    for (const std::vector<int64_t>& pads :
         {std::vector<int64_t>{0, 0, 0, 0}, {2, 0, 1, 3}, {0, 5, 4, 0}})
      list.push_back({.tile = tile, .high = 7, .channels = 8, .outputs = 20, .pads = pads});
    // Many panels, neighbours on the same set of the cache, sums of several blocks.
    list.push_back({.tile = tile, .high = 4, .channels = 20, .outputs = 200});
    list.push_back({.tile = tile, .n = 3, .high = 6, .channels = 512, .outputs = 40});
    list.push_back({.tile = tile, .high = 3, .wide = 4, .channels = 1600, .outputs = 10});
    // Several blocks: fewer than threads take, and more.
    list.push_back({.tile = tile, .n = 2, .high = 30, .wide = 29, .channels = 32, .outputs = 34});
    list.push_back({.tile = tile, .n = 3, .high = 57, .wide = 58, .channels = 16, .outputs = 17});
  }
  return list;
}

/// The largest result.
double magnitude(const Call& call) {
  double largest = 0;
  const auto wanted = call.wanted();
  for (const double x : wanted[0].data) largest = std::max(largest, std::fabs(x));
  return largest;
}

KernelEntry winograd_entry() {
  for (const KernelEntry& entry : cpu_kernels())
    if (entry.op == Op::conv && entry.name == "winograd") return entry;
  throw InternalError("no kernel");
}

std::vector<const void*> addresses(const std::vector<Buffer>& buffers) {
  std::vector<const void*> list;
  for (const Buffer& b : buffers) list.push_back(b.data());
  return list;
}

TEST_P(WinogradConvs, OfEverySize) {
  const KernelEntry entry = winograd_entry();
  for (const WinogradCase& c : cases_for(winograd_cases(), 20)) {
    const Call call = c.call();
    SCOPED_TRACE(call.text());
    for (const KernelEntry& other : cpu_kernels()) {
      if (other.op != Op::conv) continue;
      EXPECT_EQ(other.refusal(call.view()).empty(), other.name == "winograd") << other.name;
    }
    set_thread_count(2);
    const std::vector<Buffer> got = test::run_kernel(entry, call);
    test::expect_close(call, got, call.wanted());
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(test::run_kernel(entry, call, 1), got) << "with " << threads << " threads";
    }
  }
}

/// A residual over which the result is written, relu, and an epilogue on blocks.
TEST_P(WinogradConvs, WhatFollowsTheProduct) {
  for (const WinogradCase& c : cases_for(winograd_cases(), 8)) {
    const Call call = c.call();
    SCOPED_TRACE(call.text());
    set_thread_count(2);
    const Type type = call.view().out()[0];
    const RefTensor product = call.wanted()[0];
    const WinogradConv conv(call.view());
    const std::vector<Buffer> in = call.operand_buffers();
    const std::vector<const void*> operands = addresses(in);
    Buffer scratch(conv.scratch_bytes()), y(type.bytes());
    std::vector<double> added(product.size());
    for (size_t i = 0; i < added.size(); ++i) added[i] = static_cast<double>(i % 17) - 8;
    write_floats({}, type.dtype, type.shape, added, y.data());
    conv.run(operands.data(), y.data(), scratch.data(),
             {reinterpret_cast<const float*>(y.data()), true});
    EXPECT_TRUE(y.intact() && scratch.intact());
    RefTensor wanted = product;
    for (size_t i = 0; i < wanted.size(); ++i)
      wanted.data[i] = std::max(0.0, product.data[i] + added[i]);
    const double largest = magnitude(call) + 8;
    test::expect_close(call, {y}, {wanted}, {largest});

    struct Matrix {
      std::vector<float> values;
      int64_t columns;
    } matrix{std::vector<float>(product.size(), NAN), c.outputs};
    const auto copy = [](const void* context, int64_t row, int64_t column, int64_t rows,
                         int64_t columns, float* block, int64_t ld) {
      auto& m = *static_cast<Matrix*>(const_cast<void*>(context));
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(block + i * ld, columns, m.values.data() + (row + i) * m.columns + column);
    };
    conv.run(operands.data(), nullptr, scratch.data(), {copy, &matrix});
    const double bound = test::tolerance(type.dtype, test::terms_of(call)) * largest;
    for (size_t i = 0; i < product.size(); ++i)
      ASSERT_NEAR(matrix.values[i], product.data[i], bound) << "element " << i;
  }
}

/// A picture has the bits that it has alone, however tiles are divided into blocks.
TEST_P(WinogradConvs, PicturesOfABatch) {
  const size_t pictures = test::is_sanitized() ? 3 : 17;
  for (const int64_t tile : {2, 4}) {
    WinogradCase c{.tile = tile,
                   .n = static_cast<int64_t>(pictures),
                   .high = 14,
                   .wide = 13,
                   .channels = 64,
                   .outputs = 40};
    const Call whole = c.call();
    c.n = 1;
    const Call alone = c.call();
    set_thread_count(2);
    const WinogradConv of_whole(whole.view()), of_alone(alone.view());
    std::vector<Buffer> in = whole.operand_buffers();
    Buffer y(whole.view().out()[0].bytes()), scratch(of_whole.scratch_bytes());
    of_whole.run(addresses(in).data(), y.data(), scratch.data());
    Buffer own(of_alone.scratch_bytes()), one(alone.view().out()[0].bytes());
    for (size_t i = 0; i < pictures; ++i) {
      std::vector<const void*> operands = addresses(in);
      operands[0] = in[0].data() + in[0].size() / pictures * i;
      of_alone.run(operands.data(), one.data(), own.data());
      EXPECT_EQ(std::memcmp(one.data(), y.data() + one.size() * i, one.size()), 0)
          << "picture " << i << ", tiles of " << tile;
    }
  }
}

struct Errors {
  double largest = 0, mean = 0;
};

/// Errors of a graph's result in units of 2^-24 times the sum of |x| |w| of each element.
Errors errors_of(const Graph& g, const reference::Tensors& in, const RefTensor& exact,
                 const RefTensor& magnitudes) {
  const test::Bytes got = test::run_on_cpu(g, in);
  const RefTensor y = read_tensor(exact.type, got.at("y").data());
  Errors e;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = std::ldexp(std::fabs(y.data[i] - exact.data[i]) / magnitudes.data[i], 24);
    e.largest = std::max(e.largest, error);
    e.mean += error / static_cast<double>(y.size());
  }
  return e;
}

/// Measured, in units of 2^-24 of the sum of |x| |w|: the plain sum's error is 0.28 in the mean and
/// 3.6 at most, that of tiles of 2 is 0.22 and 1.6, that of tiles of 4 is 0.66 and 9.3.
TEST_P(WinogradConvs, ErrorsBesideThePlainSum) {
  constexpr int64_t kChannels = 64, kOutputs = 64;
  const Windows same{{1, 1}, {1, 1}, {1, 1, 1, 1}, true};
  Graph plain;
  const Value x = plain.input("x", {1, 16, 16, kChannels}, DType::f32),
              w = plain.input("w", {kOutputs, kChannels, 3, 3}, DType::f32);
  plain.output("y", conv(x, w, std::nullopt, same, 1));
  const reference::Tensors in = test::random_inputs(plain, 11, -1, 1, 3);
  const RefTensor exact = reference::evaluate(plain, in).at("y");
  reference::Tensors sizes = in;
  for (auto& [name, t] : sizes)
    for (double& number : t.data) number = std::fabs(number);
  const RefTensor magnitudes = reference::evaluate(plain, sizes).at("y");
  const Errors direct = errors_of(plain, in, exact, magnitudes);
  for (const int64_t tile : {2, 4}) {
    Graph g;
    const Value picture = g.input("x", x.type()), kernel = g.input("w", w.type());
    const Value matrix = store(winograd_weight(kernel, tile), Storage{Layout::transposed_panels});
    g.output("y", conv_by_matrix(picture, matrix, {3, 3}, std::nullopt, same, 1, tile));
    const RefTensor meaning = reference::evaluate(g, in).at("y");
    for (size_t i = 0; i < meaning.size(); ++i)
      ASSERT_NEAR(meaning.data[i], exact.data[i], 1e-12 * magnitudes.data[i]);
    const Errors e = errors_of(g, in, exact, magnitudes);
    RecordProperty(fmt::format("tile_{}", tile),
                   fmt::format("largest {:.2f}, mean {:.3f}; plain {:.2f}, {:.3f}", e.largest,
                               e.mean, direct.largest, direct.mean));
    EXPECT_LT(e.mean, (tile == 2 ? 1 : 2.5) * direct.mean);
    EXPECT_LT(e.largest, (tile == 2 ? 1 : 3) * direct.largest);
  }
}

TEST(WinogradConv, Refusals) {
  Call call = WinogradCase{}.call();
  EXPECT_EQ(WinogradConv::refusal(call.view()), "");
  Graph g;
  const Windows same{{1, 1}, {1, 1}, {1, 1, 1, 1}, true};
  const Value x = g.input("x", {1, 4, 4, 3}, DType::f32), rows = g.input("w", {2, 108}, DType::f32);
  const Value y = conv_by_matrix(x, rows, {3, 3}, std::nullopt, same, 1, 4);
  EXPECT_EQ(WinogradConv::refusal(NodeView(g, y.id.node)), "weights in rows");
}

}  // namespace
}  // namespace brrr::cpu
