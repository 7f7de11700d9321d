// Models as PyTorch's exporters write them: they compute what PyTorch does, and attention, norms
// and activations are found in all of them. tests/golden/make_exported_goldens.py writes the files.

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/target.h"
#include "modules/open_module.h"
#include "support/exported_models.h"

namespace brrr::test {
namespace {

struct ExportedModel {
  const char* name;
  const char* attention;              // what the note on it says
  std::vector<std::string> formulas;  // what was written out
};

const ExportedModel kExportedModels[] = {
    {"bert-eager-11",
     "scale 0.353553, an added mask; q, k and v apart, heads joined",
     {"found 3 layer_norm", "found 1 gelu"}},
    {"bert-sdpa-14",
     "scale 0.353553, a boolean mask; q, k and v apart, heads joined",
     {"found 3 layer_norm", "found 1 gelu"}},
    {"gpt2-eager-17",
     "scale 0.353553, an added mask; q, k and v in one value, heads joined",
     {"found 1 gelu"}},
    {"llama-sdpa-17",
     "scale 0.353553, causal, a boolean mask; q, k and v apart, 2 heads share 1, heads joined",
     {"found 3 rms_norm", "found 1 silu"}},
    {"t5-eager-14", "scale 1, an added mask; q, k and v apart, heads joined", {"found 3 rms_norm"}},
    {"qwen3-dynamo-18",
     "scale 0.353553, an added mask; q, k and v apart, 2 heads share 1, heads joined",
     {"found 5 rms_norm", "found 1 silu"}},
    {"bert-dynamo-23", "scale 0.353553, a boolean mask; q, k and v apart, heads joined", {}},
    {"gemma3-dynamo-23",
     "scale 0.0625, causal, window 3, a boolean mask; q, k and v apart, 2 heads share 1, heads "
     "joined",
     {}},
};

class ExportedModels : public testing::TestWithParam<ExportedModel> {};

TEST_P(ExportedModels, ComputeAsPyTorchDoesAndAreRecognised) {
  const std::string name = GetParam().name;
  RunnableOptions how;
  how.explain = true;
  RunnableSession session(modules::open_module(kExported / (name + ".onnx")), cpu::cpu_backend(),
                          how);
  const PortValues y = session.run(exported_inputs(session.runnable(), name));
  expect_near(y.at("y").tensor(), exported_tensor(name + "/y"), 1e-5);
  ASSERT_EQ(session.notes().size(), 1u);
  std::vector<std::string> formulas;
  std::string attention;
  for (const std::string& note : session.notes()[0]) {
    if (note.starts_with("match_formulas: ")) formulas.push_back(note.substr(note.find(' ') + 1));
    if (note.starts_with("match_attention: ")) {
      EXPECT_EQ(note.find("not matched"), std::string::npos) << note;
      EXPECT_EQ(attention, "");
      const size_t at = note.find(" attention: ");
      if (at != std::string::npos) attention = note.substr(at + 12);
    }
  }
  EXPECT_EQ(attention, GetParam().attention);
  EXPECT_EQ(formulas, GetParam().formulas);
}

INSTANTIATE_TEST_SUITE_P(All, ExportedModels, testing::ValuesIn(kExportedModels),
                         [](const auto& of) {
                           std::string name = of.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace brrr::test
