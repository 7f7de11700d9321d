// Any text as a TOML file of --config: a UserError, or options that survive being written as TOML
// and as JSON and read again.
#include <string>
#include <string_view>

#include "base/errors.h"
#include "fuzz/fuzz_folder.h"
#include "train/options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  static const test::FuzzFolder folder;
  const fs::path file = folder / "run.toml", again = folder / "again.toml";

  test::write_plainly(file, std::string_view(reinterpret_cast<const char*>(data), size));
  train::TrainOptions options;
  try {
    options = train::resolve({{"config", file.string()}});
  } catch (const UserError&) {
    return 0;
  }
  try {
    const std::string json = train::to_json(options);
    BRRR_CHECK(train::to_json(train::options_from_json(json, "json")) == json, "{}", json);
    const std::string toml = train::to_toml(options);
    test::write_plainly(again, toml);
    BRRR_CHECK(train::to_toml(train::resolve({{"config", again.string()}})) == toml, "{}", toml);
  } catch (const UserError& e) {
    BRRR_CHECK(false, "{}", e.what());
  }
  return 0;
}
