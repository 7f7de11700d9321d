// Any bytes as a file of a run or of a model's folder: a UserError, or what the reader promises.
// The first byte says which file.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "folders/checkpoint.h"
#include "folders/generation_settings.h"
#include "folders/model_folder.h"
#include "formats/json_file.h"
#include "formats/jsonl.h"
#include "fuzz/fuzz_folder.h"
#include "insight/ladder/climb.h"
#include "insight/pages/run_record.h"
#include "train/options.h"

namespace {

using namespace brrr;

constexpr const char* kConfig =
    R"({"model_type":"gpt2","n_layer":1,"n_head":1,"n_embd":8,"n_positions":8,"vocab_size":16})";

void read_report(const fs::path& folder) {
  BRRR_CHECK(nlohmann::json::accept(insight::report_json({insight::read_run(folder)})));
}

void log_jsonl(const fs::path& folder, std::string_view text) {
  const fs::path log = folder / "log.jsonl";
  test::write_plainly(log, text);
  read_report(folder);
  const auto read = [&] {
    std::vector<nlohmann::json> records;
    io::each_jsonl_record(
        log, [&](const nlohmann::json& r) { records.push_back(r); }, [](const std::string&) {});
    return records;
  };
  // What is appended after a kill is a record of its own, and the ones before it stay.
  const size_t before = read().size();
  io::JsonlWriter(log).write({{"step", 3}});
  BRRR_CHECK(read().size() == before + 1);
  io::truncate_jsonl_after(log, 2);
  for (const nlohmann::json& record : read())
    if (const auto step = record.find("step"); step != record.end() && step->is_number())
      BRRR_CHECK(step->get<double>() <= 2, "{}", record.dump());
}

void train_config(const fs::path& folder, std::string_view text) {
  test::write_plainly(folder / "log.jsonl", "{\"step\":1,\"loss\":2.5}\n");
  test::write_plainly(folder / "train_config.json", text);
  read_report(folder);
  BRRR_CHECK(
      nlohmann::json::accept(train::to_json(train::options_from_json(text, "train_config.json"))));
}

/// With its own checksum put right, which the fuzzer would not find.
void manifest(const fs::path& folder, std::string_view text) {
  test::write_plainly(folder / "manifest.json", text);
  test::write_plainly(folder / "file", "abc");
  if (auto json = nlohmann::json::parse(text, nullptr, false); json.is_object()) {
    json.erase("manifest_crc32c");
    try {
      const std::string body = json.dump();
      json["manifest_crc32c"] = crc_text(crc32c(body.data(), body.size()));
      test::write_plainly(folder / "manifest.json", json.dump());
    } catch (const nlohmann::json::exception&) {  // text that is not UTF-8
    }
  }
  io::open_checkpoint(folder);
}

void checksums(const fs::path& folder, std::string_view text) {
  test::write_plainly(folder / "checksums.json", text);
  test::write_plainly(folder / "model.safetensors", "abc");
  test::write_plainly(folder / "config.json", kConfig);
  io::open_model(folder);
}

void ladder(const fs::path& folder, std::string_view text) {
  test::write_plainly(folder / "ladder.json", text);
  insight::LadderOptions options;
  options.rounds = 1;
  options.record = folder / "ladder.json";
  const auto climb = [&](const insight::Visit& visit) {
    return insight::climb("ladder", "key", {"a", "b"}, options, visit,
                          [](const insight::RungResult& r) { return r.tokens < 1000; });
  };
  const auto first = climb([](size_t, insight::RungResult& r) { r.ms.push_back(1); });
  // All of it is in the record now.
  const auto again =
      climb([](size_t, insight::RungResult&) { BRRR_CHECK(false, "measured a second time"); });
  for (size_t i = 0; i < first.size(); ++i)
    BRRR_CHECK(again[i].ms == first[i].ms && again[i].tokens == first[i].tokens);
}

void generation_config(const fs::path& folder, std::string_view text) {
  static const models::ModelPtr model = models::parse_config(kConfig, "config");
  test::write_plainly(folder / "generation_config.json", text);
  const io::GenerationSettings settings = io::read_generation_settings(folder, *model);
  for (const int32_t id : settings.ends_of_text) BRRR_CHECK(id >= 0 && id < 16);
  if (settings.begin_of_text) BRRR_CHECK(*settings.begin_of_text < 16);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const test::FuzzFolder folder;
  constexpr void (*kFiles[])(const fs::path&, std::string_view) = {
      log_jsonl, train_config, manifest, checksums, ladder, generation_config};
  if (size == 0) return 0;
  const size_t which = data[0] % std::size(kFiles);
  const fs::path place = folder / std::to_string(which);
  std::error_code ignored;
  fs::create_directory(place, ignored);
  try {
    kFiles[which](place, std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const UserError&) {
  }
  return 0;
}
