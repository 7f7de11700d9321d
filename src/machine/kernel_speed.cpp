// The time of a node from the rates in KernelSpeed.
#include "machine/kernel_speed.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "formats/json_file.h"
#include "ops/attention.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::machine {
namespace {

/// Where a size stands on an axis of a grid: between `low` and `low + 1`, `share` of the way.
struct GridPlace {
  size_t low = 0;
  double share = 0;
};

GridPlace place_on(std::span<const int64_t> axis, int64_t size) {
  const auto inverse = [](int64_t n) { return 1 / static_cast<double>(std::max<int64_t>(n, 1)); };
  const double at = inverse(size);
  for (size_t i = 0; i + 1 < axis.size(); ++i) {
    const double from = inverse(axis[i]), to = inverse(axis[i + 1]);
    if (at > to) return {i, std::clamp((from - at) / (from - to), 0.0, 1.0)};
  }
  return {axis.size() - 2, 1};
}

/// Seconds of an operation at `places` on the axes of a grid of rates, the last axis innermost.
double inverse_rate(std::span<const double> rates, std::span<const GridPlace> places,
                    std::span<const size_t> sizes) {
  if (places.empty()) return 1 / rates[0];
  const size_t step = rates.size() / sizes[0];
  const GridPlace& p = places[0];
  const auto at = [&](size_t i) {
    return inverse_rate(rates.subspan(i * step, step), places.subspan(1), sizes.subspan(1));
  };
  return (1 - p.share) * at(p.low) + (p.share > 0 ? p.share * at(p.low + 1) : 0);
}

double dim(const Type& t, int axis) { return static_cast<double>(t.shape.size(axis)); }

/// The size of a product, in numbers: batches of products are counted with its rows.
struct ProductSize {
  double m = 0, n = 0, k = 0;
  double flops() const { return 2 * m * n * k; }
};

double product_seconds(const KernelSpeed& s, const ProductSize& size, DType dtype, bool ta, bool tb,
                       bool packed) {
  const ProductSpeed* speed = s.find_product(dtype, ta, tb, packed);
  if (speed == nullptr) return 0;
  return size.flops() / product_flops(*speed, static_cast<int64_t>(size.m),
                                      static_cast<int64_t>(size.n), static_cast<int64_t>(size.k));
}

double seconds_of_product(const KernelSpeed& s, const Node& node, std::span<const Type> in,
                          DType factors) {
  const Type &a = in[0], &b = in[1];
  const bool ta = node.attrs.get_or<bool>("transpose_a", false);
  const bool tb = node.op->product->is_scaled || node.attrs.get_or<bool>("transpose_b", false);
  const double n = dim(b, tb ? -2 : -1), k = dim(a, ta ? -2 : -1);
  const auto results = static_cast<double>(node.results[0].shape.elements());
  return product_seconds(s, {results / std::max(n, 1.0), n, k}, factors, ta, tb,
                         !b.storage.is_plain());
}

/// The logits, and where there are gradients dx and dw.
double seconds_of_head(const KernelSpeed& s, const Node& node, std::span<const Type> in) {
  const bool transposed = node.attrs.get_or<bool>("transpose_w", false);
  const double k = dim(in[0], -1), v = dim(in[1], transposed ? 0 : 1);
  const double rows = static_cast<double>(in[0].shape.elements()) / std::max(k, 1.0);
  const DType dtype = in[0].dtype;
  const bool packed = !in[1].storage.is_plain();
  double seconds = product_seconds(s, {rows, v, k}, dtype, false, transposed, packed);
  if (node.op->is_gradient)
    seconds += product_seconds(s, {rows, k, v}, dtype, false, !transposed, packed) +
               product_seconds(s, {v, k, rows}, dtype, true, false, false);
  return s.head * seconds;
}

double seconds_of_attention(const KernelSpeed& s, const Node& node, std::span<const Type> in,
                            double flops) {
  const AttentionForm form(node, in);
  const AttentionSpeed* speed = s.find_attention(form.dtype, form.gradient);
  if (speed == nullptr) return 0;
  const double seconds = flops / attention_flops(*speed,
                                                 std::max(form.queries.size(), form.keys.size()) /
                                                     std::max<int64_t>(1, form.ragged_sequences),
                                                 form.places.width);
  return form.key ? seconds * speed->dropout : seconds;
}

/// Arithmetic alone. `is_part`: of a fused kernel, whose parts do not load and store.
double arithmetic_seconds(const KernelSpeed& s, const Graph& g, NodeId id, bool is_part) {
  const Node& node = g.node(id);
  const OpDef& op = *node.op;
  const std::vector<Type> in = operand_types(g, node);
  const Cost cost = cost_of(g, id);
  if (op.is_attention) return seconds_of_attention(s, node, in, cost.flops);
  if (op.loss && op.loss->from_product) return seconds_of_head(s, node, in);
  if (op.product) return seconds_of_product(s, node, in, factor_dtype(g, id));
  // Convolutions and recurrent layers.
  if ((op.op_class == OpClass::contraction ||
       is(node, Op::lstm, Op::lstm_grad, Op::gru, Op::gru_grad)) &&
      cost.flops > 0) {
    constexpr double kOfAProduct = 0.7;
    const ProductSpeed* speed = s.find_product(in[0].dtype, false, false, false);
    return speed == nullptr ? 0 : cost.flops / (kOfAProduct * product_flops(*speed, 256, 256, 256));
  }
  double elements = 0;
  for (const Type& t : in) elements = std::max(elements, static_cast<double>(t.shape.elements()));
  for (const Type& t : node.results)
    elements = std::max(elements, static_cast<double>(t.shape.elements()));
  const bool is_simple = cost.flops <= elements;
  if (const auto at = s.elements.find(op.name); at != s.elements.end() && !(is_part && is_simple))
    return elements * at->second;
  return cost.flops * s.chained;
}

}  // namespace

DType factor_dtype(const Graph& g, NodeId id) {
  const Node& node = g.node(id);
  if (is(node, Op::fused)) {
    const Graph& body = fused_body(node);
    if (const NodeId product = product_of(body); product != kNoNode)
      return factor_dtype(body, product);
  }
  return node.attrs.get_or<int64_t>("left_bits", 0) == 8 ? DType::i8
                                                         : g.type(node.operands[0]).dtype;
}

const ProductSpeed* KernelSpeed::find_product(DType dtype, bool ta, bool tb, bool packed) const {
  const auto find = [&](DType t, bool with_packed) -> const ProductSpeed* {
    for (const ProductSpeed& p : products)
      if (p.dtype == t && p.packed == with_packed && p.transpose_b == tb &&
          (with_packed || p.transpose_a == ta))
        return &p;
    return nullptr;
  };
  // 16-bit floats without a row of their own are widened as bf16 is; what is 8 bits wide and no
  // integer is multiplied in bf16.
  const DType like = dtype == DType::f16 || is_fp8(dtype) ? DType::bf16 : dtype;
  for (const DType t : {dtype, like, DType::f32}) {
    if (const ProductSpeed* p = find(t, packed && !ta)) return p;
    if (const ProductSpeed* p = find(t, false)) return p;
    for (const ProductSpeed& p : products)
      if (p.dtype == t) return &p;
  }
  return nullptr;
}

const AttentionSpeed* KernelSpeed::find_attention(DType dtype, bool gradient) const {
  const DType like = bytes_of(dtype) == 2 ? DType::bf16 : DType::f32;
  for (const DType t : {dtype, like, DType::f32})
    for (const AttentionSpeed& a : attention)
      if (a.dtype == t && a.gradient == gradient) return &a;
  return nullptr;
}

double product_flops(const ProductSpeed& speed, int64_t m, int64_t n, int64_t k) {
  const GridPlace places[] = {place_on(kProductRows, m), place_on(kProductColumns, n),
                              place_on(kProductTerms, k)};
  constexpr size_t kSizes[] = {std::size(kProductRows), std::size(kProductColumns),
                               std::size(kProductTerms)};
  return 1 / inverse_rate(speed.flops, places, kSizes);
}

double attention_flops(const AttentionSpeed& speed, int64_t length, int64_t width) {
  const GridPlace places[] = {place_on(kAttentionLengths, length),
                              place_on(kAttentionWidths, width)};
  constexpr size_t kSizes[] = {std::size(kAttentionLengths), std::size(kAttentionWidths)};
  return 1 / inverse_rate(speed.flops, places, kSizes);
}

double kernel_seconds(const Graph& g, NodeId id, const KernelSpeed& s) {
  const Node& node = g.node(id);
  const Cost cost = cost_of(g, id);
  const double bytes = cost.bytes_read + cost.bytes_written;
  double arithmetic = 0;
  if (is(node, Op::fused)) {
    const Graph& body = fused_body(node);
    for (NodeId part = 0; part < body.size(); ++part)
      if (!body.is_input(part)) arithmetic += arithmetic_seconds(s, body, part, true);
  } else {
    arithmetic = arithmetic_seconds(s, g, id, false);
  }
  const double rate = bytes <= static_cast<double>(s.l2_bytes)   ? s.l2
                      : bytes <= static_cast<double>(s.l3_bytes) ? s.l3
                                                                 : s.memory;
  const double traffic = rate > 0 ? bytes / rate : 0;
  const double work = std::max(arithmetic, traffic);
  // A kernel that is done sooner than the team has started does not start it.
  return work + s.node_seconds + (work > s.team_seconds ? s.team_seconds : 0);
}

std::string to_json(const KernelSpeed& s) {
  io::Json j;
  for (const ProductSpeed& p : s.products)
    j["products"].push_back({{"dtype", name_of(p.dtype)},
                             {"transpose_a", p.transpose_a},
                             {"transpose_b", p.transpose_b},
                             {"packed", p.packed},
                             {"flops", p.flops}});
  for (const AttentionSpeed& a : s.attention)
    j["attention"].push_back({{"dtype", name_of(a.dtype)},
                              {"gradient", a.gradient},
                              {"flops", a.flops},
                              {"dropout", a.dropout}});
  j["elements"] = s.elements;
  j["chained"] = s.chained;
  j["l2"] = s.l2;
  j["l3"] = s.l3;
  j["memory"] = s.memory;
  j["l2_bytes"] = s.l2_bytes;
  j["l3_bytes"] = s.l3_bytes;
  j["node_seconds"] = s.node_seconds;
  j["team_seconds"] = s.team_seconds;
  j["head"] = s.head;
  return j.dump();
}

KernelSpeed kernel_speed_from_json(std::string_view text) {
  const io::Json j = io::Json::parse(text);
  KernelSpeed s;
  const auto rates = [](const io::Json& row, size_t count) {
    auto list = row.at("flops").get<std::vector<double>>();
    const bool is_sound =
        list.size() == count &&
        std::all_of(list.begin(), list.end(), [](double r) { return r > 0 && std::isfinite(r); });
    if (!is_sound) throw std::invalid_argument("rates");
    return list;
  };
  for (const io::Json& row : j.at("products"))
    s.products.push_back({dtype_from_name(row.at("dtype").get<std::string>()).value(),
                          row.at("transpose_a"), row.at("transpose_b"), row.at("packed"),
                          rates(row, std::size(kProductRows) * std::size(kProductColumns) *
                                         std::size(kProductTerms))});
  for (const io::Json& row : j.at("attention"))
    s.attention.push_back({dtype_from_name(row.at("dtype").get<std::string>()).value(),
                           row.at("gradient"),
                           rates(row, std::size(kAttentionLengths) * std::size(kAttentionWidths)),
                           row.at("dropout")});
  j.at("elements").get_to(s.elements);
  j.at("l2_bytes").get_to(s.l2_bytes);
  j.at("l3_bytes").get_to(s.l3_bytes);
  for (const auto& [name, field] :
       {std::pair{"chained", &s.chained}, std::pair{"l2", &s.l2}, std::pair{"l3", &s.l3},
        std::pair{"memory", &s.memory}, std::pair{"node_seconds", &s.node_seconds},
        std::pair{"team_seconds", &s.team_seconds}, std::pair{"head", &s.head}}) {
    j.at(name).get_to(*field);
    if (!(*field >= 0) || !std::isfinite(*field)) throw std::invalid_argument(name);
  }
  return s;
}

}  // namespace brrr::machine
