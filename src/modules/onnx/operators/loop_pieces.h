#pragma once
// How far a loop is that runs in several programs.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "modules/onnx/call.h"
#include "modules/onnx/operators/kept_items.h"
#include "ops/control.h"

namespace brrr::onnx {

/// A loop with rows that its condition ends: how many rows there are decides a size. It runs in
/// pieces, each a loop op with room for as many rows. Behind each the graph ends, and the next one
/// begins with what the piece gave: carried values, rows, and whether the condition still holds.
class LoopPieces {
 public:
  /// `part` tells the loop apart; `stacked`: results that have a row of each iteration.
  LoopPieces(Call& c, const std::string& part, const std::vector<Item>& carried, size_t stacked)
      : kept_(c, part) {
    const Item* piece = kept_.find("piece");
    if (piece == nullptr) {
      carried_ = carried;
      rows_.resize(stacked, Item::list({}));
      return;
    }
    piece_ = known(*piece);
    done_ = known(*kept_.find("done", piece_, 0));
    for (size_t i = 0; i < stacked; ++i) rows_.push_back(*kept_.find("rows", piece_, i));
    std::vector<Item> results;
    for (size_t i = 0; i < carried.size() + stacked; ++i)
      results.push_back(*kept_.find("result", piece_, i));
    take(known(*kept_.find("end", piece_, 0)), results);
  }

  bool has_begun() const { return piece_ > 0; }
  /// Whether the condition holds behind the last piece.
  bool goes_on() const { return goes_on_; }
  int64_t done() const { return done_; }
  const std::vector<Item>& carried() const { return carried_; }
  /// More of them in each piece, so that a long loop has few.
  int64_t length() const { return kFirstPiece << std::min<int64_t>(piece_, 20); }

  /// Takes what the piece gave, whose `bound` iterations have stacked their conditions last. Ends
  /// the graph where that is not known.
  void add(const LoopResults& r, int64_t bound) {
    Lowering& lowering = kept_.lowering();
    Graph& g = lowering.build().graph;
    const Value last = gather(r.stacked.back(), scalar(g, bound - 1, DType::i64), 0);
    const Value still = logical_and(equal(r.iterations, scalar(g, bound, DType::i32)), last);
    const Value end =
        cast(r.iterations, DType::i64) * scalar(g, 2, DType::i64) + cast(still, DType::i64);
    std::vector<Item> results(r.carried.begin(), r.carried.end());
    results.insert(results.end(), r.stacked.begin(), r.stacked.end() - 1);
    kept_.keep("piece", piece_);
    kept_.keep("done", piece_, 0, scalar(g, done_, DType::i64));
    for (size_t i = 0; i < rows_.size(); ++i) kept_.keep("rows", piece_, i, rows_[i]);
    for (size_t i = 0; i < results.size(); ++i) kept_.keep("result", piece_, i, results[i]);
    kept_.keep("end", piece_, 0, end);
    const int64_t known_end =
        lowering.known(end, kept_.qualified("end", piece_, 0)).integer<int64_t>(0);
    kept_.take("piece");
    for (const auto& [what, count] : {std::pair("done", size_t{1}),
                                      {"rows", rows_.size()},
                                      {"result", results.size()},
                                      {"end", 1}})
      for (size_t i = 0; i < count; ++i) kept_.take(what, piece_, i);
    take(known_end, results);
  }
  /// The carried values and then the rows of all pieces.
  std::vector<Item> results() const {
    std::vector<Item> all = carried_;
    for (const Item& rows : rows_) {
      std::vector<Value> parts;
      for (const Item& part : rows.items) parts.push_back(part.value);
      all.emplace_back(parts.size() == 1 ? parts[0] : concat(parts, 0));
    }
    return all;
  }

 private:
  static constexpr int64_t kFirstPiece = 1024;  // iterations

  /// `end`: twice the iterations of the piece, and 1 more where the condition still holds.
  void take(int64_t end, const std::vector<Item>& results) {
    const auto rows_from = results.begin() + std::ssize(carried_of(results));
    carried_ = carried_of(results);
    for (size_t i = 0; i < rows_.size(); ++i)
      rows_[i].items.emplace_back(slice(rows_from[static_cast<int64_t>(i)].value, 0, 0, end / 2));
    done_ += end / 2;
    goes_on_ = end % 2 != 0;
    ++piece_;
  }
  std::vector<Item> carried_of(const std::vector<Item>& results) const {
    return {results.begin(), results.end() - std::ssize(rows_)};
  }
  int64_t known(const Item& item) const {
    return kept_.lowering().known_or_null(item.value)->integer<int64_t>(0);
  }

  KeptItems kept_;
  int64_t piece_ = 0, done_ = 0;
  bool goes_on_ = true;
  std::vector<Item> carried_, rows_;
};

}  // namespace brrr::onnx
