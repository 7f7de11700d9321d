// What a run leaves on the disk, as other programs read it: names of files, configurations, and
// names, types and shapes of tensors. A change here is seen by everybody who loads such a folder:
// look at the difference, then write the files again with BRRR_UPDATE=1.

#include "base/env.h"
#include "base/sha256.h"
#include "e2e/run.h"
#include "formats/safetensors.h"

namespace brrr::test {
namespace {

class RunFiles : public EndToEnd {
 protected:
  /// The files of the folder, sorted; the name of an event file holds the time and the machine.
  static std::string list_of(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_directory()) continue;
      std::string name = entry.path().lexically_relative(folder).string();
      if (const size_t at = name.find("tfevents."); at != std::string::npos)
        name = name.substr(0, at) + "tfevents.*";
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return fmt::format("{}\n", fmt::join(names, "\n"));
  }
  static std::string tensors_of(const fs::path& file) {
    const io::SafetensorsFile opened(file);
    std::string text;
    for (const io::TensorView& t : opened.tensors())
      text += fmt::format("{} {} {}\n", t.name, brrr::name_of(t.dtype), t.shape.str());
    return text;
  }
  static std::string section(const std::string& name, const std::string& content) {
    constexpr size_t kLongest = 4096;
    return fmt::format("\n--- {}\n{}{}", name,
                       content.size() > kLongest ? "SHA-256 " + sha256_hex(content) : content,
                       content.ends_with('\n') ? "" : "\n");
  }
  void compare(const std::string& tokenizer) {
    ASSERT_EQ(run(small_run("run", {"--max-steps", "2", "--eval-steps", "0", "--save-steps", "0",
                                    "--tokenizer", tokenizer})),
              0)
        << err_;
    const fs::path folder = path("run");
    std::string text = list_of(folder);
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json", "special_tokens_map.json"})
      text += section(name, fs::exists(folder / name) ? read_file(folder / name) : "(none)");
    text += section("model.safetensors", tensors_of(folder / "model.safetensors"));
    text += section("optimizer.safetensors",
                    tensors_of(folder / "checkpoint-000002" / "optimizer.safetensors"));
    const fs::path golden = fs::path(BRRR_SOURCE_DIR) / "tests/golden/runs" / (tokenizer + ".txt");
    if (env::get("BRRR_UPDATE")) {
      create_folder(golden.parent_path());
      write_file_atomically(golden, text);
    }
    ASSERT_TRUE(fs::exists(golden)) << golden << " is absent: run with BRRR_UPDATE=1";
    EXPECT_EQ(read_file(golden), text) << "if this is meant, run with BRRR_UPDATE=1";
  }
};

TEST_F(RunFiles, OfCharactersAreAsTheyWere) { compare("char"); }
TEST_F(RunFiles, OfBytesAreAsTheyWere) { compare("byte"); }

}  // namespace
}  // namespace brrr::test
