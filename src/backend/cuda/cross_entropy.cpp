#include <algorithm>

#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "base/integers.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

/// Neighbouring elements of a thread in rows that lie `row` apart.
int64_t vector_of(int64_t row, int64_t bytes, int64_t alignment) {
  int64_t v = 8;
  while (v > 1 && (row % v != 0 || alignment % std::min<int64_t>(16, v * bytes) != 0)) v /= 2;
  return v;
}
/// Threads of a row. With one register over 32 to a thread a multiprocessor holds one block of 1024
/// threads and is half empty; of 512 threads it holds three, and with 32 registers four.
int64_t threads_of(int64_t classes) { return classes <= 1024 ? 32 : classes <= 8192 ? 256 : 512; }

LaunchArg bad_target(const std::string& op, int64_t classes) {
  return LaunchArg::error(
      fmt::format("[{}] a target is neither one of {} classes nor the ignored one", op, classes));
}

std::string loss_refusal(const NodeView& node, const GpuDescription&) {
  if (node.in[0].dtype == DType::f64) return "f64";
  if (node.in[0].shape.size(-1) == 0) return "no classes";
  return "";
}

Launch loss_launch(const std::string& name, const std::string& parameters, const std::string& call,
                   std::vector<LaunchArg> args, int64_t rows, int64_t threads) {
  Launch l;
  l.source = {
      name,
      {"device.cuh", "cross_entropy.cuh"},
      fmt::format("BRRR_KERNEL({}) {}({}) {{\n  {}\n}}\n", threads, name, parameters, call)};
  l.args = std::move(args);
  l.grid = {static_cast<uint32_t>(rows), 1, 1};
  l.block = {static_cast<uint32_t>(threads), 1, 1};
  return l;
}

LaunchPlan loss_forward(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const int64_t classes = node.in[0].shape.size(-1), rows = node.in[1].shape.elements();
  if (rows == 0) return p;
  const std::string_view t = stored_type(node.in[0].dtype), id = stored_type(node.in[1].dtype);
  const int64_t threads = threads_of(classes);
  const int64_t v = vector_of(classes, static_cast<int64_t>(bytes_of(node.in[0].dtype)),
                              operand_alignment(node, 0));
  p.launches.push_back(loss_launch(
      "cross_entropy",
      fmt::format("const {0}* logits, const {1}* targets, {0}* losses, {0}* lse, u32* error", t,
                  id),
      fmt::format(
          "cross_entropy_row<{0}, {1}, {0}, {2}, {3}>(logits, targets, losses, lse, error, {4}, "
          "{5}, {4});",
          t, id, threads, v, classes, node.attrs().get<int64_t>("ignore_index")),
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::out(0), LaunchArg::out(1),
       bad_target("cross_entropy", classes)},
      rows, threads));
  return p;
}

LaunchPlan loss_backward(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const int64_t classes = node.in[0].shape.size(-1), rows = node.in[1].shape.elements();
  if (rows == 0) return p;
  const std::string_view t = stored_type(node.in[0].dtype), id = stored_type(node.in[1].dtype);
  const int64_t threads = threads_of(classes);
  const int64_t v = vector_of(classes, static_cast<int64_t>(bytes_of(node.in[0].dtype)),
                              operand_alignment(node, 0));
  p.launches.push_back(loss_launch(
      "cross_entropy_grad",
      fmt::format(
          "const {0}* logits, const {1}* targets, const {0}* lse, const {0}* dlosses, {0}* dlogits",
          t, id),
      fmt::format(
          "cross_entropy_grad_row<{0}, {1}, {0}, {0}, {2}, {3}>(logits, targets, lse, dlosses, "
          "static_cast<const {0}*>(nullptr), dlogits, {4}, {4}, {5}, {4}, {4});",
          t, id, threads, v, classes, node.attrs().get<int64_t>("ignore_index")),
      {LaunchArg::in(0), LaunchArg::in(1), LaunchArg::in(2), LaunchArg::in(3), LaunchArg::out(0)},
      rows, threads));
  return p;
}

// -- the loss head: products of a chunk of rows at a time, and its gradient over its logits. Where
// the classes fill no tile of the matrix unit (50257), the products over classes may have as many
// more as do (50304): the weights' copy has zeros there, and the gradient is zero, too.

// Of logits. Every chunk reads and writes the whole gradient of the weights.
constexpr int64_t kChunkBytes = int64_t{1} << 30;
// Rows of logits begin at multiples of so many numbers: matrix units want rows of whole 16 bytes,
// and few vocabularies (50257) have them.
constexpr int64_t kRowMultiple = 64;

/// Operands and results of the three ops.
struct Head {
  const NodeView& node;
  bool forward, gradient;
  int64_t rows, width, classes;
  DType dtype;
  DType logit;  // as the logits of a chunk are kept
  bool transposed;
  bool padded;  // products over classes have logits_row() of them
  int64_t chunk;
  LaunchArg weights = LaunchArg::in(1);

  explicit Head(const NodeView& n, bool is_padded = false)
      : node(n),
        forward(!is(n.node(), Op::linear_cross_entropy_grad)),
        gradient(!is(n.node(), Op::linear_cross_entropy)),
        rows(n.in[2].shape.elements()),
        width(n.in[0].shape.size(-1)),
        classes(n.in[1].shape.size(n.attrs().get<bool>("transpose_w") ? 0 : 1)),
        dtype(n.in[0].dtype),
        logit(n.attrs().get_or<bool>("round_logits", false) ? dtype : DType::f32),
        transposed(n.attrs().get<bool>("transpose_w")),
        padded(is_padded) {
    chunk = std::clamp<int64_t>(kChunkBytes / std::max<int64_t>(1, classes * logit_bytes()), 64,
                                1 << 20);
    chunk = std::min(equal_chunk(rows, chunk), rows);
  }
  /// Chunks of one size, if a third more of them will do: their products are tuned once, and none
  /// is so short that the gradient of the weights is read and written for little.
  static int64_t equal_chunk(int64_t rows, int64_t most) {
    constexpr int64_t kWhole = 128;
    if (most >= rows || most < kWhole) return most;
    const int64_t fewest = ceil_div(rows, most / kWhole * kWhole);
    for (int64_t n = fewest; n <= fewest + fewest / 3; ++n)
      if (rows % (n * kWhole) == 0) return rows / n;
    return round_up(ceil_div(rows, fewest), kWhole);
  }
  bool has_dlse() const { return node.attrs().get_or<bool>("dlse", false); }
  size_t dx() const { return forward ? 2 : 0; }
  size_t dw() const { return forward ? 3 : 1; }
  int64_t element() const { return static_cast<int64_t>(bytes_of(dtype)); }
  int64_t logit_bytes() const { return static_cast<int64_t>(bytes_of(logit)); }
  int64_t logits_row() const { return round_up(classes, kRowMultiple); }
  /// The width that the products over classes have.
  int64_t columns() const { return padded ? logits_row() : classes; }
  int64_t row_w() const { return transposed ? width : columns(); }

  Product product() const {
    Product p;
    p.in = dtype;
    p.tf32 = node.attrs().get_or<bool>("tf32", false);
    return p;
  }
  Product logits(int64_t begin, int64_t count, const LaunchArg& to) const {
    Product p = product();
    p.out = logit;
    p.m = count;
    p.n = columns();
    p.k = width;
    p.transpose_b = transposed;
    p.row_a = width;
    p.row_b = row_w();
    p.row_y = logits_row();
    p.a = LaunchArg::in(0, begin * width * element());
    p.b = weights;
    p.y = to;
    return p;
  }
  // The gradient's rows are as far apart as the logits'.
  int64_t gradient_row() const { return logits_row() * logit_bytes() / element(); }
  Product into_x(int64_t begin, int64_t count, const LaunchArg& dlogits) const {
    Product p = product();
    p.out = node.out()[dx()].dtype;
    p.m = count;
    p.n = width;
    p.k = columns();
    p.transpose_b = !transposed;
    p.row_a = gradient_row();
    p.row_b = row_w();
    p.row_y = width;
    p.a = dlogits;
    p.b = weights;
    p.y = LaunchArg::out(dx(), begin * width * static_cast<int64_t>(bytes_of(p.out)));
    return p;
  }
  Product into_w(int64_t begin, int64_t count, const LaunchArg& dlogits,
                 const LaunchArg& to) const {
    Product p = product();
    p.out = DType::f32;
    p.k = count;
    p.transpose_a = true;
    const LaunchArg x = LaunchArg::in(0, begin * width * element());
    p.a = transposed ? dlogits : x;
    p.b = transposed ? x : dlogits;
    p.row_a = transposed ? gradient_row() : width;
    p.row_b = transposed ? width : gradient_row();
    p.m = transposed ? classes : width;
    p.n = transposed ? width : classes;
    p.row_y = p.n;
    p.y = to;
    p.accumulate = begin > 0;
    return p;
  }
};

Launch rows_of_chunk(const Head& h, int64_t begin, int64_t count, const LaunchArg& logits) {
  const int64_t threads = threads_of(h.classes);
  const int64_t v = vector_of(h.logits_row(), h.logit_bytes(), LaunchPlan::kAlignment);
  const std::string_view id = stored_type(h.node.in[2].dtype), t = stored_type(h.dtype),
                         in = stored_type(h.logit);
  const int64_t ignore = h.node.attrs().get<int64_t>("ignore_index");
  const LaunchArg targets =
      LaunchArg::in(2, begin * static_cast<int64_t>(bytes_of(h.node.in[2].dtype)));
  const std::string& op = h.node.node().op->name;
  const LaunchArg error = bad_target(op, h.classes);
  // The gradient has what products read, or the last pack of classes.
  const int64_t columns = h.padded ? h.columns() : round_up(h.classes, v);
  if (!h.gradient)
    return loss_launch(
        op,
        fmt::format("const {}* logits, const {}* targets, f32* losses, f32* lse, u32* error", in,
                    id),
        fmt::format(
            "cross_entropy_row<{6}, {0}, f32, {1}, {2}>(logits, targets, losses, lse, error, "
            "{3}, {4}, {5});",
            id, threads, v, h.classes, ignore, h.logits_row(), in),
        {logits, targets, LaunchArg::out(0, begin * 4), LaunchArg::out(1, begin * 4), error}, count,
        threads);
  if (h.forward)
    return loss_launch(
        op,
        fmt::format(
            "const {}* logits, const {}* targets, const f32* dlosses, f32* losses, f32* lse, "
            "{}* dlogits, u32* error",
            in, id, t),
        fmt::format(
            "cross_entropy_step_row<{8}, {0}, {1}, {2}, {3}>(logits, targets, dlosses, losses, "
            "lse, dlogits, error, {4}, {9}, {5}, {7}, {6});",
            id, t, threads, v, h.classes, ignore, h.gradient_row(), h.logits_row(), in, columns),
        {logits, targets, LaunchArg::in(3, begin * 4), LaunchArg::out(0, begin * 4),
         LaunchArg::out(1, begin * 4), logits, error},
        count, threads);
  std::vector<LaunchArg> args{logits, targets, LaunchArg::in(3, begin * 4),
                              LaunchArg::in(4, begin * 4)};
  if (h.has_dlse()) args.push_back(LaunchArg::in(5, begin * 4));
  args.push_back(logits);
  return loss_launch(
      op,
      fmt::format("const {}* logits, const {}* targets, const f32* lse, const f32* dlosses, {}{}* "
                  "dlogits",
                  in, id, h.has_dlse() ? "const f32* dlse, " : "", t),
      fmt::format(
          "cross_entropy_grad_row<{9}, {0}, {1}, f32, {2}, {3}>(logits, targets, lse, dlosses, "
          "{7}, dlogits, {4}, {10}, {5}, {8}, {6});",
          id, t, threads, v, h.classes, ignore, h.gradient_row(),
          h.has_dlse() ? "dlse" : "static_cast<const f32*>(nullptr)", h.logits_row(), in, columns),
      std::move(args), count, threads);
}

/// Copies the weights into scratch memory, with zeros behind the last class.
LaunchArg padded_weights(LaunchPlan& p, const Head& h, const GpuDescription& gpu) {
  Graph g;
  const Value w = g.input("w", h.node.in[1].shape, h.dtype);
  const Value y = pad(w, h.transposed ? 0 : 1, 0, h.columns() - h.classes);
  const LaunchArg to = LaunchArg::scratch(p.take_scratch(g.type(y.id).bytes()));
  const std::vector<PlanEntry> movements = movement_entries();
  const auto entry = std::find_if(movements.begin(), movements.end(),
                                  [](const PlanEntry& e) { return e.op == Op::pad; });
  for (Launch launch : entry->plan(NodeView(g, y.id.node), gpu).launches) {
    for (LaunchArg& a : launch.args)
      a = a.kind == LaunchArg::Kind::in ? h.weights : a.kind == LaunchArg::Kind::out ? to : a;
    p.launches.push_back(std::move(launch));
  }
  return to;
}

LaunchPlan head_plan(const NodeView& node, const GpuDescription& gpu, bool padded) {
  LaunchPlan p;
  Head h(node, padded);
  if (padded) h.weights = padded_weights(p, h, gpu);
  const LaunchArg logits =
      LaunchArg::scratch(p.take_scratch(h.chunk * h.logits_row() * h.logit_bytes()));
  const bool has_dw = h.gradient && node.attrs().get_or<bool>("dw", true);
  const bool direct = has_dw && node.out()[h.dw()].dtype == DType::f32;
  LaunchArg dw;
  if (direct)
    dw = LaunchArg::out(h.dw());
  else if (has_dw)
    dw = LaunchArg::scratch(p.take_scratch(node.in[1].shape.elements() * 4));
  for (int64_t begin = 0; begin < h.rows; begin += h.chunk) {
    const int64_t count = std::min(h.chunk, h.rows - begin);
    add_product(p, h.logits(begin, count, logits));
    p.launches.push_back(rows_of_chunk(h, begin, count, logits));
    if (!h.gradient) continue;
    add_product(p, h.into_x(begin, count, logits));
    if (has_dw) add_product(p, h.into_w(begin, count, logits, dw));
  }
  if (!has_dw || direct) return p;
  Graph body;  // rounded once, after the last chunk
  const Value sum = body.input("a0", node.in[1].shape, DType::f32);
  body.output("0", cast(sum, node.out()[h.dw()].dtype));
  add_cluster(p, Cluster{body, {{dw}}, {LaunchArg::out(h.dw())}, "round_dw"}, gpu);
  return p;
}

std::string head_refusal(const NodeView& node, const GpuDescription&) {
  const Head h(node);
  if (h.dtype == DType::f64) return "f64";
  if (h.rows == 0 || h.width == 0 || h.classes == 0) return "an empty tensor";
  if (h.classes > int64_t{65535} * 64) return "too many classes";
  return "";
}

std::string padded_head_refusal(const NodeView& node, const GpuDescription& gpu) {
  if (std::string why = head_refusal(node, gpu); !why.empty()) return why;
  if (Head(node).classes % kRowMultiple == 0) return "the classes fill tiles as they are";
  // The copy takes 16 bytes at a time.
  if (operand_alignment(node, 1) % 16 != 0) return "weights that are not aligned";
  return "";
}

}  // namespace

std::vector<PlanEntry> cross_entropy_entries() {
  return {{Op::cross_entropy, "rows", loss_refusal, loss_forward},
          {Op::cross_entropy_grad, "rows", loss_refusal, loss_backward}};
}

std::vector<PlanEntry> loss_head_entries() {
  const auto plan = [](const NodeView& node, const GpuDescription& gpu) {
    return head_plan(node, gpu, false);
  };
  const auto padded_plan = [](const NodeView& node, const GpuDescription& gpu) {
    return head_plan(node, gpu, true);
  };
  std::vector<PlanEntry> entries;
  for (const Op op :
       {Op::linear_cross_entropy, Op::linear_cross_entropy_grad, Op::linear_cross_entropy_step}) {
    entries.push_back({op, "chunks", head_refusal, plan, true});
    entries.push_back({op, "padded_chunks", padded_head_refusal, padded_plan, true});
  }
  return entries;
}

}  // namespace brrr::cuda
