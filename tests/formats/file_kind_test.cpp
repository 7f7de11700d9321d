// What a file is by its first bytes.
#include "formats/file_kind.h"

#include <gtest/gtest.h>

#include "formats/npy.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using namespace std::literals;

TEST(FileKind, KnownFormatsAreNamed) {
  const struct {
    std::string_view bytes;
    const char* name;
    bool is_model, is_module;
  } cases[] = {
      {"GGUF\3\0\0\0"sv, "a GGUF file", true, false},
      {"lmgg\1\0\0\0"sv, "a GGML file", true, false},
      {"tjgg\3\0\0\0"sv, "a GGML file", true, false},
      {"\x93NUMPY\1\0v\0{'descr'"sv, "a NumPy array (.npy)", false, false},
      {"PK\3\4\0\0\10\10\0\0archive/data.pkl"sv, "a PyTorch file (a zip archive with a pickle)",
       true, false},
      {"PK\3\4\0\0\10\10\0\0arr_0.npy"sv, "an archive of NumPy arrays (.npz)", false, false},
      {"PK\3\4\0\0\10\10\0\0word/document.xml"sv, "a zip archive", false, false},
      {"\x80\2}q\0"sv, "a Python pickle", true, false},
      {"\x80\4\x95\0"sv, "a Python pickle", true, false},
      {"\x89HDF\r\n\x1a\n\0"sv, "an HDF5 file", true, false},
      {"\x20\0\0\0TFL3\0"sv, "a TensorFlow Lite file", true, false},
      {"\x40\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\""sv, "a safetensors file", true, false},
      {"\x40\0\0\0\0\0\0\0{\"__metadata__\":{\"brrr_version\":"sv, "a .brrr file", true, true},
      {"\x08\x08\x12\x07pytorch"sv, "an ONNX file", true, true},
      {"\x89PNG\r\n\x1a\n"sv, "a picture (PNG)", false, false},
      {"\xff\xd8\xff\xe0"sv, "a picture (JPEG)", false, false},
      {"%PDF-1.7"sv, "a PDF document", false, false},
      {"\x1f\x8b\x08"sv, "a gzip archive", false, false},
      {"version https://git-lfs.github.com/spec/v1\n"sv, "a pointer of Git LFS", false, false},
      {"<!DOCTYPE html><html>"sv, "a web page (HTML)", false, false},
      {"\n <html lang=en>"sv, "a web page (HTML)", false, false},
      {"{\"version\":\"1.0\",\"added_tokens\":[]"sv, "a tokenizer (tokenizer.json)", false, false},
      {"{\"model_type\":\"gpt2\"}"sv, "the configuration of a model", false, false},
      {"\x0a\x0e\x0a\x05<unk>\x15"sv, "a SentencePiece tokenizer", false, false},
      {"<?xml version=\"1.0\"?><net name=\"m\">"sv, "a model of OpenVINO", true, false},
      {"To be, or not to be"sv, "a text", false, false},
      {""sv, "an empty file", false, false}};
  for (const auto& c : cases) {
    const auto kind = kind_of_bytes(c.bytes);
    ASSERT_TRUE(kind.has_value()) << c.name;
    EXPECT_TRUE(kind->name.starts_with(c.name)) << kind->name << " for " << c.name;
    EXPECT_EQ(kind->is_model, c.is_model) << c.name;
    EXPECT_EQ(kind->is_module, c.is_module) << c.name;
  }
  EXPECT_FALSE(kind_of_bytes("\1\2\3\4\5"sv)) << "nobody knows";
}

TEST(FileKind, RefusalsSayWhatItIsAndWhatToDo) {
  const test::TempFolder folder;
  const std::string file = (folder / "m.bin").string();
  write_file_atomically(file, "GGUF\3\0\0\0"sv);
  EXPECT_USER_ERROR(refuse_file(file, "a folder"),
                    "m.bin is a GGUF file, which is a model; name it as one: --model FILE.gguf");
  write_file_atomically(file, "\x89PNG\r\n\x1a\n"sv);
  EXPECT_USER_ERROR(refuse_file(file, "a folder"), "m.bin is a picture (PNG); expected a folder");
  write_file_atomically(file, "\1\2\3\4"sv);
  EXPECT_USER_ERROR(refuse_file(file, "a folder"), "m.bin is a file; expected a folder");
  EXPECT_FALSE(kind_of_file(folder / "none"));
  EXPECT_FALSE(kind_of_file(folder.path())) << "a folder";
  EXPECT_USER_ERROR(parse_npy("\x89PNG\r\n\x1a\n"sv, "x.npy"),
                    "x.npy: this is no .npy file, but a picture (PNG)");
}

}  // namespace
}  // namespace brrr::io
