// Scaled dot-product attention (Vaswani et al. 2017, equation 1) with masks and dropout, and its
// derivative. The decompositions hold all T x S scores; kernels need not (Dao et al. 2022).
//
// A ragged batch is R sequences of different lengths, one behind the other in sources [N, columns]:
// sequence r is rows [starts[r], starts[r + 1]) of queries, keys and values. Rows outside all
// sequences give 0 and have no gradient. Kernels compute no scores between sequences; the
// decomposition masks them.
//
// Generation keeps keys and values in a pool of blocks; a table lists the blocks of each sequence
// (PagedAttention: Kwon et al. 2023). The new tokens of a sequence are its queries, and they have
// its last positions. The decomposition gathers the blocks of all sequences into one matrix.

#include "ops/attention.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ops/attention_samples.h"
#include "ops/support.h"

namespace brrr {
namespace {

Type y_type(const AttentionForm& form) { return {form.dtype, form.y_shape()}; }
Type lse_type(const AttentionForm& form) { return {ops::work_dtype(form.dtype), form.lse_shape()}; }

// -- the meaning

/// The last three axes but one and but two exchanged: heads and rows.
Value swap_rows(Value x) {
  std::vector<int64_t> axes(static_cast<size_t>(x.shape().rank()));
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[axes.size() - 3], axes[axes.size() - 2]);
  return transpose(x, axes);
}

/// [..., rows, heads * width] or [..., heads, rows, width] -> [..., heads, rows, width]
Value heads_of(Value x, bool in_rows, int64_t heads, int64_t width) {
  if (!in_rows) return x;
  Shape s = x.shape();
  s[-1] = Dim(heads);
  s.push_back(Dim(width));
  return swap_rows(reshape(x, s));
}
/// The inverse.
Value joined(Value x, bool in_rows) {
  if (!in_rows) return x;
  Shape s = x.shape().without_last(3);
  s.push_back(x.shape()[-2]);
  s.push_back(Dim(x.shape().size(-3) * x.shape().size(-1)));
  return reshape(swap_rows(x), s);
}

Value columns_of(Value x, int64_t first, int64_t count) {
  return x.shape()[-1] == Dim(count) ? x : slice(x, -1, first, count);
}

// The node opened: what the decompositions of forward and backward share.
struct Opened {
  Graph& g;
  const Attrs& attrs;
  std::span<const Value> in;
  AttentionForm form;
  DType work;
  Value q, k, v;  // [..., H, T, D], [..., H, S, D], [..., H, S, Dv] in the work dtype

  Opened(Graph& graph, const Attrs& a, std::span<const Value> operands, bool gradient)
      : g(graph),
        attrs(a),
        in(operands),
        form(a, types_of(operands), gradient),
        work(ops::work_dtype(form.dtype)),
        q(part(0)),
        k(shared(part(1))),
        v(shared(part(2))) {}

  static std::vector<Type> types_of(std::span<const Value> values) {
    std::vector<Type> types;
    for (const Value& x : values) types.push_back(x.type());
    return types;
  }
  Value part(size_t which) const {
    const AttentionForm::Part p = form.parts()[which];
    Value x = in[static_cast<size_t>(p.place.source)];
    if (!x.type().storage.is_plain()) x = store(x, Storage{});
    x = columns_of(x, p.place.column, p.taken());
    if (form.blocks && which > 0) x = gather(x, rows_of_blocks(), 0);
    return cast(heads_of(x, p.place.in_rows, p.heads, p.width), work);
  }
  /// Returns the row of the pool of every key of every sequence, [R M block_rows]. Entries of the
  /// table beyond a sequence's length may be invalid, so they are clamped.
  Value rows_of_blocks() const {
    const int64_t rows = form.block_rows, count = form.ragged_sequences * form.table_columns;
    const auto integer = [&](int64_t n) { return full(g, {}, n, DType::i32); };
    const Value block = minimum(maximum(reshape(in[*form.blocks], {count, 1}), integer(0)),
                                integer(form.keys.size() / rows - 1));
    return reshape(block * integer(rows) + iota(g, {1, rows}, 1), {count * rows});
  }
  /// Returns which of these keys each query sees, bool [N, R M block_rows].
  Value sees_in_blocks() const {
    const int64_t sequences = form.ragged_sequences, keys = form.table_columns * form.block_rows,
                  n = form.queries.size();
    const auto integer = [&](int64_t i) { return full(g, {}, i, DType::i32); };
    const Value starts = in[*form.starts];
    const Value sequence = sequence_of_rows(starts);  // [N, 1], counted from 1
    // Query row n of sequence r has the position n + lengths[r] - starts[r + 1].
    const Value shift = in[*form.lengths] - slice(starts, 0, 1, sequences);
    const Value which = minimum(maximum(sequence - integer(1), integer(0)), integer(sequences - 1));
    const Value position = gather(shift, reshape(which, {n}), 0) + iota(g, {n}, 0);
    const Value index = iota(g, {sequences, keys}, 1), flat = reshape(index, {1, sequences * keys});
    const Value own = reshape(iota(g, {sequences, keys}, 0), {1, sequences * keys}) + integer(1);
    const Value at = reshape(position, {n, 1});
    Value seen = logical_and(equal(sequence, own), less_equal(flat, at));
    if (form.window > 0) seen = logical_and(seen, greater(flat, at - integer(form.window)));
    return logical_and(seen, is_inside(starts));
  }
  /// A key or value head for each query head.
  Value shared(Value x) const {
    if (form.group() == 1) return x;
    Shape one = x.shape(), all = x.shape();
    one.insert(one.rank() - 2, Dim(1));
    Shape many = one;
    many[-3] = Dim(form.group());
    all[-3] = Dim(form.places.heads);
    return reshape(broadcast_to(reshape(x, one), many), all);
  }
  /// The gradient of what is shared.
  Value unshared(Value x) const {
    if (form.group() == 1) return x;
    Shape many = x.shape();
    many[-3] = Dim(form.places.kv_heads);
    many.insert(many.rank() - 2, Dim(form.group()));
    return sum(reshape(x, many), {many.rank() - 3});
  }
  std::optional<Value> extra(std::optional<size_t> i) const {
    return i ? std::optional<Value>(in[*i]) : std::nullopt;
  }
  double scale() const { return attrs.get<double>("scale"); }
  bool boolean_mask() const { return form.mask && in[*form.mask].dtype() == DType::boolean; }
  Value number(double x) const { return scalar(g, x, work); }
  /// [...] -> [..., 1, 1, 1], beside the scores.
  static Value beside_scores(Value x) { return ops::column(ops::column(ops::column(x))); }

  // [..., H, T, S]
  Value scores() const {
    const Dim t = q.shape()[-2], s = k.shape()[-2];
    Value x = matmul(q, k, false, true) * scale();
    if (const auto mask = extra(form.mask))
      x = boolean_mask() ? where(*mask, x, number(attrs.get<double>("masked")))
                         : x + cast(form.mask_by_distance ? by_distance(*mask) : *mask, work);
    if (form.blocks) return where(sees_in_blocks(), x, number(-INFINITY));
    if (const auto starts = extra(form.starts))
      x = where(same_sequence(*starts), x, number(-INFINITY));
    Value columns = iota(g, {1, s}, 1);
    if (const auto after = form.keys_after(); after || form.window > 0) {
      Value rows = iota(g, {t, 1}, 0);
      if (const auto position = extra(form.position)) rows = rows + beside_scores(*position);
      if (after) {
        const Value last = *after > 0 ? rows + static_cast<double>(*after) : rows;
        x = where(less_equal(columns, last), x, number(-INFINITY));
      }
      if (form.window > 0)
        x = where(greater(columns, rows - static_cast<double>(form.window)), x, number(-INFINITY));
    }
    if (const auto lengths = extra(form.lengths))
      x = where(less(columns, beside_scores(*lengths)), x, number(-INFINITY));
    return x;
  }
  // [T, S]: which of 2 L - 1 elements the bias of a query and a key is. Distances of L or more are
  // those of rows that do not see each other.
  Value distance_index(int64_t count) const {
    const int64_t t = form.queries.size(), s = form.keys.size();
    const auto number = [&](int64_t n) { return full(g, {}, n, DType::i32); };
    const Value distance = iota(g, {t, s}, 1) - iota(g, {t, s}, 0) + number(count / 2);
    return minimum(maximum(distance, number(0)), number(count - 1));
  }
  // [H, 2 L - 1] -> [H, T, S]
  Value by_distance(Value bias) const {
    return gather(bias, distance_index(bias.shape().size(1)), 1);
  }
  // The gradient [H, 2 L - 1] of that bias, from those of the scores [..., H, T, S].
  Value sum_by_distance(Value ds, const Shape& bias) const {
    const int64_t heads = bias.size(0), count = bias.size(1);
    const int64_t t = form.queries.size(), s = form.keys.size();
    const Value rows = reshape(transpose(sum_to(ds, {heads, t, s}), {1, 2, 0}), {t * s, heads});
    const Value zeros = full(g, {count, heads}, 0, ds.dtype());
    const Value index = reshape(distance_index(count), {t * s});
    return transpose(scatter(zeros, index, rows, ScatterMode::add), {1, 0});
  }
  // [N, 1]: the sequence of each row, from 1 on; 0 in front of all, R + 1 behind them.
  Value sequence_of_rows(Value starts) const {
    const int64_t n = form.queries.size(), ends = starts.shape().size(0);
    const Value begun = less_equal(reshape(starts, {1, ends}), iota(g, {n, 1}, 0));
    return sum(cast(begun, DType::i32), {1}, true);
  }
  // [N, 1]: whether a row lies in a sequence.
  Value is_inside(Value starts) const {
    const Value sequence = sequence_of_rows(starts);
    const auto number = [&](int64_t i) { return full(g, {}, i, DType::i32); };
    return logical_and(less(number(0), sequence), less(sequence, number(starts.shape().size(0))));
  }
  // [N, N]: whether query and key lie in the same sequence.
  Value same_sequence(Value starts) const {
    const Value sequence = sequence_of_rows(starts);
    const Value other = reshape(sequence, {1, form.queries.size()});
    return logical_and(is_inside(starts), equal(sequence, other));
  }
  // Dropout of probabilities or of their gradients: both by the same mask.
  Value drop(Value x) const {
    const auto key = extra(form.key);
    return key ? dropout(x, *key, attrs.get<double>("p"), attrs.get<int64_t>("stream")) : x;
  }
  Value split(Value y) const {
    return cast(heads_of(y, form.places.y_in_rows, form.places.heads, form.places.value_width),
                work);
  }
};

struct ScoreGradients {
  Value p, ds, dy;  // probabilities, d loss / d scores before the scale: [..., H, T, S]; dy's heads
};

ScoreGradients score_gradients(const Opened& o) {
  const Value y = o.split(o.in[o.form.y]), dy = o.split(o.in[o.form.dy]);
  Value p = exp(o.scores() - ops::column(o.in[o.form.lse]));
  Value dp = o.drop(matmul(dy, o.v, false, true));
  Value delta = sum(dy * y, {-1}, true);
  if (const auto dlse = o.extra(o.form.dlse)) delta = delta - ops::column(*dlse);
  Value ds = p * (dp - delta);
  if (o.boolean_mask()) ds = where(*o.extra(o.form.mask), ds, o.number(0));
  return {p, ds, dy};
}

std::vector<Value> forward(const DecomposeContext& c) {
  const Opened o(c.graph, c.node.attrs, c.in, false);
  const auto zero_outside = [&](Value x) {  // of all sequences
    const auto starts = o.extra(o.form.starts);
    return starts ? where(o.is_inside(*starts), x, scalar(c.graph, 0, x.dtype())) : x;
  };
  Value s = zero_outside(o.scores());  // no row of -inf, whose softmax is NaN
  Value top = max(s, {-1}, true);
  Value e = exp(s - top);
  Value total = sum(e, {-1}, true);
  Value y = zero_outside(cast(matmul(o.drop(e / total), o.v), o.form.dtype));
  y = joined(y, o.form.places.y_in_rows);
  const Value lse = zero_outside(log(total) + top);
  return {y, reshape(lse, ops::leading(s.shape()))};
}

std::vector<Value> backward(const DecomposeContext& c) {
  const Opened o(c.graph, c.node.attrs, c.in, true);
  const auto [p, ds, dy] = score_gradients(o);
  const std::array<Value, 3> grads{matmul(ds, o.k) * o.scale(),
                                   o.unshared(matmul(ds, o.q, true, false) * o.scale()),
                                   o.unshared(matmul(o.drop(p), dy, true, false))};
  std::vector<Value> results;
  for (size_t source = 0; source < o.form.sources; ++source) {
    std::vector<Value> beside;
    const auto parts = o.form.partition(source);
    for (const AttentionForm::Part& part : *parts)
      beside.push_back(joined(cast(grads[part.which], o.form.dtype), part.place.in_rows));
    results.push_back(beside.size() == 1 ? beside[0] : concat(beside, -1));
  }
  return results;
}

// -- the derivative

/// The operands and attributes of attention_grad. Where q, k and v do not share out the columns of
/// a source, each part of it becomes a source of its own, sliced off; `origin` says of which.
struct GradientCall {
  std::vector<Value> in;
  Attrs attrs;
  struct Source {
    size_t origin;
    int64_t column;
  };
  std::vector<Source> origin;
};

void set_place(Attrs& attrs, size_t which, size_t source, int64_t column, bool in_rows) {
  constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
  attrs.set(kNames[which], std::vector<int64_t>{static_cast<int64_t>(source), column, in_rows});
}

/// y and lse as the gradient reads them. Where the graph guards its rows ({guarded}), a query that
/// sees no key has zeros and an lse of infinity, instead of NaN: no gradient, whatever it is
/// multiplied by.
std::pair<Value, Value> statistics(VjpContext& c, const AttentionForm& form) {
  const Value y = c.result(0), lse = c.result(1);
  if (!c.attrs().get_or<bool>("guarded", false)) return {y, lse};
  const Value infinite = scalar(c.graph, INFINITY, lse.dtype());
  const Value seen = less(abs(lse), infinite);
  const AttentionPlaces& places = form.places;
  const Value by_heads = heads_of(y, places.y_in_rows, places.heads, places.value_width);
  const Value zero = scalar(c.graph, 0, y.dtype());
  return {joined(where(ops::column(seen), by_heads, zero), places.y_in_rows),
          where(seen, lse, infinite)};
}

GradientCall gradient_call(VjpContext& c) {
  GradientCall call;
  for (const auto& [name, value] : c.attrs())
    if (name != "guarded") call.attrs.set(name, value);
  std::vector<Value> in;
  for (size_t i = 0; i < c.node().operands.size(); ++i) in.push_back(c.operand(i));
  const AttentionForm form(c.node(), operand_types(c.graph, c.node()));
  std::map<size_t, size_t> whole;  // sources that stay as they are
  for (const AttentionForm::Part& part : form.parts()) {
    const auto source = static_cast<size_t>(part.place.source);
    const bool stays = form.partition(source).has_value();
    const auto known = whole.find(source);
    if (stays && known != whole.end()) {
      set_place(call.attrs, part.which, known->second, part.place.column, part.place.in_rows);
      continue;
    }
    if (stays) whole.emplace(source, call.in.size());
    set_place(call.attrs, part.which, call.in.size(), stays ? part.place.column : 0,
              part.place.in_rows);
    call.origin.push_back({source, stays ? 0 : part.place.column});
    call.in.push_back(stays ? in[source] : columns_of(in[source], part.place.column, part.taken()));
  }
  const auto [y, lse] = statistics(c, form);
  for (Value v : {y, lse, c.has_grad(0) ? c.grad(0) : full(c.graph, y.shape(), 0, y.dtype())})
    call.in.push_back(v);
  call.in.insert(call.in.end(), in.begin() + static_cast<int64_t>(form.sources), in.end());
  if (c.has_grad(1)) call.in.push_back(c.grad(1));
  call.attrs.set("dlse", c.has_grad(1));
  return call;
}

void vjp(VjpContext& c) {
  const GradientCall grad = gradient_call(c);
  const bool wanted = std::any_of(grad.origin.begin(), grad.origin.end(),
                                  [&](const auto& source) { return c.wants(source.origin); });
  if (wanted) {
    const auto grads = call(Op::attention_grad, grad.in, grad.attrs);
    std::map<size_t, Value> sums;
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto& [origin, column] = grad.origin[i];
      const int64_t all = c.operand(origin).shape().size(-1), own = grads[i].shape().size(-1);
      const Value whole = pad(grads[i], -1, column, all - own - column);
      const auto [at, is_new] = sums.emplace(origin, whole);
      if (!is_new) at->second = at->second + whole;
    }
    for (const auto& [origin, total] : sums)
      if (c.wants(origin)) c.set(origin, total);
  }
  const AttentionForm form(c.node(), operand_types(c.graph, c.node()));
  const auto mask = form.mask;
  if (!mask || !c.wants(*mask)) return;
  // A trained bias of the scores: its gradient is as large as they are, so nothing is saved here.
  const Opened o(c.graph, grad.attrs, grad.in, true);
  const Value bias = c.operand(*mask);
  const Value ds = score_gradients(o).ds;
  c.set(*mask,
        cast(form.mask_by_distance ? o.sum_by_distance(ds, bias.shape()) : sum_to(ds, bias.shape()),
             bias.dtype()));
}

// -- cost

// The (query, key) pairs of a head that see each other. Only what the attributes say is known:
// masks and lengths count as open, a position as that of the last query at the last key.
double visible_pairs(const AttentionForm& form) {
  // Sequences of a ragged batch count as equally long.
  const int64_t sequences = std::max<int64_t>(1, form.ragged_sequences);
  const int64_t queries = (form.queries.size() + sequences - 1) / sequences,
                keys = form.blocks ? form.table_columns * form.block_rows
                                   : (form.keys.size() + sequences - 1) / sequences;
  const int64_t first = form.position || form.blocks ? std::max<int64_t>(0, keys - queries) : 0;
  double seen = 0;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t at = first + i + 1;
    const int64_t end = form.keys_after() ? std::min(keys, at + *form.keys_after()) : keys;
    const int64_t begin = form.window > 0 ? std::clamp<int64_t>(at - form.window, 0, end) : 0;
    seen += static_cast<double>(end - begin);
  }
  return static_cast<double>(sequences) * seen;
}

/// What is read of the sources is what q, k and v take of them.
Cost cost_of_attention(const Node& n, std::span<const Type> in, double widths_of_d,
                       double widths_of_dv) {
  const AttentionForm form(n, in);
  const double per_pair = widths_of_d * static_cast<double>(form.places.width) +
                          widths_of_dv * static_cast<double>(form.places.value_width);
  const double heads = static_cast<double>(form.batches() * form.places.heads);
  Cost cost = ops::streaming_cost(n, in, 2 * heads * visible_pairs(form) * per_pair);
  for (size_t i = 0; i < form.sources; ++i) cost.bytes_read -= static_cast<double>(in[i].bytes());
  for (const AttentionForm::Part& part : form.parts())
    cost.bytes_read += static_cast<double>(form.bytes_of_part(part));
  if (form.blocks) {  // only the blocks in the table are read, not the whole pool
    const double rows = static_cast<double>(form.keys.size()),
                 read = static_cast<double>(form.ragged_sequences * form.table_columns *
                                            form.block_rows);
    for (const AttentionForm::Part& part : form.parts())
      if (part.which > 0)
        cost.bytes_read += (read / rows - 1) * static_cast<double>(form.bytes_of_part(part));
  }
  return cost;
}

constexpr const char* kPlacesDoc =
    "Each of {q}, {k}, {v} is (source, column, in_rows): the matrix lies in that of the distinct "
    "operands which come first, from that column on; its heads lie side by side in the rows of a "
    "source [..., rows, columns] (in_rows 1) or in front of the rows of a source [..., heads, "
    "rows, columns] (0). {heads} H query heads of {width} D columns share {kv_heads} K key heads "
    "and value heads of {value_width} Dv columns: query head h reads head h K / H. ";
constexpr const char* kOperandsDoc =
    "Then, each where an attribute says so: {position} i32 broadcasting to the batch axes [...] (0 "
    "without it), {mask} broadcasting to [..., H, T, S], bool or added, or, where "
    "{mask_by_distance}, [H, 2 L - 1], of which element key - query + L - 1 is added (sequences of "
    "at most L), {lengths} i32 broadcasting to [...], {starts} i32 [R + 1], ascending, of a ragged "
    "batch: sources have no batch axes, query i of sequence r, row {starts}[r] + i, sees keys of "
    "its "
    "own sequence alone, and rows outside all sequences have y and lse 0 and no gradient; no "
    "sequence has more than {longest} rows, if that is given; with {block_rows} > 0 a table i32 "
    "[R, M]: k and v are pools [S, columns] of blocks of {block_rows} rows, {lengths} is i32 [R], "
    "key i < {lengths}[r] of sequence r is row i mod {block_rows} of block table[r, i / "
    "{block_rows}], and the queries are the last positions of their sequence; and with {p} > 0 the "
    "key [2] i32 of dropout";

}  // namespace

Attention attention(std::span<const Value> sources, const AttentionPlaces& places,
                    const AttentionOptions& o) {
  std::vector<Value> in(sources.begin(), sources.end());
  for (const auto& extra : {o.position, o.mask, o.lengths, o.starts, o.blocks})
    if (extra) in.push_back(*extra);
  if (o.p > 0) {
    BRRR_CHECK(o.key.has_value(), "attention: dropout needs a key");
    in.push_back(*o.key);
  }
  Attrs attrs{{"causal", o.causal},
              {"heads", places.heads},
              {"kv_heads", places.kv_heads},
              {"lengths", o.lengths.has_value()},
              {"mask", o.mask.has_value()},
              {"masked", o.masked},
              {"p", o.p},
              {"position", o.position.has_value()},
              {"scale", o.scale},
              {"stream", o.stream},
              {"value_width", places.value_width},
              {"width", places.width},
              {"window", o.window},
              {"y_in_rows", places.y_in_rows}};
  if (o.window_after) attrs.set("window_after", *o.window_after);
  if (o.starts) attrs.set("starts", true);
  if (o.starts && o.longest > 0) attrs.set("longest", o.longest);
  if (o.mask_by_distance) attrs.set("mask_by_distance", true);
  if (o.blocks) attrs.set("block_rows", o.block_rows);
  size_t which = 0;
  for (const HeadPlace& place : {places.q, places.k, places.v})
    set_place(attrs, which++, static_cast<size_t>(place.source), place.column, place.in_rows);
  const auto out = call(Op::attention, in, attrs);
  return {out[0], out[1]};
}

Attention attention(Value q, Value k, Value v, const AttentionOptions& o) {
  const bool no_heads = q.shape().rank() == 2;
  AttentionPlaces places;
  places.heads = no_heads ? 1 : q.shape().size(-3);
  places.kv_heads = no_heads || k.shape().rank() < 3 ? 1 : k.shape().size(-3);
  places.width = q.shape().size(-1);
  places.value_width = v.shape().size(-1);
  places.q = {0, 0, no_heads};
  places.k = {1, 0, no_heads};
  places.v = {2, 0, no_heads};
  places.y_in_rows = no_heads;
  Attention out = attention(std::vector<Value>{q, k, v}, places, o);
  if (no_heads) out.lse = reshape(out.lse, {q.shape()[0]});
  return out;
}

namespace ops {

std::vector<OpDef> attention_ops() {
  std::vector<OpDef> list;
  {
    OpDef d;
    d.name = "attention";
    d.is_attention = true;
    d.doc =
        std::string(
            "s = {scale} q kᵀ, then: where a bool mask is false {masked}, or plus the added mask; "
            "-inf unless key <= query + position ({causal}), key <= query + position + "
            "{window_after} (where it is given, which {causal} excludes), key > query + position - "
            "{window} (where it is not 0) and key < length. lse = log sum e^s over S, y = "
            "dropout(e^(s - "
            "lse)) v, where dropout takes element i of the [..., H, T, S] probabilities as the op "
            "dropout does. A query that sees no key gives NaN, as softmax does, and where "
            "{guarded} is given and true no gradient. ") +
        kPlacesDoc + "Sources of k and v alone may lie in int8 rows, with a scale for each head. " +
        kOperandsDoc +
        ". y: [..., T, H Dv] where {y_in_rows}, else [..., H, T, Dv]; lse: [..., H, T] f32 (f64 of "
        "f64); sums and statistics in f32 or wider";
    d.op_class = OpClass::contraction;
    d.stored_operands = 0b110;
    d.autocast = Autocast::low;
    d.autocast_operands_of = [](const Attrs& attrs) {  // sources; a mask keeps its digits
      int64_t last = 0;
      for (const char* name : {"q", "k", "v"})
        last = std::max(last, attrs.get<std::vector<int64_t>>(name)[0]);
      return (2u << static_cast<uint32_t>(last)) - 1;
    };
    d.infer = [](const InferContext& c) {
      const AttentionForm form = checked_attention(c, false);
      return std::vector<Type>{y_type(form), lse_type(form)};
    };
    d.decompose = forward;
    d.vjp = vjp;
    d.cost = [](const Node& n, std::span<const Type> in) { return cost_of_attention(n, in, 1, 1); };
    d.samples = [] { return attention_samples(false); };
    list.push_back(std::move(d));
  }
  {
    OpDef d;
    d.name = "attention_grad";
    d.is_attention = d.is_gradient = true;
    d.doc =
        std::string(
            "With s as in attention, p = e^(s - lse), g = dropout(dy vᵀ) and delta = sum_Dv(dy y) "
            "- dlse: ds = p (g - delta), 0 where a bool mask is false; dq = {scale} ds k, dk = "
            "{scale} dsᵀ q, dv = dropout(p)ᵀ dy, the last two summed over the query heads that "
            "share a head. One gradient for each source, of its shape; q, k and v must share out "
            "all columns of every source. ") +
        kPlacesDoc + "Behind the sources y, lse and dy, as attention gives them. " + kOperandsDoc +
        ", and {dlse} [..., H, T]; sums in f32 or wider";
    d.op_class = OpClass::contraction;
    d.autocast = Autocast::low;
    d.infer = [](const InferContext& c) {
      const AttentionForm form = checked_attention(c, true);
      for (size_t i : {form.y, form.dy})
        if (c.in[i] != y_type(form))
          c.fail("y and dy must be {}; got {}", y_type(form).str(), c.in[i].str());
      for (size_t i : {form.lse, form.dlse.value_or(form.lse)})
        if (c.in[i] != lse_type(form))
          c.fail("lse and dlse must be {}; got {}", lse_type(form).str(), c.in[i].str());
      std::vector<Type> grads;
      for (size_t i = 0; i < form.sources; ++i) {
        if (!form.partition(i))
          c.fail("q, k and v must share out the columns of {}: source {}", c.in[i].str(), i);
        grads.push_back(c.in[i]);
      }
      return grads;
    };
    d.decompose = backward;
    d.cost = [](const Node& n, std::span<const Type> in) { return cost_of_attention(n, in, 3, 2); };
    d.samples = [] { return attention_samples(true); };
    list.push_back(std::move(d));
  }
  return list;
}

}  // namespace ops
}  // namespace brrr
