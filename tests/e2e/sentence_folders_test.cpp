// `embed` with folders of sentence-transformers against the vectors of the library: modules behind
// the pooling, prompts, static and word embeddings, shortened vectors, similarity. Folders and
// vectors are those of tests/golden/make_sentence_goldens.py.

#include <cmath>
#include <set>
#include <sstream>

#include "e2e/run.h"
#include "formats/safetensors.h"

namespace brrr::test {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

class SentenceFolders : public EndToEnd {
 protected:
  io::SafetensorsFile golden_{fs::path(BRRR_SOURCE_DIR) /
                              "tests/golden/sentence_folders.safetensors"};

  std::string text_of(const std::string& tensor) const {
    const auto bytes = golden_.get(tensor).bytes;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::vector<float> numbers_of(const std::string& tensor) const {
    std::vector<float> out(static_cast<size_t>(golden_.get(tensor).shape.elements()));
    io::copy_as_f32(golden_.get(tensor), out);
    return out;
  }
  /// Writes the files of a folder, and the texts.
  std::string unpacked(const std::string& name) {
    const std::string prefix = "files/" + name + "/";
    for (const io::TensorView& t : golden_.tensors()) {
      if (!t.name.starts_with(prefix)) continue;
      const fs::path file = path(name) / t.name.substr(prefix.size());
      fs::create_directories(file.parent_path());
      write_file_atomically(file, text_of(t.name));
    }
    write_file_atomically(path("texts.txt"), text_of("texts") + "\n");
    return path(name).string();
  }
  Arguments folders() const {
    std::set<std::string> names;
    for (const io::TensorView& t : golden_.tensors())
      if (t.name.starts_with("truncated/")) names.insert(t.name.substr(10));
    return {names.begin(), names.end()};
  }
  /// The numbers that `embed` prints for the texts, one vector after the other.
  std::vector<float> embed(const std::string& folder, const Arguments& more) {
    Arguments args{"embed", folder, path("texts.txt").string(), "--json", "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    EXPECT_EQ(run(args), 0) << err_;
    std::vector<float> all;
    const Json j = Json::parse(out_, nullptr, false);
    if (!j.is_object()) return all;
    for (const Json& vector : j["embeddings"])
      for (const Json& x : vector) all.push_back(x.get<float>());
    return all;
  }
  void expect_near(const std::vector<float>& got, const std::string& tensor) {
    const std::vector<float> expected = numbers_of(tensor);
    ASSERT_EQ(got.size(), expected.size()) << tensor;
    double largest = 0, worst = 0;
    for (const float x : expected) largest = std::max(largest, std::abs(static_cast<double>(x)));
    for (size_t i = 0; i < got.size(); ++i) {
      const double gap = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
      if (!(gap <= worst)) worst = gap;
    }
    EXPECT_LT(worst, 2e-6 * largest) << tensor;
  }
};

TEST_F(SentenceFolders, GiveTheVectorsOfTheLibrary) {
  EXPECT_EQ(folders().size(), 8u);
  for (const std::string& name : folders()) {
    SCOPED_TRACE(name);
    const std::string folder = unpacked(name);
    expect_near(embed(folder, {}), "vectors/" + name);
    expect_near(embed(folder, {"--batch-size", "2"}), "vectors/" + name);
    expect_near(embed(folder, {"--truncate-dim", "5"}), "truncated/" + name);
    for (const char* prompt : {"query", "document"})
      if (golden_.find("vectors/" + name + "/" + prompt) != nullptr)
        expect_near(embed(folder, {"--prompt-name", prompt}),
                    "vectors/" + name + "/" + std::string(prompt));
  }
}

// The lines by their similarity to the first text, as encode_query() and encode_document() compare.
TEST_F(SentenceFolders, RankTextsByTheirSimilarity) {
  for (const std::string& name : folders()) {
    SCOPED_TRACE(name);
    const std::string folder = unpacked(name), texts = path("texts.txt").string();
    const std::string query = text_of("texts").substr(0, text_of("texts").find('\n'));
    const std::vector<float> expected = numbers_of("similarity/" + name);
    ASSERT_EQ(run({"embed", folder, texts, "--similarity", query, "--jsonl", "--threads", "1"}), 0)
        << err_;
    std::istringstream lines(out_);
    double before = INFINITY;
    std::set<int64_t> seen;
    for (std::string line; std::getline(lines, line);) {
      const Json j = Json::parse(line);
      const auto at = j["line"].get<int64_t>();
      seen.insert(at);
      EXPECT_NEAR(j["similarity"].get<double>(),
                  static_cast<double>(expected[static_cast<size_t>(at - 1)]), 3e-6);
      EXPECT_LE(j["similarity"].get<double>(), before);
      before = j["similarity"].get<double>();
    }
    EXPECT_EQ(seen.size(), expected.size());
  }
  const std::string folder = unpacked("pooled_prompts"), texts = path("texts.txt").string();
  ASSERT_EQ(run({"embed", folder, texts, "--similarity", "a cat", "--json"}), 0) << err_;
  EXPECT_EQ(Json::parse(out_)["texts"].size(), 7u);
  ASSERT_EQ(run({"embed", folder, texts, "--similarity", "a cat"}), 0) << err_;
  EXPECT_NE(out_.find("\tCats and dogs\n"), std::string::npos) << out_;
}

TEST_F(SentenceFolders, StandardInputAndLinesOfJson) {
  const std::string folder = unpacked("static"), texts = path("texts.txt").string();
  ASSERT_EQ(run({"embed", folder, texts}), 0) << err_;
  const std::string vectors = out_;
  ASSERT_EQ(run({"embed", folder, "-"}, {}, texts), 0) << err_;
  EXPECT_EQ(out_, vectors);
  ASSERT_EQ(run({"embed", folder, texts, "--json-lines"}), 0) << err_;
  std::istringstream lines(out_), texts_again(text_of("texts"));
  for (std::string line, text; std::getline(lines, line) && std::getline(texts_again, text);) {
    const Json j = Json::parse(line);
    EXPECT_EQ(j["text"], text);
    EXPECT_EQ(j["embedding"].size(), 9u);
  }
  // A text without tokens has no mean.
  EXPECT_NE(vectors.find("\n0 0 0 0 0 0 0 0 0\n"), std::string::npos) << vectors;
}

TEST_F(SentenceFolders, WhatDoesNotGoTogetherIsRefused) {
  const std::string prompts = unpacked("prompts"), fixed = unpacked("static"),
                    texts = path("texts.txt").string();
  const auto fails = [&](const Arguments& args, int code, const std::string& part) {
    EXPECT_EQ(run(args), code) << out_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
  };
  fails({"embed", prompts, path("missing.txt").string()}, 2, "there is no file or folder");
  fails({"embed", path("missing.txt").string()}, 2, "there is no file or folder");
  fails({"classify", prompts, path("missing.txt").string()}, 2, "there is no file or folder");
  fails({"embed", prompts, path("missing").string()}, 2, "there is no file or folder");
  fails({"embed", path("missing").string(), prompts, texts}, 2, "there is no file or folder");
  fails({"embed", prompts, prompts, texts}, 2, "expected one model folder");
  fails({"embed", prompts, "--text", path("missing.txt").string()}, 1, "missing.txt");
  fails({"embed", prompts, texts, "--prompt-name", "other"}, 2,
        "has no prompt of that name; it has document, query");
  fails({"embed", unpacked("model2vec"), texts, "--prompt-name", "query"}, 2, "it has none");
  fails({"embed", prompts, texts, "--truncate-dim", "73"}, 2,
        "the model's vectors have 72 numbers");
  fails({"embed", prompts, texts, "--similarity", "a", "--output", "v.npy"}, 2,
        "texts are printed, not vectors");
  fails({"embed", prompts, texts, "--json-lines", "--output", "v.npy"}, 2,
        "expected --json-lines or --output, not both");
  fails({"embed", prompts, texts, "--json-lines", "--json"}, 2,
        "expected --json or --json-lines, not both");
  fails({"embed", prompts, texts, "--prompt-name", "query", "--max-length", "4"}, 1,
        "no token of the text is left behind its prompt");
  fails({"embed", fixed, texts, "--pooling", "max"}, 2, "leave --pooling out");
  fails({"embed", fixed, texts, "--device", "cuda"}, 2, "runs on the CPU alone");
  fails({"embed", fixed, texts, "--precision", "bf16"}, 2, "is read as fp32");
  fails({"embed", fixed, texts, "--memory-limit", "1MiB"}, 3, "the table does not fit in memory");
  fails({"export", unpacked("labse"), "--output", path("m.onnx").string()}, 1,
        "which run in `embed` alone");
}

TEST_F(SentenceFolders, WeightsThatDoNotFitAreNamed) {
  const auto fails = [&](const std::string& folder, const std::string& part) {
    EXPECT_NE(run({"embed", folder, path("texts.txt").string()}), 0);
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
  };
  const std::string labse = unpacked("labse");
  const fs::path dense = path("labse") / "2_Dense";
  const std::string config = read_file(dense / "config.json");
  Json j = Json::parse(config);
  j["in_features"] = 9;
  write_file_atomically(dense / "config.json", j.dump());
  fails(labse, "the module takes vectors of 9 numbers, and gets 12");
  j["in_features"] = 12;
  j["out_features"] = 11;
  write_file_atomically(dense / "config.json", j.dump());
  fails(labse, "the tensor linear.weight is [12,12]; expected [11,12]");
  j["out_features"] = 12;
  j["use_residual"] = true;
  j["bias"] = false;
  write_file_atomically(dense / "config.json", j.dump());
  EXPECT_EQ(run({"embed", labse, path("texts.txt").string()}), 0) << err_;
  fs::copy_file(path("labse") / "model.safetensors", dense / "model.safetensors",
                fs::copy_options::overwrite_existing);
  fails(labse, "the tensor linear.weight of the module 2_Dense is missing");

  const std::string words = unpacked("words");
  const fs::path table = path("words") / "model.safetensors";
  const auto put = [&](const fs::path& file, const std::vector<io::TensorView>& tensors) {
    fs::remove(file);
    io::write_safetensors(file, tensors);
  };
  const std::vector<float> few(12, 0.5f);
  const auto view = [&](const char* name, DType dtype, const Shape& shape) {
    return io::TensorView{
        name, dtype, shape,
        std::as_bytes(std::span(few))
            .first(static_cast<size_t>(shape.elements() * static_cast<int64_t>(bytes_of(dtype))))};
  };
  put(table, {view("emb_layer.weight", DType::f32, {2, 6})});
  fails(words, "tokens, and the table 2");
  put(table, {view("emb_layer.weight", DType::f32, {12})});
  fails(words, "expected [tokens, numbers] with at least one element");
  put(table, {view("other", DType::f32, {12})});
  fails(words, "the tensor emb_layer.weight is missing");
  const std::string folded = unpacked("model2vec");
  const fs::path own = path("model2vec") / "model.safetensors";
  const io::TensorView rows = view("embeddings", DType::f32, {2, 6});
  put(own, {rows, view("mapping", DType::f32, {12})});
  fails(folded, "the tensor mapping is f32; expected integers");
  put(own, {rows, view("mapping", DType::i32, {12})});
  fails(folded, "mapping names the row 1056964608 of 2");
  put(own, {rows, view("weights", DType::f32, {5})});
  fails(folded, "weights has 5 numbers for 2 tokens");
}

}  // namespace
}  // namespace brrr::test
