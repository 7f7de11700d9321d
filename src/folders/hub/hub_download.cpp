#include "folders/hub/hub_download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

#include "base/cache.h"
#include "base/errors.h"
#include "base/human.h"
#include "base/sha1.h"
#include "base/tell.h"
#include "folders/hub/hub_gguf.h"
#include "folders/weights.h"
#include "formats/json_file.h"
#include "text/tokenizer.h"

namespace brrr::io {
namespace {

constexpr int kMostTries = 5;  // of a transfer that each time got further

/// The lock by which processes take turns at one file of the cache, Python's among them. File
/// systems without locks go unlocked.
class CacheLock {
 public:
  CacheLock(const fs::path& path, const std::string& what) {
    for (bool told = false;;) {
      fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
      if (fd_ < 0) return;
      while (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        if (!told) tell("another process is downloading {}; waiting for it\n", what);
        told = true;
        ::usleep(100'000);
      }
      // Some processes delete the file when they let go: then this lock is of no use.
      struct stat held {
      }, there{};
      if (::fstat(fd_, &held) != 0 || (::stat(path.c_str(), &there) == 0 &&
                                       held.st_ino == there.st_ino && held.st_dev == there.st_dev))
        return;
      ::close(fd_);
    }
  }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;
  ~CacheLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  int fd_ = -1;
};

/// Whether a file other than weights belongs to a model: its configuration, its tokenizer, and how
/// sentence-transformers makes vectors of texts.
bool is_wanted(const std::string& file) {
  const size_t slash = file.find('/');
  if (slash != std::string::npos) {
    // The modules of sentence-transformers: 1_Pooling/config.json, 2_Dense/model.safetensors.
    const std::string_view own = std::string_view(file).substr(slash);
    return std::isdigit(static_cast<unsigned char>(file[0])) != 0 &&
           (own == "/config.json" || own == "/model.safetensors");
  }
  for (const char* name :
       {"config.json", "generation_config.json", "quantize_config.json", "chat_template.jinja",
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"})
    if (file == name) return true;
  const auto tokenizers = tokenizer_file_names();
  return std::find(tokenizers.begin(), tokenizers.end(), file) != tokenizers.end();
}

void remove_partial(const fs::path& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

}  // namespace

HubDownload::HubDownload(const HubName& name)
    : name_(name), client_(name), folder_(hub_folder_of(name)), blobs_(folder_ / "blobs") {}

bool HubDownload::has(const std::string& file) const {
  return std::find(listing_.files.begin(), listing_.files.end(), file) != listing_.files.end();
}

HubFile HubDownload::describe(const std::string& file) const {
  return client_.describe(listing_.commit, file);
}

fs::path HubDownload::blob_of(const HubFile& file) const { return blobs_ / file.etag; }

fs::path HubDownload::partial_of(const HubFile& file) const {
  return blobs_ / (file.etag + ".incomplete");
}

bool HubDownload::is_here(const HubFile& file) const {
  std::error_code ignored;
  return fs::is_regular_file(blob_of(file), ignored) && !is_web_page(blob_of(file));
}

uint64_t HubDownload::kept_bytes(const HubFile& file) const {
  std::error_code error;
  if (!file.has_sha256() || !file.bytes) return 0;
  const uint64_t bytes = fs::file_size(partial_of(file), error);
  return error || bytes > *file.bytes ? 0 : bytes;
}

void HubDownload::refuse_weights() const {
  bool is_pickled = false;
  std::vector<std::string> others;
  for (const std::string& file : listing_.files) {
    is_pickled = is_pickled || (file.starts_with("pytorch_model") && file.ends_with(".bin"));
    for (const char* ending : {".bin", ".gguf", ".safetensors", ".h5", ".onnx", ".msgpack", ".pth"})
      if (file.ends_with(ending) && others.size() < 4) others.push_back(file);
  }
  const std::string what =
      others.empty() ? "no weights at all" : fmt::format("{}", fmt::join(others, ", "));
  if (!is_pickled)
    user_error("{} has no {} that Brrr reads; it has {}: name another model", name_.text(),
               kSingleWeights, what);
  const std::string folder = name_.id.substr(name_.id.find('/') + 1);
  user_error(
      "{} has no {}; it has {}, which are Python pickles: reading them may run code. Convert them "
      "once (needs torch and safetensors) and name the folder {}: hf download {} --local-dir {} && "
      "{}",
      name_.text(), kSingleWeights, what, folder, name_.id, folder, conversion_command(folder));
}

std::vector<std::string> HubDownload::choose_gguf() const {
  const bool has_weights = has(kSingleWeights) || has(kWeightIndex);
  if (name_.gguf_type.empty() && has_weights) return {};
  std::vector<std::string> files = gguf_files_of(listing_.files, name_.gguf_type);
  const std::vector<std::string> types = gguf_types_in(listing_.files);
  if (!files.empty() || (types.empty() && name_.gguf_type.empty())) return files;
  if (types.empty()) user_error("{} has no GGUF files; leave :{} out", name_.id, name_.gguf_type);
  HubName named = name_;
  named.gguf_type = types[0];
  if (name_.gguf_type.empty())
    user_error("{} has GGUF files of several types and none is {}: name one, as {}; it has {}",
               name_.text(), kUsualGgufType, named.text(), fmt::join(types, ", "));
  user_error("{} has no GGUF file of the type {}: name another, as {}; it has {}", name_.id,
             name_.gguf_type, named.text(), fmt::join(types, ", "));
}

std::vector<HubFile> HubDownload::choose() {
  if (const std::vector<std::string> parts = choose_gguf(); !parts.empty()) {
    gguf_ = parts[0];
    std::vector<HubFile> files;
    for (const std::string& part : parts) files.push_back(describe(part));
    return files;
  }
  if (!has("config.json"))
    user_error("{} has no config.json: it is not a model that Brrr reads", name_.text());
  const bool in_shards = !has(kSingleWeights) && has(kWeightIndex);
  if (!in_shards && !has(kSingleWeights)) refuse_weights();
  std::vector<HubFile> files;
  for (const std::string& file : listing_.files)
    if (is_wanted(file)) files.push_back(describe(file));
  if (!in_shards) {
    files.push_back(describe(kSingleWeights));
    return files;
  }
  const HubFile index = describe(kWeightIndex);
  fetch(index);
  for (const std::string& shard : shards_of_index(blob_of(index))) {
    if (!has(shard))
      user_error("{} does not have the shard {}, which its {} names: name another model",
                 name_.text(), shard, kWeightIndex);
    files.push_back(describe(shard));
  }
  files.push_back(index);
  return files;
}

void HubDownload::announce(const std::vector<HubFile>& files) {
  uint64_t total = 0, kept = 0;
  int64_t count = 0;
  for (const HubFile& file : files) {
    if (is_here(file)) continue;
    ++count;
    total += file.bytes.value_or(0);
    kept += kept_bytes(file);
  }
  if (count == 0) return;
  const auto text = [](uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::error_code error;
  const uint64_t free = fs::space(blobs_, error).available;
  if (!error && total - kept > free)
    user_error(
        "cannot download {}: {} are needed, and {} are free at {}; free some space, or set HF_HOME "
        "to a folder on another disk",
        name_.text(), text(total - kept), text(free), blobs_.string());
  tell("downloading {}: {}, {}{}, from {} to {}\n", name_.text(), counted(count, "file"),
       text(total), kept > 0 ? fmt::format(" ({} are here)", text(kept)) : "", client_.endpoint(),
       folder_.string());
  ProgressOptions options;
  options.label = "download";
  options.total = static_cast<int64_t>(total);
  options.start = static_cast<int64_t>(kept);
  options.bytes = true;
  options.plain_interval_seconds = 5;
  progress_.emplace(options);
}

void HubDownload::show(uint64_t bytes_of_file) {
  if (progress_) progress_->update(static_cast<int64_t>(done_bytes_ + bytes_of_file));
}

std::string HubDownload::transfer(const HubFile& file) {
  const fs::path partial = partial_of(file);
  Sha256 sum;
  uint64_t at = 0;
  // What has no checksum is small, and fetched anew.
  if (kept_bytes(file) == 0) {
    remove_partial(partial);
  } else {
    InputFile kept(partial);
    std::string piece(size_t{1} << 18, '\0');
    while (const size_t n = kept.read(piece.data(), piece.size())) {
      sum.update(piece.data(), n);
      at += n;
    }
  }
  const int fd = open_for_writing(partial, WriteMode::append);
  FileWriter out(partial, fd);
  const auto is_whole = [&] { return file.bytes && at == *file.bytes; };
  for (int tries = 1; !is_whole(); ++tries) {
    // A small file is requested from its beginning on every attempt: the part that is here may be
    // that of a login page, which must not be joined with the file.
    const uint64_t before = file.has_sha256() ? at : 0;
    bool is_begun = false;
    std::string reason =
        client_.get(listing_.commit, file, before, [&](uint64_t begin, std::string_view piece) {
          if (!is_begun && begin != at) {
            if (::ftruncate(fd, 0) != 0)
              user_error("cannot write {}: {}", partial.string(), std::strerror(errno));
            sum = Sha256();
            at = 0;
          }
          is_begun = true;
          if (file.bytes && piece.size() > *file.bytes - at)
            user_error("{} of {} is longer than the {} bytes that {} names; try again later",
                       file.name, name_.text(), *file.bytes, client_.endpoint());
          fault_point("hub.write");
          out.write(piece);
          sum.update(piece);
          at += piece.size();
          show(at);
        });
    if (is_whole() || (reason.empty() && !file.bytes)) break;
    if (reason.empty()) reason = "the server sent no more";
    if (at > before && tries < kMostTries) continue;
    user_error("the download of {} of {} was cut off after {}{} bytes ({}); {}", file.name,
               name_.text(), at, file.bytes ? fmt::format(" of {}", *file.bytes) : "", reason,
               file.has_sha256() ? "the same command goes on from there" : "try again");
  }
  out.finish();
  return sum.finish_hex();
}

std::string HubDownload::damage_of(const HubFile& file, const std::string& sha256) const {
  constexpr std::string_view kCause =
      "it was damaged on the way, or a proxy or a login page of the network answered instead; it "
      "was deleted, try again";
  const auto differs = [&](std::string_view kind, const std::string& found) {
    return fmt::format("{} of {} has the {} {}; expected {}: {}", file.name, name_.text(), kind,
                       found, file.etag, kCause);
  };
  if (file.has_sha256() && sha256 != file.etag) return differs("SHA-256", sha256);
  if (file.has_git_name())
    if (const std::string name = git_blob_name_of_file(partial_of(file)); name != file.etag)
      return differs("SHA-1 of Git", name);
  if (!file.name.ends_with(".json")) return "";
  try {
    parse_json(read_file(partial_of(file)), file.name);
  } catch (const UserError& e) {
    return fmt::format("{} sent something else than JSON for {}: {}; {}", client_.endpoint(),
                       name_.text(), e.what(), kCause);
  }
  return "";
}

void HubDownload::fetch(const HubFile& file) {
  const fs::path locks = hugging_face_cache() / ".locks" / folder_.filename();
  create_folder(locks);
  const CacheLock lock(locks / (file.etag + ".lock"), fmt::format("{} of {}", file.name, name_.id));
  if (is_here(file)) return;
  const fs::path partial = partial_of(file);
  for (bool is_fresh = kept_bytes(file) == 0;; is_fresh = true) {
    const std::string damage = damage_of(file, transfer(file));
    if (damage.empty()) break;
    remove_partial(partial);
    // The bytes that were kept may have been another program's: once more, from the beginning.
    if (is_fresh) user_error("{}", damage);
  }
  std::error_code error;
  fs::rename(partial, blob_of(file), error);
  if (error) user_error("cannot write {}: {}", blob_of(file).string(), error.message());
  sync_folder(blobs_);
}

void HubDownload::link(const HubFile& file) const {
  const fs::path at = snapshot_ / file.name;
  std::string target = "../../blobs/" + file.etag;
  for (size_t slash = 0; (slash = file.name.find('/', slash)) != std::string::npos; ++slash)
    target = "../" + target;
  std::error_code error;
  if (fs::read_symlink(at, error) == target) return;
  create_folder(at.parent_path());
  const fs::path temporary = temporary_beside(at);
  remove_partial(temporary);
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, at, error);
  if (error)
    user_error("cannot write the link {}: {}; set HF_HOME to a folder where links can be made",
               at.string(), error.message());
}

fs::path HubDownload::run() {
  listing_ = client_.list();
  snapshot_ = folder_ / "snapshots" / listing_.commit;
  create_folder(blobs_);
  const std::vector<HubFile> files = choose();
  announce(files);
  for (const HubFile& file : files) {
    if (is_here(file)) continue;
    fetch(file);  // or wait for the process that does
    done_bytes_ += file.bytes.value_or(0);
    show(0);
  }
  if (progress_) {
    progress_->log(static_cast<int64_t>(done_bytes_));
    progress_->finish();
  }
  // The weights are the last: what holds them is complete.
  for (const HubFile& file : files) link(file);
  if (!is_commit(name_.revision)) {
    const fs::path ref = folder_ / "refs" / name_.revision;
    create_folder(ref.parent_path());
    write_file_atomically(ref, listing_.commit);
  }
  return gguf_.empty() ? snapshot_ : snapshot_ / gguf_;
}

}  // namespace brrr::io
