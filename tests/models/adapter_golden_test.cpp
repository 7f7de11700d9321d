// Low-rank adapters against Hugging Face's PEFT: a folder that PEFT wrote is read, and gives its
// logits, loss and gradients; merged into the model it gives the same; written again it has PEFT's
// names. Files and the script that makes them stand in tests/golden/; a new file there is a new
// test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/adapters/adapter_tensors.h"
#include "formats/safetensors.h"
#include "models/adapters/adapted_model.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using nlohmann::json;

fs::path adapter_golden_folder() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden/adapters"; }

std::vector<std::string> adapter_golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(adapter_golden_folder()))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Norm-wise.
double relative_gap(std::span<const float> got, std::span<const float> expected) {
  double gap2 = 0, norm2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double gap = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    gap2 += gap * gap;
    norm2 += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(gap2 / norm2);  // NaN for nothing, or nonsense
}

std::vector<float> floats_in(const io::TensorView& t) {
  std::vector<float> out(static_cast<size_t>(t.shape.elements()));
  io::copy_as_f32(t, out);
  return out;
}

class AdapterGolden : public testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  void SetUp() override {
    fs::create_directories(base);
    fs::create_directories(adapter);
    write_file_atomically(base / "config.json", file.metadata().at("config"));
    json config = json::parse(file.metadata().at("adapter_config"));
    config["base_model_name_or_path"] = base.string();
    write_file_atomically(adapter / "adapter_config.json", config.dump());
    write_part("weights/", base / "model.safetensors");
    if (is_pickle()) {
      const io::TensorView& pickle = file.get("pickle");
      write_file_atomically(
          adapter / "adapter_model.bin",
          {reinterpret_cast<const char*>(pickle.bytes.data()), pickle.bytes.size()});
    } else {
      write_part("adapter/", adapter / "adapter_model.safetensors");
    }
  }
  void write_part(const std::string& prefix, const fs::path& to) const {
    std::vector<io::TensorView> tensors;
    for (io::TensorView t : file.tensors()) {
      if (!t.name.starts_with(prefix)) continue;
      t.name = t.name.substr(prefix.size());
      tensors.push_back(std::move(t));
    }
    io::write_safetensors(to, tensors, {{"format", "pt"}});
  }

  Backend backend() const { return GetParam().second ? cpu::cpu_backend() : reference::backend(); }
  bool is_kind(const char* kind) const { return file.metadata().at("kind") == kind; }
  bool is_pickle() const { return file.find("pickle") != nullptr; }
  bool is_dora() const { return GetParam().first.ends_with("_dora"); }
  io::ModelFolder open() const {
    io::OpenOptions options{.reads_tokenizer = false};
    if (is_kind("trunk")) options.task = models::Task{.head = models::Head::embedding};
    io::ModelFolder model = io::open_model(adapter, options);
    if (model.definition->sees_pictures())
      model.definition = model.definition->with_image_size(given.size(3));
    return model;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const io::TensorView& t = file.get(name);
    std::vector<int32_t> out(static_cast<size_t>(t.shape.elements()));
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  }
  /// Runs a graph over the golden batch.
  size_t run(Engine& engine, const Graph& graph, const WeightSource& weights,
             const PipelineOptions& options, double* loss = nullptr) const {
    const size_t p = engine.add(run_pipeline(graph, engine.backend().target(), options));
    engine.allocate();
    engine.load(weights);
    const std::vector<int32_t> tokens =
        is_kind("pictures") ? std::vector<int32_t>() : ids("tokens");
    const std::vector<int32_t> targets = ids("targets");
    const std::vector<float> pixels =
        is_kind("pictures") ? floats_in(file.get("pixels")) : std::vector<float>();
    const std::vector<int32_t> types(tokens.size()),
        lengths(static_cast<size_t>(batch), static_cast<int32_t>(length));
    const float scale = 1.0f / static_cast<float>(targets.size());
    Call call{p, {}, {}};
    if (loss != nullptr) call.scalars.emplace_back("loss");
    const auto set = [&](const char* name, const std::vector<int32_t>& values) {
      if (graph.find_input(name) != kNoNode) call.set(name, std::span<const int32_t>(values));
    };
    set("tokens", tokens);
    set("targets", targets);
    set("types", types);
    if (is_kind("pictures")) call.set("pixels", std::span<const float>(pixels));
    set("lengths", lengths);
    if (graph.find_input("loss_scale") != kNoNode) call.set("loss_scale", std::span(&scale, 1));
    const auto scalars = engine.run(std::span(&call, 1));
    if (loss != nullptr) *loss = scalars[0][0];
    return p;
  }
  double distance_of_logits(const io::ModelFolder& model) const {
    Engine engine(backend());
    const size_t p =
        run(engine, model.definition->forward(Dim(batch), Dim(length)), *model.weights, {});
    const std::vector<float> expected = floats_in(file.get("logits"));
    return relative_gap(
        output(engine, p, is_kind("trunk") ? "embedding" : "logits", expected.size()), expected);
  }
  static std::vector<float> output(Engine& engine, size_t p, const std::string& name,
                                   size_t count) {
    std::vector<std::byte> room;
    const auto bytes = engine.read_output(p, name, room);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + count};
  }

  io::SafetensorsFile file{adapter_golden_folder() / (GetParam().first + ".safetensors")};
  const Shape given = file.get(is_kind("pictures") ? "pixels" : "tokens").shape;
  int64_t batch = given.size(0), length = given.size(1);  // of pictures there is no length
  test::TempFolder temporary;
  fs::path base = temporary.path() / "base", adapter = temporary.path() / "adapter";
};

std::vector<std::pair<std::string, bool>> adapter_golden_cases() {
  std::vector<std::pair<std::string, bool>> list;
  for (const std::string& name : adapter_golden_names())
    for (const bool on_cpu : {false, true}) list.emplace_back(name, on_cpu);
  return list;
}
INSTANTIATE_TEST_SUITE_P(Models, AdapterGolden, testing::ValuesIn(adapter_golden_cases()),
                         [](const auto& row) {
                           return row.param.first + (row.param.second ? "_cpu" : "_reference");
                         });

TEST(AdapterGoldens, AreThere) { EXPECT_GE(adapter_golden_names().size(), 17u); }

TEST_P(AdapterGolden, Logits) { EXPECT_LT(distance_of_logits(open()), 1e-5); }

TEST_P(AdapterGolden, MergedLogits) {
  const io::ModelFolder model = io::merged(open());
  EXPECT_EQ(model.definition->adapted(), nullptr);
  EXPECT_LT(distance_of_logits(model), 1e-5);
}

// W + s B A, less s B A: the base again.
TEST_P(AdapterGolden, Unmerges) {
  if (is_dora()) GTEST_SKIP() << "a factor is not undone by an adapter";
  io::ModelFolder with_adapter = open();
  const std::set<std::string> saved = with_adapter.definition->adapted()->adapters()[0].saved;
  io::ModelFolder plain = io::merged(std::move(with_adapter));
  const io::ChosenAdapter negative{adapter, -1};
  const io::ModelFolder back = io::merged(io::with_adapters(std::move(plain), {&negative, 1}));
  const io::SafetensorsFile before(base / "model.safetensors");
  const std::string prefix = back.definition->file_names().prefix;
  for (const models::ParameterInfo& p : back.definition->parameters()) {
    if (p.part != models::Part::trunk || p.place == "head") continue;  // saved as a whole
    if (p.is_buffer || saved.contains(p.name)) continue;               // nothing is added to it
    const io::TensorView* was = before.find(p.name);
    if (was == nullptr) was = &before.get(p.name.substr(prefix.size()));
    std::vector<float> now(static_cast<size_t>(p.shape.elements()));
    back.read(p.name, now);
    EXPECT_LT(relative_gap(now, floats_in(*was)), 1e-6) << p.name;
  }
}

TEST_P(AdapterGolden, LossAndEveryGradient) {
  if (is_dora() || is_kind("trunk")) GTEST_SKIP() << "such a model is used, not trained";
  const io::ModelFolder model = open();
  Engine engine(backend());
  PipelineOptions options;
  options.loss = "loss";
  double loss = 0, expected_loss = 0;
  const models::ModelPtr definition = model.definition->sees_pictures()
                                          ? model.definition->with_picture_loss({})
                                          : model.definition;
  const Graph graph = definition->loss(batch, length);
  const size_t p = run(engine, graph, *model.weights, options, &loss);
  std::memcpy(&expected_loss, file.get("loss").bytes.data(), sizeof expected_loss);
  EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss);
  size_t gradients = 0, stored = 0;
  for (const Output& o : engine.program(p).graph().outputs())
    gradients += o.name.starts_with("grad:");
  for (const std::string& name : model.definition->adapted()->trained()) {
    const std::vector<float> expected = floats_in(
        file.get("grads/" + io::name_in_peft(name, *model.definition->adapted()->base())));
    EXPECT_LT(relative_gap(output(engine, p, "grad:" + name, expected.size()), expected), 1e-5)
        << name;
    ++stored;
  }
  EXPECT_EQ(gradients, stored) << "a frozen parameter has a gradient";
}

TEST_P(AdapterGolden, IsWrittenAsPeftDoes) {
  if (is_dora() || is_pickle() || GetParam().second) GTEST_SKIP();
  const io::ModelFolder model = open();
  const models::AdaptedModel& adapted = *model.definition->adapted();
  const fs::path to = temporary.path() / "written";
  fs::create_directories(to);
  std::vector<io::TensorView> tensors;
  for (const std::string& name : adapted.trained()) tensors.push_back(*model.weights->find(name));
  io::write_adapter_files(to, adapted, tensors, [](const io::TensorView& t) { return t.bytes; },
                          {base.string(), ""});
  const io::SafetensorsFile now(to / "adapter_model.safetensors");
  const io::SafetensorsFile was(adapter / "adapter_model.safetensors");
  EXPECT_EQ(now.tensors().size(), was.tensors().size());
  for (const io::TensorView& t : was.tensors()) {
    const io::TensorView* const ours = now.find(t.name);
    ASSERT_NE(ours, nullptr) << t.name;
    EXPECT_EQ(ours->shape, t.shape);
    EXPECT_TRUE(std::ranges::equal(ours->bytes, t.bytes)) << t.name;
  }
  const json theirs = json::parse(file.metadata().at("adapter_config"));
  const json ours = json::parse(read_file(to / "adapter_config.json"));
  for (const char* key :
       {"peft_type", "task_type", "lora_dropout", "bias", "use_rslora", "use_dora"})
    EXPECT_EQ(ours.at(key), theirs.at(key)) << key;
  // The same numbers for each layer, in whatever way patterns say it.
  const io::AdapterConfig read = io::read_adapter_config(to);
  for (const models::AdaptedLayer& layer : adapted.adapters()[0].layers) {
    EXPECT_EQ(read.rank.of(layer.layer.module), static_cast<double>(layer.rank));
    EXPECT_EQ(read.alpha.of(layer.layer.module), layer.alpha);
  }
}

class AdapterOfConvolutions : public AdapterGolden {};
INSTANTIATE_TEST_SUITE_P(Models, AdapterOfConvolutions,
                         testing::Values(std::pair(std::string("resnet"), false)));

// PEFT adapts convolutions of any size; Brrr reads those that are products over the channels.
TEST_P(AdapterOfConvolutions, WithLargeKernelsIsRefusedByNameAndReason) {
  const std::string module = "resnet.encoder.stages.0.layers.0.layer.1.convolution";
  const std::vector<float> zeros(1024);
  std::vector<io::TensorView> tensors;
  const io::SafetensorsFile own(adapter / "adapter_model.safetensors");
  for (const io::TensorView& t : own.tensors()) tensors.push_back(t);
  for (const auto& [part, shape] :
       {std::pair("lora_A", Shape{3, 4, 3, 3}), std::pair("lora_B", Shape{4, 3, 1, 1})}) {
    io::TensorView t{
        fmt::format("base_model.model.{}.{}.weight", module, part), DType::f32, shape, {}};
    t.bytes = std::as_bytes(std::span(zeros)).first(static_cast<size_t>(shape.elements()) * 4);
    tensors.push_back(std::move(t));
  }
  io::write_safetensors(adapter / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  const std::string message = test::user_error_of([&] { open(); });
  EXPECT_NE(message.find(module + " is a convolution with kernels of 3 x 3, and adapters are read "
                                  "for linear layers and for 1 x 1 convolutions without groups"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace brrr
