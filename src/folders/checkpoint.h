#pragma once
// Checkpoints of a run: folders `checkpoint-000250` inside the run folder, each with a manifest of
// the size and CRC-32C of every file. A checkpoint is complete or not there: it is written under a
// hidden name, synced, and renamed; it is deleted by renaming it back to a hidden name first. So
// after a kill or a power cut at any moment every folder called checkpoint-* was once complete, and
// whether it still is can be verified. One process writes to a run folder at a time.
//
// A folder is removed only if Brrr made it: its manifest, which is written first and removed last,
// says that it is a checkpoint of Brrr, of the step that the folder's name says. Folders of others
// with such names stay, links too.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::io {

struct Checkpoint {
  fs::path folder;
  int64_t step = 0;
};

/// Collects the files of one checkpoint. Destroyed without commit(), it leaves nothing behind.
class CheckpointWriter {
 public:
  /// Creates the hidden folder in `run_dir`, which must exist.
  CheckpointWriter(const fs::path& run_dir, int64_t step);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  /// Where to write the file `name`; commit() insists that it is there.
  fs::path path(const std::string& name);
  /// The hidden folder, for savers that choose file names themselves: every file in it belongs to
  /// the checkpoint.
  const fs::path& folder() const { return temporary_; }

  /// Syncs every file, writes the manifest, and makes the checkpoint visible; one of the same step
  /// is replaced, and a folder of somebody else with its name becomes replaced-*. Throws UserError
  /// when the disk is full or read-only; older checkpoints are untouched.
  Checkpoint commit();

 private:
  fs::path run_dir_, temporary_;
  int64_t step_;
  std::set<std::string> promised_;
  int lock_ = -1;  // held while we live, so that prune() can tell a live temporary from a dead one
};

/// The checkpoints of a run, lowest step first; none when there are none. Throws UserError when the
/// run folder does not exist. Nothing is verified.
std::vector<Checkpoint> list_checkpoints(const fs::path& run_dir);

/// Reads every file. Throws UserError naming the file that is missing, has the wrong size or the
/// wrong checksum, with what was expected and found.
void verify(const Checkpoint& checkpoint);

/// The checkpoint in a folder that a user named, verified. A folder called checkpoint-* must be of
/// that step; under any other name its manifest says which step it is of.
Checkpoint open_checkpoint(const fs::path& folder);

/// The checkpoint of the highest step that verifies and in which `check` finds no fault (it throws
/// UserError). For each damaged one above it, `on_damaged` gets one line that says what is wrong
/// with it.
std::optional<Checkpoint> latest_valid(const fs::path& run_dir,
                                       const std::function<void(const std::string&)>& on_damaged,
                                       const std::function<void(const Checkpoint&)>& check = {});

/// Renames the checkpoints of later steps to replaced-*, for a run that goes on from `step`: the
/// newest checkpoint is then the one it goes on from, and nothing is lost before it has saved one
/// of its own. The latest goes first, so that after a kill the newest is still one that the log
/// reaches. Returns the steps, lowest first.
std::vector<int64_t> set_aside_after(const fs::path& run_dir, int64_t step);

/// Removes what set_aside_after() put aside.
void drop_set_aside(const fs::path& run_dir);

/// Removes every checkpoint of Brrr, for a run that replaces another one.
void remove_all_checkpoints(const fs::path& run_dir);

struct PruneOptions {
  /// Highest steps to keep, at least 1.
  int keep_last = 2;
  /// Steps to keep whatever their age (the best one).
  std::set<int64_t> also_keep = {};
  /// The step that this process has just committed: kept, and trusted without reading it again.
  std::optional<int64_t> just_written = {};
};

/// Removes the other checkpoints and what dead processes left behind. The newest checkpoint that
/// verifies is always kept, too. Returns the removed steps.
std::vector<int64_t> prune(const fs::path& run_dir, const PruneOptions& options);

}  // namespace brrr::io
