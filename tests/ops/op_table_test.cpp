// What every row of the op table owes, op by op and sample by sample.

#include <gtest/gtest.h>

#include <set>

#include "ir/text.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "passes/passes.h"
#include "support/products_of_ones.h"
#include "support/tensors.h"

namespace brrr {
namespace {

using test::operands_of;

// One node, its operands as inputs, every result an output.
struct OneNode {
  Graph graph;
  NodeId id = kNoNode;

  OneNode(const OpDef& op, const std::vector<Type>& in, const Attrs& attrs,
          InputKind float_kind = InputKind::data) {
    std::vector<ValueId> operands;
    for (size_t i = 0; i < in.size(); ++i)
      operands.push_back(graph
                             .input(fmt::format("x{}", i), in[i],
                                    is_float(in[i].dtype) ? float_kind : InputKind::data)
                             .id);
    id = graph.add(op, operands, attrs);
  }
  OneNode(const OpDef& op, const Sample& sample, InputKind float_kind = InputKind::data)
      : OneNode(op, types_of(sample), sample.attrs, float_kind) {}

  static std::vector<Type> types_of(const Sample& sample) {
    std::vector<Type> types;
    for (const auto& o : sample.in) types.push_back(o.type);
    return types;
  }
};

std::vector<RefTensor> evaluate(const OneNode& one, const std::vector<RefTensor>& in) {
  std::vector<const RefTensor*> pointers;
  for (const RefTensor& t : in) pointers.push_back(&t);
  return reference::evaluate_node(one.graph, one.id, pointers);
}

class EveryOp : public testing::TestWithParam<const OpDef*> {
 protected:
  const OpDef& op() const { return *GetParam(); }
  // Runs `body(sample, seed)` on each sample; a failure says which.
  template <typename Body>
  void for_each_sample(Body&& body) {
    const auto samples = op().samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto seed = static_cast<uint32_t>(1000 + i);
      SCOPED_TRACE(fmt::format("op {}, sample {}, seed {}; {}", op().name, i, seed, test::rerun()));
      body(samples[i], seed);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Table, EveryOp, testing::ValuesIn(all_ops().begin(), all_ops().end()),
                         [](const auto& row) { return row.param->name; });

/// Row r of result 0 depends on row r of the first operands, and on no other of their rows.
void check_rows(const OneNode& one, const std::vector<RefTensor>& in,
                const std::vector<RefTensor>& out) {
  const auto width = static_cast<size_t>(out[0].type.shape.size(-1));
  ASSERT_LE(one.graph.node(one.id).op->row_operands, in.size());
  for (size_t k = 0; k < one.graph.node(one.id).op->row_operands; ++k) {
    ASSERT_EQ(in[k].type.shape, out[0].type.shape) << "operand " << k;
    auto changed = in;
    for (size_t i = 0; i < width; ++i) changed[k].data[i] += 0.25 * static_cast<double>(i + 1);
    const auto now = evaluate(one, changed);
    bool same_row = true;
    for (size_t i = 0; i < out[0].data.size(); ++i) {
      ASSERT_TRUE(i < width || now[0].data[i] == out[0].data[i]) << "operand " << k;
      same_row = same_row && (i >= width || now[0].data[i] == out[0].data[i]);
    }
    EXPECT_TRUE(width < 2 || !same_row) << "operand " << k;
  }
}

TEST_P(EveryOp, TraitsAreTrue) {
  const OpDef& d = op();
  EXPECT_EQ(d.is_gradient, d.name.ends_with("_grad") || d.name.ends_with("_entropy_step"));
  EXPECT_TRUE(!d.product || d.op_class == OpClass::contraction);
  EXPECT_TRUE(!d.is_activation || d.op_class == OpClass::elementwise);
  const bool moves =
      d.id == Op::reshape || d.id == Op::after || d.id == Op::full || d.part != OpDef::Part::whole;
  for_each_sample([&](const Sample& sample, uint32_t seed) {
    const OneNode one(d, sample);
    const std::vector<RefTensor> in = operands_of(sample, seed);
    EXPECT_EQ(d.updates_parameters, sample.attrs.find("decays") != nullptr);
    EXPECT_EQ(d.product && d.product->transposes, sample.attrs.find("transpose_a") != nullptr);
    EXPECT_TRUE(!d.product || !d.product->adds_bias || in.size() == 3);
    EXPECT_TRUE(!d.draws_random || in.back().type == (Type{DType::i32, {2}}));
    const auto elements = static_cast<size_t>(one.graph.type({one.id, 0}).shape.elements());
    EXPECT_TRUE(d.id != Op::update_slice || in[1].size() < elements);
    if (!moves && !d.only_adds && d.row_operands == 0) return;
    const std::vector<RefTensor> out = evaluate(one, in);
    for (size_t i = 0; i < out[0].size(); ++i) {
      EXPECT_TRUE((d.id != Op::reshape && d.id != Op::after) ||
                  out[0].number(i) == in[0].number(i));
      EXPECT_TRUE(d.id != Op::full || out[0].number(i) == full_value(one.graph.node(one.id)));
    }
    if (d.part != OpDef::Part::whole) {
      std::set<double> from;
      for (size_t i = 0; i < in[0].size(); ++i) from.insert(in[0].number(i));
      for (size_t i = 0; i < out[0].size(); ++i) EXPECT_TRUE(from.contains(out[0].number(i)));
    }
    if (d.only_adds && is_float(out[0].type.dtype)) {
      auto twice = in;
      for (RefTensor& t : twice)
        for (double& x : t.data) x *= is_float(t.type.dtype) ? 2 : 1;
      const auto doubled = evaluate(one, twice);
      for (size_t i = 0; i < out[0].data.size(); ++i)
        EXPECT_EQ(doubled[0].data[i], 2 * out[0].data[i]);
    }
    if (d.row_operands > 0) check_rows(one, in, out);
  });
}

TEST_P(EveryOp, IsComplete) {
  EXPECT_FALSE(op().doc.empty());
  ASSERT_TRUE(op().infer);
  ASSERT_TRUE(op().samples);
  EXPECT_FALSE(op().samples().empty());
  EXPECT_NE(op().is_primitive(), op().is_composite()) << "exactly one of evaluate and decompose";
  if (op().is_primitive()) {
    EXPECT_NE(static_cast<bool>(op().vjp), !op().no_gradient.empty())
        << "a primitive has a vjp, or the reason why it has none";
  }
  EXPECT_EQ(find_op(op().name), &op());
}

TEST_P(EveryOp, InfersWhatItEvaluates) {
  for_each_sample([&](const Sample& sample, uint32_t seed) {
    const OneNode one(op(), sample);
    const auto out = evaluate(one, operands_of(sample, seed));
    const auto& results = one.graph.node(one.id).results;
    ASSERT_EQ(out.size(), results.size());
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].type, results[i]) << "result " << i;
      ASSERT_EQ(static_cast<int64_t>(out[i].size()), results[i].shape.elements());
      for (double x : out[i].data) {
        ASSERT_FALSE(std::isnan(x)) << "result " << i << " of a sample holds NaN";
        ASSERT_TRUE(is_float(results[i].dtype) || x == std::trunc(x)) << x;
        ASSERT_TRUE(results[i].dtype != DType::boolean || x == 0 || x == 1) << x;
      }
    }
  });
}

TEST_P(EveryOp, PrintsAndParsesBack) {
  for_each_sample([&](const Sample& sample, uint32_t) {
    OneNode one(op(), sample);
    for (uint32_t port = 0; port < one.graph.node(one.id).results.size(); ++port)
      one.graph.output(fmt::format("y{}", port), one.graph.value(one.id, port));
    const std::string text = print(one.graph);
    const Graph back = parse(text, find_op);
    EXPECT_TRUE(back == one.graph) << text;
    EXPECT_EQ(print(back), text);
    verify(back);
  });
}

TEST_P(EveryOp, CostsAtLeastItsTraffic) {
  for_each_sample([&](const Sample& sample, uint32_t) {
    const OneNode one(op(), sample);
    const Node& node = one.graph.node(one.id);
    const Cost cost = cost_of(one.graph, one.id);
    EXPECT_GE(cost.flops, 0);
    if (view_offset(one.graph, node)) return;
    double in = 0, out = 0;
    for (const Type& t : operand_types(one.graph, node)) in += static_cast<double>(t.bytes());
    for (const Type& t : node.results) out += static_cast<double>(t.bytes());
    EXPECT_GE(cost.bytes_written, out);
    // A gather reads only the part that it hands on.
    const bool gathers = op().name == "embedding" || op().name == "gather" ||
                         op().name == "gather_elements" || op().name == "slice" ||
                         op().name == "update_slice" || op().name == "update_rows" ||
                         op().name == "rotary" ||
                         op().name == "attention";  // of a source only the columns that it takes
    EXPECT_GE(cost.bytes_read, gathers ? out : in);
  });
}

TEST(OpTable, ContractionsCostTwoFlopsPerProduct) {
  int contractions = 0;
  for (const OpDef* op : all_ops()) {
    if (op->op_class != OpClass::contraction) continue;
    for (const Sample& sample : op->samples()) {
      const OneNode one(*op, sample);
      SCOPED_TRACE(print(one.graph));
      const Shape& y = one.graph.type({one.id, 0}).shape;
      const bool transposed = sample.attrs.get_or<bool>("transpose_a", false);
      const int64_t k = sample.in[0].type.shape.size(transposed ? -2 : -1);
      int64_t expected = 2 * y.elements() * k;             // 2 M N K, for each batch
      if (op->name == "linear") expected += y.elements();  // the bias
      if (op->is_attention) {  // q kᵀ and p v; backward s, dp, dq, dk and dv
        const AttentionForm form(one.graph.node(one.id),
                                 operand_types(one.graph, one.graph.node(one.id)));
        if (form.starts) continue;  // lengths are data
        const int64_t d = form.places.width, dv = form.places.value_width;
        const int64_t widths = form.gradient ? 3 * d + 2 * dv : d + dv;
        const int64_t queries = form.queries.size(), keys = form.keys.size(),
                      heads = form.batches() * form.places.heads;
        int64_t pairs = 0;
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t j = 0; j < keys; ++j) {
            const int64_t at = form.position ? keys - queries + i : i;
            pairs += (!form.causal || j <= at) && (form.window == 0 || j > at - form.window) &&
                     (!form.window_after || j <= at + *form.window_after);
          }
        expected = 2 * heads * pairs * widths;
      }
      if (op->name.starts_with("linear_cross_entropy")) {  // logits; backward dx and dw, too
        const bool has_dw = sample.attrs.get_or<bool>("dw", true);
        const int64_t products = op->name == "linear_cross_entropy" ? 1 : has_dw ? 3 : 2;
        expected = 2 * products * sample.in[0].type.shape.elements() *
                   (sample.in[1].type.shape.elements() / k);
      }
      if (op->name.starts_with("conv")) {
        const int64_t tile = sample.attrs.get_or<int64_t>("winograd", 0);
        // Each tile, those that reach beyond the picture too, multiplies all of the weight.
        expected = tile == 0
                       ? 2 * test::products_of_ones(one.graph, one.id)
                       : 2 * y.size(0) * ((y.size(1) + tile - 1) / tile) *
                             ((y.size(2) + tile - 1) / tile) * sample.in[1].type.shape.elements();
        if (sample.attrs.get_or<bool>("bias", false)) expected += y.elements();
      }
      EXPECT_EQ(cost_of(one.graph, one.id).flops, static_cast<double>(expected));
      ++contractions;
    }
  }
  EXPECT_GE(contractions, 15);
}

// -- wrong operands
// ----------------------------------------------------------------------------------

// The call is refused with a UserError that begins with the op's name, or it is a valid call: its
// evaluation works and has the inferred sizes. Returns whether it was refused.
bool refused(const OpDef& op, const std::vector<Type>& in, const Attrs& attrs) {
  SCOPED_TRACE([&] {
    std::string text = op.name + "(";
    for (const Type& t : in) text += " " + t.str();
    return text + ") " + attrs.str();
  }());
  try {
    const OneNode one(op, in, attrs);
    test::Random random(7);
    std::vector<RefTensor> values;
    for (const Type& t : in) values.push_back(test::random_tensor(t, 0.5, 1.5, random));
    const auto out = evaluate(one, values);
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(static_cast<int64_t>(out[i].size()),
                one.graph.type({one.id, static_cast<uint32_t>(i)}).shape.elements());
    return false;
  } catch (const UserError& e) {
    // The decomposition of gather_elements is a gather.
    const bool gathers = std::string_view(e.what()).starts_with("[gather] index");
    EXPECT_TRUE(std::string_view(e.what()).starts_with("[" + op.name + "] ") ||
                (gathers && op.name == "gather_elements"))
        << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return true;
  }
}

TEST_P(EveryOp, RefusesAWrongNumberOfOperands) {
  for_each_sample([&](const Sample& sample, uint32_t) {
    auto types = OneNode::types_of(sample);
    const std::set<std::string> takes_any_number{"concat",         "global_norm",   "all_reduce",
                                                 "reduce_scatter", "block_squares", "block_norm"};
    if (takes_any_number.contains(op().name)) {  // but none
      EXPECT_TRUE(refused(op(), {}, sample.attrs));
      return;
    }
    types.push_back({DType::f32, {2}});
    EXPECT_TRUE(refused(op(), types, sample.attrs));
    types.resize(types.size() - 1);
    if (types.empty()) return;
    const bool has_zeros = op().name == "store" && types.size() == 3;  // which may be left out
    types.resize(types.size() - (has_zeros ? 2 : 1));
    EXPECT_TRUE(refused(op(), types, sample.attrs));
  });
}

TEST_P(EveryOp, RefusesWrongDtypes) {
  const std::set<std::string> takes_any{
      "reshape", "transpose", "slice", "pad",    "broadcast_to",    "cast",
      "after",   "gather",    "sort",  "argmax", "gather_elements", "all_gather"};
  for_each_sample([&](const Sample& sample, uint32_t) {
    for (size_t i = 0; i < sample.in.size(); ++i) {
      bool any = false;
      for (DType wrong :
           {DType::boolean, DType::i32, DType::i64, DType::u8, DType::f32, DType::bf16}) {
        auto types = OneNode::types_of(sample);
        if (wrong == types[i].dtype) continue;
        types[i] = {wrong, types[i].shape};
        any = refused(op(), types, sample.attrs) || any;
      }
      EXPECT_TRUE(any || takes_any.contains(op().name) ||
                  (op().name == "concat" && sample.in.size() == 1))
          << "operand " << i << " may be anything";
    }
  });
}

TEST_P(EveryOp, RefusesWrongShapes) {
  int refusals = 0, calls = 0;
  for_each_sample([&](const Sample& sample, uint32_t) {
    for (size_t i = 0; i < sample.in.size(); ++i)
      for (const Shape& wrong :
           {Shape{}, Shape{13}, Shape{13, 13}, Shape{2, 1, 13}, Shape{1, 1, 1, 1, 1}, Shape{0}}) {
        auto types = OneNode::types_of(sample);
        if (types[i].shape == wrong) continue;
        types[i] = {types[i].dtype, wrong};
        ++calls;
        refusals += refused(op(), types, sample.attrs);
      }
  });
  // Only ops that take tensors of any shape accept all of them.
  const auto samples = op().samples();
  if (calls > 0 && samples[0].in.size() > 1 && op().name != "global_norm" && op().name != "after") {
    EXPECT_GT(refusals, 0);
  }
}

TEST_P(EveryOp, RefusesMissingAndMistypedAttributes) {
  const Sample sample = op().samples()[0];
  const auto types = OneNode::types_of(sample);
  for (const auto& [name, value] : sample.attrs) {
    Attrs without, other = sample.attrs;
    for (const auto& [n, v] : sample.attrs)
      if (n != name) without.set(n, v);
    EXPECT_TRUE(refused(op(), types, without)) << "without " << name;
    other.set(name, std::holds_alternative<std::string>(value) ? AttrValue(int64_t{1})
                                                               : AttrValue(std::string("x")));
    EXPECT_TRUE(refused(op(), types, other)) << "with another " << name;
  }
}

TEST(OpTable, NamesAreDistinctAndFound) {
  std::set<std::string> names;
  for (const OpDef* op : all_ops()) EXPECT_TRUE(names.insert(op->name).second) << op->name;
  EXPECT_EQ(find_op("no_such_op"), nullptr);
  EXPECT_EQ(find_op("input"), nullptr) << "the graph knows input itself";
  EXPECT_THROW(op("no_such_op"), InternalError);
}

}  // namespace
}  // namespace brrr
