#pragma once
// LauncherMemory: shared memory of `brrr launch --elastic` and the ranks that it starts, which
// inherit it. It has no name and is freed with the last process that holds it, so it outlives the
// ranks. It records the progress of the run and where restarted ranks go on, and it holds the peer
// checkpoints: two generations of the training state, to which each rank contributes a part. Ranks
// on several hosts are started by mpirun and inherit nothing. There only rank 0, which runs on the
// launcher's host, opens the memory, and there are no peer checkpoints.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace brrr {

/// The state from which ranks go on after a start.
struct GoOn {
  enum class From : int32_t { beginning, checkpoint, memory };
  From from = From::beginning;
  int64_t step = 0;        // the step of that state
  std::string checkpoint;  // folder of the newest checkpoint on disk; "": none
};

class LauncherMemory {
 public:
  static constexpr int kMostRanks = 4096;
  static constexpr int kGenerations = 2;

  /// Allocates the memory, in the launcher. Throws UserError if that fails.
  static LauncherMemory make();
  /// Whether an elastic launcher started this process, and whether it did so by mpirun.
  static bool is_set();
  static bool is_of_several_hosts();
  /// Opens the memory that BRRR_LAUNCHER_MEMORY names. Returns nothing in processes that no elastic
  /// launcher started and, on several hosts, in ranks other than rank 0. Throws UserError if the
  /// memory does not exist.
  static std::optional<LauncherMemory> inherited();
  LauncherMemory(LauncherMemory&& other) noexcept;
  LauncherMemory& operator=(LauncherMemory&&) = delete;
  ~LauncherMemory();

  /// To be called after fork(): lets the program that this process starts by exec inherit the
  /// memory. Returns the value for its BRRR_LAUNCHER_MEMORY.
  std::string pass_on() const;
  /// The value of BRRR_LAUNCHER_MEMORY for ranks that mpirun starts.
  std::string path() const;

  // -- written by the launcher, between runs of the ranks
  void set_go_on(const GoOn& go_on, int restarts);
  GoOn go_on() const;
  int restarts() const;  // how often the ranks were started again

  // -- written by rank 0
  /// Notes that all ranks are connected. `process`: the process number of rank 0.
  void set_joined(int32_t process);
  int32_t joined_process() const;  // 0: not connected yet
  /// Why rank 0 ended, unless by a signal: it lost another rank, as the sentence says, or the run
  /// failed with an error.
  enum class End : int32_t { unknown, lost, failed };
  void set_end(End end, const std::string& sentence);
  End end() const;
  std::string end_sentence() const;
  /// Notes that the folder of a new run was free or may be overwritten, so that files in it now
  /// belong to this run.
  void set_place_checked();
  bool is_place_checked() const;
  /// The folder of the run, once its options are recorded.
  void set_folder(const std::string& folder);
  std::string folder() const;

  // -- written by each rank
  void set_step(int rank, int64_t step);
  /// The largest step that a rank has completed since the last start; -1: none has begun to train.
  int64_t reached() const;

  /// A rank's part of a generation: a range of that generation's file.
  struct Part {
    int64_t offset = 0, bytes = 0;
  };
  /// Marks the part as incomplete until end_part().
  void begin_part(int generation, int rank, const Part& part);
  void end_part(int generation, int rank, int ranks, int64_t step);
  /// A generation that has the parts of all ranks.
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
