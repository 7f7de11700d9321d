// attention and attention_grad on the CPU: what the nodes say.

#include "backend/cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm.h"

namespace brrr::cpu {
namespace {

// Where the elements of `from`, broadcast to the leading axes of `to`, begin: for each index of
// the axes before the last `inner` ones.
std::vector<int64_t> broadcast_offsets(const Shape& from, const Shape& to, int inner) {
  const int rank = to.rank() - inner;
  const auto strides = from.strides();
  std::vector<int64_t> stride(static_cast<size_t>(rank), 0);
  for (int axis = 0; axis < rank; ++axis) {
    const int at = axis - (to.rank() - from.rank());
    if (at >= 0 && from.size(at) != 1)
      stride[static_cast<size_t>(axis)] = strides[static_cast<size_t>(at)];
  }
  std::vector<int64_t> offsets{0};
  for (int axis = 0; axis < rank; ++axis) {
    std::vector<int64_t> next;
    for (int64_t base : offsets)
      for (int64_t i = 0; i < to.size(axis); ++i)
        next.push_back(base + i * stride[static_cast<size_t>(axis)]);
    offsets = std::move(next);
  }
  return offsets;
}

bool is_packed(const NodeView& node) { return node.node().op->name.starts_with("packed_"); }

/// [..., T, D], of packed queries [..., H, T, D].
Shape queries_of(const NodeView& node) {
  Shape q = node.in[0].shape;
  if (!is_packed(node)) return q;
  const auto heads = node.attrs().get<int64_t>("heads");
  const Dim rows = q[-2];
  const int64_t width = q.size(-1) / (3 * heads);
  q = q.without_last(2);
  for (const Dim dim : {Dim(heads), rows, Dim(width)}) q.push_back(dim);
  return q;
}

}  // namespace

AttentionProblem::AttentionProblem(const NodeView& node) {
  const Attrs& attrs = node.attrs();
  const bool packed = is_packed(node), gradient = node.node().op->name.ends_with("_grad");
  const Shape queries = queries_of(node);
  t = queries.size(-2);
  d = queries.size(-1);
  s = packed ? t : node.in[1].shape.size(-2);
  dv = packed ? d : node.in[2].shape.size(-1);
  for (int axis = 0; axis + 2 < queries.rank(); ++axis) heads *= queries.size(axis);
  dtype = node.in[0].dtype;
  if (packed) {
    const int64_t side = attrs.get<int64_t>("heads"), all = side * d;
    // `parts` values side by side in a row, this is number `part`.
    const auto beside = [&](size_t at, int64_t part, int64_t parts) {
      return HeadRows{at, part * all, parts * all, side, d, t * parts * all};
    };
    q = beside(0, 0, 3), k = beside(0, 1, 3), v = beside(0, 2, 3);
    y = beside(gradient ? 1 : 0, 0, 1), dy = beside(3, 0, 1);
    lse = gradient ? 2 : 1;
  } else {
    const auto alone = [](size_t at, int64_t rows, int64_t width) {
      return HeadRows{at, 0, width, 1, 0, rows * width};
    };
    q = alone(0, t, d), k = alone(1, s, d), v = alone(2, s, dv);
    y = alone(gradient ? 3 : 0, t, dv), dy = alone(5, t, dv);
    lse = gradient ? 4 : 1;
  }
  scale = static_cast<float>(attrs.get<double>("scale"));
  causal = attrs.get<bool>("causal");
  int next = packed ? gradient ? 4 : 1 : gradient ? 6 : 3;  // the first optional operand
  if (attrs.get<bool>("position")) position = next++;
  if (attrs.get<bool>("mask")) mask = next++;
  if (attrs.get<bool>("lengths")) lengths = next++;
  if (attrs.get<double>("p") > 0) key = next++;
  if (attrs.get_or<bool>("dlse", false)) dlse = next++;

  Shape scores = queries;
  scores[-1] = Dim(s);
  if (mask >= 0) {
    const Type& type = node.in[static_cast<size_t>(mask)];
    mask_dtype = type.dtype;
    masked = static_cast<float>(attrs.get<double>("masked"));
    mask_offset = broadcast_offsets(type.shape, scores, 2);
    const int rank = type.shape.rank();
    if (rank >= 1 && type.shape.size(-1) != 1) mask_column = 1;
    if (rank >= 2 && type.shape.size(-2) != 1) mask_row = type.shape.size(-1);
  }
  if (lengths >= 0)
    lengths_offset =
        broadcast_offsets(node.in[static_cast<size_t>(lengths)].shape, queries.without_last(2), 0);
  if (key >= 0) {  // as in the op dropout
    const double limit = std::min(65535.0, std::nearbyint(attrs.get<double>("p") * 65536));
    threshold = static_cast<uint32_t>(limit);
    keep_scale = static_cast<float>(65536.0 / (65536.0 - limit));
    stream = static_cast<uint32_t>(attrs.get<int64_t>("stream"));
  }
}

std::string refuse_attention(const NodeView& node) {
  const DType t = node.in[0].dtype;
  if (t != DType::f32 && t != DType::bf16 && t != DType::f16)
    return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
  const Shape queries = queries_of(node);
  const Shape& k = is_packed(node) ? queries : node.in[1].shape;
  if (k.size(-2) == 0) return "no keys";
  constexpr int64_t kMaxWidth = 512;
  const int64_t d = k.size(-1), dv = is_packed(node) ? d : node.in[2].shape.size(-1);
  if (d == 0 || dv == 0 || d > kMaxWidth || dv > kMaxWidth)
    return fmt::format("a head width of {} and {}: only 1 to {}", d, dv, kMaxWidth);
  return "";
}

bool reads_in_place(DType dtype, int64_t width) {
  return dtype == DType::f32 && width % attention_rows().lanes == 0;
}

ScoreRules::ScoreRules(const AttentionProblem& problem, const KernelArgs& args)
    : p_(problem), draw_(random_rows(false).draw) {
  auto operand = [&](int i) { return args.in[static_cast<size_t>(i)]; };
  if (p_.position >= 0) position_ = *static_cast<const int32_t*>(operand(p_.position));
  if (p_.mask >= 0) mask_ = operand(p_.mask);
  if (p_.lengths >= 0) lengths_ = static_cast<const int32_t*>(operand(p_.lengths));
  if (p_.key >= 0) {
    const auto* words = static_cast<const int32_t*>(operand(p_.key));
    key_ = {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])};
  }
}

int64_t ScoreRules::visible(int64_t head, int64_t t) const {
  int64_t n = p_.s;
  if (p_.causal) n = std::min(n, t + position_ + 1);
  if (lengths_ != nullptr)
    n = std::min<int64_t>(n, lengths_[p_.lengths_offset[static_cast<size_t>(head)]]);
  return std::max<int64_t>(0, n);
}

ScoreRow ScoreRules::row(int64_t head, int64_t t, int64_t k0, int64_t n, float* scores,
                         Space& space) const {
  ScoreRow row;
  row.scores = scores;
  row.n = n;
  row.visible = std::clamp<int64_t>(visible(head, t) - k0, 0, n);
  if (mask_ != nullptr && row.visible > 0) {
    const int64_t from =
        p_.mask_offset[static_cast<size_t>(head)] + t * p_.mask_row + k0 * p_.mask_column;
    read_mask(from, row.visible, space.mask);
    row.mask = space.mask;
    row.boolean = p_.mask_dtype == DType::boolean;
    row.masked = p_.masked;
  }
  if (p_.key >= 0 && row.visible > 0) {
    const int64_t first = (head * p_.t + t) * p_.s + k0, block = first / 8;
    draw_(key_, p_.stream, static_cast<uint64_t>(block), blocks_of(first + row.visible, 8) - block,
          space.bits);
    row.bits = space.bits + first % 8;
    row.threshold = p_.threshold;
    row.keep_scale = p_.keep_scale;
  }
  return row;
}

void ScoreRules::read_mask(int64_t from, int64_t n, float* to) const {
  if (p_.mask_column == 0) {
    std::fill_n(to, n, static_cast<float>(load_as_double(p_.mask_dtype, mask_, from)));
  } else if (p_.mask_dtype == DType::boolean) {
    const auto* flags = static_cast<const uint8_t*>(mask_) + from;
    for (int64_t i = 0; i < n; ++i) to[i] = flags[i] != 0 ? 1.0f : 0.0f;
  } else if (p_.mask_dtype == DType::f64) {
    const auto* values = static_cast<const double*>(mask_) + from;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(values[i]);
  } else {
    const auto* bytes = static_cast<const std::byte*>(mask_);
    row_copies(p_.mask_dtype)
        .widen(bytes + from * static_cast<int64_t>(bytes_of(p_.mask_dtype)), n, n, 1, to, n);
  }
}

void finish_queries(const AttentionProblem& p, const KernelArgs& args, int64_t head, int64_t t0,
                    int64_t count, const RowState* states, float* sums, int64_t ld) {
  auto* lse = static_cast<float*>(args.out[p.lse]) + head * p.t + t0;
  for (int64_t r = 0; r < count; ++r) {
    const float total = states[r].total;
    attention_rows().scale(sums + r * ld, 1 / total, p.dv);
    lse[r] = total > 0 ? states[r].top + std::log(total) : std::numeric_limits<float>::quiet_NaN();
  }
  row_copies(p.dtype).narrow(sums, ld, p.dv, count, p.out(args, p.y, head, t0), p.y.row);
}

int64_t first_query(const AttentionProblem& p, const ScoreRules& rules, int64_t head,
                    int64_t begin) {
  int64_t low = 0, high = p.t;  // visible() grows with the query
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rules.visible(head, middle) > begin)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

int64_t grad_groups(const AttentionProblem& p, int64_t key_block) {
  constexpr int64_t kTasksWanted = 32;  // enough for the threads of today's machines
  constexpr int64_t kMost = 4;          // bounds the memory of the parts of dq
  return std::min(
      {blocks_of(kTasksWanted, std::max<int64_t>(1, p.heads)), kMost, blocks_of(p.s, key_block)});
}

namespace {

std::string refuse_tiles(const NodeView& node, GemmPath path) {
  const DType dtype = node.in[0].dtype;
  if (dtype != DType::bf16) return fmt::format("dtype {}: only bf16", name_of(dtype));
  if (std::string refusal = gemm_refusal(path, dtype); !refusal.empty()) return refusal;
  if (queries_of(node).size(-2) == 1) return "one query is bound by reading the keys";
  return refuse_attention(node);
}

}  // namespace

std::vector<KernelEntry> attention_kernels() {
  std::vector<KernelEntry> list;
  const auto add = [&](const char* name, GemmPath path, TileUnit unit) {
    const auto refuse = [path](const NodeView& node) { return refuse_tiles(node, path); };
    for (const char* op : {"attention", "packed_attention"})
      list.push_back({op, name, refuse, [unit](const NodeView& node) {
                        return attention_forward_tiles(node, unit);
                      }});
    for (const char* op : {"attention_grad", "packed_attention_grad"})
      list.push_back({op, name, refuse, [unit](const NodeView& node) {
                        return attention_backward_tiles(node, unit);
                      }});
  };
  add("flash_amx", GemmPath::kAmx, TileUnit::amx);
  add("flash_avx512_bf16", GemmPath::kPairs, TileUnit::pairs);
  for (const char* op : {"attention", "packed_attention"})
    list.push_back({op, "flash", refuse_attention, attention_forward});
  for (const char* op : {"attention_grad", "packed_attention_grad"})
    list.push_back({op, "flash", refuse_attention, attention_backward});
  return list;
}

}  // namespace brrr::cpu
