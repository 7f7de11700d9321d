// Convolutions of pictures with channels last whose weights lie in panels of 16 bits or of
// integers, against the op's fp64 reference, on every instruction set of the machine: sizes around
// tiles, panels and units, strides, dilations, groups, all dtypes, and what follows the product in
// registers.

#include "backend/cpu/spatial/packed_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/ops.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

class PackedConvs : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, PackedConvs, test::every_isa(), test::isa_of);

struct PackedCase {
  int64_t n = 1, high = 1, wide = 1, channels = 4, outputs = 1;
  int64_t kernel = 1, stride = 1, dilation = 1, pad = 0, groups = 1;
  DType dtype = DType::bf16;
  int32_t bits = 0;  // of the weights; 0: panels of 16 bits

  Call call() const {
    const Shape w{outputs, kernel * kernel * channels / groups};
    Sample sample;
    sample.in = {{{dtype, Shape{n, high, wide, channels}}, -2, 1},
                 {{dtype, w, {Layout::transposed_panels, {bits, bits == 0 ? 0 : 1, 0}}}, -1, 1}};
    sample.attrs = {{"strides", std::vector<int64_t>(2, stride)},
                    {"dilations", std::vector<int64_t>(2, dilation)},
                    {"pads", std::vector<int64_t>(4, pad)},
                    {"kernel", std::vector<int64_t>(2, kernel)},
                    {"groups", groups},
                    {"channels_last", true},
                    {"bias", outputs % 2 == 0}};
    if (outputs % 2 == 0) sample.in.push_back({{DType::f32, Shape{outputs}}, -1, 1});
    if (bits != 0) sample.attrs.set("left_bits", int64_t{bits});
    return Call(op(Op::conv), sample);
  }
};

/// Without dtypes.
std::vector<PackedCase> packed_shapes() {
  std::vector<PackedCase> list;
  for (const int64_t wide : {1, 5, 7, 14, 15, 29})
    for (const int64_t outputs : {1, 16, 33, 64})
      list.push_back(
          {.high = 4, .wide = wide, .channels = 8, .outputs = outputs, .kernel = 3, .pad = 1});
  for (const int64_t stride : {1, 2, 3})
    for (const int64_t kernel : {1, 2, 3, 5})
      for (const int64_t pad : {0, 1, 4})
        list.push_back({.n = 2,
                        .high = 11,
                        .wide = 13,
                        .channels = 20,
                        .outputs = 34,
                        .kernel = kernel,
                        .stride = stride,
                        .dilation = pad == 1 ? 2 : 1,
                        .pad = pad});
  for (const PackedCase& c :
       {PackedCase{.high = 9,
       .wide = 8,
       .channels = 24,
       .outputs = 96,
       .kernel = 3,
       .pad = 1,
       .groups = 3},
        // Rows of which neighbours fall on the same set of the cache.
        PackedCase{.high = 3, .wide = 9, .channels = 1024, .outputs = 40, .kernel = 3, .pad = 1},
        PackedCase{.n = 2, .high = 2, .wide = 15, .channels = 2048, .outputs = 33},
        // Several units in a picture, in a task, and tasks.
        PackedCase{.high = 61, .wide = 60, .channels = 64, .outputs = 18, .kernel = 3, .pad = 1},
        PackedCase{.n = 9, .high = 30, .wide = 31, .channels = 64, .outputs = 66, .stride = 2},
        PackedCase{
            .n = 24, .high = 7, .wide = 7, .channels = 64, .outputs = 40, .kernel = 3, .pad = 1}})
    list.push_back(c);
  return list;
}

std::vector<PackedCase> packed_cases() {
  std::vector<PackedCase> list;
  for (PackedCase c : packed_shapes()) {
    for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
      c.dtype = t;
      c.bits = t == DType::f32 || list.size() % 3 == 0 ? 8 : 0;
      list.push_back(c);
    }
  }
  // With an odd number of channels, the two terms of a 32-bit word lie in different runs.
  for (const DType t : {DType::bf16, DType::f16})
    for (const int64_t channels : {3, 5})
      list.push_back({.n = 2,
                      .high = 9,
                      .wide = 10,
                      .channels = channels,
                      .outputs = 40,
                      .kernel = 3,
                      .stride = 2,
                      .dilation = channels == 5 ? 2 : 1,
                      .pad = 1,
                      .dtype = t});
  return list;
}

/// All ways in which this machine multiplies the terms of a case.
std::vector<PackedTerms> terms_for(const PackedCase& c, const NodeView& v) {
  std::vector<PackedTerms> list{PackedConv::best_terms(v)};
  const int64_t channels = c.channels / c.groups;
  if (c.bits != 0 && channels % 64 == 0) list.push_back(PackedTerms::emulated_integer_tiles);
  if (c.bits == 0 && c.dtype == DType::bf16 && channels % 32 == 0)
    list.push_back(PackedTerms::emulated_bf16_tiles);
  const bool has_pairs = has_bf16_pairs() && current_isa() >= Isa::kAvx512;
  if (list[0] == PackedTerms::bf16_as_floats && has_pairs && channels % 2 == 0)
    list.push_back(PackedTerms::bf16_pairs);
  return list;
}

std::vector<const void*> pointers(const std::vector<Buffer>& buffers) {
  std::vector<const void*> list;
  for (const Buffer& b : buffers) list.push_back(b.data());
  return list;
}

TEST_P(PackedConvs, OfEverySize) {
  for (const PackedCase& c : test::sampled(cases_for(packed_cases(), 25), 60, "packed")) {
    const Call call = c.call();
    SCOPED_TRACE(call.text());
    ASSERT_EQ(PackedConv::refusal(call.view()), "");
    const std::vector<RefTensor> wanted = call.wanted();
    for (const PackedTerms terms : terms_for(c, call.view())) {
      const KernelEntry entry{Op::conv, "packed", PackedConv::refusal, [&](const NodeView& v) {
                                struct Direct final : Kernel {
                                  PackedConv conv;
                                  Direct(const NodeView& node, PackedTerms t) : conv(node, t) {}
                                  int64_t scratch_bytes() const override {
                                    return conv.scratch_bytes();
                                  }
                                  void run(const KernelArgs& args) override {
                                    conv.run(args.in.data(), args.out[0], args.scratch);
                                  }
                                };
                                return std::unique_ptr<Kernel>(std::make_unique<Direct>(v, terms));
                              }};
      set_thread_count(2);
      const std::vector<Buffer> got = test::run_kernel(entry, call);
      test::expect_close(call, got, wanted);
      for (const int threads : {1, 3}) {
        set_thread_count(threads);
        EXPECT_EQ(test::run_kernel(entry, call), got) << "with " << threads << " threads";
      }
    }
  }
}

/// A residual and relu in registers, and an epilogue on blocks of f32.
TEST_P(PackedConvs, WhatFollowsTheProduct) {
  for (const PackedCase& c : test::sampled(cases_for(packed_cases(), 12), 40, "finished")) {
    const Call call = c.call();
    SCOPED_TRACE(call.text());
    set_thread_count(2);
    const Type type = call.view().out()[0];
    const RefTensor product = call.wanted()[0];
    const PackedConv conv(call.view());
    const std::vector<Buffer> in = call.operand_buffers();
    const std::vector<const void*> operands = pointers(in);
    Buffer scratch(conv.scratch_bytes()), y(type.bytes()), residual(type.bytes());
    std::vector<double> added(product.size());
    for (size_t i = 0; i < added.size(); ++i) added[i] = static_cast<double>(i % 17) - 8;
    write_floats({}, type.dtype, type.shape, added, residual.data());
    conv.run(operands.data(), y.data(), scratch.data(), residual.data(), true);
    EXPECT_TRUE(y.intact() && scratch.intact());
    RefTensor wanted = product;
    double largest = 1;
    for (size_t i = 0; i < wanted.size(); ++i) {
      largest = std::max(largest, std::fabs(product.data[i]));
      wanted.data[i] = std::max(0.0, product.data[i] + added[i]);
    }
    std::vector<Buffer> got{y};
    test::expect_close(call, got, {wanted}, {largest + 8});

    struct Matrix {
      std::vector<float> values;
      int64_t columns;
    } matrix{std::vector<float>(product.size()), c.outputs};
    const auto copy = [](const void* context, int64_t row, int64_t column, int64_t rows,
                         int64_t columns, float* block, int64_t ld) {
      auto& m = *static_cast<Matrix*>(const_cast<void*>(context));
      for (int64_t i = 0; i < rows; ++i)
        std::copy_n(block + i * ld, columns, m.values.data() + (row + i) * m.columns + column);
    };
    conv.run(operands.data(), nullptr, scratch.data(), {copy, &matrix});
    const double bound = test::tolerance(type.dtype, test::terms_of(call)) * (largest + 8);
    for (size_t i = 0; i < product.size(); ++i)
      ASSERT_NEAR(matrix.values[i], product.data[i], bound) << "element " << i;
  }
}

/// A picture has the bits that it has alone, however its rows are divided.
TEST_P(PackedConvs, PicturesOfABatch) {
  for (const int32_t bits : {0, 8}) {
    PackedCase c{.n = 17,
                 .high = 14,
                 .wide = 14,
                 .channels = 64,
                 .outputs = 40,
                 .kernel = 3,
                 .pad = 1,
                 .dtype = DType::bf16,
                 .bits = bits};
    const Call whole = c.call();
    c.n = 1;
    const Call alone = c.call();
    for (const PackedTerms terms : terms_for(c, whole.view())) {
      set_thread_count(2);
      const PackedConv of_whole(whole.view(), terms), of_alone(alone.view(), terms);
      std::vector<Buffer> in = whole.operand_buffers();
      Buffer y(whole.view().out()[0].bytes()), scratch(of_whole.scratch_bytes());
      of_whole.run(pointers(in).data(), y.data(), scratch.data());
      Buffer own(of_alone.scratch_bytes()), one(alone.view().out()[0].bytes());
      for (size_t i = 0; i < 17; ++i) {
        std::vector<const void*> operands = pointers(in);
        operands[0] = in[0].data() + in[0].size() / 17 * i;
        of_alone.run(operands.data(), one.data(), own.data());
        EXPECT_EQ(std::memcmp(one.data(), y.data() + one.size() * i, one.size()), 0)
            << "picture " << i << ", " << bits << " bits, terms " << static_cast<int>(terms);
      }
    }
  }
}

/// Integers of a picture do not depend on what another picture holds.
TEST_P(PackedConvs, OnePictureThatIsNotFinite) {
  const PackedCase c{.n = 3,
                     .high = 6,
                     .wide = 7,
                     .channels = 8,
                     .outputs = 34,
                     .kernel = 3,
                     .pad = 1,
                     .dtype = DType::f32,
                     .bits = 8};
  Call call = c.call();
  const std::vector<double> finite = call.values[0];
  const size_t picture = finite.size() / 3;
  call.values[0][picture + 5] = INFINITY;
  for (size_t i = 2 * picture; i < 3 * picture; ++i) call.values[0][i] = 0;
  const std::vector<RefTensor> wanted = call.wanted();
  for (const KernelEntry& entry : cpu_kernels()) {
    if (entry.op != Op::conv || !entry.refusal(call.view()).empty()) continue;
    const std::vector<Buffer> got = test::run_kernel(entry, call);
    test::expect_close(call, got, wanted);
    const RefTensor y = read_tensor(call.view().out()[0], got[0].data());
    EXPECT_TRUE(std::isfinite(y.data[0]));
    EXPECT_TRUE(std::isnan(y.data[y.size() / 2]));
  }
}

TEST(PackedConv, Refusals) {
  PackedCase c{.high = 4, .wide = 4, .channels = 6, .outputs = 32, .dtype = DType::f32, .bits = 8};
  EXPECT_EQ(PackedConv::refusal(c.call().view()), "channels that are no multiple of 4");
  c = {.high = 4, .wide = 4, .channels = 8, .outputs = 32, .groups = 2};
  EXPECT_EQ(PackedConv::refusal(c.call().view()), "groups that share panels");
}

}  // namespace
}  // namespace brrr::cpu
