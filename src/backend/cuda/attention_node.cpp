#include "backend/cuda/attention_node.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/access.h"
#include "backend/cuda/text.h"
#include "ops/ops.h"

namespace brrr::cuda {
AttentionNode::AttentionNode(const NodeView& node) {
  const Attrs& a = node.attrs();
  const Shape &q = node.in[0].shape, &k = node.in[1].shape, &v = node.in[2].shape;
  backward = node.node().op->name == "attention_grad";
  const Shape batch = q.without_last(2);
  heads = batch.elements();
  queries = q.size(-2);
  keys = k.size(-2);
  width = q.size(-1);
  values = v.size(-1);
  dtype = node.in[0].dtype;
  scale = a.get<double>("scale");
  p = a.get<double>("p");
  stream = a.get<int64_t>("stream");
  causal = a.get<bool>("causal");
  has_position = a.get<bool>("position");
  has_mask = a.get<bool>("mask");
  has_lengths = a.get<bool>("lengths");
  has_dlse = a.get_or<bool>("dlse", false);

  size_t next = backward ? 6 : 3;
  std::string fields, score, kept = "    return p;\n", passes = "    return true;\n";
  if (has_position) {
    fields += "  const i32* position;\n";
    extras.push_back(next++);
  }
  if (has_mask) {
    const Type& mask = node.in[next];
    Shape scores = q;
    scores[-1] = Dim(keys);
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
    kept = fmt::format(
        "    const u64 element = (head * {}ull + i) * {}ull + j;\n"
        "    return random_u16(extra.key, static_cast<u32>(extra.stream), element) >= {}u ? p * {} "
        ": 0.0f;\n",
        queries, keys, static_cast<int>(threshold),
        literal(DType::f32, 65536.0 / (65536.0 - threshold)));
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
      "  static constexpr bool kCausal = {}, kPlain = {}, kDrops = {};\n"
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
      literal(DType::f32, scale), last, first, score, passes, kept);
}

LaunchArg AttentionNode::extra() const {
  std::vector<LaunchArg> members;
  for (size_t k : extras) members.push_back(LaunchArg::in(k));
  if (p > 0) members.push_back(LaunchArg::i64(stream));
  return LaunchArg::record(std::move(members));
}

}  // namespace brrr::cuda
