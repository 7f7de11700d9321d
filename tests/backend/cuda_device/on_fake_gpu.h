#pragma once
// A test on the driver that tests/support/fake_cuda plays.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "backend/cpu/isa.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/node_plan.h"
#include "backend/cuda/target.h"
#include "backend/reference/interpreter.h"
#include "base/file.h"
#include "ir/text.h"
#include "runtime/engine.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace brrr::cuda {

class OnFakeGpu : public testing::Test {
 protected:
  OnFakeGpu() {
    std::string pattern = (fs::temp_directory_path() / "brrr-cuda-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    ::setenv("CUDA_HOME", BRRR_FAKE_CUDA, 1);
    ::setenv("BRRR_CACHE", folder_.c_str(), 1);
    ::setenv("BRRR_AUTOTUNE", "0", 1);
    // What the device is compared with multiplies in f32, whatever units this processor has.
    cpu::limit_isa(std::min(cpu::best_isa(), cpu::Isa::kAvx2));
  }
  ~OnFakeGpu() override {
    cpu::limit_isa(cpu::best_isa());
    ::unsetenv("CUDA_HOME");
    ::unsetenv("BRRR_CACHE");
    ::unsetenv("BRRR_AUTOTUNE");
    fs::remove_all(folder_);
  }

  /// Products alone: what needs no kernel of our own. The library's ways only.
  static Backend products(size_t way = 0) { return by_library("cublaslt", way); }
  static Backend by_library(std::string_view name, size_t way = 0) {
    Backend backend = backend_named("cuda");
    std::erase_if(backend.kernels, [&](const KernelEntry& e) { return !e.name.starts_with(name); });
    for (KernelEntry& e : backend.kernels)
      e.prepare = [prepare = e.prepare, way](const NodeView& view) -> std::unique_ptr<Kernel> {
        auto kernel = prepare(view);
        auto ways = dynamic_cast<CudaKernel&>(*kernel).ways();
        return std::make_unique<CudaKernel>(view,
                                            std::vector{ways[std::min(way, ways.size() - 1)]});
      };
    return backend;
  }

  static reference::Tensors run(const Graph& g, const reference::Tensors& in, Backend backend) {
    Engine engine(std::move(backend));
    const size_t p = engine.add(g);
    engine.allocate();
    const auto bytes_of_tensor = [](const RefTensor& t) {
      std::vector<std::byte> bytes(static_cast<size_t>(t.type.bytes()));
      write_tensor(t, bytes.data());
      return bytes;
    };
    for (NodeId id : engine.program(p).graph().inputs(InputKind::data))
      engine.set_input<std::byte>(p, g.input_name(id), bytes_of_tensor(in.at(g.input_name(id))));
    engine.run(p);
    reference::Tensors out;
    std::vector<std::byte> room;
    for (const Output& o : g.outputs()) {
      const auto bytes = engine.read_output(p, o.name, room);
      out[o.name] = read_tensor(g.type(o.value), bytes.data());
    }
    return out;
  }

  static void expect_as_reference(const Graph& g, const Backend& backend, int64_t terms) {
    reference::Tensors in = test::random_inputs(g, 7, -1, 1, 5);
    for (auto& [name, t] : in)
      for (double& x : t.data) x = rounded_to(t.type.dtype, x);
    const auto got = run(g, in, backend), wanted = reference::evaluate(g, in);
    for (const auto& [name, t] : got) {
      const RefTensor& w = wanted.at(name);
      double top = 1e-30;
      for (double x : w.data) top = std::max(top, std::fabs(x));
      for (size_t i = 0; i < t.data.size(); ++i)
        ASSERT_NEAR(t.data[i], w.data[i], top * 2 * test::tolerance(t.type.dtype, terms))
            << name << '[' << i << "]\n"
            << print(g);
    }
  }

  fs::path folder_;
};

}  // namespace brrr::cuda
