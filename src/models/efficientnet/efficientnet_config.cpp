// The fields of an EfficientNet: config.json both ways, options, checks, published sizes, presets.

#include "models/efficientnet/efficientnet_config.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/task_json.h"

namespace brrr::models {
namespace {

using io::Json;

struct Most {
  static constexpr size_t stages = 16;
  static constexpr int64_t channels = 1 << 16, blocks = 1024, side = 1 << 14, kernel = 31;
};

const Spellings& efficientnet_activations() {
  static const Spellings names = {{"swish", "silu"}, {"relu6"}, {"relu"}};
  return names;
}
const Spellings& paddings() {
  static const Spellings names = {{"symmetric"}, {"same"}};
  return names;
}
const Spellings& pixel_ranges() {
  static const Spellings names = {{"imagenet"}, {"unit"}};
  return names;
}
/// The index of a name is that of the variant plus 1.
const Spellings& variant_names() {
  static const Spellings names = [] {
    Spellings list = {{"none"}};
    for (const EfficientNetVariant& v : efficientnet_variants()) list.push_back({v.name});
    return list;
  }();
  return names;
}

void complete_efficientnet(EfficientNetConfig& c, const Description&) {
  if (c.variant > 0) set_variant(c, efficientnet_variants()[static_cast<size_t>(c.variant) - 1]);
  c.variant = 0;
  c.task.labels.clear();
  for (int64_t i = 0; i < c.num_labels; ++i) c.task.labels.push_back(fmt::format("LABEL_{}", i));
}

std::vector<Preset> efficientnet_presets() {
  const std::string common =
      "--task images --context 1 --optim sgd --momentum 0.9 --lr-scheduler-type cosine --min-lr 0 "
      "--max-grad-norm 0 --sampling epoch --samples 0 --eval-batches 0 --augment imagenet "
      "--num-labels 1000 --learning-rate 0.1 --weight-decay 0.00004 --batch-size 64 "
      "--num-train-epochs 90 --max-steps 0 --warmup-steps 0.05 --eval-steps 0.05 "
      "--label-smoothing 0.1 --drop-connect 0.2 ";
  std::vector<Preset> presets;
  for (const EfficientNetVariant& v : efficientnet_variants())
    presets.push_back(
        {"efficientnet-" + v.name,
         fmt::format("EfficientNet-{} for pictures of {} x {}", v.title(), v.image_size,
                     v.image_size),
         preset_values(common + fmt::format("--variant {} --image-size {} --dropout {}", v.name,
                                            v.image_size, v.dropout))});
  return presets;
}

}  // namespace

std::string EfficientNetVariant::title() const {
  std::string title = name;
  title[0] = is_lite() ? 'L' : 'B';
  return title;
}

const std::vector<EfficientNetVariant>& efficientnet_variants() {
  static const std::vector<EfficientNetVariant> all = {
      {"lite0", 1.0, 1.0, 224, 0.2}, {"lite1", 1.0, 1.1, 240, 0.2}, {"lite2", 1.1, 1.2, 260, 0.3},
      {"lite3", 1.2, 1.4, 280, 0.3}, {"lite4", 1.4, 1.8, 300, 0.3}, {"b0", 1.0, 1.0, 224, 0.2},
      {"b1", 1.0, 1.1, 240, 0.2},    {"b2", 1.1, 1.2, 260, 0.3},    {"b3", 1.2, 1.4, 300, 0.3},
      {"b4", 1.4, 1.8, 380, 0.4},    {"b5", 1.6, 2.2, 456, 0.4},    {"b6", 1.8, 2.6, 528, 0.5},
      {"b7", 2.0, 3.1, 600, 0.5}};
  return all;
}

void set_variant(EfficientNetConfig& c, const EfficientNetVariant& variant) {
  c.width_coefficient = variant.width;
  c.depth_coefficient = variant.depth;
  c.fix_head_stem = variant.is_lite();
  c.squeeze_expansion_ratio = variant.is_lite() ? 0 : 0.25;
  c.hidden_act = variant.is_lite() ? EfficientNetActivation::relu6 : EfficientNetActivation::silu;
  c.pixel_range = variant.is_lite() ? PixelRange::unit : PixelRange::imagenet;
}

const ConfigTable<EfficientNetConfig>& EfficientNetConfig::table() {
  static const ConfigTable<EfficientNetConfig> table = [] {
    using C = EfficientNetConfig;
    ConfigTable<C> t(C{});
    const RealRange share{.low = 0, .high = 1};
    const RealRange factor{.low = 0, .high = 64, .low_open = true};
    t.choice("variant", &C::variant, variant_names())
        .written([](const C&) { return false; })
        .option("variant",
                "published sizes of an EfficientNet: b0 to b7 or lite0 to lite4; sets its "
                "coefficients, activation and squeeze ratio (none: those count)");
    t.real("width_coefficient", &C::width_coefficient, factor, "above 0 and at most 64")
        .option("width-coefficient", "multiplies the channels of an EfficientNet");
    t.real("depth_coefficient", &C::depth_coefficient, factor, "above 0 and at most 64")
        .option("depth-coefficient", "multiplies the blocks of each stage of an EfficientNet");
    t.size("depth_divisor", &C::depth_divisor, 1024)
        .option("depth-divisor", "channels of an EfficientNet are a multiple of this");
    t.flag("fix_head_stem", &C::fix_head_stem)
        .written([](const C& c) { return c.fix_head_stem; })
        .option("fix-head-stem",
                "coefficients leave the stem, the head, and the blocks of the first and the last "
                "stage alone (Lite)");
    t.size("stem_channels", &C::stem_channels, Most::channels)
        .written([](const C& c) { return c.stem_channels != C{}.stem_channels; })
        .option("stem-channels", "channels of an EfficientNet's first convolution");
    t.size("head_channels", &C::head_channels, Most::channels)
        .written([](const C& c) { return c.head_channels != C{}.head_channels; })
        .option("head-channels", "channels of an EfficientNet's last convolution");
    t.sizes("out_channels", &C::out_channels, Most::stages, Most::channels)
        .option("out-channels", "channels of each stage of an EfficientNet");
    t.sizes("num_block_repeats", &C::num_block_repeats, Most::stages, Most::blocks)
        .option("num-block-repeats", "blocks of each stage of an EfficientNet");
    t.sizes("kernel_sizes", &C::kernel_sizes, Most::stages, Most::kernel)
        .option("kernel-sizes", "depthwise kernel of each stage of an EfficientNet");
    t.sizes("strides", &C::strides, Most::stages, 2)
        .option("strides", "stride of each stage of an EfficientNet");
    t.sizes("expand_ratios", &C::expand_ratios, Most::stages, 64)
        .option("expand-ratios",
                "channels inside the blocks of each stage over those of the input");
    t.real("squeeze_expansion_ratio", &C::squeeze_expansion_ratio, share, "between 0 and 1")
        .option("squeeze-expansion-ratio",
                "channels of squeeze-and-excitation over those of the block's input (0: none)");
    t.choice("hidden_act", &C::hidden_act, efficientnet_activations())
        .option("hidden-act", "activation of an EfficientNet: swish, relu6 or relu");
    t.choice("padding", &C::padding, paddings())
        .written([](const C& c) { return c.padding != C{}.padding; })
        .option("padding",
                "zeros around a picture: symmetric, or same, as TensorFlow and the published "
                "EfficientNets have it");
    t.choice("pixel_range", &C::pixel_range, pixel_ranges())
        .written([](const C& c) { return c.pixel_range != C{}.pixel_range; })
        .option("pixel-range",
                "pixels are normalised by ImageNet's means and deviations (imagenet), or lie "
                "between -1 and 1 (unit)");
    t.size("num_channels", &C::num_channels, 64)
        .option("num-channels", "channels of pictures: 3, or 1 for grey");
    t.size("image_size", &C::image_size, Most::side)
        .option("image-size", "height and width of pictures");
    t.size("num_labels", &C::num_labels, kMostLabels)
        .written([](const C&) { return false; })
        .option("num-labels", "classes of a model for pictures (default with data: the data's)",
                {"num-classes"});
    t.epsilon("batch_norm_eps", [](C& c) -> double& {
       return c.batch_norm_eps;
     }).option("batch-norm-eps", "what batch norm adds to a variance");
    t.real(
         "batch_norm_share", [](C& c) -> double& { return c.batch_norm_share; }, share,
         "between 0 and 1")
        .written([](const C& c) { return c.batch_norm_share != C{}.batch_norm_share; })
        .option("batch-norm-momentum", "share of a batch in the running statistics of batch norm");
    t.dropout("dropout_rate", &C::dropout_rate);
    t.real(
         "drop_connect_rate", [](C& c) -> double& { return c.drop_connect_rate; },
         {.low = 0, .high = 1, .high_open = true}, "a probability in [0, 1)")
        .option("drop-connect",
                "probability of dropping the last block's residual branch for a picture; blocks "
                "before it have less in proportion");
    t.constant("pooling_type", {"mean"});
    t.constant("model_type", {"efficientnet"});
    return t;
  }();
  return table;
}

int64_t EfficientNetConfig::rounded(int64_t channels) const {
  const double wide = static_cast<double>(channels) * width_coefficient;
  const double half = static_cast<double>(depth_divisor) / 2;
  const int64_t nearest = static_cast<int64_t>(wide + half) / depth_divisor * depth_divisor;
  const int64_t width = std::max(depth_divisor, nearest);
  return static_cast<double>(width) < 0.9 * wide ? width + depth_divisor : width;
}

std::vector<EfficientNetStage> EfficientNetConfig::stages() const {
  std::vector<EfficientNetStage> list;
  int64_t in = stem_width();
  for (size_t i = 0; i < out_channels.size(); ++i) {
    const bool is_fixed = fix_head_stem && (i == 0 || i + 1 == out_channels.size());
    const double repeats =
        static_cast<double>(num_block_repeats[i]) * (is_fixed ? 1 : depth_coefficient);
    list.push_back({in, rounded(out_channels[i]), static_cast<int64_t>(std::ceil(repeats)),
                    kernel_sizes[i], strides[i], expand_ratios[i]});
    in = list.back().out;
  }
  return list;
}

int64_t EfficientNetConfig::blocks() const {
  int64_t count = 0;
  for (const EfficientNetStage& stage : stages()) count += stage.blocks;
  return count;
}

int64_t EfficientNetConfig::total_stride() const {
  return std::accumulate(strides.begin(), strides.end(), int64_t{2}, std::multiplies<>());
}

std::vector<int64_t> EfficientNetConfig::depthwise_padding() const {
  std::vector<int64_t> odd;
  int64_t block = 0, side = (image_size + 1) / 2;
  for (const EfficientNetStage& stage : stages()) {
    if (stage.stride == 2 && side % 2 == 1) odd.push_back(block);
    side = (side + stage.stride - 1) / stage.stride;
    block += stage.blocks;
  }
  return odd;
}

void EfficientNetConfig::validate() const {
  table().check(*this);
  const ConfigLimits limits = this->limits();
  for (const auto& [name, list] : {std::pair("num_block_repeats", &num_block_repeats),
                                   {"kernel_sizes", &kernel_sizes},
                                   {"strides", &strides},
                                   {"expand_ratios", &expand_ratios}})
    if (list->size() != out_channels.size())
      limits.fail(name,
                  fmt::format("a number for each of the {} out_channels", out_channels.size()),
                  fmt::format("{} numbers", list->size()));
  for (const int64_t kernel : kernel_sizes)
    if (kernel % 2 == 0) limits.fail("kernel_sizes", "odd numbers", kernel);
  if (const int64_t count = blocks(); count > Most::blocks)
    limits.fail("depth_coefficient",
                fmt::format("such that there are at most {} blocks", Most::blocks),
                fmt::format("{} blocks", count));
  if (image_size < total_stride())
    limits.fail("image_size",
                fmt::format("at least {}, because the net divides height and width by that",
                            total_stride()),
                image_size);
  if (task.head == Head::classes)
    limits.size("the number of labels", std::ssize(task.labels), kMostLabels);
}

namespace {

std::vector<int64_t> in_channels_of(const EfficientNetConfig& c) {
  std::vector<int64_t> in{c.stem_channels};
  in.insert(in.end(), c.out_channels.begin(), c.out_channels.end() - 1);
  return in;
}

std::string listed_numbers(const std::vector<int64_t>& list) {
  return fmt::format("[{}]", fmt::join(list, ", "));
}

}  // namespace

EfficientNetConfig parse_efficientnet_config(std::string_view text, const std::string& what) {
  const ConfigReader keys(text, what);
  EfficientNetConfig d;
  d.task = {.head = Head::embedding};
  if (class_name(keys).ends_with("ForImageClassification"))
    d.task = {.head = Head::classes, .labels = read_labels(keys)};
  d.num_labels = std::max<int64_t>(1, std::ssize(d.task.labels));
  EfficientNetConfig c = config_from(
      keys, d, [](EfficientNetConfig&) {},
      {"num_labels", "id2label", "label2id", "problem_type", "in_channels", "hidden_dim",
       "depthwise_padding", "batch_norm_momentum", "initializer_range", "num_hidden_layers"});
  // What transformers writes twice.
  const auto check = [&](const char* key, const std::vector<int64_t>& expected) {
    if (keys.has(key) && keys.integers(key) != expected)
      user_error("{}: '{}' must be {} to fit the other sizes; found {}", what, key,
                 listed_numbers(expected), listed_numbers(keys.integers(key)));
  };
  check("in_channels", in_channels_of(c));
  check("depthwise_padding", c.depthwise_padding());
  if (const int64_t width = c.head_width(); keys.integer("hidden_dim", width) != width)
    user_error("{}: 'hidden_dim' must be {} to fit the other sizes; found {}", what, width,
               keys.integer("hidden_dim", width));
  return c;
}

std::string EfficientNetConfig::json(DType stored) const {
  Json more = Json::object();
  write_labels(task, more);
  more["in_channels"] = in_channels_of(*this);
  more["hidden_dim"] = head_width();
  more["depthwise_padding"] = depthwise_padding();
  return config_json_of(
      *this, stored,
      task.head == Head::classes ? "EfficientNetForImageClassification" : "EfficientNetModel",
      std::move(more));
}

ModelPtr EfficientNetConfig::model() const {
  class EfficientNetModel final : public ConfiguredVision<EfficientNetConfig> {
   public:
    using ConfiguredVision::ConfiguredVision;

   protected:
    std::unique_ptr<VisionNet> build(Parameters& p, std::optional<Value> rng_key) const override {
      return efficientnet(p, c_, rng_key);
    }
    bool has_dropout() const override {
      return c_.drop_connect_rate > 0 || ConfiguredVision::has_dropout();
    }
  };
  return std::make_shared<EfficientNetModel>(*this);
}

const Architecture& EfficientNetConfig::architecture() {
  static const Architecture a =
      architecture_of<EfficientNetConfig>({.name = "efficientnet",
                                           .title = "EfficientNet",
                                           .model_types = {"efficientnet"},
                                           .class_names = {"EfficientNet"},
                                           .presets = efficientnet_presets(),
                                           .head = Head::classes},
                                          complete_efficientnet, parse_efficientnet_config);
  return a;
}

}  // namespace brrr::models
