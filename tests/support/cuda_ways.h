#pragma once
// Every way that the device "cuda" has for every node of a training step, each against the
// reference: what the autotuner may choose from must all be right. The same on a GPU and on the
// fake driver.

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include "backend/cuda/node_plan.h"
#include "backend/reference/interpreter.h"
#include "base/errors.h"
#include "ir/text.h"
#include "models/gpt2/gpt2_config.h"
#include "ops/fused.h"
#include "ops/op.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "support/tensors.h"

namespace brrr::test {

struct WaysChecked {
  int nodes = 0, ways = 0;
  std::set<std::string> names;    // of kernels and ways: "attention: cudnn"
  std::set<std::string> refused;  // by a library, when they were bound
};

class WaysOfAStep {
 public:
  WaysOfAStep(Backend backend, const models::Gpt2Config& config, int64_t batch, int64_t length,
              PipelineOptions options)
      : backend_(std::move(backend)) {
    options.loss = "loss";
    options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}, optim::Accumulation::none); };
    graph_ = run_pipeline(config.model()->loss(batch, length), backend_.target(), options);
    inputs_ = random_inputs(graph_, 5, -0.5, 0.5, config.vocab_size);
    for (auto& [name, t] : inputs_) {
      const bool is_positive =
          name.starts_with("adam_v") || name == "learning_rate" || name == "loss_scale";
      for (double& x : t.data) {
        if (is_positive) x = 0.01 + std::fabs(x);
        if (name == "optimizer_step") x = 3;
        x = rounded_to(t.type.dtype, x);
      }
    }
  }

  /// Of nodes that differ in more than their operands' names one is checked.
  WaysChecked check() {
    WaysChecked done;
    std::map<NodeId, std::vector<RefTensor>> values;
    std::set<std::string> seen;
    for (NodeId id = 0; id < graph_.size(); ++id) {
      if (graph_.is_input(id)) {
        values[id] = {inputs_.at(graph_.input_name(id))};
        continue;
      }
      std::vector<const RefTensor*> in;
      for (const ValueId& v : graph_.node(id).operands) in.push_back(&values.at(v.node)[v.port]);
      values[id] = reference::evaluate_node(graph_, id, in);
      for (RefTensor& t : values[id])
        for (double& x : t.data) x = rounded_to(t.type.dtype, x);
      if (view_offset(graph_, graph_.node(id)) || !seen.insert(look_of(id)).second) continue;
      ++done.nodes;
      check_node(id, in, values.at(id), done);
    }
    return done;
  }

 private:
  std::string look_of(NodeId id) const {
    const std::string text = print_node(graph_, id);
    std::string look = graph_.node(id).op->name + text.substr(text.find(") {") + 1);
    for (const Type& t : NodeView(graph_, id).in) look += t.str();
    return look;
  }

  void check_node(NodeId id, const std::vector<const RefTensor*>& in,
                  const std::vector<RefTensor>& wanted, WaysChecked& done) {
    const NodeView view(graph_, id);
    const Backend::Choice choice = backend_.choose(view);
    ASSERT_NE(choice.entry, nullptr) << look_of(id);
    const auto first = choice.entry->prepare(view);
    const std::vector<cuda::NodePlan> ways = dynamic_cast<cuda::CudaKernel&>(*first).ways();
    int computed = 0;
    for (const cuda::NodePlan& way : ways) {
      const std::string name = fmt::format("{}: {}", graph_.node(id).op->name, way.name);
      std::vector<Results> got;
      try {
        got = run_twice(id, *choice.entry, way, in);
      } catch (const InternalError& e) {
        // A library may refuse; the driver may not.
        if (std::string_view(e.what()).starts_with("the NVIDIA driver")) throw;
        done.refused.insert(fmt::format("{} ({})", name, e.what()));
        continue;
      }
      ++computed;
      ++done.ways;
      done.names.insert(name);
      for (size_t port = 0; port < wanted.size(); ++port)
        compare(got[0][port], wanted[port], least_bytes(id),
                fmt::format("{}[{}] of {}", name, port, look_of(id)));
      EXPECT_TRUE(got[0] == got[1]) << "other bits: " << name;
    }
    EXPECT_GT(computed, 0) << look_of(id);
  }

  using Results = std::vector<std::vector<double>>;

  /// The node alone, by that way alone.
  std::vector<Results> run_twice(NodeId id, const KernelEntry& entry, const cuda::NodePlan& way,
                                 const std::vector<const RefTensor*>& in) {
    Graph g;
    std::vector<ValueId> operands;
    for (const RefTensor* t : in)
      operands.push_back(g.input(fmt::format("x{}", operands.size()), t->type).id);
    const NodeId node = g.add(*graph_.node(id).op, operands, graph_.node(id).attrs);
    for (uint32_t i = 0; i < g.node(node).results.size(); ++i)
      g.output(fmt::format("y{}", i), g.value(node, i));
    Backend alone = backend_;
    KernelEntry by_way = entry;
    by_way.prepare = [&way](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<cuda::CudaKernel>(view, std::vector{way});
    };
    alone.kernels = {by_way};
    Engine engine(alone);
    const size_t p = engine.add(g);
    engine.allocate();
    std::vector<Results> rounds;
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < in.size(); ++i) {
        std::vector<std::byte> bytes(static_cast<size_t>(in[i]->type.bytes()));
        write_tensor(*in[i], bytes.data());
        engine.set_input<std::byte>(p, fmt::format("x{}", i), bytes);
      }
      engine.run(p);
      Results& out = rounds.emplace_back();
      std::vector<std::byte> room;
      for (const Output& o : g.outputs()) {
        const auto bytes = engine.read_output(p, o.name, room);
        const Type& type = g.type(o.value);
        auto& values = out.emplace_back(static_cast<size_t>(type.shape.elements()));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = load_as_double(type.dtype, bytes.data(), static_cast<int64_t>(i));
      }
    }
    return rounds;
  }

  /// The narrowest float that a value has on the way.
  size_t least_bytes(NodeId id) const {
    size_t least = 8;
    const auto note = [&](const Type& t) {
      if (is_float(t.dtype)) least = std::min(least, bytes_of(t.dtype));
    };
    for (const Type& t : NodeView(graph_, id).in) note(t);
    for (const Type& t : graph_.node(id).results) note(t);
    if (is(graph_.node(id), Op::fused)) {
      const Graph& body = fused_body(graph_.node(id));
      for (NodeId n = 0; n < body.size(); ++n)
        for (const Type& t : body.node(n).results) note(t);
    }
    return least;
  }

  /// The distance of the tensors as a part of the length of what is wanted, and no element far off.
  static void compare(const std::vector<double>& got, const RefTensor& wanted, size_t bytes,
                      const std::string& what) {
    const double bound = bytes >= 4 ? 2e-5 : bytes == 2 ? 1e-2 : 7e-2;
    double apart = 0, length = 0, top = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double d = got[i] - wanted.data[i];
      apart += d * d;
      length += wanted.data[i] * wanted.data[i];
      top = std::max(top, std::fabs(wanted.data[i]));
    }
    EXPECT_LE(std::sqrt(apart), bound * std::sqrt(length) + 1e-30) << what;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(std::fabs(got[i] - wanted.data[i]), 16 * bound * top + 1e-30)
          << what << " at " << i << ": " << got[i] << " for " << wanted.data[i];
  }

  Backend backend_;
  Graph graph_;
  reference::Tensors inputs_;
};

inline void tell(const WaysChecked& done) {
  std::cout << done.nodes << " nodes, " << done.ways << " ways:";
  for (const std::string& name : done.names) std::cout << "\n  " << name;
  for (const std::string& name : done.refused) std::cout << "\n  refused " << name;
  std::cout << std::endl;
}

}  // namespace brrr::test
