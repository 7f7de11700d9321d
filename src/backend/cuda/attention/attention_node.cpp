#include "backend/cuda/attention/attention_node.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/text.h"
#include "ops/attention.h"

namespace brrr::cuda {
namespace {

using AttentionMatrix = AttentionNode::Matrix;

/// Finite scores stay above it: kernels multiply them by log2 e, and -inf would hide them.
constexpr double kLowestScore = -2e38;

LaunchArg moved(LaunchArg at, int64_t bytes) {
  at.value += bytes;
  return at;
}

/// struct `name`: where a head begins in a matrix, of which `group` heads share one, and how far
/// its rows are from each other.
std::string layout_text(std::string_view name, const AttentionMatrix& m, int64_t heads_per_batch,
                        int64_t group = 1) {
  const int64_t shared = heads_per_batch / group;
  const std::string one = group == 1 ? "" : fmt::format(" / {}u", group);
  const std::string head = m.batch == m.head * shared
                               ? fmt::format("head{} * {}ull", one, m.head)
                               : fmt::format("head / {0}u * {1}ull + head % {0}u{2} * {3}ull",
                                             heads_per_batch, m.batch, one, m.head);
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
  const AttentionForm form(node.node(), node.in);
  backward = form.gradient;
  dtype = form.dtype;
  batches = form.batches();
  heads_per_batch = form.places.heads;
  heads = batches * heads_per_batch;
  group = form.group();
  queries = form.queries.size();
  keys = form.keys.size();
  width = form.places.width;
  values = form.places.value_width;
  const auto matrix = [&](LaunchArg at, const HeadStrides& s) {
    return AttentionMatrix{moved(std::move(at), s.first * static_cast<int64_t>(bytes_of(dtype))),
                           s.batch, s.head, s.row};
  };
  const auto in = [](int64_t i) { return LaunchArg::in(static_cast<size_t>(i)); };
  const auto out = [](int64_t i) { return LaunchArg::out(static_cast<size_t>(i)); };
  const int64_t at_q = form.places.q.source, at_k = form.places.k.source,
                at_v = form.places.v.source;
  q = matrix(in(at_q), form.q_strides());
  k = matrix(in(at_k), form.k_strides());
  v = matrix(in(at_v), form.v_strides());
  y = matrix(backward ? LaunchArg::in(form.y) : LaunchArg::out(0), form.y_strides());
  lse = backward ? LaunchArg::in(form.lse) : LaunchArg::out(1);
  if (backward) {
    dq = matrix(out(at_q), form.q_strides());
    dk = matrix(out(at_k), form.k_strides());
    dv = matrix(out(at_v), form.v_strides());
    dy = matrix(LaunchArg::in(form.dy), form.y_strides());
  }
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
  causal = form.causal;
  window = form.window;
  has_position = form.position.has_value();
  has_mask = form.mask.has_value();
  has_lengths = form.lengths.has_value();
  is_ragged = form.starts.has_value();
  sees_some_after = form.window_after.has_value();
  has_distances = form.mask_by_distance;
  has_dlse = form.dlse.has_value();
  dlse = form.dlse.value_or(0);

  std::string fields, score, kept = "    return p;\n", passes = "    return true;\n", drops;
  Shape all_heads = form.batch;
  all_heads.push_back(Dim(heads_per_batch));
  /// The element of a head, of an operand that broadcasts to the batch axes.
  const auto of_sequence = [&](size_t operand) {
    Shape shape = node.in[operand].shape;
    shape.push_back(Dim(1));
    return Access(shape, all_heads);
  };
  std::string position;
  if (has_position) {
    fields += "  const i32* position;\n";
    const Access access = of_sequence(*form.position);
    one_position = access.is_uniform();
    position = one_position ? " + *extra.position"
                            : fmt::format(" + extra.position[{}]", access.text("head"));
    extras.push_back(*form.position);
  }
  if (has_mask && !has_distances) {
    const Type& mask = node.in[*form.mask];
    const Access access(mask.shape, form.scores_shape());
    std::string index = access.text("row", "static_cast<u64>(j)", keys);
    if (index.empty()) index = access.text(fmt::format("(row * {}ull + j)", keys));
    const std::string row =
        fmt::format("    const u64 row = head * {}ull + i;\n    (void)row;\n", queries);
    fields += fmt::format("  const {}* mask;\n", stored_type(mask.dtype));
    score += row;
    if (mask.dtype == DType::boolean) {
      const double masked = a.get<double>("masked");
      score += fmt::format(
          "    if (!widen(extra.mask[{}])) x = {};\n", index,
          literal(DType::f32, std::isinf(masked) ? masked : std::max(masked, kLowestScore)));
      passes = row + fmt::format("    return widen(extra.mask[{}]);\n", index);
    } else {
      score += fmt::format(
          "    x += static_cast<float>(widen(extra.mask[{}]));\n"
          "    x = x == -BRRR_INFINITY ? x : larger(x, {});\n",
          index, literal(DType::f32, kLowestScore));
    }
    extras.push_back(*form.mask);
  }
  if (causal) score += fmt::format("    if (j > i{}) x = -BRRR_INFINITY;\n", position);
  if (window > 0)
    score += fmt::format("    if (j <= i{} - {}) x = -BRRR_INFINITY;\n", position, window);
  if (has_lengths) {
    fields += "  const i32* lengths;\n";
    score += fmt::format("    if (j >= extra.lengths[{}]) x = -BRRR_INFINITY;\n",
                         of_sequence(*form.lengths).text("head"));
    extras.push_back(*form.lengths);
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
    extras.push_back(*form.key);
  }
  const std::string minus = has_position ? " - " + position.substr(3) : "";
  const auto clamped = [](const std::string& value, std::string_view most) {
    return fmt::format("    const int at = {0};\n    return at < 0 ? 0 : at < {1} ? at : {1};\n",
                       value, most);
  };
  const std::string first_key =
      window > 0 ? clamped(fmt::format("i{} + 1 - {}", position, window), "kKeys")
                 : "    return 0;\n";
  const std::string last_key =
      causal ? fmt::format("    const int end = i{} + 1;\n    return end < kKeys ? end : kKeys;\n",
                           position)
             : "    return kKeys;\n";
  const std::string first_query =
      causal ? fmt::format("    const int i = j{};\n    return i < 0 ? 0 : i;\n", minus)
             : "    return 0;\n";
  const std::string last_query = window > 0
                                     ? clamped(fmt::format("j{} + {}", minus, window), "kQueries")
                                     : "    return kQueries;\n";
  const auto bound = [](std::string_view name, std::string_view of, const std::string& body) {
    return fmt::format(
        "  BRRR_METHOD int {0}(const Extra& extra, u64 head, int {1}) {{\n    (void)extra;\n    "
        "(void)head;\n    (void){1};\n{2}  }}\n",
        name, of, body);
  };
  // Where all batch entries have one position, or none.
  const auto of_all = [&](std::string_view name, std::string_view of) {
    if (!one_position) return std::string();
    return fmt::format(
        "  BRRR_METHOD int {0}(const Extra& extra, int {1}) {{ return {0}(extra, 0, {1}); }}\n",
        name, of);
  };
  const std::string bounds = bound("first_key", "i", first_key) + bound("last_key", "i", last_key) +
                             bound("first_query", "j", first_query) +
                             bound("last_query", "j", last_query) + of_all("last_key", "i") +
                             of_all("first_query", "j");
  text = fmt::format(
      "struct Extra {{\n{}}};\n"
      "struct Options {{\n"
      "  static constexpr int kQueries = {}, kKeys = {}, kWidth = {}, kValues = {}, kGroup = {};\n"
      "  static constexpr bool kCausal = {}, kPlain = {}, kDrops = {};\n{}"
      "  // Where a head begins in q, k, v and y, and how far its rows are; gradients lie as "
      "they.\n"
      "{}{}{}{}"
      "  BRRR_METHOD float scale() {{ return {}; }}\n"
      "  // What a query reads begins with its first key and ends before its last; what reads a "
      "key "
      "likewise.\n"
      "{}"
      "  BRRR_METHOD float score(float x, const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}    return x;\n  }}\n"
      "  BRRR_METHOD bool passes(const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}  }}\n"
      "  BRRR_METHOD float kept(float p, const Extra& extra, u64 head, int i, int j) {{\n"
      "    (void)extra;\n    (void)head;\n    (void)i;\n    (void)j;\n{}  }}\n"
      "}};\n",
      fields, queries, keys, width, values, group, causal,
      !has_mask && !has_lengths && window == 0 && p == 0, p > 0, drops,
      layout_text("Q", q, heads_per_batch), layout_text("K", k, heads_per_batch, group),
      layout_text("V", v, heads_per_batch, group), layout_text("Y", y, heads_per_batch),
      literal(DType::f32, scale), bounds, score, passes, kept);
}

std::string AttentionNode::beyond_the_matrix_unit() const {
  if (group > 1)
    return fmt::format("{} key and value heads for {} query heads", heads_per_batch / group,
                       heads_per_batch);
  if (window > 0) return "a window";
  return one_position ? "" : "a position for each sequence";
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
