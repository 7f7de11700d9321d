#pragma once
// What a name of an ONNX graph stands for while the graph is lowered.

#include <string>
#include <vector>

#include "formats/onnx/onnx_file.h"
#include "ir/graph.h"

namespace brrr::onnx {

struct Item {
  enum class Kind { tensor, list, none };  // none: an optional without a value
  Kind kind = Kind::none;
  Value value;              // of a tensor: in the graph that is being built
  std::vector<Item> items;  // of a list (a sequence)
  /// What the file calls the elements of a tensor, where a node said it: integers of 2 and 4 bits
  /// lie in 8, and what is written like them keeps their range.
  ElementType element = ElementType::undefined;

  Item() = default;
  Item(Value v) : kind(Kind::tensor), value(v) {}  // NOLINT(google-explicit-constructor)
  Item(Value v, ElementType type) : kind(Kind::tensor), value(v), element(type) {}
  static Item list(std::vector<Item> of) {
    Item item;
    item.kind = Kind::list;
    item.items = std::move(of);
    return item;
  }
  bool is_tensor() const { return kind == Kind::tensor; }
};

}  // namespace brrr::onnx
