// Weights of a folder in an engine: what kernels read as it lies stays in the mapped file, the rest
// is converted, and the numbers do not depend on which.

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/target.h"
#include "folders/weights.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/gpt2.h"
#include "support/temp_folder.h"

namespace brrr::infer {
namespace {

/// A folder with a small model whose weights are stored as `dtype`.
void write_folder(const fs::path& folder, const models::Model& model, DType dtype) {
  const FloatWeights initial = models::initial_weights(model, 3);
  std::vector<std::vector<std::byte>> rooms;
  std::vector<TensorView> tensors;
  for (const models::ParameterInfo& p : model.parameters()) {
    std::vector<float> wide(static_cast<size_t>(p.shape.elements()));
    initial(p.name, wide);
    rooms.emplace_back(wide.size() * bytes_of(dtype));
    convert(DType::f32, wide.data(), dtype, rooms.back().data(), p.shape.elements());
    tensors.push_back({p.name, dtype, p.shape, rooms.back()});
  }
  io::write_model_files(folder, model, tensors);
}

constexpr int64_t kTokens = 5;

size_t add_program(Engine& engine, const models::Model& model, DType precision,
                   const std::set<std::string>& disabled) {
  PipelineOptions p;
  p.precision = p.parameter_dtype = precision;
  p.refresher = Refresher::loader;
  p.disabled = disabled;
  return engine.add(run_pipeline(model.forward(1, kTokens), engine.backend().target(), p));
}

std::vector<float> logits(Engine& engine, size_t program) {
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
  engine.set_input<int32_t>(program, "tokens", tokens);
  engine.run(program);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(program, "logits", room);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST(WeightLoading, MatricesOf16BitsAreReadInTheFile) {
  const test::TempFolder folder;
  const models::ModelPtr model = test::tiny_gpt2().model();
  write_folder(folder.path(), *model, DType::bf16);
  const auto weights = io::open_weights(folder.path(), *model);
  Engine engine(cpu::cpu_backend(), WrittenBy::loader);
  engine.use_weights(weights);
  const size_t program = add_program(engine, *model, DType::bf16, {"weight_panels"});
  size_t lent = 0;
  for (const StateInfo& state : engine.states()) {
    if (state.role != Role::parameter) continue;
    EXPECT_EQ(state.is_lent, state.type.dtype == DType::bf16) << state.name;
    if (!state.is_lent) continue;
    EXPECT_EQ(state.apart, weights->find(state.name)->bytes.data()) << state.name;
    ++lent;
  }
  EXPECT_GT(lent, 4u);
  engine.allocate();
  Engine copies(cpu::cpu_backend());
  const size_t copied = add_program(copies, *model, DType::bf16, {"weight_panels"});
  copies.allocate();
  copies.load(*weights);
  EXPECT_EQ(copies.lent_bytes(), 0);
  EXPECT_LT(engine.forecast().parameter_bytes, copies.forecast().parameter_bytes);
  EXPECT_EQ(logits(engine, program), logits(copies, copied));
}

// Packed panels hold the converted numbers, whichever dtype the file stores.
TEST(WeightLoading, AnyStoredDtypeGivesTheNumbersOfItsConversion) {
  const models::ModelPtr model = test::tiny_gpt2().model();
  for (const DType precision : {DType::f32, DType::bf16, DType::f16})
    for (const DType stored : {DType::f32, DType::bf16}) {
      const test::TempFolder folder;
      write_folder(folder.path(), *model, stored);
      const auto weights = io::open_weights(folder.path(), *model);
      Engine engine(cpu::cpu_backend(), WrittenBy::loader), copies(cpu::cpu_backend());
      engine.use_weights(weights);
      const size_t program = add_program(engine, *model, precision, {});
      engine.allocate();
      engine.load_weights();
      const size_t copied = add_program(copies, *model, precision, {"weight_panels"});
      copies.allocate();
      copies.load(*weights);
      const std::vector<float> found = logits(engine, program), expected = logits(copies, copied);
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 1e-5f) << name_of(precision) << name_of(stored);
    }
}

}  // namespace
}  // namespace brrr::infer
