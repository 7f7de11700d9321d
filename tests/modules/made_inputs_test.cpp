// Sizes that a file leaves open, inputs that are made up, and what is compiled before it is run.

#include "runtime/made_inputs.h"

#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "modules/onnx/onnx_module.h"
#include "support/onnx_fields.h"

namespace brrr::test {
namespace {

using namespace onnx_bytes;  // NOLINT: builders of bytes

/// A module of declared inputs alone.
class Declared final : public Runnable {
 public:
  explicit Declared(std::vector<std::pair<std::string, std::vector<PortDim>>> inputs) {
    for (auto& [name, dims] : inputs) {
      Port port;
      port.name = name;
      port.type = "f32";
      port.has_shape = true;
      port.dims = dims;
      ports.push_back(port);
    }
  }
  const std::vector<Port>& inputs() const override { return ports; }
  const std::vector<Port>& outputs() const override { return none_; }
  LoweredGraph lower(const GraphRequest&) const override { return {}; }
  std::shared_ptr<const WeightSource> weights() const override { return nullptr; }
  std::string summary() const override { return ""; }
  uint64_t file_bytes() const override { return 0; }

  std::vector<Port> ports;

 private:
  std::vector<Port> none_;
};

Shape shape_of(const MadeInputs& made, const std::string& name) {
  return made.values.find(name)->second.tensor().shape;
}

std::string error_of(const Runnable& module, PortValues given = {},
                     const std::map<std::string, int64_t>& sizes = {}) {
  try {
    make_inputs(module, std::move(given), sizes);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(MadeInputs, OptionsTensorsAndNamesTellSizes) {
  const Declared module({{"ids", {{-1, "batch"}, {-1, "seq"}}},
                         {"mask", {{-1, "batch"}, {-1, "past + seq"}}},
                         {"image", {{-1, ""}, {3, ""}, {-1, ""}}}});
  PortValues given;
  given.emplace("ids", HostTensor(DType::f32, {2, 5}));
  const MadeInputs made = make_inputs(module, given, {{"past", 3}, {"image.2", 7}});
  EXPECT_EQ(shape_of(made, "ids"), (Shape{2, 5}));
  EXPECT_EQ(shape_of(made, "mask"), (Shape{2, 8}));
  EXPECT_EQ(shape_of(made, "image"), (Shape{1, 3, 7}));
  EXPECT_EQ(made.made, (std::vector<std::string>{"mask", "image"}));
  for (const AxisSize& size : made.sizes) {
    const bool is_option = size.name == "past" || size.name == "image.2";
    EXPECT_EQ(size.from == AxisSize::From::option, is_option) << size.name;
    EXPECT_EQ(size.from == AxisSize::From::guess, size.name == "image.0") << size.name;
  }
}

TEST(MadeInputs, NamesTellWhatIsUsual) {
  const Declared module({{"x", {{-1, "batch_size"}, {-1, "sequence_length"}, {-1, "Height"}}}});
  EXPECT_EQ(shape_of(make_inputs(module, {}, {}), "x"), (Shape{1, 128, 224}));
}

TEST(MadeInputs, FloatsAreRandomAndIntegersOne) {
  Declared module({{"x", {{64, ""}}}, {"i", {{2, ""}}}});
  module.ports[1].dtype = DType::i64;
  const MadeInputs made = make_inputs(module, {}, {});
  const MadeInputs again = make_inputs(module, {}, {});
  const HostTensor& x = made.values.find("x")->second.tensor();
  EXPECT_EQ(x.bytes, again.values.find("x")->second.tensor().bytes);
  double low = 1, high = -1;
  for (int64_t i = 0; i < 64; ++i) {
    low = std::min(low, x.number(i));
    high = std::max(high, x.number(i));
  }
  EXPECT_GE(low, -1);
  EXPECT_LT(low, -0.5);
  EXPECT_LT(high, 1);
  EXPECT_GT(high, 0.5);
  EXPECT_EQ(made.values.find("i")->second.tensor().number(1), 1);
}

TEST(MadeInputs, WhatIsUnknownOrWrongIsAskedFor) {
  const Declared open({{"x", {{-1, "n"}, {-1, "?"}, {-1, "k"}}}});
  EXPECT_NE(error_of(open).find("add --size x.1=N --size k=N"), std::string::npos)
      << error_of(open);
  EXPECT_NE(error_of(open, {}, {{"k", 1}}).find("add --size x.1=N"), std::string::npos);
  EXPECT_NE(error_of(open, {}, {{"z", 1}, {"x.1", 1}, {"k", 2}}).find("--size z: no axis"),
            std::string::npos);
  PortValues given;
  given.emplace("x", HostTensor(DType::f32, {1, 2, 3}));
  EXPECT_NE(error_of(open, given, {{"k", 4}}).find("--size k=4: the tensor for 'x' has 3"),
            std::string::npos);
  EXPECT_EQ(error_of(open, given, {{"k", 3}}), "");
  EXPECT_NE(error_of(open, {}, {{"n", int64_t{1} << 31}, {"x.1", int64_t{1} << 31}, {"k", 9}})
                .find("more than any machine holds"),
            std::string::npos);
  Declared unshaped({{"x", {{1, ""}}}});
  unshaped.ports[0].has_shape = false;
  EXPECT_NE(error_of(unshaped).find("--input x=FILE.npy"), std::string::npos);
  Declared sequence({{"x", {{1, ""}}}});
  sequence.ports[0].is_tensor = false;
  sequence.ports[0].type = "sequence of f32";
  EXPECT_NE(error_of(sequence).find("sequence of f32"), std::string::npos);
}

// y = x w, w of 2 x 2.
std::string product() {
  return model(input("x", kFloat, {-1, 2}) +
               initializer(tensor("w", kFloat, {2, 2}, raw<float>({1, 2, 3, 4.125}))) +
               node("MatMul", {"x", "w"}, {"y"}) + output("y", kFloat, {-1, 2}));
}

TEST(OnnxSession, PrepareCompilesAndAllocatesNothing) {
  const std::string bytes = product();
  RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "m.onnx")),
                          cpu::cpu_backend());
  const PortValues inputs{{"x", HostTensor::of<float>({1, 2}, {1, 1})}};
  EXPECT_TRUE(session.prepare(inputs));
  EXPECT_FALSE(session.engine().allocated());
  EXPECT_EQ(session.last_programs().size(), 1u);
  EXPECT_EQ(session.run(inputs).begin()->second.tensor().number(1), 6.125);
  EXPECT_EQ(session.programs(), 1u);
}

TEST(OnnxSession, WeightsTakeThePrecision) {
  const std::string bytes = product();
  for (const DType precision : {DType::bf16, DType::f16}) {
    RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "m.onnx")),
                            cpu::cpu_backend(), {.passes = for_inference(precision)});
    const PortValues inputs{{"x", HostTensor::of<float>({1, 2}, {1, 1})}};
    EXPECT_EQ(session.run(inputs).begin()->second.tensor().number(1), 6.125);
  }
}

// Where an engine's limit has room for one program, that of an earlier run goes.
TEST(OnnxSession, ProgramsOfOtherRunsMakeRoom) {
  const std::string bytes = product();
  RunnableOptions options;
  int64_t limit = 0;
  options.before_program = [&](Engine& engine, const Graph&) { engine.set_limit(limit); };
  RunnableSession session(onnx::open_module(onnx::File::parse(bytes, "m.onnx")), cpu::cpu_backend(),
                          options);
  const auto rows = [&](int64_t n) {
    return session.run({{"x", HostTensor::filled(DType::f32, {n, 2}, 1)}});
  };
  rows(4096);
  limit = session.engine().arena_bytes() + 4096;
  rows(4100);
  EXPECT_EQ(session.programs(), 2u);
  limit -= 8192;
  rows(1000);
  EXPECT_EQ(session.programs(), 1u);
  EXPECT_THROW(rows(1 << 20), UserError);
}

}  // namespace
}  // namespace brrr::test
