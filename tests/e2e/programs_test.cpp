// ONNX and .brrr files on the command line, and the example that uses the library.

#include "e2e/run.h"
#include "formats/npy.h"
#include "support/onnx_fields.h"

namespace brrr::test {
namespace {

class Programs : public EndToEnd {
 protected:
  std::string at(const std::string& name) const { return path(name).string(); }
  void SetUp() override {
    EndToEnd::SetUp();
    using namespace onnx_bytes;  // NOLINT
    // y = x w, one more output with a slash in its name.
    write_file_atomically(
        at("m.onnx"), model(input("x", kFloat, {-1, 2}) +
                            initializer(tensor("w", kFloat, {2, 2}, raw<float>({1, 2, 3, 4}))) +
                            node("MatMul", {"x", "w"}, {"y"}) + node("Neg", {"y"}, {"out/minus"}) +
                            output("y", kFloat, {-1, 2}) + output("out/minus", kFloat, {-1, 2})));
    io::write_npy(at("x.npy"), HostTensor::of<float>({1, 2}, {1, 1}));
  }
};

TEST_F(Programs, AFileRunsOnTensors) {
  ASSERT_EQ(run({"run", at("m.onnx"), "--input", "x=" + at("x.npy"), "--output-dir", at("out"),
                 "--json"}),
            0)
      << err_;
  const nlohmann::json result = json();
  ASSERT_EQ(result["outputs"].size(), 2u);
  EXPECT_EQ(result["outputs"][1]["name"], "y");
  EXPECT_EQ(result["outputs"][1]["dtype"], "f32");
  EXPECT_EQ(result["outputs"][1]["shape"], nlohmann::json({1, 2}));
  EXPECT_GT(result["load_ms"], 0);
  EXPECT_GT(result["peak_bytes"], 0);
  const HostTensor y = io::read_npy(at("out/y.npy"));
  EXPECT_EQ(y.number(0), 4);
  EXPECT_EQ(y.number(1), 6);
  EXPECT_EQ(io::read_npy(at("out/out_minus.npy")).number(0), -4);
}

TEST_F(Programs, PassesSayWhatTheyFound) {
  using namespace onnx_bytes;  // NOLINT
  write_file_atomically(at("silu.onnx"),
                        model(input("x", kFloat, {-1, 2}) + node("Sigmoid", {"x"}, {"s"}) +
                              node("Mul", {"x", "s"}, {"y"}) + output("y", kFloat, {-1, 2})));
  const std::vector<std::string> with{"run",       at("silu.onnx"), "--input",   "x=" + at("x.npy"),
                                      "--explain", "--dump-graph",  at("graphs")};
  ASSERT_EQ(run(with), 0) << err_;
  EXPECT_NE(err_.find("program 0: match_formulas: found 1 silu"), std::string::npos) << err_;
  EXPECT_TRUE(fs::exists(at("graphs/program0_00_input.txt")));
  std::vector<std::string> without = with;
  without.insert(without.end(), {"--disable-pass", "match_formulas"});
  ASSERT_EQ(run(without), 0) << err_;
  EXPECT_EQ(err_.find("found 1 silu"), std::string::npos) << err_;
}

TEST_F(Programs, WithoutInputsTheyAreListed) {
  ASSERT_EQ(run({"run", at("m.onnx"), "--json"}), 0) << err_;
  const nlohmann::json result = json();
  EXPECT_EQ(result["inputs"][0]["name"], "x");
  EXPECT_EQ(result["inputs"][0]["shape"], nlohmann::json({"n", 2}));
  ASSERT_EQ(run({"run", at("m.onnx")}), 0) << err_;
  EXPECT_NE(out_.find("f32[n,2]"), std::string::npos) << out_;
}

TEST_F(Programs, WhatIsWrongIsOneLine) {
  const auto fails = [&](const std::vector<std::string>& args, const std::string& with) {
    EXPECT_NE(run(args), 0);
    EXPECT_NE(err_.find(with), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  };
  fails({"run"}, "name a model");
  fails({"run", at("m.onnx"), "--input", "x"}, "NAME=FILE.npy");
  fails({"run", at("m.onnx"), "--input", "z=" + at("x.npy")}, "no input 'z'");
  fails({"run", at("x.npy")}, "x.npy");
  io::write_npy(at("long.npy"), HostTensor::of<int64_t>({1, 2}, {1, 1}));
  fails({"run", at("m.onnx"), "--input", "x=" + at("long.npy")}, "got i64[1,2]");
}

// A model as one file: its logits, and a greedy decoder that lies in the file.
TEST_F(Programs, AModelIsExportedAsOneFile) {
  ASSERT_EQ(run(small_run("tiny", {"--max-steps", "3", "--save-steps", "3"})), 0) << err_;
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("g.brrr"), "--generate", "12"}), 0) << err_;
  ASSERT_EQ(run({"generate", at("tiny"), "--temperature", "0", "--max-new-tokens", "8", "--json",
                 "--num-samples", "1"}),
            0)
      << err_;
  const nlohmann::json text = json();
  const auto prompt = text["prompt_ids"].get<std::vector<int32_t>>();
  const auto ids = text["ids"].get<std::vector<int32_t>>();
  io::write_npy(at("p.npy"), HostTensor::of<int32_t>({std::ssize(prompt)}, prompt));
  io::write_npy(at("n.npy"), HostTensor::of<int32_t>({}, {8}));
  ASSERT_EQ(run({"run", at("g.brrr"), "--input", "prompt=" + at("p.npy"), "--input",
                 "max_new_tokens=" + at("n.npy"), "--output-dir", at("out"), "--json"}),
            0)
      << err_;
  const HostTensor tokens = io::read_npy(at("out/tokens.npy"));
  ASSERT_GE(tokens.shape.elements(), std::ssize(prompt) + std::ssize(ids));
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(tokens.number(static_cast<int64_t>(prompt.size() + i)), ids[i]) << i;
  // A prompt that does not fit is refused, not cut; one that fills the file is as it was.
  const auto with_prompt = [&](int64_t length) {
    io::write_npy(at("p.npy"), HostTensor::of<int32_t>(
                                   {length}, std::vector<int32_t>(static_cast<size_t>(length), 1)));
    return run({"run", at("g.brrr"), "--input", "prompt=" + at("p.npy"), "--input",
                "max_new_tokens=" + at("n.npy"), "--output-dir", at("out"), "--json"});
  };
  EXPECT_EQ(with_prompt(12), 0) << err_;
  EXPECT_EQ(io::read_npy(at("out/count.npy")).number(0), 12);
  EXPECT_EQ(with_prompt(13), 1);
  EXPECT_NE(err_.find("the input 'prompt' has the size 13 for 'length'; the file takes at most 12"),
            std::string::npos)
      << err_;
}

TEST_F(Programs, TheExampleRunsAFile) {
  const std::string command = std::string(BRRR_EXAMPLE) + " " + at("m.onnx") + " > " + at("text");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_file(at("text")), "out/minus [1,2] -4\ny [1,2] 4\n");
}

}  // namespace
}  // namespace brrr::test
