#include "runtime/ranks/host_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "runtime/ranks/build_id.h"
#include "runtime/ranks/transports.h"

namespace brrr::ranks {
namespace {

constexpr uint32_t kMagic = 0x72727242;  // "Brrr"
constexpr uint32_t kLayoutVersion = 1;
constexpr uint64_t kProbe = 0x5eed0fb1757ull;

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, double seconds) {
  const timespec limit{.tv_sec = static_cast<time_t>(seconds),
                       .tv_nsec = static_cast<long>(1e9 * (seconds - std::floor(seconds)))};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

/// Copies as much of the text as fits, with a zero at the end.
template <size_t N>
void put_text(char (&to)[N], const std::string& text) {
  const size_t bytes = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

template <size_t N>
std::string get_text(const char (&from)[N]) {
  return {from, ::strnlen(from, N)};
}

constexpr uint64_t rounded(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

uint64_t Verdict::word() const {
  return static_cast<uint64_t>(fault) | static_cast<uint64_t>(rank & 0xffffff) << 8 |
         static_cast<uint64_t>(number) << 32;
}

Verdict Verdict::of(uint64_t word) {
  return {static_cast<Fault>(word & 0xff), static_cast<int>(word >> 8 & 0xffffff),
          static_cast<int>(word >> 32)};
}

/// The first fields have the same offsets in all versions, so that ranks of different builds can
/// refuse each other by name.
struct HostSegment::Header {
  uint32_t magic = 0, layout_version = kLayoutVersion;
  std::atomic<uint64_t> verdict{0};
  ProcessName creator;
  uint64_t build = 0;
  int32_t ranks = 0;
  std::atomic<int32_t> attached{0};
  int64_t ring_bytes = 0;
};

struct alignas(64) HostSegment::Slot {
  enum State : uint32_t { kEmpty, kAttached, kLeft };
  std::atomic<uint32_t> state{kEmpty};
  ProcessName process;
  uint64_t process_namespace = 0;
  std::atomic<uint64_t> heartbeat{0};
  uint64_t probe_address = 0;
  char host[65] = {};
  char why[512] = {};  // written before the verdict that it belongs to
  alignas(64) std::atomic<uint32_t> doorbell{0};
  std::atomic<uint32_t> sleepers{0};
};

struct HostSegment::Layout {
  uint64_t slots, rings, data, bytes;
};

HostSegment::Layout HostSegment::layout() const {
  const auto n = static_cast<uint64_t>(ranks_);
  Layout at{};
  at.slots = rounded(sizeof(Header), alignof(Slot));
  at.rings = at.slots + kMostRanks * sizeof(Slot);
  at.data = rounded(at.rings + n * n * sizeof(Ring), 4096);
  at.bytes = at.data + n * (n - 1) * static_cast<uint64_t>(ring_bytes_);
  return at;
}

HostSegment::Header& HostSegment::header() const { return *reinterpret_cast<Header*>(memory_); }

HostSegment::Slot& HostSegment::slot(int rank) const {
  return reinterpret_cast<Slot*>(memory_ + layout().slots)[rank];
}

HostSegment::Ring& HostSegment::ring(int sender, int receiver) const {
  return reinterpret_cast<Ring*>(memory_ + layout().rings)[sender * ranks_ + receiver];
}

std::byte* HostSegment::ring_data(int sender, int receiver) const {
  const int64_t pair = int64_t{sender} * (ranks_ - 1) + receiver - (receiver > sender ? 1 : 0);
  return memory_ + layout().data + pair * ring_bytes_;
}

HostSegment::HostSegment(const RankPlace& place, const TransportOptions& options,
                         int64_t ring_bytes)
    : rank_(place.rank),
      ranks_(place.ranks),
      timeout_seconds_(options.timeout_seconds),
      start_seconds_(options.start_seconds),
      ring_bytes_(ring_bytes),
      name_(segment_name(place.run_id)),
      probe_(kProbe + static_cast<uint64_t>(place.rank)) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  if (ranks_ > kMostRanks)
    usage_error("shared memory connects at most {} ranks, got {}; use --comm mpi", kMostRanks,
                ranks_);
#ifdef PR_SET_PTRACER
  // Ubuntu permits a process to read only its descendants, unless they permit other readers.
  if (options.reads_directly) ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
  attach();
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  watcher_ = std::thread([this] { watch(); });
  try {
    await_all();
    if (options.reads_directly) try_direct_reads();
  } catch (...) {
    unmap();
    throw;
  }
}

HostSegment::~HostSegment() { unmap(); }

void HostSegment::unmap() {
  if (watcher_.joinable()) {
    const uint64_t one = 1;
    static_cast<void>(::write(stop_, &one, sizeof one));
    watcher_.join();
  }
  if (stop_ >= 0) ::close(stop_);
  if (memory_ != nullptr) {
    if (header().attached.load() < ranks_) remove_name();
    slot(rank_).state.store(Slot::kLeft);
    for (int peer = 0; peer < ranks_; ++peer) ring_doorbell(peer);
    ::munmap(memory_, mapped_bytes_);
  }
  if (fd_ >= 0) ::close(fd_);
  stop_ = fd_ = -1;
  memory_ = nullptr;
}

// ---- attaching

void HostSegment::attach() {
  while (!try_to_attach()) {
    if (memory_ != nullptr) ::munmap(memory_, mapped_bytes_);
    ::close(fd_);
    fd_ = -1;
    memory_ = nullptr;
  }
}

/// Attaches under a lock on the file, which the system releases if its holder ends. Returns false
/// if the file was left behind by an earlier run or no longer has the name; the caller tries again.
bool HostSegment::try_to_attach() {
  fd_ = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0)
    user_error(
        "cannot open the shared memory /dev/shm{}: {}; ranks of one host need it, or --comm "
        "mpi",
        name_, std::strerror(errno));
  while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || info.st_nlink == 0) return false;
  const bool is_new = info.st_size == 0;
  if (is_new) {
    make(fd_);
    ::fstat(fd_, &info);
  }
  mapped_bytes_ = static_cast<uint64_t>(info.st_size);
  void* memory = mapped_bytes_ < sizeof(Header)
                     ? MAP_FAILED
                     : ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory != MAP_FAILED) memory_ = static_cast<std::byte*>(memory);
  if (is_new && memory_ != nullptr) {
    Header& h = *new (memory_) Header;
    h.creator = own_process();
    h.build = program_build_id();
    h.ranks = ranks_;
    h.ring_bytes = ring_bytes_;
    for (int rank = 0; rank < ranks_; ++rank) new (&slot(rank)) Slot;
    for (int i = 0; i < ranks_ * ranks_; ++i) new (&ring(i / ranks_, i % ranks_)) Ring;
    h.magic = kMagic;
  }
  if (memory_ == nullptr || is_stale(mapped_bytes_)) {
    ::shm_unlink(name_.c_str());
    return false;
  }
  try {
    claim_slot();
  } catch (...) {
    ::munmap(memory_, mapped_bytes_);
    ::close(fd_);
    throw;
  }
  if (header().attached.fetch_add(1) + 1 == ranks_) ::shm_unlink(name_.c_str());
  for (int peer = 0; peer < ranks_; ++peer) ring_doorbell(peer);
  ::flock(fd_, LOCK_UN);
  return true;
}

/// Initialises the segment. Its pages are reserved, because a full file system would otherwise end
/// the process by SIGBUS later.
void HostSegment::make(int fd) const {
  const uint64_t bytes = layout().bytes;
  const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (error == 0) return;
  ::shm_unlink(name_.c_str());
  ::close(fd);
  user_error(
      "cannot reserve {} bytes of shared memory for {} ranks in /dev/shm: {}; make room there (a "
      "container: docker run --shm-size), or use --comm mpi",
      bytes, ranks_, std::strerror(error));
}

/// Whether all attached processes have ended, or the segment was never initialised completely.
bool HostSegment::is_stale(uint64_t size) const {
  const Header& h = header();
  if (h.magic != kMagic) return true;
  if (h.layout_version != kLayoutVersion) return has_ended(h.creator);
  if (h.ranks < 1 || h.ranks > kMostRanks || size < layout().slots + sizeof(Slot) * kMostRanks)
    return true;
  for (int rank = 0; rank < h.ranks; ++rank) {
    const Slot& s = slot(rank);
    if (s.state.load() == Slot::kAttached &&
        (s.process_namespace != process_namespace() || !has_ended(s.process)))
      return false;
  }
  return h.attached.load() > 0;
}

void HostSegment::claim_slot() {
  Header& h = header();
  const auto refuse = [&](const Verdict& verdict) {
    uint64_t none = 0;
    h.verdict.compare_exchange_strong(none, verdict.word());
    throw LostRank(sentence(Verdict::of(h.verdict.load())), ExitCode::kUsage);
  };
  if (h.layout_version != kLayoutVersion || h.build != program_build_id()) {
    ranks_ = 0;  // the other build may lay out the slots differently
    refuse({Fault::other_build, rank_});
  }
  if (h.ranks != ranks_) {
    const int said = std::exchange(ranks_, h.ranks);
    refuse({Fault::other_count, rank_, said});
  }
  check();
  Slot& own = slot(rank_);
  if (own.state.load() != Slot::kEmpty) {
    if (own.state.load() == Slot::kLeft || has_ended(own.process))
      refuse({Fault::duplicate, rank_});
    usage_error(
        "rank {} of {} is taken by process {}; give every process a number of its own, and another "
        "run another BRRR_RUN_ID",
        rank_, ranks_, own.process.pid);
  }
  own.process = own_process();
  own.process_namespace = process_namespace();
  own.probe_address = reinterpret_cast<uintptr_t>(&probe_);
  put_text(own.host, host_name());
  own.state.store(Slot::kAttached);
}

void HostSegment::await_all() {
  int came = 0;
  Stopwatch since_last;
  for (;;) {
    const uint32_t seen = rings();
    const int attached = header().attached.load();
    if (attached == ranks_) return;
    check();
    if (attached > came) since_last.restart();
    came = attached;
    if (since_last.seconds() > start_seconds_) {
      for (int rank = 0; rank < ranks_; ++rank)
        if (slot(rank).state.load() == Slot::kEmpty) {
          end_run({Fault::absent, rank, static_cast<int>(std::lround(start_seconds_))});
          break;
        }
      continue;
    }
    sleep(seen, std::min(0.25, start_seconds_ / 8));
  }
}

void HostSegment::try_direct_reads() const {
  for (int peer = 0; peer < ranks_; ++peer) {
    uint64_t found = 0;
    if (peer == rank_ || slot(peer).process_namespace != process_namespace()) continue;
    read_memory(peer, slot(peer).probe_address, reinterpret_cast<std::byte*>(&found), sizeof found);
    if (found == kProbe + static_cast<uint64_t>(peer)) ring(peer, rank_).is_direct.store(true);
  }
}

int64_t HostSegment::read_memory(int rank, uint64_t address, std::byte* to, uint64_t bytes) const {
  const iovec here{.iov_base = to, .iov_len = bytes};
  const iovec there{.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes};
  return ::process_vm_readv(slot(rank).process.pid, &here, 1, &there, 1, 0);
}

/// Removes the name, unless it belongs to another file by now.
void HostSegment::remove_name() const {
  while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
  }
  struct stat info {};
  if (::fstat(fd_, &info) == 0 && info.st_nlink > 0) ::shm_unlink(name_.c_str());
  ::flock(fd_, LOCK_UN);
}

// ---- who is alive

/// Runs on the watching thread: increments the own beat and looks at those of the others. A rank is
/// silent if its beat does not change while this thread runs; time in which this process did not
/// run itself does not count.
void HostSegment::watch() {
  const double period = std::clamp(timeout_seconds_ / 20, 0.01, 0.25);
  struct Peer {
    std::unique_ptr<ProcessWatch> process;
    bool is_gone = false;  // has finished and is no longer watched
    uint64_t heartbeat = 0;
    double silent_seconds = 0;
  };
  std::vector<Peer> peers(static_cast<size_t>(ranks_));
  Stopwatch step;
  for (;;) {
    slot(rank_).heartbeat.fetch_add(1);
    std::vector<pollfd> events{{.fd = stop_, .events = POLLIN, .revents = 0}};
    const double passed = std::min(step.seconds(), 2 * period);
    step.restart();
    for (int rank = 0; rank < ranks_; ++rank) {
      Peer& peer = peers[static_cast<size_t>(rank)];
      const Slot& s = slot(rank);
      if (rank == rank_ || peer.is_gone || s.state.load() == Slot::kEmpty) continue;
      const bool is_here = s.process_namespace == process_namespace();
      if (peer.process == nullptr && is_here)
        peer.process = std::make_unique<ProcessWatch>(s.process);
      // Ask for the end first: a process that has finished did so before it ended.
      const bool ended = is_here && peer.process->ended();
      if (s.state.load() == Slot::kLeft) {
        peer.is_gone = true;
        continue;
      }
      if (ended) end_run({Fault::ended, rank});
      peer.silent_seconds = s.heartbeat.load() != peer.heartbeat ? 0 : peer.silent_seconds + passed;
      peer.heartbeat = s.heartbeat.load();
      if (peer.silent_seconds > timeout_seconds_)
        end_run({Fault::silent, rank, static_cast<int>(std::ceil(timeout_seconds_))});
      if (is_here && peer.process->descriptor() >= 0 && !ended)
        events.push_back({.fd = peer.process->descriptor(), .events = POLLIN, .revents = 0});
    }
    ::poll(events.data(), events.size(), static_cast<int>(1e3 * period));
    if ((events[0].revents & POLLIN) != 0) return;
  }
}

bool HostSegment::has_left(int rank) const { return slot(rank).state.load() == Slot::kLeft; }

// ---- the doorbell

uint32_t HostSegment::rings() const { return slot(rank_).doorbell.load(); }

void HostSegment::sleep(uint32_t seen, double seconds) const {
  Slot& own = slot(rank_);
  own.sleepers.fetch_add(1);
  if (own.doorbell.load() == seen) futex_wait(own.doorbell, seen, seconds);
  own.sleepers.fetch_sub(1);
}

void HostSegment::ring_doorbell(int rank) const {
  Slot& s = slot(rank);
  s.doorbell.fetch_add(1);
  if (s.sleepers.load() != 0) futex_wake(s.doorbell);
}

// ---- the end of the run

void HostSegment::check() const {
  const uint64_t word = header().verdict.load();
  if (word == 0) return;
  const Verdict verdict = Verdict::of(word);
  if (verdict.fault == Fault::gave_up || verdict.fault == Fault::left)
    throw AbandonedRun(sentence(verdict));
  throw LostRank(sentence(verdict));
}

void HostSegment::end_run(const Verdict& verdict) const {
  uint64_t none = 0;
  header().verdict.compare_exchange_strong(none, verdict.word());
  for (int peer = 0; peer < ranks_; ++peer) ring_doorbell(peer);
}

void HostSegment::give_up(const std::string& why) const {
  put_text(slot(rank_).why, why);
  end_run({Fault::gave_up, rank_});
}

std::string HostSegment::who(int rank) const {
  if (rank == rank_) return fmt::format("rank {} (this process)", rank);
  if (rank >= ranks_ || slot(rank).state.load() == Slot::kEmpty)
    return fmt::format("rank {}", rank);
  return fmt::format("rank {} on {} (process {})", rank, get_text(slot(rank).host),
                     slot(rank).process.pid);
}

std::string HostSegment::sentence(const Verdict& verdict) const {
  const std::string name = who(verdict.rank);
  switch (verdict.fault) {
    case Fault::ended:
      return name +
             " ended; look for its last message, or for the system's if it was killed, and start "
             "all ranks again";
    case Fault::silent:
      return fmt::format(
          "{} has not answered for {} s; see whether it is stopped, end it, and start all ranks "
          "again",
          name, verdict.number);
    case Fault::absent: {
      std::vector<std::string> absent;
      for (int rank = 0; rank < ranks_; ++rank)
        if (slot(rank).state.load() == Slot::kEmpty) absent.push_back(std::to_string(rank));
      return fmt::format(
          "{} {} of {} did not come within {} s of the others; start every rank, each with its own "
          "number",
          absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), ranks_, verdict.number);
    }
    case Fault::left:
      return name +
             " finished while other ranks still waited for it; start all ranks with the same "
             "options and data";
    case Fault::gave_up:
      return fmt::format("{} gave up: {}", name,
                         verdict.rank < ranks_ ? get_text(slot(verdict.rank).why) : "");
    case Fault::other_build:
      return name +
             " runs another build of brrr than the ranks before it; start the same program on all "
             "ranks";
    case Fault::other_count:
      return fmt::format(
          "{} was started as one of {} ranks, those before it as one of {}; give all the same "
          "number of ranks",
          name, verdict.number, header().ranks);
    case Fault::duplicate:
      return fmt::format(
          "rank {} came a second time, and its first process has ended; start all ranks again",
          verdict.rank);
    case Fault::none:
      break;
  }
  return "the run ended for an unknown reason";
}

}  // namespace brrr::ranks
