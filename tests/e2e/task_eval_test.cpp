// Models with a task are scored on files of labels, as their runs scored them; causal models learn
// classes, too; and files of every form give the same model.

#include "e2e/encoder_runs.h"
#include "support/packed.h"

namespace brrr::test {
namespace {

class TaskEval : public EncoderRuns {
 protected:
  /// A run whose last evaluation was on the same file as `eval`.
  Json trained(const Options& options) {
    EXPECT_EQ(run(options), 0) << err_;
    return Json::parse(out_);
  }
  Json evaluated(const std::string& name, const std::string& file, Options more = {}) {
    Options options{"eval", "--model", path(name).string(), path(file).string(), "--json"};
    options.insert(options.end(), more.begin(), more.end());
    EXPECT_EQ(run(options), 0) << err_;
    return Json::parse(out_);
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
};

// 4 ranks do not divide the 30 batches: the last round is not full.
TEST_F(TaskEval, RanksDivideAnEvaluationToTheBitsOfOne) {
  make_base();
  for (const auto& [task, file] :
       {std::pair{"classify", "classes.tsv"}, {"regress", "values.tsv"}, {"tokens", "tags.txt"}}) {
    const auto options = [&, task = task, file = file](const std::string& name, Options more) {
      put_options(more, {"--max-steps", "6", "--eval-steps", "3", "--eval-batch-size", "8",
                         "--batch-size", "12", "--no-load-best-model-at-end"});
      Options all = fine_tuning(name, task, file, more);
      all.insert(all.end(), {"--val-data", path(file)});
      return all;
    };
    const std::string one = std::string(task) + "-one";
    const Json alone = trained(options(one, {"--deterministic-ranks", "4"}));
    for (const auto& [ranks, zero] : {std::pair{"2", "0"}, {"4", "1"}, {"2", "3"}}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks, ZeRO {}", task, ranks, zero));
      const std::string name = fmt::format("{}-{}-{}", task, ranks, zero);
      Options args = options(name, {"--deterministic-ranks", "4", "--zero", zero});
      args.insert(args.begin(), {"launch", "-n", ranks});
      const Json together = trained(args);
      for (const auto& [key, value] : alone.items())
        if (key.starts_with("val_") || key.starts_with("f1") || key == "accuracy" ||
            key == "pearson" || key == "rmse") {
          EXPECT_EQ(together[key], value) << key;
        }
      EXPECT_EQ(loss_series(name), loss_series(one));
    }
  }
}

TEST_F(TaskEval, GivesWhatTheRunGave) {
  make_base();
  // Few steps and every label once more, so that some predictions are wrong.
  const Options few{"--max-steps", "12", "--eval-steps", "0", "--no-load-best-model-at-end"};
  for (const auto& [task, file, names] :
       {std::tuple{"classify", "classes.tsv",
                   Options{"accuracy", "f1", "f1_macro", "precision", "recall", "majority_share"}},
        {"regress", "values.tsv", Options{"pearson", "spearmanr", "mse", "rmse", "mae"}},
        {"tokens", "tags.txt", Options{"f1", "accuracy", "f1_macro", "majority_share"}}}) {
    Options options = fine_tuning(task, task, file, few);
    options.insert(options.end(), {"--val-data", path(file)});
    const Json in_run = trained(options), alone = evaluated(task, file);
    EXPECT_EQ(alone["scored"], in_run["val_tokens"]) << task;
    EXPECT_NEAR(alone["loss"].get<double>(), in_run["val_loss"].get<double>(), 1e-5) << task;
    for (const std::string& name : names)
      EXPECT_NEAR(alone[name].get<double>(), in_run[name].get<double>(), 1e-5) << task << name;
  }
  const Json classes = evaluated("classify", "classes.tsv", {"--batch-size", "7"});
  EXPECT_EQ(classes["texts"], 240);
  ASSERT_EQ(classes["labels"].size(), 2u);
  EXPECT_EQ(classes["labels"][0]["label"], "bad");
  int64_t all = 0;
  for (const Json& row : classes["confusion_matrix"])
    for (const Json& n : row) all += n.get<int64_t>();
  EXPECT_EQ(all, 240);
  const int64_t bad = classes["labels"][0]["examples"];
  EXPECT_NEAR(classes["majority_share"].get<double>(),
              static_cast<double>(std::max(bad, 240 - bad)) / 240, 1e-12);

  // For people: the share of the majority beside the accuracy, a table, and the matrix.
  const std::string model = path("classify").string();
  ASSERT_EQ(run({"eval", model, path("classes.tsv").string()}), 0) << err_;
  for (const char* part : {"accuracy 0.", "(majority class 0.5", "label", "precision  recall",
                           "confusion matrix (rows: true labels"})
    EXPECT_NE(out_.find(part), std::string::npos) << part << out_;

  // Files with numbers for labels.
  std::string numbers = "label,text\n";
  for (int i = 0; i < 20; ++i) numbers += i % 2 ? "1,line with words\n" : "0,line that repeat\n";
  put("numbers.csv", numbers);
  EXPECT_EQ(evaluated("classify", "numbers.csv")["texts"], 20);
  EXPECT_TRUE(says("labels are numbers: 0 is 'bad', 1 is 'good'")) << err_;

  // What is refused.
  put("other.csv", "label,text\ngood,a\nugly,b\n");
  EXPECT_EQ(run({"eval", model, path("other.csv").string()}), 1);
  EXPECT_TRUE(says("line 3: 'ugly' is not one of the labels: 'bad', 'good'")) << err_;
  EXPECT_EQ(run({"eval", path("regress").string(), path("classes.tsv").string()}), 1);
  EXPECT_TRUE(says("expected a number as the label")) << err_;
  EXPECT_EQ(run({"eval", model, path("classes.tsv").string(), path("other.csv").string()}), 2);
  EXPECT_TRUE(says("is for classes of texts: expected one file of texts and labels, got 2"));
  EXPECT_EQ(run({"eval", model, path("classes.tsv").string(), "--mlm-probability", "0.3"}), 2);
  EXPECT_TRUE(says("--mlm-probability: ")) << err_;
  EXPECT_EQ(run({"eval", model, path("classes.tsv").string(), "--context", "4", "--no-truncate"}),
            1);
  EXPECT_TRUE(says("more than the context of 4")) << err_;
  EXPECT_EQ(run({"eval", path("base").string(), text_path().string(), "--label-column", "x"}), 2);
  EXPECT_TRUE(says("--label-column: ") && says("is for masked tokens")) << err_;

  // Folders that are changed: a model of which several classes hold, of vectors, with NaN.
  const auto changed = [&](const std::string& name, const std::string& from, const std::string& was,
                           const std::string& is) {
    fs::create_directories(path(name));
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
      fs::copy_file(path(from) / file, path(name) / file);
    std::string config = read_file(path(name) / "config.json");
    const size_t at = config.find(was);
    ASSERT_NE(at, std::string::npos) << config;
    put(name + "/config.json", config.replace(at, was.size(), is));
  };
  changed("several", "classify", "single_label", "multi_label");
  EXPECT_EQ(run({"eval", path("several").string(), path("classes.tsv").string()}), 1);
  EXPECT_TRUE(says("the model tells classes of which several may hold")) << err_;
  changed("vectors", "base", "BertForMaskedLM", "BertModel");
  EXPECT_EQ(run({"eval", path("vectors").string(), text_path().string()}), 1);
  EXPECT_TRUE(says("its model is for vectors of texts, which have no loss")) << err_;
  changed("nan", "classify", "{", "{");
  std::string weights = read_file(path("nan") / "model.safetensors");
  weights.replace(weights.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  put("nan/model.safetensors", weights);
  EXPECT_EQ(run({"eval", path("nan").string(), path("classes.tsv").string()}), 1);
  EXPECT_TRUE(says("classes.tsv: line 2: the model gives NaN or infinity")) << err_;
  put("two.tsv", "score\ttext\n1 2\ta\n3 4\tb\n");
  EXPECT_EQ(run({"eval", path("regress").string(), path("two.tsv").string()}), 1);
  EXPECT_TRUE(says("two.tsv has 2 numbers for a text, and the model gives 1")) << err_;

  // A masked language model, on any text.
  const Json masked = evaluated("base", text_path().filename().string());
  EXPECT_GT(masked["accuracy"].get<double>(), 0.05);
  EXPECT_NEAR(std::log(masked["perplexity"].get<double>()), masked["loss"].get<double>(), 1e-9);
  const Json more =
      evaluated("base", text_path().filename().string(), {"--mlm-probability", "0.5"});
  EXPECT_GT(more["scored"].get<int64_t>(), 2 * masked["scored"].get<int64_t>());
}

// The metric that is named decides which weights a run ends with.
TEST_F(TaskEval, TheMetricThatIsNamedDecides) {
  make_base();
  for (const char* metric : {"loss", "accuracy"}) {
    const Json result = trained(fine_tuning(
        metric, "classify", "classes.tsv",
        {"--max-steps", "30", "--eval-steps", "5", "--learning-rate", "0.02", "--save-steps", "0",
         "--metric-for-best-model", metric, "--load-best-model-at-end"}));
    // By hand, from the log: the first evaluation that no later one exceeds; equal metrics are told
    // apart by the loss.
    int64_t best_step = -1;
    std::pair<double, double> best;
    std::istringstream log(read_file(path(metric) / "log.jsonl"));
    for (std::string line; std::getline(log, line);) {
      const Json record = Json::parse(line);
      if (!record.contains("val_loss") || record["step"] == 0) continue;
      const double gain = -record["val_loss"].get<double>();
      const std::pair value(std::string(metric) == "loss" ? gain : record["accuracy"].get<double>(),
                            gain);
      if (best_step >= 0 && value <= best) continue;
      best = value;
      best_step = record["step"];
    }
    EXPECT_EQ(result["best_step"], best_step) << metric << read_file(path(metric) / "log.jsonl");
  }
}

TEST_F(TaskEval, CausalModelsLearnClassesAndValues) {
  ASSERT_EQ(run(small_run("base", {"--max-steps", "60", "--eval-steps", "0", "--n-embd", "32"})), 0)
      << err_;
  const Json result = trained(
      fine_tuning("classes", "classify", "classes.tsv", {"--val-data", path("classes.tsv")}));
  EXPECT_GT(result["accuracy"].get<double>(), 0.95) << err_;
  EXPECT_EQ(result["arena_bytes"], result["forecast_arena_bytes"]);
  const std::string config = read_file(path("classes") / "config.json");
  for (const char* part : {"GPT2ForSequenceClassification", "\"pad_token_id\": ", "\"good\": 1",
                           "single_label_classification"})
    EXPECT_NE(config.find(part), std::string::npos) << part << config;
  const io::SafetensorsFile file(path("classes") / "model.safetensors");
  EXPECT_EQ(file.get("score.weight").shape, (Shape{2, 32}));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
  // Loaded again, texts of any length in one batch are what they were.
  EXPECT_NEAR(evaluated("classes", "classes.tsv")["loss"].get<double>(),
              result["val_loss"].get<double>(), 1e-5);
  ASSERT_EQ(run_on("line 5 of a small text that repeat\nline 5 of a small text with words\n",
                   {"classify", "--model", path("classes").string()}),
            0)
      << err_;
  EXPECT_TRUE(out_.starts_with("bad\t")) << out_;
  EXPECT_NE(out_.find("\ngood\t"), std::string::npos) << out_;

  const Json values = trained(fine_tuning("values", "regress", "values.tsv"));
  EXPECT_GT(values["pearson"].get<double>(), 0.5) << err_;

  // Killed and resumed it is the same run.
  for (const auto& [name, count] : {std::pair{"part", "20"}, {"whole", "30"}})
    ASSERT_EQ(run(fine_tuning(name, "classify", "classes.tsv",
                              {"--max-steps", count, "--warmup-steps", "0", "--lr-scheduler-type",
                               "constant", "--no-load-best-model-at-end"})),
              0)
        << err_;
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--max-steps", "30"}), 0) << err_;
  EXPECT_TRUE(read_file(path("part") / "model.safetensors") ==
              read_file(path("whole") / "model.safetensors"))
      << "other bits";

  // Back to text, with the head that the embedding is tied to.
  ASSERT_EQ(run(small_run("text", {"--max-steps", "1", "--init-from", path("classes").string()})),
            0)
      << err_;
  EXPECT_NE(read_file(path("text") / "config.json").find("GPT2LMHeadModel"), std::string::npos);
  EXPECT_EQ(run({"generate", "--model", path("classes").string(), "--prompt", "a"}), 1);
  EXPECT_TRUE(says("does not generate text: use `brrr classify`")) << err_;
  EXPECT_EQ(run(fine_tuning("tags", "tokens", "tags.txt")), 1);
  EXPECT_TRUE(says("for classes of tokens it needs an encoder")) << err_;
}

// The form of a file changes nothing.
TEST_F(TaskEval, FilesOfEveryFormGiveTheSameModel) {
  ASSERT_EQ(run(pretraining("base", {"--max-steps", "1", "--eval-steps", "0"})), 0) << err_;
  std::string csv = "\xef\xbb\xbf\"label\",\"text\"\r\n", lines;
  std::istringstream rows(read_file(path("classes.tsv")));
  std::string row;
  std::getline(rows, row);
  while (std::getline(rows, row)) {
    const size_t tab = row.find('\t');
    const std::string label = row.substr(0, tab), text = row.substr(tab + 1);
    csv += label + ",\"" + text + "\"\r\n";
    lines += Json{{"text", text}, {"label", label}}.dump() + "\n";
  }
  put("classes.csv", csv);
  put("classes.csv.gz", gzip_of(csv));
  put("classes.jsonl.zst", zstd_of(lines));
  std::string first;
  for (const char* file : {"classes.tsv", "classes.csv", "classes.csv.gz", "classes.jsonl.zst"}) {
    const std::string name = std::string("run-") + file;
    ASSERT_EQ(run(fine_tuning(name, "classify", file, {"--max-steps", "2", "--eval-steps", "0"})),
              0)
        << err_;
    const std::string weights = read_file(path(name) / "model.safetensors");
    if (first.empty()) first = weights;
    EXPECT_TRUE(weights == first) << file;
  }
  // Ids as labels.
  std::string ids = "id,label,text\n";
  for (int i = 0; i < 30; ++i) ids += fmt::format("x{},{},some text\n", i, i % 2 ? "a" : "b");
  put("ids.csv", ids);
  EXPECT_EQ(run(fine_tuning("ids", "classify", "ids.csv", {"--label-column", "id"})), 1);
  EXPECT_TRUE(says("30 rows have 30 different labels, such as 'x0'") && says("--any-labels"))
      << err_;
  EXPECT_EQ(run(fine_tuning("ids", "classify", "ids.csv",
                            {"--label-column", "id", "--any-labels", "--max-steps", "1"})),
            0)
      << err_;
}

TEST_F(TaskEval, TextsInArchivesAndRecordsAreTrainedOn) {
  const std::string text = read_file(text_path());
  put("text.txt.gz", gzip_of(text));
  std::string lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1);
    if (end > at) lines += Json{{"content", text.substr(at, end - at)}, {"id", at}}.dump() + "\n";
    at = end + 1;
  }
  put("text.jsonl.zst", zstd_of(lines));
  const Options few{"--max-steps", "1", "--eval-steps", "0", "--n-embd", "16", "--samples", "0"};
  const auto weights_of = [&](const std::string& name, const std::string& file) {
    Options options = small_run(name, few);
    *(std::find(options.begin(), options.end(), "--text") + 1) = file;
    EXPECT_EQ(run(options, {"BRRR_CACHE=" + path("cache").string()}), 0) << err_;
    return read_file(path(name) / "model.safetensors");
  };
  const std::string plain = weights_of("plain", text_path().string());
  EXPECT_TRUE(weights_of("packed", path("text.txt.gz").string()) == plain);
  EXPECT_TRUE(says("text.txt.gz: ") && says("kept in ")) << err_;
  EXPECT_FALSE(weights_of("records", path("text.jsonl.zst").string()).empty());
  // Each record is a document.
  ASSERT_EQ(
      run({"data", "prepare", "--text", path("text.jsonl.zst").string(), "--tokenizer", "byte",
           "--text-column", "content", "--output-dir", path("shards").string(), "--json"},
          {"BRRR_CACHE=" + path("cache").string()}),
      0)
      << err_;
  EXPECT_EQ(Json::parse(out_)["documents"], std::count(lines.begin(), lines.end(), '\n'));
  put("text.txt.gz", gzip_of(text).substr(0, 40));
  EXPECT_EQ(run({"data", "prepare", "--text", path("text.txt.gz").string(), "--tokenizer", "byte",
                 "--output-dir", path("none").string()}),
            1);
  EXPECT_TRUE(says("text.txt.gz is an archive that ends too early")) << err_;
}

}  // namespace
}  // namespace brrr::test
