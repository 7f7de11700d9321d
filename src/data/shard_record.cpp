#include "data/shard_record.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {

std::vector<ShardRecord> shard_records(const fs::path& folder) {
  const fs::path path = folder / "prepare.json";
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  Json json;
  try {
    json = parse_json(read_file(path), path.string());
  } catch (const UserError& broken) {
    user_error(
        "{}; the record next to the shards is damaged: make them again (`brrr data prepare "
        "--overwrite`), or remove the record to use them unchecked",
        broken.what());
  }
  std::vector<ShardRecord> records;
  try {
    for (const char* split : {"train", "val"})
      for (ShardRecord& record : shard_records_of(json.at(split).at("shards")))
        records.push_back(std::move(record));
  } catch (const std::exception&) {  // somebody else's file of that name
    return {};
  }
  return records;
}

void check_shard(const MappedFile& file, const ShardRecord& record) {
  constexpr size_t kPiece = size_t{1} << 22;
  const std::string name = file.path().string();
  const std::span<const std::byte> bytes = file.bytes();
  constexpr const char* kAdvice =
      "it was damaged or replaced: make it again (`brrr data prepare --overwrite`), or remove "
      "prepare.json to use it unchecked";
  if (bytes.size() != record.bytes)
    user_error("{} has {} bytes, but prepare.json says {}; {}", name, bytes.size(), record.bytes,
               kAdvice);
  uint32_t crc = 0;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    crc = crc32c(piece.data(), piece.size(), crc);
    file.let_go(piece);
  }
  if (crc != record.crc)
    user_error("{} has the checksum {:08x}, but prepare.json says {:08x}; {}", name, crc,
               record.crc, kAdvice);
}

nlohmann::json to_json(const std::vector<ShardRecord>& shards) {
  Json list = Json::array();
  for (const ShardRecord& shard : shards)
    list.push_back({{"file", shard.file},
                    {"tokens", shard.tokens},
                    {"bytes", shard.bytes},
                    {"crc32c", shard.crc}});
  return list;
}

std::vector<ShardRecord> shard_records_of(const nlohmann::json& list) {
  if (!list.is_array()) throw std::invalid_argument("the shards are not a list");
  const auto count = [](const Json& value, uint64_t most) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
      throw std::invalid_argument("a number of a shard is out of range");
    return value.get<uint64_t>();
  };
  std::vector<ShardRecord> shards;
  for (const Json& shard : list)
    shards.push_back({shard.at("file").get<std::string>(),
                      static_cast<int64_t>(count(shard.at("tokens"), uint64_t{1} << 40)),
                      count(shard.at("bytes"), uint64_t{1} << 50),
                      static_cast<uint32_t>(count(shard.at("crc32c"), 0xffffffffu))});
  return shards;
}

}  // namespace brrr::io
