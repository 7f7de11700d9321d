// .brrr files: what is written runs to the same bits, and damaged files are refused.

#include "modules/brrr_file.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "base/rng.h"
#include "modules/open_module.h"
#include "ops/ops.h"
#include "runtime/runnable_session.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using modules::BrrrProgram;

// y = tanh(x w) of any number of rows; a program of two weights' bytes.
struct Small {
  Small() {
    for (size_t i = 0; i < w.size(); ++i) w[i] = 0.1f * static_cast<float>(i) - 0.5f;
    const Value x = program.graph.input("x", {Dim::symbol("rows"), 4}, DType::f32);
    program.graph.output("y", tanh(matmul(x, program.graph.parameter("w", {4, 3}))));
    program.weights.push_back({"w", DType::f32, {4, 3}, std::as_bytes(std::span(w))});
    program.files["tokenizer.json"] = "{}";
    program.about["producer"] = "test";
    modules::write_brrr_file(path, program);
  }
  std::vector<float> run(int64_t rows) const {
    RunnableSession session(modules::open_module(path), cpu::cpu_backend());
    const auto out = session.run({{"x", HostTensor::filled(DType::f32, {rows, 4}, 0.25)}});
    const auto y = out.find("y")->second.tensor().as<float>();
    return {y.begin(), y.end()};
  }
  TempFolder folder;
  fs::path path = folder.path() / "m.brrr";
  std::vector<float> w = std::vector<float>(12);
  BrrrProgram program;
};

TEST(BrrrFile, RunsWithNamedSizes) {
  const Small small;
  const std::vector<float> one = small.run(1), three = small.run(3);
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(three.size(), 9u);
  for (size_t i = 0; i < three.size(); ++i) EXPECT_EQ(three[i], one[i % 3]);
  float sum = 0;
  for (size_t k = 0; k < 4; ++k) sum += 0.25f * small.w[k * 3];
  EXPECT_NEAR(one[0], std::tanh(sum), 1e-6);
}

TEST(BrrrFile, IsASafetensorsFile) {
  const Small small;
  const io::SafetensorsFile file(small.path);
  EXPECT_EQ(file.get("w").shape, (Shape{4, 3}));
  EXPECT_EQ(file.get("tokenizer.json").dtype, DType::u8);
  EXPECT_EQ(file.metadata().at("producer"), "test");
  EXPECT_NE(file.metadata().at("graph").find("tanh"), std::string::npos);
}

TEST(BrrrFile, InputsOfOtherSizesAreRefused) {
  const Small small;
  RunnableSession session(modules::open_module(small.path), cpu::cpu_backend());
  EXPECT_THROW(session.run({{"x", HostTensor(DType::f32, {2, 5})}}), UserError);
  EXPECT_THROW(session.run({}), UserError);
}

TEST(BrrrFile, KeepsFilesAndTheLowestNumbersOfInputs) {
  TempFolder folder;
  const fs::path path = folder.path() / "m.brrr";
  BrrrProgram program;
  const Value n = program.graph.input("n", {}, DType::i32);
  program.graph.output("y", n + n);
  program.lowest["n"] = 0;
  program.files["tokenizer.json"] = "{}";
  program.files["decoder.json"] = "[1]";
  modules::write_brrr_file(path, program);
  RunnableSession session(modules::open_module(path), cpu::cpu_backend());
  EXPECT_EQ(session.runnable().files(), program.files);
  const auto run = [&](int32_t number) {
    return session.run({{"n", HostTensor::of<int32_t>({}, {number})}});
  };
  EXPECT_EQ(run(3).find("y")->second.tensor().number(0), 6);
  EXPECT_USER_ERROR(run(-1), "the input 'n' must be at least 0; got -1");
  // Names that would leave a folder, or that no tensor has, are refused.
  program.files = {{"../secret", "x"}};
  modules::write_brrr_file(path, program);
  EXPECT_USER_ERROR(modules::open_module(path), "expected names without folders");
  program.files.clear();
  program.lowest["m"] = 0;
  modules::write_brrr_file(path, program);
  EXPECT_USER_ERROR(modules::open_module(path), "'lowest.m' names no input");
}

// Whatever byte changes, the file is refused, or computes what it did: never a crash.
TEST(BrrrFile, DamageIsFound) {
  const Small small;
  const std::string whole = read_file(small.path);
  const fs::path path = small.folder.path() / "damaged.brrr";
  const auto opens = [&](const std::string& bytes, bool verify) {
    write_file_atomically(path, bytes);
    try {
      return modules::open_brrr_file(path, verify) != nullptr;
    } catch (const UserError&) {
      return false;
    }
  };
  ASSERT_TRUE(opens(whole, true));
  std::string weight = whole;
  weight[whole.size() - 20] ^= 1;
  EXPECT_TRUE(opens(weight, false));
  EXPECT_FALSE(opens(weight, true));
  std::string graph = whole;
  graph.replace(graph.find("tanh"), 4, "sin(");
  EXPECT_FALSE(opens(graph, false));
  RngStream random({3, 0}, 0);
  for (int i = 0; i < rounds(20000, 500); ++i) {
    std::string bytes = whole;
    bytes[random.next_below(bytes.size())] = static_cast<char>(random.next_below(256));
    opens(bytes, true);
    opens(whole.substr(0, random.next_below(whole.size())), false);
  }
}

}  // namespace
}  // namespace brrr::test
