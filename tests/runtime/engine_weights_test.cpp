// Weights of an engine: lent from a mapped file where kernels can read them there, else converted,
// and derived weights that are made of them.

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ops/ops.h"
#include "passes/weights/derived_weight.h"
#include "runtime/engine.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

std::shared_ptr<const WeightList> listed(const char* name, DType dtype, const Shape& shape,
                                         std::span<const std::byte> bytes) {
  const auto list = std::make_shared<WeightList>("test.file");
  list->add({name, dtype, shape, bytes});
  return list;
}

// A program that comes later may bring state: it gets memory of its own. Lent memory stays where it
// is, and is only read.
TEST(EngineWeights, StateMayComeLaterAndBeLent) {
  Graph a, b, c;
  a.output("y", a.input("s", {4}, f32, InputKind::state) * 2.0);
  b.output("y", b.input("s", {4}, f32, InputKind::state) + b.parameter("w", {4}));
  Engine engine(reference::backend());
  engine.add(a);
  engine.allocate();
  const std::vector<float> w{1, 2, 3, 4};
  engine.use_weights(listed("w", f32, {4}, std::as_bytes(std::span(w))));
  const int64_t before = engine.arena_bytes();
  const size_t added = engine.add(b);
  engine.state_f32("s")[1] = 10;
  engine.run(added);
  EXPECT_EQ(reinterpret_cast<const float*>(engine.output(added, "y"))[1], 12);
  EXPECT_LT(engine.arena_bytes() - before, 1024);
  EXPECT_THROW(engine.state_f32("w"), InternalError);
  c.output("y", c.input("new", {5}, f32, InputKind::state) * 2.0);
  const size_t last = engine.add(c);
  engine.state_f32("new")[4] = 3;
  engine.run(last);
  EXPECT_EQ(reinterpret_cast<const float*>(engine.output(last, "y"))[4], 6);
}

// As the weights of a file that keeps no alignment: a kernel that copies bytes reads them there,
// and where a program needs them aligned, the engine has its own.
TEST(EngineWeights, UnalignedMemoryIsLentAsFarAsKernelsReadIt) {
  constexpr size_t kRows = 5, kWidth = 3;
  std::vector<float> table(kRows * kWidth);
  std::iota(table.begin(), table.end(), 1.0f);
  std::vector<std::byte> file(1 + table.size() * sizeof(float));
  std::memcpy(file.data() + 1, table.data(), file.size() - 1);
  Graph rows, sums;
  rows.output("y", gather(rows.parameter("w", {kRows, kWidth}), rows.input("id", {1}, i32), 0));
  sums.output("y", sums.parameter("w", {kRows, kWidth}) * 2.0);
  for (const bool sums_come_late : {false, true}) {
    Engine engine(cpu::cpu_backend());
    engine.use_weights(listed("w", f32, {kRows, kWidth}, std::span(file).subspan(1)));
    const size_t first = engine.add(rows);
    EXPECT_TRUE(engine.find_state("w")->is_lent);
    EXPECT_EQ(engine.forecast().parameter_bytes, 0);
    const auto row = [&](int32_t id) {
      engine.set_scalar(first, "id", id);
      engine.run(first);
      return *reinterpret_cast<const float*>(engine.output(first, "y"));
    };
    if (sums_come_late) {
      engine.allocate();
      EXPECT_EQ(row(2), 7);
    }
    const size_t second = engine.add(sums);
    EXPECT_FALSE(engine.find_state("w")->is_lent);
    EXPECT_GT(engine.forecast().parameter_bytes, 0);
    if (!sums_come_late) engine.allocate();
    engine.run(second);
    EXPECT_EQ(reinterpret_cast<const float*>(engine.output(second, "y"))[14], 30);
    EXPECT_EQ(row(4), 13);
  }
}

// The copy counts towards the limit, and when it does not fit, nothing has changed.
TEST(EngineWeights, ACopyOfUnalignedMemoryIsWithinTheLimit) {
  std::vector<std::byte> file(1 + (size_t{1} << 20) * sizeof(float));
  Graph rows, sums;
  rows.output("y", gather(rows.parameter("w", {1 << 20}), rows.input("id", {1}, i32), 0));
  sums.output("y", sum(sums.parameter("w", {1 << 20}), {0}));
  Engine engine(cpu::cpu_backend());
  engine.use_weights(listed("w", f32, {1 << 20}, std::span(file).subspan(1)));
  engine.add(rows);
  engine.allocate();
  engine.set_limit(int64_t{1} << 20);
  EXPECT_THROW(engine.add(sums), UserError);
  EXPECT_TRUE(engine.find_state("w")->is_lent);
  engine.set_limit(int64_t{16} << 20);
  engine.add(sums);
  EXPECT_FALSE(engine.find_state("w")->is_lent);
}

// Sources of a derived weight are read where they lie, too.
TEST(EngineWeights, DerivedWeightsAreMadeOfUnalignedMemory) {
  constexpr int64_t kSize = 70;
  for (const DType dtype : {f32, bf16, f16}) {
    const int64_t bytes = kSize * kSize * static_cast<int64_t>(bytes_of(dtype));
    std::vector<std::byte> numbers(static_cast<size_t>(bytes)), file(numbers.size() + 1);
    for (int64_t i = 0; i < kSize * kSize; ++i)
      store_from_double(dtype, numbers.data(), i, static_cast<double>(i % 251));
    std::copy(numbers.begin(), numbers.end(), file.begin() + 1);
    for (const Layout layout : {Layout::panels, Layout::transposed_panels}) {
      Graph form;
      form.output("0", store(form.input("a0", {kSize, kSize}, dtype), {layout}));
      const DerivedWeight weight{{"w"}, Region(form)};
      Graph g;
      g.output("y", matmul(g.input("x", {1, kSize}, dtype), derived_input(g, weight), false,
                           layout == Layout::transposed_panels));
      Engine engine(cpu::cpu_backend());
      engine.use_weights(listed("w", dtype, {kSize, kSize}, std::span(file).subspan(1)));
      engine.add(g);
      engine.allocate();
      EXPECT_TRUE(engine.sources_to_fill(weight).empty());
      engine.load_weights();
      std::vector<std::byte> room;
      const auto stored = engine.read_state(engine.states()[0].name, room);
      std::vector<double> values(kSize * kSize);
      read_floats({layout}, dtype, {kSize, kSize}, stored.data(), values);
      for (int64_t i = 0; i < kSize * kSize; ++i)
        ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<double>(i % 251)) << i;
    }
  }
}

// If only the loader writes parameters, a derived weight is made once. A later program that adds
// the parameter itself does not add a program that would refresh the weight.
TEST(EngineWeights, ALoaderMakesDerivedWeightsOnce) {
  Graph form, first, second;
  form.output("0", form.input("a0", {2, 3}, f32) * 2.0);
  const DerivedWeight weight{{"w"}, Region(form)};
  first.output("y", derived_input(first, weight) + first.input("x", {2, 3}, f32));
  second.output("y", second.parameter("w", {2, 3}) + derived_input(second, weight));
  Engine engine(cpu::cpu_backend(), WrittenBy::loader);
  engine.add(first);
  EXPECT_EQ(engine.graphs().size(), 1u);
  engine.allocate();
  const std::vector<float> w{1, 2, 3, 4, 5, 6};
  engine.load(*listed("w", f32, {2, 3}, std::as_bytes(std::span(w))));
  const size_t later = engine.add(second);
  engine.write_state("w", std::as_bytes(std::span(w)));
  engine.run(later);
  EXPECT_EQ(reinterpret_cast<const float*>(engine.output(later, "y"))[5], 18);
}

// Rows of 16 bits are read in the file, where a program wants them as they lie; another dtype is
// converted, and what cannot be converted is refused with both types.
TEST(EngineWeights, AMappedWeightIsLentOrConvertedOrRefused) {
  const std::vector<uint16_t> halves{0x3f80, 0x4000, 0x4040, 0x4080};  // 1, 2, 3, 4 in bf16
  const auto bytes = std::as_bytes(std::span(halves));
  for (const DType wanted : {bf16, f32}) {
    Graph g;
    g.output("y", cast(gather(g.parameter("w", {2, 2}, wanted), g.input("id", {1}, i32), 0), f32));
    Engine engine(cpu::cpu_backend(), WrittenBy::loader);
    engine.use_weights(listed("w", bf16, {2, 2}, bytes));
    const size_t p = engine.add(g);
    engine.allocate();
    EXPECT_EQ(engine.find_state("w")->is_lent, wanted == bf16);
    EXPECT_EQ(engine.lent_bytes(), wanted == bf16 ? 8 : 0);
    EXPECT_EQ(engine.forecast().parameter_bytes > 0, wanted != bf16);
    engine.set_scalar(p, "id", 1);
    engine.run(p);
    EXPECT_EQ(reinterpret_cast<const float*>(engine.output(p, "y"))[1], 4);
  }
  const auto refusal_of = [&](TensorView tensor) {
    Graph g;
    g.output("y", g.parameter("w", {2, 2}) * 2.0);
    const auto list = std::make_shared<WeightList>("test.file");
    list->add(std::move(tensor));
    Engine engine(cpu::cpu_backend(), WrittenBy::loader);
    engine.use_weights(list);
    engine.add(g);
    engine.allocate();
    return test::user_error_of([&] { engine.load_weights(); });
  };
  EXPECT_EQ(refusal_of({"v", bf16, {2, 2}, bytes}),
            "test.file: the tensor w is missing; the model wants f32[2,2]");
  EXPECT_EQ(refusal_of({"w", bf16, {4}, bytes}),
            "test.file: the tensor w is bf16[4]; the model wants f32[2,2]");
  EXPECT_EQ(refusal_of({"w", DType::i16, {2, 2}, bytes}),
            "test.file: the tensor w is i16[2,2]; the model wants f32[2,2]");
  EXPECT_EQ(refusal_of({"w", bf16, {2, 2}, bytes, {Layout::panels}}),
            "test.file: the tensor w is bf16[2,2]/panels; the model wants f32[2,2]");
  WeightList twice("test.file");
  twice.add({"w", bf16, {2, 2}, bytes});
  EXPECT_EQ(test::user_error_of([&] {
              twice.add({"w", bf16, {2, 2}, bytes});
            }),
            "test.file: the tensor 'w' is there twice");
}

// The engine copies a parameter that a program updates, because the mapped file is read-only.
TEST(EngineWeights, WhatAProgramUpdatesIsNotLent) {
  const std::vector<float> w{1, 2, 3, 4};
  Graph g;
  const Value x = g.parameter("w", {4});
  g.update(x, x * 2.0);
  Engine engine(cpu::cpu_backend());
  engine.use_weights(listed("w", f32, {4}, std::as_bytes(std::span(w))));
  const size_t p = engine.add(g);
  engine.allocate();
  EXPECT_FALSE(engine.find_state("w")->is_lent);
  engine.run(p);
  engine.run(p);
  EXPECT_EQ(engine.state_f32("w")[3], 16);
}

}  // namespace
}  // namespace brrr
