#include "backend/cpu/fusion/tile_compiler.h"

#include <bit>
#include <cmath>

#include "backend/cpu/simd/row_support.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "ops/spatial/windows.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kFlatTile = 2048;   // elements of a tile without rows
constexpr int64_t kRowTile = 4096;    // elements that the rows of a tile have at most, roughly
constexpr int64_t kRowsTogether = 8;  // that sums over rows fold at a time

bool is_row_op(const Node& node) {
  return node.op->op_class == OpClass::normalisation || is(node, Op::sum);
}

bool is_product(const Node& node) { return node.op->op_class == OpClass::contraction; }

bool is_computed(const Node& node) {
  return is_pointwise(*node.op) || is_row_op(node) || is_product(node);
}

}  // namespace

std::optional<TileCode> load_code(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return TileCode::kLoad32;
    case DType::bf16:
      return TileCode::kLoadBf16;
    case DType::f16:
      return TileCode::kLoadF16;
    case DType::boolean:
      return TileCode::kLoadBool;
    default:
      return {};
  }
}

std::optional<TileCode> store_code(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return TileCode::kStore32;
    case DType::bf16:
      return TileCode::kStoreBf16;
    case DType::f16:
      return TileCode::kStoreF16;
    case DType::boolean:
      return TileCode::kStoreBool;
    default:
      return {};
  }
}

int TileCompiler::result_of(ValueId v) const {
  for (size_t i = 0; i < body_.outputs().size(); ++i)
    if (body_.outputs()[i].value == v) return static_cast<int>(i);
  return -1;
}

/// The number of elements, the rows, and who needs what.
bool TileCompiler::survey() {
  const size_t n = body_.size();
  places_.resize(n);
  uses_left_.resize(n);
  needs_tile_.resize(n);
  operand_of_.resize(n);
  phase_.resize(n);
  int phase = 0;
  uint32_t operand = 0;
  const Shape* rows = nullptr;
  bool has_sums = false;
  for (NodeId id = 0; id < n; ++id) {
    const Node& node = body_.node(id);
    places_[id].resize(node.results.size());
    uses_left_[id].resize(node.results.size());
    needs_tile_[id].resize(node.results.size());
    if (body_.is_input(id)) operand_of_[id] = operand++;
    if (!is_row_op(node)) {
      phase_[id] = phase;
      if (is_pointwise(*node.op)) p_.elements_ = node.results[0].shape.elements();
      continue;
    }
    phase_[id] = is(node, Op::sum) ? phase : phase++;  // sums wait for the end of the step
    const Shape& x = body_.type(node.operands[0]).shape;
    if (x.rank() < 1) return refuse("a row function of a scalar");
    if (rows != nullptr && (rows->size(-1) != x.size(-1) || rows->elements() != x.elements()))
      return refuse(fmt::format("rows of {} and of {}", rows->str(), x.str()));
    rows = &x;
    p_.elements_ = x.elements();
    has_sums |= is(node, Op::layer_norm_grad, Op::rms_norm_grad, Op::sum);
  }
  for (NodeId id = 0; id < n; ++id) {
    const Node& node = body_.node(id);
    if (is(node, Op::reshape)) continue;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ValueId v = root_of(id, k);
      if (is_row_op(node) || phase_[v.node] != phase_[id])
        needs_tile_[v.node][v.port] = true;
      else if (is_pointwise(*node.op))
        ++uses_left_[v.node][v.port];
    }
  }
  p_.tile_ = kFlatTile;
  if (rows == nullptr) return true;
  p_.width_ = rows->size(-1);
  if (p_.elements_ == 0) return refuse("rows without elements");
  const int64_t count = p_.elements_ / p_.width_;
  int64_t tile_rows = std::max<int64_t>(1, kRowTile / p_.width_);
  if (tile_rows >= 4) tile_rows = tile_rows / 4 * 4;
  if (has_sums) {
    p_.chunk_rows_ = RowChunks(count, p_.width_).size;
    tile_rows = std::max(kRowsTogether, tile_rows / kRowsTogether * kRowsTogether);
    tile_rows = std::min(tile_rows, p_.chunk_rows_);
  }
  p_.tile_ = std::min(count, tile_rows) * p_.width_;
  return true;
}

void TileCompiler::run() {
  if (!survey()) return;
  for (const Output& o : body_.outputs()) {
    p_.result_dtypes_.push_back(body_.type(o.value).dtype);
    if (result_of(o.value) != static_cast<int>(p_.result_dtypes_.size()) - 1)
      return void(refuse("one value is two results"));
    const Node& node = body_.node(o.value.node);
    if (!is_computed(node)) return void(refuse(fmt::format("{} is a result", node.op->name)));
  }
  for (NodeId id = 0; id < body_.size(); ++id)
    if (!compile(id)) return;
  end_step();
  // Nothing has to be held for a tile: the longer, the less there is to do between tiles.
  if (p_.width_ == 0 && !p_.has_product() && p_.stagings_.empty() && p_.draws_.empty() &&
      p_.buffers_ == 0)
    p_.tile_ = kElementGrain;
  if (p_.places_.size() > static_cast<size_t>(kMaxTileMemory)) refuse("too many tensors");
  if (p_.scalars_.size() > 0xffff) refuse("too many scalars");
}

bool TileCompiler::compile(NodeId id) {
  const Node& node = body_.node(id);
  const Op op = node.op->id;
  if (body_.is_input(id)) {
    const Type& t = node.results[0];
    Place& at = place({id, 0});
    if (t.shape.elements() == 1 && (load_code(t.dtype))) {
      at.kind = Place::scalar;
      at.index = static_cast<uint16_t>(p_.scalars_.size());
      p_.scalars_.push_back({static_cast<int32_t>(operand_of_[id]), t.dtype, 0});
    } else {
      at.kind = Place::operand;
      at.number = operand_of_[id];
      at.stored = t.dtype;
      at.view = t.shape;
    }
    return true;
  }
  if (op == Op::full) {
    const Type& t = node.results[0];
    if (!load_code(t.dtype)) return refuse(fmt::format("constants of {}", name_of(t.dtype)));
    std::byte stored[8];  // rounded to the dtype
    store_constant(node, 0, stored);
    Place& at = place({id, 0});
    at.kind = Place::scalar;
    at.index = scalar_bits(tile_lane(t.dtype, stored));
    return true;
  }
  if (op == Op::random_bits) {
    Place& at = place({id, 0});
    if (node.results[0].shape.elements() != p_.elements_)
      return refuse("random bits that broadcast");
    at.kind = Place::memory;
    at.index = draw(node, operand_of_[node.operands[0].node]);
    at.drawn = true;
    return true;
  }
  if (op == Op::reshape || op == Op::broadcast_to) return alias(id);
  if (op == Op::sum) return sum_step(id);
  if (is_product(node)) return product(id);
  if (is_row_op(node)) return row_step(id);
  if (is_pointwise(*node.op)) return pointwise(id);
  return refuse(fmt::format("{} cannot be part of a tile", node.op->name));
}

/// What operand k of a node is, through reshapes of what is computed here.
ValueId TileCompiler::root_of(NodeId id, size_t k) const {
  const ValueId v = body_.node(id).operands[k];
  ValueId root = v;
  while (is(body_.node(root.node), Op::reshape)) root = body_.node(root.node).operands[0];
  return is_computed(body_.node(root.node)) ? root : v;
}

/// reshape and broadcast_to: another way to look at an operand or a constant.
bool TileCompiler::alias(NodeId id) {
  const Node& node = body_.node(id);
  const Shape &from = body_.type(node.operands[0]).shape, &to = node.results[0].shape;
  Place at = place(node.operands[0]);
  if (is(node, Op::reshape) && is_computed(body_.node(root_of(id, 0).node)))
    return true;  // its readers look through it
  if (at.kind == Place::operand) {
    if (is(node, Op::reshape)) {
      if (at.view.elements() != from.elements()) return refuse("a reshape of a broadcast");
      at.view = to;
    }
  } else if (at.kind != Place::scalar) {
    return refuse(fmt::format("{} of a computed value", node.op->name));
  }
  place({id, 0}) = at;
  return true;
}

/// The product is in memory, block by block, as unrounded f32.
bool TileCompiler::product(NodeId id) {
  const Type& t = body_.node(id).results[0];
  if (id != product_of(body_)) return refuse("a second product");
  if (p_.width_ > 0) return refuse("rows of a product");
  if (t.shape.elements() == 0 || t.shape.elements() != p_.elements_)
    return refuse(
        fmt::format("a product of {} elements beside {}", t.shape.elements(), p_.elements_));
  if (!is_compute_float(t.dtype)) return refuse(fmt::format("a product of {}", name_of(t.dtype)));
  // With channels first, the windows of a channel of a convolution are a row.
  p_.product_columns_ =
      is(body_.node(id), Op::conv) && !ops::has_channels_last(body_.node(id).attrs)
          ? t.shape.elements() / (t.shape.size(0) * t.shape.size(1))
          : t.shape.size(-1);
  const uint16_t entry = memory_entry(TilePlace::product, 0, 4);
  if (t.dtype == DType::f32 && result_of({id, 0}) < 0) {
    Place& at = place({id, 0});
    at.kind = Place::memory;
    at.index = entry;
    return true;
  }
  save_accumulator();
  emit(TileCode::kLoad32, entry);
  return define(id, false);
}

// -- emitting

void TileCompiler::emit(uint16_t code, uint16_t from, uint16_t other) {
  TileInstruction t;
  t.code = code;
  t.from = from;
  t.other = other;
  code_.push_back(t);
}

uint16_t TileCompiler::scalar_bits(float bits) {
  p_.scalars_.push_back({-1, DType::f32, bits});
  return static_cast<uint16_t>(p_.scalars_.size() - 1);
}

uint16_t TileCompiler::memory_entry(TilePlace::Kind kind, uint32_t index, int64_t step) {
  for (size_t k = 0; k < p_.places_.size(); ++k)
    if (p_.places_[k].kind == kind && p_.places_[k].index == index) return static_cast<uint16_t>(k);
  p_.places_.push_back({kind, index, step});
  return static_cast<uint16_t>(p_.places_.size() - 1);
}

/// The memory table's entry for an operand as `out` reads it, or for what is in memory anyway.
std::optional<uint16_t> TileCompiler::memory_of(const Place& at, const Shape& out) {
  if (at.kind == Place::memory) return at.index;
  const auto bytes = static_cast<int64_t>(bytes_of(at.stored));
  if (same_layout(at.view, out)) return memory_entry(TilePlace::operand, at.number, bytes);
  const auto key = std::make_pair(at.number, at.view.str() + out.str());
  if (auto found = entries_.find(key); found != entries_.end()) return found->second;
  const Type view[] = {{at.stored, at.view}};
  p_.stagings_.push_back({at.number, RowSpace(out, view), bytes});
  const uint16_t entry =
      memory_entry(TilePlace::staged, static_cast<uint32_t>(p_.stagings_.size() - 1), bytes);
  entries_.emplace(key, entry);
  return entry;
}

uint16_t TileCompiler::draw(const Node& node, uint32_t key) {
  p_.draws_.push_back({key, static_cast<uint32_t>(node.attrs.get<int64_t>("stream"))});
  return memory_entry(TilePlace::drawn, static_cast<uint32_t>(p_.draws_.size() - 1), 2);
}

/// Before something else goes into the accumulator: a slot for what is still needed of it.
void TileCompiler::save_accumulator() {
  if (accumulator_.node == kNoNode) return;
  Place& at = place(accumulator_);
  if (at.kind != Place::nowhere || uses_left_[accumulator_.node][accumulator_.port] == 0) return;
  int32_t slot;
  if (free_slots_.empty()) {
    slot = static_cast<int32_t>(p_.slots_++);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  at.kind = Place::memory;
  at.index = memory_entry(TilePlace::slot, static_cast<uint32_t>(slot), 0);
  at.slot = slot;
  emit(TileCode::kStore32, at.index);
}

/// v gets a slot if it is nowhere but in the accumulator, even if nothing reads it after this node.
void TileCompiler::keep(ValueId v) {
  if (!(accumulator_ == v) || place(v).kind != Place::nowhere) return;
  ++uses_left_[v.node][v.port];
  save_accumulator();
  --uses_left_[v.node][v.port];
}

void TileCompiler::used(ValueId v) {
  if (uses_left_[v.node][v.port] > 0) --uses_left_[v.node][v.port];
}

/// v into the accumulator.
bool TileCompiler::load(ValueId v) {
  if (accumulator_ == v) return true;
  save_accumulator();
  const Place& at = place(v);
  BRRR_CHECK(at.kind != Place::nowhere, "a value is lost");
  if (at.kind == Place::scalar) {
    emit(TileCode::kLoadScalar, at.index);
  } else {
    // An operand is read as its reader lies: every reader has all the elements.
    const auto entry = memory_of(at, body_.type(v).shape);
    emit(at.drawn ? TileCode::kLoadU16 : *load_code(at.stored), *entry);
  }
  accumulator_ = v;
  return true;
}

/// v as the second operand; afterwards the accumulator may hold something else.
bool TileCompiler::source_of(ValueId v, const Shape& out, Source& source, bool bf16) {
  keep(v);
  const Place& at = place(v);
  if (at.kind == Place::scalar) {
    source = {TileSource::kScalar, at.index};
    return true;
  }
  const uint16_t entry = *memory_of(at, out);
  const DType stored = at.stored;
  if (!at.drawn && (stored == DType::f32 || stored == DType::i32)) {
    source = {TileSource::k32, entry};
    return true;
  }
  if (!at.drawn && stored == DType::bf16 && bf16) {
    source = {TileSource::kBf16, entry};
    return true;
  }
  // Converted once, into a slot of its own.
  save_accumulator();
  emit(at.drawn ? TileCode::kLoadU16 : *load_code(stored), entry);
  accumulator_ = {};
  const auto slot = static_cast<uint32_t>(p_.slots_++);
  const uint16_t to = memory_entry(TilePlace::slot, slot, 0);
  emit(TileCode::kStore32, to);
  source = {TileSource::k32, to};
  return true;
}

/// The accumulator is now result 0 of the node. `exact`: a 16-bit dtype needs no rounding.
bool TileCompiler::define(NodeId id, bool exact) {
  const Node& node = body_.node(id);
  const DType dtype = node.results[0].dtype;
  const ValueId v{id, 0};
  accumulator_ = v;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ValueId v_in = root_of(id, k);
    Place& at = place(v_in);
    if (at.slot >= 0 && uses_left_[v_in.node][v_in.port] == 0) {
      free_slots_.push_back(at.slot);
      at.slot = -1;
    }
  }
  const bool read_again = uses_left_[id][0] > 0 || needs_tile_[id][0];
  if (!exact && read_again && dtype == DType::bf16) emit(tile_code(TileUnary::kRoundBf16));
  if (!exact && read_again && dtype == DType::f16) emit(tile_code(TileUnary::kRoundF16));
  Place& at = place(v);
  const int result = result_of(v);
  if (result >= 0) {
    const uint16_t entry = memory_entry(TilePlace::result, static_cast<uint32_t>(result),
                                        static_cast<int64_t>(bytes_of(dtype)));
    emit(*store_code(dtype), entry);
    at.kind = Place::memory;
    at.index = entry;
    at.stored = dtype;
    at.is_f32_tile = dtype == DType::f32;
  }
  if (needs_tile_[id][0] && !at.is_f32_tile) {
    const uint16_t entry = memory_entry(TilePlace::buffer, static_cast<uint32_t>(p_.buffers_++), 4);
    emit(TileCode::kStore32, entry);
    at.kind = Place::memory;
    at.index = entry;
    at.stored = dtype == DType::i32 || dtype == DType::boolean ? DType::i32 : DType::f32;
    at.is_f32_tile = is_compute_float(dtype);
  }
  return true;
}

}  // namespace brrr::cpu
