// config.json of a ResNet, the nets that options describe, the names of tensors, and what is
// refused.

#include "models/resnet/resnet_config.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "folders/weights.h"
#include "models/initialise.h"
#include "models/state_dict_config.h"
#include "models/vision/picture_layers.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/pictures.h"

namespace brrr::models {
namespace {

ModelPtr described_resnet(const std::string& options) {
  return ResNetConfig::architecture().describe({preset_values(options), 0, 1, 0, std::nullopt});
}

// torchvision's resnet18 to resnet152, and the nets for CIFAR-10 with projections.
TEST(ResNetConfig, CountsThePublishedParameters) {
  EXPECT_EQ(described_resnet("--depth 18")->parameter_count(), 11'689'512);
  EXPECT_EQ(described_resnet("--depth 34")->parameter_count(), 21'797'672);
  EXPECT_EQ(described_resnet("--depth 50")->parameter_count(), 25'557'032);
  EXPECT_EQ(described_resnet("--depth 101")->parameter_count(), 44'549'160);
  EXPECT_EQ(described_resnet("--depth 152")->parameter_count(), 60'192'808);
  EXPECT_EQ(described_resnet("--stem cifar --image-size 32 --num-labels 10 --depth 20")
                ->parameter_count(),
            272'474);
}

// 4.09e9 multiply-adds for a picture, 3.95e9 where padding does not count; a training step takes
// three times those of a forward pass.
TEST(ResNetConfig, CountsTheFlopsOfAPicture) {
  EXPECT_NEAR(described_resnet("--depth 50")->flops_per_token(1) / 6, 3.95e9, 0.01e9);
}

TEST(ResNetConfig, OptionsDescribeTheNet) {
  const ModelPtr wide = described_resnet("--depth 18 --width-factor 2 --num-labels 7");
  EXPECT_EQ(wide->sizes().width, 1024);
  EXPECT_EQ(wide->sizes().vocabulary, 7);
  EXPECT_EQ(wide->sizes().layers, 8);
  const KeyValues settings = wide->settings();
  EXPECT_EQ(ResNetConfig::architecture().describe({settings, 0, 1, 0, std::nullopt})->settings(),
            settings);
  EXPECT_THROW(described_resnet("--depth 19"), UserError);
  EXPECT_THROW(described_resnet("--depth 21 --stem cifar --image-size 32"), UserError);
  EXPECT_THROW(described_resnet("--depths 1,2 --hidden-sizes 4,8,16"), UserError);
}

TEST(ResNetConfig, ReadsWhatItWrites) {
  const ModelPtr read = parse_config(test::tiny_resnet(R"(, "note": "kept")"), "tiny");
  EXPECT_EQ(read->task().labels, (std::vector<std::string>{"a", "b", "c"}));
  const std::string text = read->config_json(DType::f32);
  EXPECT_EQ(parse_config(text, "again")->config_json(DType::f32), text);
  EXPECT_NE(text.find(R"("note")"), std::string::npos);
  // transformers' ResNet lacks this stem: a type of its own keeps it from loading other layers.
  EXPECT_NE(text.find(R"("model_type": "cifar_resnet")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("CifarResNetForImageClassification")"), std::string::npos) << text;
  const ModelPtr trunk = read->with_task({.head = Head::embedding});
  EXPECT_NE(trunk->config_json(DType::f32).find("ResNetModel"), std::string::npos);
}

std::string refusal_of(const std::string& config) {
  try {
    parse_config(config, "config.json");
    return "";
  } catch (const UserError& e) {
    return e.what();
  }
}

TEST(ResNetConfig, RefusesWhatDoesNotGoTogether) {
  const std::string start = R"({"model_type": "resnet", )";
  EXPECT_EQ(refusal_of(start + R"("image_size": 31})"),
            "config.json: [resnet config] image_size must be at least 32, because the net divides "
            "height and width by that; got 31");
  EXPECT_EQ(refusal_of(start + R"("depths": [1, 2]})"),
            "config.json: [resnet config] depths must be a number for each of the 4 hidden_sizes; "
            "got 2 numbers");
  EXPECT_EQ(refusal_of(start + R"("hidden_sizes": [64, 66, 128, 256]})"),
            "config.json: [resnet config] hidden_sizes must be a multiple of the factor 4; got 66");
  EXPECT_NE(refusal_of(start + R"("layer_type": "wide"})").find("expected basic, bottleneck"),
            std::string::npos);
  EXPECT_NE(refusal_of(start + R"("depths": []})").find("the number of depths must be"),
            std::string::npos);
}

/// The weights of a model by torchvision's names, without counters.
std::shared_ptr<const WeightList> by_torchvision_names(const ResNetConfig& config,
                                                       const WeightSource& weights) {
  const auto list = std::make_shared<WeightList>(
      "resnet.safetensors", nullptr, [&](std::string_view name, std::span<float> to) {
        for (const auto& [theirs, ours] : torchvision_names(config))
          if (theirs == name) weights.read(*weights.find(ours), std::as_writable_bytes(to));
      });
  for (const auto& [theirs, ours] : torchvision_names(config))
    if (const TensorView* t = weights.find(ours); t != nullptr && t->dtype == DType::f32)
      list->add({theirs, t->dtype, t->shape, {}});
  return list;
}

TEST(ResNetConfig, ReadsTorchvisionsNames) {
  const ResNetConfig config = parse_resnet_config(test::tiny_resnet(), "tiny");
  const ModelPtr model = config.model();
  const auto own = made_weights(*model, initial_weights(*model, 3));
  const auto matched = io::match_tensors(by_torchvision_names(config, *own), *model);
  for (const ParameterInfo& p : model->parameters()) {
    const TensorView* const t = matched->find(p.name);
    ASSERT_NE(t, nullptr) << p.name;
    std::vector<std::byte> got(static_cast<size_t>(p.shape.elements()) * bytes_of(p.dtype)),
        expected(got);
    matched->read(*t, got);
    own->read(*own->find(p.name), expected);
    EXPECT_EQ(got, expected) << p.name;
  }
}

// Wide ResNets and ResNeXt have the names of ResNets and other sizes.
TEST(ResNetConfig, RefusesStateDictsOfItsRelatives) {
  const auto refusal = [](const Shape& inner, const Shape& middle, const char* left_out = "") {
    WeightList list("net.pth");
    const auto add = [&](const char* name, const Shape& shape) {
      if (name != std::string_view(left_out)) list.add({name, DType::f32, shape, {}});
    };
    add("conv1.weight", {64, 3, 7, 7});
    add("bn1.running_mean", {64});
    add("layer1.0.conv1.weight", inner);
    add("layer1.0.conv2.weight", middle);
    add("layer1.0.conv3.weight", {256, inner.size(0), 1, 1});
    add("layer2.0.conv1.weight", {128, 256, 1, 1});
    try {
      config_of_state_dict(list);
      return std::string();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_TRUE(refusal({128, 64, 1, 1}, {128, 128, 3, 3})
                  .starts_with("net.pth is a wide ResNet: its blocks have 128 channels inside and "
                               "256 outside; expected a ResNet-18, 34, 50, 101 or 152"));
  EXPECT_TRUE(refusal({128, 64, 1, 1}, {128, 4, 3, 3})
                  .starts_with("net.pth is a ResNeXt: its 3 x 3 convolutions have 32 groups of 4 "
                               "channels"));
  EXPECT_EQ(refusal({64, 64, 1, 1}, {64, 64, 3, 3}, "conv1.weight"),
            "net.pth: the tensor conv1.weight of torchvision's ResNet is missing");
}

TEST(ResNetConfig, NamesMissingTensorsAsTheFileDoes) {
  const ResNetConfig config = parse_resnet_config(test::tiny_resnet(), "tiny");
  const ModelPtr model = config.model();
  const auto own = made_weights(*model, initial_weights(*model, 3));
  const auto all = by_torchvision_names(config, *own);
  const auto some = std::make_shared<WeightList>("net.pth");
  all->each([&](const TensorView& t) {
    if (t.name != "layer2.0.bn1.weight") some->add(t);
  });
  try {
    io::match_tensors(some, *model);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("net.pth: the tensor layer2.0.bn1.weight [12] is missing"),
              std::string::npos)
        << e.what();
  }
}

TEST(ResNetConfig, NamesTensorsOfOtherShapes) {
  const ModelPtr model = parse_config(test::tiny_resnet(), "tiny");
  const ModelPtr other = parse_config(test::tiny_resnet(R"(, "num_channels": 1)"), "tiny");
  try {
    io::match_tensors(made_weights(*other, initial_weights(*other, 3)), *model);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()),
              "the initial weights: the tensor resnet.embedder.embedder.convolution.weight must "
              "have the shape [8,3,3,3] by config.json; the file has [8,1,3,3]; the file does not "
              "belong to its config.json");
  }
}

// A picture has the bits in a batch that it has alone.
TEST(ResNet, APictureHasItsBitsInAnyBatch) {
  const ModelPtr model = parse_config(test::tiny_resnet(), "tiny");
  const auto weights = made_weights(*model, initial_weights(*model, 5));
  const auto logits = [&](int64_t rows, int64_t first) {
    Engine engine(cpu::cpu_backend());
    const size_t p =
        engine.add(run_pipeline(model->forward(Dim(rows), Dim(1)), engine.backend().target(),
                                for_inference(DType::f32, {})));
    engine.allocate();
    engine.load(*weights);
    const io::Batch batch = test::picture_batch(*model->sizes().picture, rows, 3, first);
    Call call{p, {}, {}};
    call.set("pixels", std::span<const float>(batch.values("pixels")));
    engine.run(std::span(&call, 1));
    std::vector<std::byte> room;
    const auto bytes = engine.read_output(p, "logits", room);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const std::vector<std::byte> together = logits(7, 0);
  const size_t row = together.size() / 7;
  for (int64_t i = 0; i < 7; ++i) {
    const auto at = together.begin() + i * static_cast<std::ptrdiff_t>(row);
    EXPECT_EQ(logits(1, i), std::vector<std::byte>(at, at + static_cast<std::ptrdiff_t>(row))) << i;
  }
}

// Channels of ones are kept or dropped whole, and scaled.
TEST(PictureLayers, DropWholeChannels) {
  Graph g;
  const Value key = g.input("key", {2}, DType::i32);
  g.output("y", dropout_channels(full(g, {8, 16, 3, 3}, 1), key, 0.25, 0));
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(g);
  engine.allocate();
  const int32_t numbers[] = {3, 4};
  Call call{p, {}, {}};
  call.set("key", std::span<const int32_t>(numbers));
  engine.run(std::span(&call, 1));
  const auto* y = reinterpret_cast<const float*>(engine.output(p, "y"));
  int dropped = 0;
  for (int plane = 0; plane < 8 * 16; ++plane) {
    const float first = y[plane * 9];
    EXPECT_TRUE(first == 0 || std::abs(first - 4.0f / 3) < 1e-6f) << first;
    for (int i = 1; i < 9; ++i) EXPECT_EQ(y[plane * 9 + i], first);
    dropped += first == 0;
  }
  EXPECT_GT(dropped, 16);
  EXPECT_LT(dropped, 50);
}

}  // namespace
}  // namespace brrr::models
