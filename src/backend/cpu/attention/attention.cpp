// attention and attention_grad on the CPU: what the nodes say.

#include "backend/cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm.h"
#include "backend/cpu/segment_starts.h"
#include "ops/op.h"
#include "ops/quantized/int8_rows.h"

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

AttentionForm form_of(const NodeView& node) { return AttentionForm(node.node(), node.in); }

}  // namespace

AttentionProblem::AttentionProblem(const NodeView& node) {
  const Attrs& attrs = node.attrs();
  const AttentionForm form = form_of(node);
  const AttentionPlaces& places = form.places;
  sequences = form.starts ? form.ragged_sequences : form.batches();
  sequence_heads = places.heads;
  sequence_kv_heads = places.kv_heads;
  heads = sequences * places.heads;
  kv_heads = sequences * places.kv_heads;
  group = form.group();
  t = form.queries.size();
  s = form.keys.size();
  d = places.width;
  dv = places.value_width;
  dtype = form.dtype;
  const auto source = [&](const HeadPlace& place, int64_t count, HeadStrides step) {
    if (form.starts) step.batch = 0;
    return HeadRows{static_cast<size_t>(place.source), count, step, place.in_rows};
  };
  q = source(places.q, places.heads, form.q_strides());
  k = source(places.k, places.kv_heads, form.k_strides());
  v = source(places.v, places.kv_heads, form.v_strides());
  if (form.has_int8_keys)
    for (HeadRows* rows : {&k, &v})
      rows->scales = ops::Int8RowsLayout(node.in[rows->at]).first_scale;
  y = {form.gradient ? form.y : 0, places.heads, form.y_strides(), places.y_in_rows};
  if (form.starts) y.step.batch = 0;
  dy = y;
  dy.at = form.dy;
  lse = form.gradient ? form.lse : 1;
  scale = static_cast<float>(attrs.get<double>("scale"));
  keys_after = form.keys_after();
  window = form.window;
  const auto index = [](std::optional<size_t> i) { return i ? static_cast<int>(*i) : -1; };
  position = index(form.position);
  mask = index(form.mask);
  lengths = index(form.lengths);
  starts = index(form.starts);
  blocks = index(form.blocks);
  block_rows = form.block_rows;
  table_columns = form.table_columns;
  key = index(form.key);
  dlse = index(form.dlse);

  longest = form.longest;
  if (form.mask_by_distance) {
    const Type& type = node.in[static_cast<size_t>(mask)];
    const int64_t distances = type.shape.size(1), covered = distances / 2 + 1;
    mask_dtype = type.dtype;
    longest = longest > 0 ? std::min(longest, covered) : covered;
    // Element key - query + L - 1: one more for the next key, one less for the next query.
    for (int64_t head = 0; head < sequence_heads; ++head)
      mask_offset.push_back(head * distances + covered - 1);
    mask_column = 1;
    mask_row = -1;
  } else if (mask >= 0) {
    const Type& type = node.in[static_cast<size_t>(mask)];
    mask_dtype = type.dtype;
    masked = static_cast<float>(attrs.get<double>("masked"));
    mask_offset = broadcast_offsets(type.shape, form.scores_shape(), 2);
    const int rank = type.shape.rank();
    if (rank >= 1 && type.shape.size(-1) != 1) mask_column = 1;
    if (rank >= 2 && type.shape.size(-2) != 1) mask_row = type.shape.size(-1);
  }
  const auto per_sequence = [&](int operand) {
    if (operand < 0) return std::vector<int64_t>();
    return broadcast_offsets(node.in[static_cast<size_t>(operand)].shape, form.batch, 0);
  };
  position_offset = per_sequence(position);
  if (blocks < 0) lengths_offset = per_sequence(lengths);
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
  const AttentionForm form = form_of(node);
  if (form.keys.size() == 0) return "no keys";
  constexpr int64_t kMaxWidth = 512;
  const int64_t d = form.places.width, dv = form.places.value_width;
  if (d > kMaxWidth || dv > kMaxWidth)
    return fmt::format("a head width of {} and {}: only 1 to {}", d, dv, kMaxWidth);
  return "";
}

bool reads_in_place(DType dtype, int64_t width) {
  return dtype == DType::f32 && width % attention_rows().lanes == 0;
}

AttentionRun::AttentionRun(const AttentionProblem& problem, const KernelArgs& args)
    : p_(problem), args_(args), draw_(random_rows(false).draw) {
  auto operand = [&](int i) { return args.in[static_cast<size_t>(i)]; };
  if (p_.starts >= 0) {
    starts_ = static_cast<const int32_t*>(operand(p_.starts));
    check_starts("attention", starts_, p_.sequences, p_.t);
  }
  if (p_.position >= 0) positions_ = static_cast<const int32_t*>(operand(p_.position));
  if (p_.mask >= 0) mask_ = operand(p_.mask);
  for (int64_t r = 0; p_.longest > 0 && r < p_.sequences; ++r)
    if (std::max(queries(r), keys(r)) > p_.longest)
      user_error("[attention] a sequence of {} rows; expected at most {}",
                 std::max(queries(r), keys(r)), p_.longest);
  if (p_.lengths >= 0) lengths_ = static_cast<const int32_t*>(operand(p_.lengths));
  if (p_.blocks >= 0) {
    table_ = static_cast<const int32_t*>(operand(p_.blocks));
    check_blocks();
  }
  if (p_.key >= 0) {
    const auto* words = static_cast<const int32_t*>(operand(p_.key));
    key_ = {static_cast<uint32_t>(words[0]), static_cast<uint32_t>(words[1])};
  }
}

void AttentionRun::check_blocks() const {
  const int64_t pool = p_.s / p_.block_rows;
  for (int64_t r = 0; r < p_.sequences; ++r) {
    const int64_t used = blocks_of(lengths_[r], p_.block_rows);
    if (lengths_[r] < queries(r) || used > p_.table_columns)
      user_error("[attention] sequence {} has {} positions; expected {} to {}", r, lengths_[r],
                 queries(r), p_.table_columns * p_.block_rows);
    for (int64_t i = 0; i < used; ++i)
      if (const int64_t block = table_[r * p_.table_columns + i]; block < 0 || block >= pool)
        user_error("[attention] block {} of sequence {} lies outside a pool of {} blocks", block, r,
                   pool);
  }
}

AttentionRun::Rows AttentionRun::key_rows(const HeadRows& rows, int64_t kv_head, int64_t i,
                                          int64_t n, int64_t width, void* space) const {
  if (table_ == nullptr) return {in(rows, kv_head, i), rows.row()};
  const int32_t* const blocks = table_ + kv_sequence(kv_head) * p_.table_columns;
  const int64_t first = i / p_.block_rows, last = (i + n - 1) / p_.block_rows;
  const auto row_at = [&](int64_t block, int64_t rest) {
    return static_cast<const std::byte*>(args_.in[rows.at]) +
           p_.bytes(rows.offset(kv_head, blocks[block] * p_.block_rows + rest));
  };
  bool are_neighbours = true;
  for (int64_t b = first; b < last; ++b) are_neighbours &= blocks[b + 1] == blocks[b] + 1;
  if (are_neighbours) return {row_at(first, i % p_.block_rows), rows.row()};
  const int64_t bytes = p_.bytes(width);
  auto* to = static_cast<std::byte*>(space);
  for (int64_t at = i; at < i + n; ++at, to += bytes)
    std::memcpy(to, row_at(at / p_.block_rows, at % p_.block_rows), static_cast<size_t>(bytes));
  return {space, width};
}

void AttentionRun::widen_keys(const HeadRows& rows, int64_t kv_head, int64_t i, int64_t n,
                              int64_t width, float* to, int64_t ld) const {
  const auto* bytes = static_cast<const std::byte*>(args_.in[rows.at]);
  const auto* integers = reinterpret_cast<const int8_t*>(bytes);
  const auto* scales = reinterpret_cast<const float*>(bytes + rows.scales);
  const auto widen = [&](int64_t first, int64_t count, float* part) {
    attention_rows().widen_integers(
        {integers + first, rows.row(), scales + first / width, rows.row() / width}, width, count,
        part, ld);
  };
  if (table_ == nullptr) return widen(offset(rows, kv_head, i), n, to);
  const int32_t* const blocks = table_ + kv_sequence(kv_head) * p_.table_columns;
  for (int64_t done = 0; done < n;) {
    const int64_t block = blocks[(i + done) / p_.block_rows], row = (i + done) % p_.block_rows;
    const int64_t count = std::min(p_.block_rows - row, n - done);
    widen(rows.offset(kv_head, block * p_.block_rows + row), count, to + done * ld);
    done += count;
  }
}

void AttentionRun::clear_rows_outside(const HeadRows& rows, int64_t width) const {
  if (starts_ == nullptr) return;
  for (const auto& [begin, end] : outside())
    for (int64_t head = 0; head < rows.heads; ++head)
      for (int64_t i = begin; i < end; ++i)
        std::memset(static_cast<std::byte*>(args_.out[rows.at]) + p_.bytes(rows.offset(head, i)), 0,
                    static_cast<size_t>(p_.bytes(width)));
}

void AttentionRun::finish_queries_outside() const {
  if (starts_ == nullptr) return;
  clear_rows_outside(p_.y, p_.dv);
  for (const auto& [begin, end] : outside())
    for (int64_t head = 0; head < p_.sequence_heads; ++head)
      std::fill_n(static_cast<float*>(args_.out[p_.lse]) + head * p_.t + begin, end - begin, 0.0f);
}

void AttentionRun::clear_gradients_outside() const {
  clear_rows_outside(p_.q, p_.d);
  clear_rows_outside(p_.k, p_.d);
  clear_rows_outside(p_.v, p_.dv);
}

KeyRange AttentionRun::visible(int64_t head, int64_t t) const {
  const auto sequence = static_cast<size_t>(head / p_.sequence_heads);
  int64_t next = t + 1;
  if (positions_ != nullptr) next += positions_[p_.position_offset[sequence]];
  if (table_ != nullptr) next += lengths_[sequence] - queries(static_cast<int64_t>(sequence));
  KeyRange keys{0, this->keys(head / p_.sequence_heads)};
  if (p_.keys_after) keys.end = std::min(keys.end, next + *p_.keys_after);
  if (lengths_ != nullptr && table_ == nullptr)
    keys.end = std::min<int64_t>(keys.end, lengths_[p_.lengths_offset[sequence]]);
  keys.end = std::max<int64_t>(0, keys.end);
  if (p_.window > 0) keys.begin = std::clamp<int64_t>(next - p_.window, 0, keys.end);
  return keys;
}

KeyRange AttentionRun::visible(int64_t head, int64_t t0, int64_t count, int64_t block) const {
  return {visible(head, t0).begin / block * block, visible(head, t0 + count - 1).end};
}

ScoreRow AttentionRun::row(int64_t head, int64_t t, int64_t k0, int64_t n, float* scores,
                           Space& space) const {
  const KeyRange keys = visible(head, t);
  ScoreRow row;
  row.scores = scores;
  row.n = n;
  row.visible = std::clamp<int64_t>(keys.end - k0, 0, n);
  row.first = std::clamp<int64_t>(keys.begin - k0, 0, row.visible);
  if (row.first == row.visible) return row;
  if (mask_ != nullptr) {
    const int64_t before = first(sequence(head)), which = head % std::ssize(p_.mask_offset);
    const int64_t from = p_.mask_offset[static_cast<size_t>(which)] + (before + t) * p_.mask_row +
                         (before + k0) * p_.mask_column;
    read_mask(from, row.visible, space.mask);
    row.mask = space.mask;
    row.boolean = p_.mask_dtype == DType::boolean;
    row.masked = p_.masked;
  }
  if (p_.key >= 0) {
    const int64_t from = query_row(head, t) * p_.s + first(sequence(head)) + k0, block = from / 8;
    draw_(key_, p_.stream, static_cast<uint64_t>(block), blocks_of(from + row.visible, 8) - block,
          space.bits);
    row.bits = space.bits + from % 8;
    row.threshold = p_.threshold;
    row.keep_scale = p_.keep_scale;
  }
  return row;
}

void AttentionRun::read_mask(int64_t from, int64_t n, float* to) const {
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

int64_t heads_of_one_query(const AttentionProblem& p, int64_t threads) {
  return p.kv_heads >= threads && p.group <= kQueryBlock ? p.group : 1;
}

void SequenceBlocks::divide(const AttentionRun& run, int64_t sequences, bool of_keys, int64_t heads,
                            int64_t block) {
  heads_ = heads;
  first_.resize(static_cast<size_t>(sequences) + 1);
  for (int64_t r = 0; r < sequences; ++r)
    first_[static_cast<size_t>(r) + 1] =
        first_[static_cast<size_t>(r)] + blocks_of(of_keys ? run.keys(r) : run.queries(r), block);
}

SequenceBlocks::Block SequenceBlocks::operator[](int64_t i) const {
  const auto behind = std::upper_bound(first_.begin(), first_.end(), i / heads_);
  const int64_t sequence = behind - first_.begin() - 1;
  const int64_t blocks = *behind - *(behind - 1), rest = i - *(behind - 1) * heads_;
  return {sequence * heads_ + rest / blocks, rest % blocks, blocks};
}

PackedRowLayout::PackedRowLayout(int64_t heads_of_sequence, int64_t sequences, int64_t rows,
                                 bool is_ragged, int64_t block, int64_t unit)
    : heads_(is_ragged ? heads_of_sequence : heads_of_sequence * sequences),
      per_head_(is_ragged ? blocks_of(rows + sequences * (unit - 1), unit) * unit
                          : blocks_of(rows, block) * block),
      unit_(unit),
      is_ragged_(is_ragged) {}

void fetch_rows(const AttentionProblem& p, const AttentionRun::Rows& rows, int64_t n,
                int64_t width) {
  if (rows.row != width) return;
  const auto* begin = static_cast<const std::byte*>(rows.data);
  for (int64_t at = 0; at < p.bytes(n * width); at += 64) __builtin_prefetch(begin + at, 0, 2);
}

void finish_queries(const AttentionProblem& p, const KernelArgs& args, const AttentionRun& run,
                    int64_t head, int64_t t0, int64_t count, const RowState* states, float* sums,
                    int64_t ld) {
  auto* lse = static_cast<float*>(args.out[p.lse]) + run.query_row(head, t0);
  for (int64_t r = 0; r < count; ++r) {
    const float total = states[r].total;
    attention_rows().divide(sums + r * ld, total, p.dv);
    lse[r] = total > 0 ? states[r].top + std::log(total) : std::numeric_limits<float>::quiet_NaN();
  }
  row_copies(p.dtype).narrow(sums, ld, p.dv, count, run.out(p.y, head, t0), p.y.row());
}

QueryRange queries_of(const AttentionRun& run, int64_t head, int64_t begin, int64_t count) {
  const auto first_where = [&](auto&& holds) {  // for all queries behind it, too
    int64_t low = 0, high = run.queries(run.sequence(head));
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (holds(run.visible(head, middle)))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  const int64_t first = first_where([&](const KeyRange& keys) { return keys.end > begin; });
  const int64_t last =
      first_where([&](const KeyRange& keys) { return keys.begin >= begin + count; });
  return {first, std::max(first, last)};
}

int64_t grad_groups(const AttentionProblem& p, int64_t key_block) {
  constexpr int64_t kTasksWanted = 32;  // enough for the threads of today's machines
  constexpr int64_t kMost = 4;          // bounds the memory of the parts of dq
  return std::min({blocks_of(kTasksWanted, std::max<int64_t>(1, p.kv_heads)), kMost,
                   blocks_of(p.s, key_block)});
}

namespace {

std::string refuse_tiles(const NodeView& node, GemmPath path) {
  const DType dtype = node.in[0].dtype;
  if (dtype != DType::bf16) return fmt::format("dtype {}: only bf16", name_of(dtype));
  if (std::string refusal = gemm_refusal(path, dtype); !refusal.empty()) return refusal;
  if (form_of(node).blocks) return "keys in blocks of a pool";
  if (form_of(node).has_int8_keys) return "keys in int8 rows";
  return refuse_attention(node);
}

}  // namespace

std::vector<KernelEntry> attention_kernels() {
  std::vector<KernelEntry> list;
  const auto add = [&](const char* name, GemmPath path, TileUnit unit) {
    const auto refuse = [path](const NodeView& node) { return refuse_tiles(node, path); };
    list.push_back({Op::attention, name, refuse,
                    [unit](const NodeView& node) { return attention_forward_tiles(node, unit); }});
    list.push_back({Op::attention_grad, name, refuse,
                    [unit](const NodeView& node) { return attention_backward_tiles(node, unit); }});
  };
  add("flash_amx", GemmPath::kAmx, TileUnit::amx);
  add("flash_avx512_bf16", GemmPath::kPairs, TileUnit::pairs);
  list.push_back({Op::attention, "flash", refuse_attention, attention_forward, kKnowsStorage});
  list.push_back({Op::attention_grad, "flash", refuse_attention, attention_backward});
  return list;
}

}  // namespace brrr::cpu
