// Kernels as the toolkit's compiler emits them, on the PTX machine, against fp64: attention by each
// of its ways, and a few of the others. And the machine itself: small texts, right as they stand
// and refused (or wrong) with one error in each. BRRR_EMULATE=ptx runs all other device tests so.

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <map>
#include <set>

#include "backend/cuda/attention_cases.h"
#include "base/dtype.h"
#include "passes/passes.h"
#include "support/cuda_emulator.h"
#include "support/graph_run.h"
#include "support/long_proof.h"
#include "support/nvrtc.h"
#include "support/ptx_fixture.h"
#include "support/ptx_kernels.h"

namespace brrr::cuda {
namespace {

namespace ptx = test::ptx;

// -- the project's kernels

class PtxKernels : public test::OnPtxMachine {
 protected:
  /// For one architecture without wgmma and one with it.
  static const Backend& backend(const char* name) {
    static auto* known = new std::map<std::string, Backend>;
    const auto found = known->find(name);
    if (found != known->end()) return found->second;
    GpuDescription gpu = *gpu_description(name);
    // So small that a block of threads goes from one block of rows to the next.
    gpu.multiprocessors = 2;
    return known->emplace(name, test::emulated_backend(gpu)).first->second;
  }
  template <typename C>
  static void check_attention(const C& c, DType t, bool backward) {
    const Call call = call_of(c, t, backward);
    const std::vector<RefTensor> wanted = call.wanted();
    std::set<std::string_view> ways;
    for (const auto& [gpu, names] :
         {std::pair<const char*, std::set<std::string_view>>{"cuda:sm_80", {"mma"}},
          {"cuda:sm_90", {"wgmma", "tma"}}})
      for (const KernelEntry& entry : backend(gpu).kernels) {
        if (entry.op != call.node().op->id || !names.contains(entry.name)) continue;
        SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
        ASSERT_EQ(entry.accepts(call.view()), "");
        expect_close(call, run_kernel(entry, call), wanted, magnitudes(call, wanted, backward));
        ways.insert(entry.name);
      }
    EXPECT_EQ(ways.size(), 3u);
  }
};

TEST_F(PtxKernels, AttentionForward) {
  check_attention(kCases[1], DType::bf16, false);
  check_attention(kCases[4], DType::f16, false);
  check_attention(kCases[9], DType::bf16, false);
  if (test::is_long()) {
    check_attention(kCases[2], DType::f16, false);
    check_attention(kCases[3], DType::bf16, false);
    check_attention(kCases[7], DType::bf16, false);
    check_attention(kCases[8], DType::f16, false);
  }
  check_attention(kPackedCases[1], DType::bf16, false);
}
TEST_F(PtxKernels, AttentionBackward) {
  check_attention(kCases[1], DType::f16, true);
  check_attention(kCases[3], DType::bf16, true);
  if (test::is_long()) {
    check_attention(kCases[2], DType::bf16, true);
    check_attention(kCases[9], DType::f16, true);
  }
  check_attention(kPackedCases[6], DType::bf16, true);
}

/// Of every op the first sample, by whatever takes it.
TEST_F(PtxKernels, SamplesOfTheOpTable) {
  size_t ops = 0;
  for (const OpDef* d : all_ops()) {
    // Never run as one; and codes that have a test of their own.
    if (d->name == "newton_schulz" || d->name == "adamw_8bit" || d->samples().empty()) continue;
    const Call call(*d, d->samples()[0]);
    const std::vector<RefTensor> wanted = call.wanted();
    int calls = 0;
    for (const KernelEntry& entry : backend("cuda:sm_90").kernels) {
      if (entry.op != d->id || !entry.accepts(call.view()).empty()) continue;
      SCOPED_TRACE(call.text() + " by " + std::string(entry.name));
      expect_close(call, run_kernel(entry, call), wanted);
      ++calls;
    }
    ops += calls > 0 ? 1 : 0;
  }
  EXPECT_GE(ops, 60u);
}

/// Both copies in 8 bits leave one launch, through a tile in shared memory.
TEST_F(PtxKernels, TransposedCopiesIn8Bits) {
  Graph g;
  const Value z = g.input("z", {129, 70}, f32), w = g.input("w", {70}, f32);
  const Value y = layer_norm(z, w, w).y;
  const Value scale = quantize_scale(y, f8e4m3), q = quantize(y, scale, f8e4m3);
  g.output("q", q);
  g.output("turned", transpose(q, {1, 0}));
  const Graph fused = fuse(g, backend("cuda:sm_90").target());
  const reference::Tensors in = [&] {
    reference::Tensors t = test::random_inputs(g, 1, -2, 2, 5);
    for (auto& [name, x] : t)
      for (double& v : x.data) v = rounded_to(x.type.dtype, v);
    return t;
  }();
  test::GraphRun run(fused, backend("cuda:sm_90"));
  const auto got = run.run(in), wanted = reference::evaluate(g, in);
  size_t different = 0;
  for (int64_t row = 0; row < 129; ++row)
    for (int64_t column = 0; column < 70; ++column) {
      const double x = got.at("q").data[static_cast<size_t>(row * 70 + column)];
      EXPECT_EQ(x, got.at("turned").data[static_cast<size_t>(column * 129 + row)]);
      different += x != wanted.at("q").data[static_cast<size_t>(row * 70 + column)];
    }
  // A number next to a middle may fall to its other side.
  EXPECT_LE(different, 129u * 70u / 500u);
}

/// What becomes of attention by one way with an error in it: what was refused, or "wrong", or "".
std::string with_error(std::string_view way, bool backward, const std::string& right,
                       const std::string& wrong) {
  GpuDescription gpu = *gpu_description(way == "mma" ? "cuda:sm_80" : "cuda:sm_90");
  gpu.multiprocessors = 1;  // a block of threads has several blocks of rows
  const Call call =
      call_of(Case{.heads = 2, .queries = 200, .keys = 200, .width = backward ? 64 : 128},
              DType::bf16, backward);
  for (PlanEntry entry : device_kernels()) {
    if (entry.op != call.node().op->id || entry.name != way) continue;
    int changed = 0;
    entry.plan = [plan = entry.plan, &right, &wrong, &changed](const NodeView& node,
                                                               const GpuDescription& g) {
      LaunchPlan made = plan(node, g);
      for (Launch& launch : made.launches) {
        std::string text = launch.source.text();
        for (size_t at = 0; (at = text.find(right, at)) != std::string::npos; ++changed)
          text.replace(at, right.size(), wrong), at += wrong.size();
        launch.source = {launch.source.entry, {}, text};
      }
      return made;
    };
    std::vector<Buffer> got;
    try {
      got = run_kernel(test::emulated_entry(entry, gpu), call);
    } catch (const ptx::Error& e) {
      return e.what();
    }
    EXPECT_GT(changed, 0) << right;
    const std::vector<RefTensor> wanted = call.wanted();
    for (size_t i = 0; i < wanted[0].data.size(); ++i) {
      const double y = load_as_double(DType::bf16, got[0].data(), static_cast<int64_t>(i));
      if (!(std::fabs(y - wanted[0].data[i]) < 0.1)) return "wrong";
    }
  }
  return "";
}
/// The checks find what they are there for in kernels that nobody made for them.
TEST_F(PtxKernels, FindErrorsInAttention) {
  const struct {
    const char *way, *right, *wrong, *found;
    bool backward = false;
  } rows[] = {
      {"mma", "wait_copies<0>();", "", "a race"},
      {"mma", "__syncthreads();\n    if (n == 0)", "if (n == 0)", "written by another lane"},
      {"wgmma", "Unit::publish();", "", "no fence.proxy.async between"},
      {"wgmma", "Unit::publish();", "if (threadIdx.x % 32 == 0) Unit::publish();",
       "and lanes 00000001 fence"},
      {"wgmma", "asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");", "",
       "no wgmma.fence before"},
      {"wgmma", "wait<0>(registers...);", "wait<1>(registers...);", "of a product under way"},
      {"wgmma", "u64{1} << 62", "u64{2} << 62", "another swizzle"},
      {"wgmma", "static_cast<u64>(1024u >> 4)", "static_cast<u64>(512u >> 4)", "wrong"},
      {"wgmma", "tile.base + k * 64, kRows * 128)", "tile.base + k * 64, kRows * 64)", "wrong"},
      {"tma", "wait.full[stage][1].wait(turn.phase());", "", "a race", true},
      {"tma", "ByGroups::publish();\n    __syncwarp();", "__syncwarp();",
       "no fence.proxy.async between", true},
      {"tma", "ByGroups::publish();\n    __syncwarp();", "ByGroups::publish();",
       "since the warp's last barrier", true},
      {"tma", "ByGroups::publish();\n    __syncwarp();",
       "if (threadIdx.x % 32 == 0) ByGroups::publish();\n    __syncwarp();",
       "and lanes 00000001 fence", true},
      {"tma", "full.arrive_expecting(2 * R::kTileBytes + R::kNumberBytes);",
       "full.arrive_expecting(2 * R::kTileBytes);", "expected fewer", true},
      {"tma", "if (n > begin) Role::release(wait.empty[last]);",
       "Role::release(wait.empty[stage]);", "a race", true},
      {"tma", "publish_barriers();\n", "\n", "no fence.mbarrier_init"},
      {"tma", "Role::release(wait.own_empty);", "", "wait in vain"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::string(row.way) + " with '" + row.wrong + "' instead of '" + row.right + "'");
    const std::string got = with_error(row.way, row.backward, row.right, row.wrong);
    EXPECT_PRED_FORMAT2(testing::IsSubstring, row.found, got);
  }
}

// -- the machine itself

/// A kernel of one parameter, an address in %rd0. %r0: the thread, %r1: dynamic shared memory.
std::string module_of(const std::string& body) {
  return ".version 9.0\n.target sm_90a\n.address_size 64\n"
         ".extern .shared .align 1024 .b8 memory[];\n"
         ".visible .entry kernel(.param .u64 kernel_param_0)\n{\n"
         ".reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<99>;\n.reg .f32 %f<99>;\n"
         ".reg .b64 %rd<99>;\n"
         "ld.param.u64 %rd0, [kernel_param_0];\nmov.u32 %r0, %tid.x;\n"
         "mov.u64 %rd1, memory;\ncvt.u32.u64 %r1, %rd1;\nshl.b32 %r2, %r0, 2;\n" +
         body + "ret;\n}\n";
}
/// Two blocks: what runs on its own happens late in one and early in the other.
void run_text(const std::string& body, uint32_t threads, int shared_bytes, void* memory) {
  const auto program = ptx::parse(module_of(body), "kernel");
  void* args[] = {&memory};
  ptx::run(*program, {2, 1, 1}, {threads, 1, 1}, shared_bytes, args);
}
std::string refusal_of(const std::string& body, uint32_t threads = 64, int shared_bytes = 1024) {
  std::vector<uint32_t> memory(65536);
  try {
    run_text(body, threads, shared_bytes, memory.data());
  } catch (const ptx::Error& e) {
    return e.what();
  }
  return "";
}
std::string without(std::string text, const std::string& part, const std::string& instead = "") {
  const size_t at = text.find(part);
  BRRR_CHECK(at != std::string::npos, "'{}' is not there", part);
  return text.replace(at, part.size(), instead);
}
void expect_refused(const std::string& body, const char* why, uint32_t threads = 64) {
  EXPECT_PRED_FORMAT2(testing::IsSubstring, why, refusal_of(body, threads));
}

/// Each thread leaves a word for one of another warp.
const std::string kExchange =
    "add.s32 %r3, %r1, %r2;\nst.shared.u32 [%r3], %r2;\nbar.sync 1;\n"
    "st.shared.u32 [%r3], %r0;\nbar.sync 0;\n"
    "xor.b32 %r4, %r2, 128;\nadd.s32 %r4, %r1, %r4;\nld.shared.u32 %r5, [%r4];\n";

TEST(PtxMachine, FindsRacesBetweenWarps) {
  EXPECT_EQ(refusal_of(kExchange), "");
  expect_refused(without(kExchange, "bar.sync 0;\n"), "a race");
  // Named, and of fewer threads than there are.
  EXPECT_EQ(refusal_of(without(kExchange, "bar.sync 0;", "bar.sync 3, 64;")), "");
  expect_refused(without(kExchange, "bar.sync 0;", "bar.sync 3, 32;"), "a race");
  // Read, then overwritten.
  expect_refused(kExchange + "st.shared.u32 [%r3], %r5;\n", "a race");
  EXPECT_EQ(refusal_of(kExchange + "bar.sync 0;\nst.shared.u32 [%r3], %r5;\n"), "");
  const std::string message = refusal_of(without(kExchange, "bar.sync 0;\n"));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "st.shared.u32 [%r3], %r0;", message);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "ld.shared.u32 %r5, [%r4];", message);
}

TEST(PtxMachine, FindsRacesBetweenLanes) {
  const std::string exchange = without(without(kExchange, "bar.sync 1;\n"), "%r2, 128", "%r2, 4");
  EXPECT_EQ(refusal_of(without(exchange, "bar.sync 0;", "bar.warp.sync -1;")), "");
  expect_refused(without(exchange, "bar.sync 0;\n"), "written by another lane");
  expect_refused(exchange + "st.shared.u32 [%r3], %r0;\n", "read by another lane");
  expect_refused("st.shared.u32 [%r1], %r0;\n", "written by another lane");
}

TEST(PtxMachine, AtomicsRaceWithOthersAlone) {
  const std::string count =
      "setp.ne.s32 %p1, %r0, 0;\n@!%p1 st.shared.u32 [%r1], %r0;\nbar.sync 0;\n"
      "atom.shared.add.u32 %r5, [%r1], 1;\nbar.sync 0;\nld.shared.u32 %r6, [%r1];\n";
  EXPECT_EQ(refusal_of(count), "");
  const std::string add = "atom.shared.add.u32 %r5, [%r1], 1;\n";
  EXPECT_EQ(refusal_of(without(count, add, add + add)), "");
  expect_refused(without(count, add + "bar.sync 0;\n", add), "written by another lane", 32);
  expect_refused(without(count, add, "ld.shared.u32 %r5, [%r1];\n" + add), "read by another lane",
                 32);
  expect_refused(without(count, add, "@!%p1 st.shared.u32 [%r1], %r0;\n" + add),
                 "written by another lane", 32);
  // Every byte, not only the first.
  expect_refused(without(count, "st.shared.u32", "st.shared.u16"), "nobody has written byte");
}

TEST(PtxMachine, RefusesAccessesThatAreUndefined) {
  expect_refused("ld.shared.u32 %r5, [%r1+512];\n", "nobody has written byte");
  expect_refused("st.shared.u32 [%r1+1024], %r0;\n", "outside shared memory");
  expect_refused("st.shared.u32 [%r1+-1024], %r0;\n", "outside shared memory");
  expect_refused("st.shared.u32 [%r1+2], %r0;\n", "no multiple of 4");
  expect_refused("st.shared.v2.u32 [%r1+4], {%r0, %r0};\n", "no multiple of 8");
  expect_refused("mov.u64 %rd2, 16;\nld.global.u32 %r5, [%rd2];\n", "no address of global memory");
  expect_refused("ld.param.u64 %rd2, [kernel_param_0+8];\n", "outside the parameters");
  // Where an address and its bytes are 2^64 together.
  expect_refused("ld.param.u64 %rd2, [kernel_param_0+-8];\n", "outside the parameters");
  expect_refused("mov.u32 %r9, 0;\nld.shared.u32 %r5, [%r9+-4];\n", "outside shared memory");
  const std::string local = ".local .align 4 .b8 room[8];\nmov.u64 %rd2, room;\n";
  EXPECT_EQ(refusal_of(local + "ld.local.u32 %r5, [%rd2+4];\n"), "");
  expect_refused(local + "ld.local.u32 %r5, [%rd2+-4];\n", "outside local memory");
}

TEST(PtxMachine, RefusesTextThatItDoesNotKnow) {
  expect_refused("add.rz.f16x2 %r5, %r1, %r2;\n", "unknown instruction add.rz.f16x2");
  expect_refused("add.s32 %r5, %r1, %q2;\n", "unknown name %q2");
  expect_refused("add.s64 %rd5, %r1, %rd1;\n", "%r1 has 32 bits instead of 64");
  expect_refused("bra nowhere;\n", "no such label");
  expect_refused("$here:\nmov.u32 %r5, 1;\n$here:\n", "a label twice");
  expect_refused("ldmatrix.sync.aligned.m8n8.x4.shared.b8 {%r3, %r4, %r5, %r6}, [%r1];\n",
                 "unknown instruction ldmatrix");
}

TEST(PtxMachine, WarpsMeetAsAWhole) {
  // Lanes that were apart are together again behind the label.
  const std::string meet =
      "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra $there;\nadd.s32 %r3, %r0, 1;\n$there:\nbar.sync 0;\n";
  EXPECT_EQ(refusal_of(meet), "");
  expect_refused(without(meet, "bar.sync", "@%p1 bar.sync"), "must be");
  expect_refused(
      "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra $out;\nmov.u32 %r9, 1;\n"
      "shfl.sync.idx.b32 %r3, %r0, 0, 31, -1;\n$out:\n",
      "must be");
  expect_refused("setp.lt.u32 %p1, %r0, 32;\n@%p1 bra $out;\nbar.sync 1, 64;\n$out:\n",
                 "wait in vain");
}

/// 512 bytes by the copy engine, for which everyone waits.
const std::string kBulk =
    "setp.ne.s32 %p1, %r0, 0;\n@%p1 bra $made;\n"
    "mbarrier.init.shared::cta.b64 [%r1+1000], 1;\n"
    "fence.mbarrier_init.release.cluster;\n$made:\nbar.sync 0;\n@%p1 bra $asked;\n"
    "add.s32 %r6, %r1, 1000;\n"
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 512;\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 512, [%r6];\n"
    "$asked:\nadd.s32 %r3, %r1, %r2;\n"
    "$again:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+1000], 0;\n"
    "@!%p2 bra $again;\nld.shared.u32 %r5, [%r3];\n";

TEST(PtxMachine, CountsTheBytesOfCopies) {
  const std::string next_phase =
      "$more:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+1000], 1;\n@!%p3 bra $more;\n";
  EXPECT_EQ(refusal_of(kBulk), "");
  expect_refused(without(kBulk, "[%r6], 512;", "[%r6], 528;"), "wait in vain");
  expect_refused(without(kBulk, "[%r6], 512;", "[%r6], 496;"), "wait in vain");
  const std::string arrive = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 512;\n";
  const std::string too_late = without(without(kBulk, arrive), "$asked:\n",
                                       "mbarrier.arrive.shared::cta.b64 _, [%r6];\n$asked:\n");
  expect_refused(without(too_late, "ld.shared.u32 %r5, [%r3];\n", next_phase), "expected fewer");
  expect_refused(without(kBulk, "@!%p2 bra $again;\n"), "nobody has written");
  expect_refused(without(kBulk, "fence.mbarrier_init.release.cluster;\n"),
                 "no fence.mbarrier_init");
  expect_refused(without(kBulk, "mbarrier.init.shared::cta.b64 [%r1+1000], 1;\n"),
                 "no mbarrier.init at");
  expect_refused(without(kBulk, "bar.sync 0;\n"), "nothing orders mbarrier.init by warp 0 before");
  expect_refused(without(kBulk, "[%rd0], 512", "[%rd0], 504"), "no multiples of 16");
  expect_refused(kBulk + "@!%p1 st.shared.u32 [%r1+1004], %r0;\n", "belongs to an mbarrier");
  // What was written before, the copy engine must have been told of.
  const std::string overwrites = "@%p1 bra $made;\nst.shared.u32 [%r1], %r0;\n";
  expect_refused(without(kBulk, "@%p1 bra $made;\n", overwrites), "no fence.proxy.async");
  EXPECT_EQ(refusal_of(without(without(kBulk, "@%p1 bra $made;\n", overwrites), "bar.sync 0;\n",
                               "fence.proxy.async.shared::cta;\nbar.sync 0;\n")),
            "");
  // One lane asks, and nothing tells it of what the others have written.
  expect_refused(without(without(kBulk, arrive), "bar.sync 0;\n",
                         "bar.sync 0;\nadd.s32 %r3, %r1, %r2;\nst.shared.u32 [%r3], %r0;\n"
                         "fence.proxy.async.shared::cta;\n"),
                 "and lanes 00000001 ask for a copy");
}

TEST(PtxMachine, WhatOneLaneHasWaitedForTheOthersHaveNot) {
  const std::string one = without(without(kBulk, "$again:", "@%p1 bra $read;\n$again:"),
                                  "ld.shared", "$read:\nld.shared");
  // Together again, but nothing orders their accesses.
  const std::string meet = "$read:\nshfl.sync.idx.b32 %r7, %r0, 0, 31, -1;\n";
  expect_refused(without(one, "$read:\n", meet), "a race", 32);
  EXPECT_EQ(refusal_of(without(one, "$read:\n", "$read:\nbar.warp.sync -1;\n"), 32), "");
  EXPECT_EQ(refusal_of(without(one, "ld.shared", "@!%p1 ld.shared"), 32), "");
  // Each of two parts for itself.
  const std::string parts =
      without(without(kBulk, "$again:", "@%p1 bra $others;\n$again:"), "ld.shared",
              "bra.uni $read;\n$others:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+1000], "
              "0;\n@!%p2 bra $others;\n$read:\nld.shared");
  EXPECT_EQ(refusal_of(parts, 32), "");
}

TEST(PtxMachine, WaitsForCopiesOfAThread) {
  const std::string copy =
      "cvt.u64.u32 %rd2, %r2;\nshl.b64 %rd2, %rd2, 2;\nadd.s64 %rd3, %rd0, %rd2;\n"
      "shl.b32 %r3, %r0, 4;\nadd.s32 %r3, %r1, %r3;\n"
      "cp.async.cg.shared.global [%r3], [%rd3], 16, 16;\ncp.async.commit_group;\n"
      "cp.async.wait_group 0;\nbar.sync 0;\nld.shared.u32 %r5, [%r3];\n";
  EXPECT_EQ(refusal_of(copy), "");
  expect_refused(without(copy, "wait_group 0", "wait_group 1") + "cp.async.wait_all;\n", "a race");
  expect_refused(without(copy, "cp.async.wait_group 0;\n"), "a race");
  // Of its own copies; of another lane's a barrier tells it, behind that lane's wait.
  EXPECT_EQ(refusal_of(without(copy, "bar.sync 0;\n")), "");
  const std::string other = without(copy, "ld.shared", "xor.b32 %r3, %r3, 16;\nld.shared");
  EXPECT_EQ(refusal_of(without(other, "bar.sync 0;\n", "bar.warp.sync -1;\n")), "");
  expect_refused(without(other, "bar.sync 0;\n"), "written by another lane");
  expect_refused(without(without(other, "bar.sync 0;\n"), "cp.async.wait_group 0;\n",
                         "bar.sync 0;\ncp.async.wait_group 0;\n"),
                 "written by another lane");
  const std::string again =
      other + "cp.async.cg.shared.global [%r3], [%rd3], 16;\ncp.async.wait_all;\n";
  EXPECT_EQ(refusal_of(again), "");
  expect_refused(without(again, "%r3, %r3, 16;\nld.shared.u32 %r5, [%r3];\n",
                         "%r4, %r3, 16;\nld.shared.u32 %r5, [%r4];\n"),
                 "read by another lane");
}

/// [64, 16] by [16, 8] in bf16, from global memory through shared memory: A's rows of 128 bytes,
/// then B's columns, their 16-byte chunks exchanged by the row's last bits.
const std::string kWgmma =
    "cvt.u64.u32 %rd2, %r0;\nmul.lo.s64 %rd2, %rd2, 128;\nadd.s64 %rd2, %rd0, %rd2;\n"
    "shl.b32 %r3, %r0, 7;\nadd.s32 %r3, %r1, %r3;\nmov.u32 %r8, 0;\n"
    "setp.ge.u32 %p1, %r0, 72;\n@%p1 bra $copied;\n"
    "$next:\nld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd2];\n"
    "st.shared.v4.u32 [%r3], {%r10, %r11, %r12, %r13};\n"
    "add.s64 %rd2, %rd2, 16;\nadd.s32 %r3, %r3, 16;\nadd.s32 %r8, %r8, 1;\n"
    "setp.lt.u32 %p2, %r8, 8;\n@%p2 bra $next;\n"
    "$copied:\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
    "cvt.u64.u32 %rd3, %r1;\nshr.u64 %rd3, %rd3, 4;\n"
    "or.b64 %rd3, %rd3, 0x4000004000010000;\nadd.s64 %rd4, %rd3, 512;\n"
    "mov.u32 %r9, 0;\nsetp.ne.b32 %p3, %r9, 0;\n"
    "wgmma.fence.sync.aligned;\n"
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %rd3, %rd4, %p3, 1, "
    "1, 0, 0;\n"
    "wgmma.commit_group.sync.aligned;\n"
    "wgmma.wait_group.sync.aligned 0;\n"
    // warp w, lane 4 g + t: row 16 w + g, column 2 t of [64, 8] f32 behind 16384 bytes
    "shr.u32 %r20, %r0, 5;\nshl.b32 %r20, %r20, 4;\nand.b32 %r21, %r0, 31;\n"
    "shr.u32 %r22, %r21, 2;\nadd.s32 %r20, %r20, %r22;\nand.b32 %r23, %r21, 3;\nshl.b32 %r20, "
    "%r20, 5;\n"
    "shl.b32 %r23, %r23, 3;\nadd.s32 %r20, %r20, %r23;\ncvt.u64.u32 %rd5, %r20;\n"
    "add.s64 %rd5, %rd0, %rd5;\nst.global.v2.f32 [%rd5+16384], {%f0, %f1};\n"
    "st.global.v2.f32 [%rd5+16640], {%f2, %f3};\n";

class PtxWgmma : public testing::Test {
 protected:
  PtxWgmma() : memory_(65536) {
    auto* words = reinterpret_cast<uint16_t*>(memory_.data());
    for (int line = 0; line < 72; ++line)  // 64 rows of A and 8 columns of B
      for (int k = 0; k < 16; ++k) {
        const int chunk = (k / 8) ^ (line % 8);
        words[line * 64 + chunk * 8 + k % 8] = bf16_from_float(element(line, k));
      }
  }
  static float element(int line, int k) { return static_cast<float>((line * 7 + k * 5) % 11 - 5); }
  int wrong(const std::string& text) {
    run_text(text, 128, 9216, memory_.data());
    int count = 0;
    for (int row = 0; row < 64; ++row)
      for (int column = 0; column < 8; ++column) {
        float sum = 0, got = 0;
        for (int k = 0; k < 16; ++k) sum += element(row, k) * element(64 + column, k);
        std::memcpy(&got, memory_.data() + 4096 + row * 8 + column, 4);
        count += got != sum;
      }
    return count;
  }
  void expect_refused(const std::string& text, const char* why) {
    std::string message;
    try {
      run_text(text, 128, 9216, memory_.data());
    } catch (const ptx::Error& e) {
      message = e.what();
    }
    EXPECT_PRED_FORMAT2(testing::IsSubstring, why, message);
  }
  std::vector<uint32_t> memory_;
};

TEST_F(PtxWgmma, MultipliesWhatItsDescriptorsSay) {
  EXPECT_EQ(wrong(kWgmma), 0);
  // Eight rows on are 1024 bytes on, not 512; and another address than B's.
  EXPECT_GT(wrong(without(kWgmma, "0x4000004000010000", "0x4000002000010000")), 300);
  EXPECT_GT(wrong(without(kWgmma, "%rd3, 512;", "%rd3, 504;")), 300);
  expect_refused(without(kWgmma, "0x4000004000010000", "0x8000004000010000"), "another swizzle");
  expect_refused(without(kWgmma, "0x4000004000010000", "0x4000008000010000"),
                 "outside shared memory");
  expect_refused(without(kWgmma, "m64n8k16.f32.bf16", "m64n16k16.f32.bf16"), "4 sums");
}

TEST_F(PtxWgmma, IsFencedAndWaitedFor) {
  expect_refused(without(kWgmma, "fence.proxy.async.shared::cta;\n"), "no fence.proxy.async");
  expect_refused(without(kWgmma, "bar.sync 0;\n"), "nobody has written");
  // By one lane: for the others it counts once it knows of them and they of it.
  const std::string fence = "fence.proxy.async.shared::cta;\n", sync = "bar.sync 0;\n",
                    choose = "and.b32 %r24, %r0, 31;\nsetp.eq.u32 %p4, %r24, 0;\n@%p4 ";
  expect_refused(without(kWgmma, fence, choose + fence), "and lanes 00000001 fence");
  EXPECT_EQ(wrong(without(kWgmma, fence, sync + choose + fence)), 0);
  expect_refused(without(kWgmma, fence + sync, sync + choose + fence), "no fence.proxy.async");
  expect_refused(without(kWgmma, "wgmma.fence.sync.aligned;\n"), "no wgmma.fence before");
  expect_refused(without(kWgmma, "wgmma.fence.sync.aligned;\n",
                         "wgmma.fence.sync.aligned;\nadd.rn.f32 %f1, %f1, %f1;\n"),
                 "no wgmma.fence since");
  expect_refused(without(kWgmma, "wait_group.sync.aligned 0", "wait_group.sync.aligned 1"),
                 "reads a register that is a sum");
  expect_refused(without(kWgmma, "wgmma.wait", "mov.f32 %f2, 0f00000000;\nwgmma.wait"),
                 "writes a register that is a sum");
  expect_refused(without(kWgmma, "wgmma.wait", "@!%p1 st.shared.u32 [%r3+-16], %r0;\nwgmma.wait"),
                 "a race");
  expect_refused(
      without(kWgmma, "wgmma.fence.sync",
              "and.b32 %r24, %r0, 31;\nsetp.lt.u32 %p4, %r24, 9;\n@%p4 wgmma.fence.sync"),
      "must be");
  // Sums of one shape need no fence.
  const size_t at = kWgmma.find("wgmma.mma"), commit = kWgmma.find("wgmma.commit");
  const std::string again = kWgmma.substr(at, commit - at),
                    wider = without(without(again, "m64n8", "m64n16"), "%f3}",
                                    "%f3, %f4, %f5, %f6, %f7}");
  EXPECT_EQ(wrong(without(kWgmma, again, again + again)), 0);
  expect_refused(without(kWgmma, again, again + wider), "one of another shape");
  expect_refused(without(kWgmma, again, again + "wgmma.fence.sync.aligned;\n" + wider),
                 "outside shared memory");
  // The four warps ask for one product.
  expect_refused(without(kWgmma, "mov.u32 %r9, 0;", "shr.u32 %r9, %r0, 5;"), "another product");
}

/// What instructions leave in a register.
uint64_t result_of(const std::string& body, const std::string& r) {
  uint64_t y = 0;
  const std::string bits = r.starts_with("%rd") ? "64" : "32";
  run_text(body + "st.global.b" + bits + " [%rd0], " + r + ";\n", 1, 0, &y);
  return y;
}
TEST(PtxMachine, KnowsZerosAndWhatIsNoNumber) {
  const std::string nans = "mov.b32 %f0, 0f7fc00001;\nmov.b64 %rd3, 0dfff8000000000001;\ncvt.rzi.";
  for (const std::string type : {"s", "u"}) {
    EXPECT_EQ(result_of(nans + type + "32.f32 %r9, %f0;\n", "%r9"), 0u);
    EXPECT_EQ(result_of(nans + type + "32.f64 %r9, %rd3;\n", "%r9"), 0x80000000u);
    EXPECT_EQ(result_of(nans + type + "64.f32 %rd9, %f0;\n", "%rd9"), uint64_t{1} << 63);
    EXPECT_EQ(result_of(nans + type + "64.f64 %rd9, %rd3;\n", "%rd9"), uint64_t{1} << 63);
  }
  const auto down = [](const std::string& a, const std::string& b, const std::string& c) {
    return result_of("fma.rm.f32 %f9, 0f" + a + ", 0f" + b + ", 0f" + c + ";\n", "%f9");
  };
  EXPECT_EQ(down("0da24260", "0da24260", "00000000"), 0u);  // 1e-30 squared
  EXPECT_EQ(down("0da24260", "8da24260", "00000000"), 0x80000001u);
  EXPECT_EQ(down("00000000", "3f800000", "00000000"), 0u);
  EXPECT_EQ(down("00000000", "3f800000", "80000000"), 0x80000000u);
  EXPECT_EQ(down("3f800000", "3f800000", "bf800000"), 0x80000000u);
  for (const std::string opcode : {"min.f32", "max.f32", "min.NaN.f32", "add.rn.f32", "mul.f32"})
    EXPECT_EQ(result_of(opcode + " %f9, 0fffc00001, 0f7fc00002;\n", "%f9"), 0x7fffffffu) << opcode;
  EXPECT_EQ(result_of("max.f32 %f9, 0fffc00001, 0f40000000;\n", "%f9"), 0x40000000u);
}

/// Of f32 to 16 and 8 bits: all numbers of 16 bits, the middle between each and the next, and what
/// lies beside these.
TEST(PtxMachine, RoundsAsTheFormatsSay) {
  const std::string body =
      "cvt.u64.u32 %rd2, %r2;\nadd.s64 %rd2, %rd0, %rd2;\nld.global.f32 %f0, [%rd2];\n"
      "cvt.rn.bf16.f32 %rs0, %f0;\ncvt.rn.f16.f32 %rs1, %f0;\n"
      "cvt.rn.satfinite.e4m3x2.f32 %rs2, %f0, %f0;\ncvt.rn.satfinite.e5m2x2.f32 %rs3, %f0, %f0;\n"
      "mov.b64 %rd3, {%rs0, %rs1, %rs2, %rs3};\n"
      "add.s64 %rd5, %rd2, %rd2;\nsub.s64 %rd5, %rd5, %rd0;\nst.global.u64 [%rd5+4096], %rd3;\n";
  constexpr float kMost = std::numeric_limits<float>::max();
  std::vector<float> all = {kMost, -kMost, INFINITY, -INFINITY, NAN, -NAN};
  const auto add = [&](float x) {
    for (const float y : {x, std::nextafter(x, INFINITY), std::nextafter(x, -INFINITY)})
      all.push_back(y);
  };
  for (uint32_t k = 0; k < 65536; ++k) {
    const auto bits = static_cast<uint16_t>(k), next = static_cast<uint16_t>(k + 1);
    add(float_from_f16(bits));
    add(0.5f * (float_from_f16(bits) + float_from_f16(next)));
    add(float_from_bf16(bits));
    add(std::bit_cast<float>(k << 16 | 0x8000u));
  }
  for (const float x : {65520.0f, -65520.0f}) add(x);  // behind f16's largest there would be 2^16
  while (all.size() % 1024 != 0) all.push_back(0.0f);
  const auto program = ptx::parse(module_of(body), "kernel");
  std::vector<uint32_t> memory(4096);
  void* address = memory.data();
  void* args[] = {&address};
  for (size_t first = 0; first < all.size(); first += 1024) {
    std::memcpy(memory.data(), all.data() + first, 4096);
    ptx::run(*program, {1, 1, 1}, {1024, 1, 1}, 0, args);
    for (size_t k = 0; k < 1024; ++k) {
      const float x = all[first + k];
      uint16_t got[4];
      std::memcpy(got, reinterpret_cast<const std::byte*>(memory.data()) + 4096 + 8 * k, 8);
      const bool is_nan = std::isnan(x);
      ASSERT_EQ(got[0], is_nan ? 0x7fff : bf16_from_float(x)) << x;
      ASSERT_EQ(got[1], is_nan ? 0x7fff : f16_from_float(x)) << x;
      ASSERT_EQ(got[2], is_nan ? 0x7f7f : f8e4m3_from_float(x) * 257) << x;
      ASSERT_EQ(got[3], is_nan ? 0x7f7f : f8e5m2_from_float(x) * 257) << x;
    }
  }
}

}  // namespace
}  // namespace brrr::cuda
