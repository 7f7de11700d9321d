#pragma once
// What a node that several graphs compute, such as a loop, knows of itself: items under names that
// no file has, which outlast the end of a graph.

#include <string>
#include <string_view>
#include <utility>

#include "modules/onnx/call.h"

namespace brrr::onnx {

/// A name that no other node of these names has.
inline std::string part_of(const Call& c) {
  for (const std::string_view out : c.node().outputs)
    if (!out.empty()) return std::string(out);
  return std::string(c.node().name);
}

class KeptItems {
 public:
  /// `part` tells the node apart.
  KeptItems(Call& c, const std::string& part)
      : lowering_(c.lowering()), names_(c.names()), part_(c.names().prefix + part) {}

  Lowering& lowering() const { return lowering_; }

  // One number under a name of its own: how far the loop is.
  const Item* find(std::string_view what) const { return lowering_.find(names_, name(what)); }
  void keep(std::string_view what, int64_t number) {
    lowering_.keep(names_, name(what), scalar(lowering_.build().graph, number, DType::i64));
  }
  void take(std::string_view what) { lowering_.take_kept(names_, name(what)); }

  // Items of a round, several of each kind.
  /// Null: there is none.
  const Item* find(std::string_view what, int64_t round, size_t i) const {
    return lowering_.find(names_, lowering_.text(numbered(what, round, i)));
  }
  void keep(std::string_view what, int64_t round, size_t i, Item item) {
    lowering_.keep(names_, lowering_.text(numbered(what, round, i)), std::move(item));
  }
  Item take(std::string_view what, int64_t round, size_t i) {
    return lowering_.take_kept(names_, numbered(what, round, i));
  }
  /// The name of one as other graphs have it.
  std::string qualified(std::string_view what, int64_t round, size_t i) const {
    return names_.qualified(numbered(what, round, i));
  }

 private:
  std::string_view name(std::string_view what) const {
    return lowering_.text(fmt::format("{}#{}", part_, what));
  }
  std::string numbered(std::string_view what, int64_t round, size_t i) const {
    return fmt::format("{}#{}.{}{}", part_, round, what, i);
  }

  Lowering& lowering_;
  Names& names_;
  std::string part_;
};

}  // namespace brrr::onnx
