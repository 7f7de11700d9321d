// Encoders from end to end: one learns to fill masks, is killed and resumed, and is fine-tuned for
// classes, ratings and tags, which `classify` then tells; `embed` gives vectors; plans are exact.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "e2e/encoder_runs.h"
#include "formats/safetensors.h"
#include "support/models_folder.h"

namespace brrr::test {
namespace {

class Encoders : public EncoderRuns {};

TEST_F(Encoders, LearnToFillMasksAndResume) {
  // A learning rate that does not depend on the number of steps.
  const auto steps = [](const char* count) {
    return Options{"--max-steps", count, "--warmup-steps", "0", "--lr-scheduler-type", "constant"};
  };
  ASSERT_EQ(run(pretraining("whole", steps("40"))), 0) << err_;
  const Json whole = Json::parse(out_);
  EXPECT_EQ(whole["arena_bytes"], whole["forecast_arena_bytes"]);
  ASSERT_EQ(run(pretraining("part", steps("18"))), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "40"}), 0) << err_;
  EXPECT_TRUE(read_file(path("part") / "model.safetensors") ==
              read_file(path("whole") / "model.safetensors"))
      << "other bits";
  // Cut into micro-batches and computed again in the backward pass, a step has the same masks.
  for (const Options& way : {Options{"--rematerialize", "blocks"},
                             Options{"--batch-size", "2", "--gradient-accumulation-steps", "2"}}) {
    Options options{"--max-steps", "3", "--eval-steps", "0", "--dropout", "0"};
    ASSERT_EQ(run(pretraining("plain", options)), 0) << err_;
    const double plain = Json::parse(out_)["train_loss"];
    put_options(options, way);
    options.push_back("--overwrite");
    ASSERT_EQ(run(pretraining("way", options)), 0) << err_;
    EXPECT_NEAR(Json::parse(out_)["train_loss"].get<double>(), plain, 1e-4) << way[0];
    fs::remove_all(path("plain"));
  }
  ASSERT_EQ(run(pretraining("words", {"--max-steps", "5", "--whole-word-mask"})), 0) << err_;
  ASSERT_EQ(run({"plan", path("whole").string(), "--json"}), 0) << err_;
  EXPECT_GT(Json::parse(out_)["arena_bytes"].get<int64_t>(), 0);
  ASSERT_EQ(run({"profile", path("whole").string(), "--seconds", "0.3", "--json"}), 0) << err_;
}

TEST_F(Encoders, FillMasks) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "400", "--eval-steps", "0"})), 0) << err_;
  const std::string model = path("base").string();
  ASSERT_EQ(run_on("line 1 of a [MASK] text, with words that repeat.\n"
                   "line 3 <mask> a small [MASK], with words\n",
                   {"fill-mask", "--model", model, "--json"}),
            0)
      << err_;
  const Json results = Json::parse(out_)["results"];
  ASSERT_EQ(results.size(), 2u);
  ASSERT_EQ(results[1].size(), 2u) << "a list for each mask";
  EXPECT_EQ(results[0][0][0]["token_str"], "small") << out_;
  EXPECT_EQ(results[1][0][0]["token_str"], "of") << out_;
  EXPECT_EQ(results[1][1][0]["token_str"], "text") << out_;
  double sum = 0;
  for (const Json& guess : results[0][0]) sum += guess["score"].get<double>();
  EXPECT_GT(sum, 0.5);
  EXPECT_LE(sum, 1.0001);
  EXPECT_EQ(run_on("no mask\n", {"fill-mask", "--model", model}), 1);
  EXPECT_NE(err_.find("input.txt, line 1: the text has no [MASK]"), std::string::npos) << err_;
  EXPECT_EQ(run_on("text\n", {"classify", "--model", model}), 1);
  EXPECT_NE(err_.find("has no classes: its model is for masked tokens"), std::string::npos) << err_;
  EXPECT_EQ(run({"generate", "--model", model, "--prompt", "a"}), 1);
  EXPECT_NE(err_.find("an encoder does not generate text"), std::string::npos) << err_;
}

TEST_F(Encoders, ClassifyTexts) {
  make_base();
  ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv")), 0) << err_;
  const Json result = Json::parse(out_);
  EXPECT_GT(result["accuracy"].get<double>(), 0.95) << err_;
  EXPECT_EQ(result["val_tokens"], 24) << "every tenth row";
  EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]);
  const std::string model = path("classes").string();
  ASSERT_EQ(run_on("line 5 of a small text with words\n\nline 5 of a small text that repeat\n",
                   {"classify", "--model", model, "--json"}),
            0)
      << err_;
  const Json results = Json::parse(out_)["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["label"], "good");
  EXPECT_EQ(results[2]["label"], "bad");
  EXPECT_NEAR(
      results[0]["scores"]["good"].get<double>() + results[0]["scores"]["bad"].get<double>(), 1,
      1e-6);
  EXPECT_NE(err_.find("note: 1 line is empty"), std::string::npos) << err_;

  // Killed after the first evaluation and resumed, it is the same run.
  for (const auto& [name, count] : {std::pair{"part", "40"}, {"whole", "60"}})
    ASSERT_EQ(run(fine_tuning(name, "classify", "classes.tsv",
                              {"--max-steps", count, "--warmup-steps", "0", "--lr-scheduler-type",
                               "constant", "--no-load-best-model-at-end"})),
              0)
        << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "60"}), 0) << err_;
  EXPECT_TRUE(read_file(path("part") / "model.safetensors") ==
              read_file(path("whole") / "model.safetensors"))
      << "other bits";

  // A folder with the task keeps its head, and a file with other labels gets a new one.
  ASSERT_EQ(run(fine_tuning("again", "classify", "classes.tsv",
                            {"--init-from", model, "--max-steps", "1", "--learning-rate", "0"})),
            0)
      << err_;
  EXPECT_GT(Json::parse(out_)["accuracy"].get<double>(), 0.95);
  ASSERT_EQ(run(fine_tuning("pairs", "classify", "pairs.tsv", {"--init-from", model})), 0) << err_;
  EXPECT_NE(err_.find("has labels that the model lacks: the model gets a new head for 0, 1"),
            std::string::npos)
      << err_;
  EXPECT_GT(Json::parse(out_)["accuracy"].get<double>(), 0.9);
  ASSERT_EQ(run_on("line 5 of a small text\twith words\n",
                   {"classify", "--model", path("pairs").string(), "--pairs", "--all-scores"}),
            0)
      << err_;
  EXPECT_TRUE(out_.starts_with("1\t0.")) << out_;

  // As many labels as before, but others: nothing is left of the head, and the trunk stays.
  std::string renamed = read_file(path("classes.tsv"));
  for (size_t at = 0; (at = renamed.find("good\t", at)) != std::string::npos;)
    renamed.replace(at, 4, "fine");
  put("renamed.tsv", renamed);
  ASSERT_EQ(run(fine_tuning("renamed", "classify", "renamed.tsv",
                            {"--init-from", model, "--max-steps", "1", "--learning-rate", "0"})),
            0)
      << err_;
  EXPECT_NE(
      err_.find("these parameters are new, not in the model: classifier.weight, classifier.bias"),
      std::string::npos)
      << err_;
  const auto head_of = [&](const std::string& name) {
    const io::SafetensorsFile file(path(name) / "model.safetensors");
    const auto bytes = file.get("classifier.weight").bytes;
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_NE(head_of("renamed"), head_of("classes"));
  // A fine-tuned model goes on with text: it gets the head that tells masked tokens.
  ASSERT_EQ(run(pretraining("more", {"--init-from", model, "--max-steps", "2", "--tokenizer", model,
                                     "--architecture", "bert"})),
            0)
      << err_;
  EXPECT_NE(read_file(path("more") / "config.json").find("BertForMaskedLM"), std::string::npos);
  // The best weights are saved whenever they are found.
  ASSERT_EQ(run(fine_tuning("best", "classify", "classes.tsv",
                            {"--max-steps", "45", "--eval-steps", "3", "--save-steps", "7"})),
            0)
      << err_;
  EXPECT_EQ(err_.find("whose checkpoint is gone"), std::string::npos) << err_;
  EXPECT_GT(Json::parse(out_)["val_tokens"].get<int64_t>(), 0);

  // Everything that looks at a run before it goes.
  Options plan = fine_tuning("planned", "classify", "classes.tsv");
  plan[0] = "plan";
  plan.erase(std::find(plan.begin(), plan.end(), "--output-dir"),
             std::find(plan.begin(), plan.end(), "--output-dir") + 2);
  plan.erase(std::find(plan.begin(), plan.end(), "--eval-steps"),
             std::find(plan.begin(), plan.end(), "--eval-steps") + 2);
  ASSERT_EQ(run(plan), 0) << err_;
  EXPECT_EQ(Json::parse(out_)["arena_bytes"], result["arena_bytes"]);
  ASSERT_EQ(run({"plan", model, "--json"}), 0) << err_;
  plan[0] = "profile";
  put_options(plan, {"--seconds", "0.3"});
  ASSERT_EQ(run(plan), 0) << err_;
  ASSERT_EQ(run(fine_tuning("fitted", "classify", "classes.tsv",
                            {"--fit", "--memory-limit", "200MiB", "--max-steps", "3",
                             "--rematerialize", "blocks"})),
            0)
      << err_;
}

TEST_F(Encoders, RateTextsAndTagWords) {
  make_base();
  ASSERT_EQ(run(fine_tuning("values", "regress", "values.tsv", {"--num-train-epochs", "8"})), 0)
      << err_;
  EXPECT_GT(Json::parse(out_)["pearson"].get<double>(), 0.8) << err_;
  ASSERT_EQ(run_on("line 1 of a small text\nline 1 of a small text words words words\n",
                   {"classify", "--model", path("values").string(), "--json"}),
            0)
      << err_;
  const Json rated = Json::parse(out_)["results"];
  EXPECT_LT(rated[0]["label"].get<double>() + 1, rated[1]["label"].get<double>()) << out_;

  ASSERT_EQ(run(fine_tuning("tags", "tokens", "tags.txt")), 0) << err_;
  EXPECT_GT(Json::parse(out_)["f1"].get<double>(), 0.95) << err_;
  ASSERT_EQ(run_on("line small text of words\n", {"classify", "--model", path("tags").string()}), 0)
      << err_;
  EXPECT_TRUE(out_.starts_with("line\tO\t")) << out_;
  EXPECT_NE(out_.find("\nsmall\tB-N\t"), std::string::npos) << out_;
  EXPECT_NE(out_.find("\ntext\tI-N\t"), std::string::npos) << out_;
}

TEST_F(Encoders, EmbedTexts) {
  make_base();
  const std::string model = path("base").string(), lines = "line 1 of a small text\n\nwith words";
  ASSERT_EQ(run_on(lines, {"embed", "--model", model, "--json"}), 0) << err_;
  const Json j = Json::parse(out_);
  EXPECT_EQ(j["dimension"], 32);
  EXPECT_TRUE(j["sentences_per_second"].is_number());
  ASSERT_EQ(j["embeddings"].size(), 3u);
  EXPECT_NE(err_.find("does not say how to pool token vectors"), std::string::npos) << err_;
  ASSERT_EQ(run_on(lines, {"embed", "--model", model, "--batch-size", "1"}), 0) << err_;
  std::string expected;
  for (const Json& vector : j["embeddings"])
    for (size_t i = 0; i < vector.size(); ++i)
      expected += fmt::format("{}{}", vector[i].get<float>(), i + 1 < vector.size() ? " " : "\n");
  EXPECT_EQ(out_, expected) << "the shortest decimals that give the same numbers";
  ASSERT_EQ(run_on(lines, {"embed", "--model", model, "--output", path("v.npy").string()}), 0)
      << err_;
  const std::string npy = read_file(path("v.npy"));
  float first = 0;
  std::memcpy(&first, npy.data() + npy.size() - 3 * 32 * sizeof(float), sizeof first);
  EXPECT_EQ(first, j["embeddings"][0][0].get<float>());
  ASSERT_EQ(run_on(lines, {"embed", "--model", model, "--max-length", "4"}), 0) << err_;
  EXPECT_NE(err_.find("1 of 3 texts is longer than 4 tokens: only its beginning"),
            std::string::npos)
      << err_;
}

// A ModernBERT whose windows are shorter than its texts learns, resumes, is fine-tuned and used.
TEST_F(Encoders, ModernBertLearnsAndIsFineTuned) {
  const Options modern{
      "--preset", "modernbert-mini", "--local-attention", "6", "--n-layer", "4", "--eval-steps",
      "0"};
  const auto pretrained = [&](const std::string& name, const char* steps) {
    Options more = modern;
    put_options(more, {"--max-steps", steps, "--warmup-steps", "0", "--lr-scheduler-type",
                       "constant", "--dropout", "0.1"});
    return pretraining(name, more);
  };
  ASSERT_EQ(run(pretrained("whole", "40")), 0) << err_;
  ASSERT_EQ(run(pretrained("part", "18")), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "40"}), 0) << err_;
  EXPECT_TRUE(read_file(path("part") / "model.safetensors") ==
              read_file(path("whole") / "model.safetensors"))
      << "other bits";
  Options longer = modern;
  put_options(longer, {"--max-steps", "400"});
  ASSERT_EQ(run(pretraining("base", longer)), 0) << err_;
  const Json result = Json::parse(out_);
  EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]);
  const std::string base = path("base").string();
  ASSERT_EQ(run_on("line 3 of a [MASK] text, with words that repeat.\n",
                   {"fill-mask", "--model", base, "--json"}),
            0)
      << err_;
  // Words that stand at this place and at others are about as likely after so few steps.
  const Json masked = Json::parse(out_)["results"][0][0];
  EXPECT_TRUE(std::any_of(masked.begin(), masked.begin() + 3, [](const Json& guess) {
    return guess["token_str"] == "small";
  })) << out_;
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    ASSERT_EQ(run(fine_tuning("classes", "classify", "classes.tsv",
                              {"--precision", precision, "--overwrite"})),
              0)
        << err_;
    EXPECT_GT(Json::parse(out_)["accuracy"].get<double>(), 0.95) << precision << "\n" << err_;
  }
  ASSERT_EQ(run(fine_tuning("tags", "tokens", "tags.txt")), 0) << err_;
  EXPECT_GT(Json::parse(out_)["f1"].get<double>(), 0.95) << err_;
  const std::string lines = "line 1 of a small text with words\nwords\n";
  ASSERT_EQ(run_on(lines, {"embed", "--model", base}), 0) << err_;
  const std::string together = out_;
  ASSERT_EQ(run_on(lines, {"embed", "--model", base, "--batch-tokens", "1"}), 0) << err_;
  EXPECT_EQ(out_, together);
  ASSERT_EQ(run({"plan", base, "--json"}), 0) << err_;
  ASSERT_EQ(run({"export", base, "--format", "onnx", "--output", path("m.onnx").string()}), 0)
      << err_;
}

TEST_F(Encoders, BatchesByTokensChangeNoBit) {
  make_base();
  const std::string model = path("base").string();
  std::string lines, masked;
  for (int i = 0; i < 60; ++i) {
    std::string line = "line " + std::to_string(i);
    for (int n = 0; n < i * 7 % 11; ++n) line += " of a small text";
    lines += i % 9 == 4 ? "\n" : line + "\n";
    masked += (i % 3 == 0 ? "[MASK] with [MASK] " : "[MASK] ") + line + "\n";
  }
  lines += "no end of line";
  for (const auto& [verb, text] : {std::pair{"embed", lines}, {"fill-mask", masked}}) {
    ASSERT_EQ(run_on(text, {verb, "--model", model}), 0) << err_;
    const std::string all = out_;
    for (const Options& bounds :
         {Options{"--batch-tokens", "1"}, Options{"--batch-tokens", "40"},
          Options{"--batch-size", "7"}, Options{"--batch-tokens", "64", "--batch-size", "2"}}) {
      Options args{verb, "--model", model};
      put_options(args, bounds);
      ASSERT_EQ(run_on(text, args), 0) << err_;
      EXPECT_EQ(out_, all) << verb << " " << bounds[0] << " " << bounds[1];
    }
  }
}

/// The documents of `rerank --json` as [{index, score}], checked to be in order.
void expect_ranked(const Json& list, const std::vector<double>& scores, double tolerance) {
  ASSERT_EQ(list.size(), scores.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto index = list[i]["index"].get<size_t>();
    EXPECT_NEAR(list[i]["score"].get<double>(), scores[index], tolerance) << index;
    if (i == 0) continue;
    const double before = list[i - 1]["score"], own = list[i]["score"];
    EXPECT_TRUE(before > own || (before == own && list[i - 1]["index"].get<size_t>() < index)) << i;
  }
}

TEST_F(Encoders, RankDocuments) {
  make_base();
  const std::string query = "line 5 of a small text";
  const std::vector<std::string> documents{"that repeat",      "with words",  "",
                                           "with words words", "that repeat", "text"};
  std::string lines, pairs;
  for (const std::string& d : documents) {
    lines += d + "\n";
    pairs += query + "\t" + d + "\n";
  }
  lines.pop_back();  // no end of line
  put("documents.txt", lines);
  const std::string file = path("documents.txt").string();
  const auto scored_by_classify = [&](const std::string& name, const std::string& label) {
    EXPECT_EQ(run_on(pairs, {"classify", "--model", path(name).string(), "--pairs", "--json"}), 0)
        << err_;
    std::vector<double> scores;
    const Json results = Json::parse(out_)["results"];
    for (const Json& result : results)
      scores.push_back(label.empty() ? result["label"].get<double>()
                                     : result["scores"][label].get<double>());
    return scores;
  };

  // Classes: the probability of the second one, or of --label.
  ASSERT_EQ(run(fine_tuning("pairs", "classify", "pairs.tsv")), 0) << err_;
  const std::string by_class = path("pairs").string();
  const std::vector<double> likely = scored_by_classify("pairs", "1");
  ASSERT_EQ(run({"rerank", by_class, query, file, "--json"}), 0) << err_;
  expect_ranked(Json::parse(out_), likely, 1e-12);
  EXPECT_NE(err_.find("note: 1 line is empty"), std::string::npos) << err_;
  ASSERT_EQ(run({"rerank", by_class, query, file, "--json", "--label", "0"}), 0) << err_;
  Json ranked = Json::parse(out_);
  expect_ranked(ranked, scored_by_classify("pairs", "0"), 1e-12);
  ASSERT_EQ(run({"rerank", query, file, "--model", by_class, "--top-k", "2"}), 0) << err_;
  EXPECT_EQ(std::ranges::count(out_, '\n'), 2) << out_;
  EXPECT_NE(out_.find("\twith words"), std::string::npos) << out_;
  EXPECT_EQ(out_.find("\tthat repeat"), std::string::npos) << out_;
  const std::string best = out_;
  ASSERT_EQ(run({"rerank", by_class, query, file, file, "--top-k", "1", "--json"}), 0) << err_;
  EXPECT_LT(Json::parse(out_)[0]["index"], 6) << "of equal documents the first comes first";
  ASSERT_EQ(run({"rerank", by_class, query, file, "--top-k", "2", "--batch-tokens", "1"}), 0)
      << err_;
  EXPECT_EQ(out_, best);

  // One value: its sigmoid, or the activation that the folder names.
  ASSERT_EQ(run(fine_tuning("values", "regress", "values.tsv", {"--max-steps", "30"})), 0) << err_;
  fs::remove(path("values") / "checksums.json");
  const std::vector<double> values = scored_by_classify("values", "");
  std::vector<double> sigmoids;
  for (const double x : values) sigmoids.push_back(1 / (1 + std::exp(-x)));
  const Options rank{"rerank", path("values").string(), query, file, "--json"};
  ASSERT_EQ(run(rank), 0) << err_;
  expect_ranked(Json::parse(out_), sigmoids, 1e-7);
  const std::string config = read_file(path("values") / "config.json");
  const auto with_key = [&](const std::string& key) {
    write_file_atomically(path("values") / "config.json", "{" + key + "," + config.substr(1));
  };
  const std::string identity = R"("torch.nn.modules.linear.Identity")";
  for (const std::string& key : {R"("sentence_transformers":{"activation_fn":)" + identity + "}",
                                 R"("sbert_ce_default_activation_function":)" + identity}) {
    with_key(key);
    ASSERT_EQ(run(rank), 0) << err_;
    expect_ranked(Json::parse(out_), values, 1e-7);
  }
  with_key(R"("sentence_transformers":{"activation_fn":"somebody.Own"})");
  ASSERT_EQ(run(rank), 0) << err_;
  expect_ranked(Json::parse(out_), sigmoids, 1e-7);
  with_key(R"("sentence_transformers":{"activation_fn":"torch.nn.Bilinear"})");
  EXPECT_EQ(run(rank), 1);
  EXPECT_NE(err_.find("the activation 'torch.nn.Bilinear' is not supported"), std::string::npos)
      << err_;
  write_file_atomically(path("values") / "config.json", config);
  put("values/config_sentence_transformers.json",
      R"({"model_type":"CrossEncoder","activation_fn":)" + identity + "}");
  put("values/modules.json", "[]");
  ASSERT_EQ(run(rank), 0) << err_;
  expect_ranked(Json::parse(out_), values, 1e-7);

  // Vectors: their similarity.
  const std::string base = path("base").string();
  ASSERT_EQ(run({"embed", base, file, "--similarity", query, "--json"}), 0) << err_;
  const Json texts = Json::parse(out_)["texts"];
  std::vector<double> similarities(documents.size());
  for (const Json& text : texts)
    similarities[text["line"].get<size_t>() - 1] = text["similarity"].get<double>();
  ASSERT_EQ(run({"rerank", base, query, file, "--json"}), 0) << err_;
  expect_ranked(Json::parse(out_), similarities, 0);

  const auto expect = [&](const Options& args, int code, const std::string& part) {
    EXPECT_EQ(run(args), code) << part << "\n" << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << part << "\n" << err_;
  };
  expect({"rerank", base, "line 1 of a small text", file, "--max-length", "4"}, 0,
         "note: the query is longer than 4 tokens: only its beginning was read");
  put("lines.txt", std::string(20000, '\n') + "text");
  ASSERT_EQ(run({"rerank", base, query, path("lines.txt").string(), "--json", "--top-k", "3"}), 0)
      << err_;
  ranked = Json::parse(out_);
  ASSERT_EQ(ranked.size(), 3u);
  EXPECT_EQ(ranked[0]["index"], 20000);
  EXPECT_EQ(ranked[1]["index"], 0);
  EXPECT_EQ(ranked[2]["index"], 1);
  put("binary.dat", std::string("abc\0def\xff\nwith words\n", 19));
  ASSERT_EQ(run({"rerank", base, query, path("binary.dat").string(), "--json"}), 0) << err_;
  EXPECT_EQ(Json::parse(out_).size(), 2u);
  EXPECT_NE(err_.find("1 line is not UTF-8"), std::string::npos) << err_;
  expect({"classify", by_class, file, "--pairs"}, 1,
         "documents.txt, line 1: --pairs expects two texts separated by a tab; found no tab");
  expect({"rerank", base}, 2, "expected a query");
  expect({"rerank", base, ""}, 2, "expected a query");
  expect({"rerank", base, query, path("nowhere")}, 2, "nowhere'; expected `brrr rerank");
  expect({"rerank", base, query, file, "--label", "1"}, 2, "which have no classes");
  expect({"rerank", by_class, query, file, "--label", "good"}, 2, "has the labels 0, 1");
  expect({"rerank", by_class, query, file, "--no-truncate", "--max-length", "6"}, 1,
         "documents.txt, line 1: the text has");
  ASSERT_EQ(run(fine_tuning("tags", "tokens", "tags.txt", {"--max-steps", "1"})), 0) << err_;
  expect({"rerank", path("tags"), query, file}, 1, "cannot rank documents");
  put("empty.txt", "");
  ASSERT_EQ(run({"rerank", base, query, path("empty.txt"), "--json"}), 0) << err_;
  EXPECT_EQ(out_, "[]\n");
}

// What sentence-transformers' encode_query(), encode_document() and cos_sim give of these texts.
TEST_F(Encoders, RankByMiniLM) {
  const fs::path model = models_folder() / "minilm";
  if (!fs::exists(model)) GTEST_SKIP() << model << " is absent; tools/get_models fetches it";
  put("documents.txt",
      "The cat sits on the mat.\nStock prices fell sharply today.\n\nA kitten rests on a rug.");
  ASSERT_EQ(run({"rerank", model.string(), "A cat lies on a carpet", path("documents.txt").string(),
                 "--json"}),
            0)
      << err_;
  const Json list = Json::parse(out_);
  const std::vector<std::pair<int, double>> expected{
      {3, 0.6123}, {0, 0.5943}, {1, 0.0992}, {2, 0.0634}};
  ASSERT_EQ(list.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(list[i]["index"], expected[i].first);
    EXPECT_NEAR(list[i]["score"].get<double>(), expected[i].second, 1e-4);
  }
}

// What can be wrong with texts, labels and folders: the exit code, and what the message names.
TEST_F(Encoders, WhatIsWrongIsNamed) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  ASSERT_EQ(run(small_run("gpt", {"--max-steps", "2", "--eval-steps", "0"})), 0) << err_;
  fs::remove(path("base") / "checksums.json");  // its files are changed on purpose
  const std::string model = path("base").string();
  const auto expect = [&](const Options& args, int code, const std::string& part) {
    EXPECT_EQ(run(args), code) << part << "\n" << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << part << "\n" << err_;
    EXPECT_EQ(err_.find("bug in Brrr"), std::string::npos) << err_;
  };
  const auto expect_of_data = [&](const std::string& content, const std::string& part,
                                  const std::string& task = "classify", Options more = {}) {
    put("bad.tsv", content);
    more.push_back("--overwrite");
    expect(fine_tuning("bad", task, "bad.tsv", more), 1, part);
  };
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += std::string(i % 2 == 0 ? "a" : "b") + "\ttext of it\n";
  expect_of_data("", "bad.tsv");
  expect_of_data("label\ttext\n" + rows + "a\n", "line 22");
  expect_of_data("label\ttext\n" + rows + "\ttext\n", "line 22");
  expect_of_data("label\ttext\n" + rows + "a\t\"text\n", "line 22", "classify",
                 {"--quoting", "csv"});
  expect_of_data("label\ttext\n" + rows + "a\tcaf\xe9\n", "line 22");
  expect_of_data("label\ttext\n" + rows, "line 2", "regress");
  expect_of_data("label\ttext\n" + rows, "6 tokens, more than the context of 4", "classify",
                 {"--no-truncate", "--context", "4"});
  expect_of_data("label\ttext\na\tx\na\ty\na\tz\na\tx\na\ty\na\tz\na\tx\na\ty\na\tz\na\tx\n",
                 "every example has the label 'a'");
  expect_of_data("O B\tonly\n" + rows, "bad.tsv", "tokens");
  expect(fine_tuning("bad", "classify", "classes.tsv", {"--label-column", "stars"}), 2,
         "--label-column stars");
  expect(fine_tuning("bad", "classify", "classes.tsv", {"--val-data", path("values.tsv")}), 1,
         "values.tsv");
  expect({"train", "--task", "classify", "--data", path("classes.tsv")}, 2,
         "starts from a trained model: expected --init-from");
  expect({"train", "--task", "classify", "--init-from", model}, 2, "needs --data with one file");
  expect({"train", "--label-column", "x"}, 2, "--label-column applies to labelled texts");
  expect({"train", "--preset", "fine-tune"}, 2, "--preset fine-tune needs --task");
  expect(fine_tuning("bad", "classify", "classes.tsv", {"--sampling", "random"}), 2,
         "--sampling epoch or group_by_length");
  expect(fine_tuning("bad", "tokens", "tags.txt", {"--init-from", path("gpt")}), 1,
         "it needs an encoder");
  expect(pretraining("bad", {"--tokenizer", "char"}), 1,
         "the char tokenizer has no mask token, which a masked language model needs");
  expect(pretraining("bad", {"--tokenizer", "wordpiece:3"}), 2, "expected wordpiece:N");
  expect(pretraining("bad", {"--tokenizer", "wordpiece:100000"}), 1, "ask for ");
  expect({"embed", "--model", path("gpt").string(), "--text", text_path().string()}, 1,
         "it needs an encoder");
  expect({"embed", "--model", model, "--text", path("nowhere").string()}, 1, "nowhere");
  expect({"embed", "--model", model, "--text", text_path().string(), "--no-truncate",
          "--max-length", "5"},
         1, "text.txt, line 1: the text has ");
  expect({"embed", "--model", model, "--max-length", "33"}, 2,
         "more than the model's limit of 32 tokens");
  expect({"embed", "--model", model, "--output", "v.txt"}, 2, "ends in .npy");
  expect({"classify", "--model", model, "--pairs", "--text", text_path().string()}, 1,
         "has no classes");

  // Folders.
  fs::create_directory(path("base") / "1_Pooling");
  write_file_atomically(path("base") / "modules.json",
                        R"([{"path":"1_Pooling","type":"sentence_transformers.models.Pooling"}])");
  write_file_atomically(path("base") / "1_Pooling" / "config.json",
                        R"({"pooling_mode_attention":true})");
  expect({"embed", "--model", model, "--text", text_path().string()}, 1,
         "pooling_mode_attention is not supported");
  fs::remove(path("base") / "modules.json");
  std::string config = read_file(path("base") / "config.json");
  const size_t at = config.find("\"vocab_size\": 120");
  ASSERT_NE(at, std::string::npos) << config;
  config.replace(at, 17, "\"vocab_size\": 100");
  write_file_atomically(path("base") / "config.json", config);
  expect({"embed", "--model", model, "--text", text_path().string()}, 1, "100");
}

}  // namespace
}  // namespace brrr::test
