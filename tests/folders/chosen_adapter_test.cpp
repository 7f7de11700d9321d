// The option --adapter [NAME=]FOLDER[=SCALE]: what it reads, and what it says of anything else.

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/file.h"
#include "folders/model_folder.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

class ChosenAdapterOption : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"poet", "a=b", "0.5"}) {
      fs::create_directories(folder_ / name);
      write_file_atomically(folder_ / name / "adapter_config.json", "{}");
    }
    fs::create_directories(folder_ / "model");
    write_file_atomically(folder_ / "model" / "config.json", "{}");
    write_file_atomically(folder_ / "model" / "model.safetensors", "");
    write_file_atomically(folder_ / "x.gguf", std::string("GGUF\3\0\0\0", 8));
  }
  /// The option's text for a folder of the test: "NAME=" and "=SCALE" around it.
  std::string at(const std::string& name, const std::string& before = "",
                 const std::string& behind = "") const {
    return before + (folder_.path() / name).string() + behind;
  }
  void expect(const std::string& text, const std::string& folder, double scale,
              const std::string& name) const {
    const ChosenAdapter adapter = parse_adapters({text})[0];
    EXPECT_EQ(adapter.folder, folder_ / folder) << text;
    EXPECT_EQ(adapter.weight, scale) << text;
    EXPECT_EQ(adapter.name, name) << text;
  }
  static void expect_refused(const std::string& text, const std::string& message) {
    try {
      parse_adapters({text});
      ADD_FAILURE() << text << " was accepted";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos)
          << text << "\nexpected: " << message << "\ngot: " << e.what();
    }
  }
  test::TempFolder folder_;
};

TEST_F(ChosenAdapterOption, NameAndScaleMayBeLeftOut) {
  expect(at("poet"), "poet", 1, "poet");
  expect(at("poet", "", "/"), "poet/", 1, "poet");
  expect(at("poet", "", "=0.5"), "poet", 0.5, "poet");
  expect(at("poet", "", "=-1"), "poet", -1, "poet");
  expect(at("poet", "p="), "poet", 1, "p");
  expect(at("poet", "p=", "=2e-1"), "poet", 0.2, "p");
  // A folder whose name has a '=', and one that is called like a number.
  expect(at("a=b"), "a=b", 1, "a=b");
  expect(at("a=b", "", "=3"), "a=b", 3, "a=b");
  expect(at("a=b", "p=", "=3"), "a=b", 3, "p");
  expect(at("0.5", "p="), "0.5", 1, "p");
}

TEST_F(ChosenAdapterOption, AnythingElseSaysWhatWasGivenAndTheForm) {
  const std::string form = "expected [NAME=]FOLDER[=SCALE]";
  for (const char* scale : {"0.5x", "nan", "inf", "-inf", "", "1e7"}) {
    for (const char* name : {"", "p="}) {
      const std::string text = at("poet", name, std::string("=") + scale);
      expect_refused(text, fmt::format("--adapter {}: {} with a number from -1000000 to 1000000 as "
                                       "SCALE; got '{}'",
                                       text, form, scale));
    }
  }
  expect_refused(at("poet", "="), form + "; the name in front of '=' is empty");
  expect_refused("=0.5", form + "; the folder is empty");
  expect_refused("", "--adapter '': " + form + "; the folder is empty");
  expect_refused("n=7", "--adapter n=7: there is no folder 'n'; " + form);
  expect_refused("p=n=7", "there is no folder 'n'; " + form);
  expect_refused("p=absent", "there is no folder 'absent'; " + form);
  expect_refused("absent", "--adapter absent: there is no folder 'absent'");
  expect_refused(at("x.gguf"),
                 "x.gguf' is a GGUF file, and adapters in this format are not read; " + form);
  expect_refused(at("poet/adapter_config.json"),
                 "expected the folder that the file is in: --adapter " + at("poet"));
  expect_refused(at("model"), "a model, not an adapter");
}

}  // namespace
}  // namespace brrr::io
