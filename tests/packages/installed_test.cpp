// The Python package, and the examples against an installed prefix that was moved. Skipped where
// there is no Python, compiler, CMake or pkg-config.
#include "packages/installed_prefix.h"

namespace brrr::test {
namespace {

class Installed : public InstalledPrefix {
 protected:
  /// The C++ examples of a folder where they are built.
  void expect_examples_run(const fs::path& built) {
    expect_runs(fmt::format("cd '{}' && ./own_graph && ./own_loss && ./own_data", built.string()));
    EXPECT_NE(said_.find("y = 3.00 x + -2.00 after 640 steps"), std::string::npos) << said_;
    expect_runs(
        fmt::format("cd '{0}' && ./train_gpt '{1}' 10 && ./finetune train_gpt_model '{1}' "
                    "further 3 && ./generate further 'To be'",
                    built.string(), text_.string()));
    EXPECT_NE(said_.find("validation loss"), std::string::npos) << said_;
    expect_runs(
        fmt::format("'{}/run_model' '{}/tests/golden/onnx/recurrent/gru_reverse_clip/model.onnx'",
                    built.string(), BRRR_SOURCE_DIR));
    EXPECT_NE(said_.find(" ["), std::string::npos) << said_;
  }
};

TEST_F(Installed, PythonPackage) {
  if (!has_command("python3")) GTEST_SKIP() << "there is no python3";
  library_ = BRRR_LIBRARY;
  expect_runs(python(fmt::format("'{}/tests/packages/python_package.py'", BRRR_SOURCE_DIR)));
  EXPECT_NE(said_.find("\nOK"), std::string::npos) << said_;
}

TEST_F(Installed, ExamplesOfPythonAndCRunAgainstTheMovedPrefix) {
  install();
  if (IsSkipped() || HasFailure()) return;
  const std::string run = (folder_.path() / "run").string();
  const std::string program = (folder_.path() / "built").string();
  expect_runs(fmt::format("'{}/bin/brrr' --version", prefix_.string()));
  EXPECT_TRUE(said_.starts_with("brrr ")) << said_;
  expect_runs(python(
      fmt::format("'{}/python/train.py' '{}' '{}'", examples_.string(), text_.string(), run)));
  EXPECT_NE(said_.find("validation loss"), std::string::npos) << said_;
  expect_runs(python(fmt::format("'{}/python/own_graph.py'", examples_.string())));
  EXPECT_NE(said_.find("loss on new points: 0.0"), std::string::npos) << said_;
  if (fs::exists(models_folder() / "minilm"))
    expect_runs(python(fmt::format("'{}/python/embed.py' '{}/minilm' '{}' question",
                                   examples_.string(), models_folder().string(), text_.string())));

  const std::string flags = fmt::format(
      "-Wall -Wextra -Wpedantic -Werror '{}/c_api/main.c' -o '{}' "
      "$(PKG_CONFIG_PATH='{}/lib/pkgconfig' "
      "pkg-config --cflags --libs brrr) -Wl,-rpath,'{}/lib'",
      examples_.string(), program, prefix_.string(), prefix_.string());
  std::vector<std::string> compilers = {"gcc -std=c11", "g++ -std=c++17 -fno-exceptions -x c++"};
  if (has_command("clang++-14"))
    compilers.push_back("clang++-14 -std=c++17 -fno-exceptions -x c++");
  for (const std::string& compiler : compilers) {
    expect_runs(compiler + " " + flags);
    expect_runs(fmt::format("'{}' '{}' 'To be'", program, run));
    EXPECT_TRUE(said_.starts_with("5 tokens of ")) << said_;
  }
  const fs::path c_api = built(examples_ / "c_api", "c_api", "");
  expect_runs(fmt::format("'{}/c_api' '{}' 'To be'", c_api.string(), run));
}

TEST_F(Installed, ExamplesOfCppRunAgainstTheMovedPrefix) {
  install();
  if (IsSkipped() || HasFailure()) return;
  const std::string warnings = "-DCMAKE_CXX_FLAGS='-Wall -Wextra -Wpedantic -Werror'";
  const fs::path cpp = built(examples_ / "cpp", "cpp", warnings);
  if (!HasFailure()) expect_examples_run(cpp);
}

TEST_F(Installed, ExamplesOfCppAreCompiledByClang) {
  const std::string clang = has_command("clang++-14") ? "clang++-14" : "clang++";
  if (!has_command(clang)) GTEST_SKIP() << "there is no clang++";
  install();
  if (IsSkipped() || HasFailure()) return;
  built(examples_ / "cpp", "clang",
        "-DCMAKE_CXX_FLAGS='-Wall -Wextra -Wpedantic -Werror' -DCMAKE_CXX_COMPILER=" + clang);
}

// Sanitizers are compiled into the examples and the headers. The library is the one that is
// installed: what it allocates is watched, too, because AddressSanitizer replaces the allocator of
// the process.
class SanitizedClients : public Installed {
 protected:
  static constexpr const char* kFlags =
      "-g1 -fsanitize=address,undefined -fno-sanitize-recover=all";

  void install_for_sanitizers() {
    install();
    if (IsSkipped() || HasFailure()) return;
    write_file_atomically(folder_.path() / "empty.cpp", "int main() {}\n");
    if (run(fmt::format("g++ {0} '{1}/empty.cpp' -o '{1}/empty' && '{1}/empty'", kFlags,
                        folder_.path().string())) != 0)
      GTEST_SKIP() << "g++ has no sanitizers here";
  }
};

TEST_F(SanitizedClients, ExamplesAreClean) {
  install_for_sanitizers();
  if (IsSkipped() || HasFailure()) return;
  const fs::path cpp =
      built(examples_ / "cpp", "cpp", fmt::format("-DCMAKE_CXX_FLAGS='{}'", kFlags));
  if (HasFailure()) return;
  expect_examples_run(cpp);
  const fs::path c_api =
      built(examples_ / "c_api", "c_api", fmt::format("-DCMAKE_C_FLAGS='{}'", kFlags));
  expect_runs(fmt::format("'{}/c_api' '{}/further' 'To be'", c_api.string(), cpp.string()));
}

TEST_F(SanitizedClients, ATensorThatIsFreedTooEarlyIsCaught) {
  install_for_sanitizers();
  if (IsSkipped() || HasFailure()) return;
  write_file_atomically(folder_.path() / "early.cpp", R"(#include <brrr/brrr.h>

#include <cstdio>
#include <memory>

int main(int, char** argv) {
  const std::string what = argv[1];
  const int64_t n = std::stol(argv[2]);
  brrr::Graph g;
  g.output("y", g.input("x", brrr::f32, {n}) * 2);
  auto model = g.compile();
  auto memory = std::make_unique<std::vector<float>>(n, 1.0f);
  auto x = what == "borrowed" ? brrr::Tensor::borrow<float>({n}, memory->data())
                              : brrr::Tensor::of<float>({n}, *memory);
  if (what == "borrowed") memory.reset();
  auto outputs = model.run({{"x", x}});
  const float* values = what == "input" ? x.as<float>().data() : outputs.at("y").as<float>().data();
  if (what == "input") x = {};
  if (what == "output") outputs.clear();
  if (what == "twice") brrr_tensor_free(x.handle());
  std::printf("%g\n", values[n - 1]);
}
)");
  expect_runs(
      fmt::format("cd '{0}' && g++ -std=c++20 {1} early.cpp -o early -I'{2}/include' -L'{2}/lib' "
                  "-lbrrr -Wl,-rpath,'{2}/lib'",
                  folder_.path().string(), kFlags, prefix_.string()));
  if (HasFailure()) return;
  for (const int elements : {4, 400'000}) {
    const auto early = [&](const char* what) {
      return fmt::format("'{}/early' {} {}", folder_.path().string(), what, elements);
    };
    expect_runs(early("never"));
    EXPECT_EQ(said_, "2\n");
    for (const char* what : {"input", "output", "borrowed"}) {
      EXPECT_NE(run(early(what)), 0) << what;
      EXPECT_NE(said_.find("AddressSanitizer: heap-use-after-free"), std::string::npos)
          << what << "\n"
          << said_;
    }
    EXPECT_NE(run(early("twice")), 0);
    EXPECT_NE(said_.find("AddressSanitizer: "), std::string::npos) << said_;
  }
}

}  // namespace
}  // namespace brrr::test
