#pragma once
// What a graph without fused nodes and regions gives on the CPU, against its meaning.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "ir/text.h"
#include "support/engine_run.h"
#include "support/gpt2.h"

namespace brrr::test {

/// By output: the largest number on which it depends.
inline std::map<std::string, double> largest_on_the_way(const Graph& g,
                                                        const reference::Tensors& in) {
  Graph all = g;
  const auto name_at = [](ValueId v) { return fmt::format("%{}.{}", v.node, v.port); };
  for (NodeId id = 0; id < g.size(); ++id)
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      all.output(name_at({id, port}), all.value(id, port));
  const reference::Tensors values = reference::evaluate(all, in);
  std::vector<double> largest(g.size(), 0);  // of a node and all before it
  for (NodeId id = 0; id < g.size(); ++id) {
    for (const ValueId operand : g.node(id).operands)
      largest[id] = std::max(largest[id], largest[operand.node]);
    for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
      for (const double x : values.at(name_at({id, port})).data)
        if (std::isfinite(x)) largest[id] = std::max(largest[id], std::fabs(x));
  }
  std::map<std::string, double> found;
  for (const Output& o : g.outputs())
    found[o.updates == kNoNode ? o.name : "update:" + g.input_name(o.updates)] =
        largest[o.value.node];
  return found;
}

/// The unfused graph on the CPU against its meaning. Where a result is the small difference of
/// large numbers, it can only be as exact as those.
inline void judge(const Graph& plain, const reference::Tensors& in, const Bytes& got) {
  constexpr double kOfResult = 1e-3, kOfLargest = 1e-5;  // the first as in engine_test
  reference::Tensors rounded = in;
  for (auto& [name, t] : rounded)
    for (double& x : t.data) x = static_cast<float>(x);
  const auto largest = largest_on_the_way(plain, rounded);
  for (const auto& [name, t] : reference::evaluate(plain, rounded)) {
    const bool update = name.starts_with("update:");
    const auto at = got.find(update ? "state:" + name.substr(7) : name);
    ASSERT_NE(at, got.end()) << name;
    const RefTensor values = read_tensor(t.type, at->second.data());
    double gap = 0;
    for (size_t i = 0; i < t.size(); ++i)
      gap = std::max(gap, std::fabs(values.number(i) - t.number(i)));
    const double relative = difference({{name, t}}, {{name, values}});
    if (relative < kOfResult) continue;
    EXPECT_TRUE(std::isfinite(relative) && gap < kOfLargest * largest.at(name))
        << name << " differs by " << gap << ", " << relative << " of itself\n"
        << print(plain);
  }
}

}  // namespace brrr::test
