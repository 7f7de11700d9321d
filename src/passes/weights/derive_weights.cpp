#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/human.h"
#include "base/memory.h"
#include "ops/ops.h"
#include "ops/update.h"
#include "passes/adapters/add_adapters.h"
#include "passes/passes.h"
#include "passes/weights/derived_weight.h"

namespace brrr {
namespace {

/// Whether a node only moves or converts its one operand.
bool passes_on(const Node& node) {
  return node.operands.size() == 1 && is(node, Op::cast, Op::reshape, Op::transpose, Op::slice);
}

/// Whether a region of the node has its operand as the right operand of a product or convolution.
bool multiplies_in_region(const Node& node, size_t operand) {
  for (const Graph* const body : regions_of(node)) {
    // The inputs of a region are the node's last operands.
    const size_t skipped = node.operands.size() - body->inputs().size();
    if (operand < std::max<size_t>(skipped, 1)) continue;
    const NodeId input = body->find_input(fmt::format("a{}", operand - skipped));
    if (input == kNoNode) continue;
    std::vector<bool> is_same(body->size());
    is_same[input] = true;
    for (NodeId id = 0; id < body->size(); ++id) {
      const Node& inner = body->node(id);
      for (size_t i = 0; i < inner.operands.size(); ++i) {
        if (!is_same[inner.operands[i].node]) continue;
        if (inner.op->op_class == OpClass::contraction && i == 1) return true;
        if (inner.op->runs_regions && multiplies_in_region(inner, i)) return true;
        if (passes_on(inner)) is_same[id] = true;
      }
    }
  }
  return false;
}

bool is_narrow_float(DType t) { return is_float(t) && bytes_of(t) < 4; }

class Deriver {
 public:
  Deriver(const Graph& in, const Target& target, Refresher refresher)
      : in_(in),
        target_(target),
        refresher_(refresher),
        rewriter_(in),
        closed_(in.size()),
        is_read_(in.size()) {}

  Graph run(Notes* notes) {
    if (refresher_ == Refresher::loader) find_factors();
    find_closed();
    find_kept();
    if (kept_.empty()) return in_;
    if (refresher_ == Refresher::update) choose_written();
    for (NodeId id = 0; id < in_.size(); ++id) place(id);
    Graph out = rewriter_.finish();
    if (refresher_ == Refresher::update) update_weights(out);
    if (notes) report(out, *notes);
    return drop_dead(out);
  }

 private:
  /// Whether a value is made of parameters and constants and nothing else.
  struct Closed {
    bool is = false;
    bool has_parameter = false;
    bool is_kept = false;  // another form that is worth keeping
  };

  /// What the attribute "kept" of an op says that may derive weights: whether its result stays from
  /// step to step. Nothing for ops that leave it to this pass.
  static std::optional<bool> stays(const Node& node) {
    const AttrValue* kept = node.op->derives_weights ? node.attrs.find("kept") : nullptr;
    return kept == nullptr ? std::nullopt : std::optional(std::get<bool>(*kept));
  }

  // An update keeps what has fewer bits than the parameter, its scale, and what its op says stays,
  // such as what is gathered of shards. A loader keeps what takes the place of parameters: another
  // storage, several of them in one.
  bool is_worth_keeping(NodeId id) const {
    const Node& node = in_.node(id);
    if (refresher_ == Refresher::update)
      return is_narrow_float(node.results[0].dtype) || is(node, Op::quantize_scale) ||
             stays(node).value_or(false) || node.results[0].storage.is_quantized();
    return is(node, Op::store) || node.operands.size() > 1 || !node.op->derives_weights ||
           widens_factor(id);
  }

  /// Whether a weight may be made by this node. An update writes what the trait names; a loader
  /// computes anything that takes no more memory than what it is made of, such as a weight times
  /// factors of channels.
  bool may_derive(NodeId id) const {
    const Node& node = in_.node(id);
    if (node.results.size() != 1 || node.op->runs_regions || node.op->draws_random) return false;
    if (node.op->derives_weights) return !node.operands.empty() && stays(node).value_or(true);
    if (refresher_ != Refresher::loader || !node.op->is_primitive()) return false;
    if (!node.results[0].shape.is_static()) return false;
    bool is_constant = true;
    int64_t most = 0;
    for (const ValueId& v : node.operands) {
      is_constant &= closed_[v.node].is && !closed_[v.node].has_parameter;
      if (closed_[v.node].is) most = std::max(most, in_.type(v).bytes());
    }
    return is_constant || node.results[0].bytes() <= most || may_grow(id);
  }

  /// Marks the nodes that compute right operands of products and convolutions, those in regions
  /// included, from parameters and constants alone, and those that compute what a store packs.
  void find_factors() {
    std::vector<bool> is_fixed(in_.size()), is_of_integers(in_.size());
    for (NodeId id = 0; id < in_.size(); ++id) {
      is_of_integers[id] =
          in_.is_input(id) ? is_integer(in_.type({id, 0}).dtype)
                           : std::ranges::any_of(in_.node(id).operands,
                                                 [&](ValueId v) { return is_of_integers[v.node]; });
      is_fixed[id] = in_.is_input(id) ? in_.role(id) == Role::parameter
                                      : std::ranges::all_of(in_.node(id).operands, [&](ValueId v) {
                                          return is_fixed[v.node];
                                        });
    }
    is_factor_.resize(in_.size());
    is_packed_.resize(in_.size());
    for (auto id = static_cast<NodeId>(in_.size()); id-- > 0;) {
      const Node& node = in_.node(id);
      const bool multiplies = node.op->op_class == OpClass::contraction;
      // What is stored in 16 bits or less takes no more memory than a parameter of floats.
      const auto is_narrow = [&](ValueId v) {
        const DType t = in_.type(v).dtype;
        return is_integer(t) || (is_narrow_float(t) && !is_of_integers[v.node]);
      };
      const bool packs = is(node, Op::store) && is_narrow(node.operands[0]);
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const NodeId of = node.operands[i].node;
        if (in_.is_input(of) || !is_fixed[of]) continue;
        if (is_factor_[id] || (multiplies && i == 1) ||
            (node.op->runs_regions && multiplies_in_region(node, i)))
          is_factor_[of] = true;
        if (is_packed_[id] || packs) is_packed_[of] = true;
      }
    }
  }

  /// Whether a loader lets the result take more memory than the operands. It makes wider numbers of
  /// the bytes of a factor: a weight of 8 bits for which there is no product of integers takes four
  /// times its memory, and no time in each run. What a store packs is not kept.
  bool may_grow(NodeId id) const {
    if (is_factor_.empty()) return false;
    const Node& node = in_.node(id);
    if (is_packed_[id]) return true;
    const auto is_byte = [](DType t) { return is_integer(t) && bytes_of(t) == 1; };
    return is_factor_[id] && !node.operands.empty() && is_byte(in_.type(node.operands[0]).dtype) &&
           (is(node, Op::cast) || is_byte(node.results[0].dtype));
  }
  bool widens_factor(NodeId id) const {
    return may_grow(id) && !is_packed_[id] && is(in_.node(id), Op::cast);
  }

  /// Whether the result has wider elements, which are made of the derived weight where they are
  /// needed. A loader derives sums that take less memory than what they are sums of.
  bool widens(NodeId id) const {
    const Node& node = in_.node(id);
    const Type& y = node.results[0];
    if (node.operands.empty() || y.storage.is_quantized() || may_grow(id)) return false;
    if (bytes_of(y.dtype) <= bytes_of(in_.type(node.operands[0]).dtype)) return false;
    if (refresher_ != Refresher::loader || !y.shape.is_static()) return true;
    return std::ranges::none_of(node.operands,
                                [&](ValueId v) { return y.bytes() <= in_.type(v).bytes(); });
  }

  void find_closed() {
    for (NodeId id = 0; id < in_.size(); ++id) {
      const Node& node = in_.node(id);
      if (in_.is_input(id)) {
        // Floats that a training step makes of blocks are not kept.
        const bool is_in_blocks =
            refresher_ == Refresher::update && node.results[0].storage.is_blocks();
        const bool is = in_.role(id) == Role::parameter && !is_in_blocks &&
                        (refresher_ == Refresher::loader || node.results[0].dtype == DType::f32 ||
                         is_of_base(in_, id));
        closed_[id] = {.is = is, .has_parameter = is};
        continue;
      }
      if (!may_derive(id)) continue;
      bool is_closed = true, has_parameter = false, is_kept = is_worth_keeping(id);
      for (const ValueId& v : node.operands) {
        is_closed &= closed_[v.node].is;
        has_parameter |= closed_[v.node].has_parameter;
        is_kept |= refresher_ == Refresher::loader && closed_[v.node].is_kept;
      }
      if (is_closed && !widens(id)) closed_[id] = {true, has_parameter, is_kept && has_parameter};
    }
  }

  /// Whether the parameter stands below adapters, in 16 bits: the form that it has is as good.
  bool is_low_base(NodeId parameter) const {
    return is_of_base(in_, parameter) && is_narrow_float(in_.type({parameter, 0}).dtype);
  }
  bool is_kept_form(NodeId id) const { return closed_[id].is_kept; }
  bool is_view(NodeId id) const { return view_offset(in_, in_.node(id)).has_value(); }

  // Kept is what something else reads; of a view, what it views.
  void find_kept() {
    std::vector<bool>& is_read = is_read_;
    for (const Output& o : in_.outputs()) is_read[o.value.node] = true;
    for (auto id = static_cast<NodeId>(in_.size()); id-- > 0;)
      if (is_read[id] && (!is_kept_form(id) || is_view(id)))
        for (const ValueId& v : in_.node(id).operands) is_read[v.node] = true;
    for (NodeId id = 0; id < in_.size(); ++id) {
      if (!is_kept_form(id) || !is_read[id]) continue;
      if (is_view(id))
        views_.insert(id);
      else
        kept_.emplace(id, weight_of(id));
    }
    // An update needs the parameters that it changes, and a checkpoint those that it holds.
    for (const auto& [id, weight] : kept_)
      for (const std::string& source : weight.sources)
        if (const NodeId parameter = in_.find_input(source);
            !is_read[parameter] && (refresher_ == Refresher::loader || is_low_base(parameter)))
          replaced_.insert(parameter);
  }

  /// The nodes between parameters and `id` as a graph of their own.
  DerivedWeight weight_of(NodeId id) const {
    std::vector<std::string> sources;
    std::map<NodeId, Value> made;
    Graph form;
    const auto make = [&](auto& self, NodeId at) -> Value {
      if (const auto found = made.find(at); found != made.end()) return found->second;
      const Node& node = in_.node(at);
      if (in_.is_input(at)) {
        const std::string name = fmt::format("a{}", sources.size());
        sources.push_back(in_.input_name(at));
        return made[at] = form.input(name, node.results[0]);
      }
      std::vector<ValueId> operands;
      for (const ValueId& v : node.operands) operands.push_back(self(self, v.node).id);
      return made[at] = form.value(form.add(*node.op, operands, node.attrs), 0);
    };
    form.output("0", make(make, id));
    return {std::move(sources), Region(std::move(form))};
  }

  NodeId only_source(NodeId id) const { return in_.find_input(kept_.at(id).sources[0]); }

  bool is_plain_cast(NodeId id) const {
    const DType to = in_.node(id).results[0].dtype;
    return is(in_.node(id), Op::cast) && in_.is_input(in_.node(id).operands[0].node) &&
           (to == DType::bf16 || to == DType::f16);
  }

  /// In which layout an update may write a derived weight beside its parameter; nothing: it may
  /// not.
  std::optional<Layout> written_layout(NodeId id) const {
    if (is_plain_cast(id)) return Layout::rows;
    const Node& node = in_.node(id);
    if (!is(node, Op::store) || !is_plain_cast(node.operands[0].node)) return std::nullopt;
    const Storage& storage = node.results[0].storage;
    return storage == Storage{storage.layout} ? std::optional(storage.layout) : std::nullopt;
  }

  using Copies = std::map<ValueId, std::map<Layout, NodeId>>;  // by the new parameter
  /// What an update writes beside the parameters.
  struct Writes {
    Attrs attrs;
    std::vector<NodeId> copies;
  };
  Writes writes_of(NodeId id, const Copies& copies_of, bool panels) const {
    const Node& node = in_.node(id);
    const size_t n = node.attrs.get<std::vector<int64_t>>("decays").size();
    Writes writes{node.attrs, {}};
    std::vector<int64_t> layouts(n);
    DType dtype = DType::bf16;
    for (uint32_t i = 0; i < n; ++i) {
      const auto at = copies_of.find({id, i});
      if (at == copies_of.end() || node.results[i].dtype != DType::f32) continue;
      for (const auto& [layout, copy] : at->second) {
        const DType of_this = in_.node(copy).results[0].dtype;
        if (!writes.copies.empty() && of_this != dtype) continue;
        if (layout != Layout::rows && !panels) continue;
        dtype = of_this;
        layouts[i] |= ops::copy_bit(layout);
        writes.copies.push_back(copy);
      }
    }
    writes.attrs.set("copies", layouts);
    writes.attrs.set("copy_dtype", dtype);
    return writes;
  }

  // What updates may write beside the parameters, by update.
  void choose_written() {
    Copies copies_of;
    for (const auto& [id, weight] : kept_)
      if (const auto layout = written_layout(id))
        if (const Output* next = next_of(only_source(id)))
          copies_of[next->value].try_emplace(*layout, id);
    for (NodeId id = 0; id < in_.size(); ++id) {
      const Node& node = in_.node(id);
      if (!node.op->updates_parameters) continue;
      const bool runs_here = target_.runs(in_, id);
      for (const bool panels : {true, false}) {
        Writes writes = writes_of(id, copies_of, panels);
        if (writes.copies.empty()) break;
        if (runs_here && !runs(node, writes.attrs)) {
          const bool had_panels = ops::has_copies_in_panels(writes.attrs);
          refusals_.push_back(fmt::format("{} on {} writes none{}", node.op->name, target_.name,
                                          had_panels ? " in panels" : ""));
          if (had_panels) continue;
          break;
        }
        writers_[id] = std::move(writes.attrs);
        for (size_t k = 0; k < writes.copies.size(); ++k)
          written_[kept_.at(writes.copies[k]).name()] = {
              id, static_cast<uint32_t>(node.results.size() + k)};
        break;
      }
    }
  }

  bool runs(const Node& node, const Attrs& attrs) const {
    Graph alone;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < node.operands.size(); ++i)
      operands.push_back(alone.input(fmt::format("x{}", i), in_.type(node.operands[i])).id);
    return target_.runs(alone, alone.add(*node.op, operands, attrs));
  }

  const Output* next_of(NodeId parameter) const {
    for (const Output& o : in_.outputs())
      if (o.updates == parameter && o.value != ValueId{parameter, 0}) return &o;
    return nullptr;
  }

  void place(NodeId id) {
    const Node& node = in_.node(id);
    if (const auto kept = kept_.find(id); kept != kept_.end()) {
      const Value state = derived_input(rewriter_.out(), kept->second);
      states_[kept->second.name()] = state.id;
      rewriter_.bind({id, 0}, state);
    } else if (const auto writer = writers_.find(id); writer != writers_.end()) {
      rewriter_.enter_scope_of(id);
      const auto results = call(*node.op, rewriter_.operands(id), writer->second);
      for (uint32_t port = 0; port < node.results.size(); ++port)
        rewriter_.bind({id, port}, results[port]);
      new_writer_[id] = results[0].id.node;
    } else if (in_.is_input(id) ? !replaced_.contains(id)
                                : is_read_[id] && (!is_kept_form(id) || views_.contains(id))) {
      rewriter_.copy(id);
    }
  }

  void update_weights(Graph& out) {
    std::map<NodeId, Value> again;  // nodes of the old graph, of the new parameters
    out.set_scope("", Phase::optimizer);
    for (const auto& [id, weight] : kept_) {
      const std::string name = weight.name();
      const bool changes = std::ranges::any_of(weight.sources, [&](const std::string& source) {
        return next_of(in_.find_input(source)) != nullptr;
      });
      if (!changes || !updated_.insert(name).second) continue;
      const Value state = out.value(states_.at(name));
      if (const auto at = written_.find(name); at != written_.end())
        out.update(state, out.value({new_writer_.at(at->second.node), at->second.port}));
      else
        out.update(state, made_again(out, id, again));
    }
    out.set_scope("");
  }

  /// The nodes between parameters and `id` once more, from what the parameters become.
  Value made_again(Graph& out, NodeId id, std::map<NodeId, Value>& again) const {
    if (const auto at = again.find(id); at != again.end()) return at->second;
    if (in_.is_input(id)) {
      const NodeId parameter = out.find_input(in_.input_name(id));
      ValueId next{parameter, 0};
      for (const Output& o : out.outputs())
        if (o.updates == parameter) next = o.value;
      return again[id] = out.value(next);
    }
    std::vector<Value> operands;
    for (const ValueId& v : in_.node(id).operands)
      operands.push_back(made_again(out, v.node, again));
    return again[id] = call(*in_.node(id).op, operands, in_.node(id).attrs)[0];
  }

  void report(const Graph& out, Notes& notes) const {
    int64_t bytes = 0;
    for (const auto& [name, state] : states_) bytes += out.type(state).bytes();
    std::string line =
        fmt::format("{}, {}", counted(std::ssize(states_), "derived weight"), memory_text(bytes));
    if (!written_.empty()) line += fmt::format("; the update writes {}", written_.size());
    if (updated_.size() > written_.size())
      line += fmt::format("; {} recomputed after it",
                          updated_.size() - written_.size() == 1
                              ? "1 is"
                              : fmt::format("{} are", updated_.size() - written_.size()));
    notes.push_back(line);
    notes.insert(notes.end(), refusals_.begin(), refusals_.end());
  }

  const Graph& in_;
  const Target& target_;
  const Refresher refresher_;
  Rewriter rewriter_;
  std::vector<Closed> closed_;
  std::vector<bool> is_read_;               // by what is not kept
  std::vector<bool> is_factor_;             // computes a right operand of a product
  std::vector<bool> is_packed_;             // computes what a store packs
  std::map<NodeId, DerivedWeight> kept_;    // by the node that it was
  std::set<NodeId> views_;                  // of what is kept
  std::set<NodeId> replaced_;               // parameters that only what is kept is made of
  std::map<std::string, ValueId> states_;   // in the new graph
  std::map<NodeId, Attrs> writers_;         // updates that write derived weights
  std::map<NodeId, NodeId> new_writer_;     // their nodes in the new graph
  std::map<std::string, ValueId> written_;  // by which update, as which result
  std::set<std::string> updated_;
  Notes refusals_;
};

}  // namespace

Graph derive_weights(const Graph& graph, const Target& target, Refresher refresher, Notes* notes) {
  return Deriver(graph, target, refresher).run(notes);
}

}  // namespace brrr
