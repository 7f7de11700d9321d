// Programs that come and go beside others: the state stays where it is, the temporary region is as
// large as the largest needs it, and results are those of a program alone.
#include "runtime/bindings.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "models/gpt2/gpt2_config.h"
#include "models/initialise.h"
#include "ops/ops.h"
#include "passes/pipeline.h"
#include "runtime/parameters.h"
#include "support/gpt2.h"
#include "support/locked_device.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

// Adds the sum of `length` numbers, each of them doubled and one added, to the state s.
Graph sum_into_state(int64_t length) {
  Graph g;
  const Value s = g.input("s", {1}, DType::f32, InputKind::state);
  const Value x = g.input("x", {length}, DType::f32);
  const Value doubled = x * 2.0 + full(g, {length}, 1, DType::f32);
  const Value next = s + reshape(sum(doubled, {0}), {1});
  g.update(s, next);
  g.output("sum", next);
  return g;
}

std::string key_of(int64_t length) { return std::to_string(length); }

enum class Where { host, locked, recording };

class EngineMemory : public testing::TestWithParam<Where> {
 protected:
  Backend backend() {
    return GetParam() == Where::host ? cpu::cpu_backend()
                                     : test::locked_backend(log_, GetParam() == Where::recording);
  }
  std::vector<Graph> compile(int64_t length) {
    return {run_pipeline(sum_into_state(length), backend().target(), {})};
  }
  // Adds 3 for each of its numbers.
  float run(Engine& engine, size_t id, int64_t length) {
    const std::vector<float> ones(static_cast<size_t>(length), 1);
    Call call{id, {}, {}};
    call.set("x", std::span(ones));
    engine.run(std::span(&call, 1));
    return engine.output_scalar(id, "sum");
  }
  test::LockedDeviceLog log_;
};
INSTANTIATE_TEST_SUITE_P(Where, EngineMemory,
                         testing::Values(Where::host, Where::locked, Where::recording),
                         [](const auto& row) {
                           return row.param == Where::host     ? "host"
                                  : row.param == Where::locked ? "locked"
                                                               : "recording";
                         });

TEST_P(EngineMemory, GrowsAndShrinksWithItsPrograms) {
  {
    Engine engine(backend());
    const size_t small = engine.add(compile(100)[0]);
    engine.allocate();
    const int64_t alone = engine.arena_bytes();
    EXPECT_EQ(alone, engine.forecast().total());
    float expected = 0;
    const auto check = [&](size_t id, int64_t length) {
      expected += static_cast<float>(3 * length);
      EXPECT_EQ(run(engine, id, length), expected);
    };
    for (int i = 0; i < 3; ++i) check(small, 100);  // recorded, where that is possible
    const size_t large = engine.add(compile(9000)[0]);
    EXPECT_GT(engine.arena_bytes(), alone);
    EXPECT_EQ(engine.arena_bytes(), engine.forecast().total());
    for (int i = 0; i < 3; ++i) {
      check(small, 100);
      check(large, 9000);
    }
    const size_t medium = engine.add(compile(1000)[0]);
    const int64_t three = engine.arena_bytes();
    check(medium, 1000);
    engine.remove(large);
    EXPECT_LT(engine.arena_bytes(), three);
    EXPECT_EQ(engine.arena_bytes(), engine.forecast().total());
    check(small, 100);
    check(medium, 1000);
    EXPECT_THROW(engine.program(large), InternalError);
    engine.remove(medium);
    EXPECT_EQ(engine.arena_bytes(), alone);
    for (int i = 0; i < 3; ++i) check(small, 100);
  }
  EXPECT_EQ(log_.allocated, 0) << "memory that was not given back";
}

TEST_P(EngineMemory, DropsTheBindingThatWasUsedLongestAgo) {
  Engine engine(backend());
  Bindings bindings(engine);
  int compiled = 0;
  const auto get = [&](int64_t length) {
    return bindings.get(key_of(length), "", [&] {
      ++compiled;
      return compile(length);
    })[0];
  };
  get(10);
  engine.allocate();
  const int64_t one = bindings.own_bytes();
  bindings.set_budget(3 * one + one / 2);
  for (const int64_t length : {20, 30, 10, 20}) run(engine, get(length), length);
  EXPECT_EQ(compiled, 3);
  EXPECT_EQ(bindings.size(), 3u);
  run(engine, get(40), 40);
  EXPECT_TRUE(bindings.find(key_of(30)).empty()) << "30 was used longest ago";
  EXPECT_FALSE(bindings.find(key_of(10)).empty());
  EXPECT_LE(bindings.own_bytes(), 3 * one + one / 2);
  get(30);
  EXPECT_EQ(compiled, 5);
  EXPECT_EQ(engine.arena_bytes(), engine.forecast().total());
}

TEST_P(EngineMemory, KeepsPinnedBindingsBeyondTheBudget) {
  Engine engine(backend());
  Bindings bindings(engine);
  const auto get = [&](int64_t length) {
    return bindings.get(key_of(length), "", [&] { return compile(length); })[0];
  };
  get(10);
  engine.allocate();
  bindings.set_budget(1);
  bindings.pin();
  get(20);
  get(30);
  EXPECT_TRUE(bindings.find(key_of(10)).empty()) << "it was used before";
  EXPECT_FALSE(bindings.find(key_of(20)).empty());
  EXPECT_FALSE(bindings.drop_unpinned());
  bindings.pin();
  get(40);
  EXPECT_TRUE(bindings.find(key_of(20)).empty());
  EXPECT_EQ(run(engine, get(40), 40), 120.0f);
}

TEST_P(EngineMemory, RefusesABindingThatDoesNotFitAlone) {
  Engine engine(backend());
  Bindings bindings(engine);
  const auto get = [&](int64_t length) {
    return bindings.get(key_of(length), fmt::format("length {}", length),
                        [&] { return compile(length); })[0];
  };
  get(10);
  engine.allocate();
  engine.set_limit(engine.arena_bytes() + (int64_t{1} << 16));
  EXPECT_USER_ERROR(get(1 << 20), "[bindings] length 1048576 needs ");
  EXPECT_FALSE(bindings.find(key_of(10)).empty()) << "what is there stays";
  EXPECT_FALSE(bindings.fits_alone(compile(1 << 20)));
  // Where two would not fit together the older one goes.
  int64_t fits = 10;
  while (bindings.fits_alone(compile(2 * fits))) fits *= 2;
  EXPECT_EQ(run(engine, get(fits), fits), static_cast<float>(3 * fits));
  EXPECT_LE(engine.arena_bytes(), engine.limit());
}

// -- of a model
// ----------------------------------------------------------------------------------------

class OfAModel : public testing::Test {
 protected:
  void SetUp() override {
    config_.n_layer = 12;
    config_.n_positions = 512;
    config_.n_embd = 64;
    config_.n_head = 4;
  }
  Graph compile(int64_t length) const {
    PipelineOptions options;
    options.refresher = Refresher::loader;
    return run_pipeline(model_()->decode({.length = length, .capacity = 512}),
                        cpu::cpu_backend().target(), options);
  }
  models::ModelPtr model_() const { return config_.model(); }
  models::Gpt2Config config_ = test::tiny_gpt2();
};

TEST_F(OfAModel, FortyBindingsTakeLittleMoreThanTheLargest) {
  const auto bytes = [&](int64_t from) {
    Engine engine(cpu::cpu_backend());
    Bindings bindings(engine);
    for (int64_t length = from; length <= 320; length += 8) {
      bindings.get(key_of(length), "", [&] { return std::vector{compile(length)}; });
      if (!engine.allocated()) engine.allocate();
    }
    EXPECT_EQ(engine.arena_bytes(), engine.forecast().total());
    return static_cast<double>(engine.arena_bytes());
  };
  EXPECT_LE(bytes(8), 1.2 * bytes(320));
}

TEST_F(OfAModel, LogitsAreThoseOfAProgramAlone) {
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  const int32_t position = 0;
  const auto logits = [&](bool beside_others) {
    Engine engine(cpu::cpu_backend());
    const size_t first = engine.add(compile(beside_others ? 1 : 8));
    engine.allocate();
    load_parameters(engine, [&](std::string_view name, std::span<float> out) {
      models::initial_weights(*model_(), 1)(name, out);
    });
    size_t id = first;
    if (beside_others) {
      engine.add(compile(100));
      id = engine.add(compile(8));
      engine.add(compile(300));
    }
    Call call{id, {}, {}};
    call.set("tokens", std::span(tokens));
    call.set("position", std::span(&position, 1));
    engine.run(std::span(&call, 1));
    std::vector<std::byte> room;
    const auto read = engine.read_output(id, "logits", room);
    return std::vector<std::byte>(read.begin(), read.end());
  };
  EXPECT_TRUE(logits(false) == logits(true));
}

}  // namespace
}  // namespace brrr
