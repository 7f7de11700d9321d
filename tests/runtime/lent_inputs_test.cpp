// Inputs that are lent are read where they lie: to the same bits, and unchanged.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "runtime/engine.h"
#include "support/generated.h"
#include "support/random_graph.h"
#include "support/tensors.h"

namespace brrr {
namespace {

using Memory = std::vector<std::byte>;

/// The bytes of every data input, each `skip` elements after a multiple of 64.
struct LentInputs {
  LentInputs(const Graph& g, const reference::Tensors& in, size_t skip) {
    for (const NodeId id : g.inputs(InputKind::data)) {
      const Type& type = g.type({id, 0});
      Memory& room = rooms[g.input_name(id)];
      room.resize(static_cast<size_t>(type.bytes()) + 64 + skip * bytes_of(type.dtype));
      const auto at = reinterpret_cast<uintptr_t>(room.data());
      std::byte* const data = room.data() + (64 - at % 64) % 64 + skip * bytes_of(type.dtype);
      write_tensor(in.at(g.input_name(id)), data);
      places.emplace_back(g.input_name(id),
                          std::span<const std::byte>(data, static_cast<size_t>(type.bytes())));
    }
  }
  Call call(size_t program, bool is_lent) const {
    Call call{program, {}, {}};
    for (const auto& [name, bytes] : places) call.inputs.push_back({name, bytes, is_lent});
    return call;
  }
  std::map<std::string, Memory> rooms;
  std::vector<std::pair<std::string, std::span<const std::byte>>> places;
};

/// Outputs and states after each of the runs; run i lends its inputs where ways[i] says so.
std::vector<Memory> results(const Graph& g, const reference::Tensors& in,
                            const std::vector<bool>& ways, size_t skip) {
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(decompose(g, engine.backend().target()));
  engine.allocate();
  for (const StateInfo& s : engine.states()) write_tensor(in.at(s.name), engine.state_data(s.name));
  const LentInputs inputs(engine.program(p).graph(), in, skip);
  const std::map<std::string, Memory> before = inputs.rooms;
  std::vector<Memory> all;
  Memory room;
  for (const bool is_lent : ways) {
    const Call call = inputs.call(p, is_lent);
    engine.run(std::span(&call, 1));
    const Graph& compiled = engine.program(p).graph();
    for (const Output& o : compiled.outputs()) {
      if (o.updates != kNoNode) continue;
      const auto bytes = engine.read_output(p, o.name, room);
      all.emplace_back(bytes.begin(), bytes.end());
    }
    for (const StateInfo& s : engine.states()) {
      const auto bytes = engine.read_state(s.name, room);
      all.emplace_back(bytes.begin(), bytes.end());
    }
  }
  EXPECT_EQ(inputs.rooms, before) << "an input that was lent was written to";
  EXPECT_EQ(engine.copied_input_bytes(), 0);
  return all;
}

TEST(LentInputs, GiveTheBitsOfCopies) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const Graph g = test::RandomGraph(seed).graph();
    const reference::Tensors in = test::random_inputs(g, seed, -1, 1, 5);
    const std::vector<Memory> copied = results(g, in, {false, false, false}, 0);
    ASSERT_EQ(results(g, in, {true, true, true}, 0), copied) << print(g);
    ASSERT_EQ(results(g, in, {true, false, true}, 1), copied) << print(g);
  }
}

TEST(LentInputs, AreReadThroughViewsAndAsOutputs) {
  Graph g;
  const Value x = g.input("x", {4, 6}, DType::f32);
  g.output("turned", transpose(reshape(x, {6, 4}), {1, 0}));
  g.output("flat", reshape(x, {24}));
  g.output("x", x);
  reference::Tensors in = test::random_inputs(g, 3, -1, 1, 5);
  EXPECT_EQ(results(g, in, {true, true}, 1), results(g, in, {false, false}, 0));
}

TEST(LentInputs, WithinAnElementAreCopiedAndCounted) {
  Graph g;
  const Value x = g.input("x", {4}, DType::f32);
  g.output("y", x + x);
  Engine engine(cpu::cpu_backend());
  const size_t p = engine.add(g);
  engine.allocate();
  const float numbers[] = {1, 2, 3, 4};
  Memory room(sizeof numbers + 1);
  std::memcpy(room.data() + 1, numbers, sizeof numbers);
  const Call call{p, {{"x", std::span<const std::byte>(room).subspan(1), true}}, {}};
  engine.run(std::span(&call, 1));
  Memory copy;
  float y[4];
  std::memcpy(y, engine.read_output(p, "y", copy).data(), sizeof y);
  EXPECT_EQ(y[3], 8);
  EXPECT_EQ(engine.copied_input_bytes(), 16);
}

}  // namespace
}  // namespace brrr
