// What a name of a model means, and what is said where it means nothing.

#include "folders/model_folder.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace brrr::io {
namespace {

class ModelNames : public testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    fs::current_path(folder_.path());
  }
  void TearDown() override { fs::current_path(before_); }
  static void make_run(const std::string& name) {
    create_folder("runs/" + name);
    write_file_atomically("runs/" + name + "/config.json", "{}");
    write_file_atomically("runs/" + name + "/model.safetensors", "weights");
  }
  test::TempFolder folder_;
  fs::path before_;
};

TEST_F(ModelNames, NothingOfThatName) {
  EXPECT_USER_ERROR(find_model("nope"), "there is no folder nope");
  EXPECT_USER_ERROR(find_model("nope"), "train one (`brrr train`), or name a folder");
  make_run("char-cpu-1");
  create_folder("runs/empty");
  EXPECT_USER_ERROR(find_model("nope"), ": there are runs/char-cpu-1");
  for (const char* name : {"char-1", "char-2", "gpt2-1"}) make_run(name);
  EXPECT_USER_ERROR(find_model("nope"), "there are runs/char-1, runs/char-2, runs/char-cpu-1, ...");
  EXPECT_USER_ERROR(find_model("runs/char-cpu-2"), "did you mean runs/char-cpu-1?");
  EXPECT_USER_ERROR(find_model("gpt2-11"), "did you mean runs/gpt2-1?");
  EXPECT_EQ(find_model("runs/char-1"), "runs/char-1");
}

}  // namespace
}  // namespace brrr::io
