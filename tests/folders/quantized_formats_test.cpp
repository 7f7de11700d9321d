// Folders that other programs quantised: GPTQ, AWQ, bitsandbytes and 8-bit floats. Values bit for
// bit and logits of tests/golden/make_quantized_folder_goldens.py, what products read, and what is
// refused.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/blocks/block_types.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/storage.h"
#include "folders/model_folder.h"
#include "folders/quantized/integer_matrix.h"
#include "folders/quantized/quantized_weights.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

fs::path quantized_goldens() {
  return fs::path(BRRR_SOURCE_DIR) / "tests/golden/quantized_folders";
}

std::vector<std::string> quantized_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(quantized_goldens()))
    if (entry.path().stem() != "logits") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

class QuantizedGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const fs::path path = quantized_goldens() / (GetParam() + ".safetensors");
    const SafetensorsFile file(path);
    metadata_ = file.metadata();
    write_file_atomically(folder_ / "config.json", metadata_.at("config"));
    fs::copy_file(path, folder_ / "model.safetensors");
  }
  ModelFolder open() const { return open_model(folder_.path(), {.reads_tokenizer = false}); }
  Json json(const char* key) const { return parse_json(metadata_.at(key), key); }

  test::TempFolder folder_;
  Metadata metadata_;
};

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedGolden, testing::ValuesIn(quantized_names()),
                         [](const auto& row) { return row.param; });

TEST(QuantizedGoldens, AreThere) { EXPECT_GE(quantized_names().size(), 12u); }

TEST_P(QuantizedGolden, ValuesHaveTheSameBits) {
  const ModelFolder model = open();
  const Json sums = json("sums"), first = json("first");
  EXPECT_EQ(sums.size(), 7u);
  EXPECT_EQ(model.quantized->size(), 7u);
  for (const auto& [name, sum] : sums.items()) {
    std::vector<float> values(static_cast<size_t>(model.weights->find(name)->shape.elements()));
    model.read(name, values);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(values[i], first[name][i].get<float>()) << name;
    Sha256 hash;
    hash.update(values.data(), values.size() * sizeof(float));
    EXPECT_EQ(hash.finish_hex(), sum.get<std::string>()) << name;
  }
}

// NF4 and FP4 of rows that are whole blocks: training of adapters holds these blocks.
TEST_P(QuantizedGolden, BlocksHaveTheBitsOfTheValues) {
  const ModelFolder model = open();
  const Json sums = json("sums");
  int64_t found = 0;
  for (const auto& [name, sum] : sums.items()) {
    const TensorView* const blocks = model.weights->find(blocks_name(name));
    if (blocks == nullptr) continue;
    ++found;
    std::vector<std::byte> bytes(
        static_cast<size_t>(stored_bytes(blocks->storage, blocks->dtype, blocks->shape)));
    model.weights->read(*blocks, bytes);
    const BlockType& type = block_type_of(blocks->storage);
    std::vector<float> values(static_cast<size_t>(blocks->shape.elements()));
    type.dequantise(bytes.data(), std::ssize(values) / type.elements, values.data());
    Sha256 hash;
    hash.update(values.data(), values.size() * sizeof(float));
    EXPECT_EQ(hash.finish_hex(), sum.get<std::string>()) << name;
  }
  const std::string name = GetParam();
  EXPECT_EQ(found > 0, name == "bnb_nf4_double" || name == "bnb_fp4");
}

TEST_P(QuantizedGolden, LogitsAreThoseOfTransformers) {
  const SafetensorsFile logits(quantized_goldens() / "logits.safetensors");
  const TensorView& ids = logits.get("tokens");
  std::vector<int32_t> tokens(static_cast<size_t>(ids.shape.elements()));
  std::memcpy(tokens.data(), ids.bytes.data(), ids.bytes.size());
  const ModelFolder model = open();
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(run_pipeline(model.definition->forward(1, std::ssize(tokens)),
                                           engine.backend().target(), {}));
  engine.allocate();
  engine.load(*model.weights);
  engine.set_input<int32_t>(p, "tokens", tokens);
  engine.run(p);
  std::vector<std::byte> room;
  const auto bytes = engine.read_output(p, "logits", room);
  std::vector<float> got(bytes.size() / sizeof(float)), expected(got.size());
  std::memcpy(got.data(), bytes.data(), bytes.size());
  copy_as_f32(logits.get(GetParam()), expected);
  EXPECT_LT(relative_error(expected, got), 1e-5);
}

// AutoGPTQ writes biases of zeros for layers that have none.
TEST(QuantizedFormats, BiasesOfZerosAreNone) {
  const SafetensorsFile file(quantized_goldens() / "gptq_4.safetensors");
  const test::TempFolder folder;
  write_file_atomically(folder / "config.json", file.metadata().at("config"));
  std::vector<float> bias(32);
  const auto open_with_bias = [&] {
    std::vector<TensorView> tensors = file.tensors();
    tensors.push_back({"model.layers.0.self_attn.q_proj.bias", DType::f32, Shape({32}),
                       std::as_bytes(std::span(bias))});
    write_safetensors(folder / "model.safetensors", tensors);
    return open_model(folder.path(), {.reads_tokenizer = false});
  };
  EXPECT_EQ(open_with_bias().quantized->size(), 7u);
  bias[3] = 1;
  EXPECT_USER_ERROR(open_with_bias(), "config.json does not know the tensor 'model.layers.0");
}

TEST_P(QuantizedGolden, SaysWhatItHolds) {
  const std::map<std::string, std::string> texts = {
      {"gptq_4", "GPTQ, 4 bits, groups of 16; zero points of version 1"},
      {"gptq_4_act_order",
       "GPTQ, 4 bits, groups of 16, zero points, act-order; zero points of version 1"},
      {"gptq_4_wrong_label",
       "GPTQ, 4 bits, a scale for each output; zero points of version 2 by their values, although "
       "config.json says gptq"},
      {"gptq_8_v2", "GPTQ, 8 bits, groups of 32, zero points; zero points of version 2"},
      {"awq", "AWQ, 4 bits, groups of 16, zero points; "},
      {"bnb_int8", "bitsandbytes, 8 bits; "},
      {"bnb_nf4_double", "bitsandbytes, 4 bits; nf4 in blocks of 64, double quantization"},
      {"bnb_fp4", "bitsandbytes, 4 bits; fp4 in blocks of 64"},
      {"pack_quantized", "4 bits, weight-only, groups of 16, zero points; "},
      {"float_quantized", "8-bit floats; "},
      {"fp8_blocks", "8-bit floats, blocks of 20 x 24; "},
      {"fp8_tensor", "8-bit floats; "},
  };
  const ModelFolder model = open();
  EXPECT_EQ(description(*model.quantization) + "; " + model.layout, texts.at(GetParam()));
}

// Bytes of the header and of quant_state's JSON are changed: a UserError, or weights that can be
// read without leaving the file.
TEST_P(QuantizedGolden, DamagedFilesAreRefusedOrRead) {
  const std::string whole = read_file(folder_ / "model.safetensors");
  const FolderQuantization q = *parse_quantization(metadata_.at("config"), "config.json");
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), sizeof(header));
  RngStream random(RngKey{50, 1}, 2);
  const auto below = [&](size_t n) {
    return std::min(n - 1, static_cast<size_t>(random.next_uniform() * static_cast<float>(n)));
  };
  int read = 0, refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::string bytes = whole;
    const size_t end = round % 2 == 0 ? header + 8 : bytes.size();
    // Digits become other digits, so that the JSON often still parses: shapes lie.
    for (int change = 0; change < 6; ++change)
      for (size_t at = below(end), i = 0; i < 200 && at + i < end; ++i)
        if (char& c = bytes[at + i]; c >= '0' && c <= '9') {
          c = static_cast<char>('0' + below(10));
          break;
        }
    try {
      const auto file =
          std::make_shared<const SafetensorsFile>(std::as_bytes(std::span(bytes)), "damaged");
      for (const auto& [name, w] : find_quantized(file, q).weights) {
        ASSERT_LE(w.rows * w.columns, 8 * std::ssize(whole)) << name;
        std::vector<float> values(static_cast<size_t>(w.rows * w.columns));
        w.read(values);
      }
      ++read;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

/// Tensors in memory.
struct StoredTensors {
  StoredTensors& add(const std::string& name, DType dtype, const Shape& shape, const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    rooms[name] = {bytes.begin(), bytes.end()};
    views[name] = {name, dtype, shape, rooms[name]};
    return *this;
  }
  StoredTensors& without(const std::string& name) {
    views.erase(name);
    return *this;
  }
  std::shared_ptr<const WeightSource> source() const {
    const auto list = std::make_shared<WeightList>("hand.safetensors");
    for (const auto& [name, view] : views) list->add(view);
    return list;
  }
  std::vector<float> read(const FolderQuantization& q) const {
    const QuantizedWeights found = find_quantized(source(), q);
    const QuantizedWeight& w = found.weights.at("l.weight");
    std::vector<float> values(static_cast<size_t>(w.rows * w.columns));
    w.read(values);
    return values;
  }
  std::map<std::string, std::vector<std::byte>> rooms;
  std::map<std::string, TensorView> views;
};

/// A quantization_config.
FolderQuantization config(const char* text) {
  return *parse_quantization(std::string(R"({"quantization_config":)") + text + "}", "c.json");
}

const char* const kGptq = R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":true})";
const char* const kGptqOrdered =
    R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":true,"desc_act":true})";

/// 16 inputs in groups of 8, 8 outputs. Output n of input k has q = (n + k) % 15 + 1.
StoredTensors gptq_tensors() {
  std::vector<uint32_t> words(16);
  for (uint32_t k = 0; k < 16; ++k)
    for (uint32_t n = 0; n < 8; ++n) words[k / 8 * 8 + n] |= ((n + k) % 15 + 1) << (4 * (k % 8));
  std::vector<uint16_t> scales(16, 0x3c00);  // 1
  scales[8] = 0x4000;                        // 2: the second group of output 0
  std::vector<int32_t> groups(16);
  for (size_t k = 0; k < 16; ++k) groups[k] = k < 8 ? 0 : 1;
  StoredTensors t;
  t.add("l.qweight", DType::i32, {2, 8}, words);
  t.add("l.qzeros", DType::i32, {2, 1}, std::vector<uint32_t>{0x77777777u, 0x77777777u});
  t.add("l.scales", DType::f16, {2, 8}, scales);
  t.add("l.g_idx", DType::i32, {16}, groups);
  return t;
}

TEST(Gptq, NumbersByHand) {
  const std::vector<float> values = gptq_tensors().read(config(kGptq));
  for (size_t k = 0; k < 16; ++k)
    for (size_t n = 0; n < 8; ++n)
      EXPECT_EQ(values[n * 16 + k],
                (static_cast<float>((n + k) % 15) - 7.0F) * (n == 0 && k >= 8 ? 2.0F : 1.0F));
  // Without g_idx the groups are neighbours.
  EXPECT_EQ(gptq_tensors().without("l.g_idx").read(config(kGptq)), values);
  // Stored eights are the second version whatever config.json says.
  StoredTensors eights = gptq_tensors();
  eights.add("l.qzeros", DType::i32, {2, 1}, std::vector<uint32_t>{0x88888888u, 0x88888888u});
  EXPECT_EQ(eights.read(config(kGptq)), values);
  // A zero point of 0 in version 1 has borrowed from the next one.
  StoredTensors zeros = gptq_tensors();
  zeros.add("l.qzeros", DType::i32, {2, 1}, std::vector<uint32_t>{0xeeeeeeefu, 0xeeeeeeefu});
  const FolderQuantization asymmetric =
      config(R"({"quant_method":"gptq","bits":4,"group_size":8,"sym":false})");
  EXPECT_EQ(zeros.read(asymmetric)[0], 1.0F);  // q 1, zero point 0
  EXPECT_EQ(gptq_tensors().read(asymmetric), values);
}

TEST(Gptq, ProductsReadTheIntegersThatFit) {
  const auto products = [](const StoredTensors& t, const char* text) {
    return product_integers(find_quantized(t.source(), config(text)));
  };
  StoredTensors t = gptq_tensors();
  // Groups whose largest magnitude is 7: rows of 8 values from -7 to 7, each with a 7 or -7.
  std::vector<uint32_t> words(16, 0x8888888fu);
  t.add("l.qweight", DType::i32, {2, 8}, words);
  ProductIntegers own = products(t, kGptq);
  EXPECT_EQ(own.grid, (IntegerGrid{4, 8}));
  EXPECT_TRUE(own.are_same);
  const std::vector<float> values = t.read(config(kGptq));
  const IntegerMatrix again = quantize(values, {.rows = 8, .columns = 16, .bits = 4, .group = 8});
  EXPECT_EQ(again.integers,
            find_quantized(t.source(), config(kGptq)).weights.at("l.weight").integers->integers());
  // A group with -8, and one whose largest magnitude is 5, are read as they are.
  for (const uint32_t word : {0x8888880fu, 0x8888888du}) {
    words[3] = word;
    t.add("l.qweight", DType::i32, {2, 8}, words);
    own = products(t, kGptq);
    EXPECT_EQ(own.grid, (IntegerGrid{4, 8}));
    EXPECT_TRUE(own.are_same);
  }
  // Permuted columns: no row is a multiple of 32, so bf16. Differences from zero points: 8 bits.
  std::vector<int32_t> groups(16);
  for (size_t k = 0; k < 16; ++k) groups[k] = static_cast<int32_t>(k % 2);
  t.add("l.g_idx", DType::i32, {16}, groups);
  EXPECT_EQ(products(t, kGptqOrdered).grid, IntegerGrid{});
  StoredTensors zeros = gptq_tensors();
  zeros.add("l.qzeros", DType::i32, {2, 1}, std::vector<uint32_t>{0x77777773u, 0x77777777u});
  EXPECT_EQ(products(zeros, kGptq).grid, (IntegerGrid{8, 8}));
  EXPECT_EQ(find_quantized(zeros.source(), config(kGptq)).layout,
            "zero points of version 1, not symmetric although config.json says so");
}

using Damage = std::function<void(StoredTensors&)>;

void expect_refused(const FolderQuantization& q, StoredTensors tensors, const Damage& damage,
                    const std::string& message) {
  damage(tensors);
  EXPECT_USER_ERROR(find_quantized(tensors.source(), q), message);
}

TEST(Gptq, BadTensorsAreNamed) {
  const std::vector<std::pair<Damage, std::string>> cases = {
      {[](StoredTensors& t) { t.without("l.g_idx"); },
       "'l.g_idx' is missing, and config.json says desc_act"},
      {[](StoredTensors& t) { t.add("l.g_idx", DType::i32, {16}, std::vector<int32_t>(16, 2)); },
       "'l.g_idx' holds the group 2; expected 0 to 1"},
      {[](StoredTensors& t) { t.add("l.g_idx", DType::i32, {16}, std::vector<int32_t>(16, -1)); },
       "'l.g_idx' holds the group -1"},
      {[](StoredTensors& t) { t.add("l.g_idx", DType::i32, {8}, std::vector<int32_t>(8)); },
       "'l.g_idx' must be i32 [16] by 'l.qweight'; the file has i32 [8]"},
      {[](StoredTensors& t) { t.without("l.scales"); }, "'l.scales' is missing"},
      {[](StoredTensors& t) { t.without("l.qzeros"); }, "'l.qzeros' is missing"},
      {[](StoredTensors& t) {
         t.add("l.scales", DType::f16, {1, 8}, std::vector<uint16_t>(8));
       },
       "'l.scales' must be floats [2,8] by 4 bits and group_size 8 of config.json and "
       "'l.qweight'; the file has f16 [1,8]"},
      {[](StoredTensors& t) {
         t.add("l.scales", DType::f16, {2, 8}, std::vector<uint16_t>(16, 0x7e00));
       },
       "'l.scales' holds the value nan"},
      {[](StoredTensors& t) {
         t.add("l.qzeros", DType::i32, {2, 2}, std::vector<int32_t>(4));
       },
       "'l.qzeros' must be i32 [2,1]"},
      {[](StoredTensors& t) {
         t.add("l.qweight", DType::i32, {2, 7}, std::vector<int32_t>(14));
       },
       "'l.qweight' has the shape [2,7], which is no weight of 4 bits"},
      {[](StoredTensors& t) {
         t.add("l.qweight", DType::f32, {2, 8}, std::vector<float>(16));
       },
       "'l.qweight' must be a matrix of i32"},
      {[](StoredTensors& t) {
         t.add("l.qweight", DType::i32, {0, 8}, std::vector<int32_t>());
       },
       "which is no weight of 4 bits"},
      {[](StoredTensors& t) { t.without("l.qweight"); }, "holds no quantised weight"},
  };
  for (const auto& [damage, message] : cases)
    expect_refused(config(kGptqOrdered), gptq_tensors(), damage, message);
  const auto none = [](StoredTensors&) {};
  expect_refused(config(R"({"quant_method":"gptq","bits":4,"group_size":24})"), gptq_tensors(),
                 none, "'l.qweight' has 16 inputs, which groups of 24 do not divide");
  // Zero scales are zero weights.
  StoredTensors zeros = gptq_tensors();
  zeros.add("l.scales", DType::f16, {2, 8}, std::vector<uint16_t>(16));
  EXPECT_EQ(zeros.read(config(kGptq)), std::vector<float>(128));
}

TEST(QuantizedFormats, ConfigsThatAreNotReadAreNamed) {
  const std::vector<std::pair<const char*, std::string>> cases = {
      {R"({"quant_method":"gptq","bits":3,"group_size":128})",
       "c.json: quantization_config.bits is not supported: expected 4 or 8; found the number 3"},
      {R"({"quant_method":"gptq","bits":2,"group_size":128})",
       "expected 4 or 8; found the number 2"},
      {R"({"quant_method":"gptq","bits":4})", "group_size is not supported: expected a multiple"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})", "group_size"},
      {R"({"quant_method":"gptq","bits":4,"group_size":1e30})", "group_size"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})",
       "checkpoint_format is not supported: expected gptq or gptq_v2; found the string 'marlin'"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":1})", "true or false"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"+:x":{"bits":8}}})",
       "dynamic.+:x is not supported"},
      {R"({"quant_method":"awq","bits":3,"group_size":128})", "expected 4; found the number 3"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})",
       "version is not supported: expected gemm or GEMM; found the string 'gemv'"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"marlin"})", "marlin"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"modules_to_not_convert":3})",
       "expected a list of names"},
      {R"({"quant_method":"bitsandbytes"})", "expected true for it or for load_in_4bit"},
      {R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"int4"})",
       "expected nf4 or fp4; found the string 'int4'"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt is not supported: expected e4m3"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "two sizes, such as [128, 128]"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})", "two sizes"},
      {R"({"quant_method":"quip"})",
       "quant_method is not supported: expected awq, bitsandbytes, compressed-tensors, "
       "fbgemm_fp8, fp8 or gptq; found the string 'quip'"},
      {R"([])", "expected an object"},
  };
  for (const auto& refused : cases) EXPECT_USER_ERROR(config(refused.first), refused.second);
  EXPECT_EQ(config(R"({"load_in_8bit":true})").format, QuantizedFormat::bitsandbytes);
  const FolderQuantization kept =
      config(R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"-:x":{}}})");
  EXPECT_EQ(kept.ignore, std::vector<std::string>{"x"});
}

TEST(QuantizedFormats, OlderGptqFoldersHaveAFileOfTheirOwn) {
  const test::TempFolder folder;
  write_file_atomically(folder / "config.json", "{}");
  EXPECT_EQ(read_quantization(folder.path()), std::nullopt);
  write_file_atomically(folder / "quantize_config.json",
                        R"({"bits":4,"group_size":128,"desc_act":true,"sym":true})");
  const FolderQuantization q = *read_quantization(folder.path());
  EXPECT_EQ(description(q), "GPTQ, 4 bits, groups of 128, act-order");
}

TEST(Awq, NumbersByHandAndBadTensors) {
  const FolderQuantization q = config(R"({"quant_method":"awq","bits":4,"group_size":8})");
  StoredTensors t;
  // Nibble i holds output (0, 2, 4, 6, 1, 3, 5, 7)[i]: output n has q = n and the zero point 1.
  t.add("l.qweight", DType::i32, {8, 1}, std::vector<uint32_t>(8, 0x75316420u));
  t.add("l.qzeros", DType::i32, {1, 1}, std::vector<uint32_t>{0x11111111u});
  t.add("l.scales", DType::f16, {1, 8}, std::vector<uint16_t>(8, 0x4000));
  const std::vector<float> values = t.read(q);
  for (size_t n = 0; n < 8; ++n) EXPECT_EQ(values[n * 8 + 3], 2.0F * (static_cast<float>(n) - 1));
  expect_refused(
      q, t, [](StoredTensors& d) { d.without("l.qzeros"); }, "'l.qzeros' is missing");
  expect_refused(
      q, t, [](StoredTensors& d) { d.add("l.scales", DType::f16, {8}, std::vector<uint16_t>(8)); },
      "'l.scales' must be floats [1,8] by group_size 8 of config.json");
  expect_refused(
      q, t,
      [](StoredTensors& d) {
        d.add("l.qweight", DType::i32, {12, 1}, std::vector<int32_t>(12));
      },
      "has 12 inputs, which groups of 8 do not divide");
  expect_refused(
      q, t, [](StoredTensors& d) { d.without("l.qweight"); }, "holds no quantised");
}

/// nf4 [2, 6] in blocks of 4, with a map of 0 to 15 and absmax 1, 2, 3.
StoredTensors nf4_tensors(
    const std::string& state = R"({"quant_type":"nf4","blocksize":4,"shape":[2,6]})") {
  StoredTensors t;
  std::vector<float> map(16);
  for (size_t i = 0; i < 16; ++i) map[i] = static_cast<float>(i);
  t.add("l.weight", DType::u8, {6, 1}, std::vector<uint8_t>{0x01, 0x23, 0x45, 0x67, 0x89, 0xab});
  t.add("l.weight.absmax", DType::f32, {3}, std::vector<float>{1, 2, 3});
  t.add("l.weight.quant_map", DType::f32, {16}, map);
  t.add("l.weight.quant_state.bitsandbytes__nf4", DType::u8, {std::ssize(state)},
        std::vector<char>(state.begin(), state.end()));
  return t;
}

TEST(Bitsandbytes, NumbersByHand) {
  const FolderQuantization q =
      config(R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4"})");
  EXPECT_EQ(nf4_tensors().read(q), (std::vector<float>{0, 1, 2, 3, 8, 10, 12, 14, 24, 27, 30, 33}));
  StoredTensors nested =
      nf4_tensors(R"({"blocksize":4,"shape":[2,6],"nested_blocksize":2,"nested_offset":0.5})");
  std::vector<float> map(256);
  for (size_t i = 0; i < 256; ++i) map[i] = static_cast<float>(i);
  nested.add("l.weight.absmax", DType::u8, {3}, std::vector<uint8_t>{0, 2, 1});
  nested.add("l.weight.nested_absmax", DType::f32, {2}, std::vector<float>{1, 4});
  nested.add("l.weight.nested_quant_map", DType::f32, {256}, map);
  EXPECT_EQ(nested.read(q)[3], 1.5F);        // 3 * (0 * 1 + 0.5)
  EXPECT_EQ(nested.read(q)[7], 7 * 2.5F);    // 7 * (2 * 1 + 0.5)
  EXPECT_EQ(nested.read(q)[11], 11 * 4.5F);  // 11 * (1 * 4 + 0.5)
  expect_refused(
      q, nested, [](StoredTensors& d) { d.without("l.weight.nested_absmax"); },
      "'l.weight.nested_absmax' is missing");
  expect_refused(
      q, nested,
      [](StoredTensors& d) {
        d.add("l.weight.nested_absmax", DType::f32, {1}, std::vector<float>{1});
      },
      "'l.weight.nested_absmax' must be floats [2]");
}

TEST(Bitsandbytes, BadTensorsAreNamed) {
  const FolderQuantization q =
      config(R"({"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4"})");
  const std::string state = "l.weight.quant_state.bitsandbytes__nf4";
  const std::vector<std::pair<Damage, std::string>> cases = {
      {[&](StoredTensors& t) { t.without(state); },
       "'l.weight.absmax' has no l.weight.quant_state.bitsandbytes__nf4 or fp4 beside it"},
      {[&](StoredTensors& t) { t.without(state).without("l.weight.absmax"); },
       "'l.weight' holds values of 4 bits, but there is no quant_state beside it"},
      {[](StoredTensors& t) { t.without("l.weight.quant_map"); }, "quant_map' is missing"},
      {[](StoredTensors& t) { t.without("l.weight"); }, "'l.weight' is missing"},
      {[](StoredTensors& t) {
         t.add("l.weight.absmax", DType::f32, {3}, std::vector<float>{1, NAN, 2});
       },
       "'l.weight.absmax' holds the value nan"},
      {[](StoredTensors& t) {
         t.add("l.weight.absmax", DType::f32, {2}, std::vector<float>{1, 2});
       },
       "'l.weight.absmax' must be f32 [3] by the blocks of 4 values of its quant_state"},
      {[](StoredTensors& t) {
         t.add("l.weight", DType::u8, {5, 1}, std::vector<uint8_t>(5));
       },
       "'l.weight' must have 6 bytes for the shape [2,6] of its quant_state; the file has 5"},
  };
  for (const auto& [damage, message] : cases) expect_refused(q, nf4_tensors(), damage, message);
  const auto none = [](StoredTensors&) {};
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "l.weight.quant_state"},
           {"[]", "expected an object"},
           {R"({"blocksize":4})", "quant_state.shape: expected the two sizes of a matrix"},
           {R"({"blocksize":4,"shape":[4294967296,4294967296]})", "quant_state.shape"},
           {R"({"blocksize":4,"shape":[2147483647,2147483647]})", "must have 2305843007066210305"},
           {R"({"blocksize":0,"shape":[2,6]})", "quant_state.blocksize: expected an even size"},
           {R"({"blocksize":3,"shape":[2,6]})", "expected an even size; found the number 3"},
           {R"({"blocksize":4,"shape":[2,6],"nested_blocksize":256})", "nested_offset"}})
    expect_refused(q, nf4_tensors(text), none, message);
  // 8 bits.
  StoredTensors eight;
  eight.add("l.weight", DType::i8, {2, 2}, std::vector<int8_t>{127, -127, 1, 0});
  eight.add("l.SCB", DType::f32, {2}, std::vector<float>{2, 127});
  const FolderQuantization rows = config(R"({"quant_method":"bitsandbytes","load_in_8bit":true})");
  EXPECT_EQ(eight.read(rows), (std::vector<float>{2, -2, 1, 0}));
  expect_refused(
      rows, eight, [](StoredTensors& t) { t.without("l.SCB"); },
      "'l.weight' holds integers, but there is no SCB beside it");
  expect_refused(
      rows, eight, [](StoredTensors& t) { t.add("l.SCB", DType::f32, {1}, std::vector<float>{1}); },
      "'l.SCB' must be floats [2] by 'l.weight'");
  expect_refused(
      rows, eight,
      [](StoredTensors& t) { t.add("l.weight_format", DType::u8, {1}, std::vector<uint8_t>{2}); },
      "'l.weight_format' says that the integers do not lie in rows");
  expect_refused(rows, StoredTensors(), none, "holds no quantised weight");
}

TEST(Fp8Folders, NumbersByHandAndBadTensors) {
  const FolderQuantization blocks =
      config(R"({"quant_method":"fp8","weight_block_size":[2,2],"activation_scheme":"dynamic"})");
  StoredTensors t;  // 0x38 is 1, 0x40 is 2
  t.add("l.weight", DType::f8e4m3, {3, 3},
        std::vector<uint8_t>{0x38, 0x40, 0x38, 0x38, 0x38, 0x38, 0x38, 0xb8, 0x40});
  t.add("l.weight_scale_inv", DType::f32, {2, 2}, std::vector<float>{1, 2, 3, 4});
  EXPECT_EQ(t.read(blocks), (std::vector<float>{1, 2, 2, 1, 1, 2, 3, -3, 8}));
  const FolderQuantization rows = config(R"({"quant_method":"fbgemm_fp8"})");
  StoredTensors by_row = t;
  by_row.without("l.weight_scale_inv");
  by_row.add("l.weight_scale", DType::bf16, {3, 1}, std::vector<uint16_t>{0x3f80, 0x4000, 0x3f80});
  EXPECT_EQ(by_row.read(rows), (std::vector<float>{1, 2, 1, 2, 2, 2, 1, -1, 2}));
  by_row.add("l.weight_scale", DType::bf16, {1}, std::vector<uint16_t>{0x4000});
  EXPECT_EQ(by_row.read(rows), (std::vector<float>{2, 4, 2, 2, 2, 2, 2, -2, 4}));
  expect_refused(
      blocks, t, [](StoredTensors& d) { d.without("l.weight_scale_inv"); },
      "'l.weight_scale' is missing; 'l.weight' needs it");
  expect_refused(
      blocks, t,
      [](StoredTensors& d) {
        d.add("l.weight_scale_inv", DType::f32, {1, 2}, std::vector<float>{1, 1});
      },
      "'l.weight_scale_inv' must be floats [2,2] by config.json and 'l.weight'");
  expect_refused(
      blocks, t,
      [](StoredTensors& d) {
        d.add("l.weight_scale_inv", DType::f32, {2, 2}, std::vector<float>{1, 1, NAN, 1});
      },
      "holds the value nan");
  expect_refused(
      blocks, t, [](StoredTensors& d) { d.without("l.weight"); },
      "holds no weight in 8-bit floats");
}

}  // namespace
}  // namespace brrr::io
