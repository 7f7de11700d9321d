// The lines of README.md and docs/library.md on packages and calls are run as they stand there.
#include <regex>

#include "packages/installed_prefix.h"
#include "support/onnx_writer.h"

namespace brrr::test {
namespace {

/// The blocks of code of a section, which are indented by four spaces or fenced, each up to an
/// empty line, without the indentation.
std::vector<std::string> code_of(const std::string& document, const std::string& heading) {
  const std::string text = read_file(fs::path(BRRR_SOURCE_DIR) / document);
  size_t at = text.find("\n## " + heading + "\n");
  if (at == std::string::npos) return {};
  const size_t end = std::min(text.find("\n## ", at + 1), text.size());
  std::vector<std::string> blocks;
  bool is_fenced = false, goes_on = false;
  for (at = text.find('\n', at + 1) + 1; at < end;) {
    const size_t next = std::min(text.find('\n', at), end);
    const std::string line = text.substr(at, next - at);
    at = next + 1;
    if (line.starts_with("```")) {
      is_fenced = !is_fenced;
      goes_on = false;
    } else if (line.empty() || !(is_fenced || line.starts_with("    "))) {
      goes_on = false;
    } else {
      if (!goes_on) blocks.emplace_back();
      blocks.back() += (is_fenced ? line : line.substr(4)) + "\n";
      goes_on = true;
    }
  }
  return blocks;
}

/// The block that begins with these words.
std::string block_with(const std::vector<std::string>& blocks, const std::string& beginning) {
  for (const std::string& block : blocks)
    if (block.starts_with(beginning)) return block;
  ADD_FAILURE() << "no block begins with '" << beginning << "'";
  return "";
}

class Readme : public InstalledPrefix {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_.path() / name).parent_path());
    write_file_atomically(folder_.path() / name, text);
  }
  /// A model that training left in `out`, and notes to train on.
  void train() {
    fs::copy_file(text_, folder_.path() / "notes.txt");
    expect_runs(
        fmt::format("cd '{}' && '{}/bin/brrr' train --text notes.txt --max-steps 3 "
                    "--samples 0 --output-dir out",
                    folder_.path().string(), prefix_.string()));
  }
  std::vector<std::string> blocks_ = code_of("README.md", "Install it, and call it");
};

TEST_F(Readme, NamesThePackagesThatTheScriptsWrite) {
  const std::string block = block_with(blocks_, "sudo apt install");
  const std::string project = read_file(fs::path(BRRR_SOURCE_DIR) / "CMakeLists.txt");
  std::smatch version;
  ASSERT_TRUE(std::regex_search(project, version, std::regex("project\\(brrr VERSION ([0-9.]+)")));
  EXPECT_NE(block.find(fmt::format("./dist/brrr_{}_amd64.deb ", version.str(1))), std::string::npos)
      << block;
  EXPECT_NE(block.find(fmt::format("pip install dist/brrr-{}-*.whl ", version.str(1))),
            std::string::npos)
      << block;
}

TEST_F(Readme, LinesOfPythonRun) {
  install();
  if (IsSkipped() || HasFailure()) return;
  fs::copy_file(text_, folder_.path() / "notes.txt");
  std::string block = block_with(blocks_, "import brrr");
  // As the page says, brrr.embed() needs NumPy and a model of the Hub; its line is run where both
  // are.
  const bool can_embed =
      run("python3 -c 'import numpy'") == 0 && fs::exists(models_folder() / "minilm");
  if (can_embed) {
    fs::create_directories(folder_.path() / "path/to");
    fs::create_directory_symlink(models_folder() / "minilm", folder_.path() / "path/to/minilm");
  } else {
    const size_t line = block.find("vectors = ");
    ASSERT_NE(line, std::string::npos);
    block.erase(line, block.find('\n', line) + 1 - line);
    std::fprintf(stderr, "brrr.embed() is left out: there is no NumPy or no MiniLM\n");
  }
  namespace onnx = onnx_file;
  write("model.onnx", onnx::model(onnx::graph({onnx::value("x", onnx::kFloat, {3})},
                                              {onnx::value("y", onnx::kFloat, {3})},
                                              {onnx::node("Add", {"x", "x"}, {"y"})})));
  // Before the lines, what they take as given, and a training that is cut short; after them, what
  // they should have done.
  write("lines.py",
        "import array\nimport brrr\nx = array.array('f', [1, 2, 3])\ntrain = brrr.train\n"
        "brrr.train = lambda *given, **options: train(*given, max_steps=3, **options)\n" +
            block + "assert outputs['y'].tolist() == [2, 4, 6]\n" +
            (can_embed ? "assert vectors.shape == (2, 384)\n" : ""));
  expect_runs(fmt::format("cd '{}' && {}", folder_.path().string(), python("lines.py")));
}

TEST_F(Readme, LinesOfCRun) {
  install();
  if (IsSkipped() || HasFailure()) return;
  train();
  write("app/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.18)\nproject(app LANGUAGES C)\n"
        "add_executable(app main.c)\n" +
            block_with(blocks_, "find_package(brrr"));
  write("app/main.c", "#include <brrr/brrr_c.h>\n#include <stdio.h>\nint main(void) {\n" +
                          block_with(blocks_, "brrr_generator* g") +
                          "printf(\"%s\\n\", texts[0]);\nbrrr_text_free(texts[0]);\n"
                          "brrr_generator_free(g);\nreturn 0;\n}\n");
  const fs::path app = built(folder_.path() / "app", "built", "");
  expect_runs(fmt::format("cd '{}' && '{}/app'", folder_.path().string(), app.string()));
  EXPECT_GT(said_.size(), 10u) << said_;
}

TEST_F(Readme, TheLoopOfTheLibrarysPageRuns) {
  install();
  if (IsSkipped() || HasFailure()) return;
  write("app/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.20)\nproject(app LANGUAGES CXX)\n"
        "set(CMAKE_CXX_STANDARD 20)\nfind_package(brrr REQUIRED)\nadd_executable(app main.cpp)\n"
        "target_link_libraries(app PRIVATE brrr::brrr)\n");
  write("app/main.cpp", R"(#include <brrr/brrr.h>
int main() {
  brrr::Graph graph;
  const auto x = graph.input("x", brrr::f32, {8, 1});
  graph.output("loss", brrr::mean_squared_error(brrr::linear(x, 1, "line"), x));
  const std::vector<brrr::Batch> my_batches(
      12, brrr::Batch{{"x", brrr::Tensor::of<float>({8, 1}, std::vector<float>(8, 1.0f))}});
)" + block_with(code_of("docs/library.md", "A training loop of one's own"), "auto run") +
                            "  return run.steps_done() > 0 ? 0 : 1;\n}\n");
  const fs::path app = built(folder_.path() / "app", "built", "");
  expect_runs(fmt::format("cd '{}' && '{}/app'", folder_.path().string(), app.string()));
  EXPECT_TRUE(fs::exists(folder_.path() / "out")) << said_;
}

}  // namespace
}  // namespace brrr::test
