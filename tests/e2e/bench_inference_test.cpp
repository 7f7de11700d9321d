// `bench inference` on a small encoder whose tokens can be counted by hand, beside a peer that is
// made up here, which may be wrong, die, hang or talk.

#include <map>

#include "e2e/run.h"
#include "folders/weights.h"
#include "models/bert/bert_config.h"
#include "models/initialise.h"

namespace brrr::test {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

// Lines with 1, 2, 3, 8, 20 and 30 words, which get two special tokens.
constexpr int kWords[] = {1, 2, 3, 8, 20, 30};
constexpr int kRealTokens = 64 + 2 * 6;

class BenchInference : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    make_encoder();
    std::string text;
    for (const int words : kWords) {
      for (int i = 0; i < words; ++i) text += i == 0 ? "one" : " two";
      text += "\n\n";  // blank lines are no sentences
    }
    write_file_atomically(path("lines.txt"), text);
  }

  void make_encoder() {
    models::BertConfig config;
    config.vocab_size = 7;
    config.max_position_embeddings = 64;
    config.hidden_size = 16;
    config.num_hidden_layers = 1;
    config.num_attention_heads = 2;
    config.intermediate_size = 32;
    config.task = {.head = models::Head::embedding};
    const models::ModelPtr model = config.model();
    create_folder(path("encoder"));
    const FloatWeights initial = models::initial_weights(*model, 1);
    std::map<std::string, std::vector<float>> numbers;
    std::vector<TensorView> views;
    for (const models::ParameterInfo& p : model->parameters()) {
      std::vector<float>& values = numbers[p.name];
      values.resize(static_cast<size_t>(p.shape.elements()));
      initial(p.name, values);
      for (float& x : values) x *= 10;  // vectors of different texts differ
      views.push_back({p.name, DType::f32, p.shape, std::as_bytes(std::span(values))});
    }
    io::write_model_files(path("encoder"), *model, views);
    write_file_atomically(path("encoder/vocab.txt"),
                          "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\n");
  }

  int bench(const Arguments& more, const Arguments& environment = {}) {
    Arguments args{
        "bench",     "inference", path("encoder").string(), "--text", path("lines.txt").string(),
        "--threads", "1"};
    put_options(args, more);
    return run(args, environment);
  }
  /// The row of one runtime and order.
  Json row(const Json& results, const std::string& runtime, const std::string& order, bool sorted,
           int batch) const {
    for (const Json& r : results)
      if (r["runtime"] == runtime && r["order"] == order && r["sorted"] == sorted &&
          r["batch"] == batch && r["length"] == "mixed")
        return r;
    ADD_FAILURE() << runtime << " " << order << " " << batch << " is missing";
    return {};
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
};

TEST_F(BenchInference, CountsTokensAndHasEveryField) {
  ASSERT_EQ(
      bench({"--precision", "fp32", "--batch-size", "1", "2", "6", "--length", "8", "--json"}), 0)
      << err_;
  const Json report = json(), results = report["results"];
  ASSERT_EQ(results.size(), 3u * 4 + 2);
  for (const Json& r : results) {
    for (const char* key :
         {"model", "runtime", "precision", "batch", "order", "sorted", "length", "ms_per_sentence",
          "low", "high", "sentences_per_second", "padded_tokens", "real_tokens", "max_difference"})
      EXPECT_TRUE(r.contains(key)) << key;
    EXPECT_EQ(r["runtime"], "brrr");
    EXPECT_EQ(r["precision"], "fp32");
    EXPECT_EQ(r["real_tokens"], r["length"] == 8 ? 256 * 8 : kRealTokens);
    EXPECT_GE(r["padded_tokens"], r["real_tokens"]);
    EXPECT_GT(r["ms_per_sentence"].get<double>(), 0);
    EXPECT_LE(r["low"], r["ms_per_sentence"]);
    EXPECT_GE(r["high"], r["ms_per_sentence"]);
    EXPECT_EQ(r["repeats"], 5);
    EXPECT_EQ(r["agrees"], true);
    EXPECT_LT(r["max_difference"].get<double>(), 1e-5);
  }
  // Texts have 3, 4, 5, 10, 22 and 32 tokens. Flat rows are rounded up to multiples of 4, from
  // 64 tokens on of 8; padded ones to 8, 10, 22 and 32.
  const std::map<std::tuple<std::string, bool, int>, int> expected{
      {{"packed", false, 1}, 4 + 4 + 8 + 12 + 24 + 32},
      {{"packed", true, 1}, 4 + 4 + 8 + 12 + 24 + 32},
      {{"random", false, 1}, 3 * 8 + 10 + 22 + 32},
      {{"packed", true, 2}, 56 + 16 + 8},
      {{"sorted", true, 2}, 2 * (32 + 10 + 8)},
      {{"packed", false, 6}, 80},
      {{"sorted", true, 6}, 6 * 32},
      {{"random", false, 6}, 6 * 32}};
  for (const auto& [key, tokens] : expected) {
    const auto& [order, sorted, batch] = key;
    EXPECT_EQ(row(results, "brrr", order, sorted, batch)["padded_tokens"], tokens)
        << order << " " << sorted << " " << batch;
  }
  EXPECT_EQ(report["findings"].size(), 6u);
  EXPECT_EQ(report["findings"][0]["published"], "batch 16 -> 64, random order: 20% slower");
  EXPECT_EQ(report["sentences"], 6);
}

TEST_F(BenchInference, QuickPrintsATableAndWritesAPage) {
  ASSERT_EQ(bench({"--quick", "--length", "16", "--sentences", "5", "--html", path("page.html")}),
            0)
      << err_;
  for (const char* part : {"5 sentences (the first 5 of 6 lines of lines.txt)", "batch 64",
                           "packed, sorted", "bf16", "texts of 16 tokens", "speed-up"})
    EXPECT_NE(out_.find(part), std::string::npos) << part << "\n" << out_;
  EXPECT_NE(read_file(path("page.html")).find("Runtimes side by side"), std::string::npos);
}

TEST_F(BenchInference, RandomWeightsWithoutAModel) {
  ASSERT_EQ(run({"bench", "inference", "--quick", "--json", "--precision", "fp32", "--batch-size",
                 "2", "--length", "8", "--sentences", "3", "--text", text_path()}),
            0)
      << err_;
  EXPECT_TRUE(says("note: the weights are random")) << err_;
  EXPECT_EQ(json()["results"][0]["model"], "random weights of MiniLM's size");
}

TEST_F(BenchInference, RefusesWhatItCannotMeasure) {
  EXPECT_EQ(bench({"--batch-size", "0"}), 2);
  EXPECT_TRUE(says("--batch-size: expected whole numbers from 1; got '0'")) << err_;
  EXPECT_EQ(bench({"--batch-size", "70000"}), 2);
  EXPECT_EQ(bench({"--length", "65"}), 2);
  EXPECT_TRUE(says("--length 65: the model takes at most 64 tokens")) << err_;
  EXPECT_EQ(bench({"--precision", "tf32"}), 2);
  EXPECT_EQ(bench({"--device", "cuda"}), 2);
  EXPECT_EQ(bench({"--text", path("absent.txt")}), 1);
  EXPECT_TRUE(says("absent.txt")) << err_;
  write_file_atomically(path("empty.txt"), "");
  EXPECT_EQ(bench({"--text", path("empty.txt")}), 1);
  write_file_atomically(path("blank.txt"), "\n  \n\n");
  EXPECT_EQ(bench({"--text", path("blank.txt")}), 1);
  EXPECT_TRUE(says("blank.txt holds blank lines only")) << err_;
  EXPECT_EQ(bench({"--peers", path("encoder")}), 1);
  EXPECT_TRUE(says("bin/python")) << err_;
  EXPECT_EQ(run({"bench", "inference", "--preset", "bert-mini"}), 2);
  EXPECT_EQ(run({"bench", "step", "--batch-size", "1", "2"}), 2);
  EXPECT_TRUE(says("bench step takes one; got 2")) << err_;
  ASSERT_EQ(run(small_run("decoder", {"--max-steps", "1", "--eval-steps", "0"})), 0) << err_;
  EXPECT_EQ(run({"bench", "inference", path("decoder"), "--text", path("lines.txt")}), 1);
  EXPECT_TRUE(says("GPT-2 generates text; expected an encoder")) << err_;
  EXPECT_TRUE(says("bench decode")) << err_;
}

// Runs `bench inference` with a fake virtual environment. Its Python interpreter is a script whose
// behaviour (valid answers, crash, hang) the variable FAKE_PEER selects.
class BenchPeers : public BenchInference {
 protected:
  void SetUp() override {
    BenchInference::SetUp();
    if (IsSkipped()) return;
    if (std::system("python3 -c 'import json' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
    create_folder(path("venv/bin"));
    const std::string script = R"(#!/usr/bin/env python3
import json, os, sys, time
mode = os.environ["FAKE_PEER"]
for line in sys.stdin:
    question = json.loads(line)
    do = question["do"]
    if do == "packages":
        names = ["onnxruntime"] if mode == "lacks" else ["onnxruntime", "torch", "transformers", "onnx"]
        answer = {"packages": {name: "1.0" for name in names}}
    elif do == "run":
        if mode == "garbage":
            print("hello")
        if mode == "dies":
            print("out of luck", file=sys.stderr)
            sys.exit(3)
        if mode == "hangs":
            time.sleep(60)
        vectors = json.load(open(os.environ["FAKE_VECTORS"]))["embeddings"]
        if mode == "wrong":
            vectors = [[1.0] + [0.0] * (len(vectors[0]) - 1)] * len(vectors)
        known = question["set"] == "mixed"
        answer = {"ms": 2.0, "vectors": [vectors[i] if known else vectors[0] for i in question["vectors"]]}
        if mode == "short":
            answer = {"ms": 2.0, "vectors": []}
    else:
        answer = {"error": "cannot open"} if do == "open" and mode == "closed" else {"done": True}
    print(json.dumps(answer), flush=True)
)";
    write_file_atomically(path("venv/bin/python"), script);
    fs::permissions(path("venv/bin/python"), fs::perms::owner_all);
    std::string lines;  // without the blank ones
    for (const int words : kWords) {
      for (int i = 0; i < words; ++i) lines += i == 0 ? "one" : " two";
      lines += "\n";
    }
    write_file_atomically(path("plain.txt"), lines);
    ASSERT_EQ(run({"embed", path("encoder"), path("plain.txt"), "--no-normalize", "--json"}), 0)
        << err_;
    write_file_atomically(path("vectors.json"), out_);
  }

  int bench_with(const std::string& mode, const Arguments& more = {}) {
    Arguments args{"--quick",  "--precision", "fp32",   "--batch-size", "2",
                   "--length", "8",           "--json", "--peers",      path("venv").string()};
    args.insert(args.end(), more.begin(), more.end());
    return bench(args, {"FAKE_PEER=" + mode, "FAKE_VECTORS=" + path("vectors.json").string()});
  }
  std::vector<Json> peers() const {
    std::vector<Json> rows;
    const Json report = json();
    for (const Json& r : report["results"])
      if (r["runtime"] != "brrr" && r["length"] == "mixed") rows.push_back(r);
    return rows;
  }
};

TEST_F(BenchPeers, StandBesideOurs) {
  ASSERT_EQ(bench_with("good"), 0) << err_;
  const std::vector<Json> rows = peers();
  ASSERT_EQ(rows.size(), 4u) << "onnxruntime and pytorch, in random and sorted order";
  for (const Json& r : rows) {
    EXPECT_EQ(r["agrees"], true) << r;
    EXPECT_LT(r["max_difference"].get<double>(), 1e-5);
    EXPECT_NEAR(r["ms_per_sentence"].get<double>(), 2.0 / 6, 1e-9);
    EXPECT_EQ(r["real_tokens"], kRealTokens);
    // Padded to the longest of each batch, without rounding.
    if (r["sorted"] == true) {
      EXPECT_EQ(r["padded_tokens"], 2 * (32 + 10 + 4));
    }
  }
  EXPECT_EQ(json()["versions"]["onnxruntime"], "1.0");
  EXPECT_TRUE(says("openvino is left out: ")) << err_;
}

TEST_F(BenchPeers, VectorsOfAnotherModelAreTold) {
  ASSERT_EQ(bench_with("wrong"), 0) << err_;
  ASSERT_EQ(peers().size(), 4u);
  for (const Json& r : peers()) EXPECT_EQ(r["agrees"], false);
  EXPECT_TRUE(says("the vectors of onnxruntime fp32 are not those of the model")) << err_;
}

TEST_F(BenchPeers, FailuresLeaveThemOut) {
  const std::vector<std::tuple<std::string, std::string, Arguments>> cases{
      {"dies", "onnxruntime fp32 is left out: it ended with exit status 3: out of luck", {}},
      {"garbage", "expected a JSON object on one line; got 'hello'", {}},
      {"hangs", "onnxruntime fp32 is left out: no answer within", {"--peer-timeout", "5"}},
      {"short", "its answer lacks the milliseconds or the vectors", {}},
      {"closed", "onnxruntime fp32 is left out: cannot open", {}},
      {"lacks", "lacks torch, transformers, onnx, which write the ONNX file", {}}};
  for (const auto& [mode, message, more] : cases) {
    SCOPED_TRACE(mode);
    ASSERT_EQ(bench_with(mode, more), 0) << err_;
    EXPECT_TRUE(says(message)) << err_;
    EXPECT_TRUE(peers().empty());
    EXPECT_FALSE(json()["notes"].empty());
    row(json()["results"], "brrr", "packed", false, 2);
  }
}

}  // namespace
}  // namespace brrr::test
