// Validation of the attributes and operands of attention and attention_grad.

#include <algorithm>
#include <array>

#include "ops/attention.h"
#include "ops/quantized/int8_rows.h"
#include "ops/support.h"

namespace brrr {
namespace {

void check_attributes(const InferContext& c, bool gradient) {
  c.attr<double>("scale");
  c.attr<double>("masked");
  const bool causal = c.attr<bool>("causal");
  const auto window = c.attr<int64_t>("window");
  if (window < 0) c.fail("window must be at least 0; got {}", window);
  const bool has_after = c.attrs.find("window_after") != nullptr;
  if (has_after) {
    if (causal) c.fail("window_after needs causal=false");
    if (const auto after = c.attr<int64_t>("window_after"); after < 0)
      c.fail("window_after must be at least 0; got {}", after);
  }
  if (c.attr<bool>("position") && !causal && window == 0 && !has_after)
    c.fail("a position needs causal=true or a window");
  c.attr<bool>("mask");
  for (const char* flag : {"starts", "mask_by_distance"})  // absent: false
    if (c.attrs.find(flag) != nullptr) c.attr<bool>(flag);
  if (c.attrs.find("longest") != nullptr) {
    if (c.attr<int64_t>("longest") < 1)
      c.fail("longest must be at least 1; got {}", c.attr<int64_t>("longest"));
    if (!c.attrs.get_or<bool>("starts", false)) c.fail("longest needs starts");
  }
  if (c.attrs.find("block_rows") != nullptr && c.attr<int64_t>("block_rows") < 1)
    c.fail("block_rows must be at least 1; got {}", c.attr<int64_t>("block_rows"));
  c.attr<bool>("lengths");
  const double p = c.attr<double>("p");
  if (!(p >= 0 && p < 1)) c.fail("p must be in [0, 1); got {}", p);
  ops::expect_stream(c);
  if (gradient) c.attr<bool>("dlse");
  const auto heads = c.attr<int64_t>("heads"), kv_heads = c.attr<int64_t>("kv_heads");
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
    c.fail("kv_heads must divide heads; got {} and {}", kv_heads, heads);
  for (const char* name : {"width", "value_width"})
    if (c.attr<int64_t>(name) < 1) c.fail("{} must be at least 1", name);
  c.attr<bool>("y_in_rows");
  int64_t known = 0;  // sources
  for (const char* name : {"q", "k", "v"}) {
    const auto& place = c.attr<std::vector<int64_t>>(name);
    if (place.size() != 3 || place[0] < 0 || place[0] > known || place[1] < 0 || place[2] < 0 ||
        place[2] > 1)
      c.fail("{} must be (source, column, whether in rows), new sources in order; got ({})", name,
             fmt::join(place, ","));
    known = std::max(known, place[0] + 1);
  }
}

/// Rank and dtype of the sources, so that the form can be read.
void check_sources(const InferContext& c) {
  size_t count = 0;
  for (const char* name : {"q", "k", "v"}) {
    const auto& place = c.attr<std::vector<int64_t>>(name);
    const auto source = static_cast<size_t>(place[0]);
    count = std::max(count, source + 1);
    if (source >= c.in.size()) c.fail("takes at least {} operands; got {}", count, c.in.size());
    const int least = place[2] != 0 ? 2 : 3;
    if (c.in[source].shape.rank() < least)
      c.fail("the source of {} needs at least {} axes; got {}", name, least, c.in[source].str());
    if (c.in[source].shape[-1].is_symbol())
      c.fail("the columns of a source must be known; got {}", c.in[source].str());
  }
  for (size_t i = 0; i < count; ++i) {
    ops::expect_float(c, i, "a source");
    ops::expect_same_dtype(c, 0, i);
  }
}

void check_places(const InferContext& c, const AttentionForm& form) {
  constexpr std::array<const char*, 3> kNames{"q", "k", "v"};
  for (const AttentionForm::Part& part : form.parts()) {
    const Type& source = c.in[static_cast<size_t>(part.place.source)];
    Shape wanted = form.batch;
    if (!part.place.in_rows) wanted.push_back(Dim(part.heads));
    wanted.push_back(part.rows);
    wanted.push_back(source.shape[-1]);
    if (source.shape != wanted || part.place.column + part.taken() > source.shape.size(-1))
      c.fail("{} of {} heads of {} columns from column {} on does not lie in {}; wanted {}",
             kNames[part.which], part.heads, part.width, part.place.column, source.str(),
             wanted.str());
  }
}

/// Keys and values may both lie in int8 rows, each alone in its source with a group for each head.
void check_stored_sources(const InferContext& c, const AttentionForm& form) {
  size_t stored = 0;
  for (const AttentionForm::Part& part : form.parts()) {
    const Type& source = c.in[static_cast<size_t>(part.place.source)];
    if (source.storage.is_plain()) continue;
    ++stored;
    if (part.which == 0 || form.gradient || !ops::is_int8_rows(source) ||
        source.storage.quantized.group != part.width ||
        part.taken() != form.columns(static_cast<size_t>(part.place.source)))
      c.fail("keys or values alone may lie in int8 rows, with a group for each head of {}; got {}",
             part.width, source.str());
  }
  if (stored == 1) c.fail("keys and values must both lie in int8 rows, or neither");
  for (size_t i = form.sources; i < c.in.size(); ++i)
    if (!c.in[i].storage.is_plain())
      c.fail("only keys and values may lie in int8 rows; got {}", c.in[i].str());
}

void expect_broadcasts_to(const InferContext& c, size_t i, const char* what, const Shape& to) {
  if (ops::broadcast(c, c.in[i].shape, to) != to)
    c.fail("{} must broadcast to {}; got {}", what, to.str(), c.in[i].str());
}

/// Validates the operands of attention over keys in blocks of a pool.
void check_blocks(const InferContext& c, const AttentionForm& form) {
  if (!form.starts || !form.lengths || !form.causal)
    c.fail("blocks need starts, lengths and causal=true");
  if (form.gradient) c.fail("keys in blocks have no gradient");
  if (form.mask || form.key) c.fail("blocks exclude a mask and dropout");
  if (form.longest > 0) c.fail("blocks exclude longest");
  const Type &table = c.in[*form.blocks], &lengths = c.in[*form.lengths];
  const Dim sequences(form.ragged_sequences);
  if (table.dtype != DType::i32 || table.shape.rank() != 2 || table.shape[0] != sequences)
    c.fail("blocks must be i32 [{}, M]; got {}", sequences.str(), table.str());
  if (lengths != Type{DType::i32, {sequences}})
    c.fail("lengths must be i32 [{}]; got {}", sequences.str(), lengths.str());
  if (!form.places.k.in_rows || !form.places.v.in_rows || form.keys.size() % form.block_rows != 0)
    c.fail("keys and values must lie in rows of whole blocks of {}; got {}", form.block_rows,
           c.in[static_cast<size_t>(form.places.k.source)].str());
}

void check_extras(const InferContext& c, const AttentionForm& form) {
  const auto per_sequence = [&](std::optional<size_t> i, const char* what) {
    if (!i) return;
    if (c.in[*i].dtype != DType::i32) c.fail("{} must be i32; got {}", what, c.in[*i].str());
    expect_broadcasts_to(c, *i, what, form.batch);
  };
  per_sequence(form.position, "position");
  if (!form.starts) per_sequence(form.lengths, "lengths");
  if (form.mask_by_distance) {
    if (!form.mask) c.fail("mask_by_distance needs a mask");
    ops::expect_float(c, *form.mask, "a mask by distance");
    const Shape& mask = c.in[*form.mask].shape;
    if (mask.rank() != 2 || mask.size(0) != form.places.heads || mask.size(1) % 2 == 0)
      c.fail("a mask by distance must be [{}, 2 L - 1]; got {}", form.places.heads, mask.str());
    if (form.position) c.fail("a mask by distance excludes a position");
  } else if (form.mask) {
    if (c.in[*form.mask].dtype != DType::boolean)
      ops::expect_float(c, *form.mask, "a mask that is not bool");
    expect_broadcasts_to(c, *form.mask, "mask", form.scores_shape());
  }
  if (form.starts) {
    const Type& starts = c.in[*form.starts];
    if (starts.dtype != DType::i32 || starts.shape.rank() != 1)
      c.fail("starts must be i32 [R + 1]; got {}", starts.str());
    if (!starts.shape[0].is_symbol() && starts.shape.size(0) < 2)
      c.fail("starts must name a sequence and the end; got {}", starts.str());
    if (form.batch.rank() != 0 || (form.queries != form.keys && !form.blocks))
      c.fail("starts need queries and keys of the same rows without batch axes; got {} and {}",
             c.in[0].str(), c.in[static_cast<size_t>(form.places.k.source)].str());
    if (form.position || (form.lengths && !form.blocks))
      c.fail("starts exclude a position and lengths");
  }
  if (form.blocks) check_blocks(c, form);
  if (form.key && c.in[*form.key] != Type{DType::i32, {2}})
    c.fail("key must be i32[2]; got {}", c.in[*form.key].str());
}

}  // namespace

AttentionForm checked_attention(const InferContext& c, bool gradient) {
  check_attributes(c, gradient);
  check_sources(c);
  const AttentionForm form(c.attrs, c.in, gradient);
  ops::expect_operands(c, form.operands);
  check_places(c, form);
  check_stored_sources(c, form);
  check_extras(c, form);
  return form;
}

}  // namespace brrr
