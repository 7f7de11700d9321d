// Attention by cuDNN: the real library, where it is installed, has an engine for every call that is
// made, and compiles it for a GPU that is not there. What the calls mean, backend/cuda_device
// tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "backend/cuda/live/sdpa.h"
#include "backend/cuda/target.h"
#include "base/file.h"
#include "ops/ops.h"
#include "support/attention_attrs.h"
#include "support/long_proof.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define BRRR_HAVE_CUDNN_HEADERS
#endif

namespace brrr::cuda {
namespace {

struct Case {
  int64_t batch, heads, queries, keys, width;
  bool causal;
  DType dtype = DType::bf16;
};

Graph attention_of(const Case& c, bool backward) {
  Graph g;
  const Shape q{c.batch, c.heads, c.queries, c.width}, k{c.batch, c.heads, c.keys, c.width};
  const Shape rows{c.batch, c.heads, c.queries};
  Attrs all = test::attention_attrs(c.heads, c.heads, c.width, c.width);
  all.set("causal", c.causal);
  std::vector<Value> in{g.input("q", q, c.dtype), g.input("k", k, c.dtype),
                        g.input("v", k, c.dtype)};
  if (backward) {
    in.push_back(g.input("y", q, c.dtype));
    in.push_back(g.input("lse", rows, DType::f32));
    in.push_back(g.input("dy", q, c.dtype));
    all.set("dlse", false);
  }
  const auto out = call(backward ? Op::attention_grad : Op::attention, in, all);
  for (size_t i = 0; i < out.size(); ++i) g.output(std::to_string(i), out[i]);
  return g;
}

const Case kCases[] = {{8, 12, 1024, 1024, 64, true}, {2, 16, 1024, 1024, 64, true, DType::f16},
                       {4, 25, 1024, 1024, 64, true}, {2, 12, 512, 512, 64, false},
                       {1, 8, 2048, 2048, 128, true}, {3, 6, 256, 256, 64, true},
                       {2, 3, 100, 100, 32, true},    {2, 3, 33, 65, 64, false}};

/// The library as it is installed.
std::string real_cudnn(cudnn::Library& library) {
  std::vector<std::string> folders{"/usr/local/cuda/lib64", "/usr/local/cuda/lib",
                                   "/usr/lib/x86_64-linux-gnu"};
  if (const char* home = std::getenv("CUDA_HOME"))
    folders.insert(folders.begin(), std::string(home) + "/lib");
  for (const std::string& folder : folders)
    if (const fs::path file = fs::path(folder) / "libcudnn.so.9"; fs::exists(file))
      return library.load(SharedLibrary({file.string()}));
  return "no cuDNN on this machine";
}

/// What cuDNN 9.8 and later have to know of a GPU to compile for it.
std::string device_json(const GpuDescription& gpu) {
  return fmt::format(
      R"({{"deviceVer":{},"regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)"
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"l2CacheSize":{},)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"pciDeviceId":0,)"
      R"("isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
      R"("memClockRateKHz":3201000,"deviceName":"{}","driverVer":13000,)"
      R"("totalGlobalMem":{},"cudaDeviceId":0}})",
      gpu.sm * 10, gpu.multiprocessors, gpu.shared_bytes, gpu.l2_bytes, gpu.name, gpu.memory_bytes);
}

/// The same with q, k and v side by side in rows of all heads.
SdpaCall packed(SdpaCall call) {
  const int64_t row = call.heads * call.width;
  for (SdpaCall::Matrix* m : {&call.q, &call.k, &call.v, &call.dq, &call.dk, &call.dv})
    *m = {m->at, std::max(call.queries, call.keys) * 3 * row, call.width, 3 * row};
  for (SdpaCall::Matrix* m : {&call.y, &call.dy}) *m = {m->at, call.queries * row, call.width, row};
  return call;
}

TEST(RealCudnn, SlowHasAnEngineForEveryCallThatIsMade) {
  cudnn::Library library;
  if (const std::string reason = real_cudnn(library); !reason.empty()) GTEST_SKIP() << reason;
  if (library.version_number() < 90800) GTEST_SKIP() << "before 9.8 cuDNN wants to see the GPU";
  for (const char* name : {"cuda:sm_80", "cuda:sm_89", "cuda:sm_90"}) {
    const GpuDescription gpu = *gpu_description(name);
    cudnn::Descriptor device(library, cudnn::Kind::device);
    device.set_text(cudnn::Field::device_json, device_json(gpu)).finish();
    const std::vector<Case> all(std::begin(kCases), std::end(kCases));
    for (const Case& c :
         gpu.sm == 90 ? test::sampled(all, 3, name) : std::vector(all.begin(), all.begin() + 2))
      for (const bool backward : {false, true}) {
        const Graph g = attention_of(c, backward);
        SdpaCall call;
        const std::string refusal = as_sdpa_call(NodeView(g, g.outputs()[0].value.node), gpu, call);
        if (backward && gpu.sm != 90) {
          EXPECT_NE(refusal, "");
          continue;
        }
        ASSERT_EQ(refusal, "");
        for (const SdpaCall& layout : {call, packed(call)}) try {
            const SdpaPlan plan(library, layout, &device);
            EXPECT_LE(plan.workspace_bytes(), sdpa_workspace_bytes(layout)) << describe(layout);
          } catch (const cudnn::Refusal& r) {
            ADD_FAILURE() << name << ' ' << describe(layout) << ": " << r.reason;
          }
      }
  }
}

#ifdef BRRR_HAVE_CUDNN_HEADERS
template <typename Ours, typename Theirs>
void expect_same(Ours ours, Theirs theirs, const char* name) {
  EXPECT_EQ(static_cast<int>(ours), static_cast<int>(theirs)) << name;
}

TEST(RealCudnn, ValuesAreThoseOfTheHeaders) {
  using namespace cudnn;  // NOLINT: three dozen names
#define BRRR_SAME(ours, theirs) expect_same(ours, theirs, #theirs)
  BRRR_SAME(Kind::pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  BRRR_SAME(Kind::engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  BRRR_SAME(Kind::heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  BRRR_SAME(Kind::plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  BRRR_SAME(Kind::pointwise_op, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  BRRR_SAME(Kind::graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  BRRR_SAME(Kind::variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  BRRR_SAME(Kind::tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  BRRR_SAME(Kind::matmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  BRRR_SAME(Kind::matmul_op, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  BRRR_SAME(Kind::reduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  BRRR_SAME(Kind::reduction_op, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  BRRR_SAME(Kind::reshape_op, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  BRRR_SAME(Field::pointwise_mode, CUDNN_ATTR_POINTWISE_MODE);
  BRRR_SAME(Field::pointwise_math, CUDNN_ATTR_POINTWISE_MATH_PREC);
  BRRR_SAME(Field::pointwise_axis, CUDNN_ATTR_POINTWISE_AXIS);
  BRRR_SAME(Field::heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE);
  BRRR_SAME(Field::heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  BRRR_SAME(Field::heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  BRRR_SAME(Field::plan_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  BRRR_SAME(Field::plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  BRRR_SAME(Field::pointwise_op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  BRRR_SAME(Field::pointwise_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  BRRR_SAME(Field::pointwise_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  BRRR_SAME(Field::pointwise_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  BRRR_SAME(Field::pointwise_t, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  BRRR_SAME(Field::graph_ops, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  BRRR_SAME(Field::tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  BRRR_SAME(Field::tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE);
  BRRR_SAME(Field::tensor_sizes, CUDNN_ATTR_TENSOR_DIMENSIONS);
  BRRR_SAME(Field::tensor_strides, CUDNN_ATTR_TENSOR_STRIDES);
  BRRR_SAME(Field::tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  BRRR_SAME(Field::tensor_is_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  BRRR_SAME(Field::tensor_is_value, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  BRRR_SAME(Field::pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  BRRR_SAME(Field::pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  BRRR_SAME(Field::pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  BRRR_SAME(Field::matmul_math, CUDNN_ATTR_MATMUL_COMP_TYPE);
  BRRR_SAME(Field::matmul_a, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  BRRR_SAME(Field::matmul_b, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  BRRR_SAME(Field::matmul_c, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  BRRR_SAME(Field::matmul_op, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  BRRR_SAME(Field::reduction_operator, CUDNN_ATTR_REDUCTION_OPERATOR);
  BRRR_SAME(Field::reduction_math, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  BRRR_SAME(Field::reduction_x, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  BRRR_SAME(Field::reduction_y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  BRRR_SAME(Field::reduction_op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  BRRR_SAME(Field::reshape_x, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  BRRR_SAME(Field::reshape_y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  BRRR_SAME(FieldType::handle, CUDNN_TYPE_HANDLE);
  BRRR_SAME(FieldType::data_type, CUDNN_TYPE_DATA_TYPE);
  BRRR_SAME(FieldType::boolean, CUDNN_TYPE_BOOLEAN);
  BRRR_SAME(FieldType::int64, CUDNN_TYPE_INT64);
  BRRR_SAME(FieldType::pointer, CUDNN_TYPE_VOID_PTR);
  BRRR_SAME(FieldType::heuristics_mode, CUDNN_TYPE_HEUR_MODE);
  BRRR_SAME(FieldType::pointwise_mode, CUDNN_TYPE_POINTWISE_MODE);
  BRRR_SAME(FieldType::descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  BRRR_SAME(FieldType::reduction_operator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  BRRR_SAME(FieldType::character, CUDNN_TYPE_CHAR);
  BRRR_SAME(DataType::f32, CUDNN_DATA_FLOAT);
  BRRR_SAME(DataType::f16, CUDNN_DATA_HALF);
  BRRR_SAME(DataType::i32, CUDNN_DATA_INT32);
  BRRR_SAME(DataType::bf16, CUDNN_DATA_BFLOAT16);
  BRRR_SAME(DataType::boolean, CUDNN_DATA_BOOLEAN);
  BRRR_SAME(Pointwise::add, CUDNN_POINTWISE_ADD);
  BRRR_SAME(Pointwise::mul, CUDNN_POINTWISE_MUL);
  BRRR_SAME(Pointwise::div, CUDNN_POINTWISE_DIV);
  BRRR_SAME(Pointwise::sub, CUDNN_POINTWISE_SUB);
  BRRR_SAME(Pointwise::exp, CUDNN_POINTWISE_EXP);
  BRRR_SAME(Pointwise::log, CUDNN_POINTWISE_LOG);
  BRRR_SAME(Pointwise::greater_equal, CUDNN_POINTWISE_CMP_GE);
  BRRR_SAME(Pointwise::index, CUDNN_POINTWISE_GEN_INDEX);
  BRRR_SAME(Pointwise::select, CUDNN_POINTWISE_BINARY_SELECT);
  BRRR_SAME(Reduction::add, CUDNN_REDUCE_TENSOR_ADD);
  BRRR_SAME(Reduction::max, CUDNN_REDUCE_TENSOR_MAX);
  BRRR_SAME(Heuristics::best, CUDNN_HEUR_MODE_A);
  BRRR_SAME(kSuccess, CUDNN_STATUS_SUCCESS);
  // Deprecated names: what they stand for is asked for by cuDNN 9 nevertheless.
  EXPECT_EQ(static_cast<int>(Field::graph_handle), 800);
  EXPECT_EQ(static_cast<int>(Field::plan_handle), 400);
#undef BRRR_SAME
}
#endif

}  // namespace
}  // namespace brrr::cuda
