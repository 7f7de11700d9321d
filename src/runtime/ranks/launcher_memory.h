#pragma once
// LauncherMemory: memory of `brrr launch --elastic`, which the ranks that it starts inherit. It
// outlives them, has no name, and is gone with the last process that holds it. It says how far the
// run is, where ranks that are started again go on, and it holds the peer checkpoints: two
// generations of the training state, of which each rank writes its part. Ranks of several hosts
// are started by mpirun, which passes nothing on: there rank 0 alone, which runs on the launcher's
// host, opens the memory, and there are no peer checkpoints.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace brrr {

/// Where ranks that are started go on.
struct GoOn {
  enum class From : int32_t { beginning, checkpoint, memory };
  From from = From::beginning;
  int64_t step = 0;        // of the checkpoint or of the peer checkpoint
  std::string checkpoint;  // its folder; with From::memory, the newest one on disk, or ""
};

class LauncherMemory {
 public:
  static constexpr int kMostRanks = 4096;
  static constexpr int kGenerations = 2;

  /// In the launcher. Throws UserError where the system does not give the memory.
  static LauncherMemory make();
  /// Whether an elastic launcher started this process, and whether it did by mpirun.
  static bool is_set();
  static bool is_of_several_hosts();
  /// What BRRR_LAUNCHER_MEMORY names; nothing in processes that no elastic launcher started, and in
  /// ranks of several hosts other than rank 0. Throws UserError where the memory is not there.
  static std::optional<LauncherMemory> inherited();
  LauncherMemory(LauncherMemory&& other) noexcept;
  LauncherMemory& operator=(LauncherMemory&&) = delete;
  ~LauncherMemory();

  /// After fork(): lets the program that the process becomes inherit the memory. Returns the value
  /// of BRRR_LAUNCHER_MEMORY.
  std::string pass_on() const;
  /// The value of BRRR_LAUNCHER_MEMORY for ranks that mpirun starts.
  std::string path() const;

  // -- written by the launcher, between runs of the ranks
  void set_go_on(const GoOn& go_on, int restarts);
  GoOn go_on() const;
  int restarts() const;  // how often the ranks were started again

  // -- written by rank 0
  /// All ranks have come together; the process of rank 0.
  void set_joined(int32_t process);
  int32_t joined_process() const;  // 0: not yet
  /// Why rank 0 ended, where that was no signal: it lost another rank, as the sentence says, or the
  /// run met an error.
  enum class End : int32_t { unknown, lost, failed };
  void set_end(End end, const std::string& sentence);
  End end() const;
  std::string end_sentence() const;
  /// The place of a new run is free, or may be overwritten: what is in it from now on is its own.
  void set_place_checked();
  bool is_place_checked() const;
  /// The folder of the run, once its options are recorded.
  void set_folder(const std::string& folder);
  std::string folder() const;

  // -- written by each rank
  void set_step(int rank, int64_t step);
  /// The most steps that a rank has done since it was started; -1: none has begun.
  int64_t reached() const;

  /// The part of a rank in a generation: bytes of that generation's file.
  struct Part {
    int64_t offset = 0, bytes = 0;
  };
  /// From now on the part is incomplete, until end_part().
  void begin_part(int generation, int rank, const Part& part);
  void end_part(int generation, int rank, int ranks, int64_t step);
  /// The newest step of which a generation has the parts of all ranks.
  struct Complete {
    int generation = 0, ranks = 0;
    int64_t step = 0;
  };
  std::optional<Complete> newest() const;
  Part part(int generation, int rank) const;
  int descriptor(int generation) const { return files_[generation]; }

 private:
  struct Board;
  LauncherMemory() = default;
  static LauncherMemory opened(const std::string& path);
  void map();

  int board_file_ = -1;
  int files_[kGenerations] = {-1, -1};
  Board* board_ = nullptr;
};

}  // namespace brrr
