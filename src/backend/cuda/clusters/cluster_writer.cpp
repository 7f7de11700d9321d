#include "backend/cuda/clusters/cluster_writer.h"

#include <algorithm>

#include "backend/cuda/text.h"
#include "base/errors.h"
#include "base/integers.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

// Of what a block turns, where there is a transposed copy.
constexpr int64_t kTileRows = 128, kTileColumns = 64;

/// Threads that share a row: at most 24 elements of it for each, as long as a block is large
/// enough.
int64_t threads_of_row(int64_t width) {
  for (int64_t threads : {32, 64, 128, 256})
    if (width <= threads * 24) return threads;
  return width <= 8192 ? 512 : 1024;
}

std::string rounding(DType t, const std::string& x) {
  if (t == DType::bf16 || t == DType::f16 || (is_integer(t) && bytes_of(t) < 4) || is_fp8(t))
    return fmt::format("rounded<{}>({})", stored_type(t), x);
  return x;
}

}  // namespace

ClusterWriter::ClusterWriter(const Cluster& cluster, const GpuDescription& gpu)
    : c_(cluster), body_(cluster.body), gpu_(gpu), s_(cluster.body) {
  BRRR_CHECK(s_.refusal.empty(), "{}: {}", cluster.name, s_.refusal);
  for (NodeId id : body_.inputs()) inputs_.push_back(body_.type({id, 0}));
  for (const Output& o : body_.outputs())
    result_types_.emplace_back(stored_type(body_.type(o.value).dtype));
  at_ = s_.width == 0 ? element_layout() : row_layout();
}

// -- layouts

ClusterWriter::Layout ClusterWriter::element_layout() const {
  Layout at;
  size_t least = 8;
  bool draws = false;
  for (const Node& node : body_.nodes()) {
    for (const Type& t : node.results)
      if (t.shape.elements() == s_.elements) least = std::min(least, bytes_of(t.dtype));
    draws |= is(node, Op::dropout, Op::random_bits);
  }
  at.vector = draws || least < 4 ? 8 : 4;
  at.exact = s_.elements % at.vector == 0;
  at.blocks = ceil_div(s_.elements, at.vector * at.threads);
  // The largest of all is that of the blocks' largest: few blocks, many elements for each.
  if (!s_.scales.empty()) at.blocks = std::min<int64_t>(at.blocks, 8 * gpu_.multiprocessors);
  return at;
}

ClusterWriter::Layout ClusterWriter::row_layout() const {
  Layout at;
  const int64_t c = s_.width;
  at.vector = c % 8 == 0 ? 8 : c % 4 == 0 ? 4 : c % 2 == 0 ? 2 : 1;
  if (!s_.transposed.empty()) {
    at.tile = kTileColumns;
    at.threads = kTileColumns / at.vector;
    at.groups = 256 / at.threads;
    at.block_rows = kTileRows;
    at.blocks = ceil_div(s_.rows, kTileRows);
    at.exact = c % kTileColumns == 0;
    return at;
  }
  const int64_t row_threads = threads_of_row(c);
  at.groups = row_threads == 32 ? 8 : 1;
  const int64_t block = row_threads * at.groups;
  at.block_rows = at.groups;
  if (!s_.sums.empty() || !s_.scales.empty() ||
      std::any_of(s_.row_ops.begin(), s_.row_ops.end(), [&](NodeId id) {
        return is(body_.node(id), Op::layer_norm_grad, Op::rms_norm_grad);
      })) {
    const int64_t wanted = gpu_.multiprocessors * std::max<int64_t>(1, 512 / block);
    at.block_rows = round_up(ceil_div(s_.rows, wanted), at.groups);
  }
  at.blocks = ceil_div(s_.rows, at.block_rows);
  at.threads = row_threads;
  if (s_.row_ops.empty()) {  // nothing is summed along a row: columns may be split
    at.threads = at.groups == 8 ? 32 : 128;
    at.tile = at.threads * at.vector;
    at.exact = c % at.tile == 0;
    return at;
  }
  at.chunks = ceil_div(c, at.threads * at.vector);
  at.exact = c == at.chunks * at.threads * at.vector;
  return at;
}

// -- values

std::vector<uint32_t> ClusterWriter::results_of(ValueId v) const {
  std::vector<uint32_t> list;
  for (uint32_t r = 0; r < body_.outputs().size(); ++r) {
    const auto& at = s_.place(body_.outputs()[r].value);
    if (at.kind == ClusterSurvey::Place::computed && at.value == v) list.push_back(r);
  }
  return list;
}

std::string ClusterWriter::read(uint32_t operand, const Shape& view, const Shape& out, int phase,
                                bool hold) {
  if (inputs_[operand].shape.elements() == 1) {
    uniform_[operand] = fmt::format("s{}", operand);
    return uniform_[operand];
  }
  const Access access(view, out);
  size_t k = 0;
  while (k < reads_.size() && !(reads_[k].operand == operand && reads_[k].access == access)) ++k;
  if (k == reads_.size()) reads_.push_back({operand, access, {}, false});
  Read& r = reads_[k];
  r.phases.insert(phase);
  if (hold) r.phases.insert(phase + 1);
  r.held = (r.held || hold || access.is_dense()) && r.phases.size() > 1;
  if (r.held && phase != *r.phases.begin()) return fmt::format("h{}[j]", k);
  const bool single = access.is_repeated(at_.vector) && !access.is_dense();
  return fmt::format("x{}{}", k, single ? "" : "[e]");
}

/// `hold`: it is needed in the next phase, too.
std::string ClusterWriter::value(ValueId v, const Shape& out, int phase, bool hold) {
  const auto& at = s_.place(v);
  switch (at.kind) {
    case ClusterSurvey::Place::constant:
      return at.literal;
    case ClusterSurvey::Place::operand:
      return read(at.number, at.view, out, phase, hold);
    case ClusterSurvey::Place::computed: {
      const NodeId id = at.value.node;
      last_use_[id] = std::max(last_use_[id], hold ? phase + 1 : phase);
      return s_.phase[id] == phase ? fmt::format("v{}", id) : fmt::format("t{}[j]", id);
    }
    case ClusterSurvey::Place::nowhere:
      break;
  }
  BRRR_CHECK(false, "a value is lost");
  return "";
}

/// An array of drawn bits.
std::string ClusterWriter::bits(const Node& node, int phase) {
  const uint32_t key = s_.place(node.operands.back()).number;
  // An argument, not part of the text: the layers of a model differ in it alone.
  const int64_t stream = node.attrs.get<int64_t>("stream");
  auto at = std::find(streams_.begin(), streams_.end(), stream);
  if (at == streams_.end()) at = streams_.insert(at, stream);
  const auto number = at - streams_.begin();
  const std::string name = fmt::format("r{}_{}", key, number);
  if (text_[static_cast<size_t>(phase)].seen.insert(name).second)
    text_[static_cast<size_t>(phase)].loads += fmt::format(
        "int {0}[{1}];\ndraw({0}, a{2}, stream{3}, i);\n", name, at_.vector, key, number);
  return name + "[e]";
}

/// Whether a node of the body other than a transpose reads it.
bool ClusterWriter::is_computed_with(NodeId id) const {
  return std::any_of(body_.nodes().begin(), body_.nodes().end(), [&](const Node& reader) {
    return !is(reader, Op::transpose) &&
           std::any_of(reader.operands.begin(), reader.operands.end(),
                       [&](const ValueId& v) { return v.node == id; });
  });
}

std::string ClusterWriter::iota(const Node& node) const {
  const Shape& s = node.results[0].shape;
  const auto axis = static_cast<int>(node.attrs.get<int64_t>("axis"));
  int64_t inner = 1;
  for (int a = axis + 1; a < s.rank(); ++a) inner *= s.size(a);
  return fmt::format("static_cast<{}>((i + e) / {}u % {}u)", work_type(node.results[0].dtype),
                     inner, s.size(axis));
}

// -- nodes

void ClusterWriter::write_result(size_t index, const std::string& v, int phase) {
  PhaseText& text = text_[static_cast<size_t>(phase)];
  const DType dtype = body_.type(body_.outputs()[index].value).dtype;
  text.loads += fmt::format("{} o{}[{}];\n", work_type(dtype), index, at_.vector);
  text.lines += fmt::format("o{}[e] = {};\n", index, v);
  text.stores += at_.exact || s_.width > 0 ? fmt::format("store(y{0} + i, o{0});\n", index)
                                           : fmt::format("store_some(y{0} + i, o{0}, n);\n", index);
}

void ClusterWriter::write_results(NodeId id) {
  const int phase = s_.phase[id];
  if (last_use_[id] > phase) {
    arrays_.push_back(fmt::format("{} t{}[{}];", work_type(body_.node(id).results[0].dtype), id,
                                  at_.chunks * at_.vector));
    text_[static_cast<size_t>(phase)].lines += fmt::format("t{0}[j] = v{0};\n", id);
  }
  for (uint32_t r : results_of({id, 0})) write_result(r, fmt::format("v{}", id), phase);
}

void ClusterWriter::write_node(NodeId id) {
  const Node& node = body_.node(id);
  const Op op = node.op->id;
  if (s_.place({id, 0}).kind != ClusterSurvey::Place::computed || op == Op::reshape ||
      op == Op::broadcast_to || op == Op::after)
    return;
  if (node.op->row_operands > 0) return write_row_op(id);
  if (op == Op::sum) return write_sum(id);
  if (op == Op::quantize_scale) return write_scale(id);
  if (op == Op::transpose) return write_transposed(id);
  const int phase = s_.phase[id];
  const DType dtype = node.results[0].dtype;
  const Shape& shape = node.results[0].shape;
  std::string expression;
  if (op == Op::random_bits) {
    expression = bits(node, phase);
  } else if (op == Op::iota) {
    expression = iota(node);
  } else if (op == Op::dropout) {
    const std::string x = value(node.operands[0], shape, phase);
    expression = dropout_expression(node, x, bits(node, phase));
  } else {
    std::vector<std::string> args;
    for (const ValueId& v : node.operands) args.push_back(value(v, shape, phase));
    expression = pointwise_expression(node, body_.type(node.operands[0]).dtype, args);
  }
  // What is only stored is rounded there.
  if (!is_fp8(dtype) || is_computed_with(id)) expression = rounding(dtype, expression);
  text_[static_cast<size_t>(phase)].lines +=
      fmt::format("const {} v{} = {};\n", work_type(dtype), id, expression);
  write_results(id);
}

/// A statement for every element of the thread's part of the row.
std::string ClusterWriter::loop(const std::string& statement) const {
  return each_chunk(fmt::format(
      "#pragma unroll\nfor (int e = 0; e < {0}; ++e) {{\n  const int j = c * {0} + e;\n{1}}}\n",
      at_.vector, indented(statement, 2)));
}

std::string ClusterWriter::each_chunk(const std::string& body) const {
  const std::string column = fmt::format("{}(c * {} + lane) * {}", at_.tile > 0 ? "column + " : "",
                                         at_.threads, at_.vector);
  std::string inside = body;
  if (!at_.exact)
    inside = fmt::format("if ({} < {}) {{\n{}}}\n", column, s_.width, indented(body, 2));
  return fmt::format("#pragma unroll\nfor (int c = 0; c < {}; ++c) {{\n{}}}\n", at_.chunks,
                     indented(inside, 2));
}

std::string ClusterWriter::row_value(ValueId v) const {
  const auto& at = s_.place(v);
  if (at.kind == ClusterSurvey::Place::constant) return at.literal;
  Shape column = at.view;
  column.push_back(Dim(1));
  Shape rows{s_.rows, s_.width};
  Shape flat{column.elements(), 1};
  const Access access(column.elements() == s_.rows ? flat : column, rows);
  return fmt::format("widen(a{}[{}])", at.number, access.text("row", "0u", s_.width));
}

/// Result `port` of a row function is a sum over all rows, if anybody wants it.
void ClusterWriter::add_row_sum(NodeId id, uint32_t port, const std::string& term) {
  const auto results = results_of({id, port});
  if (results.empty()) return;
  const std::string sum = fmt::format("sum{}_{}", id, port);
  accumulators_.push_back({sum, results});
  text_[static_cast<size_t>(s_.phase[id])].lines += fmt::format("{}[j] += {};\n", sum, term);
}

void ClusterWriter::write_row_op(NodeId id) {
  const Node& node = body_.node(id);
  const Op op = node.op->id;
  const Shape& shape = body_.type(node.operands[0]).shape;
  const int after = s_.phase[id], before = after - 1;
  PhaseText& text = text_[static_cast<size_t>(before)];
  const int64_t t = at_.threads;
  auto first = [&](size_t k) { return value(node.operands[k], shape, before, true); };
  auto then = [&](size_t k) { return value(node.operands[k], shape, after); };
  auto array = [&](size_t k) {  // of the first operand, behind the phase
    const std::string x = then(k);
    return x;
  };
  std::string result;
  if (op == Op::softmax) {
    const std::string x = first(0), y = array(0);
    arrays_.push_back(fmt::format("float top{} = -BRRR_INFINITY;", id));
    arrays_.push_back(fmt::format("float e{}[{}];", id, at_.chunks * at_.vector));
    text.lines += fmt::format("top{0} = larger(top{0}, {1});\n", id, x);
    text.tail +=
        fmt::format("top{0} = fold<Larger, {1}>(top{0});\nfloat total{0} = 0.0f;\n", id, t);
    text.tail +=
        loop(fmt::format("e{0}[j] = op_exp({1} - top{0});\ntotal{0} += e{0}[j];\n", id, y));
    text.tail += fmt::format("total{0} = 1.0f / fold<Add, {1}>(total{0});\n", id, t);
    result = fmt::format("e{0}[j] * total{0}", id);
  } else if (op == Op::softmax_grad) {
    const std::string dy = first(0), y = first(1);
    arrays_.push_back(fmt::format("float dot{} = 0.0f;", id));
    text.lines += fmt::format("dot{} += {} * {};\n", id, dy, y);
    text.tail += fmt::format("dot{0} = fold<Add, {1}>(dot{0});\n", id, t);
    result = fmt::format("{2} * ({1} - dot{0})", id, then(0), then(1));
  } else if (op == Op::layer_norm || op == Op::rms_norm) {
    const bool centred = is_centred(node);
    const std::string x = first(0), y = array(0);
    if (centred) {
      arrays_.push_back(fmt::format("float mean{0} = 0.0f, rstd{0} = 0.0f;", id));
      text.lines += fmt::format("mean{} += {};\n", id, x);
      text.tail += fmt::format("mean{0} = fold<Add, {1}>(mean{0}) / {2}.0f;\n", id, t, s_.width);
      text.tail += loop(fmt::format("const float d = {1} - mean{0};\nrstd{0} += d * d;\n", id, y));
    } else {
      arrays_.push_back(fmt::format("float rstd{} = 0.0f;", id));
      text.lines += fmt::format("rstd{0} += {1} * {1};\n", id, x);
    }
    text.tail += fmt::format("rstd{0} = 1.0f / sqrtf(fold<Add, {1}>(rstd{0}) / {2}.0f + {3});\n",
                             id, t, s_.width, literal(DType::f32, node.attrs.get<double>("eps")));
    for (uint32_t port = 1; port < node.results.size(); ++port)
      for (uint32_t r : results_of({id, port}))
        text.tail += fmt::format("if (lane == 0) y{}[row] = narrow<{}>({}{});\n", r, result_type(r),
                                 centred && port == 1 ? "mean" : "rstd", id);
    result = centred ? fmt::format("({1} - mean{0}) * rstd{0} * {2} + {3}", id, then(0), then(1),
                                   then(2))
                     : fmt::format("{1} * rstd{0} * {2}", id, then(0), then(1));
  } else {
    const bool centred = is_centred(node);
    const std::string dy = first(0), x = first(1);
    const std::string weight = value(node.operands[2], shape, before);
    const std::string rstd = row_value(node.operands.back());
    const auto centre = [&](const std::string& v) {
      return centred ? fmt::format("({} - mean{})", v, id) : v;
    };
    if (centred) {
      arrays_.push_back(fmt::format("const float mean{} = {}, rstd{} = {};", id,
                                    row_value(node.operands[3]), id, rstd));
      arrays_.push_back(fmt::format("float g{0} = 0.0f, gh{0} = 0.0f;", id));
      text.lines += fmt::format("g{} += {} * {};\n", id, dy, weight);
    } else {
      arrays_.push_back(fmt::format("const float rstd{} = {};", id, rstd));
      arrays_.push_back(fmt::format("float gh{} = 0.0f;", id));
    }
    text.lines += fmt::format("gh{0} += {1} * {2} * ({3} * rstd{0});\n", id, dy, weight, centre(x));
    for (const char* sum : {"g", "gh"})
      if (centred || sum[1] != '\0')
        text.tail +=
            fmt::format("{1}{0} = fold<Add, {2}>({1}{0}) / {3}.0f;\n", id, sum, t, s_.width);
    PhaseText& next = text_[static_cast<size_t>(after)];
    next.lines += fmt::format("const float n{0} = {1} * rstd{0};\n", id, centre(then(1)));
    result = fmt::format("rstd{0} * ({1} * {2}{3} - n{0} * gh{0})", id, then(0), then(2),
                         centred ? fmt::format(" - g{}", id) : "");
    add_row_sum(id, 1, fmt::format("{} * n{}", then(0), id));
    if (centred) add_row_sum(id, 2, then(0));
  }
  const DType dtype = node.results[0].dtype;
  text_[static_cast<size_t>(after)].lines +=
      fmt::format("const float v{} = {};\n", id, rounding(dtype, result));
  write_results(id);
}

void ClusterWriter::write_sum(NodeId id) {
  const Node& node = body_.node(id);
  const std::string sum = fmt::format("sum{}", id);
  const std::string x = value(node.operands[0], body_.type(node.operands[0]).shape, s_.phase[id]);
  text_[static_cast<size_t>(s_.phase[id])].lines += fmt::format("{}[j] += {};\n", sum, x);
  accumulators_.push_back({sum, results_of({id, 0})});
}

void ClusterWriter::write_scale(NodeId id) {
  const ValueId of = body_.node(id).operands[0];
  const std::string x = value(of, body_.type(of).shape, s_.phase[id]);
  const char* some = at_.exact || s_.width > 0 ? "" : "if (e < n) ";
  text_[static_cast<size_t>(s_.phase[id])].lines += fmt::format(
      "{0}top{1} = op_maximum(top{1}, op_abs(static_cast<float>({2})));\n", some, id, x);
}

/// Into the tile, of which transposed_text() makes rows of the result.
void ClusterWriter::write_transposed(NodeId id) {
  const ValueId of = body_.node(id).operands[0];
  const std::string x = value(of, body_.type(of).shape, s_.phase[id]);
  text_[static_cast<size_t>(s_.phase[id])].lines += fmt::format(
      "tile{}[(col - column + e) * {} + static_cast<int>(row - first)] = "
      "narrow<{}>({});\n",
      id, kTileRows + 4, stored_type(body_.type(of).dtype), x);
}

std::string ClusterWriter::transposed_text() const {
  std::string all = "__syncthreads();\n";
  for (NodeId id : s_.transposed)
    for (uint32_t r : results_of({id, 0})) {
      const std::string to = fmt::format("y{} + (column + c) * {}ull + first + r", r, s_.rows);
      const std::string from = fmt::format("tile{} + c * {} + r", id, kTileRows + 4);
      // Rows of 16 elements of the result, or one by one where it has a ragged edge.
      const std::string copy =
          s_.rows % 16 == 0
              ? fmt::format("if (first + r < {}u) copy_16({}, {});\n", s_.rows, to, from)
              : fmt::format(
                    "for (int e = 0; e < 16; ++e)\n"
                    "  if (first + r + e < {}u) *({} + e) = *({} + e);\n",
                    s_.rows, to, from);
      all += fmt::format(
          "for (int k = threadIdx.x; k < {}; k += {}) {{\n"
          "  const int c = k / {}, r = k % {} * 16;\n{}}}\n",
          kTileColumns * kTileRows / 16, at_.threads * at_.groups, kTileRows / 16, kTileRows / 16,
          indented(at_.exact ? copy
                             : fmt::format("if (column + c < {}) {{\n{}}}\n", s_.width,
                                           indented(copy, 2)),
                   2));
    }
  return all;
}

/// The largest of a block's elements, behind those of the scales before it.
std::string ClusterWriter::block_scales_text() const {
  std::string all;
  for (size_t k = 0; k < s_.scales.size(); ++k)
    all += fmt::format(
        "top{0} = fold<Larger, {1}>(top{0});\n"
        "if (threadIdx.x == 0) tops[({2} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = "
        "top{0};\n",
        s_.scales[k], at_.threads * at_.groups, k);
  return all;
}

void ClusterWriter::walk() {
  text_.assign(static_cast<size_t>(s_.phases), {});
  arrays_.clear();
  accumulators_.clear();
  for (NodeId id = 0; id < body_.size(); ++id) write_node(id);
  for (uint32_t r = 0; r < body_.outputs().size(); ++r) {
    const ValueId v = body_.outputs()[r].value;
    if (s_.place(v).kind != ClusterSurvey::Place::computed)
      write_result(r, value(v, body_.type(v).shape, 0), 0);
  }
  for (size_t k = 0; k < reads_.size(); ++k) {
    const Read& r = reads_[k];
    for (int phase : r.phases) {
      PhaseText& text = text_[static_cast<size_t>(phase)];
      text.loads += load_text(r, k, phase);
      if (!r.held) continue;
      const bool single = r.access.is_repeated(at_.vector) && !r.access.is_dense();
      arrays_.push_back(
          fmt::format("{} h{}[{}];", work_type(dtype_of(r.operand)), k, at_.chunks * at_.vector));
      text.lines =
          fmt::format("h{0}[j] = {1};\n", k, fmt::format("x{}{}", k, single ? "" : "[e]")) +
          text.lines;
      break;
    }
  }
}

std::string ClusterWriter::load_text(const Read& r, size_t k, int) const {
  const int64_t v = at_.vector;
  const auto work = work_type(dtype_of(r.operand));
  std::string index = s_.width > 0 ? r.access.text("row", "col", s_.width) : r.access.text("i");
  if (index.empty()) index = r.access.text("i");
  if (r.access.is_repeated(v) && !r.access.is_dense())
    return fmt::format("const {} x{} = widen(a{}[{}]);\n", work, k, r.operand, index);
  std::string text = fmt::format("{} x{}[{}];\n", work, k, v);
  const auto bytes = static_cast<int64_t>(bytes_of(dtype_of(r.operand)));
  const bool aligned = c_.operands[r.operand].alignment % std::min<int64_t>(16, v * bytes) == 0;
  const bool part = r.access.is_dense() && s_.elements % v != 0;
  if (r.access.is_contiguous(v) || part) {
    const std::string count = part ? "n" : std::to_string(v);
    if (!aligned)
      return text + fmt::format("load_each(x{}, a{} + {}, {});\n", k, r.operand, index, count);
    if (part) return text + fmt::format("load_some(x{}, a{} + {}, n);\n", k, r.operand, index);
    return text + fmt::format("load(x{}, a{} + {});\n", k, r.operand, index);
  }
  std::string each = s_.width > 0 ? r.access.text("row", "(col + e)", s_.width) : "";
  if (each.empty()) each = r.access.text("(i + e)");
  const std::string element = fmt::format("widen(a{}[{}])", r.operand, each);
  return text + fmt::format("#pragma unroll\nfor (int e = 0; e < {}; ++e) x{}[e] = {};\n", v, k,
                            at_.exact || s_.width > 0
                                ? element
                                : fmt::format("e < n ? {} : static_cast<{}>(0)", element, work));
}

}  // namespace brrr::cuda
