// Every architecture against Hugging Face's transformers: logits, loss and every gradient of small
// random models, and decoding with a cache against the whole text. Files and the script that makes
// them stand in tests/golden/; a new file there is a new test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "formats/safetensors.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"

namespace brrr {
namespace {

fs::path golden_folder() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden/transformers"; }

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(golden_folder()))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Norm-wise.
double distance(std::span<const float> got, std::span<const float> expected) {
  double gap2 = 0, norm2 = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double gap = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    gap2 += gap * gap;
    norm2 += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(gap2 / norm2);  // NaN for nothing, or nonsense
}

class TransformersGolden : public testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  io::SafetensorsFile file{golden_folder() / (GetParam().first + ".safetensors")};
  models::ModelPtr model = models::parse_config(file.metadata().at("config"), GetParam().first);
  int64_t batch = file.get("tokens").shape.size(0), length = file.get("tokens").shape.size(1);

  Backend backend() const { return GetParam().second ? cpu::cpu_backend() : reference::backend(); }
  std::vector<float> numbers(const std::string& name) const {
    const io::TensorView& t = file.get(name);
    std::vector<float> out(static_cast<size_t>(t.shape.elements()));
    io::copy_as_f32(t, out);
    return out;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const io::TensorView& t = file.get(name);
    std::vector<int32_t> out(static_cast<size_t>(t.shape.elements()));
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  }
  /// The parameters, every one of which transformers has, and nothing besides.
  void load(Engine& engine) const {
    size_t parameters = 0, stored = 0;
    load_parameters(engine, [&](std::string_view name, std::span<float> out) {
      io::copy_as_f32(file.get("weights/" + std::string(name)), out);
      ++parameters;
    });
    for (const auto& t : file.tensors()) stored += t.name.starts_with("weights/");
    EXPECT_EQ(parameters, stored);
    EXPECT_EQ(parameters, model->parameters().size());
  }
  std::span<const float> output(Engine& engine, size_t p, const char* name, size_t count) {
    const auto bytes = engine.read_output(p, name, room_);
    return {reinterpret_cast<const float*>(bytes.data()), count};
  }

 private:
  std::vector<std::byte> room_;
};

std::vector<std::pair<std::string, bool>> golden_cases() {
  std::vector<std::pair<std::string, bool>> list;
  for (const std::string& name : golden_names())
    for (const bool on_cpu : {false, true}) list.emplace_back(name, on_cpu);
  return list;
}
INSTANTIATE_TEST_SUITE_P(Models, TransformersGolden, testing::ValuesIn(golden_cases()),
                         [](const auto& row) {
                           return row.param.first + (row.param.second ? "_cpu" : "_reference");
                         });

TEST(TransformersGoldens, AreThere) { EXPECT_GE(golden_names().size(), 10u); }

TEST_P(TransformersGolden, Logits) {
  Engine engine(backend());
  const size_t p =
      engine.add(run_pipeline(model->forward(batch, length), engine.backend().target(), {}));
  engine.allocate();
  load(engine);
  const std::vector<int32_t> tokens = ids("tokens");
  Call call{p, {}, {}};
  call.set("tokens", std::span<const int32_t>(tokens));
  engine.run(std::span(&call, 1));
  const std::vector<float> expected = numbers("logits");
  EXPECT_LT(distance(output(engine, p, "logits", expected.size()), expected), 1e-5);
}

TEST_P(TransformersGolden, LossAndEveryGradient) {
  Engine engine(backend());
  PipelineOptions options;
  options.loss = "loss";
  const size_t p =
      engine.add(run_pipeline(model->loss(batch, length), engine.backend().target(), options));
  engine.allocate();
  load(engine);
  const std::vector<int32_t> tokens = ids("tokens"), targets = ids("targets");
  const auto real = std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
  const float scale = static_cast<float>(1.0 / static_cast<double>(real));
  Call call{p, {}, {"loss"}};
  call.set("tokens", std::span<const int32_t>(tokens));
  call.set("targets", std::span<const int32_t>(targets));
  call.set("loss_scale", std::span(&scale, 1));
  const double loss = engine.run(std::span(&call, 1))[0][0];
  double expected_loss = 0;
  std::memcpy(&expected_loss, file.get("loss").bytes.data(), sizeof expected_loss);
  EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss);
  const bool is_lstm = GetParam().first.starts_with("lstm");
  for (const models::ParameterInfo& info : model->parameters()) {
    const std::vector<float> expected = numbers("grads/" + info.name);
    const std::string name = "grad:" + info.name;
    EXPECT_LT(distance(output(engine, p, name.c_str(), expected.size()), expected),
              is_lstm ? 1e-5 : 1e-4)
        << info.name;
  }
}

// A prompt and single tokens through the cache give the logits of the whole text at once.
TEST_P(TransformersGolden, DecodesWithItsCacheAsWithout) {
  Engine engine(backend());
  const Target target = engine.backend().target();
  const int64_t prompt = length / 2;
  const auto add = [&](int64_t tokens) {
    return engine.add(run_pipeline(
        model->decode({.batch = batch, .length = tokens, .capacity = length + 3}), target, {}));
  };
  const size_t first = add(prompt), next = add(1);
  engine.allocate();
  load(engine);
  const std::vector<int32_t> tokens = ids("tokens");
  const std::vector<float> expected = numbers("logits");
  const int64_t vocabulary = model->sizes().vocabulary;
  for (int64_t at = 0; at < length;) {
    const int64_t n = at == 0 ? prompt : 1;
    std::vector<int32_t> part;
    for (int64_t b = 0; b < batch; ++b)
      part.insert(part.end(), tokens.begin() + b * length + at,
                  tokens.begin() + b * length + at + n);
    const auto position = static_cast<int32_t>(at);
    Call call{at == 0 ? first : next, {}, {}};
    call.set("tokens", std::span<const int32_t>(part));
    call.set("position", std::span(&position, 1));
    engine.run(std::span(&call, 1));
    at += n;
    const auto logits =
        output(engine, call.program, "logits", static_cast<size_t>(batch * vocabulary));
    for (int64_t b = 0; b < batch; ++b)
      EXPECT_LT(
          distance(
              logits.subspan(static_cast<size_t>(b * vocabulary), static_cast<size_t>(vocabulary)),
              std::span(expected).subspan(static_cast<size_t>((b * length + at - 1) * vocabulary),
                                          static_cast<size_t>(vocabulary))),
          2e-5)
          << "position " << at - 1;
  }
}

}  // namespace
}  // namespace brrr
