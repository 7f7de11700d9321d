#include "train/run_place.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "folders/adapters/adapter_config.h"
#include "folders/chat_template.h"
#include "folders/checkpoint.h"
#include "folders/folder_lock.h"
#include "folders/model_folder.h"
#include "formats/tensorboard.h"
#include "text/tokenizer.h"

namespace brrr::train {
namespace {

constexpr const char* kRunFiles[] = {
    "train_config.json", "model.safetensors", io::kAdapterWeights,      io::kAdapterConfig,
    io::kModelConfig,    "config.json",       "generation_config.json", "log.jsonl",
    "loss.svg",          "samples.json",      io::kPreprocessorConfig,  io::kChatTemplate};
constexpr const char* kEvents = "tensorboard";

// A file that the run would replace.
std::optional<std::string> run_file_in(const fs::path& folder) {
  for (const char* name : kRunFiles)
    if (fs::exists(folder / name)) return name;
  if (fs::exists(folder / kEvents)) return kEvents;
  for (const std::string_view name : io::tokenizer_file_names())
    if (fs::exists(folder / name)) return std::string(name);
  const auto checkpoints = io::list_checkpoints(folder);
  if (!checkpoints.empty()) return checkpoints.front().folder.filename().string();
  return std::nullopt;
}

// Asks the system for the nearest folder that is there: whether it is one, and may be written to.
void check_can_create(const fs::path& folder) {
  fs::path at = fs::absolute(folder).lexically_normal();
  for (;; at = at.parent_path()) {
    struct stat info {};
    int error = 0;
    if (::stat(at.c_str(), &info) != 0) {
      error = errno;
      if ((error == ENOENT || error == ENOTDIR) && at != at.root_path()) continue;
    } else if (!S_ISDIR(info.st_mode)) {
      error = ENOTDIR;
    } else if (::access(at.c_str(), W_OK | X_OK) != 0) {
      error = errno;
    } else {
      return;
    }
    user_error("cannot write the run to {}: {}; name another --output-dir", folder.string(),
               error == ENOTDIR ? at.string() + " is not a folder" : std::strerror(error));
  }
}

bool is_folder_of_data(const fs::path& run, const TrainOptions& options) {
  for (const std::vector<std::string>* list : {&options.data, &options.val_data})
    for (const std::string& name : *list) {
      const fs::path path(name);
      std::error_code ignored;
      if (fs::equivalent(fs::is_directory(path) ? path : fs::absolute(path).parent_path(), run,
                         ignored))
        return true;
    }
  return false;
}

}  // namespace

fs::path without_last_slash(const std::string& folder) {
  const size_t end = folder.find_last_not_of('/');
  return end == std::string::npos ? fs::path(folder) : fs::path(folder.substr(0, end + 1));
}

void check_run_folder(const TrainOptions& options) {
  if (options.output_dir.empty()) return check_can_create("runs");
  const fs::path run = without_last_slash(options.output_dir);
  check_can_create(run);
  std::error_code ignored;
  if (!fs::is_directory(run, ignored)) return;
  if (is_folder_of_data(run, options))
    user_error("{} holds the data: name another --output-dir", run.string());
  if (options.overwrite) return;
  const auto file = run_file_in(run);
  if (!file) return;
  if (!fs::exists(run / "train_config.json"))
    user_error(
        "{} already holds {}, which the run would replace: name another --output-dir, or replace "
        "it with --overwrite",
        run.string(), *file);
  if (io::list_checkpoints(run).empty())
    user_error(
        "{} already holds a run, which has no checkpoint to go on from: replace it with "
        "--overwrite, or name another --output-dir",
        run.string());
  user_error(
      "{} already holds a run: continue it with --resume, replace it with --overwrite, or name "
      "another --output-dir",
      run.string());
}

fs::path make_run_folder(const TrainOptions& options) {
  if (!options.output_dir.empty()) {
    const fs::path run = without_last_slash(options.output_dir);
    create_folder(run);
    return run;
  }
  create_folder("runs");
  for (int n = 1;; ++n) {
    const fs::path run = fs::path("runs") / fmt::format("{}-{}", options.preset, n);
    if (::mkdir(run.c_str(), 0755) == 0) return run;
    if (errno != EEXIST)
      user_error("cannot create the folder {}: {}", run.string(), std::strerror(errno));
  }
}

void remove_old_run(const fs::path& run) {
  // A folder of that name is somebody else's, and stays: the run then says that it is in the way.
  const auto remove_file = [](const fs::path& path) {
    std::error_code ignored;
    if (!fs::is_directory(fs::symlink_status(path, ignored))) fs::remove(path);
  };
  io::remove_all_checkpoints(run);
  for (const char* name : kRunFiles) remove_file(run / name);
  for (const char* name : {"checksums.json", "report.html"}) remove_file(run / name);
  for (const std::string_view name : io::tokenizer_file_names()) remove_file(run / name);
  io::remove_event_files(run / kEvents);
}

}  // namespace brrr::train
