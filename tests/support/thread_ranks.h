#pragma once
// Ranks as threads of one process, for tests of what several ranks compute together.

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/ranks/communicator.h"

namespace brrr::test {

/// Where the threads leave what they send.
struct Mailbox {
  explicit Mailbox(int ranks) : barrier(ranks), sent(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<std::span<const Outgoing>> sent;  // by rank
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(int rank, int ranks, Mailbox& box)
      : Transport({rank, ranks, rank, ranks, "threads", ""}), box_(box) {}
  std::string name() const override { return "threads"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    box_.sent[static_cast<size_t>(rank())] = out;
    box_.barrier.arrive_and_wait();
    std::vector<size_t> next(box_.sent.size());  // of the segments of each peer
    for (const Incoming& to : in) {
      const std::span<const Outgoing> theirs = box_.sent[static_cast<size_t>(to.peer)];
      size_t& at = next[static_cast<size_t>(to.peer)];
      while (at < theirs.size() && theirs[at].peer != rank()) ++at;
      BRRR_CHECK(at < theirs.size() && theirs[at].bytes == to.bytes,
                 "rank {} expects {} bytes of rank {}", rank(), to.bytes, to.peer);
      std::memcpy(to.data, theirs[at++].data, static_cast<size_t>(to.bytes));
    }
    box_.barrier.arrive_and_wait();
  }

 private:
  Mailbox& box_;
};

/// Calls `body` on as many threads as ranks, each with its communicator over a transport of the
/// kind T. What one throws is thrown on when all have ended.
template <typename T = ThreadTransport>
void run_ranks(int ranks, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  Mailbox box(ranks);
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> thrown(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(std::make_shared<Communicator>([&] { return std::make_unique<T>(rank, ranks, box); }));
      } catch (...) {
        thrown[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& each : thrown)
    if (each) std::rethrow_exception(each);
}

}  // namespace brrr::test
