// Finds softmax(scores) v where the scores are a masked and scaled q kᵀ, and makes it one attention
// node that reads q, k and v where they lie and writes as the next product reads. It runs before
// differentiation, so that the backward is attention's vjp.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ops/ops.h"
#include "passes/match/attention_candidate.h"
#include "passes/match/head_places.h"
#include "passes/passes.h"

namespace brrr {
namespace {

/// Scores this low or lower are masked: with any ordinary scores e^s is then exactly 0 in f32.
constexpr double kMasked = -1e4;

constexpr const char* kShared = "its probabilities are used elsewhere, too";

class Matcher {
 public:
  explicit Matcher(const Graph& g) : g_(g), uses_(count_uses(g)), readers_(g.size()) {
    for (NodeId id = 0; id < g.size(); ++id)
      for (const ValueId& v : g.node(id).operands) readers_[v.node].push_back(id);
  }

  /// What the node is if a softmax feeds this product; nullopt where none does.
  std::optional<AttentionCandidate> match(NodeId id) const {
    const Node& product = g_.node(id);
    if (!is(product, Op::matmul)) return std::nullopt;
    AttentionCandidate c;
    c.product = id;
    ValueId p = product.operands[0];
    std::string between;
    while (is(node(p), Op::cast, Op::reshape, Op::transpose, Op::slice)) {
      between = node(p).op->name;
      p = node(p).operands[0];
    }
    if (made_by(p, Op::dropout)) {
      c.dropout = &node(p);
      p = c.dropout->operands[0];
    }
    uint32_t p_uses = 1;  // by the way to the product
    if (!take_guards(p, p_uses, c)) c.reason = kShared;
    const auto argument = softmax_argument(p);
    if (!argument) return std::nullopt;
    if (!c.reason.empty()) return c;
    if (!between.empty()) {
      c.reason = "a " + between + " is between the two";
      return c;
    }
    c.v = product.operands[1];
    c.transpose_v = product.attrs.get<bool>("transpose_b");
    if (uses(p) > p_uses)
      c.reason = kShared;
    else
      c.reason = explain(product, p, *argument, c);
    return c;
  }

 private:
  const Node& node(ValueId v) const { return g_.node(v.node); }
  bool made_by(ValueId v, Op op) const { return is(node(v), op); }
  uint32_t uses(ValueId v) const { return uses_[v.node][v.port]; }
  const Shape& shape(ValueId v) const { return g_.type(v).shape; }

  /// Steps over where(rows, 0, p) and where(p != p, 0, p), from the outside; false where what is
  /// between is read elsewhere.
  bool take_guards(ValueId& p, uint32_t& p_uses, AttentionCandidate& c) const {
    bool alone = true;
    while (made_by(p, Op::where)) {
      const Node& n = node(p);
      const size_t zero = constant_of(g_, n.operands[1]) == 0.0 ? 1 : 2;
      const ValueId inner = n.operands[3 - zero];
      if (constant_of(g_, n.operands[zero]) != 0.0 || shape(inner) != shape(p)) break;
      RowGuard guard{Condition{n.operands[0], zero == 2}};
      const Shape& rows = shape(n.operands[0]);
      const bool of_numbers = is_nan(*guard.rows, inner);
      if (!of_numbers && !(rows.rank() > 0 && rows[-1] == Dim(1))) break;
      if (of_numbers) guard.rows.reset();
      alone = alone && uses(p) <= p_uses;
      c.guards.push_back(guard);
      p = inner;
      p_uses = of_numbers ? 3 : 1;
    }
    return alone;
  }
  bool is_nan(Condition c, ValueId p) const {
    for (; made_by(c.value, Op::logical_not); c.inverted = !c.inverted)
      c.value = node(c.value).operands[0];
    return made_by(c.value, c.inverted ? Op::equal : Op::not_equal) &&
           node(c.value).operands == std::vector<ValueId>{p, p};
  }

  struct Softmax {
    ValueId x;
    uint32_t x_uses;  // by the softmax itself
  };
  // softmax(x), also written out: e / sum e with e = exp(x - max x) or exp(x).
  std::optional<Softmax> softmax_argument(ValueId p) const {
    if (made_by(p, Op::softmax)) return Softmax{node(p).operands[0], 1};
    if (!made_by(p, Op::div)) return std::nullopt;
    const ValueId e = node(p).operands[0], total = node(p).operands[1];
    if (!made_by(e, Op::exp) || !over_last_axis(total, Op::sum, e) || uses(e) != 2)
      return std::nullopt;
    const ValueId inner = node(e).operands[0];
    if (made_by(inner, Op::sub) &&
        over_last_axis(node(inner).operands[1], Op::max, node(inner).operands[0]))
      return Softmax{node(inner).operands[0], 2};
    return Softmax{inner, 1};
  }
  bool over_last_axis(ValueId v, Op op, ValueId of) const {
    return made_by(v, op) && node(v).operands[0] == of && node(v).attrs.get<bool>("keep") &&
           node(v).attrs.get<std::vector<int64_t>>("axes") ==
               std::vector<int64_t>{shape(of).rank() - 1};
  }

  std::string explain(const Node& product, ValueId p, const Softmax& softmax,
                      AttentionCandidate& c) const {
    if (product.attrs.get<bool>("transpose_a")) return "its probabilities are used transposed";
    if (uses(product.operands[0]) > 1) return kShared;
    if (!shape(p).is_static() || !shape(c.v).is_static()) return "a shape is not known yet";
    AttentionCandidate found = c;
    if (std::string why = take_apart(softmax.x, softmax.x_uses, 1, found); !why.empty()) return why;
    c = std::move(found);
    if (!same_leading_axes(shape(c.q), shape(c.k), shape(c.v)))
      return "q, k and v differ in leading axes";
    c.reader = joining_reader(c.product);
    if (g_.type(c.q).dtype != g_.type(c.v).dtype || g_.type(c.q).dtype != product.results[0].dtype)
      return "q, v and the result differ in dtype";
    return "";
  }

  /// One head of keys and values may serve all heads of queries.
  static bool same_leading_axes(const Shape& q, const Shape& k, const Shape& v) {
    if (k.rank() != q.rank() || k.without_last(2) != v.without_last(2)) return false;
    if (q.without_last(2) == k.without_last(2)) return true;
    return q.rank() > 2 && q.without_last(3) == k.without_last(3) && k[-3] == Dim(1);
  }

  NodeId joining_reader(NodeId id) const {
    if (uses_[id][0] != 1 || g_.node(id).results[0].shape.rank() < 3) return kNoNode;
    for (NodeId r : readers_[id]) {
      const Node& reader = g_.node(r);
      if (!is(reader, Op::transpose)) continue;
      auto axes = reader.attrs.get<std::vector<int64_t>>("permutation");
      std::swap(axes[axes.size() - 3], axes[axes.size() - 2]);
      if (std::is_sorted(axes.begin(), axes.end())) return r;
    }
    return kNoNode;
  }

  // The scores below a value, which is used `expected` times on this way; they reach the softmax
  // times `factor`. Returns why not.
  std::string take_apart(ValueId x, uint32_t expected, double factor, AttentionCandidate& c) const {
    const Node& n = node(x);
    const Op op = n.op->id;
    if (uses(x) > expected) return "its scores are used elsewhere, too";
    if (op == Op::matmul) {
      c.q = n.operands[0];
      c.k = n.operands[1];
      c.transpose_q = n.attrs.get<bool>("transpose_a");
      c.transpose_k = !n.attrs.get<bool>("transpose_b");
      c.scale *= factor * take_scale(c.q) * take_scale(c.k);
      return "";
    }
    // One way on, if it does not lead to smaller scores that are broadcast here.
    auto follow = [&](ValueId scores, double f) -> std::string {
      if (shape(scores) != shape(x)) return "its scores are broadcast";
      return take_apart(scores, 1, f, c);
    };
    if (op == Op::neg) return follow(n.operands[0], -factor);
    if (op == Op::mul || op == Op::div)
      for (size_t i : {size_t{0}, size_t{1}}) {
        const auto constant = constant_of(g_, n.operands[1 - i]);
        if (!constant || (op == Op::div && i == 1)) continue;
        return follow(n.operands[i], op == Op::mul ? factor * *constant : factor / *constant);
      }
    if (op == Op::where)
      for (size_t i : {size_t{1}, size_t{2}}) {
        const auto constant = constant_of(g_, n.operands[3 - i]);
        if (!constant || !(*constant * factor <= kMasked)) continue;
        c.maskings.push_back(
            {.condition = {n.operands[0], i == 2}, .value = as_score(*constant * factor)});
        return follow(n.operands[i], factor);
      }
    if (op == Op::add || op == Op::sub) return take_sum(n, factor, c, follow);
    return "its argument comes from " + n.op->name + ", not from a product of q and k";
  }

  /// A mask as f32 has it, in which kernels keep scores: twice the lowest number is -inf.
  static double as_score(double x) { return rounded_to(DType::f32, x); }

  // Either term may be the scores.
  template <typename Follow>
  std::string take_sum(const Node& n, double factor, AttentionCandidate& c, Follow&& follow) const {
    std::string why;
    for (size_t i : {size_t{0}, size_t{1}}) {
      const double sign = is(n, Op::sub) ? -1 : 1;
      const AttentionCandidate before = c;
      const ValueId other = n.operands[1 - i];
      const double other_factor = i == 0 ? sign * factor : factor;
      if (const auto masking = as_masking(other, other_factor))
        c.maskings.push_back(*masking);
      else
        c.addends.push_back({other, other_factor});
      const std::string reason = follow(n.operands[i], i == 0 ? factor : sign * factor);
      if (reason.empty()) return "";
      c = before;
      if (i == 0) why = reason;
    }
    return why;
  }

  // x times a constant: steps over it and returns the constant.
  double take_scale(ValueId& x) const {
    const Node& n = node(x);
    const bool product = is(n, Op::mul);
    if (!product && !is(n, Op::div)) return 1;
    for (size_t i : {size_t{0}, size_t{1}}) {
      const auto constant = constant_of(g_, n.operands[1 - i]);
      if (!constant || (!product && i == 1) || shape(n.operands[i]) != shape(x)) continue;
      x = n.operands[i];
      return (product ? *constant : 1 / *constant) * take_scale(x);
    }
    return 1;
  }

  // condition ? 0 : large negative, in the ways it is written.
  std::optional<Masking> as_masking(ValueId v, double factor) const {
    const Node& n = node(v);
    const ValueId whole = v;
    auto make = [&](Condition condition, double value) -> std::optional<Masking> {
      if (!(value <= kMasked)) return std::nullopt;
      return Masking{condition, as_score(value), true, whole, factor};
    };
    if (is(n, Op::where)) {
      const auto a = constant_of(g_, n.operands[1]), b = constant_of(g_, n.operands[2]);
      if (a && b && *a == 0) return make({n.operands[0], false}, *b * factor);
      if (a && b && *b == 0) return make({n.operands[0], true}, *a * factor);
    }
    if (is(n, Op::mul))
      for (size_t i : {size_t{0}, size_t{1}}) {
        const auto constant = constant_of(g_, n.operands[1 - i]);
        if (!constant || !std::isfinite(*constant)) continue;
        const ValueId flag = n.operands[i];
        if (is_flag(flag)) return make({node(flag).operands[0], true}, *constant * factor);
        if (made_by(flag, Op::sub) && constant_of(g_, node(flag).operands[0]) == 1.0 &&
            is_flag(node(flag).operands[1]))
          return make({node(node(flag).operands[1]).operands[0], false}, *constant * factor);
      }
    return std::nullopt;
  }
  // A condition as 0 or 1.
  bool is_flag(ValueId v) const {
    return made_by(v, Op::cast) && g_.type(node(v).operands[0]).dtype == DType::boolean;
  }

  const Graph& g_;
  std::vector<std::vector<uint32_t>> uses_;
  std::vector<std::vector<NodeId>> readers_;
};

class Builder {
 public:
  Builder(Rewriter& r, const AttentionCandidate& c, const MaskPlan& plan)
      : r_(r), c_(c), plan_(plan) {}

  /// y: [..., T, H Dv] if there is a reader that joins its heads, else [..., H, T, Dv].
  Value build() {
    place_operands();
    AttentionOptions o;
    o.scale = c_.scale;
    o.causal = plan_.causal.has_value();
    o.window = plan_.window;
    if (const auto position = plan_.causal ? plan_.causal : plan_.first_key; position)
      if (position->factor != 0 || position->constant != 0) o.position = per_sequence(*position);
    if (plan_.lengths) o.lengths = per_sequence(*plan_.lengths);
    o.mask = mask(sources_[0].dtype());
    o.masked = plan_.masked;
    if (c_.dropout != nullptr) {
      o.p = c_.dropout->attrs.get<double>("p");
      o.key = r_.map(c_.dropout->operands[1]);
      o.stream = c_.dropout->attrs.get<int64_t>("stream");
    }
    const Attention attention = brrr::attention(sources_, places_, o);
    Value y = attention.y;
    if (!c_.guards.empty() && may_be_blind()) g().node(y.id.node).attrs.set("guarded", true);
    for (const RowGuard& guard : c_.guards)
      if (guard.rows || may_be_blind()) y = guarded(y, attention.lse, guard);
    return y;
  }
  /// "q, k and v in one value, heads joined"
  std::string describe() const {
    std::string text = sources_.size() == 1   ? "q, k and v in one value"
                       : sources_.size() == 2 ? "q, k and v in two values"
                                              : "q, k and v apart";
    if (places_.kv_heads != places_.heads)
      text += fmt::format(", {} heads share {}", places_.heads, places_.kv_heads);
    if (copies_ > 0) text += fmt::format(", {} copied", copies_);
    return text + (places_.y_in_rows ? ", heads joined" : "");
  }

 private:
  /// Whether conditions hide keys by -inf. A finite number hides none: where it takes the place of
  /// all scores of a query, the probabilities are alike.
  bool conditions_hide() const { return !plan_.conditions.empty() && std::isinf(plan_.masked); }
  /// Whether a query may see no key, so that its probabilities are NaN.
  bool may_be_blind() const {
    const bool sees_first_key =
        !plan_.causal || (plan_.causal->factor == 0 && plan_.causal->constant >= 0);
    return !sees_first_key || plan_.first_key || plan_.lengths || conditions_hide() ||
           !plan_.addends.empty();
  }
  /// y with zeros for the rows that the guard names.
  Value guarded(Value y, Value lse, const RowGuard& guard) {
    Value rows = guard.rows ? r_.map(guard.rows->value) : seeing_rows(lse);
    const bool are_zero = guard.rows && !guard.rows->inverted;
    const Value zero = scalar(g(), 0.0, y.dtype());
    const auto choose = [&](Value x) {
      return are_zero ? where(rows, zero, x) : where(rows, x, zero);
    };
    if (!places_.y_in_rows || r_.in().type(c_.q).shape.rank() < 3 || rows.shape().rank() < 3)
      return choose(y);
    // The rows [..., H, T, 1] as y has them: [..., T, H, 1], or without the heads.
    if (rows.shape()[-3] == Dim(1)) {
      Shape without_heads = rows.shape();
      without_heads.erase(without_heads.rank() - 3);
      rows = reshape(rows, without_heads);
      return choose(y);
    }
    std::vector<int64_t> axes(static_cast<size_t>(rows.shape().rank()));
    std::iota(axes.begin(), axes.end(), 0);
    std::swap(axes[axes.size() - 3], axes[axes.size() - 2]);
    rows = transpose(rows, axes);
    Shape apart = y.shape();
    apart[-1] = Dim(places_.heads);
    apart.push_back(Dim(places_.value_width));
    return reshape(choose(reshape(y, apart)), y.shape());
  }
  /// The queries that see a key, [..., T, 1]. Where conditions alone hide keys, all layers share
  /// it.
  Value seeing_rows(Value lse) {
    const bool by_position = plan_.causal || plan_.first_key || plan_.lengths;
    if (!by_position && conditions_hide() && plan_.addends.empty()) {
      const Value visible = cast(*mask(DType::f32), DType::f32);
      return greater(max(visible, {visible.shape().rank() - 1}, true), scalar(g(), 0.0));
    }
    Shape column = lse.shape();
    if (r_.in().type(c_.q).shape.rank() == 2) column.erase(0);  // the one head that q has not
    column.push_back(Dim(1));
    return reshape(less(abs(lse), scalar(g(), INFINITY, lse.dtype())), column);
  }
  void place_operands() {
    const Graph& in = r_.in();
    const Shape& q = in.type(c_.q).shape;
    const bool has_heads = q.rank() > 2;
    places_.heads = has_heads ? q.size(-3) : 1;
    places_.width = q.size(c_.transpose_q ? -2 : -1);
    places_.value_width = in.type(c_.v).shape.size(c_.transpose_v ? -2 : -1);
    places_.y_in_rows = c_.reader != kNoNode || !has_heads;
    auto found_q = find_heads(in, c_.q, c_.transpose_q);
    auto found_k = find_heads(in, c_.k, c_.transpose_k),
         found_v = find_heads(in, c_.v, c_.transpose_v);
    if (found_q && found_q->heads != places_.heads) found_q.reset();
    // Keys and values of the same heads, be it by a copy.
    const int64_t copied = has_heads ? in.type(c_.k).shape.size(-3) : 1;
    const int64_t heads_of_k = found_k ? found_k->heads : copied;
    if (heads_of_k != (found_v ? found_v->heads : copied)) {
      if (heads_of_k != copied) found_k.reset();
      if (found_v && found_v->heads != copied) found_v.reset();
    }
    places_.kv_heads = found_k ? found_k->heads : copied;
    places_.q = place(found_q, c_.q, c_.transpose_q);
    places_.k = place(found_k, c_.k, c_.transpose_k);
    places_.v = place(found_v, c_.v, c_.transpose_v);
  }

  HeadPlace place(const std::optional<HeadsFound>& found, ValueId old, bool transposed) {
    const auto next = static_cast<int64_t>(sources_.size());
    if (!found) {
      ++copies_;
      const Value x = side(old, transposed);
      sources_.push_back(x);
      origins_.push_back({});
      return {next, 0, x.shape().rank() == 2};
    }
    for (int64_t i = 0; i < next; ++i) {
      const auto& known = origins_[static_cast<size_t>(i)];
      if (known && known->source == found->source && known->shape == found->shape)
        return {i, found->column, found->in_rows};
    }
    const Value x = r_.map(found->source);
    sources_.push_back(x.shape() == found->shape ? x : reshape(x, found->shape));
    origins_.push_back(found);
    return {next, found->column, found->in_rows};
  }

  Graph& g() { return r_.out(); }
  Value side(ValueId old, bool transposed) {
    const Value x = r_.map(old);
    if (!transposed) return x;
    std::vector<int64_t> p;
    for (int axis = 0; axis < x.shape().rank(); ++axis) p.push_back(axis);
    std::swap(p[p.size() - 1], p[p.size() - 2]);
    return transpose(x, p);
  }
  // constant + factor * value, i32.
  Value limit(const IndexLimit& l) {
    if (l.factor == 0) return scalar(g(), l.constant, DType::i32);
    Value x = cast(r_.map(l.value), DType::i32);
    if (l.factor != 1) x = x * static_cast<double>(l.factor);
    return l.constant == 0 ? x : x + static_cast<double>(l.constant);
  }
  /// Broadcasting to the batch axes.
  Value per_sequence(const IndexLimit& l) {
    const Value x = limit(l);
    return reshape(x, x.shape().without_last(std::min(3, x.shape().rank())));
  }
  std::optional<Value> mask(DType dtype) {
    std::optional<Value> visible, added;
    for (const Condition& c : plan_.conditions) {
      Value x = r_.map(c.value);
      if (c.inverted) x = logical_not(x);
      visible = visible ? logical_and(*visible, x) : x;
    }
    for (const Addend& a : plan_.addends) {
      Value x = r_.map(a.value);
      if (a.factor != 1) x = x * a.factor;
      added = added ? *added + x : x;
    }
    if (visible && added) return where(*visible, *added, scalar(g(), -INFINITY, dtype));
    return visible ? visible : added;
  }

  Rewriter& r_;
  const AttentionCandidate& c_;
  const MaskPlan& plan_;
  AttentionPlaces places_;
  std::vector<Value> sources_;
  std::vector<std::optional<HeadsFound>> origins_;  // of the sources that are no copies
  int copies_ = 0;
};

std::string describe(const AttentionCandidate& c, const MaskPlan& plan) {
  std::string text = fmt::format("scale {:.6g}", c.scale);
  if (plan.causal) text += plan.causal->factor != 0 ? ", causal from a position" : ", causal";
  if (plan.window > 0) text += fmt::format(", window {}", plan.window);
  if (plan.lengths) text += ", lengths";
  if (!plan.conditions.empty()) text += plan.addends.empty() ? ", a boolean mask" : ", a mask";
  if (plan.conditions.empty() && !plan.addends.empty()) text += ", an added mask";
  if (c.dropout != nullptr) text += fmt::format(", dropout {}", c.dropout->attrs.get<double>("p"));
  return text;
}

}  // namespace

Graph match_attention(const Graph& in, Notes* notes) {
  const Matcher matcher(in);
  auto note = [&](NodeId id, const std::string& text) {
    if (notes == nullptr) return;
    const std::string& scope = in.scope_of(id);
    notes->push_back(fmt::format("{}{}{}", scope, scope.empty() ? "" : ": ", text));
  };
  std::map<NodeId, Value> joined;  // what transposes of y become
  const Graph out = rewrite(in, [&](Rewriter& r, NodeId id) {
    if (const auto at = joined.find(id); at != joined.end()) {
      r.bind({id, 0}, reshape(at->second, in.type({id, 0}).shape));
      return true;
    }
    auto candidate = matcher.match(id);
    if (!candidate) return false;
    MaskPlan plan;
    if (candidate->reason.empty()) {
      plan = plan_masks(in, *candidate);
      candidate->reason = plan.reason;
    }
    if (!candidate->reason.empty()) {
      note(id,
           "not matched as attention, although a product follows a softmax: " + candidate->reason);
      return false;
    }
    Builder builder(r, *candidate, plan);
    const Value y = builder.build();
    // With its heads joined, y has another shape than the product: only the reader that joins them
    // may have it.
    if (candidate->reader != kNoNode)
      joined.emplace(candidate->reader, y);
    else
      r.bind({id, 0}, y);
    note(id, "attention: " + describe(*candidate, plan) + "; " + builder.describe());
    return true;
  });
  return drop_dead(out);
}

}  // namespace brrr
