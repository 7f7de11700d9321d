#pragma once
// What prepare.json says of the shards beside it, and whether they still are so. Shards of others
// have no such record and are taken as they are.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::io {

/// A complete shard: what a reader compares its file with.
struct ShardRecord {
  std::string file;  // name, without the folder
  int64_t tokens = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the whole file
};

/// Every shard that the prepare.json of `folder` lists; none when there is no such file or it is
/// of another kind. Throws UserError for one that is no JSON.
std::vector<ShardRecord> shard_records(const std::filesystem::path& folder);

/// Reads the file once and keeps none of it in memory. Throws UserError, naming what was expected
/// and what came, unless it has the recorded size and checksum.
void check_shard(const MappedFile& file, const ShardRecord& record);

nlohmann::json to_json(const std::vector<ShardRecord>& shards);
/// Throws std::exception for anything else than what to_json() returns.
std::vector<ShardRecord> shard_records_of(const nlohmann::json& list);

}  // namespace brrr::io
