// Files on a driver that tests/support/fake_cuda plays and kernels that the emulation runs: a .brrr
// file, and ONNX files of PyTorch's exporters, compute on a GPU what they compute on the CPU.

#include "runtime/runnable_session.h"

#include "backend/cpu/target.h"
#include "backend/cuda_device/emulated_kernels.h"
#include "backend/cuda_device/on_fake_gpu.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "modules/brrr_file.h"
#include "modules/open_module.h"
#include "support/exported_models.h"
#include "support/gpt2.h"

namespace brrr::cuda {
namespace {

// One file, any size, in both precisions; weights are copied to the device, never lent.
TEST_F(OnFakeGpu, ABrrrFileRunsAsOnTheCpu) {
  const models::ModelPtr model = test::tiny_gpt2().model();
  modules::BrrrProgram program;
  program.graph = model->forward(Dim::symbol("batch"), Dim::symbol("length"));
  std::map<std::string, std::vector<float>> weights;
  for (const NodeId id : program.graph.inputs(InputKind::parameter)) {
    const std::string& name = program.graph.input_name(id);
    const Shape& shape = program.graph.type({id, 0}).shape;
    std::vector<float>& values = weights[name];
    values.resize(static_cast<size_t>(shape.elements()));
    models::initial_weights(*model, 1)(name, values);
    program.weights.push_back({name, f32, shape, std::as_bytes(std::span(values))});
  }
  const fs::path path = folder_ / "m.brrr";
  modules::write_brrr_file(path, program);
  for (const DType precision : {f32, bf16}) {
    RunnableOptions how;
    how.passes = for_inference(precision);
    RunnableSession host(modules::open_module(path), cpu::cpu_backend());
    RunnableSession device(modules::open_module(path), all_kernels(), how);
    for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{1, 5}, {3, 8}}) {
      HostTensor tokens(DType::i32, {batch, length});
      for (int64_t i = 0; i < tokens.shape.elements(); ++i)
        tokens.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>((5 * i + 2) % 13);
      const HostTensor wanted = host.run({{"tokens", tokens}}).at("logits").tensor();
      test::expect_near(device.run({{"tokens", tokens}}).at("logits").tensor(), wanted,
                        precision == f32 ? 1e-5 : 3e-2);
    }
    EXPECT_EQ(device.programs(), 2u);
    for (const StateInfo& state : device.engine().states()) EXPECT_FALSE(state.is_lent);
  }
}

TEST_F(OnFakeGpu, OnnxFilesComputeAsPyTorchDoes) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(test::kExported)) {
    if (entry.path().extension() != ".onnx") continue;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    RunnableSession session(modules::open_module(entry.path()), all_kernels());
    const PortValues y = session.run(test::exported_inputs(session.runnable(), name));
    test::expect_near(y.at("y").tensor(), test::exported_tensor(name + "/y"), 1e-5);
    ++files;
  }
  EXPECT_GE(files, 8);
}

}  // namespace
}  // namespace brrr::cuda
