// Files on a driver that tests/support/fake_cuda plays and kernels that the emulation runs: a .brrr
// file, and ONNX files of PyTorch's exporters, compute on a GPU what they compute on the CPU.

#include "modules/module_session.h"

#include "backend/cpu/target.h"
#include "backend/cuda_device/emulated_kernels.h"
#include "backend/cuda_device/on_fake_gpu.h"
#include "formats/safetensors.h"
#include "models/gpt2/gpt2_model.h"
#include "models/initialise.h"
#include "modules/brrr_file.h"
#include "support/gpt2.h"

namespace brrr::cuda {
namespace {

const fs::path kExported = fs::path(BRRR_SOURCE_DIR) / "tests/golden/exported";

HostTensor golden(const std::string& name) {
  static const io::SafetensorsFile file(kExported / "exported.safetensors");
  const io::TensorView& t = file.get(name);
  HostTensor x(t.dtype, t.shape);
  std::memcpy(x.bytes.data(), t.bytes.data(), x.bytes.size());
  return x;
}

void expect_near(const HostTensor& got, const HostTensor& wanted, double share) {
  ASSERT_EQ(got.shape, wanted.shape);
  double largest = 1e-30, difference = 0;
  for (int64_t i = 0; i < wanted.shape.elements(); ++i) {
    largest = std::max(largest, std::fabs(wanted.number(i)));
    difference = std::max(difference, std::fabs(wanted.number(i) - got.number(i)));
  }
  EXPECT_LE(difference, share * largest);
}

// One file, any size, in both precisions; weights are copied to the device, never lent.
TEST_F(OnFakeGpu, ABrrrFileRunsAsOnTheCpu) {
  const models::ModelPtr model = models::gpt2_model(test::tiny_gpt2());
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
    modules::ModuleOptions how;
    how.precision = precision;
    modules::ModuleSession host(modules::open_module(path), cpu::cpu_backend());
    modules::ModuleSession device(modules::open_module(path), all_kernels(), how);
    for (const auto& [batch, length] : {std::pair<int64_t, int64_t>{1, 5}, {3, 8}}) {
      HostTensor tokens(DType::i32, {batch, length});
      for (int64_t i = 0; i < tokens.shape.elements(); ++i)
        tokens.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>((5 * i + 2) % 13);
      const HostTensor wanted = host.run({{"tokens", tokens}}).at("logits").tensor();
      expect_near(device.run({{"tokens", tokens}}).at("logits").tensor(), wanted,
                  precision == f32 ? 1e-5 : 3e-2);
    }
    EXPECT_EQ(device.programs(), 2u);
    for (const StateInfo& state : device.engine().states()) EXPECT_FALSE(state.is_lent);
  }
}

TEST_F(OnFakeGpu, OnnxFilesComputeAsPyTorchDoes) {
  for (const std::string name :
       {"bert-eager-11", "bert-sdpa-14", "gpt2-eager-17", "llama-sdpa-17", "t5-eager-14",
        "qwen3-dynamo-18", "bert-dynamo-23", "gemma3-dynamo-23"}) {
    SCOPED_TRACE(name);
    modules::ModuleSession session(modules::open_module(kExported / (name + ".onnx")),
                                   all_kernels());
    modules::ModuleValues inputs;
    for (const modules::Port& port : session.module().inputs())
      inputs.emplace(port.name, golden(name + "/" + port.name));
    expect_near(session.run(inputs).at("y").tensor(), golden(name + "/y"), 1e-5);
  }
}

}  // namespace
}  // namespace brrr::cuda
