// Direct preference optimization against float64 numbers of transformers and PEFT: log
// probabilities, losses, rewards, and the gradient of every parameter of an adapter, with the base
// as the reference. Files and the script that makes them stand in tests/golden/.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/adapters/adapter_tensors.h"
#include "formats/safetensors.h"
#include "models/adapters/adapted_model.h"
#include "models/losses/preference_loss.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

/// The golden file's name, and whether the CPU backend or the reference interpreter runs it.
using PreferenceCase = std::pair<std::string, bool>;

class PreferenceGolden : public testing::TestWithParam<PreferenceCase> {
 protected:
  void SetUp() override {
    fs::create_directories(base_);
    fs::create_directories(adapter_);
    write_file_atomically(base_ / "config.json", file_.metadata().at("config"));
    nlohmann::json config = nlohmann::json::parse(file_.metadata().at("adapter_config"));
    config["base_model_name_or_path"] = base_.string();
    write_file_atomically(adapter_ / "adapter_config.json", config.dump());
    write_part("weights/", base_ / "model.safetensors");
    write_part("adapter/", adapter_ / "adapter_model.safetensors");
    model_ = io::open_model(adapter_, {.reads_tokenizer = false});
  }
  void write_part(const std::string& prefix, const fs::path& to) const {
    std::vector<io::TensorView> tensors;
    for (io::TensorView t : file_.tensors()) {
      if (!t.name.starts_with(prefix)) continue;
      t.name = t.name.substr(prefix.size());
      tensors.push_back(std::move(t));
    }
    io::write_safetensors(to, tensors, {{"format", "pt"}});
  }
  template <typename T>
  std::vector<T> numbers(const std::string& name) const {
    const io::TensorView& t = file_.get(name);
    std::vector<T> values(t.bytes.size() / sizeof(T));
    std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
    return values;
  }
  std::vector<float> floats(const std::string& name) const {
    const std::vector<double> values = numbers<double>(name);
    return {values.begin(), values.end()};
  }
  models::PreferenceLoss variant(const std::string& name) const {
    const nlohmann::json v = nlohmann::json::parse(file_.metadata().at("variants")).at(name);
    return {models::preference_loss_kind(v[0].get<std::string>()), v[1].get<double>(),
            v[2].get<double>()};
  }

  struct Run {
    explicit Run(const Backend& backend) : engine(backend) {}
    Engine engine;
    size_t program = 0;
    std::vector<float> scalars;  // the loss, then preference_figures()
    std::vector<float> output(const std::string& name, size_t count) {
      std::vector<std::byte> room;
      const auto bytes = engine.read_output(program, name, room);
      const auto* first = reinterpret_cast<const float*>(bytes.data());
      return {first, first + count};
    }
  };
  /// The graph of `definition` over the golden pairs, with `reference`; `empty` pairs follow them,
  /// and tokens of no sequence.
  std::unique_ptr<Run> run(const models::Model& definition, const models::PreferenceLoss& loss,
                           bool trains, std::vector<float> reference, int64_t empty = 0) const {
    std::vector<int32_t> tokens = numbers<int32_t>("tokens"), targets = numbers<int32_t>("targets"),
                         positions = numbers<int32_t>("positions"),
                         starts = numbers<int32_t>("starts");
    const float scale = 2.0f / static_cast<float>(reference.size());
    for (int64_t i = 0; i < 2 * empty; ++i) {
      starts.push_back(starts.back());
      reference.push_back(0);
      tokens.push_back(0);
      positions.push_back(0);
      targets.push_back(-1);
    }
    const Graph graph = definition.preference_loss(
        {std::ssize(tokens), std::ssize(starts) - 1, std::nullopt, 24}, loss);
    PipelineOptions options;
    if (trains) options.loss = "loss";
    auto made =
        std::make_unique<Run>(GetParam().second ? cpu::cpu_backend() : reference::backend());
    made->program = made->engine.add(run_pipeline(graph, made->engine.backend().target(), options));
    made->engine.allocate();
    made->engine.load(*model_.weights);
    Call call{made->program, {}, {"loss"}};
    for (const std::string& name : models::preference_figures()) call.scalars.push_back(name);
    call.set("tokens", std::span<const int32_t>(tokens));
    call.set("targets", std::span<const int32_t>(targets));
    call.set("positions", std::span<const int32_t>(positions));
    call.set("starts", std::span<const int32_t>(starts));
    call.set("reference", std::span<const float>(reference));
    call.set("loss_scale", std::span(&scale, 1));
    made->scalars = made->engine.run(std::span(&call, 1))[0];
    return made;
  }

  io::SafetensorsFile file_{fs::path(BRRR_SOURCE_DIR) / "tests/golden/preferences" /
                            (GetParam().first + ".safetensors")};
  test::TempFolder temporary_;
  fs::path base_ = temporary_.path() / "base", adapter_ = temporary_.path() / "adapter";
  io::ModelFolder model_;
};

INSTANTIATE_TEST_SUITE_P(
    Models, PreferenceGolden,
    testing::Values(PreferenceCase{"gpt2", false}, PreferenceCase{"gpt2", true},
                    PreferenceCase{"llama", false}, PreferenceCase{"llama", true}),
    [](const auto& row) { return row.param.first + (row.param.second ? "_cpu" : "_reference"); });

constexpr const char* kPreferenceVariants[] = {"sigmoid", "smoothed", "ipo"};

/// Norm-wise.
double preference_gap(const std::vector<float>& got, const std::vector<float>& expected) {
  double gap2 = 0, norm2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    gap2 += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm2 += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(gap2 / norm2);
}

TEST_P(PreferenceGolden, LogProbabilities) {
  const std::vector<float> reference = floats("reference"), policy = floats("log_probabilities");
  for (const bool adapted : {false, true}) {
    const models::Model& definition =
        adapted ? *model_.definition : *model_.definition->adapted()->base();
    const auto r = run(definition, {}, false, std::vector<float>(reference.size()));
    const std::vector<float>& expected = adapted ? policy : reference;
    EXPECT_LT(preference_gap(r->output(models::kLogProbabilities, expected.size()), expected),
              1e-5);
  }
}

TEST_P(PreferenceGolden, LossesRewardsAndEveryGradient) {
  for (const char* name : kPreferenceVariants) {
    for (const int64_t empty : {0, 2}) {
      SCOPED_TRACE(name);
      const auto r = run(*model_.definition, variant(name), true, floats("reference"), empty);
      const double loss = numbers<double>(std::string(name) + "/loss")[0];
      EXPECT_NEAR(r->scalars[0], loss, 1e-5 * loss);
      const std::vector<double> rewards = numbers<double>(std::string(name) + "/rewards");
      double chosen = 0, rejected = 0, right = 0;
      const double pairs = static_cast<double>(rewards.size()) / 2;
      for (size_t i = 0; i < rewards.size(); i += 2) {
        chosen += rewards[i] / pairs;
        rejected += rewards[i + 1] / pairs;
        right += (rewards[i] > rewards[i + 1] ? 1 : 0) / pairs;
      }
      EXPECT_NEAR(r->scalars[1], right, 1e-6);
      EXPECT_NEAR(r->scalars[2], chosen - rejected, 1e-5);
      EXPECT_NEAR(r->scalars[3], chosen, 1e-5);
      EXPECT_NEAR(r->scalars[4], rejected, 1e-5);
      size_t gradients = 0, stored = 0;
      for (const Output& o : r->engine.program(r->program).graph().outputs())
        gradients += o.name.starts_with("grad:");
      const models::AdaptedModel& adapted = *model_.definition->adapted();
      for (const std::string& parameter : adapted.trained()) {
        const io::TensorView& t = file_.get(
            fmt::format("{}/grads/{}", name, io::name_in_peft(parameter, *adapted.base())));
        std::vector<float> expected(static_cast<size_t>(t.shape.elements()));
        io::copy_as_f32(t, expected);
        EXPECT_LT(preference_gap(r->output("grad:" + parameter, expected.size()), expected), 1e-5)
            << parameter;
        ++stored;
      }
      EXPECT_EQ(gradients, stored) << "a frozen parameter has a gradient";
    }
  }
}

// A model that is its own reference prefers nothing: the loss is log 2, and its gradient is not 0.
TEST_P(PreferenceGolden, StartsAtLogTwo) {
  const auto r = run(*model_.definition, {}, true, floats("log_probabilities"));
  EXPECT_NEAR(r->scalars[0], std::log(2.0), 1e-6);
  EXPECT_NEAR(r->scalars[2], 0, 1e-5);
  const std::string& parameter = *model_.definition->adapted()->trained().begin();
  double norm2 = 0;
  for (const float g : r->output("grad:" + parameter, 3)) norm2 += std::pow(g, 2);
  EXPECT_GT(norm2, 0);
}

// The loss head is fused: only its kernel sees logits, some rows at a time.
TEST_P(PreferenceGolden, LogitsOfTheVocabularyAreNotWritten) {
  if (!GetParam().second) GTEST_SKIP() << "the reference has no fused kernels";
  const auto r = run(*model_.definition, {}, true, floats("reference"));
  const Graph& graph = r->engine.program(r->program).graph();
  const int64_t vocabulary = model_.definition->sizes().vocabulary;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (graph.is_input(id)) continue;
    for (const Type& type : graph.node(id).results)
      EXPECT_FALSE(type.shape.rank() == 2 && type.shape.size(0) > 24 &&
                   type.shape.size(1) == vocabulary)
          << "node " << id << " holds logits";
  }
}

}  // namespace
}  // namespace brrr
