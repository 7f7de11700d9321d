// Sequences and optionals. They exist while a graph is lowered: operators on them move values about
// and append nothing, but where tensors are cut or joined.

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

const std::vector<Item>& sequence(Call& c, size_t i) {
  const Item& item = c.item(i);
  if (item.kind != Item::Kind::list)
    c.fail("operand {} must be a sequence; got {}", i, item.is_tensor() ? "a tensor" : "nothing");
  return item.items;
}

/// The place that operand i names in a sequence, which may be `size` itself where `behind`.
size_t place(Call& c, size_t i, size_t size, bool behind) {
  const std::vector<int64_t> given = c.integers(i);
  const auto n = static_cast<int64_t>(size);
  if (given.size() != 1) c.fail("a position must be one number; got {}", given.size());
  const int64_t at = given[0] < 0 ? given[0] + n : given[0];
  if (at < 0 || at >= n + (behind ? 1 : 0)) c.fail("position {} of a sequence of {}", given[0], n);
  return static_cast<size_t>(at);
}

void sequence_empty(Call& c) { c.out(0, Item::list({})); }

void sequence_construct(Call& c) {
  std::vector<Item> items;
  for (size_t i = 0; i < c.inputs(); ++i) items.emplace_back(c.in(i));
  c.out(0, Item::list(std::move(items)));
}

void sequence_insert(Call& c) {
  std::vector<Item> items = sequence(c, 0);
  const size_t at = c.has(2) ? place(c, 2, items.size(), true) : items.size();
  items.insert(items.begin() + static_cast<int64_t>(at), Item(c.in(1)));
  c.out(0, Item::list(std::move(items)));
}

void sequence_erase(Call& c) {
  std::vector<Item> items = sequence(c, 0);
  if (items.empty()) c.fail("the sequence is empty");
  const size_t at = c.has(1) ? place(c, 1, items.size(), false) : items.size() - 1;
  items.erase(items.begin() + static_cast<int64_t>(at));
  c.out(0, Item::list(std::move(items)));
}

void sequence_at(Call& c) {
  const size_t at = place(c, 1, sequence(c, 0).size(), false);
  c.out(0, Item(sequence(c, 0)[at]));
}

void sequence_length(Call& c) { c.out(c.scalar(std::ssize(sequence(c, 0)), DType::i64)); }

/// The sizes of the parts that operand 1 names: each of them, or one for all but the last.
std::vector<int64_t> part_sizes(Call& c, int64_t size) {
  if (!c.has(1)) return std::vector<int64_t>(static_cast<size_t>(size), 1);
  const std::vector<int64_t> given = c.integers(1);
  int64_t total = 0;
  for (const int64_t part : given)
    if (part < 0 || __builtin_add_overflow(total, part, &total)) c.fail("a part of {}", part);
  if (c.in(1).shape().rank() > 0) {
    if (total != size) c.fail("parts of {} do not make an axis of {}", total, size);
    return given;
  }
  if (total == 0) c.fail("parts of 0");
  std::vector<int64_t> sizes;
  for (int64_t at = 0; at < size; at += std::min(total, size - at))
    sizes.push_back(std::min(total, size - at));
  return sizes;
}

Value without_axis(Value x, int axis) {
  Shape shape = x.shape();
  shape.erase(axis);
  return reshape(x, shape);
}

void split_to_sequence(Call& c) {
  const Value x = c.in(0);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), x.shape().rank()));
  const bool keeps_axis = c.has(1) || c.integer("keepdims", 1) != 0;
  std::vector<Item> items;
  int64_t at = 0;
  for (const int64_t size : part_sizes(c, x.shape().size(axis))) {
    const Value part = slice(x, axis, at, size);
    items.emplace_back(keeps_axis ? part : without_axis(part, axis));
    at += size;
  }
  c.out(0, Item::list(std::move(items)));
}

void concat_from_sequence(Call& c) {
  const bool is_new = c.integer("new_axis", 0) != 0;
  std::vector<Value> parts;
  int axis = 0;
  for (const Item& item : sequence(c, 0)) {
    if (!item.is_tensor()) c.fail("the sequence must hold tensors");
    const int rank = item.value.shape().rank();
    axis = static_cast<int>(c.axis(c.integer("axis"), rank + (is_new ? 1 : 0)));
    Shape shape = item.value.shape();
    if (is_new) shape.insert(axis, Dim(1));
    parts.push_back(is_new ? reshape(item.value, shape) : item.value);
  }
  if (parts.empty()) c.fail("the sequence is empty");
  c.out(parts.size() == 1 ? parts[0] : concat(parts, axis));
}

/// The body once for each element of the first sequence; other operands are sequences of the same
/// length, or what every element takes.
void sequence_map(Call& c) {
  const GraphProto& body = c.subgraph("body");
  const size_t count = sequence(c, 0).size();
  std::vector<std::vector<Item>> results(c.outputs());
  for (size_t k = 0; k < count; ++k) {
    std::vector<Lowering::Passed> inputs;
    for (size_t i = 0; i < c.inputs(); ++i) {
      const std::string source = c.names().source(c.node().inputs[i]);
      const Item& item = c.item(i);
      if (item.kind != Item::Kind::list) {
        inputs.push_back({item, source});
        continue;
      }
      if (item.items.size() != count)
        c.fail("sequences of {} and {} elements", count, item.items.size());
      inputs.push_back({item.items[k], fmt::format("{}#{}", source, k)});
    }
    const std::vector<Item> out = c.lowering().lower_in_place(
        body, c.names(), fmt::format("{}.{}", c.node().outputs[0], k), inputs);
    if (out.size() < results.size()) c.fail("the body gives {} results", out.size());
    for (size_t i = 0; i < results.size(); ++i) results[i].push_back(out[i]);
  }
  for (size_t i = 0; i < results.size(); ++i) c.out(i, Item::list(std::move(results[i])));
}

// -- optionals
// -------------------------------------------------------------------------------------

void optional_of(Call& c) { c.out(0, c.has(0) ? Item(c.item(0)) : Item()); }

void optional_has_element(Call& c) { c.out(c.scalar(c.has(0), DType::boolean)); }

void optional_get_element(Call& c) {
  if (!c.has(0)) c.fail("the optional has no value");
  c.out(0, Item(c.item(0)));
}

const OperatorRow kSequenceRows[] = {
    {"", "SequenceEmpty", sequence_empty},
    {"", "SequenceConstruct", sequence_construct},
    {"", "SequenceInsert", sequence_insert},
    {"", "SequenceErase", sequence_erase},
    {"", "SequenceAt", sequence_at},
    {"", "SequenceLength", sequence_length},
    {"", "SplitToSequence", split_to_sequence},
    {"", "ConcatFromSequence", concat_from_sequence},
    {"", "SequenceMap", sequence_map},
    {"", "Optional", optional_of},
    {"", "OptionalHasElement", optional_has_element},
    {"", "OptionalGetElement", optional_get_element},
};

}  // namespace

std::span<const OperatorRow> sequence_operators() { return kSequenceRows; }

}  // namespace brrr::onnx
