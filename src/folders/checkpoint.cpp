#include "folders/checkpoint.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kReplaced = "replaced-";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kFormat = "brrr-checkpoint";
constexpr int kVersion = 1;
constexpr const char* kSelfSum = "manifest_crc32c";
constexpr uint64_t kLargestManifest = uint64_t{1} << 24;  // a line for each file of a checkpoint

std::string folder_name(int64_t step) { return fmt::format("{}{:06}", kPrefix, step); }

std::string set_aside_name(int64_t step) { return fmt::format("{}{:06}", kReplaced, step); }

std::string hidden_name(int64_t step, const char* kind) {
  return fmt::format(".{}.{}-{}", folder_name(step), kind, ::getpid());
}

/// The step of "checkpoint-000250", nothing for any other name.
std::optional<int64_t> step_of(const std::string& name, const char* prefix = kPrefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* begin = name.data() + std::strlen(prefix);
  const char* end = name.data() + name.size();
  if (begin == end || *begin < '0' || *begin > '9') return std::nullopt;
  int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

/// The step of a name that hidden_name() made, nothing for any other name.
std::optional<int64_t> step_of_hidden(const std::string& name, const std::string& kind) {
  const size_t point = name.find('.', 1);
  if (!name.starts_with('.') || point == std::string::npos) return std::nullopt;
  const std::string process = name.substr(point);
  return step_of(process, ("." + kind + "-").c_str()) ? step_of(name.substr(1, point - 1))
                                                      : std::nullopt;
}

[[noreturn]] void fail(const char* verb, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  user_error("cannot {} {}: {}{}", verb, path.string(), std::strerror(error),
             full ? "; free some space and run again" : "");
}

void sync_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("open", path, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) fail("sync", path, error);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> out;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    out.push_back(at->path().filename().string());
  if (error) user_error("cannot list the folder {}: {}", folder.string(), error.message());
  return out;
}

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  std::string crc;
};

/// The manifest without its own checksum, in the one form that is summed.
Json manifest_body(int64_t step, const std::vector<ManifestFile>& files) {
  Json list = Json::object();
  for (const ManifestFile& f : files) list[f.name] = {{"bytes", f.bytes}, {"crc32c", f.crc}};
  return {{"format", kFormat}, {"version", kVersion}, {"step", step}, {"files", list}};
}

std::string self_sum(const Json& body) {
  const std::string text = body.dump();
  return crc_text(crc32c(text.data(), text.size()));
}

struct Manifest {
  int64_t step = 0;
  std::vector<ManifestFile> files;
};

/// `step`: the one that it must be of, when that is known.
Manifest read_manifest(const fs::path& folder, std::optional<int64_t> step) {
  const fs::path path = folder / kManifest;
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    user_error("{} is not a complete checkpoint: {} is missing", folder.string(), kManifest);
  Json manifest = parse_json(read_file(path, kLargestManifest), path.string());
  const auto damaged = [&](const std::string& fault) {
    user_error("{} is damaged: {}", path.string(), fault);
  };
  if (!manifest.is_object() || manifest.value("format", Json()) != kFormat)
    damaged(fmt::format("expected \"format\": \"{}\"", kFormat));
  if (manifest.value("version", Json()) != kVersion)
    user_error(
        "{}: expected a checkpoint of version {}, found {}; it was written by another version "
        "of this program",
        path.string(), kVersion, describe(manifest.value("version", Json())));
  const Json sum = manifest.value(kSelfSum, Json());
  manifest.erase(kSelfSum);
  if (!sum.is_string() || sum != self_sum(manifest)) damaged("its own checksum does not match");
  // From here on the text is what a writer of ours wrote, or was made to look so: still checked.
  const Json found = manifest.value("step", Json());
  if (!found.is_number_integer() || found < 0 || found > std::numeric_limits<int64_t>::max())
    damaged("'step' must be a whole number");
  if (step && found != *step)
    damaged(fmt::format("it is for step {}, but the folder's name says {}", found.dump(), *step));
  const Json files = manifest.value("files", Json());
  if (!files.is_object()) damaged("'files' must be an object");
  Manifest out{.step = found.get<int64_t>(), .files = {}};
  for (const auto& [name, entry] : files.items()) {
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
    if (!plain || !entry.is_object() || !entry.value("bytes", Json()).is_number_unsigned() ||
        !entry.value("crc32c", Json()).is_string())
      damaged("the entry " + in_quotes(name) + " is not a file name with bytes and crc32c");
    out.files.push_back({name, entry["bytes"].get<uint64_t>(), entry["crc32c"].get<std::string>()});
  }
  return out;
}

/// Whether Brrr made this folder for a checkpoint of that step: its manifest says so. That is the
/// mark without which nothing is removed. It is looked for in the text, so that a checkpoint whose
/// manifest is damaged elsewhere still counts as ours.
bool is_ours(const fs::path& folder, int64_t step) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(folder, ignored))) return false;
  std::string text;
  try {
    text = read_file(folder / kManifest, kLargestManifest);
  } catch (const UserError&) {
    return false;
  }
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  const std::string mark = fmt::format("\"step\":{}", step);
  const size_t at = text.find(mark);
  return text.find(fmt::format("\"format\":\"{}\"", kFormat)) != std::string::npos &&
         at != std::string::npos &&
         (at + mark.size() == text.size() || text.find_first_of(",}", at) == at + mark.size());
}

/// Removes a folder of ours, and an empty one, which holds nothing to lose. Best effort, a later
/// prune() tries again. False: it is there and somebody else's.
bool remove_if_ours(const fs::path& folder, int64_t step) {
  std::error_code ignored;
  if (is_ours(folder, step)) remove_marked_folder(folder, kManifest);
  const fs::file_status status = fs::symlink_status(folder, ignored);
  if (fs::is_directory(status)) ::rmdir(folder.c_str());
  return !fs::exists(fs::symlink_status(folder, ignored));
}

/// `path`, or where something of somebody else has that name, the first "path-2", "path-3" ... that
/// is free.
fs::path free_name(const fs::path& path, int64_t step) {
  fs::path free = path;
  for (int n = 2; !remove_if_ours(free, step); ++n) free = path.string() + fmt::format("-{}", n);
  return free;
}

/// Whether the process that made this temporary folder is gone.
bool is_abandoned(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool in_use = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return !in_use;
}

/// Makes `from` visible as the checkpoint of a step. One of ours that is already there is swapped
/// out in one step where the file system can, and removed; what is somebody else's is kept under
/// another name.
void rename_into_place(const fs::path& from, const fs::path& run_dir, int64_t step) {
  const fs::path to = run_dir / folder_name(step);
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) fail("create", to, errno);
  const bool is_replaced = is_ours(to, step);
  if (is_replaced && ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                               RENAME_EXCHANGE) == 0) {
    remove_if_ours(from, step);
    return;
  }
  const std::string name = is_replaced ? hidden_name(step, "deleted") : set_aside_name(step);
  const fs::path aside = free_name(run_dir / name, step);
  if (::rename(to.c_str(), aside.c_str()) != 0) fail("replace", to, errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    if (::rename(aside.c_str(), to.c_str()) != 0) fail("restore", to, errno);
    fail("replace", to, error);
  }
  if (is_replaced) remove_if_ours(aside, step);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& run_dir, int64_t step)
    : run_dir_(run_dir), temporary_(run_dir / hidden_name(step, "tmp")), step_(step) {
  BRRR_CHECK(step >= 0, "step {}", step);
  if (!remove_if_ours(temporary_, step))  // a dead process may have had our process id
    user_error("cannot save a checkpoint in {}: Brrr did not make {}, which is in the way; move it",
               run_dir.string(), temporary_.filename().string());
  if (::mkdir(temporary_.c_str(), 0755) != 0) {
    const int error = errno;
    const bool forbidden = error == EACCES || error == EROFS || error == EPERM;
    user_error("cannot save a checkpoint in {}: {}{}", run_dir.string(), std::strerror(error),
               forbidden ? "; choose a place you may write to, or change its permissions" : "");
  }
  lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Where locks do not work nothing is lost: is_abandoned() is only asked by a second process.
  if (lock_ >= 0) ::flock(lock_, LOCK_EX | LOCK_NB);
  // The mark of a folder of ours, until commit() writes the whole manifest: it has no checksum yet,
  // so it makes no complete checkpoint.
  try {
    write_cache_file(temporary_ / kManifest, manifest_body(step, {}).dump(2) + "\n");
  } catch (...) {
    if (lock_ >= 0) ::close(lock_);
    ::rmdir(temporary_.c_str());
    throw;
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (lock_ >= 0) ::close(lock_);
  if (!temporary_.empty()) remove_if_ours(temporary_, step_);
}

fs::path CheckpointWriter::path(const std::string& name) {
  BRRR_CHECK(!name.empty() && name.find('/') == std::string::npos && name != kManifest,
             "checkpoint file name '{}'", name);
  fault_point("checkpoint.write");
  promised_.insert(name);
  return temporary_ / name;
}

Checkpoint CheckpointWriter::commit() {
  BRRR_CHECK(!temporary_.empty(), "the checkpoint of step {} is committed twice", step_);
  std::vector<ManifestFile> files;
  for (const std::string& name : names_in(temporary_)) {
    if (name == kManifest) continue;
    BRRR_CHECK(fs::is_regular_file(temporary_ / name), "{} in a checkpoint is not a file", name);
    promised_.erase(name);
    files.push_back({.name = name, .bytes = 0, .crc = ""});
  }
  BRRR_CHECK(promised_.empty(), "{} was never written", *promised_.begin());
  for (ManifestFile& f : files) {
    sync_file(temporary_ / f.name);
    const FileSum sum = sum_of_file(temporary_ / f.name);
    f.bytes = sum.bytes, f.crc = sum.crc32c;
  }

  fault_point("checkpoint.manifest");
  Json manifest = manifest_body(step_, files);
  manifest[kSelfSum] = self_sum(manifest);
  write_file_atomically(temporary_ / kManifest, manifest.dump(2) + "\n");

  fault_point("checkpoint.rename");
  const Checkpoint done{run_dir_ / folder_name(step_), step_};
  rename_into_place(temporary_, run_dir_, step_);
  temporary_.clear();
  sync_folder(run_dir_);
  return done;
}

std::vector<Checkpoint> list_checkpoints(const fs::path& run_dir) {
  std::vector<Checkpoint> out;
  for (const std::string& name : names_in(run_dir)) {
    const auto step = step_of(name);
    std::error_code error;
    if (step && fs::is_directory(run_dir / name, error)) out.push_back({run_dir / name, *step});
  }
  std::sort(out.begin(), out.end(), [](const Checkpoint& a, const Checkpoint& b) {
    return std::tie(a.step, a.folder) < std::tie(b.step, b.folder);
  });
  return out;
}

namespace {

constexpr const char* kEdited =
    "if it was changed on purpose, delete manifest.json there to use the folder as a model";

void verify_files(const fs::path& folder, const Manifest& manifest) {
  for (const ManifestFile& expected : manifest.files) {
    const fs::path path = folder / expected.name;
    std::error_code error;
    if (!fs::is_regular_file(path, error))
      user_error("{} is missing from the checkpoint: expected {} bytes", path.string(),
                 expected.bytes);
    const auto [bytes, crc] = sum_of_file(path);
    if (bytes != expected.bytes)
      user_error("{} is damaged: expected {} bytes, found {}; {}", path.string(), expected.bytes,
                 bytes, kEdited);
    if (crc != expected.crc)
      user_error("{} is damaged: expected CRC-32C {}, found {}; {}", path.string(),
                 in_quotes(expected.crc), in_quotes(crc), kEdited);
  }
}

}  // namespace

void verify(const Checkpoint& checkpoint) {
  verify_files(checkpoint.folder, read_manifest(checkpoint.folder, checkpoint.step));
}

Checkpoint open_checkpoint(const fs::path& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ended with a slash
  const Manifest manifest = read_manifest(folder, step_of(path.filename().string()));
  verify_files(folder, manifest);
  return {folder, manifest.step};
}

std::optional<Checkpoint> latest_valid(const fs::path& run_dir,
                                       const std::function<void(const std::string&)>& on_damaged,
                                       const std::function<void(const Checkpoint&)>& check) {
  const std::vector<Checkpoint> all = list_checkpoints(run_dir);
  for (auto c = all.rbegin(); c != all.rend(); ++c) {
    try {
      verify(*c);
      if (check) check(*c);
      return *c;
    } catch (const UserError& e) {
      if (on_damaged) on_damaged(e.what());
    }
  }
  return std::nullopt;
}

namespace {

// First under a hidden name, so that a kill in the middle leaves nothing that looks like a
// checkpoint.
void remove_checkpoint(const fs::path& run_dir, const Checkpoint& c) {
  const fs::path aside = free_name(run_dir / hidden_name(c.step, "deleted"), c.step);
  if (::rename(c.folder.c_str(), aside.c_str()) != 0) fail("remove", c.folder, errno);
  fault_point("checkpoint.prune");
  remove_if_ours(aside, c.step);
}

}  // namespace

std::vector<int64_t> set_aside_after(const fs::path& run_dir, int64_t step) {
  std::vector<int64_t> steps;
  const std::vector<Checkpoint> all = list_checkpoints(run_dir);
  for (auto c = all.rbegin(); c != all.rend() && c->step > step; ++c) {
    if (!is_ours(c->folder, c->step)) continue;
    const fs::path aside = free_name(run_dir / set_aside_name(c->step), c->step);
    if (::rename(c->folder.c_str(), aside.c_str()) != 0) fail("rename", c->folder, errno);
    fault_point("checkpoint.set_aside");
    steps.insert(steps.begin(), c->step);
  }
  return steps;
}

void drop_set_aside(const fs::path& run_dir) {
  for (const std::string& name : names_in(run_dir)) {
    const auto step = step_of(name.substr(0, name.find('-', std::strlen(kReplaced))), kReplaced);
    if (step && is_ours(run_dir / name, *step)) remove_if_ours(run_dir / name, *step);
  }
}

void remove_all_checkpoints(const fs::path& run_dir) {
  for (const Checkpoint& c : list_checkpoints(run_dir))
    if (is_ours(c.folder, c.step)) remove_if_ours(c.folder, c.step);
  drop_set_aside(run_dir);
}

std::vector<int64_t> prune(const fs::path& run_dir, const PruneOptions& options) {
  BRRR_CHECK(options.keep_last >= 1, "keep_last {}", options.keep_last);
  std::vector<Checkpoint> all = list_checkpoints(run_dir);
  std::erase_if(all, [](const Checkpoint& c) { return !is_ours(c.folder, c.step); });
  std::vector<Checkpoint> doomed;
  for (size_t i = 0; i + static_cast<size_t>(options.keep_last) < all.size(); ++i)
    if (!options.also_keep.contains(all[i].step) && all[i].step != options.just_written)
      doomed.push_back(all[i]);

  // Verification reads whole checkpoints, so it stops at the first that is sound, and is not done
  // at all when nothing would be removed or the newest was written a moment ago.
  const bool newest_is_trusted = !all.empty() && all.back().step == options.just_written;
  if (!doomed.empty() && !newest_is_trusted) {
    if (const auto newest = latest_valid(run_dir, nullptr))
      std::erase_if(doomed, [&](const Checkpoint& c) { return c.folder == newest->folder; });
    else
      doomed.clear();  // all are damaged: a person may still save something from them
  }

  std::vector<int64_t> removed;
  for (const Checkpoint& c : doomed) {
    remove_checkpoint(run_dir, c);
    removed.push_back(c.step);
  }

  for (const std::string& name : names_in(run_dir)) {
    if (const auto deleted = step_of_hidden(name, "deleted"))
      remove_if_ours(run_dir / name, *deleted);
    const auto temporary = step_of_hidden(name, "tmp");
    if (temporary && is_abandoned(run_dir / name)) remove_if_ours(run_dir / name, *temporary);
  }
  return removed;
}

}  // namespace brrr::io
