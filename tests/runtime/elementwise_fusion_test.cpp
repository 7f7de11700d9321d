// Every element-wise op as part of a fused cluster on the CPU: it fuses, or its reason is stated
// here, and the cluster gives the bits that the op's own kernel gives.

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/fusion/tile_program.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/each_isa.h"
#include "support/engine_run.h"
#include "support/random_graph.h"

namespace brrr {
namespace {

/// Element-wise ops that a cluster may consist of.
std::vector<const OpDef*> elementwise() {
  std::vector<const OpDef*> list;
  for (const OpDef* op : all_ops())
    if (op->op_class == OpClass::elementwise && op->id != Op::fused) list.push_back(op);
  return list;
}

/// Why no tile computes the op on operands of these dtypes; empty where one must.
std::string stated_reason(const OpDef& op, const std::vector<Type>& in, const Type& out) {
  for (const Type& t : in)
    if (bytes_of(t.dtype) == 8 || t.dtype == DType::u8) return "a lane has 32 bits";
  if (is_fp8(out.dtype)) return "tiles store no 8-bit floats";
  const bool divides = op.id == Op::div || op.id == Op::pow || op.id == Op::fmod;
  if (divides && in[0].dtype == DType::i32) return "the CPU has no kernel for it, either";
  return "";
}

TEST(ElementwiseFusion, EveryOpFusesOrStatesItsReason) {
  size_t fused = 0;
  for (const OpDef* op : elementwise())
    for (const Sample& sample : op->samples()) {
      Graph body;
      std::vector<ValueId> operands;
      std::vector<Type> in;
      for (const Sample::Operand& o : sample.in) {
        in.push_back(o.type);
        operands.push_back(body.input(fmt::format("a{}", operands.size()), o.type).id);
      }
      const NodeId id = body.add(*op, operands, sample.attrs);
      body.output("0", body.value(id));
      const std::string reason = stated_reason(*op, in, body.type({id, 0}));
      const std::string refusal = cpu::TileProgram(body).refusal();
      EXPECT_EQ(refusal.empty(), reason.empty())
          << op->name << " of " << in[0].str() << ": " << (refusal.empty() ? reason : refusal);
      fused += refusal.empty();
    }
  EXPECT_GT(fused, 100u);
}

/// The same value, computed.
Value computed(Value v) {
  if (v.dtype() == DType::boolean) return logical_not(logical_not(v));
  return is_float(v.dtype()) ? v * 1.0 : add(v, scalar(*v.graph, 0, v.dtype()));
}
/// Another value, which the op's result is read for.
Value read(Value v) {
  if (v.dtype() == DType::boolean) return logical_not(v);
  return is_float(v.dtype()) ? v * 0.75 + v : add(v, scalar(*v.graph, 3, v.dtype()));
}

/// One op between others. Bit i of `computes`: operand i is computed in the cluster; `scalar`: the
/// last operand is one number.
struct Chain {
  const OpDef* op;
  const Sample* sample;
  DType dtype;  // in place of f32
  uint32_t computes;
  bool scalar;

  Graph graph() const {
    const Shape shape{13, 129};  // whole blocks of every instruction set and a rest
    Graph g;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < sample->in.size(); ++i) {
      const DType t = sample->in[i].type.dtype;
      const bool is_scalar = scalar && i + 1 == sample->in.size();
      Value v =
          g.input(fmt::format("x{}", i), is_scalar ? Shape{} : shape, t == DType::f32 ? dtype : t);
      operands.push_back((computes >> i & 1 ? computed(v) : v).id);
    }
    g.output("y", read(g.value(g.add(*op, operands, sample->attrs))));
    return g;
  }
  reference::Tensors inputs(const Graph& g) const {
    test::Random random(7);
    reference::Tensors all;
    for (size_t i = 0; i < sample->in.size(); ++i) {
      const NodeId id = g.find_input(fmt::format("x{}", i));
      all[g.input_name(id)] =
          test::random_tensor(g.type({id, 0}), sample->in[i].low, sample->in[i].high, random);
    }
    return all;
  }
};

class ElementwiseFusion : public test::EachIsa {};

TEST_P(ElementwiseFusion, ChangesNoBitOfAnyOp) {
  const Backend backend = cpu::cpu_backend();
  const Target target = backend.target();
  size_t clusters = 0;
  for (const OpDef* op : elementwise()) {
    if (op->draws_random || op->id == Op::quantize) continue;  // keys; 8-bit floats
    const std::vector<Sample> samples = op->samples();
    const bool takes_integers = std::ranges::any_of(
        samples, [](const Sample& s) { return s.in.back().type.dtype == DType::i32; });
    for (const Sample& sample : samples) {
      bool broadcasts = false, takes_floats = false;
      for (const Sample::Operand& o : sample.in) {
        broadcasts |= o.type.shape != sample.in[0].type.shape;
        takes_floats |= o.type.dtype == DType::f32;
      }
      if (broadcasts || sample.in[0].type.shape.rank() != 2) continue;
      std::vector<DType> dtypes{DType::f32};
      if (takes_floats) dtypes = {DType::f32, DType::bf16, DType::f16};
      if (takes_floats && takes_integers) dtypes.push_back(DType::i32);
      for (const DType dtype : dtypes)
        for (uint32_t computes = 1; computes < 1u << sample.in.size(); ++computes)
          for (const bool scalar : {false, true}) {
            if (scalar && (sample.in.size() < 2 || op->is_gradient)) continue;
            if (scalar && computes >> (sample.in.size() - 1) != 0) continue;
            const Chain chain{op, &sample, dtype, computes, scalar};
            const Graph plain = decompose(chain.graph(), target), fused = fuse(plain, target);
            std::vector<Type> in;
            bool fuses = false, alone = false;
            for (NodeId id = 0; id < plain.size(); ++id)
              if (is(plain.node(id), op->id)) in = operand_types(plain, plain.node(id));
            for (const Node& node : fused.nodes()) {
              fuses |= is(node, Op::fused);
              alone |= is(node, op->id);
            }
            SCOPED_TRACE(fmt::format("{} of {}, {}", op->name, in[0].str(), computes));
            if (!stated_reason(*op, in, in.back()).empty()) continue;
            EXPECT_TRUE(fuses && !alone);
            clusters += fuses;
            const reference::Tensors values = chain.inputs(plain);
            EXPECT_TRUE(test::run_on_cpu(fused, values) == test::run_on_cpu(plain, values));
          }
    }
  }
  EXPECT_GT(clusters, 200u);
}

INSTANTIATE_TEST_SUITE_P(Isa, ElementwiseFusion, test::every_isa(), test::isa_of);

}  // namespace
}  // namespace brrr
