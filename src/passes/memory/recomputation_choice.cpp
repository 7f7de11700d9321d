#include "passes/memory/recomputation_choice.h"

#include <algorithm>
#include <cctype>

#include "base/errors.h"

namespace brrr {
namespace {

using Choice = Recomputation::Choice;

// The last node that reads a result in the forward pass.
NodeId last_forward_reader(const Recomputation& r, NodeId id) {
  NodeId last = id;
  for (uint32_t port = 0; port < r.graph().node(id).results.size(); ++port)
    for (const Recomputation::Reader& reader : r.readers({id, port}))
      if (!reader.late) last = std::max(last, reader.node);
  return last;
}

}  // namespace

std::vector<NodeId> narrow_places(const Recomputation& r) {
  const Graph& g = r.graph();
  std::vector<int64_t> change(g.size() + 1);
  NodeId first = kNoNode, end = 0;
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!r.is_forward(id)) continue;
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port) {
      NodeId last = id;
      for (const Recomputation::Reader& reader : r.readers({id, port}))
        if (!reader.late) last = std::max(last, reader.node);
      change[id] += g.type({id, port}).bytes();
      change[last] -= g.type({id, port}).bytes();
    }
    if (!r.read_late(id)) continue;
    if (first == kNoNode) first = id;
    end = id;
  }
  if (first == kNoNode) return {};
  struct Place {
    NodeId node;
    int64_t bytes;
  };
  std::vector<Place> places;
  int64_t bytes = 0;
  for (NodeId id = 0; id < end; ++id) {
    bytes += change[id];
    if (id >= first && r.is_forward(id) && bytes > 0) places.push_back({id, bytes});
  }
  if (places.empty()) return {};
  std::vector<int64_t> sorted;
  for (const Place& p : places) sorted.push_back(p.bytes);
  std::sort(sorted.begin(), sorted.end());
  const double narrow = 1.25 * static_cast<double>(sorted[sorted.size() / 10]);
  std::vector<NodeId> out;
  for (const Place& p : places)
    if (static_cast<double>(p.bytes) <= narrow) out.push_back(p.node);
  return out;
}

Choice all_between(const Recomputation& r, const std::vector<NodeId>& places) {
  Choice again(r.graph().size());
  for (NodeId id = 0; id < again.size(); ++id) {
    if (!r.is_forward(id)) continue;
    // The first place at or after the node; is the node read behind it?
    const auto at = std::lower_bound(places.begin(), places.end(), id);
    again[id] = at == places.end() || last_forward_reader(r, id) <= *at;
  }
  return again;
}

Choice fewest_bytes(const Recomputation& r, const Rates& rates) {
  constexpr double kAsGood = 1.01;
  const std::vector<NodeId> places = narrow_places(r);
  Choice best = all_between(r, places);
  auto fewest = static_cast<double>(r.peak_bytes(best));
  double seconds = copy_seconds(r, rates, best);
  for (size_t stride = 2; stride <= places.size(); ++stride) {
    bool near = false;
    for (size_t start = 0; start < stride; ++start) {
      std::vector<NodeId> some;
      for (size_t i = start; i < places.size(); i += stride) some.push_back(places[i]);
      Choice again = all_between(r, some);
      const auto bytes = static_cast<double>(r.peak_bytes(again));
      near = near || bytes < 2 * fewest;
      if (bytes > kAsGood * fewest) continue;
      const double time = copy_seconds(r, rates, again);
      if (bytes * kAsGood > fewest && time >= seconds) continue;
      fewest = bytes;
      seconds = time;
      best = std::move(again);
    }
    if (!near) break;  // longer ways only get worse
  }
  return best;
}

Choice within_blocks(const Recomputation& r) {
  const Graph& g = r.graph();
  Choice again(g.size());
  for (NodeId id = 0; id < g.size(); ++id) {
    const std::string_view block = g.block_of(id);
    if (!r.is_forward(id) || block.empty()) continue;
    again[id] = true;
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      for (const Recomputation::Reader& reader : r.readers({id, port}))
        if (!reader.late && g.block_of(reader.node) != block) again[id] = false;
  }
  return again;
}

}  // namespace brrr
