// ONNX files as they are written: what is read, and what hostile bytes meet.

#include "formats/onnx/onnx_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/errors.h"
#include "base/rng.h"
#include "support/long_proof.h"
#include "support/onnx_fields.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using namespace onnx_bytes;  // NOLINT: builders of bytes

std::string small_model() {
  const std::string then = node("Neg", {"x"}, {"t"}) + output("t", kFloat, {2});
  return model(initializer(tensor("w", kFloat, {2}, raw<float>({1, 2}))) +
               input("x", kFloat, {-1}) + node("Add", {"x", "w"}, {"y"}) +
               node("If", {"c"}, {"z"}, graph_attribute("then_branch", then)) +
               node("Transpose", {"y"}, {"u"}, attribute("perm", std::vector<int64_t>{0})) +
               output("y", kFloat, {-1}));
}

std::string message_of(const std::string& bytes) {
  try {
    onnx::File::parse(bytes, "m.onnx");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(OnnxFile, IsReadAsItIsWritten) {
  const std::string bytes = small_model();
  const auto file = onnx::File::parse(bytes, "m.onnx");
  EXPECT_EQ(file->opsets.at(""), 18);
  EXPECT_EQ(file->producer, "test");
  const onnx::GraphProto& g = file->graph;
  ASSERT_EQ(g.nodes.size(), 3u);
  EXPECT_EQ(g.nodes[0].op_type, "Add");
  EXPECT_EQ(g.nodes[0].inputs, (std::vector<std::string_view>{"x", "w"}));
  EXPECT_EQ(g.nodes[1].find("then_branch")->graph->nodes[0].op_type, "Neg");
  EXPECT_EQ(g.nodes[2].find("perm")->integers, (std::vector<int64_t>{0}));
  ASSERT_EQ(g.initializers.size(), 1u);
  EXPECT_EQ(g.initializers[0].dims, (std::vector<int64_t>{2}));
  EXPECT_EQ(g.initializers[0].bytes.size(), 8u);
  ASSERT_EQ(g.inputs.size(), 1u);
  EXPECT_EQ(g.inputs[0].type.shape->at(0).name, "n");
}

TEST(OnnxFile, NumbersThatAreSpelledBecomeBytes) {
  // float_data packed and one by one, int32_data of 16-bit floats and of booleans, int64_data.
  const std::string floats = varint_field(1, 2) + varint_field(2, 1) + number_field(4, 1.5f) +
                             bytes_field(4, raw<float>({2.5f})) + bytes_field(8, "f");
  const std::string halves =
      varint_field(1, 2) + varint_field(2, 10) + varint_field(5, 0x3c00) + varint_field(5, 0xc000);
  const auto parse = [](const std::string& bytes) { return onnx::parse_tensor(bytes, "t.pb"); };
  const onnx::TensorProto f = parse(floats), h = parse(halves);
  EXPECT_EQ(load_as_double(DType::f32, f.bytes.data(), 1), 2.5);
  EXPECT_EQ(load_as_double(DType::f16, h.bytes.data(), 0), 1.0);
  EXPECT_EQ(load_as_double(DType::f16, h.bytes.data(), 1), -2.0);
  const std::string negative =
      varint_field(1, 1) + varint_field(2, 7) + varint_field(7, static_cast<uint64_t>(-5));
  EXPECT_EQ(load_as_double(DType::i64, parse(negative).bytes.data(), 0), -5);
}

std::vector<double> integers_of(const onnx::TensorProto& t) {
  std::vector<double> list;
  for (size_t i = 0; i < t.bytes.size(); ++i)
    list.push_back(
        load_as_double(*onnx::dtype_of(t.type), t.bytes.data(), static_cast<int64_t>(i)));
  return list;
}

TEST(OnnxFile, PackedIntegersGetAByteEach) {
  constexpr int kUint4 = 21, kInt4 = 22, kUint2 = 25, kInt2 = 26;
  const auto read = [](int type, int64_t count, const std::string& bytes) {
    return integers_of(onnx::parse_tensor(tensor("w", type, {count}, bytes), "t.pb"));
  };
  using Numbers = std::vector<double>;
  EXPECT_EQ(read(kInt4, 3, "\x87\x0f"), (Numbers{7, -8, -1}));
  EXPECT_EQ(read(kUint4, 4, "\x87\x1f"), (Numbers{7, 8, 15, 1}));
  EXPECT_EQ(read(kInt2, 5, "\xe4\x02"), (Numbers{0, 1, -2, -1, -2}));
  EXPECT_EQ(read(kUint2, 4, "\xe4"), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(read(kInt4, 0, ""), Numbers{});
  // An int32_data holds a byte.
  const std::string spelled =
      varint_field(1, 3) + varint_field(2, kInt4) + varint_field(5, 0x87) + varint_field(5, 0x0f);
  EXPECT_EQ(integers_of(onnx::parse_tensor(spelled, "t.pb")), (Numbers{7, -8, -1}));
  EXPECT_NE(message_of(model(initializer(tensor("w", kInt4, {3}, "\x87")))).find("1 bytes for 3"),
            std::string::npos);
}

TEST(OnnxFile, EveryTruncationIsRefusedOrComplete) {
  const std::string whole = small_model();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    try {
      onnx::File::parse(cut, "m.onnx");
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("m.onnx"), std::string::npos) << e.what();
    }
  }
}

TEST(OnnxFile, MutationsDoNoHarm) {
  const std::string whole = small_model();
  RngStream random({7, 0}, 0);
  const int rounds_here = rounds(100000, 4000);
  for (int i = 0; i < rounds_here; ++i) {
    std::string bytes = whole;
    const int changes = 1 + static_cast<int>(random.next_below(4));
    for (int k = 0; k < changes; ++k)
      bytes[random.next_below(bytes.size())] = static_cast<char>(random.next_below(256));
    try {
      onnx::File::parse(bytes, "m.onnx");
    } catch (const UserError&) {
    }
  }
}

TEST(OnnxFile, WhatIsWrongIsNamed) {
  EXPECT_NE(message_of("").find("no ONNX file"), std::string::npos);
  EXPECT_NE(message_of(std::string(20, '\xff')).find("protocol buffer"), std::string::npos);
  const auto with_tensor = [](const std::string& t) { return model(initializer(t)); };
  EXPECT_NE(message_of(with_tensor(tensor("w", kFloat, {3}, raw<float>({1, 2})))).find("8 bytes"),
            std::string::npos);
  EXPECT_NE(message_of(with_tensor(tensor("w", kFloat, {-3}, ""))).find("size -3"),
            std::string::npos);
  const int64_t large = int64_t{1} << 40;
  EXPECT_NE(message_of(with_tensor(tensor("w", kFloat, {large, large}, ""))).find("too many"),
            std::string::npos);
  EXPECT_NE(
      message_of(with_tensor(external("w", kFloat, {1}, {{"location", "f"}}))).find("no folder"),
      std::string::npos);
}

TEST(OnnxFile, GraphsLieOnlySoDeep) {
  std::string graph = node("Neg", {"x"}, {"y"});
  for (int i = 0; i < 10000; ++i)
    graph = node("If", {"c"}, {"y"}, graph_attribute("then_branch", graph));
  EXPECT_NE(message_of(model(graph)).find("deep"), std::string::npos);
}

class OnnxExternal : public ::testing::Test {
 protected:
  std::string message(const std::vector<std::pair<std::string, std::string>>& entries) {
    write(initializer(external("w", kFloat, {2}, entries)));
    try {
      load();
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  }
  void write(const std::string& graph) {
    write_file_atomically(folder_.path() / "in/m.onnx", model(graph));
  }
  std::shared_ptr<const onnx::File> load() {
    return onnx::File::load(folder_.path() / "in/m.onnx");
  }
  void SetUp() override {
    create_folder(folder_.path() / "in");
    write_file_atomically(folder_.path() / "in/w.bin", raw<float>({9, 1, 2}));
    write_file_atomically(folder_.path() / "secret", raw<float>({9, 1, 2}));
  }
  TempFolder folder_;
};

TEST_F(OnnxExternal, TensorsBesideTheFileAreMapped) {
  write(initializer(external("w", kFloat, {2}, {{"location", "w.bin"}, {"offset", "4"}})));
  const auto file = load();
  EXPECT_EQ(load_as_double(DType::f32, file->graph.initializers[0].bytes.data(), 0), 1);
  EXPECT_GT(file->bytes(), 12u);
}

TEST_F(OnnxExternal, PackedIntegersBesideTheFileGetAByteEach) {
  constexpr int kInt4 = 22;
  write_file_atomically(folder_.path() / "in/w.bin", "\x01\x87\x0f");
  write(initializer(external("w", kInt4, {3}, {{"location", "w.bin"}, {"offset", "1"}})));
  EXPECT_EQ(integers_of(load()->graph.initializers[0]), (std::vector<double>{7, -8, -1}));
  write(initializer(external("w", kInt4, {5}, {{"location", "w.bin"}, {"offset", "1"}})));
  EXPECT_THROW(load(), UserError);
}

TEST_F(OnnxExternal, NothingElseIsRead) {
  EXPECT_NE(message({{"location", "../secret"}}).find("leads out"), std::string::npos);
  const std::string absolute = (folder_.path() / "secret").string();
  EXPECT_NE(message({{"location", absolute}}).find("absolute"), std::string::npos);
  fs::create_symlink("../secret", folder_.path() / "in/link");
  EXPECT_NE(message({{"location", "link"}}).find("link"), std::string::npos);
  EXPECT_NE(message({{"location", "none"}}).find("missing"), std::string::npos);
  ::mkfifo((folder_.path() / "in/fifo").c_str(), 0600);
  EXPECT_NE(message({{"location", "fifo"}}), "");
  EXPECT_NE(message({{"location", "w.bin"}, {"offset", "8"}}).find("has 12"), std::string::npos);
  EXPECT_NE(message({{"location", "w.bin"}, {"offset", "99999999999999999999"}}).find("offset"),
            std::string::npos);
  EXPECT_NE(message({{"location", "w.bin"}, {"length", "4"}}), "");
  EXPECT_NE(message({}).find("not named"), std::string::npos);
}

TEST_F(OnnxExternal, LinksOfTheHuggingFaceCacheWork) {
  const fs::path snapshot = folder_.path() / "models--a--b/snapshots/1",
                 blobs = folder_.path() / "models--a--b/blobs";
  create_folder(snapshot);
  create_folder(blobs);
  write_file_atomically(blobs / "aa",
                        model(initializer(external("w", kFloat, {2}, {{"location", "w.bin"}}))));
  write_file_atomically(blobs / "bb", raw<float>({3, 4}));
  fs::create_symlink("../../blobs/aa", snapshot / "m.onnx");
  fs::create_symlink("../../blobs/bb", snapshot / "w.bin");
  create_folder(snapshot / "onnx");
  fs::create_symlink("../../../blobs/aa", snapshot / "onnx/m.onnx");
  fs::create_symlink("../../../blobs/bb", snapshot / "onnx/w.bin");
  for (const char* name : {"m.onnx", "onnx/m.onnx"}) {
    const auto file = onnx::File::load(snapshot / name);
    EXPECT_EQ(load_as_double(DType::f32, file->graph.initializers[0].bytes.data(), 1), 4) << name;
  }
  // Links to elsewhere are refused there, too: another model's blobs, the folder of the snapshots.
  const fs::path others = folder_.path() / "models--c--d/blobs";
  create_folder(others);
  for (const fs::path& target : {others / "bb", snapshot.parent_path() / "bb"}) {
    fs::copy_file(blobs / "bb", target);
    fs::remove(snapshot / "onnx/w.bin");
    fs::create_symlink(target, snapshot / "onnx/w.bin");
    EXPECT_USER_ERROR(onnx::File::load(snapshot / "onnx/m.onnx"), "leads out of its folder");
  }
  // Folders of the same names outside of a cache give links no rights.
  fs::rename(folder_.path() / "models--a--b", folder_.path() / "mine");
  EXPECT_USER_ERROR(onnx::File::load(folder_.path() / "mine/snapshots/1/m.onnx"),
                    "leads out of its folder");
}

}  // namespace
}  // namespace brrr::test
