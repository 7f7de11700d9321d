// Calibration of a model: what is gathered, changes that keep what the model computes, and what a
// quantised model reads back.

#include "calibration/calibrator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/target.h"
#include "base/rng.h"
#include "calibration/bit_budget.h"
#include "infer/model_runnable.h"
#include "infer/runner.h"
#include "models/gemma3/gemma3_config.h"
#include "support/random_model_folder.h"
#include "support/temp_folder.h"

namespace brrr::calibration {
namespace {

using test::llama_to_quantise;
using test::TempFolder;

constexpr int64_t kVocabulary = 96, kLength = 24;

/// A folder of random weights whose norms have outlying channels.
io::ModelFolder folder_with(const fs::path& folder, const models::ModelPtr& model) {
  return test::random_model_folder(folder, *model,
                                   [](const models::ParameterInfo& p, std::span<float> values) {
                                     if (p.shape.rank() == 1)
                                       for (size_t i = 0; i < values.size(); i += 17)
                                         values[i] += 20;
                                     if (p.shape.rank() == 2)
                                       for (float& x : values) x *= 4;
                                   });
}

CalibrationText random_text(int64_t runs) {
  CalibrationText text;
  RngStream random(RngKey{1, 2}, 3);
  for (int64_t i = 0; i < runs; ++i) {
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < kLength; ++t)
      ids.push_back(static_cast<int32_t>(random.next_uniform() * kVocabulary));
    PortValues inputs;
    inputs.emplace("tokens", HostTensor::of<int32_t>({1, kLength}, ids));
    text.runs.push_back(std::move(inputs));
    text.tokens += kLength;
  }
  return text;
}

std::vector<float> logits_of(const io::ModelFolder& model,
                             const std::shared_ptr<const WeightSource>& weights,
                             const WeightQuantization& quantization = {}) {
  RunnableOptions how;
  how.passes = for_inference(DType::f32, quantization);
  infer::Runner runner(
      infer::forward_runnable(model.definition, weights, infer::TextLayout::padded),
      cpu::cpu_backend(), how);
  const PortValues outputs = runner.run(random_text(1).runs[0]);
  const auto logits = outputs.at("logits").tensors[0].as<float>();
  return {logits.begin(), logits.end()};
}

/// The model's weights with changes, not quantised.
std::shared_ptr<const WeightSource> changed(const io::ModelFolder& model,
                                            const io::WeightChanges& changes) {
  const auto make = [&model, changes](std::string_view name, std::span<float> to) {
    model.read(name, to);
    if (const auto vector = changes.vectors.find(name); vector != changes.vectors.end())
      std::ranges::copy(vector->second, to.begin());
    const Shape& shape = model.weights->find(name)->shape;
    if (shape.rank() == 2) changes.apply(name, to, shape.size(1));
  };
  const auto list = std::make_shared<WeightList>("changed", model.weights, make);
  model.weights->each([&](const TensorView& t) { list->add({t.name, DType::f32, t.shape, {}}); });
  return list;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return io::relative_error(a, b);
}

TEST(Calibrator, StatisticsAreThoseOfTheRows) {
  const TempFolder folder;
  const io::ModelFolder model = folder_with(folder / "llama", llama_to_quantise());
  Calibrator calibrator(model, io::linear_layers(model), random_text(3));
  const std::string q = "model.layers.0.self_attn.q_proj.weight",
                    k = "model.layers.0.self_attn.k_proj.weight";
  const InputStatistics& of_q = calibrator.statistics(q);
  EXPECT_EQ(&of_q, &calibrator.statistics(k)) << "q and k read the same rows";
  EXPECT_EQ(of_q.width, 128);
  EXPECT_EQ(of_q.rows, 3 * kLength);
  for (int64_t i = 0; i < of_q.width; ++i) {
    const auto at = static_cast<size_t>(i);
    const float square = of_q.gram[at * 129];
    EXPECT_LE(square, 1.001F * of_q.most[at] * of_q.most[at] * static_cast<float>(of_q.rows));
    EXPECT_GE(square, 0.999F * of_q.most[at] * of_q.most[at]);
    EXPECT_LE(of_q.mean[at], of_q.most[at]);
  }
  EXPECT_EQ(calibrator.statistics("model.layers.1.mlp.down_proj.weight").width, 160);
}

TEST(Calibrator, ChangesKeepWhatTheModelComputes) {
  const TempFolder folder;
  const io::ModelFolder model = folder_with(folder / "llama", llama_to_quantise());
  Calibrator calibrator(model, io::linear_layers(model), random_text(3));
  // The two norms of each block, and what up gives to down.
  EXPECT_EQ(calibrator.places().size(), 6u);
  const std::vector<float> before = logits_of(model, model.weights);
  for (const io::WeightChanges& changes :
       {calibrator.smoothing(0.5), calibrator.activation_aware_scaling(4, 32)}) {
    EXPECT_EQ(changes.vectors.size(), 4u);
    EXPECT_EQ(changes.output_factors.size(), 2u);
    EXPECT_EQ(changes.input_factors.size(), 12u);  // all but o_proj
    EXPECT_LT(distance(before, logits_of(model, changed(model, changes))), 1e-4);
  }
}

TEST(Calibrator, GemmasNormsAreChangedWithTheirOffset) {
  const TempFolder folder;
  models::Gemma3Config c;
  c.vocab_size = kVocabulary;
  c.max_position_embeddings = 32;
  c.hidden_size = 128;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 2;
  c.head_dim = 64;
  c.intermediate_size = 160;
  const io::ModelFolder model = folder_with(folder / "gemma", c.model());
  Calibrator calibrator(model, io::linear_layers(model), random_text(3));
  const io::WeightChanges changes = calibrator.smoothing(0.5);
  EXPECT_EQ(changes.vectors.size(), 2u);
  EXPECT_LT(distance(logits_of(model, model.weights), logits_of(model, changed(model, changes))),
            1e-4);
}

TEST(Calibrator, ChosenIntegersAreReadBackAsTheyAre) {
  const TempFolder folder;
  const io::ModelFolder model = folder_with(folder / "llama", llama_to_quantise());
  const std::vector<io::LinearLayer> layers = io::linear_layers(model);
  Calibrator calibrator(model, layers, random_text(20));
  const std::vector<float> exact = logits_of(model, model.weights);
  const auto made_by = [&](io::LayerQuantizer quantizer, io::WeightChanges changes = {}) {
    return io::QuantizedModel(model, {.bits = 4, .group = 32}, layers,
                              {.quantizer = std::move(quantizer), .changes = std::move(changes)});
  };
  const io::WeightChanges scaled = calibrator.activation_aware_scaling(4, 32);
  std::map<std::string, io::QuantizedModel> models;
  models.emplace("gptq", made_by(calibrator.gptq({})));
  for (const auto& [name, errors] : calibrator.errors())
    EXPECT_LT(errors.chosen, errors.nearest) << name;
  models.emplace("awq", made_by(calibrator.clipping(scaled), scaled));
  for (const auto& [name, made] : models) {
    SCOPED_TRACE(name);
    create_folder(folder / name);
    made.write(folder / name);
    const io::ModelFolder written = io::open_model(folder / name, {.reads_tokenizer = false}),
                          unwritten = made.as_read_back();
    // Products read the same integers whether the folder was written or not, and these are those
    // of the weights dequantised to floats.
    const std::vector<float> floats = logits_of(written, written.weights),
                             integers =
                                 logits_of(written, written.weights, written.own_quantization());
    EXPECT_EQ(integers, logits_of(unwritten, unwritten.weights, unwritten.own_quantization()));
    EXPECT_LT(distance(floats, integers), 5e-3);  // rows in 16 bits
    EXPECT_LT(distance(exact, integers), 0.5);
  }
}

TEST(BitBudget, IsKeptAndSpentWhereOutputsGain) {
  const TempFolder folder;
  const io::ModelFolder model = folder_with(folder / "llama", llama_to_quantise());
  const std::vector<io::LinearLayer> layers = io::linear_layers(model);
  Calibrator calibrator(model, layers, random_text(20));
  const auto forms = forms_under_budget(model, layers, calibrator, 6);
  const io::QuantizedModel made(model, {.bits = 4, .group = 32}, layers,
                                {.forms = forms, .quantizer = calibrator.nearest()});
  int64_t bytes = 0, elements = 0, in_8_bits = 0;
  for (const io::QuantizedLayer& l : made.layers()) {
    bytes += l.stored_bytes(true);
    elements += l.layer.outputs * l.layer.inputs;
    in_8_bits += l.matrix.form.bits == 8 ? 1 : 0;
  }
  EXPECT_LT(8 * bytes, 6.01 * static_cast<double>(elements));
  EXPECT_GT(8 * bytes, 5 * static_cast<double>(elements));
  EXPECT_GT(in_8_bits, 0);
  EXPECT_LT(in_8_bits, std::ssize(layers));
  // A folder with layers of several forms reads back as they are.
  create_folder(folder / "mixed");
  made.write(folder / "mixed");
  const io::ModelFolder written = io::open_model(folder / "mixed", {.reads_tokenizer = false}),
                        unwritten = made.as_read_back();
  EXPECT_EQ(logits_of(written, written.weights, written.own_quantization()),
            logits_of(unwritten, unwritten.weights, unwritten.own_quantization()));
  EXPECT_LT(distance(logits_of(written, written.weights),
                     logits_of(written, written.weights, written.own_quantization())),
            5e-3);
  EXPECT_USER_ERROR(forms_under_budget(model, layers, calibrator, 4), "the smallest forms");
}

}  // namespace
}  // namespace brrr::calibration
