#include "runtime/ranks/communicator.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"

namespace brrr {

/// Counts the bytes and exchanges of another transport.
class Communicator::CountingTransport : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> inner)
      : Transport(inner->place()), inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  void abandon(const std::string& why) override { inner_->abandon(why); }
  double idle_seconds() const override { return inner_->idle_seconds(); }
  void idle() override { inner_->idle(); }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    if (has_faults_) fault_point("ranks.exchange");
    inner_->exchange(out, in);
    count(out, in);
  }
  int most_in_flight() const override { return inner_->most_in_flight(); }
  void begin_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    if (has_faults_) fault_point("ranks.exchange");
    inner_->begin_exchange(out, in);
    count(out, in);
  }
  void end_exchange() override { inner_->end_exchange(); }

  int64_t bytes_sent = 0, bytes_received = 0, exchanges = 0;

 private:
  void count(std::span<const Outgoing> out, std::span<const Incoming> in) {
    for (const Outgoing& segment : out)
      if (segment.peer != rank()) bytes_sent += segment.bytes;
    for (const Incoming& segment : in)
      if (segment.peer != rank()) bytes_received += segment.bytes;
    ++exchanges;
  }

  std::unique_ptr<Transport> inner_;
  bool has_faults_ = env::get("BRRR_FAULT").has_value();
};

struct Communicator::State {
  std::mutex mutex;
  std::condition_variable work, progress;
  std::deque<Job> queue;
  Ticket started = 0, done = 0;
  bool is_open = false, ends = false;
  std::exception_ptr failure;
  Traffic traffic;
  Transport* opened = nullptr;  // from the opening to the end of the thread
  std::thread thread;

  /// Runs on the thread: opens the transport and processes the queue until the end.
  void serve(Communicator& owner, const std::function<std::unique_ptr<Transport>()>& open) {
    std::unique_ptr<CountingTransport> transport;
    try {
      transport = std::make_unique<CountingTransport>(open());
      owner.place_ = transport->place();
      owner.name_ = transport->name();
    } catch (...) {
      fail(std::current_exception());
      return;
    }
    std::unique_lock lock(mutex);
    is_open = true;
    opened = transport.get();
    progress.notify_all();
    for (;;) {
      wait_for_work(lock, *transport);
      if (ends) return;
      const Job job = std::move(queue.front());
      queue.pop_front();
      const std::exception_ptr thrown = attempt(lock, *transport, [&] { job(*transport); });
      traffic.bytes_sent = transport->bytes_sent;
      traffic.bytes_received = transport->bytes_received;
      traffic.exchanges = transport->exchanges;
      if (thrown == nullptr) ++done;
    }
  }

  /// Waits for a job or the end, and calls the transport's idle() meanwhile.
  void wait_for_work(std::unique_lock<std::mutex>& lock, Transport& transport) {
    const auto has_work = [&] { return ends || (!queue.empty() && failure == nullptr); };
    const double period = transport.idle_seconds();
    if (period <= 0) return work.wait(lock, has_work);
    while (!work.wait_for(lock, std::chrono::duration<double>(period), has_work))
      if (failure == nullptr) attempt(lock, transport, [&] { transport.idle(); });
  }

  /// Runs the action without the lock. An exception becomes the failure of all later calls.
  template <typename Action>
  std::exception_ptr attempt(std::unique_lock<std::mutex>& lock, Transport& transport,
                             Action&& action) {
    lock.unlock();
    const Stopwatch watch;
    std::exception_ptr thrown;
    try {
      action();
    } catch (const LostRank&) {
      thrown = std::current_exception();  // the transport has told the others
    } catch (const std::exception& e) {
      thrown = std::current_exception();
      transport.abandon(e.what());
    }
    lock.lock();
    traffic.busy_seconds += watch.seconds();
    if (thrown != nullptr && failure == nullptr) failure = thrown;
    progress.notify_all();
    return thrown;
  }

  void fail(std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    failure = std::move(thrown);
    progress.notify_all();
  }

  /// Expects the lock to be held.
  void rethrow() const {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
};

Communicator::Communicator(const std::function<std::unique_ptr<Transport>()>& open)
    : exceptions_before_(std::uncaught_exceptions()), state_(std::make_unique<State>()) {
  State& state = *state_;
  state.thread = std::thread([this, &state, &open] { state.serve(*this, open); });
  std::unique_lock lock(state.mutex);
  state.progress.wait(lock, [&] { return state.is_open || state.failure != nullptr; });
  if (state.is_open) return;
  lock.unlock();
  state.thread.join();
  state.rethrow();
}

Communicator::~Communicator() {
  const bool unwinds = std::uncaught_exceptions() > exceptions_before_;
  end(unwinds ? "an error ended it; its own message says which" : "");
}

void Communicator::abandon(const std::string& why) { end(why.empty() ? "it has ended" : why); }

void Communicator::end(const std::string& why) {
  State& state = *state_;
  if (!state.thread.joinable()) return;
  if (!why.empty()) state.opened->abandon(why);
  {
    const std::lock_guard lock(state.mutex);
    state.ends = true;
    if (state.failure == nullptr)
      state.failure = std::make_exception_ptr(InternalError("the communicator has ended"));
    state.work.notify_all();
    state.progress.notify_all();
  }
  state.thread.join();
}

Communicator::Ticket Communicator::start(Job job) {
  const std::lock_guard lock(state_->mutex);
  state_->rethrow();
  state_->queue.push_back(std::move(job));
  state_->work.notify_one();
  return ++state_->started;
}

void Communicator::wait(Ticket ticket) {
  const Stopwatch watch;
  std::unique_lock lock(state_->mutex);
  state_->progress.wait(lock, [&] { return state_->done >= ticket || state_->failure != nullptr; });
  state_->traffic.waited_seconds += watch.seconds();
  state_->rethrow();
}

std::vector<std::vector<std::byte>> Communicator::gather(std::span<const std::byte> bytes) {
  std::vector<std::vector<std::byte>> all(static_cast<size_t>(ranks()));
  for (std::vector<std::byte>& part : all) part.resize(bytes.size());
  run([&](Transport& transport) {
    const auto size = static_cast<int64_t>(bytes.size());
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int peer = 0; peer < transport.ranks(); ++peer) {
      out.push_back({peer, bytes.data(), size});
      in.push_back({peer, all[static_cast<size_t>(peer)].data(), size});
    }
    transport.exchange(out, in);
  });
  return all;
}

// A binomial tree: in round k, the 2^k ranks that have the bytes send them to 2^k others.
void Communicator::broadcast(std::span<std::byte> bytes, int root) {
  BRRR_CHECK(root >= 0 && root < ranks(), "rank {} of {}", root, ranks());
  run([&](Transport& transport) {
    const int n = transport.ranks(), own = (transport.rank() - root + n) % n;
    const auto size = static_cast<int64_t>(bytes.size());
    for (int having = 1; having < n; having *= 2) {
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      if (own < having && own + having < n)
        out.push_back({(own + having + root) % n, bytes.data(), size});
      if (own >= having && own < 2 * having)
        in.push_back({(own - having + root) % n, bytes.data(), size});
      transport.exchange(out, in);
    }
  });
}

void Communicator::barrier() {
  const std::byte nothing{};
  gather({&nothing, 1});
}

Communicator::Traffic Communicator::traffic() const {
  const std::lock_guard lock(state_->mutex);
  return state_->traffic;
}

}  // namespace brrr
