// EfficientNet: sizes that are published, config.json both ways, names of tensors, state dicts, the
// logits of a published net, and what is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "folders/model_folder.h"
#include "formats/safetensors.h"
#include "models/efficientnet/efficientnet_config.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/models_folder.h"
#include "support/pictures.h"
#include "support/temp_folder.h"

namespace brrr::models {
namespace {

ModelPtr described_efficientnet(const std::string& options) {
  return EfficientNetConfig::architecture().describe(
      {preset_values(options), 0, 1, 0, std::nullopt});
}

/// A small net with squeeze-and-excitation for pictures of 3 x 20 x 20 and three classes.
EfficientNetConfig small_efficientnet() {
  EfficientNetConfig c;
  c.depth_divisor = 4;
  c.stem_channels = 8;
  c.head_channels = 24;
  c.out_channels = {4, 8, 12, 16, 20, 24, 28};
  c.num_block_repeats = {1, 2, 1, 1, 1, 1, 1};
  c.strides = {1, 2, 1, 2, 1, 1, 1};
  c.image_size = 20;
  c.task.labels = {"a", "b", "c"};
  return c;
}

// Parameter counts published by torchvision (B0 to B7) and TensorFlow (Lite0 to Lite4).
TEST(EfficientNet, CountsThePublishedParameters) {
  const std::map<std::string, int64_t> published = {
      {"lite0", 4'652'008},  {"lite1", 5'416'680}, {"lite2", 6'092'072}, {"lite3", 8'197'096},
      {"lite4", 13'006'568}, {"b0", 5'288'548},    {"b1", 7'794'184},    {"b2", 9'109'994},
      {"b3", 12'233'232},    {"b4", 19'341'616},   {"b5", 30'389'784},   {"b6", 43'040'704},
      {"b7", 66'347'960}};
  EXPECT_EQ(efficientnet_variants().size(), published.size());
  for (const auto& [variant, count] : published)
    EXPECT_EQ(described_efficientnet("--variant " + variant)->parameter_count(), count) << variant;
}

TEST(EfficientNet, OptionsDescribeTheNet) {
  const ModelPtr net = described_efficientnet("--variant lite2 --num-labels 7 --drop-connect 0.1");
  EXPECT_EQ(net->sizes().width, 1280);
  EXPECT_EQ(net->sizes().vocabulary, 7);
  const KeyValues settings = net->settings();
  EXPECT_EQ(
      EfficientNetConfig::architecture().describe({settings, 0, 1, 0, std::nullopt})->settings(),
      settings);
  for (const Preset& preset : EfficientNetConfig::architecture().presets)
    EXPECT_TRUE(preset.name.starts_with("efficientnet-")) << preset.name;
  EXPECT_THROW(described_efficientnet("--variant b9"), UserError);
  EXPECT_THROW(described_efficientnet("--strides 1,2"), UserError);
}

TEST(EfficientNet, ReadsWhatItWrites) {
  EfficientNetConfig c = small_efficientnet();
  c.padding = Padding::symmetric;
  c.batch_norm_share = 0.05;
  const std::string text = c.model()->config_json(DType::f32);
  const ModelPtr read = parse_config(text, "config.json");
  EXPECT_EQ(read->config_json(DType::f32), text);
  EXPECT_EQ(read->task().labels, c.task.labels);
  EXPECT_NE(read->with_task({.head = Head::embedding})
                ->config_json(DType::f32)
                .find("\"EfficientNetModel\""),
            std::string::npos);
}

// The keys that transformers has for B2, whose pictures of 260 x 260 have odd heights at three
// strides.
std::string b2_config(const std::string& more = "") {
  return R"({"model_type": "efficientnet", "architectures": ["EfficientNetForImageClassification"],
    "width_coefficient": 1.1, "depth_coefficient": 1.2, "image_size": 260, "hidden_dim": 1408,
    "batch_norm_momentum": 0.99, "dropout_rate": 0.3, "num_labels": 10)" +
         more + "}";
}

std::string refused_config(const std::string& text) {
  try {
    parse_config(text, "config.json");
    return "";
  } catch (const UserError& e) {
    return e.what();
  }
}

TEST(EfficientNet, ReadsTransformersConfigurations) {
  const ModelPtr net = parse_config(b2_config(R"(, "depthwise_padding": [5, 8, 16])"), "b2");
  EXPECT_EQ(net->sizes().layers, 23);
  EXPECT_EQ(net->sizes().picture->height, 260);
  EXPECT_EQ(
      refused_config(b2_config(R"(, "depthwise_padding": [5])")),
      "config.json: 'depthwise_padding' must be [5, 8, 16] to fit the other sizes; found [5]");
  EXPECT_EQ(refused_config(b2_config(R"(, "in_channels": [32, 16, 24, 40, 80, 112, 193])")),
            "config.json: 'in_channels' must be [32, 16, 24, 40, 80, 112, 192] to fit the other "
            "sizes; found [32, 16, 24, 40, 80, 112, 193]");
  const std::string start = R"({"model_type": "efficientnet", )";
  EXPECT_EQ(refused_config(start + R"("hidden_dim": 1281})"),
            "config.json: 'hidden_dim' must be 1280 to fit the other sizes; found 1281");
  EXPECT_EQ(refused_config(start + R"("image_size": 31})"),
            "config.json: [efficientnet config] image_size must be at least 32, because the net "
            "divides height and width by that; got 31");
  EXPECT_EQ(refused_config(start + R"("kernel_sizes": [3, 3, 4, 3, 5, 5, 3]})"),
            "config.json: [efficientnet config] kernel_sizes must be odd numbers; got 4");
  EXPECT_EQ(refused_config(start + R"("strides": [1, 2]})"),
            "config.json: [efficientnet config] strides must be a number for each of the 7 "
            "out_channels; got 2 numbers");
  EXPECT_EQ(refused_config(
                start + R"("depth_coefficient": 64, "num_block_repeats": [1, 2, 2, 3, 3, 4, 2]})"),
            "config.json: [efficientnet config] depth_coefficient must be such that there are at "
            "most 1024 blocks; got 1088 blocks");
  EXPECT_NE(refused_config(start + R"("pooling_type": "max"})").find("pooling_type"),
            std::string::npos);
}

class EfficientNetFiles : public testing::Test {
 protected:
  /// Writes the state dict of random weights by a convention, without counters.
  fs::path write(const EfficientNetConfig& c, EfficientNetNames convention,
                 const std::string& name = "net") const {
    const ModelPtr model = c.model();
    const auto weights = made_weights(*model, initial_weights(*model, 3));
    std::vector<TensorView> tensors;
    std::deque<std::vector<std::byte>> rooms;
    for (const auto& [theirs, ours] : state_dict_names(c, convention)) {
      const TensorView* const t = weights->find(ours);
      if (t == nullptr || t->dtype != DType::f32) continue;
      rooms.emplace_back(static_cast<size_t>(t->shape.elements()) * sizeof(float));
      weights->read(*t, rooms.back());
      tensors.push_back({theirs, t->dtype, t->shape, rooms.back()});
    }
    const fs::path path = folder_.path() / (name + ".safetensors");
    io::write_safetensors(path, tensors);
    return path;
  }
  static io::ModelFolder open(const fs::path& path) {
    return io::open_model(path, {.reads_tokenizer = false});
  }

  test::TempFolder folder_;
};

/// Sizes and what no tensor says, of two configurations.
void expect_same_net(const Model& got, EfficientNetConfig expected) {
  expected.task.labels.clear();
  for (int64_t i = 0; i < got.sizes().vocabulary; ++i)
    expected.task.labels.push_back(fmt::format("LABEL_{}", i));
  EXPECT_EQ(got.config_json(DType::f32), expected.json());
}

TEST_F(EfficientNetFiles, AreKnownByTheirNames) {
  for (const EfficientNetVariant& variant : efficientnet_variants()) {
    if (variant.name != "lite1" && variant.name != "b1") continue;
    EfficientNetConfig c;
    set_variant(c, variant);
    c.image_size = variant.image_size;
    c.task.labels.resize(4);
    expect_same_net(*open(write(c, EfficientNetNames::efficientnet_pytorch)).definition, c);
    expect_same_net(*open(write(c, EfficientNetNames::timm, "tf_net")).definition, c);
    c.padding = Padding::symmetric;
    c.batch_norm_eps = 1e-5;
    c.pixel_range = PixelRange::imagenet;
    expect_same_net(*open(write(c, EfficientNetNames::timm)).definition, c);
    if (!variant.is_lite())
      expect_same_net(*open(write(c, EfficientNetNames::torchvision)).definition, c);
  }
}

// A net of other sizes has its channels as they are; every tensor gets where it belongs.
TEST_F(EfficientNetFiles, OfOtherSizesKeepTheirTensors) {
  EfficientNetConfig c = small_efficientnet();
  c.strides = EfficientNetConfig{}.strides;
  c.image_size = 32;
  const ModelPtr model = c.model();
  const auto own = made_weights(*model, initial_weights(*model, 3));
  for (const EfficientNetNames convention :
       {EfficientNetNames::timm, EfficientNetNames::efficientnet_pytorch,
        EfficientNetNames::torchvision}) {
    const io::ModelFolder read = open(write(c, convention));
    EXPECT_EQ(read.definition->sizes().layers, 8);
    for (const ParameterInfo& p : model->parameters()) {
      if (p.dtype != DType::f32) continue;
      std::vector<float> got(static_cast<size_t>(p.shape.elements())), expected(got);
      read.read(p.name, got);
      own->read(*own->find(p.name), std::as_writable_bytes(std::span(expected)));
      EXPECT_EQ(got, expected) << p.name;
    }
  }
}

TEST_F(EfficientNetFiles, OfOtherStagesAreRefused) {
  EfficientNetConfig c = small_efficientnet();
  for (auto* list :
       {&c.out_channels, &c.num_block_repeats, &c.kernel_sizes, &c.strides, &c.expand_ratios})
    list->pop_back();
  const fs::path path = write(c, EfficientNetNames::timm);
  try {
    open(path);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()),
              path.string() +
                  ": an EfficientNet of 6 stages; a state dict does not say their strides, which "
                  "are known for 7 stages: expected a folder with config.json");
  }
}

std::vector<float> logits_of_pictures(const Model& model, const WeightSource& weights,
                                      std::span<const float> pixels, int64_t rows) {
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(run_pipeline(
      model.forward(Dim(rows), Dim(1)), engine.backend().target(), for_inference(DType::f32, {})));
  engine.allocate();
  engine.load(weights);
  Call call{p, {}, {}};
  call.set("pixels", pixels);
  engine.run(std::span(&call, 1));
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(p, "logits", room);
  const auto* first = reinterpret_cast<const float*>(bytes.data());
  return {first, first + bytes.size() / sizeof(float)};
}

// Logits by PyTorch (tests/golden/make_efficientnet_goldens.py).
TEST(EfficientNet, PublishedLite0GivesPyTorchsLogits) {
  const fs::path path = test::models_folder() / "efficientnet" / "efficientnet-lite0-57934424.pth";
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
  const io::ModelFolder folder = io::open_model(path, {.reads_tokenizer = false});
  EfficientNetConfig lite0;
  set_variant(lite0, efficientnet_variants().front());
  lite0.task.labels.resize(1000);
  expect_same_net(*folder.definition, lite0);
  constexpr int64_t kRows = 2, kSide = 224;
  std::vector<float> pixels;
  for (int n = 0; n < kRows; ++n)
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < kSide; ++y)
        for (int x = 0; x < kSide; ++x)
          pixels.push_back(static_cast<float>(std::sin(0.05 * (n + 1) * x + c) *
                                              std::cos(0.03 * (n + 2) * y - c)));
  const std::vector<float> got =
      logits_of_pictures(*folder.definition, *folder.weights, pixels, kRows);
  const io::SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) /
                                 "tests/golden/efficientnet_lite0.safetensors");
  std::vector<float> expected(static_cast<size_t>(file.get("logits").shape.elements()));
  io::copy_as_f32(file.get("logits"), expected);
  ASSERT_EQ(got.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
  EXPECT_LT(worst, 1e-4f);
  RecordProperty("largest_difference", std::to_string(worst));
}

TEST(EfficientNet, APictureHasItsBitsInAnyBatch) {
  const ModelPtr model = small_efficientnet().model();
  const auto weights = made_weights(*model, initial_weights(*model, 5));
  const io::Batch batch = test::picture_batch(*model->sizes().picture, 5, 3);
  const std::span<const float> pixels = batch.values("pixels");
  const std::vector<float> together = logits_of_pictures(*model, *weights, pixels, 5);
  for (size_t i = 0; i < 5; ++i) {
    const auto alone = logits_of_pictures(
        *model, *weights, pixels.subspan(i * pixels.size() / 5, pixels.size() / 5), 1);
    EXPECT_EQ(alone, std::vector<float>(together.begin() + 3 * static_cast<int64_t>(i),
                                        together.begin() + 3 * static_cast<int64_t>(i) + 3));
  }
}

// Branches are kept or dropped for whole pictures, and scaled.
TEST(PictureLayers, DropWholePictures) {
  Graph g;
  const Value key = g.input("key", {2}, DType::i32);
  g.output("y", drop_pictures(full(g, {64, 2, 3, 3}, 1), key, 0.25, 0));
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(g);
  engine.allocate();
  const int32_t numbers[] = {3, 4};
  Call call{p, {}, {}};
  call.set("key", std::span<const int32_t>(numbers));
  engine.run(std::span(&call, 1));
  const auto* y = reinterpret_cast<const float*>(engine.output(p, "y"));
  int dropped = 0;
  for (int picture = 0; picture < 64; ++picture) {
    const float first = y[picture * 18];
    EXPECT_TRUE(first == 0 || std::abs(first - 4.0f / 3) < 1e-6f) << first;
    for (int i = 1; i < 18; ++i) EXPECT_EQ(y[picture * 18 + i], first);
    dropped += first == 0;
  }
  EXPECT_GT(dropped, 6);
  EXPECT_LT(dropped, 28);
}

TEST(EfficientNet, DropConnectNeedsRandomNumbersInTrainingOnly) {
  EfficientNetConfig c = small_efficientnet();
  const auto has_key = [](const Graph& g) {
    const auto inputs = g.inputs(InputKind::data);
    return std::ranges::any_of(inputs, [&](NodeId id) { return g.input_name(id) == "rng_key"; });
  };
  EXPECT_FALSE(has_key(c.model()->loss(2, 1)));
  c.drop_connect_rate = 0.2;
  EXPECT_TRUE(has_key(c.model()->loss(2, 1)));
  EXPECT_FALSE(has_key(c.model()->scored(2, 1)));
}

}  // namespace
}  // namespace brrr::models
