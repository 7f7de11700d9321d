// The verbs that take a model take an ONNX or .brrr file: its plan holds for its run, a run that
// does not fit is refused, its kernels are timed, and texts get vectors.

#include <cmath>

#include "e2e/run.h"
#include "formats/npy.h"
#include "support/models_folder.h"
#include "support/onnx_fields.h"

namespace brrr::test {
namespace {

constexpr int kNoMemory = 3;

class ModuleVerbs : public EndToEnd {
 protected:
  using Options = std::vector<std::string>;
  std::string at(const std::string& name) const { return path(name).string(); }
  void write(const std::string& name, const std::string& text) const {
    write_file_atomically(path(name), text);
  }

  /// tanh of x w, twice, whose weights are 32 MiB in all.
  void write_products() const {
    using namespace onnx_bytes;  // NOLINT
    constexpr int64_t kWidth = 2048;
    const std::string w = raw(std::vector<float>(kWidth * kWidth, 1e-3f));
    std::string graph = input("x", kFloat, {-1, kWidth});
    for (const char* name : {"v", "w"})
      graph += initializer(tensor(name, kFloat, {kWidth, kWidth}, w));
    graph += node("MatMul", {"x", "v"}, {"a"}) + node("Tanh", {"a"}, {"b"}) +
             node("MatMul", {"b", "w"}, {"c"}) + node("Tanh", {"c"}, {"y"}) +
             output("y", kFloat, {-1, kWidth});
    write("m.onnx", model(graph));
    io::write_npy(at("x.npy"), HostTensor::filled(DType::f32, {256, kWidth}, 0.5));
  }

  /// What a plan says and a run takes are within a tenth of each other.
  void expect_forecast(const std::string& file, const Options& inputs) {
    Options plan{"plan", file, "--json", "--no-measure"}, run_it{"run", file, "--json"};
    for (Options* args : {&plan, &run_it}) args->insert(args->end(), inputs.begin(), inputs.end());
    ASSERT_EQ(run(plan), 0) << err_;
    const auto forecast = json()["process_bytes"].get<double>();
    ASSERT_EQ(run(run_it), 0) << err_;
    const auto peak = json()["peak_bytes"].get<double>();
    EXPECT_NEAR(forecast / peak, 1, 0.1) << file << ": " << forecast << " for " << peak;
  }

  /// A folder as exporters write it: an embedding of 5 words in 2 numbers, and a tokenizer of them.
  void write_encoder(const std::string& folder, int dtype, const std::string& name) const {
    using namespace onnx_bytes;  // NOLINT
    fs::create_directories(path(folder) / "onnx");
    write(
        folder + "/onnx/model.onnx",
        model(input("input_ids", dtype, {-1, -1}) + input("attention_mask", dtype, {-1, -1}) +
              initializer(
                  tensor("table", kFloat, {5, 2}, raw<float>({9, 9, 9, 9, 3, 4, 1, 0, -1, 2}))) +
              node("Gather", {"table", "input_ids"}, {name}) + output(name, kFloat, {-1, -1, 2})));
    write(
        folder + "/tokenizer.json",
        R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
        R"("pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,)"
        R"("model":{"type":"WordLevel","vocab":{"[PAD]":0,"[UNK]":1,"a":2,"b":3,"c":4},)"
        R"("unk_token":"[UNK]"}})");
    write("texts.txt", "a\nb c\nc b a\n");
  }
};

TEST_F(ModuleVerbs, APlanTellsWhatARunTakes) {
  write_products();
  expect_forecast(at("m.onnx"), {"--input", "x=" + at("x.npy")});
  ASSERT_EQ(run({"plan", at("m.onnx"), "--json", "--no-measure"}), 0) << err_;
  EXPECT_NE(err_.find("note: assumed n = 1; --size NAME=N"), std::string::npos) << err_;
  nlohmann::json plan = json();
  EXPECT_EQ(plan["sizes"]["n"], 1);
  ASSERT_EQ(run({"plan", at("m.onnx"), "--json", "--no-measure", "--size", "n=256"}), 0) << err_;
  EXPECT_EQ(err_, "");
  EXPECT_GT(json()["arena_bytes"], plan["arena_bytes"]);
  plan = json();
  // --model names the file as it does for `brrr run`.
  ASSERT_EQ(run({"plan", "--model", at("m.onnx"), "--json", "--no-measure", "--size", "n=256"}), 0)
      << err_;
  EXPECT_EQ(json()["arena_bytes"], plan["arena_bytes"]);
  EXPECT_EQ(run({"plan", at("m.onnx"), "--model", at("m.onnx")}), 2);
  EXPECT_NE(err_.find("expected one file; got "), std::string::npos) << err_;
  ASSERT_EQ(plan["programs"].size(), 1u);
  const nlohmann::json& program = plan["programs"][0];
  EXPECT_GE(program["temporary_bytes"], 2 * 256 * 2048 * 4);
  EXPECT_EQ(program["tensors_at_peak"][0]["type"], "f32[256,2048]");
  EXPECT_GE(plan["flops"], 2.0 * 2 * 256 * 2048 * 2048);
  int64_t launches = 0;
  for (const nlohmann::json& kernel : plan["kernels"])
    launches += kernel["launches"].get<int64_t>();
  EXPECT_GE(launches, 2);
  EXPECT_EQ(program["kernels"], launches);
  ASSERT_EQ(run({"plan", at("m.onnx"), "--no-measure", "--kernels"}), 0) << err_;
  EXPECT_NE(out_.find("memory of a run"), std::string::npos) << out_;
  EXPECT_NE(out_.find("kernels of a run"), std::string::npos) << out_;
}

TEST_F(ModuleVerbs, SizesThatDataDecideArePlannedByARun) {
  using namespace onnx_bytes;  // NOLINT
  write("m.onnx", model(input("x", kFloat, {4}) + node("NonZero", {"x"}, {"i"}) +
                        node("Cast", {"i"}, {"f"}, attribute("to", kFloat)) +
                        node("Exp", {"f"}, {"y"}) + output("y", kFloat, {1, -1})));
  ASSERT_EQ(run({"plan", at("m.onnx"), "--json", "--no-measure"}), 0) << err_;
  EXPECT_TRUE(json()["was_run"]);
  EXPECT_EQ(json()["programs"].size(), 2u);
  ASSERT_EQ(run({"plan", at("m.onnx"), "--no-measure"}), 0) << err_;
  EXPECT_NE(out_.find("it was run once with made-up numbers"), std::string::npos) << out_;
  ASSERT_EQ(run({"profile", at("m.onnx"), "--json", "--seconds", "0.1", "--memory-limit", "64MiB"}),
            0)
      << err_;
  // An input that decides about the graph is not made up silently.
  write("s.onnx", model(input("x", kFloat, {6}) + input("shape", kInt64, {1}) +
                        node("Reshape", {"x", "shape"}, {"y"}) + output("y", kFloat, {-1})));
  EXPECT_NE(run({"plan", at("s.onnx"), "--no-measure"}), 0);
  EXPECT_NE(err_.find("the graph depends on the value of 'shape', assumed to be 1"),
            std::string::npos)
      << err_;
  io::write_npy(at("shape.npy"), HostTensor::of<int64_t>({1}, {6}));
  EXPECT_EQ(run({"plan", at("s.onnx"), "--no-measure", "--input", "shape=" + at("shape.npy")}), 0)
      << err_;
  EXPECT_EQ(err_, "");
}

TEST_F(ModuleVerbs, WhatDoesNotFitIsRefused) {
  write_products();
  const Options file{at("m.onnx"), "--input", "x=" + at("x.npy")};
  const auto with = [&](const std::string& verb, const Options& more) {
    Options args{verb};
    args.insert(args.end(), file.begin(), file.end());
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  for (const std::string verb : {"run", "profile"}) {
    EXPECT_EQ(run(with(verb, {"--memory-limit", "16MiB"})), kNoMemory) << verb << err_;
    EXPECT_EQ(out_, "");
    EXPECT_NE(err_.find("does not fit in memory: it needs "), std::string::npos) << err_;
    EXPECT_NE(err_.find("--memory-limit is 16.0 MiB"), std::string::npos) << err_;
  }
  const std::string before = "or --memory-limit ";
  const size_t begin = err_.find(before) + before.size();
  const std::string least = err_.substr(begin, err_.find_first_of(" \n", begin) - begin);
  EXPECT_EQ(run(with("run", {"--memory-limit", least})), 0) << least << err_;
  EXPECT_EQ(run(with("plan", {"--no-measure", "--memory-limit", "16MiB"})), kNoMemory) << err_;
  EXPECT_NE(out_.find("DOES NOT FIT"), std::string::npos) << out_;
  EXPECT_EQ(run(with("plan", {"--no-measure", "--memory-limit", least})), 0) << err_;
}

TEST_F(ModuleVerbs, KernelsAreTimed) {
  write_products();
  ASSERT_EQ(run({"profile", at("m.onnx"), "--size", "n=8", "--seconds", "0.1", "--json", "--html",
                 at("p.html"), "--trace", at("p.json"), "--memory-limit", "256MiB"}),
            0)
      << err_;
  EXPECT_NE(err_.find("made up: x (floats are random"), std::string::npos) << err_;
  const nlohmann::json profile = json();
  ASSERT_FALSE(profile["kernels"].empty());
  bool has_product = false;
  for (const nlohmann::json& kernel : profile["kernels"]) {
    EXPECT_GT(kernel["ms"], 0);
    const std::string verdict = kernel["verdict"];
    EXPECT_TRUE(verdict == "compute" || verdict == "bandwidth" || verdict == "overhead");
    has_product |= kernel["class"] == "contraction";
  }
  EXPECT_TRUE(has_product) << out_;
  EXPECT_NE(read_file(at("p.html")).find("Roofline"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(read_file(at("p.json"))).empty());
}

TEST_F(ModuleVerbs, TextsGetVectors) {
  using namespace onnx_bytes;  // NOLINT
  constexpr int kInt32 = 6;
  const auto expect_rows = [&](const Options& more, const std::vector<float>& numbers) {
    Options args{"embed", "--output", at("v.npy"), "--text", at("texts.txt")};
    args.insert(args.end(), more.begin(), more.end());
    ASSERT_EQ(run(args), 0) << err_;
    const HostTensor vectors = io::read_npy(at("v.npy"));
    ASSERT_EQ(vectors.shape, (Shape{3, 2}));
    for (size_t i = 0; i < numbers.size(); ++i)
      EXPECT_NEAR(vectors.number(static_cast<int64_t>(i)), numbers[i], 1e-6) << i;
  };
  const std::vector<float> means{3, 4, 0, 1, 1, 2};
  for (const int dtype : {kInt64, kInt32}) {
    write_encoder("e", dtype, "last_hidden_state");
    expect_rows({"--model", at("e")}, means);
    EXPECT_NE(err_.find("using their mean"), std::string::npos) << err_;
    expect_rows({"--model", at("e/onnx/model.onnx"), "--batch-size", "1"}, means);
  }
  write_encoder("e", kInt64, "some_vectors");
  expect_rows({"--model", at("e"), "--pooling", "max"}, {3, 4, 1, 2, 3, 4});
  fs::create_directory(path("e/1_Pooling"));
  write("e/1_Pooling/config.json", R"({"pooling_mode_cls_token":true})");
  write("e/modules.json", R"([{"path":"","type":"sentence_transformers.models.Transformer"},)"
                          R"({"path":"1_Pooling","type":"sentence_transformers.models.Pooling"},)"
                          R"({"path":"2","type":"sentence_transformers.models.Normalize"}])");
  const float root = std::sqrt(5.0f);
  expect_rows({"--model", at("e")}, {0.6f, 0.8f, 1, 0, -1 / root, 2 / root});
  EXPECT_EQ(err_.find("using their mean"), std::string::npos) << err_;
  expect_rows({"--model", at("e"), "--no-normalize"}, {3, 4, 1, 0, -1, 2});

  // The file pools by itself: what the folder says of pooling is done already.
  write("e/onnx/model.onnx",
        model(input("input_ids", kInt64, {-1, -1}) +
                  initializer(tensor("table", kFloat, {5, 2},
                                     raw<float>({9, 9, 9, 9, 3, 4, 1, 0, -1, 2}))) +
                  node("Gather", {"table", "input_ids"}, {"token_embeddings"}) +
                  node("ReduceMin", {"token_embeddings"}, {"sentence_embedding"},
                       attribute("axes", std::vector<int64_t>{1}) + attribute("keepdims", 0)) +
                  output("token_embeddings", kFloat, {-1, -1, 2}) +
                  output("sentence_embedding", kFloat, {-1, 2}),
              13));
  write("texts.txt", "a\nb\nc\n");
  expect_rows({"--model", at("e"), "--no-normalize", "--batch-size", "1", "--max-length", "1"},
              {3, 4});
}

TEST_F(ModuleVerbs, WhatIsWrongIsOneLine) {
  using namespace onnx_bytes;  // NOLINT
  const auto fails = [&](const Options& args, const std::string& with) {
    EXPECT_NE(run(args), 0);
    EXPECT_NE(err_.find(with), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  };
  write_products();
  write_encoder("e", kInt64, "last_hidden_state");
  const std::string file = at("m.onnx");
  fails({"plan", file, "--size", "n"}, "--size: expected NAME=N; got 'n'");
  fails({"plan", file, "--size", "n=x"}, "--size n: ");
  fails({"plan", file, "--size", "n=1", "--size", "n=2"}, "--size n is given twice");
  fails({"plan", file, "--size", "z=1"}, "--size z: no axis of an input has this name");
  fails({"plan", file, "--batch-size", "2"}, "--batch-size does not apply to");
  fails({"profile", file, "--largest-batch"}, "largest-batch");
  fails({"plan", "--size", "n=1"}, "--size is for an ONNX or .brrr file");
  fails({"profile", "--input", "x=y.npy"}, "--input is for an ONNX or .brrr file");
  fails({"plan", file, at("e")}, "expected one file");
  fails({"plan", at("none.onnx")}, "none.onnx");
  fails({"run", file, "--input", "x=" + at("x.npy"), "--memory-limit", "6"}, "memory");
  const std::string texts = at("texts.txt");
  fails({"embed", file, texts}, "expected tokenizer.json beside it");
  fs::copy(path("e/tokenizer.json"), path("tokenizer.json"));
  fails({"embed", file, texts}, "m.onnx: it has the input 'x'");
  fails({"embed", at("e"), texts, "--device", "cuda"}, "runs on the CPU alone");
  const auto with = [&](const std::string& inputs, const std::string& outputs) {
    write("o.onnx",
          model(inputs + node("Cast", {"attention_mask"}, {"y"}, attribute("to", 1)) + outputs));
    return at("o.onnx");
  };
  const std::string mask = input("attention_mask", kInt64, {-1, -1});
  fails({"embed", with(mask, output("y", kFloat, {-1, -1})), texts}, "it has no input 'input_ids'");
  const std::string ids = input("input_ids", kInt64, {-1, -1});
  fails({"embed", with(mask + ids, output("y", kFloat, {-1, -1})), texts},
        "none of its outputs holds vectors");
}

TEST_F(ModuleVerbs, PlansOfPublishedFilesHold) {
  const fs::path models = models_folder();
  const fs::path silero = models / "silero/silero_vad_16k_op15.onnx";
  const fs::path letters = models / "ppocr/ch_PP-OCRv4_rec_infer.onnx";
  const fs::path minilm = models / "minilm-int8/model.onnx";
  for (const fs::path& file : {silero, letters, minilm})
    if (!fs::exists(file))
      GTEST_SKIP() << file << " is missing; $BRRR_MODELS names the folder that holds it";
  const auto give = [&](const std::string& name, const HostTensor& tensor) {
    io::write_npy(at(name + ".npy"), tensor);
    return name + "=" + at(name + ".npy");
  };
  expect_forecast(silero.string(),
                  {"--input", give("input", HostTensor::filled(DType::f32, {1, 576}, 0.1)),
                   "--input", give("state", HostTensor(DType::f32, {2, 1, 128})), "--input",
                   give("sr", HostTensor::of<int64_t>({}, {16000}))});
  expect_forecast(letters.string(),
                  {"--input", give("x", HostTensor::filled(DType::f32, {1, 3, 48, 320}, 0.1))});
  Options inputs;
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids"}) {
    inputs.push_back("--input");
    inputs.push_back(give(name, HostTensor::filled(DType::i64, {8, 128}, 1)));
  }
  expect_forecast(minilm.string(), inputs);
}

// The same texts by our own encoder and by the file that was exported from it, in 8 bits.
TEST_F(ModuleVerbs, AnExportedEncoderFindsTheSameNeighbours) {
  const fs::path own = models_folder() / "minilm", exported = models_folder() / "minilm-int8";
  if (!fs::exists(own / "model.safetensors") || !fs::exists(exported / "model.onnx"))
    GTEST_SKIP() << "minilm and minilm-int8 are missing; $BRRR_MODELS names their folder";
  fs::create_directory(path("folder"));
  for (const char* name : {"tokenizer.json", "modules.json", "1_Pooling"})
    fs::create_symlink(own / name, path("folder") / name);
  fs::create_symlink(exported / "model.onnx", path("folder/model.onnx"));
  write("texts.txt",
        "A cat sat on the mat.\nThe kitten lay on a rug.\nStocks fell sharply today.\n"
        "Share prices dropped this morning.\nShe plays the violin.\nHe practises the cello.\n");
  std::vector<HostTensor> vectors;
  for (const fs::path& model : {own, path("folder")}) {
    ASSERT_EQ(run({"embed", model.string(), at("texts.txt"), "--output", at("v.npy")}), 0) << err_;
    vectors.push_back(io::read_npy(at("v.npy")));
  }
  ASSERT_EQ(vectors[0].shape, vectors[1].shape);
  const int64_t rows = vectors[0].shape.size(0), width = vectors[0].shape.size(1);
  const auto dot = [&](const HostTensor& a, int64_t i, const HostTensor& b, int64_t k) {
    double sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += a.number(i * width + d) * b.number(k * width + d);
    return sum;
  };
  for (int64_t i = 0; i < rows; ++i) {
    EXPECT_GT(dot(vectors[0], i, vectors[1], i), 0.97) << i;
    for (const HostTensor& v : vectors) {
      int64_t nearest = i == 0 ? 1 : 0;
      for (int64_t k = 0; k < rows; ++k)
        if (k != i && dot(v, i, v, k) > dot(v, i, v, nearest)) nearest = k;
      EXPECT_EQ(nearest, i ^ 1) << i;
    }
  }
}

}  // namespace
}  // namespace brrr::test
