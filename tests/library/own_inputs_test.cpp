// Inputs in the caller's memory are read where they lie, and copied only where that is not
// possible.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "brrr/brrr.h"

namespace {

using brrr::Batch;
using brrr::Tensor;

brrr::Module doubling() {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {64, 3});
  g.output("y", x * 2);
  g.output("same", x);
  return g.compile();
}

/// Numbers 0, 1, ... that begin `skip` bytes after a multiple of 64.
struct Numbers {
  explicit Numbers(size_t skip) : room(64 * 3 * sizeof(float) + 128) {
    const auto at = reinterpret_cast<uintptr_t>(room.data());
    data = room.data() + (64 - at % 64) + skip;
    for (int i = 0; i < 64 * 3; ++i) {
      const auto number = static_cast<float>(i);
      std::memcpy(data + static_cast<size_t>(i) * sizeof(float), &number, sizeof number);
    }
  }
  Tensor tensor() const { return Tensor::borrow<float>({64, 3}, reinterpret_cast<float*>(data)); }
  std::vector<char> room;
  char* data;
};

TEST(OwnInputs, OfAModuleAreReadWhereTheyLie) {
  brrr::Module m = doubling();
  for (const size_t skip : {0, 4, 20}) {
    const Numbers numbers(skip);
    const auto found = m.run({{"x", numbers.tensor()}});
    EXPECT_EQ(found.at("y").as<float>()[100], 200.0f);
    // Outputs are the caller's own, even where they are an input.
    EXPECT_NE(found.at("same").data(), static_cast<void*>(numbers.data));
    EXPECT_EQ(found.at("same").as<float>()[100], 100.0f);
  }
  EXPECT_EQ(m.copied_bytes(), 0);
  const auto again = m.run({{"x", m.run({{"x", Numbers(0).tensor()}}).at("y")}});
  EXPECT_EQ(again.at("y").as<float>()[100], 400.0f);
  EXPECT_EQ(m.copied_bytes(), 0);
}

TEST(OwnInputs, OfDlpackAreReadWhereTheyLie) {
  brrr::Module m = doubling();
  const Numbers numbers(8);
  const Tensor taken = Tensor::from_dlpack(numbers.tensor().to_dlpack());
  ASSERT_EQ(taken.data(), static_cast<void*>(numbers.data));
  EXPECT_EQ(m.run({{"x", taken}}).at("y").as<float>()[7], 14.0f);
  EXPECT_EQ(m.copied_bytes(), 0);
}

TEST(OwnInputs, WithinAnElementAreCopied) {
  brrr::Module m = doubling();
  const Numbers whole(4), odd(3);
  EXPECT_EQ(m.run({{"x", whole.tensor()}}).at("y").as<float>()[9], 18.0f);
  EXPECT_EQ(m.run({{"x", odd.tensor()}}).at("y").as<float>()[9], 18.0f);
  EXPECT_EQ(m.copied_bytes(), static_cast<int64_t>(64 * 3 * sizeof(float)));
  // The program reads its own memory, then the caller's again.
  const Numbers other(12);
  EXPECT_EQ(m.run({{"x", other.tensor()}}).at("y").as<float>()[9], 18.0f);
  EXPECT_EQ(m.copied_bytes(), static_cast<int64_t>(64 * 3 * sizeof(float)));
}

TEST(OwnInputs, StayWhatTheyAre) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {64, 3});
  g.output("y", brrr::tanh(brrr::relu(x * 2 + 1)));
  brrr::Module m = g.compile();
  const Numbers numbers(0);
  const std::vector<char> before = numbers.room;
  m.run({{"x", numbers.tensor()}});
  EXPECT_EQ(numbers.room, before);
}

TEST(OwnInputs, OfTrainingStepsGiveTheBitsOfCopies) {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {64, 3});
  g.output("loss", brrr::mean(brrr::square(brrr::linear(x, 2, "w"))));
  std::vector<double> losses[2];
  for (const size_t skip : {0, 1}) {  // lent, and copied
    auto run = brrr::Run::from_env({.accumulate = 2});
    const auto step = run.prepare(g, brrr::AdamW{.lr = 1e-3}, std::vector<Batch>()).step;
    const Numbers first(4 + skip), second(8 + skip);
    for (int i = 0; i < 5; ++i)
      losses[skip].push_back(
          step({{Batch{{"x", first.tensor()}}, Batch{{"x", second.tensor()}}}}).loss);
    losses[skip].push_back(run.evaluate(Batch{{"x", first.tensor()}}));
    EXPECT_EQ(run.copied_bytes(), skip == 0 ? 0 : 11 * 64 * 3 * int64_t{sizeof(float)});
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
