// What a program does wrong is refused with a sentence, and leaves the objects usable.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "brrr/brrr.h"
#include "library/message_of.h"
#include "support/temp_folder.h"

namespace {

namespace fs = std::filesystem;
using brrr::Batch;
using brrr::Tensor;
using brrr::test::message_of;

brrr::Graph linear_graph() {
  brrr::Graph g;
  const auto tokens = g.input("tokens", brrr::f32, {4, 2}), y = g.input("y", brrr::f32, {4, 1});
  g.output("loss", brrr::mean_squared_error(brrr::linear(tokens, 1, "w"), y));
  return g;
}

Batch good_batch() {
  return {{"tokens", Tensor(brrr::f32, {4, 2})}, {"y", Tensor(brrr::f32, {4, 1})}};
}

TEST(BadInput, OfAModuleIsNamed) {
  brrr::Module m = linear_graph().compile();
  const Tensor tokens(brrr::f32, {4, 2}), y(brrr::f32, {4, 1});
  EXPECT_EQ(message_of([&] {
              m.run({{"tokens", Tensor(brrr::i32, {4, 2})}, {"y", y}});
            }),
            "the input 'tokens' must be f32[4,2]; got i32[4,2]");
  EXPECT_EQ(message_of([&] {
              m.run({{"tokens", Tensor(brrr::f32, {4, 3})}, {"y", y}});
            }),
            "the input 'tokens' must be f32[4,2]; got f32[4,3]");
  EXPECT_EQ(message_of([&] {
              m.run({{"token", tokens}, {"y", y}});
            }),
            "there is no input 'token'; did you mean 'tokens'?");
  EXPECT_EQ(message_of([&] {
              m.run({{"pictures", tokens}, {"y", y}});
            }),
            "there is no input 'pictures'; there are: tokens, y");
  EXPECT_EQ(message_of([&] {
              m.run({{"tokens", tokens}});
            }),
            "the input 'y' (f32[4,1]) is missing");
  EXPECT_NE(message_of([&] { m.run({{"tokens", tokens}, {"y", y}}, {"los"}); }), "");
  EXPECT_EQ(m.run({{"tokens", tokens}, {"y", y}}).at("loss").as<float>()[0], 0.0f);
}

TEST(BadInput, OfAStepIsNamed) {
  auto run = brrr::Run::from_env();
  const auto step = run.prepare(linear_graph(), brrr::AdamW(), std::vector<Batch>()).step;
  Batch batch = good_batch();
  batch[0].second = Tensor(brrr::i64, {4, 2});
  EXPECT_EQ(message_of([&] { step(batch); }), "the input 'tokens' is f32[4,2]; got i64[4,2]");
  batch = good_batch();
  batch[0].first = "tokenz";
  EXPECT_EQ(message_of([&] { step(batch); }),
            "the graph has no input 'tokenz'; did you mean 'tokens'?");
  batch[0].first = "pictures";
  EXPECT_EQ(message_of([&] { step(batch); }),
            "the graph has no input 'pictures'; it has tokens, y");
  batch[0].first = "y";
  EXPECT_EQ(message_of([&] { step(batch); }), "the tensor 'y' is given twice");
  batch.erase(batch.begin());
  EXPECT_EQ(message_of([&] { step(batch); }), "the input 'tokens' f32[4,2] is missing");
  EXPECT_EQ(message_of([&] { step(Batch()); }), "a step of your own graph takes tensors; got none");
  EXPECT_EQ(run.steps_done(), 0);
  EXPECT_EQ(step(good_batch()).step, 1);
}

TEST(BadInput, AnExceptionOfTheBatchesEndsTheLoopAndIsGivenOn) {
  auto run = brrr::Run::from_env();
  int asked = 0;
  auto [step, loader] = run.prepare(linear_graph(), brrr::AdamW(), [&]() -> std::optional<Batch> {
    if (++asked == 3) throw std::out_of_range("no further file");
    return good_batch();
  });
  EXPECT_THROW(for (const auto& batch : loader) step(batch), std::out_of_range);
  EXPECT_EQ(run.steps_done(), 2);
  EXPECT_EQ(step(good_batch()).step, 3);
}

TEST(BadInput, NullHandlesAreRefusedByEveryFunction) {
  const std::pair<const char*, brrr_status> refused[] = {
      {"tensor", brrr_tensor_to_dlpack(nullptr, nullptr)},
      {"tensor", brrr_tensor_from_dlpack(nullptr, nullptr)},
      {"tensor", brrr_tensors_get(nullptr, 0, nullptr)},
      {"port", brrr_module_input(nullptr, 0, nullptr)},
      {"port", brrr_module_output(nullptr, 0, nullptr)},
      {"outputs", brrr_module_run(nullptr, nullptr, nullptr, 0, nullptr, 0, nullptr)},
      {"embedder", brrr_embedder_open(nullptr, nullptr, 0, nullptr)},
      {"vectors", brrr_embed(nullptr, nullptr, 0, nullptr)},
      {"generator", brrr_generator_open(nullptr, nullptr, 0, nullptr)},
      {"generator", brrr_generate(nullptr, nullptr, 0, nullptr, nullptr, nullptr)},
      {"tokenizer", brrr_tokenizer_open(nullptr, nullptr)},
      {"ids", brrr_tokenizer_encode(nullptr, nullptr, 0, 0, nullptr)},
      {"text", brrr_tokenizer_decode(nullptr, nullptr, 0, nullptr, nullptr)},
      {"chat", brrr_chat_template_open(nullptr, nullptr)},
      {"text", brrr_chat_template_render(nullptr, nullptr, nullptr, 0, nullptr)},
      {"graph", brrr_graph_create(nullptr)},
      {"graph", brrr_graph_parse(nullptr, nullptr)},
      {"text", brrr_graph_text(nullptr, nullptr)},
      {"value", brrr_graph_input(nullptr, nullptr, BRRR_F32, nullptr, 0, nullptr)},
      {"value", brrr_graph_parameter(nullptr, nullptr, nullptr, 0, nullptr, nullptr)},
      {"value", brrr_graph_constant(nullptr, BRRR_F32, nullptr, 0, 0, nullptr)},
      {"graph", brrr_graph_call(nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, nullptr)},
      {"value", brrr_graph_mean(nullptr, {0, 0}, nullptr, 0, nullptr)},
      {"value", brrr_graph_dropout(nullptr, {0, 0}, 0, nullptr)},
      {"graph", brrr_graph_output(nullptr, nullptr, {0, 0})},
      {"graph", brrr_graph_type(nullptr, {0, 0}, nullptr, nullptr, nullptr, 0)},
      {"graph", brrr_graph_gradient(nullptr, {0, 0}, nullptr, 0, nullptr)},
      {"module", brrr_graph_compile(nullptr, nullptr, nullptr, 0, 0, nullptr, 0, nullptr)},
      {"run", brrr_run_create(nullptr, nullptr, nullptr, 0, nullptr)},
      {"run", brrr_run_step(nullptr, nullptr, nullptr, 0, nullptr)},
      {"loss", brrr_run_evaluate(nullptr, nullptr, nullptr, 0, nullptr)},
      {"means", brrr_run_evaluate_graph(nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0, 0,
                                        nullptr, nullptr)},
      {"plan", brrr_run_plan(nullptr, nullptr)},
      {"step_seconds", brrr_run_forecast(nullptr, 0, nullptr)},
      {"tensor", brrr_run_parameter(nullptr, nullptr, nullptr)},
      {"run", brrr_run_save(nullptr, nullptr)},
      {"run", brrr_run_save_state(nullptr, nullptr)},
      {"run", brrr_run_load_state(nullptr, nullptr)},
      {"run", brrr_run_time_steps(nullptr, 1)},
      {"text", brrr_run_profile(nullptr, nullptr)},
  };
  for (size_t i = 0; i < std::size(refused); ++i)
    EXPECT_EQ(refused[i].second, BRRR_USAGE) << "entry " << i << ": " << refused[i].first;
  // The second NULL of a call, too.
  brrr_module* module = nullptr;
  EXPECT_EQ(brrr_module_open(nullptr, nullptr, 0, &module), BRRR_USAGE);
  EXPECT_STREQ(brrr_last_error(), "path is NULL");
  brrr_tensors* outputs = nullptr;
  EXPECT_EQ(brrr_module_run(nullptr, nullptr, nullptr, 0, nullptr, 0, &outputs), BRRR_USAGE);
  EXPECT_STREQ(brrr_last_error(), "module is NULL");
  brrr_module* made = nullptr;
  brrr_graph* graph = nullptr;
  ASSERT_EQ(brrr_graph_create(&graph), BRRR_OK);
  brrr_value x{}, y{};
  const int64_t size = 2;
  ASSERT_EQ(brrr_graph_input(graph, "x", BRRR_F32, &size, 1, &x), BRRR_OK);
  ASSERT_EQ(brrr_graph_mean(graph, x, nullptr, 0, &y), BRRR_OK);
  ASSERT_EQ(brrr_graph_output(graph, "y", y), BRRR_OK);
  ASSERT_EQ(brrr_graph_compile(graph, nullptr, nullptr, 0, 0, nullptr, 0, &made), BRRR_OK);
  const char* name = "x";
  brrr_tensor* none = nullptr;
  EXPECT_EQ(brrr_module_run(made, &name, &none, 1, nullptr, 0, &outputs), BRRR_USAGE);
  EXPECT_STREQ(brrr_last_error(), "a tensor is NULL");
  EXPECT_EQ(brrr_module_run(made, &name, nullptr, 1, nullptr, 0, &outputs), BRRR_USAGE);
  EXPECT_EQ(outputs, nullptr);
  brrr_module_free(made);
  brrr_graph_free(graph);
  // What returns no status has nothing to say of NULL.
  EXPECT_EQ(brrr_tensor_data(nullptr), nullptr);
  EXPECT_EQ(brrr_module_copied_bytes(nullptr), 0);
  EXPECT_EQ(brrr_run_copied_bytes(nullptr), 0);
  EXPECT_EQ(brrr_run_steps_done(nullptr), 0);
}

#if defined(BRRR_SANITIZED)
TEST(BadInput, MemoryThatIsFreedTooEarlyIsFoundByAddressSanitizer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a child of fork() alone would be refused
  brrr::Module m = linear_graph().compile();
  const auto run = [&] {
    auto memory = std::make_unique<float[]>(8);
    const Tensor tokens = Tensor::borrow<float>({4, 2}, memory.get());
    memory.reset();
    m.run({{"tokens", tokens}, {"y", Tensor(brrr::f32, {4, 1})}});
  };
  EXPECT_DEATH(run(), "heap-use-after-free");
}
#endif

TEST(BadInput, AnotherInterfaceNamesBothVersions) {
  EXPECT_EQ(brrr_require_abi(BRRR_ABI_VERSION + 1), BRRR_USAGE);
  const std::string said = brrr_last_error();
  EXPECT_NE(said.find("interface " + std::to_string(BRRR_ABI_VERSION + 1)), std::string::npos);
  EXPECT_NE(said.find("version " + std::string(brrr_version())), std::string::npos);
  EXPECT_NE(said.find("interface " + std::to_string(BRRR_ABI_VERSION) + ";"), std::string::npos);
}

class FolderThatIsWritten : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder_.path() / "text.txt");
    for (int i = 0; i < 300; ++i) text << "Line " << i << " of a text.\n";
  }
  brrr::Run trained() const {
    auto run = brrr::Run::from_env({.max_steps = 2,
                                    .more = {{"n-layer", "1"},
                                             {"n-embd", "16"},
                                             {"n-head", "1"},
                                             {"context", "8"},
                                             {"batch-size", "2"}}});
    auto [step, loader] = run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW(),
                                      brrr::Data::text((folder_.path() / "text.txt").string()));
    for (const auto& batch : loader) step(batch);
    return run;
  }
  brrr::test::TempFolder folder_;
};

TEST_F(FolderThatIsWritten, IsReadWholeOrRefused) {
  const brrr::Run run = trained();
  const fs::path model = folder_.path() / "model";
  run.save(model);
  const std::string wanted =
      brrr::Generator::open(model, {{"max-new-tokens", "8"}, {"temperature", "0"}})
          .generate("Line");
  // Files change their content in one step, so what is opened has the old one or the new one.
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    while (!ends) run.save(model);
  });
  for (int i = 0; i < 20; ++i) {
    auto generator = brrr::Generator::open(model, {{"max-new-tokens", "8"}, {"temperature", "0"}});
    EXPECT_EQ(generator.generate("Line"), wanted);
  }
  ends = true;
  writer.join();
}

TEST_F(FolderThatIsWritten, HalfAFileIsRefusedWithItsName) {
  const fs::path model = folder_.path() / "model";
  trained().save(model);
  const fs::path weights = model / "model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const std::string said = message_of([&] { brrr::Generator::open(model); });
  EXPECT_NE(said.find("model.safetensors"), std::string::npos) << said;
  fs::remove(model / "config.json");
  EXPECT_NE(message_of([&] { brrr::Generator::open(model); }), "");
}

TEST_F(FolderThatIsWritten, ACheckpointIsCompleteOrAbsent) {
  brrr::Run run = trained();
  run.save_state(folder_.path() / "run");
  const fs::path whole = folder_.path() / "run/checkpoint-000002";
  ASSERT_TRUE(fs::exists(whole));
  const fs::path part = folder_.path() / "part/checkpoint-000002";
  fs::create_directories(part);
  fs::copy_file(whole / "model.safetensors", part / "model.safetensors");
  const std::string said = message_of([&] { run.load_state(part); });
  EXPECT_NE(said.find("checkpoint-000002"), std::string::npos) << said;
  run.load_state(whole);
  EXPECT_EQ(run.steps_done(), 2);
}

}  // namespace
