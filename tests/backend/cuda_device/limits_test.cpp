// What drivers and libraries refuse, as they are documented and as tests/support/fake_cuda plays
// it; and that the device asks for none of it, or says why and takes another way.

#include <dlfcn.h>

#include "backend/cuda/device.h"
#include "backend/cuda/live/cublaslt.h"
#include "backend/cuda/live/driver.h"
#include "backend/cuda_device/emulated_kernels.h"
#include "backend/cuda_device/on_fake_gpu.h"
#include "ops/ops.h"
#include "support/attention_ways.h"

namespace brrr::cuda {
namespace {

constexpr char kText[] = "BRRR_KERNEL(256) kernel(int* to) {}\nBRRR_KERNEL_ALONE(64) alone() {}\n";

/// A driver, a stream and a kernel for 256 threads.
class OnFakeDriver : public OnFakeGpu {
 protected:
  OnFakeDriver() {
    fake_set_launcher([](const test::FakeLaunch&, void**) { return std::function<void()>([] {}); });
    EXPECT_EQ(Driver::load(d_), "");
    BRRR_CU(d_, cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    BRRR_CU(d_, cuModuleLoadData(&module_, kText));
    BRRR_CU(d_, cuModuleGetFunction(&function_, module_, "kernel"));
  }
  ~OnFakeDriver() override {
    d_.cuModuleUnload(module_);
    d_.cuStreamDestroy(stream_);
  }
  CUresult launch(Dim3 grid, Dim3 block, unsigned shared_bytes = 0) {
    return d_.cuLaunchKernel(function_, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                             shared_bytes, stream_, nullptr, nullptr);
  }
  Driver d_;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

TEST_F(OnFakeDriver, LaunchesHaveLimits) {
  EXPECT_EQ(launch({0x7fffffff, 65535, 65535}, {256, 1, 1}), CUDA_SUCCESS);
  for (const Dim3& grid : {Dim3{0x80000000, 1, 1}, {1, 65536, 1}, {1, 1, 65536}, {0, 1, 1}})
    EXPECT_EQ(launch(grid, {32, 1, 1}), CUDA_ERROR_INVALID_VALUE);
  for (const Dim3& block : {Dim3{1, 1, 65}, {1025, 1, 1}, {512, 4, 1}, {32, 0, 1}})
    EXPECT_EQ(launch({}, block), CUDA_ERROR_INVALID_VALUE);
  // The compiler gave each of 256 threads as many registers as there are for them.
  EXPECT_EQ(launch({}, {257, 1, 1}), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CUfunction alone = nullptr;
  ASSERT_EQ(d_.cuModuleGetFunction(&alone, module_, "alone"), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuLaunchKernel(alone, 1, 1, 1, 65, 1, 1, 0, stream_, nullptr, nullptr),
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_EQ(d_.cuModuleGetFunction(&alone, module_, "other"), CUDA_ERROR_NOT_FOUND);
}

TEST_F(OnFakeDriver, SharedMemoryBeyond48KiBIsAskedFor) {
  constexpr unsigned kPlain = 48 << 10, kMost = 227 << 10;
  constexpr auto kAttribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  EXPECT_EQ(launch({}, {1, 1, 1}, kPlain), CUDA_SUCCESS);
  EXPECT_EQ(launch({}, {1, 1, 1}, kPlain + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(d_.cuFuncSetAttribute(function_, kAttribute, kMost + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch({}, {1, 1, 1}, kPlain + 1), CUDA_ERROR_INVALID_VALUE) << "it was refused";
  EXPECT_EQ(d_.cuFuncSetAttribute(function_, kAttribute, kMost), CUDA_SUCCESS);
  EXPECT_EQ(launch({}, {1, 1, 1}, kMost), CUDA_SUCCESS);
  EXPECT_EQ(launch({}, {1, 1, 1}, kMost + 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(OnFakeDriver, MemoryEndsAndHasASize) {
  CUdeviceptr a = 0, b = 0;
  EXPECT_EQ(d_.cuMemAlloc(&a, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(d_.cuMemAlloc(&a, size_t{5} << 30), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(d_.cuMemAlloc(&a, 1 << 20), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuMemAlloc(&b, size_t{4} << 30), CUDA_ERROR_OUT_OF_MEMORY) << "beside the first";
  EXPECT_EQ(d_.cuMemFree(a), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuMemFree(a), CUDA_ERROR_INVALID_VALUE) << "twice";
}

/// What is not queued on a stream is no part of a graph: the capture fails as a whole.
TEST_F(OnFakeDriver, CapturesTakeKernelsAlone) {
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  ASSERT_EQ(d_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(d_.cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  ASSERT_EQ(d_.cuMemAllocHost(&pinned, 64), CUDA_SUCCESS);
  const auto captured = [&](const std::function<CUresult()>& call) {
    CUgraph graph = nullptr;
    EXPECT_EQ(d_.cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(launch({}, {32, 1, 1}), CUDA_SUCCESS);
    const bool refused = call() != CUDA_SUCCESS;
    const CUresult end = d_.cuStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph == nullptr, end != CUDA_SUCCESS);
    if (graph != nullptr) d_.cuGraphDestroy(graph);
    EXPECT_EQ(refused, end == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    return end == CUDA_SUCCESS;
  };
  EXPECT_TRUE(captured([&] { return d_.cuMemsetD8Async(memory, 0, 64, stream_); }));
  CUdeviceptr other = 0;
  void* host = nullptr;
  CUmodule module = nullptr;
  EXPECT_FALSE(captured([&] { return d_.cuMemAlloc(&other, 64); }));
  EXPECT_FALSE(captured([&] { return d_.cuMemFree(memory); }));
  EXPECT_FALSE(captured([&] { return d_.cuMemAllocHost(&host, 64); }));
  EXPECT_FALSE(captured([&] { return d_.cuMemFreeHost(pinned); }));
  EXPECT_FALSE(captured([&] { return d_.cuModuleLoadData(&module, kText); }));
  EXPECT_FALSE(captured([&] { return d_.cuModuleUnload(module_); }));
  EXPECT_FALSE(captured([&] { return d_.cuStreamSynchronize(stream_); }));
  EXPECT_FALSE(captured([&] { return d_.cuEventSynchronize(event); }));
  EXPECT_FALSE(captured([&] { return d_.cuEventRecord(event, stream_); }));
  EXPECT_FALSE(captured([&] { return d_.cuStreamWaitEvent(stream_, event, 0); }));
  float ms = 0;
  EXPECT_EQ(d_.cuEventRecord(event, stream_), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(d_.event_elapsed_time(&ms, event, event), CUDA_ERROR_INVALID_HANDLE) << "has no time";
  EXPECT_EQ(d_.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(d_.cuEventDestroy(event), CUDA_SUCCESS);
}

/// A recording that comes to nothing is an error, and the device goes on.
TEST_F(OnFakeGpu, ARecordingInWhichMemoryIsTakenFails) {
  const auto device = open_gpu(0, live_gpus().gpus[0].description);
  const int64_t before = fake_counts().refused_in_captures;
  EXPECT_THROW(device->record([&] { device->allocate(64); }), InternalError);
  EXPECT_EQ(fake_counts().refused_in_captures, before + 1);
  std::byte* memory = device->allocate(64);
  const auto recording = device->record([&] { device->copy(memory, memory + 32, 32); });
  ASSERT_NE(recording, nullptr);
  device->replay(*recording);
  device->synchronise();
  device->release(memory, 64);
}

// -- cuBLASLt

test::FakeMatmuls& matmuls() {
  void* library = ::dlopen(BRRR_FAKE_CUDA "/lib64/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  BRRR_CHECK(library != nullptr, "no fake cuBLASLt");
  const auto find = reinterpret_cast<test::FakeMatmuls* (*)()>(::dlsym(library, "fake_matmuls"));
  BRRR_CHECK(find != nullptr, "not the fake cuBLASLt");
  return *find();
}

/// One product of matrices that begin so many bytes behind a multiple of 256.
struct FakeProduct {
  CublasLt library;
  std::byte* memory = nullptr;
  std::unique_ptr<Device> device = open_gpu(0, live_gpus().gpus[0].description);

  static constexpr int64_t kPlace = 64 << 10, kWorkspace = 32 << 20;
  FakeProduct() {
    EXPECT_EQ(library.load(), "");
    memory = device->allocate(8 * kPlace + kWorkspace);
  }
  ~FakeProduct() { device->release(memory, 0); }

  size_t algorithms(const MatmulCall& call, int64_t offset = 0,
                    int64_t workspace = kWorkspace) const {
    MatmulAddresses at;
    const auto place = [&](int64_t i) { return memory + i * kPlace + offset; };
    at.a = place(0);
    at.b = place(1);
    at.y = place(2);
    at.bias = place(3);
    at.aux = place(4);
    at.bias_gradient = place(5);
    at.scale_a = at.scale_b = place(6);
    at.workspace = memory + 8 * kPlace;
    at.workspace_bytes = static_cast<size_t>(workspace);
    return BoundMatmul(library, call, at).algorithms(8).size();
  }
};

MatmulCall product_of(DType in, DType out, int64_t m, int64_t n, int64_t k, bool tn = false) {
  MatmulCall call;
  Product& p = call.product;
  p.in = in;
  p.out = out;
  p.m = m;
  p.n = n;
  p.k = k;
  p.transpose_b = tn;
  p.row_a = k;
  p.row_b = tn ? k : n;
  p.row_y = n;
  return call;
}

TEST_F(OnFakeGpu, AlgorithmsAreThoseForTheAlignmentAndTheWorkspace) {
  const FakeProduct p;
  const MatmulCall even = product_of(DType::bf16, DType::bf16, 16, 32, 48);
  const size_t all = p.algorithms(even);
  EXPECT_EQ(all, 3u);
  EXPECT_EQ(p.algorithms(even, 0, 0), all - 1) << "one of them wants a workspace";
  EXPECT_EQ(p.algorithms(even, 16), all);
  EXPECT_EQ(p.algorithms(even, 8), 1u) << "most read 16 bytes at a time";
  EXPECT_EQ(p.algorithms(product_of(DType::bf16, DType::bf16, 16, 33, 48)), 1u);
}

TEST_F(OnFakeGpu, ProductsOf8BitsAreAlignedAndLieAlongTheirTerms) {
  const FakeProduct p;
  MatmulCall right = product_of(DType::f8e4m3, DType::bf16, 16, 32, 48, true);
  right.product.in_b = DType::f8e4m3;
  right.product.scale_a = right.product.scale_b = LaunchArg::in(2);
  EXPECT_EQ(p.algorithms(right), 2u);
  EXPECT_EQ(p.algorithms(right, 8), 0u);
  const auto refused = [&](const char* why, const std::function<void(MatmulCall&)>& change) {
    MatmulCall wrong = right;
    change(wrong);
    matmuls().refusals.clear();
    EXPECT_EQ(p.algorithms(wrong), 0u) << why;
    ASSERT_EQ(matmuls().refusals.size(), 1u) << why;
    EXPECT_NE(matmuls().refusals[0].find(why), std::string::npos) << matmuls().refusals[0];
  };
  refused("multiple of 16", [](MatmulCall& c) { c.product.m = 24; });
  refused("TN", [](MatmulCall& c) {
    c.product.transpose_b = false;
    c.product.row_b = c.product.n;
  });
  refused("e5m2", [](MatmulCall& c) { c.product.in = c.product.in_b.emplace(DType::f8e5m2); });
  refused("one operand", [](MatmulCall& c) { c.product.in_b = DType::bf16; });
  refused("scales", [](MatmulCall& c) { c.product.scale_a.reset(); });
  refused("a bias", [](MatmulCall& c) {
    c.product.bias = LaunchArg::in(3);
    c.product.bias_dtype = DType::f32;
  });
}

TEST_F(OnFakeGpu, TypesAndEpiloguesAreThoseOfTheTables) {
  const FakeProduct p;
  const MatmulCall right = product_of(DType::bf16, DType::bf16, 16, 32, 48);
  const auto refused = [&](const char* why, const std::function<void(MatmulCall&)>& change,
                           int64_t offset = 0) {
    MatmulCall wrong = right;
    change(wrong);
    matmuls().refusals.clear();
    EXPECT_EQ(p.algorithms(wrong, offset), 0u) << why;
    ASSERT_EQ(matmuls().refusals.size(), 1u) << why;
    EXPECT_NE(matmuls().refusals[0].find(why), std::string::npos) << matmuls().refusals[0];
  };
  refused("two types", [](MatmulCall& c) { c.product.in_b = DType::f16; });
  refused("a result", [](MatmulCall& c) { c.product.out = DType::f16; });
  refused("tf32", [](MatmulCall& c) { c.product.tf32 = true; });
  refused("a bias", [](MatmulCall& c) {
    c.product.bias = LaunchArg::in(2);
    c.product.bias_dtype = DType::f32;
  });
  refused("along the rows", [](MatmulCall& c) {
    c.product.out = DType::f32;
    c.bias_gradient = LaunchArg::out(1);
    c.sums_a = true;
  });
  const auto with_aux = [](MatmulCall& c) {
    c.epilogue = Epilogue::gelu_grad;
    c.aux = LaunchArg::in(2);
  };
  refused("not aligned", with_aux, 8);
  refused("rows of the auxiliary", [&](MatmulCall& c) {
    with_aux(c);
    c.product.n = c.product.row_b = c.product.row_y = 36;
  });
  refused("without elements", [](MatmulCall& c) { c.product.row_a = 8; });
}

/// Partial sums are not rounded to the type of the result: 257 + 258 is 515, which is 516 in bf16;
/// of the parts in bf16 it would be 512.
TEST_F(OnFakeGpu, PartsOfASumAreAddedInF32) {
  Graph g;
  g.output("y", matmul(g.input("a", {8, 16}, DType::bf16), g.input("b", {16, 8}, DType::bf16)));
  std::vector<double> a(128, 0.0), b(128, 1.0);
  for (size_t row = 0; row < 8; ++row) {
    a[row * 16] = 256, a[row * 16 + 1] = 1;
    a[row * 16 + 8] = 256, a[row * 16 + 9] = 2;
  }
  const auto got =
      run(g, {{"a", {{DType::bf16, {8, 16}}, a}}, {"b", {{DType::bf16, {16, 8}}, b}}}, products());
  for (const double y : got.at("y").data) EXPECT_EQ(y, 516);
}

/// Classes as they are against classes with zeros behind the last: which is faster is measured.
TEST_F(OnFakeGpu, BothWaysOfALossHeadAreMeasured) {
  ::unsetenv("BRRR_AUTOTUNE");
  Graph g;
  const std::vector<Value> in{
      g.input("x", {8, 16}, DType::bf16), g.input("w", {40, 16}, DType::bf16),
      g.input("targets", {8}, DType::i32), g.input("dlosses", {8}, DType::f32)};
  const auto y = call(Op::linear_cross_entropy_step, in,
                      {{"ignore_index", int64_t{-1}}, {"transpose_w", true}});
  for (size_t i = 0; i < y.size(); ++i) g.output(fmt::format("y{}", i), y[i]);
  expect_as_reference(g, all_kernels(), 40);
  std::string text;
  for (const auto& entry : fs::directory_iterator(folder_ / "cuda"))
    if (entry.path().filename().string().starts_with("autotune")) text = read_file(entry.path());
  const size_t begin = text.find("\nway "), end = text.find('\n', begin + 1);
  ASSERT_NE(begin, std::string::npos) << text;
  const std::string line = text.substr(begin, end - begin);
  for (const char* product : {"8x40x16 nt", "8x16x40 nn", "8x64x16 nt", "8x16x64 nn"})
    EXPECT_NE(line.find(product), std::string::npos) << product << " is not in " << line;
  // On this GPU whatever runs takes a millisecond, and the copy of the weights is one thing more.
  EXPECT_NE(line.find("\tchunks, products by cublaslt\t5 6\t0 0"), std::string::npos) << line;
}

/// Then a kernel of our own multiplies, slowly, and the device says so.
TEST_F(OnFakeGpu, WhereTheLibraryKnowsNoAlgorithmAnotherWayIsTaken) {
  Graph g;
  g.output("y", matmul(g.input("a", {5, 7}, DType::bf16), g.input("b", {7, 3}, DType::bf16)));
  matmuls().finds_nothing = true;
  testing::internal::CaptureStderr();
  const Backend backend = all_kernels();
  const int64_t before = fake_counts().launches;
  expect_as_reference(g, backend, 7);
  matmuls().finds_nothing = false;
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(fake_counts().launches, before + 1);
  EXPECT_NE(said.find("no library computes"), std::string::npos) << said;
}

/// Operands that begin between multiples of 16 bytes.
TEST_F(OnFakeGpu, ViewsAreMultipliedWhereTheyLie) {
  for (const DType t : {DType::bf16, DType::f32})
    for (const int64_t first : {0, 1, 2, 4, 8}) {
      Graph g;
      const Value x = g.input("x", {200}, t);
      const Value a = reshape(slice(x, 0, first, 80), {5, 16});
      g.output("y", matmul(a, g.input("b", {16, 8}, t)));
      expect_as_reference(g, products(), 16);
    }
}

// -- the copy engine

Graph attention_graph(int64_t layers) {
  Graph g;
  Attrs attrs = test::attention_in_one(2, 64);
  attrs.set("causal", true);
  for (int64_t i = 0; i < layers; ++i) {
    const Value x = g.input(fmt::format("x{}", i), {1, 40, 3 * 2 * 64}, DType::bf16);
    g.output(fmt::format("y{}", i), call(Op::attention, std::vector{x}, attrs)[0]);
  }
  return g;
}

/// The reason is said, once for all layers, and another kernel computes it.
TEST_F(OnFakeGpu, ATensorThatTheDriverRefusesIsSaidOnce) {
  Backend backend = all_kernels();
  for (KernelEntry& e : backend.kernels)
    e.prepare = [prepare = e.prepare](const NodeView& view) -> std::unique_ptr<Kernel> {
      const auto kernel = prepare(view);
      std::vector<NodePlan> ways = dynamic_cast<CudaKernel&>(*kernel).ways();
      std::erase_if(ways, [](const NodePlan& way) { return way.name == "cudnn"; });
      return std::make_unique<CudaKernel>(view, std::move(ways));
    };
  fake_refuse_tensors(true);
  testing::internal::CaptureStderr();
  expect_as_reference(attention_graph(3), backend, 4 * 40);
  const std::string said = testing::internal::GetCapturedStderr();
  fake_refuse_tensors(false);
  EXPECT_EQ(said,
            "brrr: the kernel \"tma\" is left out: cuTensorMapEncodeTiled said "
            "CUDA_ERROR_INVALID_VALUE to bf16 of sizes 64 x 40 x 2 x 1 with strides of 768, 128, "
            "30720 bytes, in boxes of 64 x 128\n");
  testing::internal::CaptureStderr();
  expect_as_reference(attention_graph(1), backend, 4 * 40);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

/// What the test on a GPU does with 600 heads, on two multiprocessors.
TEST_F(OnFakeGpu, EveryWayOfManyHeads) {
  fake_set_multiprocessors(2);
  for (const test::ManyHeads& sizes :
       {test::ManyHeads{.batches = 2, .heads = 2, .length = 150, .width = 64, .rounds = 4},
        test::ManyHeads{.batches = 1,
        .heads = 2,
        .length = 130,
        .width = 64,
        .dtype = DType::f16,
        .causal = false}}) {
    const test::WaysChecked done = test::WaysOfAttention(all_kernels(), sizes).check();
    EXPECT_EQ(done.names, (std::set<std::string>{"cudnn", "mma", "tma", "wgmma"}));
    EXPECT_TRUE(done.refused.empty()) << *done.refused.begin();
  }
  fake_set_multiprocessors(0);
}

}  // namespace
}  // namespace brrr::cuda
