#include "passes/memory/rematerialize.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/errors.h"
#include "base/memory.h"
#include "passes/memory/recomputation.h"
#include "passes/memory/recomputation_choice.h"

namespace brrr {
namespace {

using Choice = Recomputation::Choice;

// What runs again, by op, and what that takes.
void explain(const Recomputation& r, const Rematerialize& options, const Choice& again,
             Notes* notes) {
  if (notes == nullptr) return;
  const Graph& g = r.graph();
  struct Count {
    int nodes = 0;
    double bytes = 0;
  };
  std::map<std::string, Count> copied, kept;
  std::vector<bool> is_copied(g.size());
  for (NodeId id : r.copies(again)) is_copied[id] = true;
  auto total = [](const std::map<std::string, Count>& counts) {
    std::string text;
    for (const auto& [name, c] : counts)
      text += fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", c.nodes, name,
                          memory_text(std::llround(c.bytes)));
    return text.empty() ? std::string("nothing") : text;
  };
  for (NodeId id = 0; id < g.size(); ++id) {
    if (!r.is_forward(id)) continue;
    const Node& node = g.node(id);
    double bytes = 0;
    for (uint32_t port = 0; port < node.results.size(); ++port) {
      bool late = is_copied[id];
      for (const Recomputation::Reader& reader : r.readers({id, port}))
        late = late || reader.late || is_copied[reader.node];
      if (late) bytes += static_cast<double>(node.results[port].bytes());
    }
    if (bytes == 0) continue;
    Count& count = (is_copied[id] ? copied : kept)[node.op->name];
    ++count.nodes;
    count.bytes += bytes;
  }
  const double seconds = copy_seconds(r, options.rates, again);
  notes->push_back(
      fmt::format("{}: activations {} instead of {}, for {:.1f}% more time (predicted)",
                  name_of(options.policy), memory_text(r.peak_bytes(again)),
                  memory_text(r.peak_bytes(Choice(g.size()))),
                  100 * seconds / std::max(1e-30, predicted_seconds(g, options.rates))));
  notes->push_back("runs again: " + total(copied));
  notes->push_back("kept: " + total(kept));
}

}  // namespace

std::string_view name_of(RematPolicy policy) {
  switch (policy) {
    case RematPolicy::none:
      return "none";
    case RematPolicy::all:
      return "all";
    case RematPolicy::blocks:
      return "blocks";
    case RematPolicy::automatic:
      return "auto";
  }
  return "?";
}

RematPolicy remat_policy(std::string_view name) {
  for (const RematPolicy policy :
       {RematPolicy::none, RematPolicy::all, RematPolicy::blocks, RematPolicy::automatic})
    if (name_of(policy) == name) return policy;
  BRRR_CHECK(false, "there is no policy '{}'", name);
  __builtin_unreachable();
}

namespace {

// The choice for a budget is made with the bytes of the graph as it comes out of this pass; what
// the passes after it make of it decides. Where no choice holds, the one of fewest bytes may.
Choice within_budget(const Recomputation& r, const Rematerialize& options, const Finish& finish) {
  constexpr int kTries = 8;
  auto finished_bytes = [&](const Choice& again) {
    return finish ? activation_bytes(finish(r.apply(again))) : r.peak_bytes(again);
  };
  std::optional<Choice> found;
  int64_t slack = 0, too_little = 0, enough = -1;
  for (int i = 0; i < kTries; ++i) {
    auto again = cheapest(r, options.rates, options.budget_bytes - slack);
    const int64_t over = again ? finished_bytes(*again) - options.budget_bytes : 0;
    if (over > 0) {
      too_little = slack;
    } else {
      enough = slack;
      if (again) found = std::move(again);
    }
    if (enough >= 0 && enough - too_little <= options.budget_bytes / 16) break;
    // Ever larger steps until one is enough, then back to what is just enough.
    slack = enough < 0 ? slack + std::max(over * (i + 1), options.budget_bytes / 64)
                       : (too_little + enough) / 2;
  }
  if (found) return *found;
  Choice fewest = fewest_bytes(r, options.rates);
  const int64_t least = finished_bytes(fewest);
  if (least > options.budget_bytes)
    throw UserError(
        fmt::format(
            "[rematerialize] activations need at least {} ({} bytes), even if everything is "
            "recomputed; the budget is {}. Use a smaller batch or context, or a larger budget",
            memory_text(least), least, memory_text(options.budget_bytes)),
        ExitCode::kNoMemory);
  return fewest;
}

Choice choose(const Recomputation& r, const Rematerialize& options, const Finish& finish) {
  switch (options.policy) {
    case RematPolicy::all:
      return fewest_bytes(r, options.rates);
    case RematPolicy::blocks:
      return within_blocks(r);
    case RematPolicy::automatic:
      return options.budget_bytes > 0 ? within_budget(r, options, finish)
                                      : balanced(r, options.rates);
    case RematPolicy::none:
      break;
  }
  return Choice(r.graph().size());
}

}  // namespace

Graph rematerialize(const Graph& graph, const Rematerialize& options, Notes* notes,
                    const Finish& finish) {
  if (options.policy == RematPolicy::none) return graph;
  const Recomputation r(graph);
  const Choice again = choose(r, options, finish);
  explain(r, options, again, notes);
  return r.apply(again);
}

}  // namespace brrr
