#include "formats/protobuf.h"

#include "support/protobuf_writer.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::bytes_field;
using test::number_field;
using test::varint_field;

TEST(Protobuf, ReadsFieldsInTheirOrder) {
  const std::string bytes = varint_field(1, 300) + bytes_field(2, "text") + number_field(3, -1.5f) +
                            varint_field(4, ~uint64_t{0}) + "\x29" + std::string(8, '\1') +
                            varint_field(536870911, 1);
  const std::string where = "f";
  ProtobufReader message(bytes, where);
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.field(), 1u);
  EXPECT_EQ(message.varint(), 300u);
  EXPECT_TRUE(message.flag());
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.bytes(), "text");
  EXPECT_USER_ERROR(message.varint(), "f: the field 2 (at byte 3) is bytes; expected a varint");
  EXPECT_USER_ERROR(message.number(), "expected a 32-bit number");
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.number(), -1.5f);
  EXPECT_USER_ERROR(message.bytes(), "is a 32-bit number; expected bytes");
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.integer(), -1);
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.field(), 5u);
  EXPECT_USER_ERROR(message.varint(), "is a 64-bit number; expected a varint");
  ASSERT_TRUE(message.next());
  EXPECT_EQ(message.field(), 536870911u);
  EXPECT_FALSE(message.next());
}

TEST(Protobuf, RefusesWhatIsNoMessage) {
  const auto read = [](const std::string& bytes) {
    const std::string where = "f";
    ProtobufReader message(bytes, where);
    while (message.next()) {
    }
  };
  EXPECT_USER_ERROR(read("\x08"), "f: the message ends inside the field at byte 0");
  EXPECT_USER_ERROR(read("\x0a\x05"
                         "ab"),
                    "f: the field 1 (at byte 0) has 5 bytes, but the message ends after 2");
  EXPECT_USER_ERROR(read("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
                    "the message ends after 0");
  EXPECT_USER_ERROR(read(std::string("\x08") + std::string(11, '\xff')),
                    "a number of more than 10 bytes in the field at byte 0");
  EXPECT_USER_ERROR(read(std::string("\0\0", 2)), "a field has the number 0 (at byte 0)");
  EXPECT_USER_ERROR(read("\x0b"),
                    "the field 1 (at byte 0) has an encoding that protocol buffers do not use (3)");
  EXPECT_USER_ERROR(read("\x0d"
                         "abc"),
                    "has 4 bytes, but the message ends after 3");
}

}  // namespace
}  // namespace brrr::io
