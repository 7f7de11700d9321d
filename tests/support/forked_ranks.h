#pragma once
// Runs each rank in a forked process, for tests that kill or stop ranks.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "runtime/ranks/communicator.h"
#include "runtime/ranks/transports.h"

namespace brrr::test {

/// Unlike that of any other test, in this process or another.
inline std::string fresh_run_id() {
  static std::atomic<int> count{0};
  return fmt::format("test-{}-{}", ::getpid(), count++);
}

/// A rank of a run on this host.
inline RankPlace local_place(int rank, int ranks, const std::string& run_id) {
  return {.rank = rank,
          .ranks = ranks,
          .local_rank = rank,
          .local_ranks = ranks,
          .source = "--ranks",
          .run_id = run_id};
}

/// The shared memory of a run has a name now.
inline bool segment_exists(const std::string& run_id) {
  return ::access(("/dev/shm" + ranks::segment_name(run_id)).c_str(), F_OK) == 0;
}

/// Waits until as many ranks of the run are attached, by what the shared memory says (the struct
/// Header of runtime/ranks/host_segment.cpp).
inline void await_attached(const std::string& run_id, int32_t ranks) {
  constexpr off_t kAttachedOffset = 44;
  const std::string path = "/dev/shm" + ranks::segment_name(run_id);
  for (int32_t attached = 0; attached < ranks; std::this_thread::yield()) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    if (::pread(fd, &attached, sizeof attached, kAttachedOffset) != sizeof attached) attached = 0;
    ::close(fd);
  }
}

class ForkedRanks {
 public:
  using Body = std::function<void(Communicator&, ForkedRanks&)>;
  explicit ForkedRanks(std::string run_id = fresh_run_id()) : run_id_(std::move(run_id)) {
    void* shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    count_ = new (shared) std::atomic<int>(0);
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  ~ForkedRanks() {
    for (const Process& process : processes_) {
      if (!process.is_reaped) {
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
      }
      ::close(process.pipe);
    }
    ::munmap(count_, sizeof *count_);
    ranks::remove_segment(run_id_);
  }

  const std::string& run_id() const { return run_id_; }
  /// Counts on all ranks together; the test waits for a number of them.
  void count() { ++*count_; }
  bool await_count(int least, double seconds = 60) const {
    for (const Stopwatch watch; watch.seconds() < seconds;) {
      if (*count_ >= least) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  void start(int rank, int ranks, const TransportOptions& options, const Body& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string said;
      try {
        Communicator communicator(
            [&] { return open_transport(local_place(rank, ranks, run_id_), options); });
        body(communicator, *this);
      } catch (const std::exception& e) {
        said = e.what();
      }
      static_cast<void>(!::write(ends[1], said.data(), said.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    processes_.push_back({pid, ends[0]});
  }
  void start_all(int ranks, const TransportOptions& options, const Body& body) {
    for (int rank = 0; rank < ranks; ++rank) start(rank, ranks, options, body);
  }

  /// By the order of starts, which is that of the ranks in start_all().
  pid_t pid(int index) const { return processes_[static_cast<size_t>(index)].pid; }
  void signal(int index, int number) const { ::kill(pid(index), number); }
  /// Waits for the end, at most a minute; what the rank's exception said, "" if there was none.
  std::string wait(int index, double seconds = 60) {
    Process& process = processes_[static_cast<size_t>(index)];
    for (const Stopwatch watch; !process.is_reaped;) {
      process.is_reaped = ::waitpid(process.pid, nullptr, WNOHANG) == process.pid;
      if (watch.seconds() > seconds) return "the process did not end";
      if (!process.is_reaped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::string said(4096, '\0');
    said.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(process.pipe, said.data(), 4096))));
    return said;
  }

 private:
  struct Process {
    pid_t pid = 0;
    int pipe = -1;
    bool is_reaped = false;
  };
  std::string run_id_;
  std::atomic<int>* count_ = nullptr;
  std::vector<Process> processes_;
};

}  // namespace brrr::test
