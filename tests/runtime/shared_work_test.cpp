// Work that ranks divide gives every rank all results in order, and an error of one rank is the
// error of all. Ranks are threads here.
#include "runtime/ranks/shared_work.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "support/forked_ranks.h"

namespace brrr {
namespace {

/// Runs `body` on a thread for each rank; returns what each threw, "" if nothing.
std::vector<std::string> errors_of_ranks(int ranks,
                                         const std::function<void(Communicator&)>& body) {
  const std::string run_id = test::fresh_run_id();
  std::vector<std::string> said(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        Communicator communicator(
            [&] { return open_transport(test::local_place(rank, ranks, run_id), {}); });
        try {
          body(communicator);
        } catch (const SharedError& e) {
          said[static_cast<size_t>(rank)] = std::string("shared: ") + e.what();
        }
        communicator.barrier();
      } catch (const std::exception& e) {
        said[static_cast<size_t>(rank)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

Packed square(int64_t i) {
  Packed packed;
  packed.put_value(i * i);
  packed.put_text(std::string(static_cast<size_t>(i % 5), 'x'));
  return packed;
}

TEST(SharedWork, EveryRankUsesAllResultsInOrder) {
  for (const int ranks : {1, 2, 3, 5})
    for (const int64_t count : {0, 1, 2, 7, 23})
      for (const int64_t at_once : {1, 4}) {
        const auto said = errors_of_ranks(ranks, [&](Communicator& comm) {
          int64_t used = 0, computed = 0;
          EXPECT_TRUE(divide_pieces(
              ranks == 1 ? nullptr : &comm, count, at_once,
              [&](int64_t i) {
                EXPECT_EQ(i % ranks, comm.rank());
                ++computed;
                return square(i);
              },
              [&](int64_t i, Packed& packed) {
                EXPECT_EQ(i, used++);
                EXPECT_EQ(packed.take_value<int64_t>(), i * i);
                EXPECT_EQ(packed.take_text().size(), static_cast<size_t>(i % 5));
                EXPECT_TRUE(packed.is_at_end());
                return true;
              }));
          EXPECT_EQ(used, count);
          EXPECT_EQ(computed, (count - comm.rank() + ranks - 1) / ranks);
        });
        for (const std::string& text : said) EXPECT_EQ(text, "");
      }
}

// The error of the first piece that fails, whichever rank fails first; what comes before it counts.
TEST(SharedWork, TheFirstFailureInOrderEndsTheWorkOnAllRanks) {
  std::array<int64_t, 3> used{};
  const auto said = errors_of_ranks(3, [&](Communicator& comm) {
    divide_pieces(
        &comm, 30, 4,
        [](int64_t i) {
          if (i == 8 || i == 6) user_error("piece {} is bad", i);
          return square(i);
        },
        [&](int64_t, Packed&) {
          ++used[static_cast<size_t>(comm.rank())];
          return true;
        });
  });
  for (const std::string& text : said) EXPECT_EQ(text, "shared: piece 6 is bad");
  EXPECT_EQ(used, (std::array<int64_t, 3>{6, 6, 6}));
}

TEST(SharedWork, AResultThatIsTheLastStopsAllRanks) {
  const auto said = errors_of_ranks(2, [&](Communicator& comm) {
    int64_t last = -1;
    EXPECT_FALSE(divide_pieces(&comm, 100, 1, square, [&](int64_t i, Packed&) {
      last = i;
      return i < 9;
    }));
    EXPECT_EQ(last, 9);
  });
  for (const std::string& text : said) EXPECT_EQ(text, "");
}

TEST(SharedWork, AnErrorOfOneRankIsThatOfAll) {
  const auto said = errors_of_ranks(3, [](Communicator& comm) {
    run_on_all(&comm, [] {});
    run_on_all(&comm, [&] {
      if (comm.rank() > 0) throw UserError(fmt::format("no file on {}", comm.rank()));
    });
    ADD_FAILURE() << "not thrown on " << comm.rank();
  });
  for (const std::string& text : said) EXPECT_EQ(text, "shared: no file on 1");
}

TEST(SharedWork, AllRanksGetTheTextOfTheFirst) {
  const std::string text = "line\n" + std::string(100'000, 'y');
  const auto said = errors_of_ranks(3, [&](Communicator& comm) {
    EXPECT_EQ(text_of_first(&comm, [&] { return text; }), text);
    EXPECT_EQ(text_of_first(&comm, [] { return std::string(); }), "");
    const auto all = gather_texts(comm, std::string(static_cast<size_t>(comm.rank()), 'z'));
    for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(all[rank].size(), rank);
    text_of_first(&comm, []() -> std::string { usage_error("cannot be read"); });
  });
  for (const std::string& error : said) EXPECT_EQ(error, "shared: cannot be read");
}

}  // namespace
}  // namespace brrr
