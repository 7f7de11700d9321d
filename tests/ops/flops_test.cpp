// The FLOPs of a contraction's cost are those that its meaning needs, counted one by one: the op is
// decomposed to products of matrices, and a multiply-add of such a product counts when it can
// change a result of the op. It can when neither factor is zero in every draw (probabilities under
// a mask are), and when another value of the element that it is summed into changes a result
// (masked scores change none). The count knows nothing of the cost's formula.

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/attention.h"
#include "ops/op.h"
#include "passes/passes.h"
#include "support/panel_samples.h"
#include "support/products_of_ones.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr uint32_t kDropoutDraws = 12;  // dropout hides an element only now and then

/// A sample as inputs, opened until nothing but primitives is left, every result an output. What
/// decompositions say twice (the logits of linear_cross_entropy_step) is there once.
Graph opened(const OpDef& op, const Sample& sample) {
  Graph g;
  std::vector<ValueId> operands;
  for (size_t i = 0; i < sample.in.size(); ++i)
    operands.push_back(g.input(fmt::format("x{}", i), sample.in[i].type).id);
  const NodeId id = g.add(op, operands, sample.attrs);
  for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
    g.output(fmt::format("y{}", port), g.value(id, port));
  return simplify(decompose(g, Target{}));
}

/// Random operands, but what only data can say says as much as it can: masks are open, lengths
/// whole, and a position is that of the last query at the last key.
reference::Tensors inputs_of(const OpDef& op, const Sample& sample, uint32_t seed) {
  const auto drawn = test::operands_of(sample, seed);
  reference::Tensors in;
  for (size_t i = 0; i < drawn.size(); ++i) {
    RefTensor t = drawn[i];
    if (op.is_attention) {
      std::vector<Type> types;
      for (const Sample::Operand& o : sample.in) types.push_back(o.type);
      const AttentionForm form(sample.attrs, types, op.name == "attention_grad");
      const auto keys = static_cast<double>(form.keys.size());
      if (types[i].dtype == DType::boolean) t.data.assign(t.data.size(), 1);
      if (i == form.lengths) t.data.assign(t.data.size(), keys);
      if (i == form.position)
        t.data.assign(t.data.size(), keys - static_cast<double>(form.queries.size()));
    }
    in[fmt::format("x{}", i)] = std::move(t);
  }
  return in;
}

using Values = std::vector<std::vector<RefTensor>>;  // of every node

/// Evaluates the nodes from `first` on; what comes before is there already.
void evaluate_from(const Graph& g, NodeId first, Values& values) {
  for (NodeId id = first; id < g.size(); ++id) {
    if (g.is_input(id)) continue;
    std::vector<const RefTensor*> in;
    for (const ValueId& v : g.node(id).operands) in.push_back(&values[v.node][v.port]);
    values[id] = reference::evaluate_node(g, id, in);
  }
}

bool same(const Graph& g, const Values& a, const Values& b) {
  for (const Output& o : g.outputs()) {
    const RefTensor &x = a[o.value.node][o.value.port], &y = b[o.value.node][o.value.port];
    if (is_integer(x.type.dtype) && !(x == y)) return false;
    for (size_t i = 0; i < x.data.size(); ++i)
      if (x.data[i] != y.data[i] && !(std::isnan(x.data[i]) && std::isnan(y.data[i]))) return false;
  }
  return true;
}

/// Where the products of a matmul come from: for each element of the result and each term, the
/// elements of a and b. Found by walking the indices of the op's definition.
template <typename Body>
void each_product(const Graph& g, NodeId id, Body&& body) {
  const Node& n = g.node(id);
  const bool ta = n.attrs.get<bool>("transpose_a"), tb = n.attrs.get<bool>("transpose_b");
  const Shape &a = g.type(n.operands[0]).shape, &b = g.type(n.operands[1]).shape;
  const Shape& y = n.results[0].shape;
  const int64_t rows = y.size(-2), columns = y.size(-1), terms = a.size(ta ? -2 : -1);
  const int64_t batches = y.elements() / std::max<int64_t>(1, rows * columns);
  for (int64_t batch = 0; batch < batches; ++batch) {
    // The batch as a multi-index, broadcast to the leading axes of a and b.
    const auto batch_in = [&](const Shape& s) {
      int64_t index = 0, stride = 1, rest = batch;
      for (int axis = 3; axis <= y.rank(); ++axis) {
        const int64_t at = rest % y.size(-axis);
        rest /= y.size(-axis);
        if (axis > s.rank()) continue;
        index += (s.size(-axis) == 1 ? 0 : at) * stride;
        stride *= s.size(-axis);
      }
      return index;
    };
    const int64_t a0 = batch_in(a) * rows * terms, b0 = batch_in(b) * terms * columns;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = 0; k < terms; ++k)
          body((batch * rows + i) * columns + j, a0 + (ta ? k * rows + i : i * terms + k),
               b0 + (tb ? j * terms + k : k * columns + j));
  }
}

/// Multiply-adds that can change a result, over the draws.
int64_t products_that_matter(const OpDef& op, const Sample& sample) {
  const Graph g = opened(op, sample);
  std::vector<Values> draws;
  for (uint32_t draw = 0; draw < kDropoutDraws; ++draw) {
    Values values(g.size());
    const reference::Tensors in = inputs_of(op, sample, 500 + draw);
    for (const NodeId id : g.inputs()) values[id].push_back(in.at(g.input_name(id)));
    evaluate_from(g, 0, values);
    draws.push_back(std::move(values));
  }
  int64_t products = 0;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (g.is_input(id) || !is(g.node(id), Op::matmul)) continue;
    const auto elements = static_cast<size_t>(g.node(id).results[0].shape.elements());
    std::vector<bool> read(elements, false);
    for (size_t element = 0; element < elements; ++element)
      for (size_t draw = 0; draw < draws.size() && !read[element]; ++draw) {
        Values changed = draws[draw];
        RefTensor& y = changed[id][0];
        y.set_number(element, y.number(element) + (is_float(y.type.dtype) ? 0.37 : 1));
        evaluate_from(g, id + 1, changed);
        read[element] = !same(g, draws[draw], changed);
      }
    const ValueId a = g.node(id).operands[0], b = g.node(id).operands[1];
    const auto ever = [&](const ValueId& v, int64_t i) {
      return std::any_of(draws.begin(), draws.end(), [&](const Values& values) {
        return values[v.node][v.port].number(static_cast<size_t>(i)) != 0;
      });
    };
    each_product(g, id, [&](int64_t element, int64_t i, int64_t j) {
      products += read[static_cast<size_t>(element)] && ever(a, i) && ever(b, j);
    });
  }
  return products;
}

/// The reference's own loops multiply what each_product says: the sum of its products is the
/// result.
TEST(Flops, TheCountWalksTheReferencesProducts) {
  const OpDef& matmul = op("matmul");
  for (const Sample& sample : matmul.samples()) {
    if (test::has_stored_operand(sample)) continue;  // the same products, elsewhere
    Graph g;
    const Value a = g.input("a", sample.in[0].type), b = g.input("b", sample.in[1].type);
    const NodeId id = g.add(matmul, std::vector<ValueId>{a.id, b.id}, sample.attrs);
    const auto in = test::operands_of(sample, 3);
    const std::vector<const RefTensor*> pointers{&in[0], &in[1]};
    const auto out = reference::evaluate_node(g, id, pointers);
    std::vector<double> sums(out[0].size(), 0);
    each_product(g, id, [&](int64_t element, int64_t i, int64_t j) {
      sums[static_cast<size_t>(element)] +=
          in[0].number(static_cast<size_t>(i)) * in[1].number(static_cast<size_t>(j));
    });
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], out[0].number(i), 1e-12);
  }
}

class EveryContraction : public testing::TestWithParam<const OpDef*> {};

std::vector<const OpDef*> contractions() {
  std::vector<const OpDef*> list;
  for (const OpDef* op : all_ops())
    if (op->op_class == OpClass::contraction) list.push_back(op);
  return list;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryContraction, testing::ValuesIn(contractions()),
                         [](const auto& row) { return row.param->name; });

TEST_P(EveryContraction, CostsExactlyTheProductsThatMatter) {
  const OpDef& op = *GetParam();
  for (const Sample& sample : op.samples()) {
    // The gradient of a softmax of one class is zero, whatever it is multiplied by.
    const bool one_class = op.name == "linear_cross_entropy_step" &&
                           sample.in[1].type.shape.elements() == sample.in[0].type.shape.size(-1);
    if (one_class || test::has_stored_operand(sample)) continue;
    if (sample.attrs.get_or<bool>("starts", false)) continue;  // lengths are data
    Graph g;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < sample.in.size(); ++i)
      operands.push_back(g.input(fmt::format("x{}", i), sample.in[i].type).id);
    const NodeId id = g.add(op, operands, sample.attrs);
    SCOPED_TRACE(op.name + " " + g.type(operands[0]).str() + " " + g.type(operands.back()).str());
    // linear adds a bias to each element, conv where it has one; what else is added is no
    // contraction.
    const bool adds = op.name == "linear" || (op.name == "conv" && sample.attrs.get<bool>("bias"));
    const int64_t bias = adds ? g.node(id).results[0].shape.elements() : 0;
    // Convolutions are primitives: no decomposition shows their products.
    const int64_t products = op.name.starts_with("conv") ? test::products_of_ones(g, id)
                                                         : products_that_matter(op, sample);
    EXPECT_EQ(cost_of(g, id).flops, static_cast<double>(2 * products + bias));
  }
}

}  // namespace
}  // namespace brrr
