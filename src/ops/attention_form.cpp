#include <algorithm>

#include "ops/attention.h"
#include "ops/support.h"

namespace brrr {
namespace {

HeadPlace place_of(const Attrs& attrs, std::string_view name) {
  const auto& list = attrs.get<std::vector<int64_t>>(name);
  return {list[0], list[1], list[2] != 0};
}

}  // namespace

AttentionForm::AttentionForm(const Attrs& attrs, std::span<const Type> in, bool is_gradient)
    : gradient(is_gradient),
      causal(attrs.get<bool>("causal")),
      mask_by_distance(attrs.get_or<bool>("mask_by_distance", false)),
      window(attrs.get<int64_t>("window")),
      dtype(in[0].dtype) {
  if (attrs.find("window_after") != nullptr) window_after = attrs.get<int64_t>("window_after");
  places.heads = attrs.get<int64_t>("heads");
  places.kv_heads = attrs.get<int64_t>("kv_heads");
  places.width = attrs.get<int64_t>("width");
  places.value_width = attrs.get<int64_t>("value_width");
  places.q = place_of(attrs, "q");
  places.k = place_of(attrs, "k");
  places.v = place_of(attrs, "v");
  places.y_in_rows = attrs.get<bool>("y_in_rows");
  sources = static_cast<size_t>(std::max({places.q.source, places.k.source, places.v.source}) + 1);
  const Shape& q = in[0].shape;
  batch = q.without_last(places.q.in_rows ? 2 : 3);
  queries = q[-2];
  keys = in[static_cast<size_t>(places.k.source)].shape[-2];
  has_int8_keys = !in[static_cast<size_t>(places.k.source)].storage.is_plain();
  for (size_t i = 0; i < sources; ++i) {
    const Dim width = in[i].shape[-1];
    columns_.push_back(width.is_symbol() ? 0 : width.size());
  }
  size_t next = sources;
  if (gradient) {
    y = next++;
    lse = next++;
    dy = next++;
  }
  if (attrs.get<bool>("position")) position = next++;
  if (attrs.get<bool>("mask")) mask = next++;
  if (attrs.get<bool>("lengths")) lengths = next++;
  if (attrs.get_or<bool>("starts", false)) {
    starts = next++;
    if (*starts < in.size() && in[*starts].shape.rank() == 1 && !in[*starts].shape[0].is_symbol())
      ragged_sequences = in[*starts].shape.size(0) - 1;
    longest = attrs.get_or<int64_t>("longest", 0);
  }
  block_rows = attrs.get_or<int64_t>("block_rows", 0);
  if (block_rows > 0) {
    blocks = next++;
    if (*blocks < in.size() && in[*blocks].shape.rank() == 2 && !in[*blocks].shape[1].is_symbol())
      table_columns = in[*blocks].shape.size(1);
  }
  if (attrs.get<double>("p") > 0) key = next++;
  if (gradient && attrs.get<bool>("dlse")) dlse = next++;
  operands = next;
}

AttentionForm::AttentionForm(const Node& node, std::span<const Type> in)
    : AttentionForm(node.attrs, in, is(node, Op::attention_grad)) {}

Shape AttentionForm::y_shape() const {
  Shape s = batch;
  if (!places.y_in_rows) s.push_back(Dim(places.heads));
  s.push_back(queries);
  s.push_back(Dim(places.y_in_rows ? places.heads * places.value_width : places.value_width));
  return s;
}

Shape AttentionForm::lse_shape() const {
  Shape s = batch;
  s.push_back(Dim(places.heads));
  s.push_back(queries);
  return s;
}

Shape AttentionForm::scores_shape() const {
  Shape s = lse_shape();
  s.push_back(keys);
  return s;
}

HeadStrides AttentionForm::strides(size_t which) const {
  const Part part = parts()[which];
  const int64_t columns = columns_[static_cast<size_t>(part.place.source)], rows = part.rows.size();
  if (part.place.in_rows) return {part.place.column, rows * columns, part.width, columns};
  return {part.place.column, part.heads * rows * columns, rows * columns, columns};
}

HeadStrides AttentionForm::y_strides() const {
  const int64_t rows = queries.size(), width = places.value_width, all = places.heads * width;
  if (places.y_in_rows) return {0, rows * all, width, all};
  return {0, rows * all, rows * width, width};
}

std::array<AttentionForm::Part, 3> AttentionForm::parts() const {
  return {{{0, places.q, places.heads, places.width, queries},
           {1, places.k, places.kv_heads, places.width, keys},
           {2, places.v, places.kv_heads, places.value_width, keys}}};
}

std::optional<std::vector<AttentionForm::Part>> AttentionForm::partition(size_t source) const {
  std::vector<Part> list;
  for (const Part& part : parts())
    if (part.place.source == static_cast<int64_t>(source)) list.push_back(part);
  std::sort(list.begin(), list.end(),
            [](const Part& a, const Part& b) { return a.place.column < b.place.column; });
  int64_t next = 0;
  for (const Part& part : list) {
    if (part.place.column != next) return std::nullopt;
    next += part.taken();
  }
  if (next != columns_[source]) return std::nullopt;
  return list;
}

}  // namespace brrr
