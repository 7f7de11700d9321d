// What the ranks of one host exchange arrives, and an error of one of them ends all. Ranks are
// threads here; lost_ranks_test.cpp has processes.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "support/forked_ranks.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using test::fresh_run_id;

std::function<std::unique_ptr<Transport>()> opener(const RankPlace& place,
                                                   const TransportOptions& options = {}) {
  return [=] { return open_transport(place, options); };
}

using Body = std::function<void(Communicator&)>;

/// Runs `body` on a thread for each rank, and rethrows the first exception.
void run_threads(int ranks, const Body& body, const TransportOptions& options = {}) {
  const std::string run_id = fresh_run_id();
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Communicator communicator(opener(test::local_place(rank, ranks, run_id), options));
        body(communicator);
      } catch (...) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& e : thrown)
    if (e) std::rethrow_exception(e);
}

std::byte pattern(int from, int to, int64_t round, int64_t i) {
  return static_cast<std::byte>(from * 7 + to * 31 + round * 13 + i * 5 + (i >> 8));
}

void fill(std::vector<std::byte>& bytes, int from, int to, int64_t round) {
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = pattern(from, to, round, static_cast<int64_t>(i));
}

/// The number of ranks, and whether large segments are read from the sender's memory.
class Ranks : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static void run_ranks(const Body& body) {
    const auto [ranks, reads_directly] = GetParam();
    run_threads(ranks, body, {.reads_directly = reads_directly});
  }
};

// Sizes from nothing to several rings, any number of segments between two ranks.
TEST_P(Ranks, ExchangeRandomSegments) {
  run_ranks([](Communicator& comm) {
    std::mt19937_64 random(5);  // the same numbers on all ranks
    const int own = comm.rank(), n = comm.ranks();
    int64_t sent = 0, received = 0;
    for (int64_t round = 0; round < 12; ++round) {
      std::vector<std::vector<std::byte>> out, in;
      std::vector<int> to, from;
      for (int a = 0; a < n; ++a)
        for (int b = 0; b < n; ++b)
          for (uint64_t k = random() % 3; k > 0; --k) {
            const size_t size = random() % 4 == 0 ? random() % 700'000 : random() % 300;
            if (a == own) {
              fill(out.emplace_back(size), a, b, round + static_cast<int64_t>(k));
              to.push_back(b);
            }
            if (b == own) {
              in.emplace_back(size);
              from.push_back(a);
              if (a != own) received += static_cast<int64_t>(size);
            }
            if (a == own && b != own) sent += static_cast<int64_t>(size);
          }
      std::vector<Outgoing> outgoing;
      std::vector<Incoming> incoming;
      for (size_t i = 0; i < out.size(); ++i)
        outgoing.push_back({to[i], out[i].data(), static_cast<int64_t>(out[i].size())});
      for (size_t i = 0; i < in.size(); ++i)
        incoming.push_back({from[i], in[i].data(), static_cast<int64_t>(in[i].size())});
      comm.run([&](Transport& transport) { transport.exchange(outgoing, incoming); });
      // Which number of the round each segment has: those of a pair count downwards.
      std::vector<std::vector<std::byte>> expected;
      std::mt19937_64 again(5);
      for (int64_t r = 0; r <= round; ++r)
        for (int a = 0; a < n; ++a)
          for (int b = 0; b < n; ++b)
            for (uint64_t k = again() % 3; k > 0; --k) {
              const size_t size = again() % 4 == 0 ? again() % 700'000 : again() % 300;
              if (r == round && b == own)
                fill(expected.emplace_back(size), a, b, round + static_cast<int64_t>(k));
            }
      ASSERT_TRUE(in == expected) << "round " << round << " on rank " << own;
    }
    const Communicator::Traffic traffic = comm.traffic();
    EXPECT_EQ(traffic.bytes_sent, sent);
    EXPECT_EQ(traffic.bytes_received, received);
    EXPECT_EQ(traffic.exchanges, 12);
  });
}

TEST_P(Ranks, GatherBroadcastAndBarrier) {
  run_ranks([](Communicator& comm) {
    const int n = comm.ranks();
    for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}}) {
      std::vector<std::byte> own(size);
      fill(own, comm.rank(), 0, 1);
      const auto all = comm.gather(own);
      ASSERT_EQ(all.size(), static_cast<size_t>(n));
      for (int rank = 0; rank < n; ++rank) {
        std::vector<std::byte> expected(size);
        fill(expected, rank, 0, 1);
        EXPECT_TRUE(all[static_cast<size_t>(rank)] == expected) << rank;
      }
    }
    for (int root = 0; root < n; ++root) {
      std::vector<std::byte> bytes(1'000'003), expected(bytes.size());
      fill(expected, root, 1, 2);
      if (comm.rank() == root) bytes = expected;
      comm.broadcast(bytes, root);
      EXPECT_TRUE(bytes == expected) << root;
    }
    comm.barrier();
  });
}

// What was started before a barrier is done before any rank is behind it.
TEST_P(Ranks, BarrierWaitsForAll) {
  std::atomic<int> before{0};
  run_ranks([&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++before;
      comm.barrier();
      EXPECT_GE(before.load(), round * comm.ranks());
      comm.barrier();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfEachNumber, Ranks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 8), ::testing::Bool()));

TEST(Communicator, JobsRunInOrderAndTicketsWait) {
  run_threads(2, [](Communicator& comm) {
    std::vector<int> order;
    std::vector<Communicator::Ticket> tickets;
    for (int i = 0; i < 50; ++i)
      tickets.push_back(comm.start([&order, i](Transport& transport) {
        std::byte out{static_cast<unsigned char>(i)}, in{};
        const Outgoing to{1 - transport.rank(), &out, 1};
        const Incoming from{1 - transport.rank(), &in, 1};
        transport.exchange({&to, 1}, {&from, 1});
        if (in == out) order.push_back(i);
      }));
    comm.wait(tickets[20]);
    comm.wait(tickets.back());
    std::vector<int> expected(50);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
    EXPECT_EQ(comm.transport_name(), "shared memory");
  });
}

TEST(Communicator, AnErrorOfAJobIsThrownByAllLaterCalls) {
  Communicator comm(opener(test::local_place(0, 1, fresh_run_id())));
  const Communicator::Ticket first = comm.start([](Transport&) {});
  comm.wait(first);
  const auto ticket = comm.start([](Transport&) { user_error("the disk is on fire"); });
  EXPECT_USER_ERROR((comm.wait(ticket), 0), "the disk is on fire");
  EXPECT_USER_ERROR(comm.start([](Transport&) {}), "the disk is on fire");
  EXPECT_USER_ERROR((comm.wait(first), 0), "the disk is on fire");
  EXPECT_USER_ERROR((comm.barrier(), 0), "the disk is on fire");
}

TEST(Communicator, AnErrorOfOneRankEndsAll) {
  std::atomic<int> ended{0};
  const auto body = [&](Communicator& comm) {
    try {
      comm.run([](Transport& transport) {
        if (transport.rank() == 1) user_error("row 7 of the data has no label");
        std::byte in{};
        const Incoming from{1, &in, 1};
        transport.exchange({}, {&from, 1});
      });
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("row 7 of the data has no label"), std::string::npos);
      EXPECT_EQ(dynamic_cast<const LostRank*>(&e) == nullptr, comm.rank() == 1);
      if (comm.rank() != 1) {
        EXPECT_NE(std::string(e.what()).find("rank 1 on "), std::string::npos) << e.what();
      }
      ++ended;
    }
  };
  run_threads(3, body);
  EXPECT_EQ(ended, 3);
}

TEST(Communicator, ARankThatUnwindsTellsTheOthers) {
  const auto body = [](Communicator& comm) {
    if (comm.rank() == 0) user_error("no memory for the batch");
    EXPECT_USER_ERROR((comm.barrier(), 0), "rank 0 on ");
  };
  EXPECT_USER_ERROR((run_threads(2, body), 0), "no memory for the batch");
}

TEST(Communicator, ARankThatAbandonsTellsTheOthers) {
  run_threads(3, [](Communicator& comm) {
    if (comm.rank() == 2) {
      comm.abandon("the disk is full");
      EXPECT_THROW(comm.barrier(), InternalError);
      return;
    }
    EXPECT_USER_ERROR((comm.barrier(), 0), "gave up: the disk is full");
  });
}

TEST(Communicator, ARankThatFinishesEarlyIsNamed) {
  run_threads(3, [](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) return;
    EXPECT_USER_ERROR((comm.barrier(), 0), "rank 1 on ");
  });
}

// Sizes that differ are a mistake of ours; they must not corrupt what follows.
TEST(Communicator, SizesThatDifferAreFound) {
  const auto body = [](Communicator& comm) {
    comm.run([](Transport& transport) {
      std::byte bytes[8] = {};
      const Outgoing to{1, bytes, 8};
      const Incoming from{0, bytes, 4};
      if (transport.rank() == 0)
        transport.exchange({&to, 1}, {});
      else
        transport.exchange({}, {&from, 1});
    });
  };
  EXPECT_THROW(run_threads(2, body), InternalError);
}

}  // namespace
}  // namespace brrr
