#include "passes/memory/placement.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <utility>

namespace brrr {
namespace {

/// The bytes that nothing alive takes: gaps, and everything behind the last of what is alive.
class FreeBytes {
 public:
  /// Takes bytes out of the best gap; returns their offset.
  int64_t take(int64_t bytes) {
    const auto best = by_room_.lower_bound({bytes, 0});
    if (best == by_room_.end()) {
      end_ += bytes;
      return end_ - bytes;
    }
    const auto [room, begin] = *best;
    remove(by_begin_.find(begin));
    if (room > bytes) add(begin + bytes, begin + room);
    return begin;
  }

  void give_back(int64_t begin, int64_t end) {
    const auto after = by_begin_.lower_bound(begin);
    if (after != by_begin_.end() && after->first == end) {
      end = after->second;
      remove(after);
    }
    if (const auto next = by_begin_.lower_bound(begin); next != by_begin_.begin()) {
      const auto before = std::prev(next);
      if (before->second == begin) {
        begin = before->first;
        remove(before);
      }
    }
    if (end == end_)
      end_ = begin;
    else
      add(begin, end);
  }

 private:
  void add(int64_t begin, int64_t end) {
    by_begin_.emplace(begin, end);
    by_room_.emplace(end - begin, begin);
  }
  void remove(std::map<int64_t, int64_t>::iterator gap) {
    by_room_.erase({gap->second - gap->first, gap->first});
    by_begin_.erase(gap);
  }

  std::map<int64_t, int64_t> by_begin_;            // where a gap begins and ends
  std::set<std::pair<int64_t, int64_t>> by_room_;  // its bytes, and where it begins
  int64_t end_ = 0;                                // of what is alive
};

}  // namespace

Placement place_in_order(std::span<const Lifetime> lifetimes) {
  struct Placed {
    int64_t begin, end;
    int32_t first, last;
  };
  std::vector<Placed> placed;  // sorted by begin
  Placement out;
  for (const Lifetime& l : lifetimes) {
    int64_t best = -1, best_room = 0, cursor = 0;
    for (const Placed& p : placed) {
      if (p.last < l.first || p.first > l.last) continue;
      const int64_t room = p.begin - cursor;
      if (room >= l.bytes && (best < 0 || room < best_room)) {
        best = cursor;
        best_room = room;
      }
      cursor = std::max(cursor, p.end);
    }
    if (best < 0) best = cursor;
    const Placed p{best, best + l.bytes, l.first, l.last};
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), p,
                         [](const Placed& x, const Placed& y) { return x.begin < y.begin; }),
        p);
    out.offsets.push_back(best);
    out.bytes = std::max(out.bytes, p.end);
  }
  return out;
}

Placement place_over_time(std::span<const Lifetime> lifetimes) {
  using End = std::pair<int32_t, size_t>;  // the last step of a lifetime, and which it is
  std::priority_queue<End, std::vector<End>, std::greater<>> alive;
  FreeBytes free;
  Placement out;
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    const Lifetime& l = lifetimes[i];
    for (; !alive.empty() && alive.top().first < l.first; alive.pop()) {
      const size_t over = alive.top().second;
      free.give_back(out.offsets[over], out.offsets[over] + lifetimes[over].bytes);
    }
    out.offsets.push_back(free.take(l.bytes));
    out.bytes = std::max(out.bytes, out.offsets.back() + l.bytes);
    alive.emplace(l.last, i);
  }
  return out;
}

}  // namespace brrr
