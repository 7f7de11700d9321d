// The bytes that an op's cost says are those that it must move. An element of an operand is read
// when a change of it can change a result: each is poisoned in turn (a sample of the large tensors)
// and the op evaluated again, over several draws, because a mask or a dropped element hides others
// only now and then. That asks the meaning of the op and not its cost, and counts once what a
// kernel keeps in its cache. An element of a result is written when it is there: all of them are.

#include <gtest/gtest.h>

#include <map>

#include "ops/ops.h"
#include "support/long_proof.h"
#include "support/tensors.h"

namespace brrr {
namespace {

constexpr int kDraws = 6;
constexpr int64_t kWhole = 512;   // elements of an operand that are all looked at
constexpr int64_t kSampled = 48;  // of a larger one

struct Call {
  Graph graph;
  NodeId id = kNoNode;

  Call(const OpDef& op, const Sample& sample) {
    std::vector<ValueId> operands;
    for (size_t i = 0; i < sample.in.size(); ++i)
      operands.push_back(graph.input(fmt::format("x{}", i), sample.in[i].type).id);
    id = graph.add(op, operands, sample.attrs);
  }
  std::vector<RefTensor> evaluate(const std::vector<RefTensor>& in) const {
    std::vector<const RefTensor*> pointers;
    for (const RefTensor& t : in) pointers.push_back(&t);
    return reference::evaluate_node(graph, id, pointers);
  }
};

bool same(const std::vector<RefTensor>& a, const std::vector<RefTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (is_integer(a[i].type.dtype) && !(a[i] == b[i])) return false;
    for (size_t j = 0; j < a[i].data.size(); ++j)
      if (a[i].data[j] != b[i].data[j] && !(std::isnan(a[i].data[j]) && std::isnan(b[i].data[j])))
        return false;
  }
  return true;
}

/// Whether another value of element `j` of operand `i` changes a result (or is refused).
bool matters(const Call& call, const Sample& sample, std::vector<RefTensor> in,
             const std::vector<RefTensor>& out, size_t i, int64_t j) {
  const Sample::Operand& o = sample.in[i];
  const double before = in[i].number(static_cast<size_t>(j));
  std::vector<double> others;
  if (is_float(o.type.dtype))
    others = {std::nan(""), before + 0.5 * (o.high - o.low), before - 3 * (o.high - o.low)};
  else if (o.type.dtype == DType::boolean)
    others = {1 - before};
  else
    others = {before + 1 < o.high ? before + 1 : o.low, o.low, o.high - 1};
  for (const double other : others) {
    in[i].set_number(static_cast<size_t>(j), other);
    try {
      if (other != before && !same(out, call.evaluate(in))) return true;
    } catch (const UserError&) {
      return true;
    }
  }
  return false;
}

/// Bytes of the operands that matter, in expectation over the sampled elements.
double bytes_that_matter(const Call& call, const Sample& sample) {
  double bytes = 0;
  for (size_t i = 0; i < sample.in.size(); ++i) {
    const int64_t n = sample.in[i].type.shape.elements();
    const int64_t looked = n <= kWhole ? n : kSampled;
    std::vector<bool> read(static_cast<size_t>(looked), false);
    // A position that is drawn again would leave other elements of x.
    const Node& node = call.graph.node(call.id);
    const int draws = is(node, Op::update_slice) || is(node, Op::update_rows) ? 1 : kDraws;
    for (int draw = 0; draw < draws; ++draw) {
      const auto in = test::operands_of(sample, 77 + static_cast<uint32_t>(draw));
      std::vector<RefTensor> out;
      for (int64_t k = 0; k < looked; ++k) {
        if (read[static_cast<size_t>(k)]) continue;
        if (out.empty()) out = call.evaluate(in);
        // Spread over the tensor, both ends included.
        const int64_t j = looked == n ? k : k * (n - 1) / (looked - 1);
        read[static_cast<size_t>(k)] = matters(call, sample, in, out, i, j);
      }
    }
    const auto count = static_cast<double>(std::count(read.begin(), read.end(), true));
    if (looked > 0)
      bytes += count / static_cast<double>(looked) * static_cast<double>(sample.in[i].type.bytes());
  }
  return bytes;
}

class EveryCost : public testing::TestWithParam<const OpDef*> {};

INSTANTIATE_TEST_SUITE_P(Table, EveryCost, testing::ValuesIn(all_ops().begin(), all_ops().end()),
                         [](const auto& row) { return row.param->name; });

// What reads a byte more than once, and why.
const std::map<std::string, std::string>& exceptions() {
  static const std::map<std::string, std::string> all = {
      {"adafactor", "goes over gradients three times and over parameters twice"},
      {"adafactor_vector", "goes over gradients three times and over parameters twice"},
      {"gather", "loads a part for each index, the same part again for the same index"},
      {"gather_elements", "loads an element for each index, the same one again for the same index"},
      {"embedding", "loads a row for each id, the same row again for the same id"}};
  return all;
}

TEST_P(EveryCost, BytesAreThoseThatMatter) {
  const OpDef& op = *GetParam();
  // Updates have the most elements and evaluate all of them for each.
  const size_t count = op.op_class == OpClass::optimizer ? 2 : 4;
  const auto samples = test::sampled(op.samples(), count, op.name);
  double said_read = 0, said_written = 0, read = 0, written = 0;
  for (const Sample& sample : samples) {
    const Call call(op, sample);
    const Node& node = call.graph.node(call.id);
    const Cost cost = cost_of(call.graph, call.id);
    if (view_offset(call.graph, node)) {
      EXPECT_EQ(cost.bytes_read + cost.bytes_written, 0) << "a view moves nothing";
      continue;
    }
    said_read += cost.bytes_read;
    said_written += cost.bytes_written;
    read += bytes_that_matter(call, sample);
    for (const Type& t : node.results) written += static_cast<double>(t.bytes());
  }
  EXPECT_EQ(said_written, written);
  if (exceptions().contains(op.name))
    EXPECT_GT(said_read, read);
  else
    EXPECT_NEAR(said_read + said_written, read + written, 0.05 * (read + written))
        << "read " << read << ", the cost says " << said_read;
}

}  // namespace
}  // namespace brrr
