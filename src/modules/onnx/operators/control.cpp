// Operators that run graphs: If, Loop and Scan. Where the sizes allow it, a graph becomes the
// region of an `if` or a `loop`; otherwise it is lowered in place, a loop once for each iteration.

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "ir/rewriter.h"
#include "modules/onnx/call.h"
#include "modules/onnx/operators/kept_items.h"
#include "modules/onnx/operators/loop_pieces.h"
#include "ops/control.h"

namespace brrr::onnx {
namespace {

using RegionParts = Lowering::RegionParts;

constexpr int64_t kMostUnrolled = 10'000;        // iterations that are lowered one by one
constexpr int64_t kMostOpen = int64_t{1} << 20;  // iterations of a loop that gives no number
constexpr int64_t kMostStated = std::numeric_limits<int32_t>::max();  // and of one that does
constexpr int64_t kMostStacked = int64_t{1} << 28;  // bytes of rows, where only some may be used

Region region_of(RegionParts& parts, const std::vector<Value>& outputs) {
  Graph& graph = parts.build->graph;
  for (size_t i = 0; i < outputs.size(); ++i) graph.output(std::to_string(i), outputs[i]);
  return Region(drop_dead(std::move(graph)));
}

std::vector<Type> types_of(const std::vector<Value>& values) {
  std::vector<Type> types;
  for (const Value& v : values) types.push_back(v.type());
  return types;
}

Value tensor_of(Call& c, const Item& item, const char* what) {
  if (!item.is_tensor()) c.fail("{} must be a tensor", what);
  return item.value;
}

Value as_condition(Call& c, Value v) {
  if (v.dtype() != DType::boolean || v.shape().elements() != 1)
    c.fail("a condition must be bool[]; got {}", v.type().str());
  return v.shape().rank() == 0 ? v : reshape(v, {});
}

// -- If
// ------------------------------------------------------------------------------------------------

/// Both branches as regions; false where their results have different types, or a branch needs
/// values that are not known.
bool lower_both(Call& c, const std::string& part) {
  Lowering& l = c.lowering();
  auto then = l.lower_region(c.subgraph("then_branch"), c.names(), part + ".then", {});
  if (!then) return false;
  auto otherwise =
      l.lower_region(c.subgraph("else_branch"), c.names(), part + ".else", {}, {}, then->captured);
  if (!otherwise || types_of(then->outputs) != types_of(otherwise->outputs)) return false;
  Lowering::capture_also(*then, otherwise->captured);
  const std::vector<Value> results =
      branch(as_condition(c, c.in(0)), region_of(*then, then->outputs),
             region_of(*otherwise, otherwise->outputs), otherwise->captured);
  for (size_t i = 0; i < results.size(); ++i) c.out(i, results[i]);
  return true;
}

void if_branches(Call& c) {
  as_condition(c, c.in(0));
  const std::string part = part_of(c);
  const RefTensor* condition = c.known_or_null(0);
  if (condition == nullptr) {
    if (lower_both(c, part)) return;
    condition = &c.known(0);
  }
  const bool is_true = condition->number(0) != 0;
  const GraphProto& taken = c.subgraph(is_true ? "then_branch" : "else_branch");
  const std::vector<Item> items =
      c.lowering().lower_in_place(taken, c.names(), part + (is_true ? ".then" : ".else"), {});
  for (size_t i = 0; i < items.size(); ++i) c.out(i, items[i]);
}

// -- loops
// -----------------------------------------------------------------------------------------

/// What Loop and Scan share. The body of a Loop takes (iteration, condition, carried...) and gives
/// (condition, carried..., rows...); that of a Scan takes (carried..., rows...) and gives
/// (carried..., rows...).
struct Iteration {
  const GraphProto& body;
  bool is_loop = true;
  std::vector<Item> carried;
  size_t stacked = 0;           // results that have a row of each iteration
  std::string part;             // tells the node apart, and what is lowered for it
  std::optional<int64_t> most;  // iterations, where that is known
  int64_t begin = 0;            // iterations that earlier graphs have run
  /// The rows that an iteration of a Scan reads.
  std::function<std::vector<Value>(Value iteration)> rows;

  size_t given() const { return (is_loop ? 2 : 0) + carried.size(); }
  size_t first_result() const { return is_loop ? 1 : 0; }
};

/// How far a loop is that is unrolled. All of it is kept under names with the number of the
/// iteration, so that a graph that ends inside goes on from there.
class Rounds {
 public:
  Rounds(Call& c, const Iteration& loop) : kept_(c, loop.part) {
    if (const Item* done = kept_.find("done")) {
      done_ = kept_.lowering().known_or_null(done->value)->integer<int64_t>(0);
      for (size_t i = 0; i < loop.carried.size(); ++i) carried_.push_back(again("carried", i));
      for (size_t i = 0; i < loop.stacked; ++i) stacks_.push_back(again("stack", i));
      if (loop.is_loop) condition_ = again("condition", 0);
    } else {
      carried_ = loop.carried;
      stacks_.resize(loop.stacked, Item::list({}));
      if (loop.is_loop) condition_ = c.has(1) ? c.in(1) : c.scalar(true, DType::boolean);
    }
  }

  int64_t done() const { return done_; }
  const Item& carried(size_t i) const { return carried_[i]; }
  std::vector<Item>& stack(size_t i) { return stacks_[i].items; }
  /// Makes all of it outlast the end of the graph; `release` takes it back.
  void keep(const std::vector<Value>& rows) {
    kept_.keep("done", done_);
    for (size_t i = 0; i < carried_.size(); ++i) kept_.keep("carried", done_, i, carried_[i]);
    for (size_t i = 0; i < stacks_.size(); ++i)
      kept_.keep("stack", done_, i, std::move(stacks_[i]));
    for (size_t i = 0; i < rows.size(); ++i) kept_.keep("row", done_, i, rows[i]);
    if (condition_.is_tensor()) kept_.keep("condition", done_, 0, condition_);
    rows_ = rows.size();
  }
  bool goes_on() const {
    if (!condition_.is_tensor()) return true;
    return kept_.lowering().known(condition_.value, source("condition", 0)).number(0) != 0;
  }
  void release() {
    kept_.take("done");
    for (size_t i = 0; i < carried_.size(); ++i) kept_.take("carried", done_, i);
    for (size_t i = 0; i < stacks_.size(); ++i) stacks_[i] = kept_.take("stack", done_, i);
    for (size_t i = 0; i < rows_; ++i) kept_.take("row", done_, i);
    if (condition_.is_tensor()) kept_.take("condition", done_, 0);
  }
  /// Its name for the body of the loop.
  std::string source(std::string_view what, size_t i) const {
    return kept_.qualified(what, done_, i);
  }
  void next(Item condition, std::vector<Item> carried) {
    ++done_;
    condition_ = std::move(condition);
    carried_ = std::move(carried);
  }

 private:
  Item again(std::string_view what, size_t i) {
    const Item* item = kept_.find(what, done_, i);
    return item == nullptr ? Item() : *item;
  }

  KeptItems kept_;
  int64_t done_ = 0;
  size_t rows_ = 0;
  std::vector<Item> carried_, stacks_;
  Item condition_;
};

/// One iteration in place: the results of the body.
std::vector<Item> lower_round(Call& c, const Iteration& loop, Rounds& rounds,
                              const std::vector<Value>& rows) {
  std::vector<Lowering::Passed> inputs;
  if (loop.is_loop) {
    inputs.push_back({c.scalar(rounds.done(), DType::i64), ""});
    inputs.push_back({c.scalar(true, DType::boolean), ""});
  }
  for (size_t i = 0; i < loop.carried.size(); ++i)
    inputs.push_back({rounds.carried(i), rounds.source("carried", i)});
  for (size_t i = 0; i < rows.size(); ++i) inputs.push_back({rows[i], rounds.source("row", i)});
  return c.lowering().lower_in_place(loop.body, c.names(),
                                     fmt::format("{}.{}", loop.part, rounds.done()), inputs);
}

/// Rows, one below the other.
Value stacked_rows(Call& c, const std::vector<Item>& rows, const ValueInfo& declared) {
  if (rows.empty()) {
    Shape shape{Dim(0)};
    if (declared.type.shape)
      for (const Dimension& d : *declared.type.shape) shape.push_back(d.size.value_or(0));
    const auto dtype = dtype_of(declared.type.element);
    if (!dtype) c.refuse("no iteration, and a result of {}", onnx::name_of(declared.type.element));
    return full(c.graph(), shape, 0, *dtype);
  }
  std::vector<Value> parts;
  for (const Item& row : rows) {
    const Value value = tensor_of(c, row, "a result that has a row of each iteration");
    Shape shape = value.shape();
    shape.insert(0, Dim(1));
    parts.push_back(reshape(value, shape));
    if (parts.back().type() != parts.front().type())
      c.fail("the rows of a result must have one shape; got {} and then {}",
             rows[0].value.type().str(), value.type().str());
  }
  return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

/// The carried values and then the stacked rows, from as many copies of the body as there are
/// iterations.
std::vector<Item> unroll(Call& c, const Iteration& loop) {
  Rounds rounds(c, loop);
  for (;;) {
    if (loop.most && rounds.done() >= *loop.most) break;
    std::vector<Value> rows;
    if (loop.rows) rows = loop.rows(c.scalar(rounds.done(), DType::i64));
    rounds.keep(rows);
    const bool goes_on = rounds.goes_on();
    if (goes_on && rounds.done() >= kMostUnrolled)
      c.fail(
          "the loop has more than {} iterations, and its body is lowered for each because sizes "
          "in it depend on the iteration or on data",
          kMostUnrolled);
    std::vector<Item> results;
    if (goes_on) results = lower_round(c, loop, rounds, rows);
    rounds.release();
    if (!goes_on) break;
    if (results.size() != loop.first_result() + loop.carried.size() + loop.stacked)
      c.fail("the body gives {} results", results.size());
    const auto first = results.begin() + static_cast<int64_t>(loop.first_result());
    const auto rows_from = first + std::ssize(loop.carried);
    for (size_t i = 0; i < loop.stacked; ++i)
      rounds.stack(i).push_back(rows_from[static_cast<int64_t>(i)]);
    Item condition;
    if (loop.is_loop) condition = as_condition(c, tensor_of(c, results[0], "the condition"));
    rounds.next(condition, {first, rows_from});
  }
  std::vector<Item> all;
  for (size_t i = 0; i < loop.carried.size(); ++i) all.push_back(rounds.carried(i));
  for (size_t i = 0; i < loop.stacked; ++i)
    all.emplace_back(stacked_rows(
        c, rounds.stack(i), loop.body.outputs[loop.first_result() + loop.carried.size() + i]));
  return all;
}

/// The body as a region that takes (iteration, carried..., captured...). Nothing where the carried
/// values change their types, or a size depends on data.
std::optional<RegionParts> lower_body(Call& c, const Iteration& loop) {
  std::vector<Type> types{{DType::i32, {}}};
  for (const Item& item : loop.carried) {
    if (!item.is_tensor()) return std::nullopt;
    types.push_back(item.value.type());
  }
  const auto inputs = [&](const std::vector<Value>& given) {
    std::vector<Item> items;
    if (loop.is_loop) {
      const Value iteration = cast(given[0], DType::i64);
      items.emplace_back(loop.begin == 0
                             ? iteration
                             : iteration + scalar(*given[0].graph, loop.begin, DType::i64));
      items.emplace_back(scalar(*given[0].graph, true, DType::boolean));
    }
    items.insert(items.end(), given.begin() + 1, given.end());
    if (loop.rows)
      for (const Value& row : loop.rows(given[0])) items.emplace_back(row);
    return items;
  };
  auto parts = c.lowering().lower_region(loop.body, c.names(), loop.part, types, inputs);
  if (!parts) return std::nullopt;
  if (parts->outputs.size() != loop.first_result() + loop.carried.size() + loop.stacked)
    c.fail("the body gives {} results", parts->outputs.size());
  for (size_t i = 0; i < loop.carried.size(); ++i)
    if (parts->outputs[loop.first_result() + i].type() != types[1 + i]) return std::nullopt;
  return parts;
}

std::vector<Value> values_of(const std::vector<Item>& items) {
  std::vector<Value> values;
  for (const Item& item : items) values.push_back(item.value);
  return values;
}

/// A loop op that runs exactly `count` times.
std::vector<Item> counted_loop(Call& c, const Iteration& loop, RegionParts& parts, int64_t count) {
  std::vector<Value> outputs{scalar(parts.build->graph, true, DType::boolean)};
  outputs.insert(outputs.end(), parts.outputs.begin() + static_cast<int64_t>(loop.first_result()),
                 parts.outputs.end());
  const std::vector<Value> carried = values_of(loop.carried);
  const LoopResults r = brrr::loop(c.scalar(true, DType::boolean), region_of(parts, outputs),
                                   carried, parts.captured, {.bound = count});
  std::vector<Item> all(r.carried.begin(), r.carried.end());
  all.insert(all.end(), r.stacked.begin(), r.stacked.end());
  return all;
}

void out_all(Call& c, const std::vector<Item>& items) {
  for (size_t i = 0; i < items.size(); ++i) c.out(i, items[i]);
}

// -- Loop
// ------------------------------------------------------------------------------------------

/// The next piece; nothing where one row is too large.
std::optional<std::vector<Item>> open_loop_with_rows(const Iteration& loop, RegionParts& parts,
                                                     Value first, LoopPieces& pieces) {
  std::vector<Value> outputs = parts.outputs;
  outputs.push_back(outputs[0]);
  int64_t row = 0;
  for (size_t i = 1 + loop.carried.size(); i < outputs.size(); ++i)
    row += outputs[i].type().bytes();
  const int64_t room = kMostStacked / row, most = loop.most.value_or(kMostOpen);
  if (room < 1) return std::nullopt;
  // A loop whose rows fit all at once is one piece.
  const int64_t left = most - pieces.done();
  const int64_t bound = loop.most && left <= std::min(room, kMostOpen)
                            ? left
                            : std::min({pieces.length(), room, left});
  const LoopResults r = brrr::loop(first, region_of(parts, outputs), values_of(loop.carried),
                                   parts.captured, {.bound = bound, .fails_at_bound = false});
  pieces.add(r, bound);
  return pieces.results();
}

/// A loop that its condition may end, or a number of iterations that depends on data.
std::optional<std::vector<Item>> open_loop(Call& c, const Iteration& loop, RegionParts& parts,
                                           LoopPieces& pieces) {
  parts.outputs[0] = as_condition(c, parts.outputs[0]);
  Value first =
      c.has(1) && !pieces.has_begun() ? as_condition(c, c.in(1)) : c.scalar(true, DType::boolean);
  if (loop.stacked > 0) return open_loop_with_rows(loop, parts, first, pieces);
  LoopEnd end{.bound = kMostOpen, .fails_at_bound = true};
  if (loop.most && *loop.most <= kMostStated) end = {.bound = *loop.most, .fails_at_bound = false};
  std::vector<Value> outputs = parts.outputs;
  if (c.has(0) && !loop.most) {
    const Value limit = reshape(c.in(0), {});
    Graph& body = parts.build->graph;
    const Value inside = body.input(fmt::format("a{}", body.inputs().size()), Type(limit.type()));
    parts.captured.push_back(limit);
    const Value iteration = cast(body.value(body.inputs()[0]), DType::i64);
    outputs[0] = logical_and(outputs[0], less(iteration + scalar(body, 1, DType::i64), inside));
    first = logical_and(first, less(c.scalar(0, DType::i64), limit));
  }
  const std::vector<Value> carried = values_of(loop.carried);
  const LoopResults r = brrr::loop(first, region_of(parts, outputs), carried, parts.captured, end);
  return std::vector<Item>(r.carried.begin(), r.carried.end());
}

/// The loop as an op; nothing where it must be unrolled.
std::optional<std::vector<Item>> regular_loop(Call& c, const Iteration& loop, LoopPieces& pieces) {
  std::optional<RegionParts> parts = lower_body(c, loop);
  if (!parts) return std::nullopt;
  const RefTensor* first = c.has(1) ? c.known_or_null(1) : nullptr;
  as_condition(c, parts->outputs[0]);
  const RefTensor* next = c.lowering().known_or_null(*parts->build, parts->outputs[0]);
  const bool starts = !c.has(1) || (first != nullptr && first->number(0) != 0);
  const bool goes_on = next != nullptr && next->number(0) != 0;
  if (!starts || !goes_on) return open_loop(c, loop, *parts, pieces);
  if (!c.has(0)) c.fail("neither a number of iterations nor a condition ends it");
  if (!loop.most) return open_loop(c, loop, *parts, pieces);
  if (*loop.most > kMostStated) c.fail("{} iterations, which no condition ends", *loop.most);
  return counted_loop(c, loop, *parts, *loop.most);
}

void loop_body(Call& c) {
  const GraphProto& body = c.subgraph("body");
  if (c.has(0) && (c.in(0).dtype() != DType::i64 || c.in(0).shape().elements() != 1))
    c.fail("the number of iterations must be i64[]; got {}", c.in(0).type().str());
  if (c.has(1)) as_condition(c, c.in(1));
  Iteration loop{.body = body, .carried = {}, .part = part_of(c), .most = {}, .rows = {}};
  for (size_t i = 2; i < c.inputs(); ++i) loop.carried.push_back(c.item(i));
  if (body.outputs.size() < 1 + loop.carried.size())
    c.fail("the body must give a condition and {} values; it gives {}", loop.carried.size(),
           body.outputs.size());
  if (body.inputs.size() != loop.given())
    c.fail("the body must take {} inputs; it takes {}", loop.given(), body.inputs.size());
  loop.stacked = body.outputs.size() - 1 - loop.carried.size();
  const auto limit_known = [&] {
    if (c.has(0)) loop.most = std::max<int64_t>(0, c.known(0).integer<int64_t>(0));
  };
  // How many rows there are decides a size.
  if (loop.stacked > 0 || (c.has(0) && c.known_or_null(0) != nullptr)) limit_known();
  if (loop.most == 0) return out_all(c, unroll(c, loop));
  LoopPieces pieces(c, loop.part, loop.carried, loop.stacked);
  std::optional<std::vector<Item>> results;
  if (pieces.has_begun()) results = pieces.results();
  while (!pieces.has_begun() || pieces.goes_on()) {
    if (loop.most && pieces.done() >= *loop.most) break;
    const bool is_stated = loop.most && *loop.most <= kMostStated;
    if (!is_stated && pieces.done() >= kMostOpen)
      c.fail(
          "its condition still holds after {} iterations; a loop that needs more must say as its "
          "first operand how many there are at most, up to {}",
          pieces.done(), kMostStated);
    loop.carried = pieces.carried();
    loop.begin = pieces.done();
    results = regular_loop(c, loop, pieces);
    BRRR_CHECK(results || !pieces.has_begun(), "a loop that began in pieces must end in them");
    if (!results || !pieces.has_begun()) break;
  }
  if (results) return out_all(c, *results);
  limit_known();
  out_all(c, unroll(c, loop));
}

// -- Scan
// ------------------------------------------------------------------------------------------

/// An attribute of a Scan that has a number for each of its inputs or outputs.
std::vector<int64_t> each(const Call& c, std::string_view name, size_t count) {
  std::vector<int64_t> list = c.integer_list(name).value_or(std::vector<int64_t>(count, 0));
  if (list.size() != count) c.fail("{} has {} numbers for {} tensors", name, list.size(), count);
  return list;
}

/// Element `iteration` of an axis, or that many before the last.
Value row_of(Value x, Value iteration, int axis, bool backwards) {
  const int64_t last = x.shape().size(axis) - 1;
  if (backwards) iteration = scalar(*iteration.graph, last, iteration.dtype()) - iteration;
  return gather(x, iteration, axis);
}

/// Rows [N, ...] with the axis of the iteration elsewhere, and in the other order.
Value placed_rows(Call& c, Value rows, int64_t axis, bool backwards) {
  const int64_t n = rows.shape().size(0);
  if (backwards)
    rows = gather(rows, c.scalar(n - 1, DType::i64) - iota(c.graph(), {n}, 0, DType::i64), 0);
  axis = c.axis(axis, rows.shape().rank());
  if (axis == 0) return rows;
  std::vector<int64_t> permutation;
  for (int64_t a = 1; a < rows.shape().rank(); ++a) permutation.push_back(a);
  permutation.insert(permutation.begin() + axis, 0);
  return transpose(rows, permutation);
}

struct Scanned {
  std::vector<Value> states, inputs;
  std::vector<int64_t> axes, backwards;
  std::string part;
};

std::vector<Item> scan_rows(Call& c, const Scanned& scan) {
  const GraphProto& body = c.subgraph("body");
  if (scan.inputs.empty()) c.fail("it scans no tensor");
  if (body.outputs.size() < scan.states.size() ||
      body.inputs.size() != scan.states.size() + scan.inputs.size())
    c.fail("the body must take and give {} states; it takes {} inputs for {} tensors to scan",
           scan.states.size(), body.inputs.size(), scan.inputs.size());
  std::vector<int> axes;
  for (size_t i = 0; i < scan.inputs.size(); ++i)
    axes.push_back(static_cast<int>(c.axis(scan.axes[i], scan.inputs[i].shape().rank())));
  const int64_t n = scan.inputs[0].shape().size(axes[0]);
  for (size_t i = 0; i < axes.size(); ++i)
    if (scan.inputs[i].shape().size(axes[i]) != n)
      c.fail("the tensors to scan must have as many elements; got {} and {}", n,
             scan.inputs[i].shape().size(axes[i]));
  Iteration loop{.body = body,
                 .is_loop = false,
                 .carried = {scan.states.begin(), scan.states.end()},
                 .stacked = body.outputs.size() - scan.states.size(),
                 .part = scan.part,
                 .most = n,
                 .rows = {}};
  loop.rows = [&](Value iteration) {
    std::vector<Value> rows;
    for (size_t i = 0; i < scan.inputs.size(); ++i)
      rows.push_back(row_of(c.lowering().captured(scan.inputs[i]), iteration, axes[i],
                            scan.backwards[i] != 0));
    return rows;
  };
  if (n > 0)
    if (auto parts = lower_body(c, loop)) return counted_loop(c, loop, *parts, n);
  return unroll(c, loop);
}

void scan_body(Call& c) {
  const auto scanned = static_cast<size_t>(c.integer("num_scan_inputs"));
  if (scanned > c.inputs()) c.fail("{} of {} inputs are scanned", scanned, c.inputs());
  const size_t states = c.inputs() - scanned;
  Scanned scan{.states = {},
               .inputs = {},
               .axes = each(c, "scan_input_axes", scanned),
               .backwards = each(c, "scan_input_directions", scanned),
               .part = part_of(c)};
  for (size_t i = 0; i < c.inputs(); ++i)
    (i < states ? scan.states : scan.inputs).push_back(c.in(i));
  std::vector<Item> all = scan_rows(c, scan);
  const size_t stacked = all.size() - states;
  const std::vector<int64_t> axes = each(c, "scan_output_axes", stacked),
                             backwards = each(c, "scan_output_directions", stacked);
  for (size_t i = 0; i < stacked; ++i)
    all[states + i] = placed_rows(c, all[states + i].value, axes[i], backwards[i] != 0);
  out_all(c, all);
}

/// Version 8: [batch, sequence, ...], and how long each sequence is.
void batched_scan(Call& c) {
  if (c.has(0)) c.refuse("lengths of sequences (sequence_lens) of version 8");
  const auto scanned = static_cast<size_t>(c.integer("num_scan_inputs"));
  if (scanned == 0 || scanned + 1 > c.inputs())
    c.fail("{} of {} inputs are scanned", scanned, c.inputs());
  const size_t states = c.inputs() - 1 - scanned;
  for (size_t i = 1; i < c.inputs(); ++i)
    if (c.in(i).shape().rank() == 0) c.fail("input {} has no axis of the batch", i);
  const int64_t batch = c.in(states + 1).shape().size(0);
  std::vector<std::vector<Item>> results;  // by place, of each batch
  for (int64_t b = 0; b < batch; ++b) {
    Scanned scan{.states = {},
                 .inputs = {},
                 .axes = std::vector<int64_t>(scanned, 0),
                 .backwards = each(c, "directions", scanned),
                 .part = fmt::format("{}.{}", part_of(c), b)};
    for (size_t i = 0; i + 1 < c.inputs(); ++i)
      (i < states ? scan.states : scan.inputs)
          .push_back(gather(c.in(i + 1), c.scalar(b, DType::i64), 0));
    const std::vector<Item> all = scan_rows(c, scan);
    results.resize(all.size());
    for (size_t i = 0; i < all.size(); ++i) results[i].push_back(all[i]);
  }
  for (size_t i = 0; i < results.size(); ++i)
    c.out(i, stacked_rows(c, results[i], c.subgraph("body").outputs[i]));
}

const OperatorRow kControlRows[] = {
    {"", "If", if_branches},
    {"", "Loop", loop_body},
    {"", "Scan", batched_scan},
    {"", "Scan", scan_body, 9},
};

}  // namespace

std::span<const OperatorRow> control_operators() { return kControlRows; }

}  // namespace brrr::onnx
