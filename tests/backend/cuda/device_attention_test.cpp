// The attention kernels under the emulation, in 16 bits and f32, against fp64: every option,
// lengths that fill no tile, both head widths of the matrix unit; and the loss head and the updates
// in the dtypes of mixed precision.

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "backend/cuda/attention_cases.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/node_plan.h"
#include "ops/op.h"
#include "support/cuda_emulator.h"
#include "support/long_proof.h"

namespace brrr::cuda {
namespace {

const Backend& backend() {
  static const Backend b = test::emulated_backend();
  return b;
}
/// So small that a block of threads goes from one block of rows to the next, section after section.
const Backend& small_backend() {
  static const Backend b = [] {
    GpuDescription gpu;
    gpu.multiprocessors = 2;
    gpu.l2_bytes = 128 << 10;
    gpu.shared_bytes = 161 * 1024;
    return test::emulated_backend(gpu);
  }();
  return b;
}

template <typename Cases>
void check_attention(const Cases& cases, bool backward, bool by_matrix_unit = true) {
  // Without --long a sample of the cases in bf16, every third of them in f32 and in f16, too.
  std::vector<Call> calls;
  size_t number = 0;
  const std::vector all(std::begin(cases), std::end(cases));
  for (const auto& c : test::sampled(all, by_matrix_unit ? 9 : all.size(), "attention")) {
    const size_t third = number++ % 3;
    calls.push_back(call_of(c, DType::bf16, backward));
    if (test::is_long() || third == 0) calls.push_back(call_of(c, DType::f16, backward));
    if (test::is_long() || third == 1) calls.push_back(call_of(c, DType::f32, backward));
  }
  std::vector<const KernelEntry*> entries;
  for (const KernelEntry& entry : backend().kernels) entries.push_back(&entry);
  for (const KernelEntry& entry : small_backend().kernels)
    if (entry.name == "tma") entries.push_back(&entry);
  std::map<std::string_view, int> calls_of;
  for (int pass = 0; pass < 2; ++pass) {
    for (const Call& call : calls) {
      std::vector<RefTensor> wanted;
      for (const KernelEntry* which : entries) {
        const KernelEntry& entry = *which;
        if (entry.op != call.node().op->id || !entry.accepts(call.view()).empty()) continue;
        if (pass == 0) {
          entry.prepare(call.view());
          continue;
        }
        SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
        ++calls_of[entry.name];
        if (wanted.empty()) wanted = call.wanted();
        expect_close(call, run_kernel(entry, call), wanted, magnitudes(call, wanted, backward));
      }
    }
    if (pass == 0) test::compile_emulated();
  }
  EXPECT_GT(calls_of["tiles"], 0);
  if (!by_matrix_unit) {
    EXPECT_EQ(calls_of["mma"] + calls_of["wgmma"] + calls_of["tma"], 0);
    return;
  }
  EXPECT_GE(calls_of["mma"], test::rounds(16, 4));
  EXPECT_EQ(calls_of["wgmma"], calls_of["mma"]);
  EXPECT_EQ(calls_of["tma"], 2 * calls_of["mma"]);
}

TEST(DeviceAttention, Forward) { check_attention(kCases, false); }
TEST(DeviceAttention, Backward) { check_attention(kCases, true); }
TEST(DeviceAttention, ForwardByTheSimpleKernel) { check_attention(kSimpleCases, false, false); }
TEST(DeviceAttention, BackwardByTheSimpleKernel) { check_attention(kSimpleCases, true, false); }

/// Scores in units of log2 must not become -inf, which would hide all keys.
TEST(DeviceAttention, RowsOfTheLowestNumberAreTheMeanOfTheValues) {
  const double lowest = std::numeric_limits<float>::lowest();
  std::vector<Call> calls;
  for (const bool added : {true, false}) {
    const Type mask{added ? DType::f32 : DType::boolean, {1, 1, 70}};
    Sample s{{operand({2, 40, 64}, -1, 1, DType::bf16),
              operand({2, 70, 64}, -1, 1, DType::bf16),
              operand({2, 70, 64}, -1, 1, DType::bf16),
              {mask, added ? lowest : 0, added ? lowest : 0}},
             test::attention_attrs(2, 2, 64, 64)};
    s.attrs.set("mask", true);
    if (!added) s.attrs.set("masked", lowest);
    calls.emplace_back(op("attention"), s);
  }
  int checked = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (const Call& call : calls)
      for (const KernelEntry& entry : backend().kernels) {
        if (entry.op != Op::attention || !entry.accepts(call.view()).empty()) continue;
        if (pass == 0) {
          entry.prepare(call.view());
          continue;
        }
        SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
        const RefTensor wanted = call.wanted()[0];
        const std::vector<Buffer> got = run_kernel(entry, call);
        for (int64_t i = 0; i < wanted.type.shape.elements(); ++i)
          ASSERT_NEAR(load_as_double(DType::bf16, got[0].data(), i),
                      wanted.number(static_cast<size_t>(i)), 0.01)
              << i;
        ++checked;
      }
    if (pass == 0) test::compile_emulated();
  }
  EXPECT_GE(checked, 4);
}

/// What the matrix unit's kernels and cuDNN leave to the simple kernel, by name.
TEST(DeviceAttention, RefusalsHaveAReason) {
  for (const auto& [number, reason] : {std::pair{0, "2 key and value heads for 6 query heads"},
                                       {2, "a window"},
                                       {4, "a position for each sequence"}}) {
    const Call call = call_of(kSimpleCases[number], DType::bf16, false);
    for (const PlanEntry& entry : device_kernels()) {
      if (entry.op != Op::attention) continue;
      EXPECT_EQ(entry.accepts(call.view(), {}), entry.name == "tiles" ? "" : reason) << entry.name;
    }
    SdpaCall sdpa;
    EXPECT_EQ(as_sdpa_call(call.view(), {}, sdpa), reason);
  }
}
TEST(DevicePackedAttention, Forward) { check_attention(kPackedCases, false); }
TEST(DevicePackedAttention, Backward) { check_attention(kPackedCases, true); }

/// Heads that begin between multiples of 16 bytes are none for the matrix unit.
TEST(DevicePackedAttention, LeavesRowsThatAreNotAlignedToTiles) {
  auto refusals = [](int64_t first) {
    const int64_t all = 7 * 3 * 2 * 64;
    Graph g;
    const Value x = g.input("x", {8 + all}, DType::bf16);
    const Value qkv = reshape(slice(x, 0, first, all), {1, 7, 3 * 2 * 64});
    const Value y = brrr::call(Op::attention, std::vector<Value>{qkv},
                               call_of(kPackedCases[0], DType::bf16, false).node().attrs)[0];
    return backend().choose(NodeView(g, y.id.node)).refusals;
  };
  EXPECT_TRUE(refusals(8).empty());
  EXPECT_EQ(refusals(1).size(), 3u);
}

/// What is measured of one attention must not decide for another: their grids may be the same.
TEST(DeviceAttention, KernelsOfOneNameHaveKeysOfTheirOwn) {
  const Case plain{.heads = 2, .queries = 64, .keys = 64, .width = 64};
  Case causal = plain, dropped = plain, wide = plain, more_keys = plain;
  causal.causal = true;
  dropped.p = 0.1;
  wide.width = 128;
  more_keys.keys = 128;
  for (const PlanEntry& entry : device_kernels()) {
    if (!entry.is_rival || entry.op != Op::attention) continue;
    std::set<std::string> keys;
    for (const Case& c : {plain, causal, dropped, wide, more_keys}) {
      const Call call = call_of(c, DType::bf16, false);
      keys.insert(describe(own_plan(entry.plan(call.view(), {}), "way")));
    }
    EXPECT_EQ(keys.size(), 5u) << entry.name;
  }
}

/// Where a kernel is suspected, the next in the list takes its place, and it is no way of others.
TEST(DeviceAttention, AKernelCanBeLeftOut) {
  const Call call = call_of(kCases[0], DType::bf16, false);
  Backend on_gpu;
  on_gpu.kernels = cuda_kernels({});
  const auto ways_without = [&](const char* names) {
    ::setenv("BRRR_DISABLE_KERNEL", names, 1);
    const auto kernel = on_gpu.choose(call.view()).entry->prepare(call.view());
    ::unsetenv("BRRR_DISABLE_KERNEL");
    std::vector<std::string> list;
    for (const NodePlan& way : dynamic_cast<CudaKernel&>(*kernel).ways()) list.push_back(way.name);
    return list;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(ways_without(""), (Names{"cudnn", "tma", "wgmma", "mma"}));
  EXPECT_EQ(ways_without("tma"), (Names{"cudnn", "wgmma", "mma"}));
  EXPECT_EQ(ways_without("tma,cudnn"), (Names{"wgmma", "mma"}));
  EXPECT_EQ(ways_without("tma,wgmma,mma"), (Names{"cudnn", "tiles"}));
}

/// Logits, losses and both gradients in bf16; the gradient of the logits is rounded once more, and
/// so may be the logits: then a loss is as far off as a logit in 16 bits. A row of few classes is a
/// warp's, one of many a block's; the classes as they are, and with zeros behind the last.
TEST(DeviceLossHead, InBf16) {
  struct Head {
    int64_t rows, width, classes;
    bool transposed, rounds;
  };
  for (const Head& h : {Head{70, 24, 56, true, false},
                        {70, 24, 56, false, false},
                        {70, 24, 56, true, true},
                        {3, 16, 9001, true, true},
                        {3, 16, 9001, true, false},
                        {3, 16, 9001, false, true},
                        {3, 16, 9001, false, false}})
    for (const char* name :
         {"linear_cross_entropy", "linear_cross_entropy_step", "linear_cross_entropy_grad"}) {
      const std::string_view which = name;
      const Shape x{h.rows, h.width}, rows{h.rows};
      const Shape w = h.transposed ? Shape{h.classes, h.width} : Shape{h.width, h.classes};
      const double log_classes = std::log(static_cast<double>(h.classes));
      Sample s{{operand(x, -1, 1, DType::bf16), operand(w, -1, 1, DType::bf16),
                operand(rows, -1, static_cast<double>(h.classes), DType::i32)},
               {{"ignore_index", int64_t{-1}}, {"transpose_w", h.transposed}}};
      if (h.rounds) s.attrs.set("round_logits", true);
      if (which.ends_with("grad")) {
        s.in.push_back(operand(rows, log_classes, log_classes + 1));
        s.attrs.set("dlse", true);
      }
      if (which != "linear_cross_entropy") s.in.push_back(operand(rows));
      if (which.ends_with("grad")) s.in.push_back(operand(rows));
      const Call call(op(name), s);
      const std::vector<RefTensor> wanted = call.wanted();
      std::vector<double> sizes = magnitudes(call, wanted, true);
      for (size_t i = 0; h.rounds && i < sizes.size(); ++i)
        sizes[i] *= wanted[i].type.dtype == DType::f32 ? 4096 : 4;
      std::set<std::string_view> ways;
      for (const KernelEntry& entry : backend().kernels)
        if (name_of(entry.op) == which) {
          SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
          EXPECT_EQ(entry.accepts(call.view()), "");
          expect_close(call, run_kernel(entry, call), wanted, sizes);
          ways.insert(entry.name);
        }
      EXPECT_EQ(ways, (std::set<std::string_view>{"chunks", "padded_chunks"}));
    }
}

/// Where classes fill tiles, there is nothing to pad.
TEST(DeviceLossHead, IsPaddedOnlyWhereThatAddsClasses) {
  const auto refusal = [](int64_t classes) {
    const Call call(
        op("linear_cross_entropy"),
        Sample{{operand({8, 16}, -1, 1, DType::bf16), operand({classes, 16}, -1, 1, DType::bf16),
                operand({8}, 0, static_cast<double>(classes), DType::i32)},
               {{"ignore_index", int64_t{-1}}, {"transpose_w", true}}});
    for (const KernelEntry& entry : backend().kernels)
      if (entry.op == Op::linear_cross_entropy && entry.name == "padded_chunks")
        return entry.accepts(call.view());
    return std::string("no such kernel");
  };
  EXPECT_EQ(refusal(50257), "");
  EXPECT_EQ(refusal(50304), "the classes fill tiles as they are");
}

/// bf16 parameters: rounded up or down at random by the bits of the op, so that the result is one
/// of the two neighbours of what is exact, and nearly always the one that the reference chooses.
TEST(DeviceUpdates, OfBf16Parameters) {
  Sample s;
  s.in = {operand({}, 1e-3, 1e-2),
          operand({}, 1, 9, DType::i32),
          operand({}, 0.1, 1),
          operand({2}, 0, 1000, DType::i32),
          operand({130, 33}, -1, 1, DType::bf16),
          operand({77}),
          operand({130, 33}, -1, 1, DType::bf16),
          operand({77}),
          operand({130, 33}),
          operand({77}),
          operand({130, 33}, 0.1, 1),
          operand({77}, 0.1, 1)};
  s.attrs = {{"beta1", 0.9},
             {"beta2", 0.95},
             {"eps", 1e-8},
             {"weight_decay", 0.1},
             {"decays", std::vector<int64_t>{1, 0}},
             {"stream", int64_t{11}}};
  const Call call(op("adamw"), s);
  const std::vector<RefTensor> wanted = call.wanted();
  for (const KernelEntry& entry : backend().kernels) {
    if (entry.op != Op::adamw) continue;
    ASSERT_EQ(entry.accepts(call.view()), "");
    const std::vector<Buffer> got = run_kernel(entry, call);
    size_t different = 0;
    for (size_t i = 0; i < wanted[0].data.size(); ++i) {
      const double g = load_as_double(DType::bf16, got[0].data(), static_cast<int64_t>(i));
      different += g != wanted[0].data[i];
      EXPECT_LE(std::fabs(g - wanted[0].data[i]), std::ldexp(1.0, -7));
    }
    EXPECT_LE(different, wanted[0].data.size() / 200);
  }
}

/// Moments in 8 bits: parameters as exact as f32 is; a code may be the neighbour of the one wanted.
TEST(DeviceUpdates, Of8Bits) {
  const Call call(op("adamw_8bit"), op("adamw_8bit").samples()[0]);
  const std::vector<RefTensor> wanted = call.wanted();
  for (const KernelEntry& entry : backend().kernels) {
    if (entry.op != Op::adamw_8bit) continue;
    ASSERT_EQ(entry.accepts(call.view()), "");
    const std::vector<Buffer> got = run_kernel(entry, call);
    EXPECT_EQ(run_kernel(entry, call, 0, true), got) << "in place";
    for (size_t k = 0; k < wanted.size(); ++k) {
      const DType t = wanted[k].type.dtype;
      double largest = 1e-30, gap = 0;
      size_t different = 0;
      for (size_t i = 0; i < wanted[k].data.size(); ++i) {
        const double g = load_as_double(t, got[k].data(), static_cast<int64_t>(i)),
                     w = wanted[k].data[i];
        largest = std::max(largest, std::fabs(w));
        gap = std::max(gap, std::fabs(g - w));
        different += g != w;
      }
      if (t == DType::u8) {
        EXPECT_LE(gap, 1) << "codes " << k;
        EXPECT_LE(different, wanted[k].data.size() / 100 + 1) << "codes " << k;
      } else {
        EXPECT_LE(gap, largest * 2e-6) << "result " << k;
      }
    }
  }
}

/// A scale that is not a number leaves everything as it is.
TEST(DeviceUpdates, KeepEverythingWhereGradientsAreNotFinite) {
  for (const char* name : {"adamw", "sgd", "lion", "muon", "muon_momentum", "adafactor",
                           "adafactor_vector", "adamw_8bit"}) {
    Sample s = op(name).samples()[0];
    Call call(op(name), s);
    const size_t scale = std::string_view(name) == "muon_momentum" ? 0 : 2;
    call.values[scale] = {NAN};
    const std::vector<RefTensor> wanted = call.wanted();
    for (const KernelEntry& entry : backend().kernels)
      if (name_of(entry.op) == name) expect_close(call, run_kernel(entry, call), wanted);
  }
}

}  // namespace
}  // namespace brrr::cuda
