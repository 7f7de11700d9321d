// `data decode` over every kind of decoder that tokenizer.json may have.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

struct DecoderCase {
  const char* decoder;
  const char* text;  // of the tokens "a", "b</w>" and "a</w>"
};

constexpr DecoderCase kDecoders[] = {
    {R"({"type":"BPEDecoder","suffix":"</w>"})", "ab a"},
    {R"({"type":"CTC","pad_token":"<pad>","word_delimiter_token":"|","cleanup":true})",
     "ab</w>a</w>"},
    {R"({"type":"WordPiece","prefix":"##","cleanup":true})", "a b</w> a</w>"},
    {R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true})",
     "ab</w>a</w>"},
    {R"({"type":"ByteLevel"})", "ab</w>a</w>"},
    {R"({"type":"ByteFallback"})", "ab</w>a</w>"},
    {R"({"type":"Strip","content":"a","start":1,"stop":0})", "b</w></w>"},
    {R"({"type":"Replace","pattern":{"String":"b"},"content":"c"})", "ac</w>a</w>"},
    {R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":)"
     R"("</w>a"},"content":"-"}]})",
     "ab-</w>"},
    {R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip",)"
     R"("content":">","start":0,"stop":1}]})",
     "ab</w>a</w"},
    {"null", "a b</w> a</w>"}};

TEST(Decoders, DataDecodePrintsTheTextOfEach) {
  if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
  const test::TempFolder folder;
  write_file_atomically(folder / "in", "1 2 3\n1 2 3\n");
  for (const DecoderCase& c : kDecoders) {
    SCOPED_TRACE(c.decoder);
    write_file_atomically(folder / "tokenizer.json",
                          std::string(R"({"model":{"type":"WordLevel","unk_token":"<pad>","vocab":)"
                                      R"({"<pad>":0,"a":1,"b</w>":2,"a</w>":3}},"decoder":)") +
                              c.decoder + "}");
    const auto decoded = [&](const std::string& options) {
      const std::string at = folder.path().string();
      const std::string command = "'" BRRR_BINARY "' data decode --tokenizer '" + at + "' " +
                                  options + " <'" + at + "/in' >'" + at + "/out'";
      EXPECT_EQ(std::system(command.c_str()), 0);
      return read_file(folder / "out");
    };
    EXPECT_EQ(decoded(""), std::string(c.text) + c.text);
    EXPECT_EQ(nlohmann::json::parse(decoded("--json"))["text"], std::string(c.text) + c.text);
  }
}

}  // namespace
}  // namespace brrr
