// The row functions of a body, and the sums over its rows, as steps.

#include "backend/cpu/fusion/tile_compiler.h"
#include "ops/ops.h"

namespace brrr::cpu {

/// What was emitted becomes a step, and the sums of what it computes follow.
void TileCompiler::end_step() {
  for (size_t i = code_.size(); i-- > 1;) {
    TileInstruction &before = code_[i - 1], &after = code_[i];
    const bool runs =
        before.code == after.code && before.code >= tile_code(TileBinary{}, {}) &&
        before.code % kTileSources != tile_code(TileBinary{}, TileSource::kBf16) % kTileSources;
    if (runs && after.other < 0xffff) before.other = static_cast<uint16_t>(after.other + 1);
  }
  if (!code_.empty()) p_.steps_.push_back({std::move(code_), {}});
  code_.clear();
  for (TileRowStep& sum : sums_) p_.steps_.push_back({{}, std::move(sum)});
  sums_.clear();
  accumulator_ = {};
}

/// The entry under which a row function finds the f32 values of v.
std::optional<uint16_t> TileCompiler::tile_memory(ValueId v, const Shape& out) {
  const Place& at = place(v);
  if (at.kind == Place::operand && at.stored == DType::f32 && same_layout(at.view, out))
    return memory_of(at, out);
  if (at.kind == Place::memory && at.is_f32_tile) return at.index;
  return {};
}

bool TileCompiler::row_step(NodeId id) {
  const Node& node = body_.node(id);
  TileRowStep row;
  size_t rows_in = 1;  // operands that are whole rows
  if (is(node, Op::softmax)) {
    row.kind = TileRowStep::softmax;
  } else if (is(node, Op::softmax_grad)) {
    row.kind = TileRowStep::softmax_grad;
    rows_in = 2;
  } else if (is(node, Op::layer_norm, Op::rms_norm)) {
    row.kind = TileRowStep::norm;
    row.eps = static_cast<float>(node.attrs.get<double>("eps"));
  } else if (is(node, Op::layer_norm_grad, Op::rms_norm_grad)) {
    row.kind = TileRowStep::norm_grad;
    rows_in = 2;
  } else {
    return refuse(fmt::format("no row function for {}", node.op->name));
  }
  for (const ValueId& v : node.operands)
    if (body_.type(v).dtype != DType::f32)
      return refuse(fmt::format("{} of 16 bits", node.op->name));
  row.centred = is_centred(node);
  end_step();
  const Shape& x = body_.type(node.operands[0]).shape;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (k < rows_in) {
      const auto entry = tile_memory(root_of(id, k), x);
      if (!entry) return refuse(fmt::format("{} of a constant or a broadcast", node.op->name));
      row.in.push_back(*entry);
      continue;
    }
    const Place& at = place(node.operands[k]);
    int32_t operand;
    if (at.kind == Place::operand)
      operand = static_cast<int32_t>(at.number);
    else if (at.kind == Place::scalar && p_.scalars_[at.index].operand >= 0)
      operand = p_.scalars_[at.index].operand;  // [1]
    else
      return refuse(fmt::format("a parameter of {} that is computed", node.op->name));
    if (row.kind == TileRowStep::norm)
      (k == 1 ? row.weight : row.bias) = operand;
    else
      (k == 2 ? row.weight : k + 1 < node.operands.size() ? row.mean : row.rstd) = operand;
  }
  for (uint32_t port = 0; port < node.results.size(); ++port)
    row.results.push_back(result_of({id, port}));
  // The main result: to its tensor, or to a tile.
  Place& at = place({id, 0});
  at.kind = Place::memory;
  at.is_f32_tile = true;
  at.index = row.results[0] >= 0
                 ? memory_entry(TilePlace::result, static_cast<uint32_t>(row.results[0]), 4)
                 : memory_entry(TilePlace::buffer, static_cast<uint32_t>(p_.buffers_++), 4);
  row.out = at.index;
  if (row.kind == TileRowStep::norm_grad) {
    row.partial = p_.partial_floats_;
    p_.partial_floats_ += ((row.centred ? 2 : 1) * p_.width_ + 15) / 16 * 16;
  }
  for (NodeId user = id + 1; user < body_.size(); ++user)
    for (const ValueId& v : body_.node(user).operands)
      if (v.node == id && v.port > 0)
        return refuse(fmt::format("a statistic of {} is read", node.op->name));
  p_.steps_.push_back({{}, std::move(row)});
  return true;
}

bool TileCompiler::sum_step(NodeId id) {
  const Node& node = body_.node(id);
  const Type& x = body_.type(node.operands[0]);
  const auto& axes = node.attrs.get<std::vector<int64_t>>("axes");
  bool leading = static_cast<int>(axes.size()) == x.shape.rank() - 1;
  for (size_t i = 0; i < axes.size(); ++i) leading &= axes[i] == static_cast<int64_t>(i);
  if (!leading) return refuse("a sum that is not over all rows");
  if (x.dtype != DType::f32 && x.dtype != DType::bf16)
    return refuse(fmt::format("a sum of {}", name_of(x.dtype)));
  TileRowStep row;
  row.kind = TileRowStep::sum_rows;
  const auto entry = tile_memory(root_of(id, 0), x.shape);
  if (!entry) return refuse("a sum of something that is not computed here");
  for (NodeId user = id + 1; user < body_.size(); ++user)
    for (const ValueId& v : body_.node(user).operands)
      if (v.node == id) return refuse("a sum over rows is read");
  row.in.push_back(*entry);
  row.results.push_back(result_of({id, 0}));
  row.partial = p_.partial_floats_;
  p_.partial_floats_ += (p_.width_ + 15) / 16 * 16;
  sums_.push_back(std::move(row));
  return true;
}

}  // namespace brrr::cpu
