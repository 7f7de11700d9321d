#include "backend/cuda/attention/attention_node.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/text.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

using AttentionMatrix = AttentionNode::Matrix;

/// Dense: rows of a head after each other, heads after each other.
AttentionMatrix head_by_head(LaunchArg at, int64_t heads, int64_t rows, int64_t width) {
  return {std::move(at), heads * rows * width, rows * width, width};
}
/// The heads side by side in rows that are as wide as `parts` such matrices.
AttentionMatrix side_by_side(LaunchArg at, int64_t heads, int64_t rows, int64_t width,
                             int64_t parts) {
  const int64_t row = parts * heads * width;
  return {std::move(at), rows * row, width, row};
}
LaunchArg moved(LaunchArg at, int64_t bytes) {
  at.value += bytes;
  return at;
}

/// struct `name`: where a head begins in a matrix, and how far its rows are from each other.
std::string layout_text(std::string_view name, const AttentionMatrix& m, int64_t heads_per_batch) {
  const std::string head = m.batch == m.head * heads_per_batch
                               ? fmt::format("head * {}ull", m.head)
                               : fmt::format("head / {0}u * {1}ull + head % {0}u * {2}ull",
                                             heads_per_batch, m.batch, m.head);
  return fmt::format(
      "  struct {} {{\n"
      "    static constexpr int kRow = {};\n"
      "    BRRR_METHOD u64 of(u64 head) {{ return {}; }}\n"
      "    template <typename T>\n"
      "    BRRR_METHOD T* row(T* matrix, u64 head, int i) {{\n"
      "      return matrix + of(head) + static_cast<u64>(i) * kRow;\n"
      "    }}\n"
      "  }};\n",
      name, m.row, head);
}

}  // namespace

AttentionNode::AttentionNode(const NodeView& node) {
  const Attrs& a = node.attrs();
  const std::string& op = node.node().op->name;
  packed = op == "packed_attention" || op == "packed_attention_grad";
  backward = op == "attention_grad" || op == "packed_attention_grad";
  dtype = node.in[0].dtype;
  Shape batch;  // the leading axes of q, k and v as [..., T, D]
  size_t next;  // the first optional operand
  if (packed) {
    const Shape& qkv = node.in[0].shape;
    batch = qkv.without_last(2);
    batches = batch.elements();
    heads_per_batch = a.get<int64_t>("heads");
    batch.push_back(Dim(heads_per_batch));
    queries = keys = qkv.size(-2);
    width = values = qkv.size(-1) / (3 * heads_per_batch);
    const int64_t part = heads_per_batch * width * bytes_of(dtype);
    auto third = [&](const LaunchArg& at, int64_t i) {
      return side_by_side(moved(at, i * part), heads_per_batch, keys, width, 3);
    };
    auto one = [&](const LaunchArg& at) {
      return side_by_side(at, heads_per_batch, queries, values, 1);
    };
    q = third(LaunchArg::in(0), 0), k = third(LaunchArg::in(0), 1), v = third(LaunchArg::in(0), 2);
    y = one(backward ? LaunchArg::in(1) : LaunchArg::out(0));
    lse = backward ? LaunchArg::in(2) : LaunchArg::out(1);
    if (backward) {
      dq = third(LaunchArg::out(0), 0), dk = third(LaunchArg::out(0), 1);
      dv = third(LaunchArg::out(0), 2), dy = one(LaunchArg::in(3));
    }
    next = backward ? 4 : 1;
  } else {
    const Shape& q_shape = node.in[0].shape;
    batch = q_shape.without_last(2);
    heads_per_batch = batch.rank() > 0 ? batch.size(-1) : 1;
    batches = batch.rank() > 0 ? batch.without_last(1).elements() : 1;
    queries = q_shape.size(-2);
    keys = node.in[1].shape.size(-2);
    width = q_shape.size(-1);
    values = node.in[2].shape.size(-1);
    auto of = [&](const LaunchArg& at, int64_t rows, int64_t row) {
      return head_by_head(at, heads_per_batch, rows, row);
    };
    q = of(LaunchArg::in(0), queries, width), k = of(LaunchArg::in(1), keys, width);
    v = of(LaunchArg::in(2), keys, values);
    y = of(backward ? LaunchArg::in(3) : LaunchArg::out(0), queries, values);
    lse = backward ? LaunchArg::in(4) : LaunchArg::out(1);
    if (backward) {
      dq = of(LaunchArg::out(0), queries, width), dk = of(LaunchArg::out(1), keys, width);
      dv = of(LaunchArg::out(2), keys, values), dy = of(LaunchArg::in(5), queries, values);
    }
    next = backward ? 6 : 3;
  }
  heads = batches * heads_per_batch;
  alignment = LaunchPlan::kAlignment;
  for (const Matrix* m : {&q, &k, &v, &y, &dq, &dk, &dv, &dy}) {
    if (m->row == 0) continue;  // not there
    if (m->at.kind == LaunchArg::Kind::in)
      alignment = std::gcd(alignment, operand_alignment(node, m->at.index));
    alignment = std::gcd(alignment, m->at.value);
    for (int64_t stride : {m->batch, m->head, m->row})
      alignment = std::gcd(alignment, stride * bytes_of(dtype));
  }
  scale = a.get<double>("scale");
  p = a.get<double>("p");
  stream = a.get<int64_t>("stream");
  causal = a.get<bool>("causal");
  has_position = a.get<bool>("position");
  has_mask = a.get<bool>("mask");
  has_lengths = a.get<bool>("lengths");
  has_dlse = a.get_or<bool>("dlse", false);

  std::string fields, score, kept = "    return p;\n", passes = "    return true;\n", drops;
  if (has_position) {
    fields += "  const i32* position;\n";
    extras.push_back(next++);
  }
  if (has_mask) {
    const Type& mask = node.in[next];
    Shape scores = batch;
    scores.push_back(Dim(queries));
    scores.push_back(Dim(keys));
    const Access access(mask.shape, scores);
    std::string index = access.text("row", "static_cast<u64>(j)", keys);
    if (index.empty()) index = access.text(fmt::format("(row * {}ull + j)", keys));
    const std::string row =
        fmt::format("    const u64 row = head * {}ull + i;\n    (void)row;\n", queries);
    fields += fmt::format("  const {}* mask;\n", stored_type(mask.dtype));
    score += row;
    if (mask.dtype == DType::boolean) {
      score += fmt::format("    if (!widen(extra.mask[{}])) x = {};\n", index,
                           literal(DType::f32, a.get<double>("masked")));
      passes = row + fmt::format("    return widen(extra.mask[{}]);\n", index);
    } else {
      score += fmt::format("    x += static_cast<float>(widen(extra.mask[{}]));\n", index);
    }
    extras.push_back(next++);
  }
  const std::string position = has_position ? " + *extra.position" : "";
  if (causal) score += fmt::format("    if (j > i{}) x = -BRRR_INFINITY;\n", position);
  if (has_lengths) {
    const Access access(node.in[next].shape, batch);
    fields += "  const i32* lengths;\n";
    score +=
        fmt::format("    if (j >= extra.lengths[{}]) x = -BRRR_INFINITY;\n", access.text("head"));
    extras.push_back(next++);
  }
  if (p > 0) {
    fields += "  const i32* key;\n  i64 stream;\n";
    const double threshold = std::min(65535.0, std::nearbyint(p * 65536));
    drops = fmt::format(
        "  static constexpr u32 kThreshold = {}u;\n  static constexpr float kFactor = {};\n",
        static_cast<int>(threshold), literal(DType::f32, 65536.0 / (65536.0 - threshold)));
    kept = fmt::format(
        "    const u64 element = (head * {}ull + i) * {}ull + j;\n"
        "    const u32 drawn = random_u16(extra.key, static_cast<u32>(extra.stream), element);\n"
        "    return drawn >= kThreshold ? p * kFactor : 0.0f;\n",
        queries, keys);
    extras.push_back(next++);
  }
  if (has_dlse) dlse = next;
  const std::string last = causal ? fmt::format(
                                        "    const int end = i{} + 1;\n"
                                        "    return end < kKeys ? end : kKeys;\n",
                                        position)
                                  : "    return kKeys;\n";
  const std::string first = causal
                                ? fmt::format("    const int i = j{};\n    return i < 0 ? 0 : i;\n",
                                              has_position ? " - *extra.position" : "")
                                : "    return 0;\n";
  text = fmt::format(
      "struct Extra {{\n{}}};\n"
      "struct Options {{\n"
      "  static constexpr int kQueries = {}, kKeys = {}, kWidth = {}, kValues = {};\n"
      "  static constexpr bool kCausal = {}, kPlain = {}, kDrops = {};\n{}"
      "  // Where a head begins in q, k, v and y, and how far its rows are; gradients lie as "
      "they.\n"
      "{}{}{}{}"
      "  BRRR_METHOD float scale() {{ return {}; }}\n"
      "  // What a query reads ends before this key; what reads a key begins with this query.\n"
      "  BRRR_METHOD int last_key(const Extra& extra, int i) {{\n    (void)extra;\n    "
      "(void)i;\n{}  }}\n"
      "  BRRR_METHOD int first_query(const Extra& extra, int j) {{\n    (void)extra;\n    "
      "(void)j;\n{}  }}\n"
      "  BRRR_METHOD float score(float x, const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}    return x;\n  }}\n"
      "  BRRR_METHOD bool passes(const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}  }}\n"
      "  BRRR_METHOD float kept(float p, const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}  }}\n"
      "}};\n",
      fields, queries, keys, width, values, causal, !has_mask && !has_lengths && p == 0, p > 0,
      drops, layout_text("Q", q, heads_per_batch), layout_text("K", k, heads_per_batch),
      layout_text("V", v, heads_per_batch), layout_text("Y", y, heads_per_batch),
      literal(DType::f32, scale), last, first, score, passes, kept);
}

KernelSource AttentionNode::source(const std::string& name, std::vector<std::string> headers,
                                   uint32_t threads, const std::string& parameters,
                                   const std::string& call, bool alone) const {
  return {name, std::move(headers),
          text + fmt::format("BRRR_KERNEL{}({}) {}({}{}) {{\n{}  {};\n}}\n", alone ? "_ALONE" : "",
                             threads, name, parameters,
                             extras.empty() ? "" : ", BRRR_GRID_CONSTANT const Extra extra",
                             extras.empty() ? "  const Extra extra{};\n" : "", call)};
}

LaunchArg AttentionNode::extra() const {
  std::vector<LaunchArg> members;
  for (size_t operand : extras) members.push_back(LaunchArg::in(operand));
  if (p > 0) members.push_back(LaunchArg::i64(stream));
  return LaunchArg::record(std::move(members));
}

}  // namespace brrr::cuda
