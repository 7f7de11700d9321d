// Models for pictures from end to end: a net learns a folder of pictures, is killed and resumed, is
// evaluated, classifies, embeds, and is exported.

#include <algorithm>
#include <cmath>

#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "formats/npy.h"
#include "support/picture_folder.h"

namespace brrr::test {
namespace {

class PictureRuns : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (!IsSkipped()) write_picture_folder(path("pictures"), 20);
  }
  std::string weights(const std::string& name) const {
    return read_file(path(name) / "model.safetensors");
  }
};

TEST_F(PictureRuns, LearnsEvaluatesClassifiesAndEmbeds) {
  ASSERT_EQ(run(small_picture_run("run")), 0) << err_;
  EXPECT_GT(json()["accuracy"].get<double>(), 0.8);
  EXPECT_NE(err_.find("images/s"), std::string::npos);
  EXPECT_EQ(err_.find("token"), std::string::npos) << err_;
  const double accuracy = json()["accuracy"].get<double>(), loss = json()["val_loss"].get<double>();
  EXPECT_TRUE(fs::exists(path("run") / "preprocessor_config.json"));

  const std::string model = path("run").string(), data = path("pictures").string();
  ASSERT_EQ(run({"eval", "--model", model, "--data", data, "--json"}), 0) << err_;
  EXPECT_EQ(json()["scored"], 60);
  EXPECT_EQ(json()["pictures"], 60);
  EXPECT_GT(json()["accuracy"].get<double>(), 0.8);
  EXPECT_TRUE(std::isfinite(loss) && accuracy <= 1);

  ASSERT_EQ(run({"classify", "--model", model, "--images", data, "--json"}), 0) << err_;
  const auto results = json()["results"];
  ASSERT_EQ(results.size(), 60u);
  int right = 0;
  for (const auto& r : results) {
    right += r["image"].get<std::string>().find("/" + r["label"].get<std::string>() + "/") !=
             std::string::npos;
    double sum = 0;
    for (const auto& [label, p] : r["scores"].items()) sum += p.get<double>();
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  EXPECT_GT(right, 48);
  // One picture alone is classified as among others.
  const std::string one = results[7]["image"].get<std::string>();
  ASSERT_EQ(run({"classify", "--model", model, "--images", one, "--json", "--threads", "2"}), 0);
  EXPECT_EQ(json()["results"][0], results[7]);

  ASSERT_EQ(run({"embed", "--model", model, "--images", data, "--json"}), 0) << err_;
  EXPECT_EQ(json()["dimension"], 64);
  EXPECT_EQ(json()["embeddings"].size(), 60u);
}

// By SIGKILL at some checkpoint, with other numbers of threads and workers afterwards.
TEST_F(PictureRuns, KilledAndResumedGiveTheSameBits) {
  const std::vector<std::string> options{
      "--mixup", "0.2", "--augment", "cifar", "--gradient-accumulation-steps", "2"};
  ASSERT_EQ(run(small_picture_run("whole", options)), 0) << err_;
  {
    Child child(folder_.path(), small_picture_run("part", options));
    while (child.is_running() &&
           (!fs::exists(path("part")) || io::list_checkpoints(path("part")).size() < 2))
      ::usleep(2000);
    child.send(SIGKILL);
    child.wait();
  }
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--threads", "2",
                 "--dataloader-num-workers", "2"}),
            0)
      << err_;
  EXPECT_TRUE(weights("part") == weights("whole"));
  EXPECT_EQ(loss_series("part"), loss_series("whole"));
  ASSERT_EQ(
      run(small_picture_run("again", {"--dataloader-num-workers", "0", "--mixup", "0.2",
                                      "--augment", "cifar", "--gradient-accumulation-steps", "2"})),
      0)
      << err_;
  EXPECT_TRUE(weights("again") == weights("whole"));
}

TEST_F(PictureRuns, TakesTheMemoryOfItsForecast) {
  for (const char* batch : {"4", "32"}) {
    ASSERT_EQ(
        run(small_picture_run(batch, {"--batch-size", batch, "--dataloader-num-workers", "2"})), 0)
        << err_;
    const nlohmann::json r = json();
    EXPECT_EQ(r["arena_bytes"], r["forecast_arena_bytes"]);
    const auto needed = r["needed_peak_bytes"].get<double>(),
               forecast = r["forecast_needed_bytes"].get<double>();
    EXPECT_LE(needed, forecast) << batch;
    // Pages of code, as memory_forecast_test has it.
    EXPECT_GE(needed, 0.95 * forecast - (4 << 20)) << batch;
  }
}

// Off means off, also of a recipe that erases.
TEST_F(PictureRuns, OperationsOfARecipeCanBeOff) {
  const auto options_of = [&](const std::vector<std::string>& more) {
    EXPECT_EQ(run(small_picture_run("x", more)), 0) << err_;
    const auto options = nlohmann::json::parse(read_file(path("x") / "train_config.json"));
    fs::remove_all(path("x"));
    return std::pair(options["random_erasing"].get<double>(),
                     options["random_operations"].get<int>());
  };
  const std::vector<std::string> strong{"--augment", "strong", "--max-steps", "1"};
  EXPECT_EQ(options_of(strong), std::pair(0.25, 2));
  std::vector<std::string> off = strong;
  off.insert(off.end(), {"--random-erasing", "0", "--random-operations", "0"});
  EXPECT_EQ(options_of(off), std::pair(0.0, 0));
}

// Batch norm's statistics are those of a micro-batch, which --fit makes smaller.
TEST_F(PictureRuns, FittingSaysThatStatisticsChange) {
  ASSERT_EQ(run(small_picture_run(
                "whole", {"--max-steps", "1", "--batch-size", "48", "--image-size", "128"})),
            0)
      << err_;
  const int64_t least = json()["forecast_needed_bytes"].get<int64_t>() * 7 / 10;
  ASSERT_EQ(run(small_picture_run(
                "fitted", {"--max-steps", "1", "--batch-size", "48", "--image-size", "128", "--fit",
                           "--memory-limit", std::to_string(least >> 20) + "MiB"})),
            0)
      << err_;
  EXPECT_NE(err_.find("note: batch norm takes the mean and the variance of each micro-batch"),
            std::string::npos)
      << err_;
}

// A trunk goes on with other classes and another size of pictures.
TEST_F(PictureRuns, IsTrainedFurther) {
  ASSERT_EQ(run(small_picture_run("run", {"--max-steps", "4"})), 0) << err_;
  fs::rename(path("pictures") / "fish", path("pictures") / "frog");
  ASSERT_EQ(run({"train", "--task", "images", "--data", path("pictures").string(), "--init-from",
                 path("run").string(), "--image-size", "20", "--max-steps", "2", "--batch-size",
                 "8", "--output-dir", path("further").string()}),
            0)
      << err_;
  EXPECT_NE(err_.find("new head for 3 classes"), std::string::npos) << err_;
  EXPECT_NE(err_.find("pictures of 3 x 20 x 20"), std::string::npos) << err_;
  const auto config = nlohmann::json::parse(read_file(path("further") / "config.json"));
  EXPECT_EQ(config["id2label"]["2"], "frog");
  EXPECT_EQ(config["image_size"], 20);
}

TEST_F(PictureRuns, IsExportedAndRunsAsAFile) {
  ASSERT_EQ(run(small_picture_run("run", {"--max-steps", "4"})), 0) << err_;
  const std::string file = path("net.onnx").string();
  ASSERT_EQ(run({"export", "--model", path("run").string(), "--output", file}), 0) << err_;
  const std::string random_inputs = path("x.npy").string();
  HostTensor x(DType::f32, {3, 3, 16, 16});
  for (size_t i = 0; i < x.as<float>().size(); ++i)
    x.as<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  io::write_npy(random_inputs, x);
  std::vector<std::vector<float>> logits;
  for (const std::string& model : {file, path("run").string()}) {
    const std::string out = path("out").string();
    ASSERT_EQ(run({"run", "--model", model, "--input", "pixel_values=" + random_inputs,
                   "--output-dir", out}),
              0)
        << err_;
    const HostTensor y = io::read_npy(out + "/logits.npy");
    const auto numbers = y.as<float>();
    logits.emplace_back(numbers.begin(), numbers.end());
  }
  ASSERT_EQ(logits[0].size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(logits[0][i], logits[1][i], 1e-5);
}

// An EfficientNet is trained with dropped branches, killed, resumed, evaluated and classifies; its
// state dict is the same model.
TEST_F(PictureRuns, EfficientNetsTrainResumeAndAreExported) {
  const auto args = [&](const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> list{"train", "--task", "images", "--data", path("pictures").string()};
    put_options(list, {"--architecture",  "efficientnet",
                       "--variant",       "lite0",
                       "--image-size",    "32",
                       "--batch-size",    "8",
                       "--max-steps",     "12",
                       "--save-steps",    "4",
                       "--learning-rate", "0.02",
                       "--drop-connect",  "0.2",
                       "--dropout",       "0.1",
                       "--threads",       "1",
                       "--output-dir",    path(name).string(),
                       "--json"});
    put_options(list, more);
    return list;
  };
  ASSERT_EQ(run(args("whole")), 0) << err_;
  EXPECT_EQ(json()["arena_bytes"], json()["forecast_arena_bytes"]);
  {
    Child child(folder_.path(), args("part"));
    while (child.is_running() &&
           (!fs::exists(path("part")) || io::list_checkpoints(path("part")).empty()))
      ::usleep(2000);
    child.send(SIGKILL);
    child.wait();
  }
  ASSERT_EQ(run({"train", "--resume", path("part").string(), "--threads", "2"}), 0) << err_;
  EXPECT_TRUE(weights("part") == weights("whole"));

  const std::string model = path("whole").string(), data = path("pictures").string();
  ASSERT_EQ(run({"eval", "--model", model, "--data", data, "--json"}), 0) << err_;
  EXPECT_EQ(json()["scored"], 60);
  const std::string file = path("net.safetensors").string();
  ASSERT_EQ(run({"export", "--model", model, "--output", file}), 0) << err_;
  EXPECT_NE(err_.find("for efficientnet_pytorch"), std::string::npos) << err_;
  ASSERT_EQ(run({"export", "--model", model, "--output", path("net.onnx").string()}), 0) << err_;
  ASSERT_EQ(run({"info", file}), 0) << err_;
  EXPECT_NE(out_.find("EfficientNet, 3,374,851 parameters"), std::string::npos) << out_;
  // The file does not say the size of its pictures, but one of 32 x 32 may be given.
  ASSERT_EQ(
      run({"train", "--task", "images", "--data", data, "--init-from", file, "--image-size", "32",
           "--max-steps", "1", "--learning-rate", "0", "--output-dir", path("again").string()}),
      0)
      << err_;
  const auto config = nlohmann::json::parse(read_file(path("again") / "config.json"));
  const auto before = nlohmann::json::parse(read_file(path("whole") / "config.json"));
  for (const char* key : {"width_coefficient", "fix_head_stem", "hidden_act", "batch_norm_eps",
                          "pixel_range", "squeeze_expansion_ratio", "image_size"})
    EXPECT_EQ(config[key], before[key]) << key;
}

TEST_F(PictureRuns, RefusesWhatDoesNotFit) {
  const std::string data = path("pictures").string();
  const auto expect = [&](const std::vector<std::string>& args, int code, const std::string& part) {
    EXPECT_EQ(run(args), code) << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
  };
  expect({"train", "--task", "images"}, 2, "needs --data: a folder with a folder of pictures");
  expect({"train", "--preset", "resnet18", "--task", "classify", "--data", data}, 2, "--task");
  expect({"train", "--task", "images", "--data", data, "--architecture", "gpt2"}, 2,
         "needs a model for pictures, such as --architecture resnet; got gpt2");
  expect({"train", "--augment", "flip"}, 2, "--augment applies to pictures");
  expect({"train", "--preset", "fine-tune-images", "--data", data}, 2,
         "needs --init-from FOLDER; --preset resnet20-cifar begins a new one");
  expect({"train", "--preset", "resnet20-cifar", "--task", "classify", "--data", data}, 2,
         "--preset resnet20-cifar is for pictures, --task images; got --task classify");
  expect({"train", "--data", data}, 2,
         "holds pictures with classes; to learn them add --task images");
  expect(small_picture_run("x", {"--tokenizer", "char"}), 2, "--tokenizer is for text");
  expect(small_picture_run("x", {"--context", "8"}), 2, "--context is for text");
  expect({"train", "--task", "images", "--data", data, "--depth", "18", "--stem", "imagenet",
          "--image-size", "16"},
         1, "image_size must be at least 32");
  expect(small_picture_run("x", {"--sampling", "random"}), 2,
         "works with --sampling epoch; got random");
  expect(small_picture_run("x", {"--text", "a.txt"}), 2, "got --text");
  expect(small_picture_run("x", {"--val-fraction", "0.7"}), 2, "expected --val-fraction up to 0.5");

  ASSERT_EQ(run(small_picture_run("run", {"--max-steps", "2"})), 0) << err_;
  const std::string model = path("run").string();
  expect({"generate", "--model", model}, 1, "a ResNet sees pictures and reads no text");
  expect({"quantize", model, "--output", path("q").string()}, 1,
         "a ResNet sees pictures and is not quantised as a folder; write it as ONNX: `brrr export");
  expect({"export", model, "--output", path("m.gguf").string()}, 1,
         "a ResNet sees pictures and is not written as a GGUF file; write it as ONNX");
  expect({"export", model, "--onnx"}, 2, "`brrr export MODEL --format onnx` writes ONNX");
  expect({"eval", "--model", model, "--data", data, "--context", "8"}, 2,
         "--context is for text: " + model + " sees pictures");
  ASSERT_EQ(run({"info", model}), 0) << err_;
  EXPECT_EQ(out_.find("context"), std::string::npos) << out_;
  expect({"embed", "--model", model, "--images", data, "--pooling", "mean"}, 2,
         "--pooling is for texts; leave it out with --images");
  expect({"classify", "--model", model, "--images", path("absent.png").string()}, 1, "absent.png");
  write_file_atomically(path("text.png"), "no picture");
  expect({"classify", "--model", model, "--images", path("text.png").string()}, 1,
         "--skip-bad-images N leaves out up to N of such pictures");
  ASSERT_EQ(run({"classify", "--model", model, "--images", path("text.png").string(), data,
                 "--skip-bad-images", "1", "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["skipped"], 1);
  fs::create_directories(path("nothing"));
  expect({"classify", "--model", model, "--images", path("nothing").string()}, 1,
         "the folder holds no pictures");
  expect({"eval", "--model", model, "--text", text_path().string()}, 2,
         "expected --data with one folder of pictures");
  expect({"eval", "--model", model, "--data", path("nothing").string()}, 1, "nothing");
  fs::rename(path("pictures") / "fish", path("pictures") / "frog");
  expect({"eval", "--model", model, "--data", data}, 1, "frog");
  // Tensors of another net, by name.
  ASSERT_EQ(run(small_picture_run("wide", {"--max-steps", "1", "--width-factor", "2"})), 0) << err_;
  fs::copy_file(path("wide") / "model.safetensors", path("run") / "model.safetensors",
                fs::copy_options::overwrite_existing);
  fs::remove(path("run") / "checksums.json");
  expect({"classify", "--model", model, "--images", data}, 1,
         "the tensor resnet.embedder.embedder.convolution.weight must have the shape");
}

}  // namespace
}  // namespace brrr::test
