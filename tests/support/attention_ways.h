#pragma once
// Attention of many heads, forward and backward, by every way that the device "cuda" has for it:
// each against the others, twice for the same bits, and a few heads against sums in double. So many
// blocks of rows that those threads which stay on their multiprocessor go through their work list
// more than once. The same on a GPU and on the fake driver, where the sizes are small.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/node_plan.h"
#include "base/errors.h"
#include "ops/ops.h"
#include "runtime/engine.h"
#include "support/attention_attrs.h"
#include "support/cuda_ways.h"

namespace brrr::test {

struct ManyHeads {
  int64_t batches, heads, length, width;
  DType dtype = DType::bf16;
  bool causal = true;
  int64_t rounds = 2;  // of the work list of "tma", at least
};

class WaysOfAttention {
 public:
  WaysOfAttention(Backend backend, const ManyHeads& sizes)
      : backend_(std::move(backend)), c_(sizes), row_(c_.heads * c_.width) {
    Attrs attrs = attention_in_one(c_.heads, c_.width);
    attrs.set("causal", c_.causal);
    const Value qkv = graph_.input("qkv", {c_.batches, c_.length, 3 * row_}, c_.dtype);
    const Value dy = graph_.input("dy", {c_.batches, c_.length, row_}, c_.dtype);
    const std::vector<Value> y = call(Op::attention, std::vector<Value>{qkv}, attrs);
    attrs.set("dlse", false);
    const std::vector<Value> d =
        call(Op::attention_grad, std::vector<Value>{qkv, y[0], y[1], dy}, attrs);
    graph_.output("y", y[0]);
    graph_.output("lse", y[1]);
    graph_.output("dqkv", d[0]);
    nodes_ = {y[0].id.node, d[0].id.node};
    qkv_ = random_bytes(qkv.shape().elements(), 1);
    dy_ = random_bytes(dy.shape().elements(), 2);
  }

  WaysChecked check() {
    WaysChecked done;
    done.nodes = 2;
    for (const std::string& way : names()) {
      SCOPED_TRACE(way);
      Results got, again;
      try {
        Engine engine(by_way(way));
        const size_t p = engine.add(graph_);
        engine.allocate();
        engine.set_input<std::byte>(p, "qkv", qkv_);
        engine.set_input<std::byte>(p, "dy", dy_);
        got = run(engine, p);
        again = run(engine, p);
      } catch (const InternalError& e) {
        // A library may refuse; the driver may not.
        if (std::string_view(e.what()).starts_with("the NVIDIA driver")) throw;
        done.refused.insert(fmt::format("{} ({})", way, e.what()));
        continue;
      }
      ++done.ways;
      done.names.insert(way);
      for (const auto& [name, bytes] : got) EXPECT_TRUE(bytes == again.at(name)) << "other bits";
      again.clear();
      check_heads(got);
      if (first_.empty()) {
        first_ = std::move(got);
        first_way_ = way;
      } else {
        for (const auto& [name, bytes] : got) check_against_first(name, bytes);
      }
    }
    return done;
  }

 private:
  using Results = std::map<std::string, std::vector<std::byte>>;

  std::vector<std::byte> random_bytes(int64_t elements, uint32_t seed) const {
    std::vector<std::byte> bytes(static_cast<size_t>(elements) * bytes_of(c_.dtype));
    auto* to = reinterpret_cast<uint16_t*>(bytes.data());
    uint32_t x = seed;
    for (int64_t i = 0; i < elements; ++i) {
      x = x * 1664525u + 1013904223u;
      const float value = static_cast<float>(x >> 8) * 0x1p-22f - 2.0f;  // in [-2, 2)
      to[i] = c_.dtype == DType::bf16 ? bf16_from_float(value) : f16_from_float(value);
    }
    return bytes;
  }

  /// Of the forward and of the backward node alike; and of "tma" how often its blocks go round.
  std::vector<std::string> names() {
    std::vector<std::string> list;
    for (const NodeId id : nodes_) {
      const NodeView view(graph_, id);
      const auto kernel = backend_.choose(view).entry->prepare(view);
      list.clear();
      for (const cuda::NodePlan& way : dynamic_cast<cuda::CudaKernel&>(*kernel).ways()) {
        list.push_back(way.name);
        if (way.name == "tma") check_rounds(way);
      }
    }
    return list;
  }
  void check_rounds(const cuda::NodePlan& way) const {
    constexpr int64_t kRows = 128;          // of a block
    constexpr uint32_t kStayThreads = 384;  // of the kernels with a work list
    const int64_t blocks = c_.batches * c_.heads * ((c_.length + kRows - 1) / kRows);
    int lists = 0;
    for (const cuda::Command& command : way.commands) {
      const auto* launch = std::get_if<cuda::Launch>(&command);
      if (launch == nullptr || launch->block.x != kStayThreads) continue;
      ++lists;
      EXPECT_GT(blocks, (c_.rounds - 1) * int64_t{launch->grid.x}) << launch->source.entry;
    }
    EXPECT_GT(lists, 0);
  }

  Backend by_way(const std::string& name) const {
    Backend alone = backend_;
    std::erase_if(alone.kernels, [](const KernelEntry& e) {
      return e.op != Op::attention && e.op != Op::attention_grad;
    });
    for (KernelEntry& e : alone.kernels)
      e.prepare = [prepare = e.prepare, name](const NodeView& view) -> std::unique_ptr<Kernel> {
        const auto kernel = prepare(view);
        for (const cuda::NodePlan& way : dynamic_cast<cuda::CudaKernel&>(*kernel).ways())
          if (way.name == name) return std::make_unique<cuda::CudaKernel>(view, std::vector{way});
        throw InternalError(fmt::format("no way {}", name));
      };
    return alone;
  }

  Results run(Engine& engine, size_t p) const {
    engine.run(p);
    Results out;
    std::vector<std::byte> room;
    for (const Output& o : graph_.outputs()) {
      const auto bytes = engine.read_output(p, o.name, room);
      out[o.name].assign(bytes.begin(), bytes.end());
    }
    return out;
  }

  double element(const std::vector<std::byte>& of, int64_t i) const {
    return load_as_double(c_.dtype, of.data(), i);
  }

  /// The distance as a part of the length of what is wanted, and no element far off.
  struct Distance {
    double apart = 0, length = 0, top = 0, worst = 0;
    void add(double got, double wanted) {
      const double d = got - wanted;
      apart += d * d;
      length += wanted * wanted;
      top = std::max(top, std::fabs(wanted));
      worst = std::isfinite(d) ? std::max(worst, std::fabs(d)) : INFINITY;
    }
    void expect_small(double bound, const std::string& what) const {
      EXPECT_LE(std::sqrt(apart), bound * std::sqrt(length)) << what;
      EXPECT_LE(worst, 16 * bound * top) << what;
    }
  };
  static constexpr double kBound = 1e-2, kBoundOfLse = 1e-3;

  void check_against_first(const std::string& name, const std::vector<std::byte>& bytes) const {
    const DType t = name == "lse" ? DType::f32 : c_.dtype;
    const std::vector<std::byte>& wanted = first_.at(name);
    Distance d;
    const auto compare = [&]<typename T>(T, auto&& to_float) {  // hundreds of millions of them
      const T* got = reinterpret_cast<const T*>(bytes.data());
      const T* first = reinterpret_cast<const T*>(wanted.data());
      for (size_t i = 0; i < bytes.size() / sizeof(T); ++i)
        d.add(static_cast<double>(to_float(got[i])), static_cast<double>(to_float(first[i])));
    };
    if (t == DType::f32)
      compare(float{}, [](float x) { return x; });
    else if (t == DType::bf16)
      compare(uint16_t{}, [](uint16_t x) { return float_from_bf16(x); });
    else
      compare(uint16_t{}, [](uint16_t x) { return float_from_f16(x); });
    d.expect_small(name == "lse" ? kBoundOfLse : kBound, name + " against " + first_way_);
  }

  /// The first head, the last, and one between: of the first round, of the last, and of another.
  void check_heads(const Results& got) {
    const int64_t all = c_.batches * c_.heads;
    for (const int64_t head : std::set<int64_t>{0, all * 2 / 3, all - 1}) check_head(got, head);
  }

  /// [T, D] of one head, of a tensor that has `row` numbers to a token: its k-th section of heads.
  std::vector<double> rows_of(const std::vector<std::byte>& of, int64_t row, int64_t head,
                              int64_t k) const {
    const int64_t n = c_.length, w = c_.width, b = head / c_.heads, h = head % c_.heads;
    std::vector<double> rows(static_cast<size_t>(n * w));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t e = 0; e < w; ++e)
        rows[static_cast<size_t>(i * w + e)] =
            element(of, (b * n + i) * row + k * row_ + h * w + e);
    return rows;
  }

  struct Exact {
    std::vector<double> y, lse, dq, dk, dv;
  };
  Exact exact(int64_t head) const {
    const int64_t n = c_.length, w = c_.width;
    const std::vector<double> q = rows_of(qkv_, 3 * row_, head, 0),
                              k = rows_of(qkv_, 3 * row_, head, 1),
                              v = rows_of(qkv_, 3 * row_, head, 2),
                              dy = rows_of(dy_, row_, head, 0);
    Exact out;
    auto& [y, lse, dq, dk, dv] = out;
    lse.resize(static_cast<size_t>(n));
    for (auto* t : {&y, &dq, &dk, &dv}) t->resize(q.size());
    const double scale = 1 / std::sqrt(static_cast<double>(w));
    const auto dot = [&](const std::vector<double>& a, int64_t i, const std::vector<double>& c,
                         int64_t j) {
      double sum = 0;
      for (int64_t e = 0; e < w; ++e)
        sum += a[static_cast<size_t>(i * w + e)] * c[static_cast<size_t>(j * w + e)];
      return sum;
    };
    const auto add = [&](std::vector<double>& to, int64_t i, double factor,
                         const std::vector<double>& from, int64_t j) {
      for (int64_t e = 0; e < w; ++e)
        to[static_cast<size_t>(i * w + e)] += factor * from[static_cast<size_t>(j * w + e)];
    };
    std::vector<double> p(static_cast<size_t>(n)), dp(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t end = c_.causal ? i + 1 : n;
      double top = -INFINITY, total = 0, delta = 0;
      for (int64_t j = 0; j < end; ++j)
        top = std::max(top, p[static_cast<size_t>(j)] = scale * dot(q, i, k, j));
      for (int64_t j = 0; j < end; ++j)
        total += p[static_cast<size_t>(j)] = std::exp(p[static_cast<size_t>(j)] - top);
      lse[static_cast<size_t>(i)] = top + std::log(total);
      for (int64_t j = 0; j < end; ++j) {
        const double pj = p[static_cast<size_t>(j)] /= total;
        delta += pj * (dp[static_cast<size_t>(j)] = dot(dy, i, v, j));
        add(y, i, pj, v, j);
        add(dv, j, pj, dy, i);
      }
      for (int64_t j = 0; j < end; ++j) {
        const double ds = scale * p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - delta);
        add(dq, i, ds, k, j);
        add(dk, j, ds, q, i);
      }
    }
    return out;
  }

  void check_head(const Results& got, int64_t head) {
    const auto [known, is_new] = exact_.try_emplace(head);
    if (is_new) known->second = exact(head);
    const Exact& wanted = known->second;
    const auto expect = [&](const std::vector<double>& g, const std::vector<double>& w,
                            double bound, const char* what) {
      Distance d;
      for (size_t i = 0; i < g.size(); ++i) d.add(g[i], w[i]);
      d.expect_small(bound, fmt::format("{} of head {} against sums in double", what, head));
    };
    std::vector<double> lse(wanted.lse.size());
    for (size_t i = 0; i < lse.size(); ++i)
      lse[i] = load_as_double(DType::f32, got.at("lse").data(),
                              head * c_.length + static_cast<int64_t>(i));
    expect(lse, wanted.lse, kBoundOfLse, "lse");
    expect(rows_of(got.at("y"), row_, head, 0), wanted.y, kBound, "y");
    expect(rows_of(got.at("dqkv"), 3 * row_, head, 0), wanted.dq, kBound, "dq");
    expect(rows_of(got.at("dqkv"), 3 * row_, head, 1), wanted.dk, kBound, "dk");
    expect(rows_of(got.at("dqkv"), 3 * row_, head, 2), wanted.dv, kBound, "dv");
  }

  Backend backend_;
  ManyHeads c_;
  int64_t row_;  // of y: all heads of a token
  Graph graph_;
  std::vector<NodeId> nodes_;
  std::vector<std::byte> qkv_, dy_;
  std::map<int64_t, Exact> exact_;  // by head
  Results first_;
  std::string first_way_;
};

}  // namespace brrr::test
