// The loop of `brrr train` written by the caller, and modules and texts by the C++ face.

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "brrr/brrr.h"

namespace {

namespace fs = std::filesystem;

std::string some_text() {
  std::string text;
  for (int i = 0; i < 600; ++i)
    text += "Line " + std::to_string(i * i) + " of a text that is easy to learn.\n";
  return text;
}

class TrainLoop : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "brrr-loop-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    std::ofstream(folder_ / "text.txt") << some_text();
  }
  void TearDown() override { fs::remove_all(folder_); }
  brrr::RunOptions options() const {
    return {.max_steps = 6,
            .more = {{"n-layer", "2"},
                     {"n-embd", "32"},
                     {"n-head", "2"},
                     {"context", "16"},
                     {"batch-size", "4"}}};
  }
  brrr::Data text() const { return brrr::Data::text((folder_ / "text.txt").string()); }
  fs::path folder_;
};

TEST_F(TrainLoop, HasTheBitsOfBrrrTrain) {
  auto run = brrr::Run::from_env(options());
  auto [step, loader] =
      run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW{.lr = 1e-3}, text());
  double loss = 0;
  int steps = 0;
  for (const auto& batch : loader) {
    const brrr::StepResult r = step(batch);
    EXPECT_EQ(r.tokens, 4 * 16);
    loss = r.loss;
    ++steps;
  }
  EXPECT_EQ(steps, 6);
  EXPECT_TRUE(std::isfinite(run.evaluate()));
  run.save(folder_ / "mine");

  const fs::path out = folder_ / "theirs";
  const std::string command =
      std::string(BRRR_BINARY) + " train --text " + (folder_ / "text.txt").string() +
      " --max-steps 6 --n-layer 2 --n-embd 32 --n-head 2 --context 16 --batch-size 4 --samples 0 "
      "--optim adamw --learning-rate 1e-3 --eval-steps 0 --output-dir " +
      out.string() + " > /dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto bytes = [](const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(bytes(folder_ / "mine" / "model.safetensors"), bytes(out / "model.safetensors"));
  EXPECT_GT(loss, 0);
}

TEST_F(TrainLoop, AResumedLoopHasTheBitsOfTheUndisturbedOne) {
  const auto prepared = [&](brrr::Run& run) {
    return run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW(), text());
  };
  auto whole = brrr::Run::from_env(options());
  auto [step, loader] = prepared(whole);
  double last = 0;
  for (const auto& batch : loader) {
    if (whole.steps_done() == 3) whole.save_state(folder_ / "run");
    last = step(batch).loss;
  }
  auto resumed = brrr::Run::from_env(options());
  auto [next, rest] = prepared(resumed);
  resumed.load_state(folder_ / "run" / "checkpoint-000003");
  double again = 0;
  for (const auto& batch : rest) again = next(batch).loss;
  EXPECT_EQ(resumed.steps_done(), 6);
  EXPECT_EQ(again, last);
}

TEST_F(TrainLoop, WritesTextsWithTheModelThatItSaved) {
  auto run = brrr::Run::from_env(options());
  auto [step, loader] = run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW(), text());
  for (const auto& batch : loader) step(batch);
  run.save(folder_ / "model");
  auto generator = brrr::Generator::open(folder_ / "model", {{"max-new-tokens", "8"}});
  std::string streamed;
  const auto texts =
      generator.generate_all({"Line", "text"}, [&](size_t answer, std::string_view more) {
        if (answer == 0) streamed += more;
        return true;
      });
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[0], streamed);
  EXPECT_EQ(texts[0], generator.generate("Line"));
  EXPECT_THROW(generator.generate("Line",
                                  [](size_t, std::string_view) -> bool {
                                    throw std::runtime_error("of the caller");
                                  }),
               std::runtime_error);
  EXPECT_EQ(texts[1], generator.generate("text"));  // the generator goes on as before
  const auto tokenizer = brrr::Tokenizer::open(folder_ / "model");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a text")), "a text");
  try {
    brrr::Generator::open(folder_ / "modle");
    FAIL() << "a folder that is not there was opened";
  } catch (const brrr::Error& e) {
    EXPECT_EQ(e.status(), BRRR_FAILED) << e.what();
  }
}

TEST(CInterface, NullIsRefused) {
  EXPECT_EQ(brrr_module_open(nullptr, nullptr, 0, nullptr), BRRR_USAGE);
  EXPECT_STREQ(brrr_last_error(), "module is NULL");
  brrr_tensor* tensor = nullptr;
  EXPECT_EQ(brrr_tensor_create(BRRR_F32, nullptr, 2, &tensor), BRRR_USAGE);
  EXPECT_EQ(tensor, nullptr);
  EXPECT_EQ(brrr_run_step(nullptr, nullptr, nullptr, 0, nullptr), BRRR_USAGE);
  brrr_module_free(nullptr);
  EXPECT_EQ(brrr_require_abi(BRRR_ABI_VERSION + 1), BRRR_USAGE);
  EXPECT_EQ(brrr_require_abi(BRRR_ABI_VERSION), BRRR_OK);
}

TEST(CInterface, AForkedChildIsRefusedWithASentence) {
  brrr_graph* graph = nullptr;
  ASSERT_EQ(brrr_graph_create(&graph), BRRR_OK);
  brrr_graph_free(graph);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    brrr_graph* other = nullptr;
    const bool is_refused = brrr_graph_create(&other) == BRRR_USAGE && other == nullptr &&
                            std::strstr(brrr_last_error(), "fork") != nullptr;
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CInterface, NotesGoToTheCaller) {
  std::string heard;
  brrr_set_on_note(
      [](void* context, const char* line) { *static_cast<std::string*>(context) += line; }, &heard);
  brrr_generator* generator = nullptr;
  EXPECT_EQ(brrr_generator_open("no-such-folder", nullptr, 0, &generator), BRRR_FAILED);
  EXPECT_EQ(generator, nullptr);
  const std::string error = brrr_last_error();
  EXPECT_NE(error.find("no-such-folder"), std::string::npos) << error;
  brrr_set_on_note(nullptr, nullptr);
}

TEST(CInterface, TrainingTellsStepsAndStopsWhereTheCallbackSays) {
  std::string name = (fs::temp_directory_path() / "brrr-train-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  std::ofstream(folder / "text.txt") << some_text();
  const std::string text = folder / "text.txt", out = folder / "run";
  const brrr_option options[] = {{"text", text.c_str()},  {"output-dir", out.c_str()},
                                 {"n-layer", "1"},        {"n-embd", "16"},
                                 {"n-head", "1"},         {"context", "8"},
                                 {"batch-size", "2"},     {"max-steps", "50"},
                                 {"eval-steps", "0"},     {"samples", "0"},
                                 {"disable-tqdm", "true"}};
  int64_t steps = 0;
  const brrr_on_step count = [](void* context, const brrr_step* step) {
    *static_cast<int64_t*>(context) = step->step;
    return step->step == 3 ? 1 : 0;
  };
  char* json = nullptr;
  EXPECT_EQ(brrr_train(options, std::size(options), count, &steps, &json), BRRR_STOPPED)
      << brrr_last_error();
  EXPECT_EQ(steps, 3);
  EXPECT_NE(std::string(json == nullptr ? "" : json).find("\"steps\":3"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "run" / "checkpoint-000003"));
  brrr_text_free(json);
  fs::remove_all(folder);
}

}  // namespace
