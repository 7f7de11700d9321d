// Every entry of the kernel list for matmul and linear against the meaning of the op: the samples
// of the op table in every dtype, bias dtypes, batches of every form. Bits depend neither on
// threads nor, but for oneDNN, on alignment.

#include <gtest/gtest.h>
#include <set>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/kernel_runner.h"
#include "base/threads/thread_team.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::Buffer;
using test::Call;

Sample::Operand operand(Shape shape, DType dtype) { return {{dtype, std::move(shape)}, -1, 1}; }

class MatmulKernels : public test::EachIsa {};

std::vector<KernelEntry> all_matmul_kernels() {
  std::vector<KernelEntry> all = matmul_kernels();
  for (KernelEntry& entry : integer_matmul_kernels()) all.push_back(std::move(entry));
  for (KernelEntry& entry : exact_matmul_kernels()) all.push_back(std::move(entry));
  return all;
}

/// Names of the entries that took the call; each was compared with the reference.
std::set<std::string> check(const Call& call) {
  std::set<std::string> names;
  std::vector<RefTensor> wanted;
  for (const KernelEntry& entry : all_matmul_kernels()) {
    if (entry.op != call.node().op->id || !entry.refusal(call.view()).empty()) continue;
    SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
    names.insert(std::string(entry.name));
    set_thread_count(2);
    const std::vector<Buffer> got = run_kernel(entry, call);
    if (wanted.empty()) wanted = call.wanted();
    expect_close(call, got, wanted);
    for (const int threads : {1, 3}) {
      set_thread_count(threads);
      EXPECT_EQ(run_kernel(entry, call), got) << "with " << threads << " threads";
    }
    if (entry.name == "onednn") {
      expect_close(call, run_kernel(entry, call, 1), wanted);
    } else {
      EXPECT_EQ(run_kernel(entry, call, 1), got) << "with other alignment";
    }
  }
  return names;
}

Sample with_dtypes(Sample sample, DType operands, DType bias, DType result) {
  for (size_t i = 0; i < sample.in.size(); ++i) sample.in[i].type.dtype = i < 2 ? operands : bias;
  if (result != operands) sample.attrs.set("dtype", result);
  return sample;
}

TEST_P(MatmulKernels, EverySampleInEveryDtype) {
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (const char* name : {"matmul", "linear"}) {
    for (const Sample& sample : op(name).samples()) {
      check(Call(op(name), sample));
      if (sample.in[0].type.dtype == DType::i8) continue;  // numbers too large for f16
      for (const DType operands : dtypes) {
        const Type& right = sample.in[1].type;
        if (!storage_refusal(right.storage, operands, right.shape).empty()) continue;
        for (const DType bias : dtypes)
          for (const DType result : dtypes)
            check(Call(op(name), with_dtypes(sample, operands, bias, result)));
      }
    }
  }
}

TEST_P(MatmulKernels, OneTakesEveryPlainProduct) {
  const std::pair<Shape, Shape> shapes[] = {
      {{1, 1}, {1, 1}},         {{2, 3, 65}, {65, 130}}, {{4, 2, 7, 33}, {4, 2, 33, 9}},
      {{1, 300}, {300, 257}},   {{7, 33}, {5, 33, 9}},   {{3, 0, 5}, {5, 4}},
      {{3, 4, 0}, {3, 0, 5}},   {{0, 4, 5}, {5, 6}},     {{129, 64}, {64, 97}},
      {{1, 1, 64}, {1, 64, 31}}};
  for (const auto& [a, b] : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Sample sample{{operand(a, dtype), operand(b, dtype)},
                          {{"transpose_a", false}, {"transpose_b", false}}};
      EXPECT_GE(check(Call(op("matmul"), sample)).size(), 1u);
    }
  }
}

TEST_P(MatmulKernels, TransposesOfBatches) {
  for (const int trans : {0, 1, 2, 3}) {
    const bool ta = (trans & 1) != 0, tb = (trans & 2) != 0;
    const Shape a = ta ? Shape{3, 2, 40, 70} : Shape{3, 2, 70, 40};
    const Shape b = tb ? Shape{3, 2, 33, 40} : Shape{3, 2, 40, 33};
    const Shape b1 = tb ? Shape{33, 40} : Shape{40, 33};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Shape& right : {b, b1}) {
        const Sample sample{{operand(a, dtype), operand(right, dtype)},
                            {{"transpose_a", ta}, {"transpose_b", tb}}};
        EXPECT_GE(check(Call(op("matmul"), sample)).size(), 1u);
      }
    }
  }
}

TEST_P(MatmulKernels, Int8InEveryFormAndSize) {
  const auto whole = [](Shape shape) {
    return Sample::Operand{{DType::i8, std::move(shape)}, -128, 127};
  };
  std::vector<Sample> samples, large;
  for (const int trans : {0, 1, 2, 3}) {
    const bool ta = (trans & 1) != 0, tb = (trans & 2) != 0;
    const Attrs attrs{{"transpose_a", ta}, {"transpose_b", tb}};
    for (const int64_t m : {1, 2, 17, 33})
      for (const int64_t n : {1, 16, 33, 130})
        for (const int64_t k : {0, 1, 63, 65, 200})
          samples.push_back(
              {{whole(ta ? Shape{k, m} : Shape{m, k}), whole(tb ? Shape{n, k} : Shape{k, n})},
               attrs});
    samples.push_back({{whole(ta ? Shape{3, 2, 65, 40} : Shape{3, 2, 40, 65}),
                        whole(tb ? Shape{3, 2, 33, 65} : Shape{3, 2, 65, 33})},
                       attrs});
  }
  // Terms, rows and columns beyond one piece of packing memory.
  for (const auto& [m, k, n] : {std::tuple{1, 9001, 300}, std::tuple{40, 9001, 70},
                                std::tuple{300, 4500, 40}, std::tuple{20, 300, 1500}})
    large.push_back(
        {{whole({m, k}), whole({k, n})}, {{"transpose_a", false}, {"transpose_b", false}}});
  for (const auto& drawn : {test::sampled_if_sanitized(samples, 80, "int8"),
                            test::sampled_if_sanitized(large, 2, "large")})
    for (Sample sample : drawn) {
      EXPECT_TRUE(check(Call(op("matmul"), sample)).contains("gemm_int8"));
      Type& right = sample.in[1].type;
      if (sample.attrs.get<bool>("transpose_a") || right.shape.rank() != 2) continue;
      right.storage.layout = right_layout(sample.attrs.get<bool>("transpose_b"));
      EXPECT_TRUE(check(Call(op("matmul"), sample)).contains("exact_integers"));
    }
}

TEST_P(MatmulKernels, BatchesBroadcastInPart) {
  const std::pair<Shape, Shape> shapes[] = {
      {{3, 1, 4, 8}, {2, 8, 5}}, {{1, 5, 33, 16}, {4, 1, 16, 7}}, {{2, 1, 3, 9, 6}, {4, 1, 6, 11}}};
  for (const auto& [a, b] : shapes) {
    for (const auto& [dtype, kernel] : {std::pair{DType::f32, "gemm_f32"},
                                        {DType::bf16, "gemm_widening"},
                                        {DType::i8, "gemm_int8"}}) {
      const Sample sample{{operand(a, dtype), operand(b, dtype)},
                          {{"transpose_a", false}, {"transpose_b", false}}};
      EXPECT_TRUE(check(Call(op("matmul"), sample)).contains(kernel)) << name_of(dtype);
    }
  }
}

TEST_P(MatmulKernels, OnednnInBlocksOfRows) {
  for (const int64_t m : {255, 256, 257, 700}) {
    const Sample sample{
        {operand({m, 65}, DType::f32), operand({65, 70}, DType::f32), operand({70}, DType::f32)},
        {}};
    EXPECT_TRUE(check(Call(op("linear"), sample)).contains("onednn"));
    const Sample transposed{{operand({65, m}, DType::f32), operand({70, 65}, DType::f32)},
                            {{"transpose_a", true}, {"transpose_b", true}}};
    EXPECT_TRUE(check(Call(op("matmul"), transposed)).contains("onednn"));
  }
}

TEST(MatmulKernelList, RefusesWithAReason) {
  const Sample sample{{operand({3, 4}, DType::f64), operand({4, 5}, DType::f64)},
                      {{"transpose_a", false}, {"transpose_b", false}}};
  const Call call(op("matmul"), sample);
  for (const KernelEntry& entry : all_matmul_kernels()) {
    if (entry.op != Op::matmul) continue;
    EXPECT_NE(entry.accepts(call.view()), "") << entry.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MatmulKernels, test::every_isa(), test::isa_of);

}  // namespace
}  // namespace brrr::cpu
