// Attention reads q, k and v as columns of the value that they are slices of.

#include <algorithm>
#include <array>
#include <map>

#include "base/human.h"
#include "ops/attention.h"
#include "ops/ops.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// An operand of attention that is a range of columns of `source`, perhaps cast.
struct Columns {
  ValueId source;
  int64_t first = 0, count = 0;
  std::optional<DType> cast_to;
};

class ColumnReader {
 public:
  ColumnReader(const Graph& in, const Target& target) : in_(in), target_(target) {}

  Graph run(Notes* notes) {
    size_t found = 0;
    Graph out = rewrite(in_, [&](Rewriter& r, NodeId id) {
      const Node& node = in_.node(id);
      if (!node.op->is_attention || node.op->is_gradient) return false;
      const bool is_replaced = read(r, id);
      found += is_replaced;
      return is_replaced;
    });
    if (notes && found > 0)
      notes->push_back(fmt::format("{} reads columns of a joined value",
                                   counted(static_cast<int64_t>(found), "attention node")));
    return drop_dead(std::move(out));
  }

 private:
  /// Returns the columns that an operand consists of, or nothing if it is no slice of the last
  /// axis.
  std::optional<Columns> columns_of(ValueId v) const {
    Columns c;
    if (is(in_.node(v.node), Op::cast)) {
      c.cast_to = in_.type(v).dtype;
      v = in_.node(v.node).operands[0];
    }
    const Node& slice = in_.node(v.node);
    if (!is(slice, Op::slice)) return std::nullopt;
    c.source = slice.operands[0];
    const Type& whole = in_.type(c.source);
    if (slice.attrs.get<int64_t>("axis") != whole.shape.rank() - 1 || !whole.shape.is_static() ||
        !whole.storage.is_plain())
      return std::nullopt;
    c.first = slice.attrs.get<int64_t>("start");
    c.count = in_.type(v).shape.size(-1);
    return c;
  }

  /// A source of which attention reads only some columns is not cast as a whole, so its slices
  /// stay.
  std::vector<std::optional<Columns>> columns_of_sources(const Node& node, size_t sources) const {
    std::vector<std::optional<Columns>> all;
    std::map<ValueId, std::map<int64_t, int64_t>> read;  // first column to count
    for (size_t i = 0; i < sources; ++i) {
      all.push_back(columns_of(node.operands[i]));
      if (all.back()) read[all.back()->source].emplace(all.back()->first, all.back()->count);
    }
    const auto reads_all = [&](ValueId source) {
      int64_t next = 0;
      for (const auto& range : read.at(source))
        if (range.first == next) next += range.second;
      return next == in_.type(source).shape.size(-1);
    };
    for (std::optional<Columns>& c : all)
      if (c && c->cast_to && !reads_all(c->source)) c.reset();
    return all;
  }

  /// Whether the node was replaced by one that reads columns.
  bool read(Rewriter& r, NodeId id) {
    const Node& node = in_.node(id);
    std::vector<Type> types;
    for (const ValueId& v : node.operands) types.push_back(in_.type(v));
    const AttentionForm form(node, types);
    const auto columns = columns_of_sources(node, form.sources);
    if (std::ranges::none_of(columns, [](const auto& c) { return c.has_value(); })) return false;

    constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
    Attrs attrs = node.attrs;
    std::vector<ValueId> sources;  // of the old graph: whole values, or operands as they are
    std::vector<std::optional<DType>> casts;
    const AttentionPlaces& places = form.places;
    const std::array<HeadPlace, 3> old{places.q, places.k, places.v};
    for (size_t part = 0; part < old.size(); ++part) {
      const auto at = static_cast<size_t>(old[part].source);
      const std::optional<Columns>& c = columns[at];
      const ValueId source = c ? c->source : node.operands[at];
      const std::optional<DType> cast_to = c ? c->cast_to : std::nullopt;
      size_t next = 0;
      while (next < sources.size() && (sources[next] != source || casts[next] != cast_to)) ++next;
      if (next == sources.size()) {
        sources.push_back(source);
        casts.push_back(cast_to);
      }
      attrs.set(kNames[part],
                std::vector<int64_t>{static_cast<int64_t>(next),
                                     old[part].column + (c ? c->first : 0), old[part].in_rows});
    }
    if (!runs(node, form.sources, sources, attrs)) return false;

    r.enter_scope_of(id);
    std::vector<Value> operands;
    for (size_t i = 0; i < sources.size(); ++i) operands.push_back(whole(r, sources[i], casts[i]));
    for (size_t i = form.sources; i < node.operands.size(); ++i)
      operands.push_back(r.map(node.operands[i]));
    const std::vector<Value> results = call(*node.op, operands, attrs);
    for (uint32_t port = 0; port < results.size(); ++port) r.bind({id, port}, results[port]);
    return true;
  }

  /// Whether the target has a kernel for the node with other sources.
  bool runs(const Node& node, size_t old_sources, const std::vector<ValueId>& sources,
            const Attrs& attrs) const {
    Graph alone;
    std::vector<ValueId> operands;
    const auto add = [&](Type type) {
      operands.push_back(alone.input(fmt::format("x{}", operands.size()), std::move(type)).id);
    };
    for (const ValueId& v : sources) add({in_.type(node.operands[0]).dtype, in_.type(v).shape});
    for (size_t i = old_sources; i < node.operands.size(); ++i) add(in_.type(node.operands[i]));
    return target_.runs(alone, alone.add(*node.op, operands, attrs));
  }

  Value whole(Rewriter& r, ValueId source, std::optional<DType> cast_to) {
    if (!cast_to) return r.map(source);
    const auto [at, is_new] = casts_.try_emplace({source, *cast_to});
    if (is_new) at->second = cast(r.map(source), *cast_to);
    return at->second;
  }

  const Graph& in_;
  const Target& target_;
  std::map<std::pair<ValueId, DType>, Value> casts_;
};

}  // namespace

Graph read_columns(const Graph& graph, const Target& target, Notes* notes) {
  return ColumnReader(graph, target).run(notes);
}

}  // namespace brrr
