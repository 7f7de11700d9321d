// The text of a small training graph after every stage of the pipeline. A change here is a change
// of what the passes do: look at the difference, then write the files again with BRRR_UPDATE=1.

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/env.h"
#include "base/file.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/gpt2.h"

namespace brrr {
namespace {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "brrr-golden-XXXXXX").string();
    BRRR_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// `first`: the number of the first stage whose text is kept; `target`: what the graph is for.
void compare_with_goldens(const std::string& name, const PipelineOptions& base, double dropout,
                          int64_t layers = 1, const std::string& first = "",
                          const Target& target = {}) {
  auto config = test::tiny_gpt2(true, dropout);
  config.n_layer = layers;
  const TempFolder folder;
  PipelineOptions options = base;
  options.dump_folder = folder.path().string();
  options.dump_prefix = name + "_";
  options.verify = true;
  run_pipeline(config.model()->loss(2, 4), target, options);
  const fs::path goldens = fs::path(BRRR_SOURCE_DIR) / "tests/golden/graphs";
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    if (const std::string file = entry.path().filename(); file >= options.dump_prefix + first)
      names.insert(file);
  EXPECT_GE(names.size(), first.empty() ? 6u : 3u);
  for (const std::string& file : names) {
    const std::string text = read_file(folder.path() / file);
    if (env::get("BRRR_UPDATE")) write_file_atomically(goldens / file, text);
    ASSERT_TRUE(fs::exists(goldens / file))
        << file << " is absent: BRRR_UPDATE=1 " << test::rerun();
    EXPECT_TRUE(read_file(goldens / file) == text)
        << file << " has changed; if that is right: BRRR_UPDATE=1 " << test::rerun();
    if (text == "(unchanged)\n") continue;
    EXPECT_EQ(print(parse(text, find_op)), text) << file;
  }
  // No file is left from a stage that there no longer is.
  for (const auto& entry : fs::directory_iterator(goldens)) {
    const std::string file = entry.path().filename();
    EXPECT_TRUE(!file.starts_with(options.dump_prefix) || names.contains(file)) << file;
  }
}

TEST(GoldenGraphs, Training) {
  PipelineOptions options;
  options.loss = "loss";
  options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}); };
  compare_with_goldens("train", options, 0.1);
}

// Two layers, each computed again from its input; the stages before that are as above.
TEST(GoldenGraphs, TrainingInBlocks) {
  PipelineOptions options;
  options.loss = "loss";
  options.rematerialize.policy = RematPolicy::blocks;
  compare_with_goldens("blocks", options, 0, 2, "10");
}

// As on a target that has every op and takes every fused node; a program that collects gradients.
TEST(GoldenGraphs, Fusion) {
  Target target;
  target.runs = [](const Graph&, NodeId) { return true; };
  PipelineOptions options;
  options.loss = "loss";
  options.optimizer = [](Graph& g) { optim::attach_optimizer(g, {}, optim::Accumulation::middle); };
  compare_with_goldens("fusing", options, 0.1, 1, "11", target);
}

TEST(GoldenGraphs, Inference) { compare_with_goldens("eval", {}, 0.1); }

}  // namespace
}  // namespace brrr
