// Weights below adapters as integers (QLoRA, Dettmers et al. 2023): the float matrix is never
// held as a whole model. An input of Role::derived takes the place of the parameter, so that the
// loader makes the integers, once. Each product, of the forward and of the backward pass, reads
// floats that are made of them in front of it: one matrix at a time is in floats.

#include <map>
#include <optional>

#include "base/human.h"
#include "base/storage.h"
#include "ops/ops.h"
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
    if (weights_.empty()) return in_;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      if (weights_.contains(id)) return true;  // the floats are no input any more
      return read_floats(r, id);
    });
    if (notes)
      notes->push_back(fmt::format("{} of {} elements in {} bits{}",
                                   counted(std::ssize(weights_), "weight"), with_commas(elements_),
                                   q_.bits,
                                   q_.group > 0 ? fmt::format(", groups of {}", q_.group) : ""));
    return out;
  }

 private:
  /// Matrices below adapters that only products read, as their right operand.
  void find_weights() {
    std::map<NodeId, std::optional<bool>> transposed;  // as the first product reads it
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
    for (const auto& [id, is_transposed] : transposed) {
      if (!is_transposed) continue;
      const Storage storage{right_layout(*is_transposed),
                            {q_.bits, *is_transposed ? 1 : 0, q_.group}};
      const Type& type = in_.type({id, 0});
      if (!storage_refusal(storage, type.dtype, type.shape).empty()) continue;
      weights_.emplace(id, weight_of(id, storage));
      elements_ += type.shape.elements();
    }
  }

  DerivedWeight weight_of(NodeId id, const Storage& storage) const {
    Graph form;
    const Value floats = form.input("a0", in_.type({id, 0}));
    form.output("0", store(floats, storage));
    return {{in_.input_name(id)}, Region(std::move(form))};
  }

  /// Puts floats in front of a node that reads quantised weights.
  bool read_floats(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    if (in_.is_input(id)) return false;
    bool reads = false;
    for (const ValueId v : node.operands) reads |= weights_.contains(v.node);
    if (!reads) return false;
    r.enter_scope_of(id);
    std::vector<ValueId> operands;
    for (const ValueId v : node.operands) {
      const auto weight = weights_.find(v.node);
      if (weight == weights_.end()) {
        operands.push_back(r.map(v).id);
        continue;
      }
      const Value integers = derived_input(r.out(), weight->second);
      // Distinct, so that the backward pass does not read what the forward pass has made.
      operands.push_back(call(Op::store, std::vector<Value>{integers},
                              {{"storage", Storage{}.str()}, {"reader", ++readers_}})[0]
                             .id);
    }
    const NodeId copy = r.out().add(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port)
      r.bind({id, port}, r.out().value(copy, port));
    return true;
  }

  const Graph& in_;
  Quantization q_;
  std::map<NodeId, DerivedWeight> weights_;
  int64_t elements_ = 0, readers_ = 0;
};

}  // namespace

Graph quantize_base(const Graph& graph, const Quantization& quantization, Notes* notes) {
  return BaseQuantizer(graph, quantization).run(notes);
}

}  // namespace brrr
