// Derivatives: every differentiable op on every sample against central differences of the
// reference, and every hand-written vjp of a composite against the derivative of its decomposition.

#include <gtest/gtest.h>

#include "ops/ops.h"
#include "passes/passes.h"
#include "support/panel_samples.h"
#include "support/tensors.h"

namespace brrr {
namespace {

using reference::Tensors;
using test::operands_of;

// loss = sum over results of sum(result * random weights). Floating operands are parameters.
struct Loss {
  Graph graph;
  Tensors inputs;
  std::vector<std::string> parameters;
};

// `decomposed`: the node replaced by what it means, one level deep.
Loss loss_of(const OpDef& op, const Sample& sample, uint32_t seed, bool decomposed = false,
             uint32_t only_result = ~0u) {
  Loss out;
  Graph& g = out.graph;
  const auto values = operands_of(sample, seed);
  std::vector<ValueId> operands;
  std::vector<Value> handles;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    const Type& type = sample.in[i].type;
    const std::string name = fmt::format("x{}", i);
    const bool trained = is_float(type.dtype);
    handles.push_back(g.input(name, type, trained ? InputKind::parameter : InputKind::data));
    operands.push_back(handles.back().id);
    if (trained) out.parameters.push_back(name);
    out.inputs[name] = values[i];
  }
  std::vector<Value> results;
  if (decomposed) {
    Graph scratch = g;  // only to have the node and its types
    const Node node = scratch.node(scratch.add(op, operands, sample.attrs));
    results = op.decompose(DecomposeContext{g, node, handles});
  } else {
    const NodeId id = g.add(op, operands, sample.attrs);
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      results.push_back(g.value(id, port));
  }
  test::Random random(seed + 1);
  Value loss;
  for (uint32_t i = 0; i < results.size(); ++i) {
    const Type type = results[i].type();
    if (!is_float(type.dtype) || (only_result != ~0u && only_result != i)) continue;
    const std::string name = fmt::format("weights{}", i);
    Value weights = g.input(name, type);
    out.inputs[name] = test::random_tensor(type, -1, 1, random);
    std::vector<int64_t> axes;
    for (int axis = 0; axis < type.shape.rank(); ++axis) axes.push_back(axis);
    Value part = cast(sum(results[i] * weights, axes), DType::f64);
    loss = loss.graph == nullptr ? part : loss + part;
  }
  if (loss.graph != nullptr) g.output("loss", loss);
  return out;
}

Tensors gradients(const Loss& loss) {
  return reference::evaluate(differentiate(loss.graph), loss.inputs);
}

double largest(const RefTensor& t) {
  double top = 0;
  for (double x : t.data) top = std::max(top, std::fabs(x));
  return top;
}

void check_against_differences(const Loss& loss, uint32_t seed) {
  const Tensors grads = gradients(loss);
  test::Random random(seed + 2);
  for (const std::string& name : loss.parameters) {
    const RefTensor& grad = grads.at("grad:" + name);
    const double scale = std::max(1.0, largest(grad));
    const auto n = static_cast<int64_t>(grad.data.size());
    // Every element of small operands, a spread of large ones.
    for (int64_t k = 0; k < std::min<int64_t>(n, 40); ++k) {
      const auto i = static_cast<size_t>(n <= 40 ? k : random.below(n));
      const double h = 1e-5;
      double side[2];
      for (int s : {0, 1}) {
        Tensors moved = loss.inputs;
        moved[name].data[i] += s == 0 ? -h : h;
        side[s] = reference::evaluate(loss.graph, moved).at("loss").data[0];
      }
      const double numeric = (side[1] - side[0]) / (2 * h);
      ASSERT_NEAR(grad.data[i], numeric, 1e-6 * scale) << name << "[" << i << "]";
    }
  }
}

/// Whether an op has a derivative that differences approximate.
bool differentiable(const OpDef& op) { return op.no_gradient.empty() && !op.is_straight_through; }

/// The samples of an op that have a derivative: keys in blocks of a cache have none.
std::vector<Sample> differentiable_samples(const OpDef& op) {
  std::vector<Sample> samples = op.samples();
  std::erase_if(samples,
                [](const Sample& s) { return s.attrs.get_or<int64_t>("block_rows", 0) > 0; });
  return samples;
}

// How many results the op has on its first sample.
size_t results_of(const OpDef& op) {
  Graph g;
  std::vector<ValueId> in;
  const Sample sample = op.samples()[0];
  for (const auto& o : sample.in) in.push_back(g.input(std::to_string(g.size()), o.type).id);
  return g.node(g.add(op, in, sample.attrs)).results.size();
}

template <typename Filter>
auto ops_where(Filter&& filter) {
  std::vector<const OpDef*> out;
  for (const OpDef* op : all_ops())
    if (differentiable(*op) && filter(*op)) out.push_back(op);
  return testing::ValuesIn(out);
}
std::string name_of_row(const testing::TestParamInfo<const OpDef*>& row) { return row.param->name; }

class EveryDerivative : public testing::TestWithParam<const OpDef*> {};
class EveryDerivativeOfMany : public testing::TestWithParam<const OpDef*> {};
class EveryVjpOfAComposite : public testing::TestWithParam<const OpDef*> {};

INSTANTIATE_TEST_SUITE_P(Table, EveryDerivative, ops_where([](const OpDef&) { return true; }),
                         name_of_row);
INSTANTIATE_TEST_SUITE_P(Table, EveryDerivativeOfMany,
                         ops_where([](const OpDef& op) { return results_of(op) > 1; }),
                         name_of_row);
INSTANTIATE_TEST_SUITE_P(Table, EveryVjpOfAComposite,
                         ops_where([](const OpDef& op) { return op.is_composite() && op.vjp; }),
                         name_of_row);

TEST_P(EveryDerivative, AgreesWithCentralDifferences) {
  const OpDef& op = *GetParam();
  const auto samples = differentiable_samples(op);
  int checked = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto seed = static_cast<uint32_t>(2000 + i);
    SCOPED_TRACE(fmt::format("op {}, sample {}, seed {}; {}", op.name, i, seed, test::rerun()));
    if (test::has_stored_operand(samples[i])) continue;  // for inference
    const Loss loss = loss_of(op, samples[i], seed);
    if (loss.parameters.empty() || loss.graph.outputs().empty()) continue;
    check_against_differences(loss, seed);
    ++checked;
  }
  EXPECT_GT(checked, 0) << "no sample of " << op.name << " has a floating operand and result";
}

// A result that alone is used must be differentiated, too.
TEST_P(EveryDerivativeOfMany, HoldsForEachResultAlone) {
  const OpDef& op = *GetParam();
  const Sample sample = op.samples()[0];
  for (uint32_t i = 0; i < results_of(op); ++i) {
    SCOPED_TRACE(fmt::format("op {}, only result {}; {}", op.name, i, test::rerun()));
    const Loss loss = loss_of(op, sample, 3000 + i, false, i);
    if (loss.graph.outputs().empty()) continue;  // integers
    check_against_differences(loss, 3000 + i);
  }
}

TEST_P(EveryVjpOfAComposite, AgreesWithItsDecomposition) {
  const OpDef& op = *GetParam();
  const auto samples = differentiable_samples(op);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto seed = static_cast<uint32_t>(4000 + i);
    SCOPED_TRACE(fmt::format("op {}, sample {}, seed {}; {}", op.name, i, seed, test::rerun()));
    if (test::has_stored_operand(samples[i])) continue;  // for inference
    const Loss by_hand = loss_of(op, samples[i], seed),
               derived = loss_of(op, samples[i], seed, true);
    const Tensors a = gradients(by_hand), b = gradients(derived);
    for (const std::string& name : by_hand.parameters) {
      const RefTensor &x = a.at("grad:" + name), &y = b.at("grad:" + name);
      ASSERT_EQ(x.type, y.type);
      const double scale = std::max(1.0, largest(y));
      for (size_t k = 0; k < x.data.size(); ++k)
        ASSERT_NEAR(x.data[k], y.data[k], 1e-10 * scale) << name << "[" << k << "]";
    }
  }
}

// Ops without a derivative say so when a parameter is differentiated through them.
TEST(NoDerivative, IsAnErrorThatSaysWhy) {
  int refused = 0;
  for (const OpDef* op : all_ops()) {
    // No loss is made of what does not lie in rows.
    if (differentiable(*op) || op->is_composite() || op->id == Op::store) continue;
    const Loss loss = loss_of(*op, op->samples()[0], 1);
    if (loss.parameters.empty() || loss.graph.outputs().empty()) continue;
    SCOPED_TRACE(op->name);
    try {
      differentiate(loss.graph);
      ADD_FAILURE() << "differentiated";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(op->name), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(op->no_gradient), std::string::npos) << e.what();
      ++refused;
    }
  }
  EXPECT_GE(refused, 3);  // embedding_grad, global_norm, adamw, update_slice
}

}  // namespace
}  // namespace brrr
