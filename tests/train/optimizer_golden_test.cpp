// Every optimizer against PyTorch, transformers, bitsandbytes or the published maths: ten steps on
// four tensors, through the graph that attach_optimizer builds, on the CPU's kernels and on the
// reference. The goldens and the script that made them stand in tests/golden/.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "formats/safetensors.h"
#include "ops/quantized/dynamic_code.h"
#include "optim/optimizer.h"
#include "passes/passes.h"
#include "runtime/engine.h"

namespace brrr {
namespace {

const std::vector<std::string> kNames = {"wide", "tall", "large", "bias"};

class OptimizerGolden : public ::testing::Test {
 protected:
  std::vector<double> numbers(const std::string& name) const {
    const io::TensorView& t = file_.get(name);
    const std::vector<std::byte> aligned(t.bytes.begin(), t.bytes.end());
    std::vector<double> out;
    for (int64_t i = 0; i < t.shape.elements(); ++i)
      out.push_back(load_as_double(t.dtype, aligned.data(), i));
    return out;
  }
  double option(const char* name) const { return options_[name]; }

  optim::Optimizer optimizer(optim::OptimizerKind kind) const {
    optim::Optimizer o;
    o.kind = kind;
    o.beta1 = option("beta1");
    o.beta2 = option("beta2");
    o.eps = option("eps");
    o.weight_decay = option("weight_decay");
    o.momentum = option("momentum");
    o.muon_rate = option("muon_rate");
    o.max_grad_norm = 0;
    return o;
  }

  /// The update alone: gradients are inputs. bias is no matrix, so it does not decay.
  Graph graph(const optim::Optimizer& o) const {
    Graph g;
    for (const std::string& name : kNames) {
      const Shape& shape = file_.get("start." + name).shape;
      const Value parameter = g.input(name, Type{DType::f32, shape}, Role::parameter,
                                      {{std::string(kDecays), shape.rank() >= 2}});
      g.gradient(parameter, g.input("g." + name, shape, DType::f32));
    }
    optim::attach_optimizer(g, o);
    return g;
  }
  double rate(const optim::Optimizer& o, int64_t t) const {
    return o.kind == optim::OptimizerKind::adafactor && o.scale_parameter
               ? std::min(1e-2, 1 / std::sqrt(static_cast<double>(t)))
               : option("lr");
  }

  /// Parameters, by name, and every state after `steps` steps on the CPU's kernels.
  reference::Tensors run(const optim::Optimizer& o, int64_t steps) const {
    Engine engine(cpu::cpu_backend());
    const size_t p = engine.add(decompose(graph(o), engine.backend().target()));
    engine.allocate();
    for (const std::string& name : kNames) put(engine.state_data(name), "start." + name);
    for (int64_t t = 1; t <= steps; ++t) {
      for (const std::string& name : kNames) put(engine.input(p, "g." + name), gradient(t, name));
      engine.set_scalar(p, "learning_rate", static_cast<float>(rate(o, t)));
      engine.set_scalar(p, "optimizer_step", static_cast<int32_t>(t));
      engine.run(p);
    }
    reference::Tensors out;
    for (const StateInfo& s : engine.states())
      out[s.name] = read_tensor(s.type, engine.state_data(s.name));
    return out;
  }

  /// The same on the fp64 reference.
  reference::Tensors run_reference(const optim::Optimizer& o, int64_t steps) const {
    const Graph g = graph(o);
    reference::Tensors in;
    for (NodeId id : g.inputs()) {
      const Type& type = g.type({id, 0});
      in[g.input_name(id)] = {type,
                              std::vector<double>(static_cast<size_t>(type.shape.elements()), 0.0)};
    }
    for (const std::string& name : kNames) in[name].data = numbers("start." + name);
    for (int64_t t = 1; t <= steps; ++t) {
      for (const std::string& name : kNames) in["g." + name].data = numbers(gradient(t, name));
      in["learning_rate"].data = {rate(o, t)};
      in["optimizer_step"].data = {static_cast<double>(t)};
      for (auto& [name, value] : reference::evaluate(g, in))
        if (name.starts_with("update:")) in[name.substr(7)].data = value.data;
    }
    return in;
  }

  /// The largest difference to a golden, relative to how far the tensor moved.
  double error(const reference::Tensors& got, const std::string& golden, const std::string& name) {
    const auto wanted = numbers(golden + "." + name), start = numbers("start." + name);
    double worst = 0, moved = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      worst = std::max(worst, std::fabs(got.at(name).data[i] - wanted[i]));
      moved = std::max(moved, std::fabs(wanted[i] - start[i]));
    }
    return worst / moved;
  }

  void check(const optim::Optimizer& o, const std::string& golden, double f32_bound) {
    const auto steps = static_cast<int64_t>(option("steps"));
    const auto got = run(o, steps), judge = run_reference(o, steps);
    for (const std::string& name : kNames) {
      EXPECT_LT(error(judge, golden, name), 1e-9) << "reference: " << golden << "." << name;
      EXPECT_LT(error(got, golden, name), f32_bound) << "kernels: " << golden << "." << name;
    }
  }

  io::SafetensorsFile file_{fs::path(BRRR_SOURCE_DIR) / "tests/golden/optimizers.safetensors"};

 private:
  std::string gradient(int64_t t, const std::string& name) const {
    return fmt::format("grad.{}.{}", t % static_cast<int64_t>(option("gradients")), name);
  }
  void put(std::byte* to, const std::string& name) const {
    const auto bytes = file_.get(name).bytes;
    std::memcpy(to, bytes.data(), bytes.size());
  }
  nlohmann::json options_ = nlohmann::json::parse(file_.metadata().at("options"));
};

using Kind = optim::OptimizerKind;

// Bounds of the kernels are f32's 6e-8 times what ten steps and the size of a parameter beside its
// movement make of it.
TEST_F(OptimizerGolden, AdamwIsPyTorchs) { check(optimizer(Kind::adamw), "adamw", 2e-5); }
// Written out in ops for each tensor: 1 - beta^t is then f32's.
TEST_F(OptimizerGolden, PlainAdamwIsPyTorchs) {
  optim::Optimizer o = optimizer(Kind::adamw);
  o.fused = false;
  check(o, "adamw", 2e-4);
}
TEST_F(OptimizerGolden, SgdIsPyTorchs) { check(optimizer(Kind::sgd), "sgd", 2e-5); }
TEST_F(OptimizerGolden, LionIsThePapers) { check(optimizer(Kind::lion), "lion", 2e-5); }
TEST_F(OptimizerGolden, AdafactorIsTransformersTrainers) {
  optim::Optimizer o = optimizer(Kind::adafactor);
  o.scale_parameter = false;
  check(o, "adafactor", 2e-5);
}
TEST_F(OptimizerGolden, AdafactorWithRelativeStepsIsThePapers) {
  check(optimizer(Kind::adafactor), "adafactor_relative", 2e-5);
}
// Five quintic iterations enlarge roundings of small singular values up to 3.4445^5 times.
TEST_F(OptimizerGolden, MuonIsThePublishedOne) { check(optimizer(Kind::muon), "muon", 2e-4); }

TEST_F(OptimizerGolden, CodeBooksAreThoseOfBitsandbytes) {
  for (bool is_signed : {true, false}) {
    const auto wanted = numbers(is_signed ? "codes.signed" : "codes.unsigned");
    const ops::CodeBook& codes = ops::dynamic_codes(is_signed);
    for (size_t i = 0; i < 256; ++i)
      EXPECT_EQ(static_cast<double>(codes[i]), wanted[i]) << is_signed << " " << i;
  }
}

// One step, from zero: every code that is not on the edge between two is the same. Then ten, where
// a code that fell to the other side of an edge goes its own way by one cell.
TEST_F(OptimizerGolden, Adamw8bitIsThatOfBitsandbytes) {
  const optim::Optimizer o = optimizer(Kind::adamw_8bit);
  for (int64_t steps : {int64_t{1}, int64_t{10}}) {
    for (const auto& got : {run(o, steps), run_reference(o, steps)}) {
      for (const char* moment : {"m", "v"}) {
        const auto codes = numbers(fmt::format("state.{}.adam_{}_code", steps, moment));
        const auto scales = numbers(fmt::format("state.{}.adam_{}_scale", steps, moment));
        const auto& our_codes = got.at(fmt::format("adam_{}_code:large", moment)).data;
        const auto& our_scales = got.at(fmt::format("adam_{}_scale:large", moment)).data;
        ASSERT_EQ(our_codes.size(), codes.size());
        ASSERT_EQ(our_scales.size(), scales.size());
        size_t others = 0;
        for (size_t i = 0; i < codes.size(); ++i) {
          EXPECT_LE(std::fabs(our_codes[i] - codes[i]), 1) << moment << i;
          others += our_codes[i] != codes[i];
        }
        EXPECT_LE(others, codes.size() / (steps == 1 ? 1000 : 100)) << moment << " " << steps;
        for (size_t i = 0; i < scales.size(); ++i)
          EXPECT_NEAR(our_scales[i], scales[i], (steps == 1 ? 1e-6 : 1e-3) * scales[i]) << i;
      }
    }
  }
  const auto got = run(o, 10);
  for (const char* name : {"wide", "tall", "bias"})
    EXPECT_LT(error(got, "adamw_8bit", name), 2e-5) << name << " is small: f32";
  EXPECT_LT(error(got, "adamw_8bit", "large"), 0.02);
  EXPECT_TRUE(got.contains("adam_m:wide") && !got.contains("adam_m:large"));
}

}  // namespace
}  // namespace brrr
