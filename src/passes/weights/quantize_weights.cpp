// Weights of products as integers: each product reads its right operand from a `store` into panels
// of integers, which derive_weights turns into an input that the loader makes. A table of
// embeddings that is also the head reads the head's integers of 8 bits, so that it is held once.
// Convolutions: quantize_convolutions.h.

#include <algorithm>
#include <map>
#include <set>

#include "base/human.h"
#include "base/memory.h"
#include "base/weight_source.h"
#include "ops/ops.h"
#include "ops/quantized/given_integers.h"
#include "ops/quantized/quantized_rows.h"
#include "passes/adapters/add_adapters.h"
#include "passes/weights/quantize_convolutions.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
namespace {

class WeightQuantizer {
 public:
  WeightQuantizer(const WindowWeights& in, const Target& target,
                  const WeightQuantization& quantization)
      : in_(in.graph), convolutions_(in), target_(target), q_(quantization) {}

  Graph run(Notes* notes) {
    find_tied_tables();
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      if (const auto table = tables_.find(id); table != tables_.end()) {
        read_table(r, id, table->second);
        return true;
      }
      const auto form = form_of(id);
      if (!form) return false;
      const Type weight = stored_type(id, *form);
      if (!runs(id, *form, weight)) {
        ++refused_;
        return false;
      }
      multiply(r, id, *form, weight.storage);
      return true;
    });
    if (products_ == 0 && refused_ > 0 && convolutions_.convolutions == 0)
      user_error("{} has no products with weights of {} bits; use --precision bf16 or fp32",
                 target_.name, q_.bits);
    if (notes) report(*notes);
    return given_.empty() ? out : without_floats(drop_dead(std::move(out)));
  }

 private:
  struct Form {
    bool transposed = false, has_bias = false;
  };

  /// How the node multiplies by a weight that is worth quantising; nothing: it does not.
  std::optional<Form> form_of(NodeId id) const {
    const Node& node = in_.node(id);
    const std::optional<ProductForm> form = product_form(node);
    if (!form || form->transpose_a || !is_weight(node.operands[1])) return std::nullopt;
    const Type& w = in_.type(node.operands[1]);
    if (w.shape.rank() != 2 || !w.shape.is_static() || !w.storage.is_plain() || !is_float(w.dtype))
      return std::nullopt;
    const int64_t terms = w.shape.size(form->transpose_b ? 1 : 0);
    const GivenIntegers* const given = given_of(node.operands[1], form->transpose_b ? 1 : 0);
    const int group = given != nullptr ? given->group : q_.group;
    if (q_.of_rows && (group > 0 ? group : terms) > ops::kMostQuantizedTerms) return std::nullopt;
    if (!is_worth_quantizing(w.shape)) return std::nullopt;
    return Form{form->transpose_b, form->has_bias};
  }

  /// Whether a value is a parameter that is chosen, or several side by side (join_products).
  bool is_weight(ValueId v) const {
    const auto is_parameter = [&](ValueId p) {
      return in_.is_input(p.node) && in_.role(p.node) == Role::parameter &&
             !in_.node(p.node).attrs.get_or<bool>(kOfAdapter, false) &&
             (q_.only == nullptr || q_.only->contains(in_.input_name(p.node)));
    };
    if (in_.is_input(v.node)) return is_parameter(v);
    const Node& node = in_.node(v.node);
    return node.op->derives_weights && !node.operands.empty() &&
           std::ranges::all_of(node.operands, is_parameter);
  }

  Type stored_type(NodeId id, const Form& form) const {
    Type w = in_.type(in_.node(id).operands[1]);
    const int axis = form.transposed ? 1 : 0;
    const GivenIntegers* const given = given_of(in_.node(id).operands[1], axis);
    w.storage = {right_layout(form.transposed),
                 {given != nullptr ? given->bits : q_.bits, axis,
                  given != nullptr ? given->group : q_.group}};
    return w;
  }

  /// The parameters of which a weight is made, side by side.
  std::vector<ValueId> parts_of(ValueId weight) const {
    if (in_.is_input(weight.node)) return {weight};
    const auto& operands = in_.node(weight.node).operands;
    return {operands.begin(), operands.end()};
  }

  /// The form of the integers that the source has of all parts of a weight; null: of none.
  const GivenIntegers* given_of(ValueId weight, int axis) const {
    if (q_.given == nullptr) return nullptr;
    const GivenIntegers* form = nullptr;
    for (const ValueId part : parts_of(weight)) {
      const auto at = q_.given->find(in_.input_name(part.node));
      if (at == q_.given->end() || axis != 1) return nullptr;
      BRRR_CHECK(form == nullptr || *form == at->second, "{} is quantised in another form",
                 at->first);
      form = &at->second;
    }
    return form;
  }

  Attrs attrs_of(const Node& node, const Form& form) const {
    Attrs attrs{{"transpose_a", false}, {"transpose_b", form.transposed}};
    // The product stays f32, because rounding comes after the bias is added.
    const DType operand = in_.type(node.operands[0]).dtype;
    const DType result = form.has_bias ? DType::f32 : node.results[0].dtype;
    if (result != operand) attrs.set("dtype", result);
    if (q_.of_rows) attrs.set("left_bits", int64_t{8});
    return attrs;
  }

  /// Finds the embeddings whose table a product multiplies by, transposed, in 8 bits.
  void find_tied_tables() {
    if (q_.bits != 8) return;
    std::map<ValueId, Type> heads;
    for (NodeId id = 0; id < in_.size(); ++id) {
      const auto form = form_of(id);
      if (!form || !form->transposed) continue;
      const Type weight = stored_type(id, *form);
      if (runs(id, *form, weight)) heads.emplace(in_.node(id).operands[1], weight);
    }
    for (NodeId id = 0; id < in_.size(); ++id) {
      const Node& node = in_.node(id);
      if (!is(node, Op::embedding)) continue;
      const auto head = heads.find(node.operands[0]);
      if (head == heads.end()) continue;
      Graph alone;
      const Value table = alone.input("table", head->second),
                  ids = alone.input("ids", in_.type(node.operands[1]));
      const std::vector<ValueId> operands{table.id, ids.id};
      if (target_.runs(alone, alone.add(op(Op::embedding), operands, {})))
        tables_.emplace(id, head->second.storage);
    }
  }

  void read_table(Rewriter& r, NodeId id, const Storage& storage) {
    r.enter_scope_of(id);
    const Node& node = in_.node(id);
    r.bind({id, 0}, embedding(stored(r, node.operands[0], storage), r.map(node.operands[1])));
  }

  /// The weight in that storage, made once.
  Value stored(Rewriter& r, ValueId weight, const Storage& storage) {
    const auto [at, is_new] = stored_.try_emplace({weight, storage.str()});
    if (is_new) {
      const GivenIntegers* const given = given_of(weight, storage.quantized.axis);
      at->second = given != nullptr ? read_integers(r, weight, *given, storage)
                                    : store(r.map(weight), storage);
      elements_ += in_.type(weight).shape.elements();
    }
    return at->second;
  }

  /// The integers that the source has, side by side, in panels.
  Value read_integers(Rewriter& r, ValueId weight, const GivenIntegers& given,
                      const Storage& storage) {
    std::vector<Value> integers, scales;
    for (const ValueId part : parts_of(weight)) {
      const std::string& name = in_.input_name(part.node);
      const Shape shape = in_.type(part).shape;
      integers.push_back(parameter(r, integers_name(name, given.bits), {DType::i8, shape}));
      scales.push_back(
          parameter(r, scales_name(name), {DType::f32, scales_shape(storage.quantized, shape)}));
      given_.insert(part.node);
    }
    const auto joined = [](const std::vector<Value>& parts) {
      return parts.size() == 1 ? parts[0] : concat(parts, 0);
    };
    return store_integers(joined(integers), joined(scales), std::nullopt, storage,
                          in_.type(weight).dtype);
  }

  static Value parameter(Rewriter& r, const std::string& name, const Type& type) {
    return r.out().input(name, type, InputKind::parameter);
  }

  /// Drops the floats of parameters whose integers alone are read.
  Graph without_floats(const Graph& graph) const {
    std::set<std::string> names;
    for (const NodeId id : given_) names.insert(in_.input_name(id));
    const std::vector<std::vector<uint32_t>> uses = count_uses(graph);
    return rewrite(graph, [&](Rewriter&, NodeId id) {
      return graph.is_input(id) && uses[id][0] == 0 && names.contains(graph.input_name(id));
    });
  }

  bool runs(NodeId id, const Form& form, const Type& weight) const {
    Graph alone;
    const Node& node = in_.node(id);
    const Type& left = in_.type(node.operands[0]);
    if (!left.shape.is_static()) return false;
    const Value a = alone.input("a", left), b = alone.input("b", weight);
    const std::vector<ValueId> operands{a.id, b.id};
    return target_.runs(alone, alone.add(op(Op::matmul), operands, attrs_of(node, form)));
  }

  void multiply(Rewriter& r, NodeId id, const Form& form, const Storage& storage) {
    const Node& node = in_.node(id);
    r.enter_scope_of(id);
    const Value rows = r.map(node.operands[0]);
    ++products_;
    Value y = call(Op::matmul, std::vector<Value>{rows, stored(r, node.operands[1], storage)},
                   attrs_of(node, form))[0];
    if (form.has_bias)
      y = cast(y + cast(r.map(node.operands[2]), DType::f32), node.results[0].dtype);
    r.bind({id, 0}, y);
  }

  void report(Notes& notes) const {
    if (convolutions_.convolutions > 0)
      notes.push_back(fmt::format("{} of {} weights in 8 bits, pictures in 8 bits",
                                  counted(convolutions_.convolutions, "convolution"),
                                  with_commas(convolutions_.elements)));
    if (products_ > 0)
      notes.push_back(fmt::format("{} of {} weights in {} bits{}{}", counted(products_, "product"),
                                  with_commas(elements_), q_.bits,
                                  q_.group > 0 ? fmt::format(", groups of {}", q_.group) : "",
                                  q_.of_rows ? ", rows in 8 bits" : ""));
    else if (refused_ == 0 && convolutions_.convolutions == 0)
      notes.push_back(fmt::format("no product has a weight of at least {} floats",
                                  with_commas(kLeastQuantizedElements)));
    if (refused_ > 0)
      notes.push_back(fmt::format("{} stay as they are: {} has no kernel",
                                  counted(refused_, "product"), target_.name));
  }

  const Graph& in_;
  const WindowWeights& convolutions_;
  const Target& target_;
  WeightQuantization q_;
  std::map<std::pair<ValueId, std::string>, Value> stored_;  // by the weight in the old graph
  std::set<NodeId> given_;                                   // parameters whose integers are read
  std::map<NodeId, Storage> tables_;  // embeddings that read the integers of a head
  int64_t products_ = 0, refused_ = 0, elements_ = 0;
};

}  // namespace

Graph quantize_weights(const Graph& graph, const Target& target, const Quantization& quantization,
                       Notes* notes) {
  return quantize_chosen_weights(graph, target, quantization, notes);
}

Graph quantize_chosen_weights(const Graph& graph, const Target& target,
                              const WeightQuantization& quantization, Notes* notes) {
  const WindowWeights convolutions = quantize_convolutions(graph, target, quantization);
  return WeightQuantizer(convolutions, target, quantization).run(notes);
}

}  // namespace brrr
