// Sums over ranks have the same bits whether a transport has one exchange in flight or several.
#include "runtime/ranks/collectives.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "backend/cpu/target.h"
#include "ops/ops.h"
#include "ops/ranks/collectives.h"
#include "runtime/ranks/division.h"
#include "support/thread_ranks.h"

namespace brrr {
namespace {

/// Bytes arrive at the end of an exchange, as late as they may, and what is still to be sent is
/// read then: whoever overwrites it before, or reads what has not come, gets other sums.
class LateTransport final : public Transport {
 public:
  LateTransport(int rank, int ranks, test::Mailbox& box)
      : Transport({rank, ranks, rank, ranks, "threads", ""}), inner_(rank, ranks, box) {}
  std::string name() const override { return "late threads"; }
  int most_in_flight() const override { return 2; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    begin_exchange(out, in);
    end_exchange();
  }
  void begin_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    begun_.push_back({{out.begin(), out.end()}, {in.begin(), in.end()}});
    BRRR_CHECK(std::ssize(begun_) <= most_in_flight(), "{} exchanges in flight", begun_.size());
  }
  void end_exchange() override {
    inner_.exchange(begun_.front().out, begun_.front().in);
    begun_.pop_front();
  }

 private:
  struct Exchange {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
  };
  test::ThreadTransport inner_;
  std::deque<Exchange> begun_;
};

/// The results of all ranks, one after the other: of a tensor of several exchanges and two that
/// share the last one. `in_place`: a result takes the memory of its operand.
template <typename T>
std::vector<float> sums(Op op, int ranks, bool in_place) {
  const std::vector<int64_t> sizes{ranks * kExchanged * 3 + 17, 5, 4099};
  std::vector<std::vector<float>> of_ranks(static_cast<size_t>(ranks));
  test::run_ranks<T>(ranks, [&](std::shared_ptr<Communicator> communicator) {
    const int rank = communicator->rank();
    Backend backend = cpu::cpu_backend();
    add_collectives(backend, ranks, communicator);
    Graph graph;
    std::vector<Value> x;
    for (size_t i = 0; i < sizes.size(); ++i)
      x.push_back(graph.input(fmt::format("x{}", i), Shape{sizes[i]}, DType::f32, Role::data));
    const std::vector<Value> y =
        op == Op::all_reduce ? all_reduce(x, ranks) : reduce_scatter(x, ranks);
    std::unique_ptr<Kernel> kernel;
    for (const KernelEntry& entry : backend.kernels)
      if (entry.op == op) kernel = entry.prepare(NodeView(graph, y[0].id.node));
    std::mt19937 random(static_cast<uint32_t>(rank + 1));
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> in, out;
    std::vector<const void*> from;
    std::vector<void*> to;
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (float& v : in.emplace_back(static_cast<size_t>(sizes[i]))) v = normal(random);
      out.emplace_back(static_cast<size_t>(y[i].shape().elements()));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      from.push_back(in[i].data());
      to.push_back(in_place ? in[i].data() : out[i].data());
    }
    kernel->run({from, to, nullptr});
    kernel->finish();
    for (const std::vector<float>& result : in_place ? in : out)
      of_ranks[static_cast<size_t>(rank)].insert(of_ranks[static_cast<size_t>(rank)].end(),
                                                 result.begin(), result.end());
  });
  std::vector<float> all;
  for (const std::vector<float>& each : of_ranks) all.insert(all.end(), each.begin(), each.end());
  return all;
}

TEST(Collectives, SumToTheSameBitsWithSeveralExchangesInFlight) {
  for (const int ranks : {2, 3, 4}) {
    const std::vector<float> reduced = sums<test::ThreadTransport>(Op::all_reduce, ranks, false);
    ASSERT_NE(reduced.front(), 0.0f);
    EXPECT_EQ(reduced, sums<LateTransport>(Op::all_reduce, ranks, false)) << ranks;
    EXPECT_EQ(reduced, sums<LateTransport>(Op::all_reduce, ranks, true)) << ranks;
    EXPECT_EQ(sums<test::ThreadTransport>(Op::reduce_scatter, ranks, false),
              sums<LateTransport>(Op::reduce_scatter, ranks, false))
        << ranks;
  }
}

}  // namespace
}  // namespace brrr
