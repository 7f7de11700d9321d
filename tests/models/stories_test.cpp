// A published, trained Llama of 260 thousand parameters: its logits are those of transformers.
// Needs stories260K/ in $BRRR_DATA.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "folders/model_folder.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"

namespace brrr {
namespace {

TEST(Stories260K, LogitsAreThoseOfTransformers) {
  const fs::path folder = fs::path(env::get("BRRR_DATA").value_or("")) / "stories260K";
  if (!io::holds_model(folder)) GTEST_SKIP() << "BRRR_DATA has no stories260K/";
  const io::ModelFolder model = io::open_model(folder);
  const io::SafetensorsFile golden(fs::path(BRRR_SOURCE_DIR) /
                                   "tests/golden/stories260k_logits.safetensors");
  const auto ids = [&](const char* name) {
    const io::TensorView& t = golden.get(name);
    std::vector<int32_t> out(static_cast<size_t>(t.shape.elements()));
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  };
  const std::vector<int32_t> tokens = ids("tokens"), rows = ids("rows");
  const auto vocabulary = static_cast<size_t>(model.definition->sizes().vocabulary);
  std::vector<float> expected(rows.size() * vocabulary);
  io::copy_as_f32(golden.get("logits"), expected);

  Engine engine(cpu::cpu_backend());
  const auto length = static_cast<int64_t>(tokens.size());
  const size_t p =
      engine.add(run_pipeline(model.definition->forward(1, length), engine.backend().target(), {}));
  engine.allocate();
  engine.load(*model.weights);
  engine.set_input<int32_t>(p, "tokens", tokens);
  engine.run(p);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(p, "logits", room);
  const auto* logits = reinterpret_cast<const float*>(bytes.data());
  float worst = 0;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t v = 0; v < vocabulary; ++v)
      worst = std::max(worst, std::fabs(logits[static_cast<size_t>(rows[r]) * vocabulary + v] -
                                        expected[r * vocabulary + v]));
  EXPECT_LT(worst, 1e-4f);
  EXPECT_GT(rows.size(), 10u);
}

}  // namespace
}  // namespace brrr
