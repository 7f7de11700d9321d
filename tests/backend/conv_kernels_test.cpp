// Compares every convolution and pool kernel with the op's fp64 reference on every instruction set
// of the machine: sizes below and above a tile and a task, strides, dilations, groups and padding.
// Also checks that bits depend neither on the number of threads nor on alignment.

#include <gtest/gtest.h>

#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "ops/ops.h"
#include "ops/spatial/windows.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

class ConvKernels : public test::EachIsa {};

struct ConvCase {
  std::vector<int64_t> x, w;
  std::vector<int64_t> strides, dilations, pads;
  int64_t groups = 1;
  bool bias = false;
  DType dtype = DType::f32;

  Attrs attrs(bool channels_last) const {
    Attrs all{{"strides", strides}, {"dilations", dilations}, {"pads", pads}, {"groups", groups}};
    if (channels_last) all.set("channels_last", true);
    return all;
  }
  ops::Pictures pictures(bool channels_last) const {
    return {Dim(x[0]), x[1], {x.begin() + 2, x.end()}, channels_last};
  }
  Shape weight() const { return Shape(std::vector<Dim>(w.begin(), w.end())); }

  Call call(bool channels_last = false) const {
    Sample sample{{{{dtype, pictures(channels_last).shape()}, -1, 1}, {{dtype, weight()}, -1, 1}},
                  attrs(channels_last)};
    if (bias) sample.in.push_back({{DType::f32, Shape{w[0]}}, -1, 1});
    sample.attrs.set("bias", bias);
    return Call(op(Op::conv), sample);
  }

  /// The derivative of call() in x or in w.
  Call gradient(Op of, bool channels_last) const {
    const Call forward = call(channels_last);
    const Type y = forward.view().out()[0];
    Attrs all = attrs(channels_last);
    if (of == Op::conv_transpose) {
      all.set("sizes", std::vector<int64_t>(x.begin() + 2, x.end()));
      return Call(op(of), Sample{{{y, -1, 1}, {{dtype, weight()}, -1, 1}}, all});
    }
    all.set("kernel", std::vector<int64_t>(w.begin() + 2, w.end()));
    return Call(op(of),
                Sample{{{{dtype, pictures(channels_last).shape()}, -1, 1}, {y, -1, 1}}, all});
  }
};

ConvCase plane(int64_t channels, int64_t high, int64_t wide, int64_t outputs, int64_t kernel,
               int64_t stride, int64_t dilation, int64_t pad, int64_t groups = 1) {
  return {.x = {1, channels, high, wide},
          .w = {outputs, channels / groups, kernel, kernel},
          .strides = {stride, stride},
          .dilations = {dilation, dilation},
          .pads = {pad, pad, pad, pad},
          .groups = groups,
          .bias = outputs % 2 == 0};
}

std::vector<ConvCase> conv_cases() {
  std::vector<ConvCase> list;
  for (const int64_t wide : {1, 3, 4, 7, 8, 15, 17, 40})
    for (const int64_t outputs : {1, 2, 5, 7, 13, 16})
      list.push_back(plane(3, 5, wide, outputs, 3, 1, 1, 1));
  for (const int64_t stride : {1, 2, 3})
    for (const int64_t dilation : {1, 2, 3})
      for (const int64_t kernel : {1, 2, 3, 5})
        for (const int64_t pad : {0, 1, 4})
          list.push_back(plane(4, 19, 21, 6, kernel, stride, dilation, pad, 2));
  for (ConvCase c : {
           // The sum has several blocks of planes, the image several tasks.
           plane(100, 9, 33, 20, 3, 1, 1, 1),
           plane(70, 30, 50, 12, 3, 2, 1, 1),
           plane(9, 60, 60, 12, 7, 1, 1, 3),
           // A row is split into several tasks.
           ConvCase{{2, 3, 4000}, {8, 3, 5}, {1}, {2}, {4, 3}, 1, true},
           ConvCase{{1, 2, 2, 3300}, {4, 2, 2, 3}, {1, 2}, {1, 1}, {0, 1, 1, 0}},
           // A kernel along one axis, and three spatial axes.
           ConvCase{{2, 24, 30, 8}, {10, 24, 1, 3}, {1, 1}, {1, 1}, {0, 1, 0, 1}},
           ConvCase{{2, 24, 30, 8}, {10, 24, 3, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
           ConvCase{{2, 5, 4, 6, 7}, {6, 5, 3, 3, 3}, {1, 2, 1}, {1, 1, 2}, {1, 1, 2, 2, 0, 2}},
           // Some taps read only padding, and there is a single window.
           ConvCase{{1, 4, 2, 2}, {4, 4, 3, 3}, {1, 1}, {4, 4}, {6, 6, 6, 6}},
           ConvCase{{3, 16, 3, 3}, {5, 16, 3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
           // A depthwise convolution with short rows.
           plane(8, 12, 13, 8, 3, 1, 1, 1, 8),
           plane(4, 20, 50, 8, 3, 2, 1, 1, 4),
       }) {
    list.push_back(c);
    for (const DType t : {DType::bf16, DType::f16}) {
      c.dtype = t;
      list.push_back(c);
    }
  }
  return list;
}

void check_on_all_kernels(const Call& call) {
  const std::vector<RefTensor> wanted = call.wanted();
  int accepted = 0;
  for (const KernelEntry& entry : cpu_kernels()) {
    if (entry.op != call.node().op->id || !entry.refusal(call.view()).empty()) continue;
    SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
    ++accepted;
    set_thread_count(2);
    const std::vector<Buffer> got = run_kernel(entry, call);
    expect_close(call, got, wanted);
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(entry, call, 1), got) << "with " << threads << " threads";
    }
  }
  EXPECT_GE(accepted, 1) << call.text();
}

TEST_P(ConvKernels, OfEverySize) {
  for (const ConvCase& c : cases_for(conv_cases(), 40)) check_on_all_kernels(c.call());
}

std::vector<ConvCase> channels_last_cases() {
  std::vector<ConvCase> list;
  // Rows of windows that fill tiles, or do not; panels of columns that are full, or are not.
  for (const int64_t wide : {1, 5, 7, 14, 15, 29})
    for (const int64_t outputs : {1, 16, 33})
      list.push_back(plane(5, 4, wide, outputs, 3, 1, 1, 1));
  for (const int64_t stride : {1, 2, 3})
    for (const int64_t kernel : {1, 2, 3, 5})
      for (const int64_t pad : {0, 1, 4}) {
        list.push_back(plane(4, 11, 13, 6, kernel, stride, 1, pad, 2));
        list.push_back(plane(6, 11, 13, 6, kernel, stride, 1, pad, 6));
      }
  for (ConvCase c : {plane(3, 17, 18, 20, 7, 2, 1, 3), plane(4, 15, 16, 8, 3, 1, 2, 2),
                     // Rows of which neighbours fall on the same set of the cache.
                     plane(512, 3, 9, 40, 3, 1, 1, 1), plane(1024, 2, 15, 33, 1, 1, 1, 0),
                     // Several units in a task and several tasks.
                     plane(64, 40, 41, 18, 3, 1, 1, 1)}) {
    c.x[0] = 3;
    list.push_back(c);
  }
  list.push_back({{2, 5, 33}, {7, 5, 4}, {2}, {1}, {1, 2}, 1, true});
  for (size_t i = 0; i < list.size(); i += 7) {
    list.push_back(list[i]);
    list.back().dtype = i % 2 == 0 ? DType::bf16 : DType::f16;
  }
  return list;
}

TEST_P(ConvKernels, WithChannelsLast) {
  for (const ConvCase& c : cases_for(channels_last_cases(), 20)) check_on_all_kernels(c.call(true));
}

TEST_P(ConvKernels, GradientsWithChannelsLast) {
  for (const ConvCase& c : cases_for(channels_last_cases(), 20))
    for (const Op of : {Op::conv_transpose, Op::conv_weight_grad}) {
      if (of == Op::conv_transpose && c.dilations[0] > 1 && c.strides[0] > 1) continue;
      check_on_all_kernels(c.gradient(of, true));
    }
}

/// max_pool has the same values whether its indices are read or not.
TEST_P(ConvKernels, MaxPoolsOfEverySize) {
  std::vector<ConvCase> list;
  for (const int64_t wide : {1, 2, 5, 8, 17, 40})
    for (const int64_t stride : {1, 2, 3, 4})
      for (const int64_t kernel : {1, 2, 3, 5})
        for (const int64_t dilation : {1, 2})
          if ((kernel - 1) * dilation < wide + kernel / 2)
            list.push_back(plane(3, 7, wide, 3, kernel, stride, dilation, kernel / 2));
  list.push_back(
      {.x = {2, 3, 50}, .w = {1, 1, 3}, .strides = {2}, .dilations = {1}, .pads = {1, 0}});
  for (ConvCase c : cases_for(list, 40))
    for (const DType t : {DType::f32, DType::bf16}) {
      const Sample sample{{{{t, Shape(std::vector<Dim>(c.x.begin(), c.x.end()))}, -1, 1}},
                          {{"kernel", std::vector<int64_t>(c.w.begin() + 2, c.w.end())},
                           {"strides", c.strides},
                           {"dilations", c.dilations},
                           {"pads", c.pads}}};
      Call all(op(Op::max_pool), sample), values = all;
      values.graph.outputs().pop_back();
      const std::vector<RefTensor> wanted = all.wanted();
      for (const KernelEntry& entry : cpu_kernels()) {
        if (entry.op != Op::max_pool || !entry.refusal(values.view()).empty()) continue;
        SCOPED_TRACE(values.text() + " by " + std::string(entry.name));
        const std::vector<Buffer> got = run_kernel(entry, values, 1);
        for (size_t i = 0; i < wanted[0].size(); ++i)
          ASSERT_EQ(read_tensor(values.view().out()[0], got[0].data()).number(i),
                    wanted[0].number(i));
        if (entry.refusal(all.view()).empty()) expect_close(all, run_kernel(entry, all), wanted);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Isa, ConvKernels, test::every_isa(), test::isa_of);

}  // namespace
}  // namespace brrr::cpu
