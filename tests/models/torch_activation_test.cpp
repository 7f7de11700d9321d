// The activations that files of sentence-transformers name, against torch.nn.

#include "models/torch_activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/reference/interpreter.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "ops/ops.h"

namespace brrr::models {
namespace {

TEST(TorchActivation, IsThatOfTorch) {
  const io::SafetensorsFile golden(fs::path(BRRR_SOURCE_DIR) /
                                   "tests/golden/sentence_folders.safetensors");
  const io::TensorView& xs = golden.get("activation");
  std::vector<float> x(static_cast<size_t>(xs.shape.elements())), y(x.size());
  io::copy_as_f32(xs, x);
  size_t count = 0;
  for (const io::TensorView& t : golden.tensors()) {
    if (!t.name.starts_with("activation/")) continue;
    ++count;
    const std::string name = t.name.substr(11);
    EXPECT_NE(torch_activation_names().find(name), std::string::npos);
    const TorchActivation apply = torch_activation("torch.nn.modules.activation." + name);
    ASSERT_NE(apply, nullptr) << name;
    EXPECT_EQ(torch_activation(name), apply);
    Graph g;
    g.output("y", apply(g.input("x", xs.shape, DType::f32)));
    reference::Tensors in;
    in["x"] = RefTensor({DType::f32, xs.shape});
    in["x"].data.assign(x.begin(), x.end());
    const RefTensor got = reference::evaluate(g, in).at("y");
    io::copy_as_f32(t, y);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(got.data[i], static_cast<double>(y[i]),
                  2e-6 * std::max(1.0, std::abs(static_cast<double>(y[i]))))
          << name << " of " << x[i];
  }
  EXPECT_EQ(count, 21u);
}

TEST(TorchActivation, OthersAreNone) {
  for (const char* name : {"", "Softmax", "torch.nn.modules.activation.Softmax", "my.module.Tanh",
                           "tanh", "torch.nn.modules.activation."})
    EXPECT_EQ(torch_activation(name), nullptr) << name;
}

}  // namespace
}  // namespace brrr::models
