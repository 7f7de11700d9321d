#include "runtime/ranks/launcher_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/env.h"
#include "base/errors.h"
#include "runtime/ranks/place.h"

namespace brrr {
namespace {

constexpr uint32_t kMagic = 0x4c727242;  // "BrrL"
constexpr size_t kPathBytes = 4096, kSentenceBytes = 1024;
constexpr const char* kVariable = "BRRR_LAUNCHER_MEMORY";
constexpr std::string_view kProcesses = "/proc/";

void put_path(char (&to)[kPathBytes], const std::string& path) {
  BRRR_CHECK(path.size() < kPathBytes, "a path of {} bytes", path.size());
  std::memcpy(to, path.c_str(), path.size() + 1);
}

int make_file(const char* name) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  if (fd < 0)
    user_error("--elastic: cannot get memory that outlives a rank: {}", std::strerror(errno));
  return fd;
}

}  // namespace

/// A part with its step and number of ranks in one word, which makes it valid atomically.
struct LauncherMemory::Board {
  struct PartRecord {
    std::atomic<uint64_t> mark{0};  // 0: incomplete
    int64_t offset = 0, bytes = 0;
  };
  static uint64_t mark_of(int64_t step, int ranks) {
    return static_cast<uint64_t>(step + 1) << 16 | static_cast<uint64_t>(ranks);
  }
  static int64_t step_of(uint64_t mark) { return static_cast<int64_t>(mark >> 16) - 1; }
  static int ranks_of(uint64_t mark) { return static_cast<int>(mark & 0xffff); }

  uint32_t magic = kMagic;
  int32_t restarts = 0;
  GoOn::From from = GoOn::From::beginning;
  int64_t from_step = 0;
  char checkpoint[kPathBytes] = {};
  std::atomic<bool> place_is_checked{false}, has_folder{false};
  char folder[kPathBytes] = {};
  std::atomic<int32_t> joined{0};
  std::atomic<End> end{End::unknown};
  char sentence[kSentenceBytes] = {};
  std::atomic<int64_t> steps[kMostRanks];
  PartRecord parts[kGenerations][kMostRanks];
};

LauncherMemory LauncherMemory::make() {
  LauncherMemory memory;
  memory.board_file_ = make_file("brrr-run");
  for (int& file : memory.files_) file = make_file("brrr-peer-checkpoint");
  if (::ftruncate(memory.board_file_, sizeof(Board)) != 0)
    user_error("--elastic: cannot get memory that outlives a rank: {}", std::strerror(errno));
  memory.map();
  new (memory.board_) Board;
  memory.set_go_on({}, 0);
  return memory;
}

bool LauncherMemory::is_set() { return env::get(kVariable).has_value(); }

bool LauncherMemory::is_of_several_hosts() {
  return env::get(kVariable).value_or("").starts_with(kProcesses);
}

std::optional<LauncherMemory> LauncherMemory::inherited() {
  const std::optional<std::string> given = env::get(kVariable);
  if (!given) return std::nullopt;
  if (is_of_several_hosts()) {
    if (find_place().rank != 0) return std::nullopt;
    return opened(*given);
  }
  LauncherMemory memory;
  int* const files[] = {&memory.board_file_, &memory.files_[0], &memory.files_[1]};
  size_t at = 0;
  for (int* file : files) {
    char* end = nullptr;
    *file = static_cast<int>(std::strtol(given->c_str() + at, &end, 10));
    at = std::min(given->size(), static_cast<size_t>(end - given->c_str()) + 1);
    struct stat info {};
    if (::fstat(*file, &info) != 0 ||
        (file == files[0] && info.st_size != static_cast<off_t>(sizeof(Board)))) {
      for (int* each : files) *each = -1;
      usage_error("BRRR_LAUNCHER_MEMORY is set by `brrr launch --elastic` alone; unset it");
    }
  }
  // The duplicates are closed by exec, so that programs started by this process do not inherit
  // them.
  for (int* file : files) *file = ::fcntl(*file, F_DUPFD_CLOEXEC, 3);
  memory.map();
  BRRR_CHECK(memory.board_->magic == kMagic, "the launcher is another program");
  return memory;
}

LauncherMemory LauncherMemory::opened(const std::string& path) {
  LauncherMemory memory;
  memory.board_file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (memory.board_file_ < 0 || ::fstat(memory.board_file_, &info) != 0 ||
      info.st_size != static_cast<off_t>(sizeof(Board)))
    usage_error(
        "--elastic with --hosts: rank 0 has to run on the host of `brrr launch`; name this host "
        "first");
  memory.map();
  BRRR_CHECK(memory.board_->magic == kMagic, "the launcher is another program");
  return memory;
}

LauncherMemory::LauncherMemory(LauncherMemory&& other) noexcept
    : board_file_(std::exchange(other.board_file_, -1)),
      board_(std::exchange(other.board_, nullptr)) {
  for (int i = 0; i < kGenerations; ++i) files_[i] = std::exchange(other.files_[i], -1);
}

LauncherMemory::~LauncherMemory() {
  if (board_ != nullptr) ::munmap(board_, sizeof(Board));
  for (const int file : {board_file_, files_[0], files_[1]})
    if (file >= 0) ::close(file);
}

void LauncherMemory::map() {
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, board_file_, 0);
  if (memory == MAP_FAILED)
    user_error("--elastic: cannot get memory that outlives a rank: {}", std::strerror(errno));
  board_ = static_cast<Board*>(memory);
}

std::string LauncherMemory::pass_on() const {
  for (const int file : {board_file_, files_[0], files_[1]}) ::fcntl(file, F_SETFD, 0);
  return fmt::format("{},{},{}", board_file_, files_[0], files_[1]);
}

std::string LauncherMemory::path() const {
  return fmt::format("{}{}/fd/{}", kProcesses, ::getpid(), board_file_);
}

void LauncherMemory::set_go_on(const GoOn& go_on, int restarts) {
  board_->restarts = restarts;
  board_->from = go_on.from;
  board_->from_step = go_on.step;
  put_path(board_->checkpoint, go_on.checkpoint);
  board_->joined.store(0);
  board_->end.store(End::unknown);
  for (std::atomic<int64_t>& step : board_->steps) step.store(-1);
}

GoOn LauncherMemory::go_on() const { return {board_->from, board_->from_step, board_->checkpoint}; }

int LauncherMemory::restarts() const { return board_->restarts; }

void LauncherMemory::set_joined(int32_t process) { board_->joined.store(process); }
int32_t LauncherMemory::joined_process() const { return board_->joined.load(); }

void LauncherMemory::set_end(End end, const std::string& sentence) {
  const size_t bytes = std::min(sentence.size(), kSentenceBytes - 1);
  std::memcpy(board_->sentence, sentence.data(), bytes);
  board_->sentence[bytes] = 0;
  board_->end.store(end);
}
LauncherMemory::End LauncherMemory::end() const { return board_->end.load(); }
std::string LauncherMemory::end_sentence() const { return board_->sentence; }

void LauncherMemory::set_place_checked() { board_->place_is_checked.store(true); }
bool LauncherMemory::is_place_checked() const { return board_->place_is_checked.load(); }

void LauncherMemory::set_folder(const std::string& folder) {
  put_path(board_->folder, folder);
  board_->has_folder.store(true);
}

std::string LauncherMemory::folder() const {
  return board_->has_folder.load() ? board_->folder : "";
}

void LauncherMemory::set_step(int rank, int64_t step) { board_->steps[rank].store(step); }

int64_t LauncherMemory::reached() const {
  int64_t most = -1;
  for (const std::atomic<int64_t>& step : board_->steps) most = std::max(most, step.load());
  return most;
}

void LauncherMemory::begin_part(int generation, int rank, const Part& part) {
  Board::PartRecord& record = board_->parts[generation][rank];
  record.mark.store(0);
  record.offset = part.offset;
  record.bytes = part.bytes;
}

void LauncherMemory::end_part(int generation, int rank, int ranks, int64_t step) {
  board_->parts[generation][rank].mark.store(Board::mark_of(step, ranks));
}

std::optional<LauncherMemory::Complete> LauncherMemory::newest() const {
  std::optional<Complete> found;
  for (int generation = 0; generation < kGenerations; ++generation) {
    const auto& parts = board_->parts[generation];
    const uint64_t mark = parts[0].mark.load();
    const int ranks = Board::ranks_of(mark);
    if (mark == 0 || ranks > kMostRanks || (found && Board::step_of(mark) <= found->step)) continue;
    if (std::all_of(parts, parts + ranks,
                    [&](const Board::PartRecord& part) { return part.mark.load() == mark; }))
      found = {generation, ranks, Board::step_of(mark)};
  }
  return found;
}

LauncherMemory::Part LauncherMemory::part(int generation, int rank) const {
  const Board::PartRecord& record = board_->parts[generation][rank];
  return {record.offset, record.bytes};
}

}  // namespace brrr
