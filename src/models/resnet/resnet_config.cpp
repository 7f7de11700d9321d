// The fields of a ResNet: config.json both ways, options, checks, names of tensors and presets.

#include "models/resnet/resnet_config.h"

#include <cmath>
#include <numeric>

#include "models/task_json.h"

namespace brrr::models {
namespace {

using io::Json;

/// model_type of config.json. transformers' ResNet has the stem of ImageNet only, so a net with the
/// other stem has a type of its own, which transformers refuses by name.
constexpr const char *kModelType = "resnet", *kCifarType = "cifar_resnet";
constexpr size_t kMostStages = 8;
constexpr int64_t kMostChannels = 1 << 16, kMostBlocks = 1024, kMostSide = 1 << 14;

const Spellings& layer_types() {
  static const Spellings types = {{"basic"}, {"bottleneck"}};
  return types;
}
const Spellings& stems() {
  static const Spellings types = {{"imagenet"}, {"cifar"}};
  return types;
}

/// The nets of the paper's tables 1 and 6 by their number of layers.
void set_depth(ResNetConfig& c, int64_t depth) {
  if (c.stem == ResNetStem::cifar) {
    const int64_t n = (depth - 2) / 6;
    if (n < 1 || depth != 6 * n + 2 || n > kMostBlocks)
      usage_error("--depth with --stem cifar must be 6 n + 2, such as 20, 32 or 56; got {}", depth);
    c.depths = {n, n, n};
    c.hidden_sizes = {16, 32, 64};
    c.embedding_size = 16;
    c.layer_type = ResNetLayer::basic;
    return;
  }
  const bool is_basic = depth == 18 || depth == 34;
  if (depth == 18)
    c.depths = {2, 2, 2, 2};
  else if (depth == 34 || depth == 50)
    c.depths = {3, 4, 6, 3};
  else if (depth == 101)
    c.depths = {3, 4, 23, 3};
  else if (depth == 152)
    c.depths = {3, 8, 36, 3};
  else
    usage_error("--depth must be 18, 34, 50, 101 or 152, or with --stem cifar 6 n + 2; got {}",
                depth);
  c.layer_type = is_basic ? ResNetLayer::basic : ResNetLayer::bottleneck;
  c.hidden_sizes = is_basic ? std::vector<int64_t>{64, 128, 256, 512}
                            : std::vector<int64_t>{256, 512, 1024, 2048};
  c.embedding_size = 64;
}

void complete_resnet(ResNetConfig& c, const Description&) {
  if (c.depth > 0) set_depth(c, c.depth);
  c.depth = 0;
  const auto widen = [factor = c.width_factor](int64_t channels) {
    constexpr double kStep = 4;  // a bottleneck has a quarter of the channels inside
    return static_cast<int64_t>(
        kStep * std::max(1.0, std::round(static_cast<double>(channels) * factor / kStep)));
  };
  if (c.width_factor != 1) {
    c.embedding_size = widen(c.embedding_size);
    for (int64_t& size : c.hidden_sizes) size = widen(size);
    c.width_factor = 1;
  }
  c.task.labels.clear();
  for (int64_t i = 0; i < c.num_labels; ++i) c.task.labels.push_back(fmt::format("LABEL_{}", i));
}

std::vector<Preset> resnet_presets() {
  // The recipes of the paper: SGD with momentum 0.9 and weight decay 1e-4.
  const std::string common =
      "--task images --context 1 --optim sgd --momentum 0.9 --lr-scheduler-type cosine --min-lr 0 "
      "--max-grad-norm 0 --sampling epoch --samples 0 --eval-batches 0 ";
  const std::string cifar =
      common +
      "--augment cifar --stem cifar --image-size 32 --num-labels 10 --learning-rate 0.1 "
      "--weight-decay 0.0001 --batch-size 128 --num-train-epochs 30 "
      "--max-steps 0 --warmup-steps 0.03 --eval-steps 0.1 ";
  const std::string imagenet =
      common +
      "--augment imagenet --image-size 224 --num-labels 1000 --learning-rate 0.1 "
      "--weight-decay 0.0001 --batch-size 64 --num-train-epochs 90 "
      "--max-steps 0 --warmup-steps 0.05 --eval-steps 0.05 ";
  const auto preset = [](const char* name, const char* summary, const std::string& values) {
    return Preset{name, summary, preset_values(values)};
  };
  return {preset("resnet20-cifar", "20 layers for pictures of 32 x 32, as for CIFAR-10",
                 cifar + "--depth 20"),
          preset("resnet32-cifar", "32 layers for pictures of 32 x 32", cifar + "--depth 32"),
          preset("resnet56-cifar", "56 layers for pictures of 32 x 32", cifar + "--depth 56"),
          preset("resnet18", "18 layers for pictures of 224 x 224", imagenet + "--depth 18"),
          preset("resnet34", "34 layers", imagenet + "--depth 34"),
          preset("resnet50", "50 layers, stride in the 3 x 3 convolutions (v1.5)",
                 imagenet + "--depth 50"),
          preset("resnet101", "101 layers", imagenet + "--depth 101"),
          preset("resnet152", "152 layers", imagenet + "--depth 152"),
          preset("fine-tune-images", "a model for pictures that is trained further, by --init-from",
                 common + "--augment imagenet --learning-rate 0.01 --weight-decay 0.0001 "
                          "--batch-size 32 --num-train-epochs 5 "
                          "--max-steps 0 --warmup-steps 0.1 --eval-steps 0.2 ")};
}

}  // namespace

const ConfigTable<ResNetConfig>& ResNetConfig::table() {
  static const ConfigTable<ResNetConfig> table = [] {
    using C = ResNetConfig;
    ConfigTable<C> t(C{});
    t.integer("depth", &C::depth, 0, 6 * kMostBlocks + 2)
        .written([](const C&) { return false; })
        .option(
            "depth",
            "layers of a ResNet: 18, 34, 50, 101 or 152, with --stem cifar 6 n + 2, such as 20; "
            "sets depths, hidden-sizes, embedding-size and layer-type (0: those count)",
            {}, 0);
    t.sizes("depths", &C::depths, kMostStages, kMostBlocks)
        .option("depths", "blocks of each stage of a ResNet");
    t.sizes("hidden_sizes", &C::hidden_sizes, kMostStages, kMostChannels)
        .option("hidden-sizes", "channels of each stage of a ResNet");
    t.size("embedding_size", &C::embedding_size, kMostChannels)
        .option("embedding-size", "channels of a ResNet's first convolution");
    t.real("width_factor", &C::width_factor, {.low = 0, .high = 64, .low_open = true},
           "above 0 and at most 64")
        .written([](const C&) { return false; })
        .option("width-factor", "multiplies the channels of a ResNet");
    t.choice("layer_type", &C::layer_type, layer_types())
        .option("layer-type", "block of a ResNet: basic or bottleneck");
    t.choice("stem", &C::stem, stems())
        .written([](const C& c) { return c.stem != ResNetStem::imagenet; })
        .option("stem",
                "first layers of a ResNet: imagenet (7 x 7 of stride 2, max pool) or cifar (3 x 3; "
                "transformers has no such ResNet, so config.json names the type cifar_resnet)");
    t.choice("hidden_act", &C::hidden_act, activation_choices());
    t.flag("downsample_in_first_stage", &C::downsample_in_first_stage);
    t.flag("downsample_in_bottleneck", &C::downsample_in_bottleneck)
        .option("downsample-in-bottleneck",
                "stride in a bottleneck's first convolution (v1) instead of its 3 x 3 (v1.5)");
    t.flag("zero_init_residual", &C::zero_init_residual)
        .written([](const C& c) { return c.zero_init_residual; })
        .option("zero-init-residual", "scales of the last norms of a ResNet's blocks begin as 0");
    t.size("num_channels", &C::num_channels, 64)
        .option("num-channels", "channels of pictures: 3, or 1 for grey");
    t.size("image_size", &C::image_size, kMostSide)
        .option("image-size", "height and width of pictures");
    t.size("num_labels", &C::num_labels, kMostLabels)
        .written([](const C&) { return false; })
        .option("num-labels", "classes of a model for pictures (default with data: the data's)",
                {"num-classes"});
    t.real("batch_norm_momentum", &C::batch_norm_momentum, {.low = 0, .high = 1}, "between 0 and 1")
        .written([](const C& c) { return c.batch_norm_momentum != C{}.batch_norm_momentum; })
        .option("batch-norm-momentum", "share of a batch in the running statistics of batch norm");
    t.dropout("classifier_dropout", &C::classifier_dropout).written([](const C& c) {
      return c.classifier_dropout > 0;
    });
    t.custom(
        "model_type",
        [](C&, const ConfigReader& keys) {
          keys.insist("model_type", {kModelType, kCifarType});
        },
        [](const C& c) { return c.stem == ResNetStem::cifar ? kCifarType : kModelType; });
    return t;
  }();
  return table;
}

int64_t ResNetConfig::blocks() const {
  return std::accumulate(depths.begin(), depths.end(), int64_t{0});
}

int64_t ResNetConfig::total_stride() const {
  int64_t stride = stem == ResNetStem::imagenet ? 4 : 1;
  for (size_t stage = 0; stage < depths.size(); ++stage) stride *= stride_of(stage);
  return stride;
}

void ResNetConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  if (depths.size() != hidden_sizes.size())
    limits.fail("depths",
                fmt::format("a number for each of the {} hidden_sizes", hidden_sizes.size()),
                fmt::format("{} numbers", depths.size()));
  if (layer_type == ResNetLayer::bottleneck)
    for (const int64_t size : hidden_sizes) limits.multiple("hidden_sizes", size, "the factor", 4);
  if (image_size < total_stride())
    limits.fail("image_size",
                fmt::format("at least {}, because the net divides height and width by that",
                            total_stride()),
                image_size);
  if (task.head == Head::classes)
    limits.size("the number of labels", std::ssize(task.labels), kMostLabels);
}

std::vector<std::pair<std::string, std::string>> torchvision_names(const ResNetConfig& c) {
  std::vector<std::pair<std::string, std::string>> names;  // theirs, Hugging Face's
  const auto pair = [&](const std::string& conv, const std::string& norm, const std::string& ours) {
    names.emplace_back(conv + ".weight", ours + ".convolution.weight");
    for (const char* part :
         {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
      names.emplace_back(fmt::format("{}.{}", norm, part),
                         fmt::format("{}.normalization.{}", ours, part));
  };
  const std::string prefix = "resnet.";
  pair("conv1", "bn1", prefix + "embedder.embedder");
  const int64_t layers = c.layer_type == ResNetLayer::basic ? 2 : 3;
  for (size_t stage = 0; stage < c.depths.size(); ++stage)
    for (int64_t i = 0; i < c.depths[stage]; ++i) {
      const std::string theirs = fmt::format("layer{}.{}", stage + 1, i),
                        ours = fmt::format("{}encoder.stages.{}.layers.{}", prefix, stage, i);
      for (int64_t k = 0; k < layers; ++k)
        pair(fmt::format("{}.conv{}", theirs, k + 1), fmt::format("{}.bn{}", theirs, k + 1),
             fmt::format("{}.layer.{}", ours, k));
      if (i == 0) pair(theirs + ".downsample.0", theirs + ".downsample.1", ours + ".shortcut");
    }
  for (const char* part : {"weight", "bias"})
    names.emplace_back(fmt::format("fc.{}", part), fmt::format("classifier.1.{}", part));
  return names;
}

FileNames ResNetConfig::file_names() const {
  FileNames names;
  names.prefix = "resnet.";
  names.trunk = {"embedder.", "encoder.", "conv1.", "bn1.", "layer"};
  names.renamed = torchvision_names(*this);
  return names;
}

ResNetConfig parse_resnet_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  ResNetConfig d;
  d.task = {.head = Head::embedding};
  if (class_name(keys).ends_with("ForImageClassification"))
    d.task = {.head = Head::classes, .labels = read_labels(keys)};
  d.num_labels = std::max<int64_t>(1, std::ssize(d.task.labels));
  return config_from(keys, d, [](ResNetConfig&) {},
                     {"num_labels", "id2label", "label2id", "problem_type", "out_features",
                      "out_indices", "stage_names"});
}

std::string ResNetConfig::json(DType stored) const {
  Json more = Json::object();
  write_labels(task, more);
  return config_json_of(*this, stored,
                        std::string(stem == ResNetStem::cifar ? "CifarResNet" : "ResNet") +
                            (task.head == Head::classes ? "ForImageClassification" : "Model"),
                        std::move(more));
}

ModelPtr ResNetConfig::model() const {
  class ResNetModel final : public ConfiguredVision<ResNetConfig> {
   public:
    using ConfiguredVision::ConfiguredVision;

   protected:
    std::unique_ptr<VisionNet> build(Parameters& p, std::optional<Value> rng_key) const override {
      return resnet(p, c_, rng_key);
    }
  };
  return std::make_shared<ResNetModel>(*this);
}

const Architecture& ResNetConfig::architecture() {
  static const Architecture a =
      architecture_of<ResNetConfig>({.name = "resnet",
                                     .title = "ResNet",
                                     .model_types = {kModelType, kCifarType},
                                     .class_names = {"ResNet", "CifarResNet"},
                                     .presets = resnet_presets(),
                                     .head = Head::classes},
                                    complete_resnet, parse_resnet_config);
  return a;
}

}  // namespace brrr::models
