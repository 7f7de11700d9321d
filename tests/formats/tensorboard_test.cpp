#include "formats/tensorboard.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::TempFolder;

/// A reader of its own: fields of one protobuf message by number; varints, fixed32/64 as raw bits.
struct Message {
  explicit Message(std::string_view data) {
    while (!data.empty()) {
      const uint64_t key = varint(data);
      std::string value;
      switch (key & 7) {
        case 0: {
          const uint64_t number = varint(data);
          value.assign(reinterpret_cast<const char*>(&number), 8);
          break;
        }
        case 1:
          value = take(data, 8);
          break;
        case 2:
          value = take(data, varint(data));
          break;
        case 5:
          value = take(data, 4);
          break;
        default:
          throw std::runtime_error("wire type");
      }
      EXPECT_TRUE(fields.emplace(key >> 3, value).second);
    }
  }
  static uint64_t varint(std::string_view& data) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(data.at(0));
      data.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  static std::string take(std::string_view& data, uint64_t n) {
    if (n > data.size()) throw std::runtime_error("truncated message");
    std::string out(data.substr(0, n));
    data.remove_prefix(n);
    return out;
  }
  template <typename T>
  T as(uint64_t field) const {
    T value;
    std::memcpy(&value, fields.at(field).data(), sizeof(T));
    return value;
  }
  std::map<uint64_t, std::string> fields;
};

uint32_t slow_masked_crc(std::string_view data) {
  uint32_t crc = 0xffffffffu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::vector<Message> read_events(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::string_view rest = bytes;
  std::vector<Message> out;
  while (!rest.empty()) {
    const std::string length = Message::take(rest, 8), length_crc = Message::take(rest, 4);
    uint64_t n;
    uint32_t crc;
    std::memcpy(&n, length.data(), 8);
    std::memcpy(&crc, length_crc.data(), 4);
    EXPECT_EQ(crc, slow_masked_crc(length));
    const std::string data = Message::take(rest, n), data_crc = Message::take(rest, 4);
    std::memcpy(&crc, data_crc.data(), 4);
    EXPECT_EQ(crc, slow_masked_crc(data));
    out.emplace_back(data);
  }
  return out;
}

TEST(TensorBoard, ScalarsComeBack) {
  TempFolder folder;
  EventWriter writer(folder / "tb/run");
  writer.scalar("train/loss", 2.5, 0, 1.7e9);
  writer.scalar("eval/loss", std::nan(""), 300, 1.7e9 + 0.25);
  writer.scalar("train/loss", -1e-3, int64_t{1} << 40, 1.7e9 + 1);
  writer.flush();
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].fields.at(3), "brain.Event:2");
  EXPECT_GT(events[0].as<double>(1), 1.6e9);
  const auto expect = [&](size_t i, double wall, int64_t step, const char* tag, float value) {
    EXPECT_EQ(events[i].as<double>(1), wall);
    EXPECT_EQ(events[i].as<int64_t>(2), step);
    const Message entry(Message(events[i].fields.at(5)).fields.at(1));
    EXPECT_EQ(entry.fields.at(1), tag);
    EXPECT_TRUE(entry.as<float>(2) == value || std::isnan(value));
    EXPECT_EQ(std::isnan(entry.as<float>(2)), std::isnan(value));
  };
  expect(1, 1.7e9, 0, "train/loss", 2.5f);
  expect(2, 1.7e9 + 0.25, 300, "eval/loss", std::nanf(""));
  expect(3, 1.7e9 + 1, int64_t{1} << 40, "train/loss", -1e-3f);
}

// Fields by tensorflow/core/framework: summary.proto, tensor.proto, tensor_shape.proto,
// types.proto.
TEST(TensorBoard, TextsComeBack) {
  TempFolder folder;
  EventWriter writer(folder / "tb");
  writer.text("samples", {"# no *heading*\n\nlast"}, 7);
  writer.text("samples", {"a\xff", ""}, 8);
  writer.flush();
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 3u);
  const auto entry = [&](size_t i) {
    return Message(Message(events[i].fields.at(5)).fields.at(1));
  };
  EXPECT_EQ(events[1].as<int64_t>(2), 7);
  EXPECT_EQ(entry(1).fields.at(1), "samples");
  const Message metadata(entry(1).fields.at(9));
  EXPECT_EQ(Message(metadata.fields.at(1)).fields.at(1), "text") << "the name of the dashboard";
  EXPECT_EQ(metadata.as<int64_t>(4), 2) << "DATA_CLASS_TENSOR";
  const Message tensor(entry(1).fields.at(8));
  EXPECT_EQ(tensor.as<int64_t>(1), 7) << "DT_STRING";
  EXPECT_EQ(Message(Message(tensor.fields.at(2)).fields.at(2)).as<int64_t>(1), 1) << "one text";
  EXPECT_EQ(tensor.fields.at(8), "    # no *heading*\n    \n    last") << "a block of code";
  // The reader of this test takes each field once: the second text stands behind the first.
  const std::string two = entry(2).fields.at(8), texts =
                                                     "B\x08    a\xef\xbf\xbd"
                                                     "B\x04    ";
  EXPECT_TRUE(two.ends_with(texts)) << two;
}

TEST(TensorBoard, TheHeaderIsThereAtOnceAndBuffersAreWhole) {
  TempFolder folder;
  EventWriter writer(folder.path());
  EXPECT_EQ(read_events(writer.path()).size(), 1u);
  for (int i = 0; i < 5000; ++i) writer.scalar("train/grad_norm", i, i);
  const size_t before = read_events(writer.path()).size();
  EXPECT_GT(before, 1000u);  // the 64 KiB rule has flushed, and only whole records
  writer.flush();
  EXPECT_EQ(read_events(writer.path()).size(), 5001u);
}

TEST(TensorBoard, AResumedRunOpensANewFileThatSortsLater) {
  TempFolder folder;
  std::set<std::string> names;
  std::string last;
  for (int i = 0; i < 3; ++i) {
    EventWriter writer(folder.path(), 100 * i);
    const std::string name = writer.path().filename();
    EXPECT_TRUE(name.starts_with("events.out.tfevents."));
    EXPECT_LT(last, name);
    last = name;
    names.insert(name);
    const auto events = read_events(writer.path());
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[1].as<int64_t>(2), 100 * i);
    EXPECT_EQ(Message(events[1].fields.at(7)).as<uint64_t>(1), 1u);  // SessionLog.START
  }
  EXPECT_EQ(names.size(), 3u);
}

TEST(TensorBoard, MaskedCrcOfAKnownRecord) {
  // "123456789" has the CRC-32C e3069283; rotated right by 15 bits plus a282ead8.
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(slow_masked_crc("123456789"), masked_crc32c("123456789"));
}

TEST(TensorBoard, AFolderThatCannotBe) {
  TempFolder folder;
  write_file_atomically(folder / "file", "x");
  EXPECT_USER_ERROR(EventWriter(folder / "file"), "cannot create the folder");
}

}  // namespace
}  // namespace brrr::io
