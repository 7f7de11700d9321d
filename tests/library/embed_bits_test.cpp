// MiniLM by the C interface gives the bits of `brrr embed`.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "brrr/brrr_c.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace {

namespace fs = std::filesystem;

TEST(EmbedBits, OfTheCInterfaceAreThoseOfTheVerb) {
  const fs::path model = brrr::test::models_folder() / "minilm";
  if (!fs::exists(model / "config.json")) GTEST_SKIP() << "there is no MiniLM in " << model;
  const brrr::test::TempFolder folder;
  const char* texts[] = {"A text.", "Another one, which is longer.",
                         "Vectors of texts have the same bits whoever asks."};
  const size_t count = std::size(texts);
  std::ofstream lines(folder.path() / "texts");
  for (const char* text : texts) lines << text << '\n';
  lines.close();

  brrr_embedder* embedder = nullptr;
  ASSERT_EQ(brrr_embedder_open(model.c_str(), nullptr, 0, &embedder), BRRR_OK) << brrr_last_error();
  brrr_tensor* vectors = nullptr;
  EXPECT_EQ(brrr_embed(embedder, texts, count, &vectors), BRRR_OK) << brrr_last_error();
  brrr_embedder_free(embedder);
  ASSERT_EQ(brrr_tensor_rank(vectors), 2);
  EXPECT_EQ(brrr_tensor_sizes(vectors)[0], static_cast<int64_t>(count));
  EXPECT_EQ(brrr_tensor_sizes(vectors)[1], 384);

  const fs::path out = folder.path() / "vectors.npy";
  const std::string command = std::string(BRRR_BINARY) + " embed --model '" + model.string() +
                              "' --output '" + out.string() + "' < '" +
                              (folder.path() / "texts").string() + "' > /dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream in(out, std::ios::binary);
  const std::string file(std::istreambuf_iterator<char>(in), {});
  const size_t bytes = brrr_tensor_bytes(vectors);
  ASSERT_GT(file.size(), bytes);
  EXPECT_EQ(std::memcmp(file.data() + file.size() - bytes, brrr_tensor_data(vectors), bytes), 0);
  brrr_tensor_free(vectors);
}

}  // namespace
