#include "passes/weights/keep_copies.h"

#include <map>
#include <set>

#include "base/memory.h"
#include "ops/ops.h"
#include "ops/update.h"

namespace brrr {
namespace {

using ops::CopyOrder;

bool is_narrow_float(DType t) { return is_float(t) && bytes_of(t) < 4; }

class Keeper {
 public:
  Keeper(const Graph& in, const Target& target)
      : in_(in), target_(target), rewriter_(in), derived_(in.size()) {}

  Graph run(Graph& from_parameters, Notes* notes) {
    find_derived();
    find_kept();
    if (kept_.empty()) return in_;
    choose_written();
    for (NodeId id = 0; id < in_.size(); ++id) place(id);
    Graph out = rewriter_.finish();
    update_copies(out);
    for (const auto& [id, name] : kept_) add_to(from_parameters, id, name);
    if (notes) report(out, *notes);
    return drop_dead(out);
  }

 private:
  /// A value that depends on one parameter and nothing else.
  struct Derived {
    NodeId parameter = kNoNode;
    bool is_low = false;  // it has fewer bits, or is the scale of what has
    std::string path;     // the ops from the parameter to it, with their attributes
  };

  void find_derived() {
    for (NodeId id = 0; id < in_.size(); ++id) {
      const Node& node = in_.node(id);
      if (in_.is_input(id)) {
        if (in_.input_kind(id) == InputKind::parameter && node.results[0].dtype == DType::f32)
          derived_[id].parameter = id;
        continue;
      }
      if (!node.op->derives_weights) continue;
      Derived d;
      d.parameter = derived_[node.operands[0].node].parameter;
      d.is_low = is_narrow_float(node.results[0].dtype) || node.op->gives_scale;
      for (const ValueId& v : node.operands) {
        const Derived& from = derived_[v.node];
        if (from.parameter != d.parameter) d.parameter = kNoNode;
        d.path += from.path + ",";
      }
      // What is wider again is made of the copy where it is needed.
      const bool widens =
          bytes_of(node.results[0].dtype) > bytes_of(in_.type(node.operands[0]).dtype);
      d.path += node.op->name + node.attrs.str();
      if (d.parameter != kNoNode && !widens) derived_[id] = std::move(d);
    }
  }

  bool is_copy(NodeId id) const { return derived_[id].parameter != kNoNode && derived_[id].is_low; }
  bool is_view(NodeId id) const { return view_offset(in_, in_.node(id)).has_value(); }

  // Kept is what something else reads; of a view, what it views.
  void find_kept() {
    std::vector<bool> is_read(in_.size());
    for (const Output& o : in_.outputs()) is_read[o.value.node] = true;
    for (auto id = static_cast<NodeId>(in_.size()); id-- > 0;)
      if (!is_copy(id) || (is_view(id) && is_read[id]))
        for (const ValueId& v : in_.node(id).operands) is_read[v.node] = true;
    for (NodeId id = 0; id < in_.size(); ++id) {
      if (!is_copy(id) || !is_read[id]) continue;
      if (is_view(id))
        views_.insert(id);
      else
        kept_[id] = name_of_copy(id);
    }
  }

  // "copy:w" of a cast, "copy:w.transpose.8f3a..." of what has a longer way: the same in each
  // program.
  std::string name_of_copy(NodeId id) const {
    const Derived& d = derived_[id];
    std::string name(kCopyPrefix);
    name += in_.input_name(d.parameter);
    if (is_plain_cast(id)) return name;
    uint64_t hash = 14695981039346656037ull;  // FNV-1a
    for (char c : d.path) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    return fmt::format("{}.{}.{:08x}", name, in_.node(id).op->name,
                       static_cast<uint32_t>(hash ^ (hash >> 32)));
  }

  bool is_plain_cast(NodeId id) const {
    const DType to = in_.node(id).results[0].dtype;
    return in_.node(id).op->converts && in_.is_input(in_.node(id).operands[0].node) &&
           (to == DType::bf16 || to == DType::f16);
  }

  /// How a copy lies that an update may write beside its parameter; nothing: it may not.
  std::optional<CopyOrder> order_of(NodeId id) const {
    if (is_plain_cast(id)) return CopyOrder::plain;
    const Node& node = in_.node(id);
    if (!node.op->makes_panels || !is_plain_cast(node.operands[0].node)) return {};
    return node.attrs.get<bool>("transpose") ? CopyOrder::transposed_panels : CopyOrder::panels;
  }

  using Copies = std::map<ValueId, std::map<CopyOrder, NodeId>>;  // by the new parameter
  /// What an update writes beside the parameters.
  struct Writes {
    Attrs attrs;
    std::vector<NodeId> copies;
  };
  Writes writes_of(NodeId id, const Copies& copies_of, bool panels) const {
    const Node& node = in_.node(id);
    const size_t n = node.attrs.get<std::vector<int64_t>>("decays").size();
    Writes writes{node.attrs, {}};
    std::vector<int64_t> orders(n);
    DType dtype = DType::bf16;
    for (uint32_t i = 0; i < n; ++i) {
      const auto at = copies_of.find({id, i});
      if (at == copies_of.end() || node.results[i].dtype != DType::f32) continue;
      for (const auto& [order, copy] : at->second) {
        const DType of_this = in_.node(copy).results[0].dtype;
        if (!writes.copies.empty() && of_this != dtype) continue;
        if (order != CopyOrder::plain && !panels) continue;
        dtype = of_this;
        orders[i] |= static_cast<int64_t>(order);
        writes.copies.push_back(copy);
      }
    }
    writes.attrs.set("copies", orders);
    writes.attrs.set("copy_dtype", dtype);
    return writes;
  }

  // The copies that an update may write beside the parameters, by update.
  void choose_written() {
    Copies copies_of;
    for (const auto& [id, name] : kept_)
      if (const auto order = order_of(id))
        if (const Output* next = next_of(derived_[id].parameter))
          copies_of[next->value].try_emplace(*order, id);
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
          written_[kept_.at(writes.copies[k])] = {id,
                                                  static_cast<uint32_t>(node.results.size() + k)};
        break;
      }
    }
  }

  bool runs(const Node& node, const Attrs& attrs) const {
    Graph alone;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Type& t = in_.type(node.operands[i]);
      operands.push_back(alone.input(fmt::format("x{}", i), t.shape, t.dtype).id);
    }
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
      const Type& t = node.results[0];
      auto [at, fresh] = states_.try_emplace(kept->second);  // without simplify there may be two
      if (fresh)
        at->second = rewriter_.out().input(kept->second, t.shape, t.dtype, Role::derived).id;
      rewriter_.bind({id, 0}, rewriter_.out().value(at->second));
    } else if (const auto writer = writers_.find(id); writer != writers_.end()) {
      rewriter_.enter_scope_of(id);
      const auto results = call(node.op->name, rewriter_.operands(id), writer->second);
      for (uint32_t port = 0; port < node.results.size(); ++port)
        rewriter_.bind({id, port}, results[port]);
      new_writer_[id] = results[0].id.node;
    } else if (!is_copy(id) || views_.contains(id)) {
      rewriter_.copy(id);
    }
  }

  void update_copies(Graph& out) {
    std::map<NodeId, std::map<NodeId, Value>> again;  // of each parameter
    out.set_scope("optimizer");
    for (const auto& [id, name] : kept_) {
      const NodeId parameter = derived_[id].parameter;
      if (next_of(parameter) == nullptr || !updated_.insert(name).second) continue;
      const Value state = out.value(states_.at(name));
      if (const auto at = written_.find(name); at != written_.end()) {
        out.update(state, out.value({new_writer_.at(at->second.node), at->second.port}));
        continue;
      }
      const NodeId new_parameter = out.find_input(in_.input_name(parameter));
      ValueId next;
      for (const Output& o : out.outputs())
        if (o.updates == new_parameter) next = o.value;
      out.update(state, made_of(out.value(next), id, again[parameter]));
    }
    out.set_scope("");
  }

  /// The nodes from a parameter to `id` again, from another value of it.
  Value made_of(Value parameter, NodeId id, std::map<NodeId, Value>& made) const {
    if (in_.is_input(id)) return parameter;
    if (const auto at = made.find(id); at != made.end()) return at->second;
    std::vector<Value> operands;
    for (const ValueId& v : in_.node(id).operands)
      operands.push_back(made_of(parameter, v.node, made));
    return made[id] = call(in_.node(id).op->name, operands, in_.node(id).attrs)[0];
  }

  void add_to(Graph& g, NodeId id, const std::string& name) const {
    if (g.find_input(name) != kNoNode) return;
    const std::string& parameter = in_.input_name(derived_[id].parameter);
    const NodeId found = g.find_input(parameter);
    const Value from = found != kNoNode
                           ? g.value(found)
                           : g.parameter(parameter, in_.type({derived_[id].parameter, 0}).shape);
    const Type& t = in_.node(id).results[0];
    std::map<NodeId, Value> made;
    g.update(g.input(name, t.shape, t.dtype, Role::derived), made_of(from, id, made));
  }

  void report(const Graph& out, Notes& notes) const {
    int64_t bytes = 0;
    for (const auto& [name, state] : states_) bytes += out.type(state).bytes();
    std::string line = fmt::format("{} low-precision copies of parameters, {}", states_.size(),
                                   memory_text(bytes));
    if (!written_.empty()) line += fmt::format("; the update writes {}", written_.size());
    if (updated_.size() > written_.size())
      line += fmt::format("; {} are made again behind it", updated_.size() - written_.size());
    notes.push_back(line);
    notes.insert(notes.end(), refusals_.begin(), refusals_.end());
  }

  const Graph& in_;
  const Target& target_;
  Rewriter rewriter_;
  std::vector<Derived> derived_;
  std::map<NodeId, std::string> kept_;      // the name of its state, by the node that it was
  std::set<NodeId> views_;                  // of what is kept
  std::map<std::string, ValueId> states_;   // in the new graph
  std::map<NodeId, Attrs> writers_;         // updates that write copies
  std::map<NodeId, NodeId> new_writer_;     // their nodes in the new graph
  std::map<std::string, ValueId> written_;  // by which update, as which result
  std::set<std::string> updated_;
  Notes refusals_;
};

}  // namespace

KeptCopies keep_copies(const Graph& graph, const Target& target, const Graph& from_parameters,
                       Notes* notes) {
  KeptCopies kept{{}, from_parameters};
  kept.graph = Keeper(graph, target).run(kept.from_parameters, notes);
  return kept;
}

}  // namespace brrr
