// Models for pictures against Hugging Face's transformers: logits by running statistics, loss and
// every gradient by the statistics of a batch, and losses, weights and running statistics over
// steps of SGD. Files and the script that makes them stand in tests/golden/; a new file there is a
// new test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "folders/weights.h"
#include "formats/safetensors.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr {
namespace {

fs::path picture_goldens() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden/pictures"; }

std::vector<std::pair<std::string, bool>> picture_cases() {
  std::vector<std::pair<std::string, bool>> list;
  for (const auto& entry : fs::directory_iterator(picture_goldens()))
    if (entry.path().extension() == ".safetensors")
      for (const bool on_cpu : {false, true})
        list.emplace_back(entry.path().stem().string(), on_cpu);
  std::sort(list.begin(), list.end());
  return list;
}

double length_of(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// Norm-wise.
double picture_gap(std::span<const float> got, std::span<const float> expected) {
  double gap2 = 0, norm2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double gap = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    gap2 += gap * gap;
    norm2 += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(gap2 / norm2);
}

class PictureGolden : public testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  io::SafetensorsFile file{picture_goldens() / (GetParam().first + ".safetensors")};
  models::ModelPtr model = models::parse_config(file.metadata().at("config"), GetParam().first)
                               ->with_picture_loss({number("label_smoothing")});
  int64_t batch = file.get("pixels").shape.size(1);
  std::vector<float> pixels = numbers("pixels");
  std::vector<int32_t> targets = ids("targets");

  double number(const char* name) const { return std::stod(file.metadata().at(name)); }
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
  /// The tensors of the file whose names begin with `prefix`, which is left out.
  std::shared_ptr<const WeightList> tensors(const std::string& prefix) const {
    const auto list = std::make_shared<WeightList>(GetParam().first);
    for (io::TensorView t : file.tensors())
      if (t.name.starts_with(prefix)) {
        t.name = t.name.substr(prefix.size());
        list->add(t);
      }
    return list;
  }
  std::shared_ptr<const WeightList> weights(const models::Model& m) const {
    return io::match_tensors(tensors("weights/"), m);
  }
  std::span<const float> batch_of(size_t step) const {
    const size_t size = pixels.size() / targets.size() * static_cast<size_t>(batch);
    return std::span(pixels).subspan(step * size, size);
  }
  std::span<const int32_t> targets_of(size_t step) const {
    const auto rows = static_cast<size_t>(batch);
    return std::span(targets).subspan(step * rows, rows);
  }
  std::vector<float> forward(const models::Model& m, const char* name) {
    Engine engine(backend());
    const size_t p =
        engine.add(run_pipeline(m.forward(Dim(batch), Dim(1)), engine.backend().target(), {}));
    engine.allocate();
    engine.load(*weights(m));
    Call call{p, {}, {}};
    call.set("pixels", batch_of(0));
    engine.run(std::span(&call, 1));
    const auto bytes = engine.read_output(p, name, room_);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + bytes.size() / sizeof(float)};
  }
  double step(Engine& engine, size_t program, size_t step) {
    const auto rows = targets_of(step);
    const float scale =
        1.0f / static_cast<float>(std::ranges::count_if(rows, [](int32_t t) { return t >= 0; }));
    Call call{program, {}, {"loss"}};
    call.set("pixels", batch_of(step));
    call.set("targets", rows);
    call.set("loss_scale", std::span(&scale, 1));
    return engine.run(std::span(&call, 1))[0][0];
  }
  std::span<const float> floats(std::span<const std::byte> bytes) const {
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  /// The parameters and buffers of the engine against those of the file behind `prefix`.
  void check_states(const Engine& engine, const std::string& prefix, double tolerance) {
    for (const models::ParameterInfo& p : model->parameters()) {
      const auto got = engine.read_state(p.name, room_);
      const io::TensorView& expected = file.get(prefix + p.name);
      if (is_float(p.dtype))
        EXPECT_LT(picture_gap(floats(got), numbers(prefix + p.name)), tolerance) << p.name;
      else
        EXPECT_EQ(std::memcmp(got.data(), expected.bytes.data(), got.size()), 0) << p.name;
    }
  }

  std::vector<std::byte> room_;
};

INSTANTIATE_TEST_SUITE_P(Models, PictureGolden, testing::ValuesIn(picture_cases()),
                         [](const auto& row) {
                           return row.param.first + (row.param.second ? "_cpu" : "_reference");
                         });

TEST_P(PictureGolden, ForwardGivesTheLogitsAndTheFeatures) {
  EXPECT_LT(picture_gap(forward(*model, "logits"), numbers("logits")), 1e-5);
  const auto trunk = model->with_task({.head = models::Head::embedding});
  EXPECT_LT(picture_gap(forward(*trunk, "embedding"), numbers("embedding")), 1e-5);
}

TEST_P(PictureGolden, LossAndEveryGradient) {
  Engine engine(backend());
  PipelineOptions options;
  options.loss = "loss";
  const size_t p =
      engine.add(run_pipeline(model->loss(batch, 1), engine.backend().target(), options));
  engine.allocate();
  engine.load(*weights(*model));
  double expected = 0;
  std::memcpy(&expected, file.get("losses").bytes.data(), sizeof expected);
  EXPECT_NEAR(step(engine, p, 0), expected, 1e-5 * expected);
  for (const models::ParameterInfo& info : model->parameters()) {
    if (info.is_buffer) continue;
    const std::span<const float> got = floats(engine.read_output(p, "grad:" + info.name, room_));
    const std::vector<float> wanted = numbers("grads/" + info.name);
    // Where batch norm takes a bias away, the gradient is 0 but for float64's rounding.
    constexpr double kZero = 1e-14;
    if (length_of(wanted) < kZero)
      EXPECT_LT(length_of(got), 1e-5) << info.name;
    else
      EXPECT_LT(picture_gap(got, wanted), 2e-5) << info.name;
  }
}

TEST_P(PictureGolden, StepsGiveLossesWeightsAndRunningStatistics) {
  Engine engine(backend());
  optim::Optimizer sgd;
  sgd.kind = optim::OptimizerKind::sgd;
  sgd.momentum = number("momentum");
  sgd.weight_decay = number("decay");
  sgd.max_grad_norm = 0;
  PipelineOptions options;
  options.loss = "loss";
  options.optimizer = [&](Graph& graph) { optim::attach_optimizer(graph, sgd); };
  const size_t p =
      engine.add(run_pipeline(model->loss(batch, 1), engine.backend().target(), options));
  engine.allocate();
  engine.load(*weights(*model));
  engine.set_scalar(p, "learning_rate", static_cast<float>(number("rate")));
  std::vector<double> losses(static_cast<size_t>(file.get("losses").shape.elements()));
  std::memcpy(losses.data(), file.get("losses").bytes.data(), losses.size() * sizeof(double));
  for (size_t i = 0; i < losses.size(); ++i) {
    engine.set_scalar(p, "learning_rate", static_cast<float>(number("rate")));
    engine.set_scalar(p, "optimizer_step", static_cast<int32_t>(i + 1));
    EXPECT_NEAR(step(engine, p, i), losses[i], 2e-5 * losses[i]) << i;
  }
  check_states(engine, "final/", 1e-5);
}

}  // namespace
}  // namespace brrr
