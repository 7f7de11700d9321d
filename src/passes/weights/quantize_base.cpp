// Quantises the frozen weights below adapters (QLoRA, Dettmers et al. 2023), so that the base model
// is never in memory as floats. A derived input replaces the parameter: the loader makes its
// integers or blocks once, from floats or from the integers that a file holds. A parameter whose
// file holds blocks stays in them. In front of each product of the forward and backward pass a node
// dequantises its operand: one matrix at a time is in floats.

#include <map>
#include <optional>

#include "base/human.h"
#include "base/storage.h"
#include "base/weight_source.h"
#include "ops/ops.h"
#include "ops/quantized/given_integers.h"
#include "passes/adapters/add_adapters.h"
#include "passes/passes.h"
#include "passes/weights/derived_weight.h"
#include "passes/weights/weight_choice.h"

namespace brrr {
namespace {

class BaseQuantizer {
 public:
  BaseQuantizer(const Graph& in, const Quantization& quantization) : in_(in), q_(quantization) {}

  Graph run(Notes* notes) {
    find_weights();
    if (weights_.empty() && blocks_.empty()) return in_;
    Graph out = rewrite(
        in_,
        [&](Rewriter& r, NodeId id) {
          if (weights_.contains(id)) return true;  // replaced by a derived input
          if (const auto block = blocks_.find(id); block != blocks_.end()) {
            add_blocks(r, id, block->second);
            return true;
          }
          return read_floats(r, id);
        },
        Types::change);
    if (notes) report(*notes);
    return out;
  }

 private:
  void report(Notes& notes) const {
    if (elements_ > 0)
      notes.push_back(fmt::format("{} of {} elements in {} bits{}", counted(quantised_, "weight"),
                                  with_commas(elements_), q_.bits,
                                  q_.group > 0 ? fmt::format(", groups of {}", q_.group) : ""));
    for (const auto& [storage, count] : held_)
      notes.push_back(fmt::format("{} in {}", counted(count, "weight"), storage));
  }

  /// Adds the parameter in the blocks that the weight source holds.
  void add_blocks(Rewriter& r, NodeId id, const BaseForm& form) const {
    Attrs attrs = in_.node(id).attrs;
    if (form.tensor.empty()) {
      attrs.set("storage", form.storage->str());
      r.copy(id, std::move(attrs));
      return;
    }
    Type type = in_.type({id, 0});
    type.storage = *form.storage;
    r.bind({id, 0}, r.out().input(form.tensor, type, Role::parameter, std::move(attrs)));
  }

  /// Matrices of the base that are read only as the right operand of products. The value says
  /// whether the first such product transposes the matrix.
  std::map<NodeId, bool> product_weights() const {
    std::map<NodeId, std::optional<bool>> transposed;  // nullopt: no product has been seen yet
    for (NodeId id = 0; id < in_.size(); ++id) {
      if (in_.is_input(id)) {
        const Type& type = in_.type({id, 0});
        if (in_.role(id) == Role::parameter && is_of_base(in_, id) && is_float(type.dtype) &&
            type.storage.is_plain() && type.shape.is_static() && is_worth_quantizing(type.shape))
          transposed.emplace(id, std::nullopt);
        continue;
      }
      const Node& node = in_.node(id);
      const std::optional<ProductForm> form = product_form(node);
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const auto at = transposed.find(node.operands[i].node);
        if (at == transposed.end()) continue;
        if (!form || i != 1)
          transposed.erase(at);
        else if (!at->second)
          at->second = form->transpose_b;
      }
    }
    for (const Output& o : in_.outputs()) transposed.erase(o.value.node);
    std::map<NodeId, bool> found;
    for (const auto& [id, is_transposed] : transposed)
      if (is_transposed) found.emplace(id, *is_transposed);
    return found;
  }

  void find_weights() {
    for (const auto& [id, is_transposed] : product_weights()) {
      const Type& type = in_.type({id, 0});
      const BaseForm form = base_form(in_, id);
      const bool is_held = form.storage &&
                           storage_refusal(*form.storage, type.dtype, type.shape).empty() &&
                           (form.storage->is_blocks() || is_transposed);
      if (is_held) {
        if (form.is_made)
          weights_.emplace(id, blocks_of_floats(id, *form.storage));
        else if (form.storage->is_blocks())
          blocks_.emplace(id, form);
        else
          weights_.emplace(id, given_weight(id, *form.storage));
        ++held_[form.storage->str()];
        continue;
      }
      const Storage asked{right_layout(is_transposed), {q_.bits, is_transposed ? 1 : 0, q_.group}};
      if (q_.bits == 0 || !storage_refusal(asked, type.dtype, type.shape).empty()) continue;
      weights_.emplace(id, weight_of(id, asked));
      elements_ += type.shape.elements();
      ++quantised_;
    }
  }

  DerivedWeight weight_of(NodeId id, const Storage& storage) const {
    Graph form;
    const Value floats = form.input("a0", in_.type({id, 0}));
    form.output("0", store(floats, storage));
    return {{in_.input_name(id)}, Region(std::move(form))};
  }

  /// Blocks made from f32 weights, not from their 16-bit copy.
  DerivedWeight blocks_of_floats(NodeId id, const Storage& storage) const {
    Graph form;
    const Value floats = form.input("a0", {DType::f32, in_.type({id, 0}).shape});
    form.output("0", store(floats, storage));
    return {{in_.input_name(id)}, Region(std::move(form))};
  }

  /// A weight that the loader packs into panels from the integers and scales of the weight source.
  DerivedWeight given_weight(NodeId id, const Storage& storage) const {
    const std::string& name = in_.input_name(id);
    const Type& type = in_.type({id, 0});
    Graph form;
    const Value integers = form.input("a0", {DType::i8, type.shape});
    const Value scales =
        form.input("a1", {DType::f32, scales_shape(storage.quantized, type.shape)});
    form.output("0", store_integers(integers, scales, std::nullopt, storage, type.dtype));
    return {{integers_name(name, storage.quantized.bits), scales_name(name)},
            Region(std::move(form))};
  }

  /// Dequantises the operands of a node that reads quantised weights.
  bool read_floats(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id)) return false;
    bool reads = false;
    for (const ValueId v : node.operands)
      reads |= weights_.contains(v.node) || blocks_.contains(v.node);
    if (!reads) return false;
    r.enter_scope_of(id);
    std::vector<ValueId> operands;
    for (const ValueId v : node.operands) {
      const auto weight = weights_.find(v.node);
      if (weight == weights_.end() && !blocks_.contains(v.node)) {
        operands.push_back(r.map(v).id);
        continue;
      }
      const Value integers =
          weight == weights_.end() ? r.map(v) : derived_input(r.out(), weight->second);
      // "reader" keeps the nodes distinct: merged, the floats of the forward pass would be held
      // until the backward pass.
      Attrs attrs{{"storage", Storage{}.str()}, {"reader", ++readers_}};
      if (integers.dtype() != in_.type(v).dtype) attrs.set("dtype", in_.type(v).dtype);
      operands.push_back(call(Op::store, std::vector<Value>{integers}, attrs)[0].id);
    }
    const NodeId copy = r.out().add(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port)
      r.bind({id, port}, r.out().value(copy, port));
    return true;
  }

  const Graph& in_;
  Quantization q_;
  std::map<NodeId, DerivedWeight> weights_;
  std::map<NodeId, BaseForm> blocks_;
  std::map<std::string, int64_t> held_;  // number of weights in a recorded form, by storage
  int64_t elements_ = 0, quantised_ = 0, readers_ = 0;
};

}  // namespace

Graph quantize_base(const Graph& graph, const Quantization& quantization, Notes* notes) {
  return BaseQuantizer(graph, quantization).run(notes);
}

}  // namespace brrr
