// Folders whose weights are integers in compressed-tensors' form: numbers worked out by hand, what
// is written and read again, what is refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "folders/quantized/compressed_tensors.h"
#include "folders/quantized/quantized_model.h"
#include "formats/json_file.h"
#include "models/bert/bert_config.h"
#include "models/gpt2/gpt2_config.h"
#include "support/random_model_folder.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::llama_to_quantise;
using test::random_model_folder;
using test::TempFolder;

TEST(IntegerMatrix, NumbersByHand) {
  // Rows of magnitudes 127 and 63.5: scales 1 and 0.5.
  const std::vector<float> matrix{127, -3.4F, 0, 1.5F, 63.5F, -63.5F, 0.3F, 1};
  const IntegerMatrix m = quantize(matrix, {.rows = 2, .columns = 4, .bits = 8});
  EXPECT_EQ(m.scales, (std::vector<float>{1, 0.5F}));
  EXPECT_EQ(m.integers, (std::vector<int8_t>{127, -3, 0, 2, 127, -127, 1, 2}));
  std::vector<float> back(8);
  dequantize(m.form, m.integers, m.scales, back);
  EXPECT_EQ(back, (std::vector<float>{127, -3, 0, 2, 63.5F, -63.5F, 0.5F, 1}));
  EXPECT_NEAR(relative_error(std::vector<float>{3, 4}, std::vector<float>{3, 3}), 0.2, 1e-12);
  EXPECT_EQ(relative_error(std::vector<float>{0}, std::vector<float>{0}), 0);
}

TEST(IntegerMatrix, FourBitsHaveEightInAWord) {
  // One row of two groups; the largest magnitudes 7 and 0.
  std::vector<float> matrix(16, 0);
  for (int i = 0; i < 8; ++i) matrix[static_cast<size_t>(i)] = static_cast<float>(i);
  const IntegerMatrix m = quantize(matrix, {.rows = 1, .columns = 16, .bits = 4, .group = 8});
  EXPECT_EQ(m.scales, (std::vector<float>{1, 1})) << "a group of zeros has the scale 1";
  const std::vector<int32_t> words = packed(m);
  ASSERT_EQ(words.size(), 2u);
  // 0 .. 7 with 8 added, the first in the lowest bits.
  EXPECT_EQ(static_cast<uint32_t>(words[0]), 0xfedcba98u);
  EXPECT_EQ(static_cast<uint32_t>(words[1]), 0x88888888u);
  std::vector<int8_t> integers(16);
  unpack(m.form, std::as_bytes(std::span(words)), integers);
  EXPECT_EQ(integers, m.integers);
}

TEST(IntegerMatrix, IntegersComeBackExactly) {
  for (const auto& [bits, group] : {std::pair(int64_t{8}, int64_t{0}), {4, 32}, {4, 0}, {8, 64}}) {
    const IntegerForm form{.rows = 48, .columns = 128, .bits = bits, .group = group};
    std::vector<float> matrix(static_cast<size_t>(form.rows * form.columns)), back(matrix.size());
    RngStream random(RngKey{3, 1}, 4);
    for (float& x : matrix) x = random.next_uniform() - 0.5F;
    const IntegerMatrix m = quantize(matrix, form);
    dequantize(form, m.integers, m.scales, back);
    EXPECT_LT(relative_error(matrix, back), bits == 8 ? 0.01 : 0.12);
    EXPECT_EQ(quantize(back, form).integers, m.integers) << bits << " bits by " << group;
    std::vector<int8_t> unpacked(matrix.size());
    const std::vector<int32_t> words = packed(m);
    unpack(form, std::as_bytes(std::span(words)), unpacked);
    EXPECT_EQ(unpacked, m.integers) << bits << " bits by " << group;
  }
}

/// The text of a config.json whose quantization_config differs from a good one.
std::string config_with(const std::function<void(Json&)>& change, bool in_groups = true) {
  const FolderQuantization q{.bits = in_groups ? 4 : 8,
                             .group = in_groups ? 8 : 0,
                             .dynamic = !in_groups,
                             .packed = in_groups};
  Json config = Json::parse(with_quantization("{}", q, "config"));
  change(config["quantization_config"]);
  return config.dump();
}

TEST(CompressedTensors, ConfigSaysHow) {
  const auto same = [](Json&) {};
  const FolderQuantization four = *parse_quantization(config_with(same), "c");
  EXPECT_EQ(four, (FolderQuantization{.bits = 4, .group = 8, .dynamic = false, .packed = true}));
  EXPECT_EQ(description(four), "4 bits, weight-only, groups of 8");
  const FolderQuantization eight = *parse_quantization(config_with(same, false), "c");
  EXPECT_EQ(eight, (FolderQuantization{.bits = 8, .group = 0, .dynamic = true}));
  EXPECT_EQ(description(eight), "8 bits, dynamic, a scale for each output");
  EXPECT_EQ(parse_quantization("{}", "c"), std::nullopt);
  EXPECT_EQ(parse_quantization(R"({"quantization_config":null})", "c"), std::nullopt);
  FolderQuantization kept = eight;
  kept.ignore = {"lm_head", "re:.*gate$"};
  EXPECT_EQ(*parse_quantization(with_quantization("{}", kept, "c"), "c"), kept);
}

TEST(CompressedTensors, LayersMayHaveOtherBits) {
  FolderQuantization q{.bits = 4, .group = 32, .packed = true};
  q.others = {{"l.a", {8, 0}}, {"l.b", {4, 128}}, {"l.c", {8, 0}}};
  EXPECT_EQ(*parse_quantization(with_quantization("{}", q, "c"), "c"), q);
  EXPECT_EQ(q.grid_of("l.b"), (IntegerGrid{4, 128}));
  EXPECT_EQ(q.grid_of("l.x"), (IntegerGrid{4, 32}));
  EXPECT_NE(description(q).find("3 layers in other bits or groups"), std::string::npos);
}

TEST(CompressedTensors, WhatIsNotReadIsNamed) {
  struct Refused {
    std::function<void(Json&)> change;
    const char* message;
  };
  const auto weights = [](Json& q) -> Json& { return q["config_groups"]["group_0"]["weights"]; };
  const std::vector<Refused> cases = {
      {[](Json& q) { q["quant_method"] = "hqq"; },
       "quant_method is not supported: expected awq, bitsandbytes, compressed-tensors, fbgemm_fp8, "
       "fp8 or gptq; found the string 'hqq'"},
      {[](Json& q) { q["format"] = "nvfp4-pack-quantized"; },
       "expected int-quantized, pack-quantized or float-quantized; found"},
      {[](Json& q) { q["format"] = "float-quantized"; },
       "weights.type is not supported: expected float"},
      {[](Json& q) {
         q["kv_cache_scheme"] = {{"num_bits", 8}};
       },
       "kv_cache_scheme"},
      {[](Json& q) {
         q["sparsity_config"] = {{"format", "x"}};
       },
       "sparsity_config"},
      {[](Json& q) { q["config_groups"]["group_1"] = Json::object(); }, "expected an object"},
      {[](Json& q) { q["config_groups"]["group_1"] = q["config_groups"]["group_0"]; },
       "one group whose targets are Linear"},
      {[](Json& q) {
         q["config_groups"]["group_1"] = q["config_groups"]["group_0"];
         q["config_groups"]["group_1"]["targets"] = {"re:.*down_proj"};
       },
       "expected names of layers"},
      {[](Json& q) { q["config_groups"] = Json::object(); }, "a group for all"},
      {[](Json& q) { q["ignore"] = {1}; }, "ignore is not supported: expected names"},
      {[&](Json& q) { weights(q)["num_bits"] = 3; },
       "weights.num_bits is not supported: expected 8"},
      {[&](Json& q) { weights(q)["type"] = "float"; },
       "weights.type is not supported: expected int"},
      {[&](Json& q) { weights(q)["symmetric"] = 1; }, "symmetric is not supported: expected tr"},
      {[&](Json& q) { weights(q)["strategy"] = "block"; },
       "strategy is not supported: expected ch"},
      {[&](Json& q) { weights(q)["group_size"] = 12; },
       "group_size is not supported: expected a m"},
      {[&](Json& q) { weights(q)["group_size"] = -32; }, "group_size"},
      {[&](Json& q) { weights(q)["actorder"] = "row"; }, "actorder"},
      {[](Json& q) {
         q["config_groups"]["group_0"]["input_activations"] = {
             {"num_bits", 8}, {"type", "int"}, {"dynamic", false}, {"symmetric", true}};
       },
       "input_activations.dynamic is not supported: expected true"},
      {[](Json& q) { q["config_groups"]["group_0"]["output_activations"] = Json::object(); },
       "output_activations"},
      {[](Json& q) { q = Json::array(); }, "expected an object; found an array"},
  };
  for (const Refused& c : cases)
    EXPECT_USER_ERROR(parse_quantization(config_with(c.change), "c.json"), c.message);
}

/// Tensors in memory, as a file has them.
struct Files {
  Files& add(const std::string& name, DType dtype, const Shape& shape, const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    rooms[name] = {bytes.begin(), bytes.end()};
    views[name] = {name, dtype, shape, rooms[name]};
    return *this;
  }
  std::shared_ptr<const WeightSource> source() const {
    const auto list = std::make_shared<WeightList>("hand.safetensors");
    for (const auto& [name, view] : views) list->add(view);
    return list;
  }
  std::vector<float> read(const FolderQuantization& q, const std::string& name) const {
    const auto weights = dequantized(source(), q);
    const TensorView* const t = weights->find(name);
    EXPECT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, DType::f32);
    std::vector<float> numbers(static_cast<size_t>(t->shape.elements()));
    read_as(*weights, *t, DType::f32, std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }
  std::map<std::string, std::vector<std::byte>> rooms;
  std::map<std::string, TensorView> views;
};

const FolderQuantization kEight{.bits = 8, .group = 0, .dynamic = true};
const FolderQuantization kFour{.bits = 4, .group = 8, .dynamic = false, .packed = true};

Files eight_bits() {
  Files f;
  f.add("l.weight", DType::i8, {2, 3}, std::vector<int8_t>{1, -2, 127, -128, 0, 5});
  f.add("l.weight_scale", DType::f32, {2, 1}, std::vector<float>{0.5F, 2});
  f.add("norm.weight", DType::f32, {2}, std::vector<float>{1, 2});
  return f;
}

Files four_bits() {
  Files f;
  f.add("l.weight_packed", DType::i32, {1, 2},
        std::vector<uint32_t>{0xfedcba98u, 0x76543210u});  // 0 .. 7 and -8 .. -1
  f.add("l.weight_scale", DType::bf16, {1, 2}, std::vector<uint16_t>{0x3f80, 0x4000});  // 1, 2
  f.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{1, 16});
  return f;
}

TEST(CompressedTensors, ReadsNumbersByHand) {
  EXPECT_EQ(eight_bits().read(kEight, "l.weight"),
            (std::vector<float>{.5F, -1, 63.5F, -256, 0, 10}));
  EXPECT_EQ(four_bits().read(kFour, "l.weight"),
            (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, -16, -14, -12, -10, -8, -6, -4, -2}));
  // A scale for each row, of words of 8 bits.
  Files wide;
  wide.add("l.weight_packed", DType::i32, {1, 2}, std::vector<uint32_t>{0xff008281u, 0x00000080u});
  wide.add("l.weight_scale", DType::f32, {1, 1}, std::vector<float>{3});
  wide.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{1, 5});
  const FolderQuantization q{.bits = 8, .packed = true};
  EXPECT_EQ(wide.read(q, "l.weight"), (std::vector<float>{3, 6, -384, 381, 0}));
  // Other tensors are as they were, and parts of a weight are no tensors.
  const auto weights = dequantized(eight_bits().source(), kEight);
  EXPECT_NE(weights->find("norm.weight"), nullptr);
  EXPECT_EQ(weights->find("l.weight_scale"), nullptr);
  // The integers and their scales are tensors of their own.
  const Files four = four_bits();
  const auto packed = dequantized(four.source(), kFour);
  const TensorView* const integers = packed->find(integers_name("l.weight", 4));
  ASSERT_NE(integers, nullptr);
  std::vector<int8_t> read(static_cast<size_t>(integers->shape.elements()));
  packed->read(*integers, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, (std::vector<int8_t>{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1}));
  EXPECT_NE(packed->find(scales_name("l.weight")), nullptr);
}

TEST(CompressedTensors, ZeroPointsAndSpreadGroups) {
  // 8 rows of 16 columns, all integers 0, of which groups of 8 have the zero point (row) - 4 and
  // the scales 1 and 2.
  Files f;
  f.add("l.weight_packed", DType::i32, {8, 2}, std::vector<uint32_t>(16, 0x88888888u));
  f.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{8, 16});
  f.add("l.weight_zero_point", DType::i32, {1, 2}, std::vector<uint32_t>(2, 0xba987654u));
  std::vector<float> scales(16, 1);
  for (size_t i = 1; i < 16; i += 2) scales[i] = 2;
  f.add("l.weight_scale", DType::f32, {8, 2}, scales);
  FolderQuantization q = kFour;
  q.symmetric = false;
  std::vector<float> values = f.read(q, "l.weight");
  for (size_t row = 0; row < 8; ++row)
    for (size_t column = 0; column < 16; ++column)
      EXPECT_EQ(values[row * 16 + column],
                (4 - static_cast<float>(row)) * (column < 8 ? 1.0F : 2.0F));
  // The differences from zero points take more than 4 bits.
  const QuantizedWeights differences = find_quantized(f.source(), q);
  EXPECT_EQ(differences.weights.at("l.weight").integers->grid, (IntegerGrid{8, 8}));
  EXPECT_EQ(differences.weights.at("l.weight").integers->integers()[16], 3);
  EXPECT_EQ(description(q), "4 bits, weight-only, groups of 8, zero points");
  // Columns alternate between the groups.
  q.act_order = true;
  EXPECT_USER_ERROR(f.read(q, "l.weight"), "'l.weight_g_idx' is missing");
  std::vector<int32_t> groups(16);
  for (size_t i = 0; i < 16; ++i) groups[i] = static_cast<int32_t>(i % 2);
  f.add("l.weight_g_idx", DType::i32, {16}, groups);
  values = f.read(q, "l.weight");
  EXPECT_EQ(values[0], 4);
  EXPECT_EQ(values[1], 8);
  groups[3] = 2;
  f.add("l.weight_g_idx", DType::i32, {16}, groups);
  EXPECT_USER_ERROR(f.read(q, "l.weight"), "holds the group 2; expected 0 to 1");
  f.add("l.weight_zero_point", DType::i32, {2, 2}, std::vector<uint32_t>(4));
  EXPECT_USER_ERROR(f.read(q, "l.weight"), "must be i32 [1,2] by config.json; the file has i32");
  // Plain integers have plain zero points.
  Files plain = eight_bits();
  plain.add("l.weight_zero_point", DType::i8, {2, 1}, std::vector<int8_t>{1, -1});
  FolderQuantization eight = kEight;
  eight.symmetric = false;
  EXPECT_EQ(plain.read(eight, "l.weight"), (std::vector<float>{0, -1.5F, 63, -254, 2, 12}));
}

TEST(CompressedTensors, BadTensorsAreNamed) {
  using Change = std::function<void(Files&)>;
  const std::vector<float> nan{NAN, 1}, negative{1, -1}, one{1}, infinite{1, INFINITY};
  const std::vector<std::pair<Change, std::string>> eight = {
      {[](Files& f) { f.views.erase("l.weight_scale"); },
       "the tensor 'l.weight_scale' is missing; 'l.weight' needs it"},
      {[&](Files& f) {
         f.add("l.weight_scale", DType::f32, {2, 1}, nan);
       },
       "the scale nan"},
      {[&](Files& f) {
         f.add("l.weight_scale", DType::f32, {2, 1}, negative);
       },
       "the scale -1"},
      {[&](Files& f) {
         f.add("l.weight_scale", DType::f32, {2, 1}, infinite);
       },
       "the scale inf"},
      {[&](Files& f) {
         f.add("l.weight_scale", DType::f32, {1, 1}, one);
       },
       "'l.weight_scale' must be floats [2,1] by config.json; the file has f32 [1,1]"},
      {[](Files& f) {
         f.add("l.weight_scale", DType::f32, {0, 1}, std::vector<float>{});
       },
       "must be floats [2,1]"},
      {[](Files& f) { f.add("l.weight", DType::i8, {6}, std::vector<int8_t>(6)); },
       "'l.weight' must be a matrix"},
      {[&](Files& f) { f.add("m.weight_scale", DType::f32, {1}, one); },
       "'m.weight_scale' belongs to no quantised weight"},
      {[](Files& f) {
         f.add("l.weight_zero_point", DType::i8, {2, 1}, std::vector<int8_t>{0, 3});
       },
       "'l.weight_zero_point' holds zero points"},
      {[](Files& f) { f.views.erase("l.weight"), f.views.erase("l.weight_scale"); },
       "holds no quantised weight"},
  };
  for (const auto& [change, message] : eight) {
    Files f = eight_bits();
    change(f);
    EXPECT_USER_ERROR(dequantized(f.source(), kEight), message);
  }
  const std::vector<std::pair<Change, std::string>> four = {
      {[](Files& f) { f.views.erase("l.weight_shape"); }, "'l.weight_shape' is missing"},
      {[](Files& f) {
         f.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{1, 24});
       },
       "must be i32 [1,3] for 4 bits by l.weight_shape; the file has i32 [1,2]"},
      {[](Files& f) {
         f.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{-1, 16});
       },
       "has the sizes -1 and 16"},
      {[](Files& f) {
         f.add("l.weight_shape", DType::i64, {2}, std::vector<int64_t>{1, 15});
       },
       "has 15 inputs, which groups of 8 do not divide"},
      {[](Files& f) { f.add("l.weight_g_idx", DType::i32, {16}, std::vector<int32_t>(16)); },
       "reorders columns, although"},
  };
  for (const auto& [change, message] : four) {
    Files f = four_bits();
    change(f);
    EXPECT_USER_ERROR(dequantized(f.source(), kFour), message);
  }
}

models::ModelPtr bert_to_quantise() {
  models::BertConfig c;
  c.vocab_size = 96;
  c.max_position_embeddings = 32;
  c.hidden_size = 128;
  c.num_hidden_layers = 1;
  c.num_attention_heads = 2;
  c.intermediate_size = 256;
  return c.model();
}

std::vector<float> numbers_of(const ModelFolder& folder, const std::string& parameter) {
  std::vector<float> numbers(
      static_cast<size_t>(folder.weights->find(parameter)->shape.elements()));
  folder.read(parameter, numbers);
  return numbers;
}

void expect_round_trip(const models::Model& definition, const FolderQuantization& q,
                       size_t layer_count) {
  const TempFolder folder;
  const ModelFolder model = random_model_folder(folder / "model", definition);
  const std::vector<LinearLayer> layers = linear_layers(model);
  EXPECT_EQ(layers.size(), layer_count);
  const QuantizedModel made(model, q, layers);
  create_folder(folder / "quantised");
  made.write(folder / "quantised");
  const ModelFolder back = open_model(folder / "quantised", {.reads_tokenizer = false});
  ASSERT_TRUE(back.quantization);
  EXPECT_EQ(*back.quantization, made.quantization());
  EXPECT_EQ(back.quantized->size(), layer_count);
  EXPECT_EQ(back.own_quantization().bits, q.bits);
  EXPECT_EQ(back.own_quantization().group, q.group);
  EXPECT_EQ(back.own_quantization().of_rows, q.dynamic);
  // The integers of the folder are those that were made, and loading quantises to the same again.
  const ModelFolder unwritten = made.as_read_back();
  for (const QuantizedLayer& layer : made.layers()) {
    const std::vector<float> numbers = numbers_of(back, layer.layer.parameter);
    EXPECT_EQ(numbers, numbers_of(unwritten, layer.layer.parameter));
    EXPECT_EQ(quantize(numbers, layer.matrix.form).integers, layer.matrix.integers);
    const double error = relative_error(numbers_of(model, layer.layer.parameter), numbers);
    EXPECT_NEAR(error, layer.error, 1e-9);
    EXPECT_LT(error, q.bits == 8 ? 0.02 : 0.2) << layer.layer.name();
  }
  // Everything else is as it was, and the sizes are those of the report.
  int64_t bytes = 0;
  WeightFiles(folder / "quantised").each([&](const TensorView& t) {
    bytes += static_cast<int64_t>(t.bytes.size());
  });
  EXPECT_EQ(bytes, made.stored_bytes());
  for (const models::ParameterInfo& p : definition.parameters())
    if (!back.quantized->contains(p.name)) {
      EXPECT_EQ(numbers_of(back, p.name), numbers_of(model, p.name)) << p.name;
    }
  EXPECT_USER_ERROR(linear_layers(back), "is quantised already (");
}

TEST(QuantizedModel, ReadsBackWhatItWrites) {
  const FolderQuantization dynamic{.bits = 8, .dynamic = true};
  const FolderQuantization weights{.bits = 8}, four{.bits = 4, .group = 32};
  for (const FolderQuantization& q : {dynamic, weights, four}) {
    expect_round_trip(*llama_to_quantise(), q, 14);
    expect_round_trip(*bert_to_quantise(), q, 6);
  }
}

TEST(QuantizedModel, MatricesThatAreKeptMayBeNarrow) {
  const TempFolder folder;
  const ModelFolder model = random_model_folder(folder / "model", *llama_to_quantise());
  const QuantizedModel made(model, kEight, linear_layers(model),
                            {.kept = QuantizingOptions::Kept::matrices_in_bf16});
  create_folder(folder / "small");
  made.write(folder / "small");
  const WeightFiles files(folder / "small");
  EXPECT_EQ(files.find("model.embed_tokens.weight")->dtype, DType::bf16);
  EXPECT_EQ(files.find("model.norm.weight")->dtype, DType::f32);
  int64_t bytes = 0;
  files.each([&](const TensorView& t) { bytes += static_cast<int64_t>(t.bytes.size()); });
  EXPECT_EQ(bytes, made.stored_bytes());
  const ModelFolder back = open_model(folder / "small", {.reads_tokenizer = false});
  const std::vector<float> narrow = numbers_of(back, "lm_head.weight");
  const std::vector<float> wide = numbers_of(model, "lm_head.weight");
  EXPECT_GT(relative_error(wide, narrow), 0);
  EXPECT_LT(relative_error(wide, narrow), 0.004);
}

TEST(QuantizedModel, ConfigNamesWhatIsKept) {
  const TempFolder folder;
  const ModelFolder llama = random_model_folder(folder / "llama", *llama_to_quantise());
  const std::vector<LinearLayer> layers = linear_layers(llama);
  const auto chosen = chosen_layers(layers, {"down_proj", "h.0"}, 0, "m");
  EXPECT_EQ(chosen.size(), 6u);
  const QuantizedModel made(llama, kEight, chosen);
  const std::vector<std::string>& ignore = made.quantization().ignore;
  EXPECT_EQ(ignore.size(), 9u);  // 7 layers of the first block, one of the second, the head
  EXPECT_EQ(std::ranges::count(ignore, "lm_head"), 1);
  const ModelFolder bert = random_model_folder(folder / "bert", *bert_to_quantise());
  const QuantizedModel masked(bert, kEight, chosen_layers(linear_layers(bert), {"query"}, 0, "m"));
  // With and without the prefix of the class of a task.
  EXPECT_EQ(std::ranges::count(masked.quantization().ignore,
                               R"(re:(bert\.)?encoder\.layer\.0\.attention\.self\.query$)"),
            1);
}

TEST(QuantizedModel, WhatCannotBeDoneIsRefused) {
  const TempFolder folder;
  const ModelFolder llama = random_model_folder(folder / "llama", *llama_to_quantise());
  const std::vector<LinearLayer> layers = linear_layers(llama);
  EXPECT_USER_ERROR(chosen_layers(layers, {"mlp.down_porj"}, 0, "m"), "has no such layer");
  EXPECT_USER_ERROR(chosen_layers(layers, {"model.layers.0.mlp.down_porj"}, 0, "m"),
                    "did you mean model.layers.0.mlp.down_proj?");
  EXPECT_USER_ERROR(chosen_layers(layers, {"model"}, 0, "m"), "all layers of m are kept");
  EXPECT_USER_ERROR(chosen_layers(layers, {}, 64, "m"),
                    "has 160 inputs, which groups of 64 do not divide; expected --group-size 32");
  EXPECT_EQ(chosen_layers(layers, {"down_proj"}, 64, "m").size(), 12u);
  EXPECT_USER_ERROR(check_method({.bits = 4, .group = 32, .dynamic = true}), "--bits 8");
  EXPECT_USER_ERROR(check_method({.bits = 4, .group = 48}), "expected 32, 64 or 128");
  EXPECT_USER_ERROR(check_method({.bits = 8, .group = 32}), "a scale for each output");

  models::Gpt2Config gpt2;
  gpt2.vocab_size = 96;
  gpt2.n_positions = 32;
  gpt2.n_embd = 128;
  gpt2.n_layer = 1;
  gpt2.n_head = 2;
  EXPECT_USER_ERROR(linear_layers(random_model_folder(folder / "gpt2", *gpt2.model())),
                    "GPT-2 has its weights as [inputs, outputs] (Conv1D)");
  models::LlamaConfig small;
  small.vocab_size = 32;
  small.max_position_embeddings = 16;
  small.hidden_size = 32;
  small.num_hidden_layers = 1;
  small.num_attention_heads = small.num_key_value_heads = 2;
  small.head_dim = 16;
  small.intermediate_size = 48;
  EXPECT_USER_ERROR(linear_layers(random_model_folder(folder / "small", *small.model())),
                    "has 16,384 elements");
}

TEST(QuantizedModel, DamagedWeightsAreNamed) {
  const TempFolder folder;
  const models::ModelPtr definition = llama_to_quantise();
  const ModelFolder llama = random_model_folder(folder / "llama", *definition);
  const auto list = std::make_shared<WeightList>(
      "w", llama.weights,
      [](std::string_view, std::span<float> to) { std::ranges::fill(to, NAN); });
  for (const models::ParameterInfo& p : definition->parameters())
    list->add({p.name, DType::f32, p.shape, {}});
  ModelFolder damaged;
  damaged.folder = llama.folder;
  damaged.definition = definition;
  damaged.weights = list;
  EXPECT_USER_ERROR(QuantizedModel(damaged, kEight, linear_layers(llama)),
                    "the tensor model.layers.0.self_attn.q_proj.weight contains NaN");
}

}  // namespace
}  // namespace brrr::io
