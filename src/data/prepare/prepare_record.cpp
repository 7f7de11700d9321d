#include "data/prepare/prepare_record.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr int kRecordVersion = 2;

Json json_of(const SplitRecord& split) {
  return {{"shards", to_json(split.shards)}, {"partial_tokens", split.partial_tokens}};
}

/// A count that is not negative.
template <typename T>
T count_of(const Json& object, const char* key) {
  const Json& value = object.at(key);
  if (!value.is_number_unsigned())
    throw std::invalid_argument(fmt::format("'{}' is not a count", key));
  const auto wide = value.get<uint64_t>();
  if (wide > uint64_t{1} << 60) throw std::invalid_argument(fmt::format("'{}' is too large", key));
  return static_cast<T>(wide);
}

SplitRecord split_of(const Json& object) {
  SplitRecord split;
  split.shards = shard_records_of(object.at("shards"));
  split.partial_tokens = count_of<int64_t>(object, "partial_tokens");
  return split;
}

PrepareRecord record_of(const Json& json) {
  PrepareRecord record;
  if (json.at("version") != kRecordVersion) throw std::invalid_argument("unknown version");
  for (const auto& [name, value] : json.at("settings").items())
    record.settings.emplace_back(name, value.get<std::string>());
  for (const Json& input : json.at("inputs"))
    record.inputs.push_back(
        {input.at("path").get<std::string>(), count_of<uint64_t>(input, "bytes"),
         input.at("modified_ns").get<int64_t>(), count_of<uint32_t>(input, "crc32c")});
  const Json& position = json.at("position");
  record.position.file = count_of<size_t>(position, "file");
  record.position.offset = count_of<uint64_t>(position, "offset");
  record.position.document = count_of<int64_t>(position, "document");
  record.position.inside = position.at("inside").get<bool>();
  record.train = split_of(json.at("train"));
  record.val = split_of(json.at("val"));
  record.seconds = json.at("seconds").get<double>();
  record.complete = json.at("complete").get<bool>();
  const PlanPosition& at = record.position;
  if (at.file > record.inputs.size() ||
      (at.file == record.inputs.size() ? at.offset > 0 : at.offset > record.inputs[at.file].bytes))
    throw std::invalid_argument("the position lies outside the inputs");
  return record;
}

/// CRC-32C of the first `bytes` bytes.
uint32_t crc_of_start(const fs::path& path, uint64_t bytes) {
  const MappedFile file(path);
  return crc32c(file.bytes().data(), std::min<uint64_t>(bytes, file.bytes().size()));
}

}  // namespace

int64_t SplitRecord::tokens() const {
  int64_t sum = partial_tokens;
  for (const ShardRecord& shard : shards) sum += shard.tokens;
  return sum;
}

fs::path record_path(const fs::path& folder) { return folder / "prepare.json"; }

void save_record(const fs::path& folder, const PrepareRecord& record) {
  Json settings = Json::object(), inputs = Json::array();
  for (const auto& [name, value] : record.settings) settings[name] = value;
  for (const InputRecord& input : record.inputs)
    inputs.push_back({{"path", input.path},
                      {"bytes", input.bytes},
                      {"modified_ns", input.modified_ns},
                      {"crc32c", input.crc}});
  const PlanPosition& at = record.position;
  const Json json = {{"version", kRecordVersion},
                     {"settings", settings},
                     {"inputs", inputs},
                     {"position",
                      {{"file", at.file},
                       {"offset", at.offset},
                       {"document", at.document},
                       {"inside", at.inside}}},
                     {"train", json_of(record.train)},
                     {"val", json_of(record.val)},
                     {"seconds", record.seconds},
                     {"complete", record.complete}};
  // Names of files need not be UTF-8; what is not is replaced, they only serve messages.
  write_file_atomically(record_path(folder),
                        json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<PrepareRecord> load_record(const fs::path& folder) {
  const fs::path path = record_path(folder);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const std::string text = read_file(path);
  try {
    return record_of(parse_json(text, path.string()));
  } catch (const UserError& broken) {
    user_error("{}; the record of the earlier run is damaged, begin again with --overwrite",
               broken.what());
  } catch (const std::exception& broken) {
    user_error("{}: damaged record of an earlier run ({}); begin again with --overwrite",
               path.string(), broken.what());
  }
}

InputRecord look_at(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    user_error("cannot read {}: {}; check its name and its permissions", path.string(),
               std::strerror(errno));
  if (!S_ISREG(info.st_mode)) user_error("{} is not a file; name text files", path.string());
  if (info.st_size == 0) user_error("{} is empty; expected text, name another file", path.string());
  return {path.string(), static_cast<uint64_t>(info.st_size),
          int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, 0};
}

constexpr const char* kAbsent = "absent";

void check_same_run(const fs::path& folder, const PrepareRecord& earlier,
                    const PrepareRecord& now) {
  const auto value_in = [](const PrepareRecord& record, const std::string& name) -> std::string {
    for (const auto& [key, value] : record.settings)
      if (key == name) return value;
    return kAbsent;
  };
  constexpr const char* kAdvice = "choose another folder, or begin again with --overwrite";
  for (const auto& [name, value] : now.settings) {
    const std::string before = value_in(earlier, name);
    if (before == value) continue;
    if (name == kTokenizerKind) {
      if (before == kAbsent) continue;  // an older version did not say it; it has the hash
      user_error("{} was prepared with the {}; you asked for the {}: {}", folder.string(), before,
                 value, kAdvice);
    }
    const bool is_hash = name == "tokenizer" || name == "separator";
    user_error("{} was prepared with another {}{}: {}", folder.string(), name,
               is_hash ? "" : fmt::format(" ({}; you asked for {})", before, value), kAdvice);
  }
  if (earlier.inputs.size() != now.inputs.size())
    user_error(
        "{} was begun with {} input files, now there are {}; choose another folder, or begin again "
        "with "
        "--overwrite",
        folder.string(), earlier.inputs.size(), now.inputs.size());
  for (size_t i = 0; i < now.inputs.size(); ++i) {
    const InputRecord &before = earlier.inputs[i], &input = now.inputs[i];
    const bool renamed = before.path != input.path;
    const auto refuse_other = [&] {
      user_error(
          "{} was begun with the input {}, now it is {}; choose another folder, or begin again "
          "with "
          "--overwrite",
          folder.string(), before.path, input.path);
    };
    if (renamed && before.bytes != input.bytes) refuse_other();
    if (before.bytes != input.bytes)
      user_error(
          "the input {} changed since {} was begun: {} bytes then, {} now; begin again with "
          "--overwrite",
          input.path, folder.string(), before.bytes, input.bytes);
    if (before.modified_ns == input.modified_ns && !renamed) continue;
    const PlanPosition& at = earlier.position;
    const uint64_t consumed = i < at.file ? input.bytes : i == at.file ? at.offset : 0;
    if (crc_of_start(input.path, consumed) == before.crc) continue;
    if (renamed) refuse_other();
    user_error(
        "the input {} changed since {} was begun: same size, other content; begin again with "
        "--overwrite",
        input.path, folder.string());
  }
}

fs::path shard_path(const fs::path& folder, const std::string& split, size_t index,
                    int64_t shard_tokens) {
  return folder / (shard_tokens > 0 ? fmt::format("{}_{:06}.bin", split, index) : split + ".bin");
}

}  // namespace brrr::io
