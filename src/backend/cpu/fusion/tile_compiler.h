#pragma once
// From the body of a fused node to the steps of a TileProgram, in the order of the body: an operand
// is read, and a result written, where the body does so.

#include <map>
#include <optional>

#include "backend/cpu/fusion/tile_program.h"

namespace brrr::cpu {

/// Whether an operand has an element for each of `out`; leading axes of size 1 do not matter.
inline bool same_layout(const Shape& view, const Shape& out) {
  return view.elements() == out.elements();
}
/// How a dtype is read and written; nothing for those that lanes cannot hold.
std::optional<TileCode> load_code(DType t);
std::optional<TileCode> store_code(DType t);

class TileCompiler {
 public:
  TileCompiler(const Graph& body, TileProgram& program) : body_(body), p_(program) {}
  void run();

 private:
  /// Where a value of the body is to be had.
  struct Place {
    enum Kind { nowhere, scalar, operand, memory } kind = nowhere;
    uint16_t index = 0;         // scalar, memory
    uint32_t number = 0;        // operand
    DType stored = DType::f32;  // as the memory holds it
    Shape view;                 // operand: its shape as the reader sees it
    int32_t slot = -1;          // memory: the slot, to be freed after the last use
    bool is_f32_tile = false;   // memory that a row function can read
    bool drawn = false;         // 16 random bits
  };
  struct Source {
    TileSource source = TileSource::kScalar;
    uint16_t index = 0;
  };

  bool refuse(std::string reason) {
    if (p_.refusal_.empty()) p_.refusal_ = std::move(reason);
    return false;
  }
  bool survey();
  bool compile(NodeId id);
  ValueId root_of(NodeId id, size_t k) const;
  bool alias(NodeId id);
  bool pointwise(NodeId id);
  bool row_step(NodeId id);
  bool sum_step(NodeId id);
  bool product(NodeId id);
  void end_step();
  bool call(const Node& node, DType dtype, Source source, uint16_t accumulator);
  bool unary(NodeId id);
  bool binary(NodeId id);
  bool select(NodeId id);
  bool cast(NodeId id);
  bool dropout(NodeId id);
  bool begin_pointwise(NodeId id);
  bool define(NodeId id, bool exact);

  Place& place(ValueId v) { return places_[v.node][v.port]; }
  bool load(ValueId v);
  bool source_of(ValueId v, const Shape& out, Source& source, bool bf16);
  bool move_to_slot(ValueId v);
  void save_accumulator();
  void keep(ValueId v);
  std::optional<uint16_t> memory_of(const Place& place, const Shape& out);
  uint16_t memory_entry(TilePlace::Kind kind, uint32_t index, int64_t step);
  std::optional<uint16_t> tile_memory(ValueId v, const Shape& out);
  uint16_t draw(const Node& node, uint32_t key);
  void used(ValueId v);
  void emit(uint16_t code, uint16_t from = 0, uint16_t other = 0);
  void emit(TileCode code, uint16_t from = 0, uint16_t other = 0) {
    emit(static_cast<uint16_t>(code), from, other);
  }
  uint16_t scalar_bits(float bits);
  int result_of(ValueId v) const;

  const Graph& body_;
  TileProgram& p_;
  std::vector<std::vector<Place>> places_;
  std::vector<uint32_t> operand_of_;         // of an input node
  std::vector<int> phase_;                   // of a node: how many row steps come before it
  std::vector<std::vector<int>> uses_left_;  // by element-wise nodes of the same phase
  std::vector<std::vector<bool>> needs_tile_;
  std::map<std::pair<uint32_t, std::string>, uint16_t> entries_;
  std::vector<int32_t> free_slots_;
  std::vector<TileInstruction> code_;
  std::vector<TileRowStep> sums_;  // of the step that is being emitted
  ValueId accumulator_;            // the value that is in it
};

}  // namespace brrr::cpu
