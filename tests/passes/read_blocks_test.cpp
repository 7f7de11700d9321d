// Parameters in blocks, as a GGUF file has them: what reads the blocks, and what becomes of the
// rest.

#include "passes/weights/read_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/target.h"
#include "base/blocks/block_types.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int64_t kBlockRowsN = 96, kBlockTermsK = 512;

/// Blocks of a matrix [rows, kBlockTermsK]: random bits, with scales that are small numbers.
std::vector<std::byte> random_blocks(const BlockType& type, int64_t rows, uint32_t seed) {
  test::Random random(seed);
  std::vector<std::byte> bytes(
      static_cast<size_t>(rows * kBlockTermsK / type.elements * type.bytes));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
  // 0x2c and 0x2d are the high bytes of halves from 0.0625 to 0.094.
  const auto half_at = [&](int64_t at) {
    for (size_t i = static_cast<size_t>(at); i < bytes.size(); i += static_cast<size_t>(type.bytes))
      bytes[i + 1] = std::byte{0x2c};
  };
  const std::string name = type.name;
  if (name == "Q6_K") {
    half_at(208);
  } else {
    half_at(0);
    if (name == "Q4_K" || name == "Q5_1") half_at(2);
  }
  return bytes;
}

/// A table, a weight of a product, a norm's weight; the table is also the head, if `tied`.
Graph small_model(bool tied) {
  Graph g;
  const Value table = g.parameter("table", {kBlockRowsN, kBlockTermsK});
  const Value w = g.parameter("w", {kBlockRowsN, kBlockTermsK});
  const Value scale = g.parameter("scale", {kBlockTermsK});
  const Value x = rms_norm(embedding(table, g.input("ids", {7}, DType::i32)), scale).y;
  g.output("y", matmul(x, w, false, true));
  if (tied) g.output("logits", matmul(x, table, false, true));
  return g;
}

struct Outputs {
  std::vector<float> y;
  MemoryForecast memory;
};

Outputs run(const Graph& g, const PipelineOptions& options,
            const std::shared_ptr<const WeightSource>& weights, const char* output) {
  Engine engine(cpu::cpu_backend());
  engine.use_weights(weights);
  const size_t p = engine.add(run_pipeline(g, engine.backend().target(), options));
  engine.allocate();
  engine.load_weights();
  engine.set_input<int32_t>(p, "ids", std::vector<int32_t>{0, 5, 95, 17, 5, 64, 31});
  engine.run(p);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(p, output, room);
  const auto* data = reinterpret_cast<const float*>(bytes.data());
  return {{data, data + bytes.size() / sizeof(float)}, engine.forecast()};
}

TEST(ReadBlocks, ProductsAndTablesReadTheBlocksOfAFile) {
  for (const char* name : {"Q8_0", "Q5_0", "Q4_K", "Q6_K", "Q5_1", "IQ4_NL"})
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", name, tied ? ", tied" : ""));
      const BlockType& type = *find_block_type(std::string_view(name));
      const Storage storage{Layout::blocks, {}, static_cast<uint8_t>(type.id)};
      const Shape shape{kBlockRowsN, kBlockTermsK};
      const std::vector<std::byte> table = random_blocks(type, kBlockRowsN, 3),
                                   w = random_blocks(type, kBlockRowsN, 4);
      const std::vector<float> ones(kBlockTermsK, 0.5f);
      auto weights = std::make_shared<WeightList>("blocks");
      weights->add({"table", DType::f32, shape, table, storage});
      weights->add({"w", DType::f32, shape, w, storage});
      weights->add({"scale", DType::f32, {kBlockTermsK}, std::as_bytes(std::span(ones))});
      const Graph g = small_model(tied);
      WeightQuantization own(Quantization{8, 32, true});
      own.blocks =
          std::make_shared<BlockParameters>(BlockParameters{{"table", storage}, {"w", storage}});
      const auto options = for_inference(DType::f32, own);
      PipelineReport report;
      const Graph out = run_pipeline(g, cpu::cpu_backend().target(), options, &report);
      const Outputs exact = run(g, for_inference(DType::f32), weights, tied ? "logits" : "y"),
                    got = run(g, options, weights, tied ? "logits" : "y");
      ASSERT_EQ(exact.y.size(), got.y.size());
      double square = 0, difference = 0;
      for (size_t i = 0; i < exact.y.size(); ++i) {
        square += std::pow(exact.y[i], 2);
        difference += std::pow(got.y[i] - exact.y[i], 2);
      }
      EXPECT_GT(difference, 0);
      EXPECT_LT(std::sqrt(difference / square), 0.01);
      // Weights are held as integers in panels; an untied table is lent.
      const int64_t panels = kBlockRowsN * kBlockTermsK * 9 / 8;
      EXPECT_LT(got.memory.parameter_bytes, (tied ? 2 : 1) * panels + 4096);
    }
}

TEST(ReadBlocks, OthersReadFloats) {
  Graph g;
  const Value w = g.parameter("w", {4, 64});
  g.output("y", exp(w) * g.input("x", {4, 64}, DType::f32));
  const Storage storage{Layout::blocks, {}, 8};
  Notes notes;
  const Graph out = read_blocks(g, cpu::cpu_backend().target(), {{"w", storage}}, &notes);
  const NodeId stored = out.find_input("w");
  EXPECT_EQ(out.type({stored, 0}).storage, storage);
  EXPECT_EQ(out.type({stored, 0}).bytes(), 4 * 2 * 34);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 of them also as floats"), std::string::npos) << notes[0];
}

TEST(ReadBlocks, RowsOfPartsOfBlocksStay) {
  Graph g;
  g.output("y", exp(g.parameter("w", {4, 40})));
  EXPECT_EQ(read_blocks(g, cpu::cpu_backend().target(), {{"w", {Layout::blocks, {}, 8}}}), g);
}

}  // namespace
}  // namespace brrr
