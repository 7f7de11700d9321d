// The verbs that take a model take an ONNX or .brrr file: its plan holds for its run, a run that
// does not fit is refused, its kernels are timed, and texts get vectors. A folder runs, and is
// planned, like the file that can be exported from it.

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

  /// The forecast of a plan is within a tenth of what a run takes: the largest peak of three runs,
  /// because the kernel decides how many pages of the program are resident (2 MB, as measured for a
  /// program that was just linked).
  void expect_forecast(const std::string& file, const Options& inputs) {
    constexpr int kRuns = 3;
    Options plan{"plan", file, "--json", "--no-measure"}, run_it{"run", file, "--json"};
    for (Options* args : {&plan, &run_it}) args->insert(args->end(), inputs.begin(), inputs.end());
    ASSERT_EQ(run(plan), 0) << err_;
    const auto forecast = json()["process_bytes"].get<double>();
    double peak = 0;
    for (int i = 0; i < kRuns; ++i) {
      ASSERT_EQ(run(run_it), 0) << err_;
      peak = std::max(peak, json()["peak_bytes"].get<double>());
    }
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

TEST_F(ModuleVerbs, ARunMakesUpItsInputsAndShowsNumbersThatCount) {
  using namespace onnx_bytes;  // NOLINT
  write("m.onnx",
        model(input("x", kFloat, {-1, 40}) + node("ArgMax", {"x"}, {"ids"}, attribute("axis", 1)) +
              node("Greater", {"x", "x"}, {"any"}) + node("Exp", {"x"}, {"y"}) +
              output("ids", kInt64, {-1, 1}) + output("any", kBool, {-1, 40}) +
              output("y", kFloat, {-1, 40})));
  ASSERT_EQ(run({"run", at("m.onnx"), "--random", "--size", "n=20"}), 0) << err_;
  EXPECT_NE(err_.find("made up: x (floats are random"), std::string::npos) << err_;
  EXPECT_NE(out_.find("f32[20,40]  mean "), std::string::npos) << out_;
  EXPECT_NE(out_.find("bool[20,40]  false, false, "), std::string::npos) << out_;
  EXPECT_NE(out_.find("; 0 of 800 are true"), std::string::npos) << out_;
  const size_t ids = out_.find("i64[20,1]  ");
  ASSERT_NE(ids, std::string::npos) << out_;
  const std::string line = out_.substr(ids, out_.find('\n', ids) - ids);
  EXPECT_EQ(std::count(line.begin(), line.end(), ','), 1 + 12 + 1) << line;
  EXPECT_NE(line.find(", ..., from "), std::string::npos) << line;
  // One input is given, and decides about the size.
  io::write_npy(at("x.npy"), HostTensor::filled(DType::f32, {2, 40}, 0.5));
  ASSERT_EQ(run({"run", at("m.onnx"), "--random", "--input", "x=" + at("x.npy")}), 0) << err_;
  EXPECT_EQ(err_.find("made up"), std::string::npos) << err_;
  EXPECT_NE(out_.find("i64[2,1]  0, 0\n"), std::string::npos) << out_;
  // Axes without a name of their own are listed by the names that --size takes.
  write("open.onnx",
        model(bytes_field(
                  11,
                  bytes_field(1, "x") +
                      bytes_field(
                          2, bytes_field(
                                 1, varint_field(1, 1) +
                                        bytes_field(2, bytes_field(1, "") +
                                                           bytes_field(1, varint_field(1, 3)))))) +
              node("Neg", {"x"}, {"y"}) + output("y", kFloat, {-1, 3})));
  ASSERT_EQ(run({"run", at("open.onnx")}), 0) << err_;
  EXPECT_NE(out_.find("f32[x.0,3]"), std::string::npos) << out_;
  EXPECT_NE(out_.find("--random (--size NAME=N sets"), std::string::npos) << out_;
  ASSERT_EQ(run({"run", at("open.onnx"), "--random", "--size", "x.0=5"}), 0) << err_;
  EXPECT_NE(out_.find("f32[5,3]"), std::string::npos) << out_;
  EXPECT_EQ(run({"run", at("open.onnx"), "--size", "x.0=5"}), 2);
  EXPECT_NE(err_.find("--size needs --random"), std::string::npos) << err_;
}

TEST_F(ModuleVerbs, AnExportedDecoderContinuesTexts) {
  ASSERT_EQ(run(small_run("tiny", {"--max-steps", "3", "--save-steps", "3"})), 0) << err_;
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("g.brrr"), "--generate", "32"}), 0) << err_;
  EXPECT_NE(err_.find("generate --model "), std::string::npos) << err_;
  // What the model's folder gives, with the likeliest token each time.
  const Options prompt{"--prompt", "line 4", "--max-new-tokens", "12", "--json"};
  const auto with = [&](Options args, const Options& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  ASSERT_EQ(run(with({"generate", at("tiny"), "--temperature", "0"}, prompt)), 0) << err_;
  const nlohmann::json wanted = json();
  ASSERT_EQ(run(with({"generate", "--model", at("g.brrr")}, prompt)), 0) << err_;
  for (const char* key : {"text", "ids", "prompt", "prompt_ids"})
    EXPECT_EQ(json()[key], wanted[key]) << key;
  ASSERT_EQ(run({"generate", at("g.brrr"), "--prompt", "line 4", "--max-new-tokens", "12",
                 "--temperature", "0"}),
            0)
      << err_;
  EXPECT_EQ(out_, wanted["text"].get<std::string>() + "\n");
  EXPECT_NE(err_.find("12 tokens in "), std::string::npos) << err_;
  // The file has room for 32 tokens.
  ASSERT_EQ(run({"generate", at("g.brrr"), "--prompt", "line 4"}), 0) << err_;
  EXPECT_NE(err_.find("have at most 32 tokens"), std::string::npos) << err_;
  // run shows the text, too, and takes no number below 0 as a number of tokens.
  const auto ids = wanted["prompt_ids"].get<std::vector<int32_t>>();
  io::write_npy(at("p.npy"), HostTensor::of<int32_t>({std::ssize(ids)}, ids));
  const auto run_with = [&](int32_t most) {
    io::write_npy(at("n.npy"), HostTensor::of<int32_t>({}, {most}));
    return run({"run", at("g.brrr"), "--input", "prompt=" + at("p.npy"), "--input",
                "max_new_tokens=" + at("n.npy")});
  };
  ASSERT_EQ(run_with(12), 0) << err_;
  EXPECT_NE(out_.find("\ntext  "), std::string::npos) << out_;
  EXPECT_NE(out_.find("line 4"), std::string::npos) << out_;
  EXPECT_EQ(run_with(-1), 1);
  EXPECT_NE(err_.find("the input 'max_new_tokens' must be at least 0; got -1"), std::string::npos)
      << err_;
  const auto fails = [&](const Options& more, const std::string& text) {
    EXPECT_NE(run(with({"generate", at("g.brrr")}, more)), 0) << text;
    EXPECT_NE(err_.find(text), std::string::npos) << err_;
  };
  fails({"--prompt", "a", "--top-k", "3"}, "always takes the most likely token");
  fails({"--prompt", "a", "--temperature", "0.5"}, "always takes the most likely token");
  fails({"--prompt", "a", "--no-cache"}, "--no-cache: ");
  fails({"--interactive"}, "answers one prompt");
  fails({"--prompt", "a", "--chat"}, "holds no chat template");
  fails({"--prompt", std::string(40, 'a')}, "takes at most 32");
  // Without its tokenizer a model is exported all the same, and takes ids alone.
  for (const auto& entry : fs::recursive_directory_iterator(path("tiny")))
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "checksums.json", "manifest.json"})
      if (entry.path().filename() == name) fs::remove(entry.path());
  ASSERT_EQ(run({"export", at("tiny"), "--output", at("g.brrr"), "--generate", "32"}), 0) << err_;
  EXPECT_NE(err_.find("takes and gives token ids alone"), std::string::npos) << err_;
  fails({"--prompt", "a"}, "it has no tokenizer");
  ASSERT_EQ(run_with(12), 0) << err_;
  EXPECT_EQ(out_.find("\ntext  "), std::string::npos) << out_;
  write_products();
  EXPECT_EQ(run({"generate", "--model", at("m.onnx"), "--prompt", "a"}), 1);
  EXPECT_NE(err_.find("it is no decoder"), std::string::npos) << err_;
}

TEST_F(ModuleVerbs, AbsurdNumbersOfThreadsAreRefused) {
  write_products();
  const Options file{"run", at("m.onnx"), "--input", "x=" + at("x.npy")};
  for (const char* number : {"9999999", "5000"}) {
    EXPECT_EQ(run(file, {std::string("OMP_NUM_THREADS=") + number}), 2);
    EXPECT_NE(err_.find(fmt::format("OMP_NUM_THREADS asks for {} threads; expected at most 4096",
                                    number)),
              std::string::npos)
        << err_;
  }
  EXPECT_EQ(run({"info"}, {"OMP_NUM_THREADS=9999999"}), 2);
  EXPECT_EQ(run({"--help"}, {"OMP_NUM_THREADS=9999999"}), 0);
  Options few = file;
  few.insert(few.end(), {"--threads", "1"});
  EXPECT_EQ(run(few, {"OMP_NUM_THREADS=9999999"}), 0) << err_;
  few.back() = "9999999";
  EXPECT_EQ(run(few), 2);
  EXPECT_NE(err_.find("--threads: "), std::string::npos) << err_;
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
  // Tokens from the whole table: a plan counts all of the mapped file, of which a run of one token
  // would read only its row.
  constexpr int64_t kVocabulary = 30522, kPrime = 7919;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 8 * 128; ++i) ids.push_back(i * kPrime % kVocabulary);
  inputs = {"--input", give("input_ids", HostTensor::of<int64_t>({8, 128}, ids))};
  for (const char* name : {"attention_mask", "token_type_ids"}) {
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

// Nothing stands beside the file: its tokenizer is in it.
TEST_F(ModuleVerbs, ABrrrFileGivesTheVectorsOfItsFolder) {
  const fs::path own = models_folder() / "minilm";
  if (!fs::exists(own / "model.safetensors"))
    GTEST_SKIP() << "minilm is missing; $BRRR_MODELS names its folder";
  write("texts.txt", "A cat sat on the mat.\nStocks fell sharply today, and nobody knew why.\n");
  ASSERT_EQ(run({"export", own.string(), "--output", at("m.brrr")}), 0) << err_;
  std::vector<HostTensor> vectors;
  for (const std::string& model : {own.string(), at("m.brrr")}) {
    ASSERT_EQ(run({"embed", model, at("texts.txt"), "--output", at("v.npy")}), 0) << err_;
    vectors.push_back(io::read_npy(at("v.npy")));
  }
  ASSERT_EQ(vectors[0].shape, vectors[1].shape);
  // The file pools rows of a padded batch, in another order of sums.
  for (int64_t i = 0; i < vectors[0].shape.elements(); ++i)
    ASSERT_NEAR(vectors[0].number(i), vectors[1].number(i), 1e-6) << i;
}

TEST_F(ModuleVerbs, AFolderRunsAndIsPlannedByTheNamesOfItsInputs) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "2"})), 0) << err_;
  ASSERT_EQ(run({"run", at("run")}), 0) << err_;
  EXPECT_NE(out_.find("input_ids"), std::string::npos) << out_;
  EXPECT_NE(out_.find("[batch_size,sequence_length]"), std::string::npos) << out_;
  const Options sizes{"--size", "batch_size=2", "--size", "sequence_length=8"};
  Options args{"run", at("run"), "--random", "--json"};
  args.insert(args.end(), sizes.begin(), sizes.end());
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(json()["outputs"][0]["name"], "logits");
  const nlohmann::json shape = json()["outputs"][0]["shape"];
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[1], 8);
  args = {"plan", at("run"), "--inference", "--json", "--no-measure"};
  args.insert(args.end(), sizes.begin(), sizes.end());
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(json()["sizes"]["sequence_length"], 8);
  EXPECT_GT(json()["arena_bytes"], 0);
  // Its texts are at most as long as its context of 32 tokens, which guesses keep to.
  ASSERT_EQ(run({"run", at("run"), "--random", "--json"}), 0) << err_;
  EXPECT_EQ(json()["outputs"][0]["shape"][1], 32);
  EXPECT_EQ(run({"run", at("run"), "--random", "--size", "sequence_length=33"}), 1);
  EXPECT_NE(err_.find("a text of 33 tokens is longer than the model's limit of 32"),
            std::string::npos)
      << err_;
  // A language model makes no vectors.
  ASSERT_EQ(run({"export", at("run"), "--output", at("m.brrr")}), 0) << err_;
  EXPECT_NE(run({"embed", at("m.brrr"), text_path().string()}), 0);
  EXPECT_NE(err_.find("none of its outputs holds vectors of texts or tokens"), std::string::npos)
      << err_;
  EXPECT_EQ(run({"plan", "--inference"}), 2);
  EXPECT_NE(err_.find("--inference plans one run of a model: name its folder"), std::string::npos)
      << err_;
}

}  // namespace
}  // namespace brrr::test
