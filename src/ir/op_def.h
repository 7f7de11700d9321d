#pragma once
// OpDef: everything the rest of the system asks about an op, in one record. An op is primitive (it
// has `evaluate`, naive loops in double, or in exact integers) or composite (it has `decompose`,
// which IS its meaning). Types are inferred here, derivatives, costs and test samples too.

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "ir/graph.h"
#include "ir/ref_tensor.h"

namespace brrr {

/// The three classes of "Data Movement Is All You Need" (Ivanov et al.), plus movement, leaves and
/// the ops that run regions.
enum class OpClass { contraction, normalisation, elementwise, movement, leaf, optimizer, control };
std::string_view name_of(OpClass c);

/// What autocast does with an op: runs it in low precision, in fp32, or in what its operands have.
enum class Autocast { low, fp32, follow };

/// The identity of an op: ops/op.h has the enumerators.
enum class Op : uint16_t;

struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
};

struct InferContext {
  const OpDef& op;
  std::span<const Type> in;
  const Attrs& attrs;

  /// Throws UserError "[op] message".
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_text(fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void fail_text(const std::string& message) const;
  /// The attribute; UserError when absent or of another type.
  template <typename T>
  const T& attr(std::string_view name) const {
    const AttrValue* value = attrs.find(name);
    if (value == nullptr || !std::holds_alternative<T>(*value))
      fail("needs the attribute '{}'", name);
    return std::get<T>(*value);
  }
};

struct EvalContext {
  const Node& node;
  std::span<const RefTensor* const> in;
  std::span<RefTensor> out;  // types set, elements sized
};

struct DecomposeContext {
  Graph& graph;  // append here
  const Node& node;
  std::span<const Value> in;
};

class VjpContext {
 public:
  VjpContext(Graph& g, NodeId id, std::span<const Value> result_grads, std::vector<bool> wanted)
      : graph(g), id_(id), result_grads_(result_grads), wanted_(std::move(wanted)) {
    grads_.resize(wanted_.size());
  }
  Graph& graph;
  const Node& node() const { return graph.node(id_); }
  const Attrs& attrs() const { return node().attrs; }
  Value operand(size_t i) const { return graph.value(node().operands[i]); }
  Value result(uint32_t i) const { return graph.value(id_, i); }
  /// Gradient of result i; absent results have graph == nullptr.
  bool has_grad(size_t i) const { return result_grads_[i].graph != nullptr; }
  Value grad(size_t i) const { return result_grads_[i]; }
  /// Whether anything depends on the gradient of operand i.
  bool wants(size_t i) const { return wanted_[i]; }
  void set(size_t i, Value grad) { grads_[i] = grad; }
  const std::vector<Value>& grads() const { return grads_; }

 private:
  NodeId id_;
  std::span<const Value> result_grads_;
  std::vector<bool> wanted_;
  std::vector<Value> grads_;
};

/// One valid call, for the tests that are generated from the table.
struct Sample {
  struct Operand {
    Type type;
    double low = -1, high = 1;  // uniform; integers are drawn from [low, high)
    bool is_partition = false;  // ascending integers, the first low, the last high - 1
  };
  std::vector<Operand> in;
  Attrs attrs;
};

/// Operand 0, or its transpose, times operand 1, or its transpose.
struct ProductTrait {
  bool transposes = false;  // by {transpose_a} and {transpose_b}
  bool adds_bias = false;   // operand 2
  bool is_scaled = false;   // 8-bit operands, operand 1 transposed; 2 and 3 are their scales
};

/// A loss over classes, or its gradient.
struct LossTrait {
  /// Operands 0 and 1 are the factors of the logits; otherwise operand 0 is the logits.
  bool from_product = false;
  bool gives_losses = false;  // results 0 and 1 are the losses and the log-sum-exp
};

struct OpDef {
  std::string name;
  Op id{};          // given by all_ops(), by the name
  std::string doc;  // a comment with shapes and the accumulation dtype
  OpClass op_class = OpClass::elementwise;
  Autocast autocast = Autocast::follow;
  /// Bit i (the last: all behind it, too): operand i may lie in another storage than rows.
  uint32_t stored_operands = 0;
  bool reads_stored(size_t i) const {
    return ((stored_operands >> std::min<size_t>(i, 31)) & 1u) != 0;
  }
  /// Bit i (the last: all behind it, too): autocast converts operand i of an op that is not `fp32`.
  /// The others (a bias, a mask, a table of angles) stay as they are.
  uint32_t autocast_operands = ~0u;
  /// The same bits, where they depend on the attributes.
  std::function<uint32_t(const Attrs&)> autocast_operands_of;
  bool casts_operand(const Attrs& attrs, size_t i) const {
    const uint32_t bits = autocast_operands_of ? autocast_operands_of(attrs) : autocast_operands;
    return ((bits >> std::min<size_t>(i, 31)) & 1u) != 0;
  }

  /// For each result that is a sum of products: the attribute that gives the dtype to which its f32
  /// accumulators are rounded. Null: it is none.
  std::vector<const char*> accumulator_dtype;

  std::function<std::vector<Type>(const InferContext&)> infer;
  std::function<void(const EvalContext&)> evaluate;                      // primitive
  std::function<std::vector<Value>(const DecomposeContext&)> decompose;  // composite
  std::function<void(VjpContext&)> vjp;                                  // optional for a composite
  /// Reason why the op has no derivative (integers, randomness, updates); empty when it has one.
  std::string no_gradient;
  /// The vjp passes the gradient through rounding as if it were the identity, so that it is not the
  /// derivative.
  bool is_straight_through = false;
  std::function<Cost(const Node&, std::span<const Type> in)> cost;
  std::function<std::vector<Sample>()> samples;

  /// result i may be written over operand j when nobody reads j afterwards: a kernel reads an
  /// element of j no later than it writes that element of i.
  struct InPlace {
    uint32_t result;
    uint32_t operand;
  };
  std::vector<InPlace> in_place;
  /// Variadic ops: result i may be written over operand in_place_map(node)[i].
  std::function<std::vector<InPlace>(const Node&)> in_place_of;
  /// When result 0 is a contiguous part of operand 0 (reshape, a slice of the leading axis): the
  /// byte offset in it. Such a node costs nothing and has no kernel.
  std::function<std::optional<int64_t>(const Node&, std::span<const Type> in)> view;

  /// The C++ expression of an element-wise op, for backends that generate code. {0}, {1}, ... stand
  /// for the operands, {one} for 1 in their type, {approximate} for the attribute of that name.
  /// Empty: generated code cannot compute the op.
  std::string code;
  /// The ONNX operator that computes the same without attributes; empty: there is none.
  std::string_view onnx;

  // -- traits: what passes, plans and reports ask about an op instead of its name
  // ----------------------------------------------------------------------------------

  std::optional<ProductTrait> product;
  std::optional<LossTrait> loss;
  bool is_attention = false;  // or its gradient
  /// It computes the gradients of another op, perhaps beside that op's results.
  bool is_gradient = false;
  /// An optimizer's step: operands and results as ops/update.h says, {copies} included.
  bool updates_parameters = false;
  /// The first so many operands are rows like those of result 0, the others parameters of one row.
  /// 0: it does not compute row by row.
  uint32_t row_operands = 0;
  /// An element-wise function of one operand that costs less to compute again than to keep.
  bool is_activation = false;
  /// It draws random bits; the key is the last operand.
  bool draws_random = false;
  /// Infinities in its result are meant: masks are made of them.
  bool makes_masks = false;
  /// It runs the graphs that it carries, its Region attributes, as programs of their own
  /// (ops/control.h). Passes that say so enter them.
  bool runs_regions = false;

  bool only_adds = false;  // elements of floating operands are moved and added, nothing else
  /// Result 0 holds a part of operand 0: a range of an axis, or the rows that operand 1 names.
  enum class Part { whole, range, rows };
  Part part = Part::whole;
  /// A weight in another form: its result may be kept until the parameters below it change.
  bool derives_weights = false;

  bool is_primitive() const { return static_cast<bool>(evaluate); }
  bool is_composite() const { return static_cast<bool>(decompose); }
  std::vector<InPlace> in_place_pairs(const Node& node) const {
    return in_place_of ? in_place_of(node) : in_place;
  }
};

/// Whether the node is of one of these ops.
template <typename... Ops>
bool is(const Node& node, Ops... ops) {
  return ((node.op->id == ops) || ...);
}

/// What the attribute {storage} says of a tensor; UserError when there is no such storage, or the
/// tensor cannot lie so.
Storage storage_of(const InferContext& c, DType dtype, const Shape& shape);

/// UserError where a tensor that does not lie in rows goes into an op that does not read it so, or
/// is a result that cannot lie so.
void check_storage(const OpDef& op, std::span<const Type> in, std::span<const Type> out);

/// The `input` op: the one op that the graph itself knows.
const OpDef& input_op();

/// The byte offset in operand 0 when the node is a view, see OpDef::view.
std::optional<int64_t> view_offset(const Graph& graph, const Node& node);

/// Types of the operands of a node.
std::vector<Type> operand_types(const Graph& graph, const Node& node);

/// Finds an op by name when text is parsed; nullptr when unknown.
using OpLookup = std::function<const OpDef*(std::string_view)>;

/// A view of "what this node costs"; falls back to reading operands and writing results once.
Cost cost_of(const Graph& graph, NodeId id);

}  // namespace brrr
