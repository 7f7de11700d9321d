// brrr export: ONNX and GGUF files of a model and of a file, what they hold, and what is refused.

#include "e2e/run.h"
#include "formats/npy.h"
#include "support/onnx_fields.h"
#include "text/tokenizer.h"

namespace brrr::test {
namespace {

class Export : public EndToEnd {
 protected:
  std::string at(const std::string& name) const { return path(name).string(); }
  void SetUp() override {
    EndToEnd::SetUp();
    ASSERT_EQ(run(small_run("tiny", {"--max-steps", "1", "--save-steps", "1"})), 0) << err_;
  }
  /// "name dtype[shape]" of the inputs or outputs of a file.
  std::vector<std::string> ports(const std::string& file, const std::string& which) {
    EXPECT_EQ(run({"run", file, "--json"}), 0) << err_;
    std::vector<std::string> list;
    const nlohmann::json result = json();
    for (const auto& port : result[which]) {
      std::string shape;
      for (const auto& size : port["shape"])
        shape +=
            (shape.empty() ? "" : ",") + (size.is_string() ? size.get<std::string>() : size.dump());
      list.push_back(fmt::format("{} {}[{}]", port["name"].get<std::string>(),
                                 port["dtype"].get<std::string>(), shape));
    }
    return list;
  }
  void fails(const std::vector<std::string>& args, const std::string& with) {
    EXPECT_NE(run(args), 0) << with;
    EXPECT_NE(err_.find(with), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }
};

using Ports = std::vector<std::string>;

TEST_F(Export, AModelHasTheNamesThatOthersExpect) {
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("m.onnx")}), 0) << err_;
  EXPECT_NE(err_.find("verified"), std::string::npos) << err_;
  EXPECT_EQ(ports(at("m.onnx"), "inputs"), (Ports{"input_ids i64[batch_size,sequence_length]",
                                                  "attention_mask i64[batch_size,sequence_length]",
                                                  "position_ids i64[batch_size,sequence_length]"}));
  const Ports out = ports(at("m.onnx"), "outputs");
  ASSERT_EQ(out.size(), 1u);
  EXPECT_TRUE(out[0].starts_with("logits f32[batch_size,sequence_length,")) << out[0];
}

TEST_F(Export, AModelNeedsNoTokenizer) {
  for (const std::string_view name : io::tokenizer_file_names())
    for (const auto& entry : fs::recursive_directory_iterator(path("tiny")))
      if (entry.path().filename() == name || entry.path().filename() == "checksums.json" ||
          entry.path().filename() == "manifest.json")
        fs::remove(entry.path());
  EXPECT_NE(run({"generate", at("tiny")}), 0);
  EXPECT_NE(err_.find("no tokenizer"), std::string::npos) << err_;
  EXPECT_EQ(run({"export", at("tiny"), "--output", at("m.onnx")}), 0) << err_;
  EXPECT_EQ(run({"export", at("tiny"), "--output", at("m.brrr")}), 0) << err_;
}

TEST_F(Export, ACacheGoesInAndOut) {
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("m.onnx"), "--kv-cache", "--opset", "21"}), 0)
      << err_;
  const Ports in = ports(at("m.onnx"), "inputs"), out = ports(at("m.onnx"), "outputs");
  ASSERT_GE(in.size(), 5u);
  EXPECT_TRUE(in[3].starts_with("past_key_values.0.key f32[batch_size,")) << in[3];
  EXPECT_NE(in[3].find(",past_sequence_length,"), std::string::npos) << in[3];
  EXPECT_NE(in[1].find("sequence_length + past_sequence_length"), std::string::npos) << in[1];
  EXPECT_TRUE(out[1].starts_with("present.0.key ")) << out[1];
  // The file again, from the file.
  ASSERT_EQ(run({"export", at("m.onnx"), "--output", at("again.onnx"), "--opset", "17"}), 0)
      << err_;
  EXPECT_NE(err_.find("verified"), std::string::npos) << err_;
  EXPECT_EQ(ports(at("again.onnx"), "outputs").size(), out.size());
}

TEST_F(Export, WeightsGoBesideTheFileAndIntoSixteenBits) {
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("f.onnx"), "--external-data"}), 0) << err_;
  ASSERT_EQ(
      run({"export", at("tiny"), "--output", at("h.onnx"), "--external-data", "--dtype", "bf16"}),
      0)
      << err_;
  const auto all = fs::file_size(at("f.onnx.data")), half = fs::file_size(at("h.onnx.data"));
  EXPECT_GT(all, 20000u);
  EXPECT_LT(half, all * 7 / 10);  // tensors begin at whole pages
}

TEST_F(Export, AFileBecomesABrrrFile) {
  using namespace onnx_bytes;  // NOLINT
  write_file_atomically(at("m.onnx"),
                        model(input("x", kFloat, {-1, 2}) +
                              initializer(tensor("w", kFloat, {2, 2}, raw<float>({1, 2, 3, 4}))) +
                              node("MatMul", {"x", "w"}, {"y"}) + output("y", kFloat, {-1, 2})));
  fails({"export", at("m.onnx"), "--output", at("m.brrr")}, "--size NAME=N");
  ASSERT_EQ(run({"export", at("m.onnx"), "--output", at("m.brrr"), "--size", "n=1"}), 0) << err_;
  io::write_npy(at("x.npy"), HostTensor::of<float>({1, 2}, {1, 1}));
  ASSERT_EQ(run({"run", at("m.brrr"), "--input", "x=" + at("x.npy"), "--output-dir", at("out")}), 0)
      << err_;
  EXPECT_EQ(io::read_npy(at("out/y.npy")).number(1), 6);
}

TEST_F(Export, ABrrrFileTakesAnyLength) {
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("m.brrr")}), 0) << err_;
  for (const int64_t length : {1, 3, 8}) {
    io::write_npy(at("t.npy"), HostTensor(DType::i32, {2, length}));
    EXPECT_EQ(run({"run", at("m.brrr"), "--input", "tokens=" + at("t.npy"), "--json"}), 0) << err_;
    EXPECT_EQ(json()["outputs"][0]["shape"][1], length);
  }
  io::write_npy(at("t.npy"), HostTensor(DType::i32, {1, 5000}));
  fails({"run", at("m.brrr"), "--input", "tokens=" + at("t.npy")}, "the file takes at most");
}

TEST_F(Export, AGgufFileIsAModel) {
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("m.gguf")}), 0) << err_;
  EXPECT_NE(err_.find(fmt::format("{} bytes (F32)", fs::file_size(at("m.gguf")))),
            std::string::npos)
      << err_;
  const std::vector<std::string> generate = {"--prompt",         "a", "--temperature", "0",
                                             "--max-new-tokens", "8", "--precision",   "fp32"};
  const auto text_of = [&](const std::string& model) {
    std::vector<std::string> args = {"generate", "--model", model};
    args.insert(args.end(), generate.begin(), generate.end());
    EXPECT_EQ(run(args), 0) << err_;
    return out_;
  };
  EXPECT_EQ(text_of(at("m.gguf")), text_of(at("tiny")));
  // A file takes the place of another, of which it may be made; llama.cpp's words are known.
  ASSERT_EQ(run({"convert", at("m.gguf"), "--outfile", at("m.gguf"), "--outtype", "q8_0"}), 0)
      << err_;
  EXPECT_NE(err_.find(fmt::format("{} bytes (Q8_0)", fs::file_size(at("m.gguf")))),
            std::string::npos)
      << err_;
  ASSERT_EQ(run({"export", at("m.gguf"), at("n.gguf"), "--type", "F16"}), 0) << err_;
  EXPECT_GT(fs::file_size(at("n.gguf")), fs::file_size(at("m.gguf")));
}

TEST_F(Export, WhatIsWrongOfAGgufFileIsOneLine) {
  fails({"export", at("tiny"), "--output", at("m.gguf"), "--type", "Q3_K"},
        "--type: expected one of F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0; got 'Q3_K'");
  fails({"export", at("tiny"), "--output", at("m.onnx"), "--type", "F16"},
        "--type works only with GGUF files; this is an ONNX file, as --format or --output says; "
        "--dtype says what its matrices are stored in");
  fails({"export", at("tiny"), "--output", at("m.gguf"), "--dtype", "fp16"},
        "for a GGUF file give --type");
  fails({"export", at("tiny"), "--output", at("m.gguf"), "--kv-cache"}, "this is a GGUF file");
  fails({"export", at("missing.onnx"), "--output", at("m.gguf")}, "missing.onnx");
  write_file_atomically(at("notes.gguf"), "not a model");
  fails({"export", at("tiny"), "--output", at("notes.gguf")}, "is no GGUF file");
  EXPECT_EQ(read_file(at("notes.gguf")), "not a model");
  EXPECT_FALSE(fs::exists(at("m.gguf")));
}

TEST_F(Export, WhatIsWrongIsOneLine) {
  fails({"export", at("tiny"), "--output", at("m.onnx"), "--opset", "16"}, "--opset");
  fails({"export", at("tiny"), "--output", at("m.brrr"), "--kv-cache"}, "only with ONNX files");
  fails({"export", at("tiny"), "--output", at("m.onnx"), "--generate", "9"},
        "only with .brrr files");
  fails({"export", at("tiny"), "--output", at("m.onnx"), "--size", "n=1"}, "exported again");
  write_file_atomically(at("notes.onnx"), "not a model");
  fails({"export", at("tiny"), "--output", at("notes.onnx")}, "is no ONNX file");
  EXPECT_EQ(read_file(at("notes.onnx")), "not a model");
  fails({"export", at("missing.onnx"), "--output", at("m.onnx")}, "missing.onnx");
  EXPECT_FALSE(fs::exists(at("m.onnx")));
  EXPECT_FALSE(fs::exists(at("m.brrr")));
}

}  // namespace
}  // namespace brrr::test
