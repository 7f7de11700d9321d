#include "formats/safetensors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/rng.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::TempFolder;

template <typename T>
std::span<const std::byte> bytes_of_vector(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// A file image from a header and the number of data bytes.
std::string image(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header +
         std::string(data_bytes, '\1');
}

SafetensorsFile open_image(const std::string& bytes) {
  return SafetensorsFile(std::as_bytes(std::span(bytes)), "x.safetensors");
}

TEST(Safetensors, RoundTripOfEveryDType) {
  TempFolder folder;
  const std::vector<double> storage(6, 1.25);
  std::vector<TensorView> tensors;
  for (const DType t : kAllDTypes)
    if (!is_fp8(t))  // operands of products, made anew in every step
      tensors.push_back({std::string("w.") + std::string(name_of(t)), t, Shape({2, 3}),
                         std::as_bytes(std::span(storage)).first(6 * brrr::bytes_of(t))});
  tensors.push_back({"scalar", f32, Shape(), std::as_bytes(std::span(storage)).first(4)});
  tensors.push_back({"none", f64, Shape({4, 0}), {}});
  write_safetensors(folder / "a.safetensors", tensors,
                    {{"format", "pt"}, {"k\"ey", "gr\xc3\xbc\xc3\x9f"}});

  const SafetensorsFile file(folder / "a.safetensors");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_TRUE(file.foreign().empty());
  EXPECT_EQ(file.metadata().at("k\"ey"), "gr\xc3\xbc\xc3\x9f");
  for (const TensorView& t : tensors) {
    const TensorView& read = file.get(t.name);
    EXPECT_EQ(read.dtype, t.dtype);
    EXPECT_EQ(read.shape, t.shape);
    ASSERT_EQ(read.bytes.size(), t.bytes.size());
    EXPECT_TRUE(std::equal(read.bytes.begin(), read.bytes.end(), t.bytes.begin()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read.bytes.data()) % brrr::bytes_of(t.dtype), 0u)
        << t.name;
  }
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_USER_ERROR(file.get("absent"),
                    fmt::format("there is no tensor 'absent' among its {}", tensors.size()));
}

TEST(Safetensors, SameBytesForAnyOrderAndAlignedData) {
  TempFolder folder;
  const std::vector<float> a(5, 1.0f), b(7, 2.0f);
  const std::vector<int8_t> c(3, 3);
  std::vector<TensorView> tensors = {{"b", f32, Shape({7}), bytes_of_vector(b)},
                                     {"c", i8, Shape({3}), bytes_of_vector(c)},
                                     {"a", f32, Shape({5}), bytes_of_vector(a)}};
  write_safetensors(folder / "1", tensors);
  std::swap(tensors[0], tensors[2]);
  write_safetensors(folder / "2", tensors);
  const std::string bytes = read_file(folder / "1");
  EXPECT_EQ(bytes, read_file(folder / "2"));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ((8 + header) % 64, 0u);
  EXPECT_EQ(bytes.size(), 8 + header + 48 + 3);
  const SafetensorsFile file(folder / "1");
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[2].name, "c");
}

TEST(Safetensors, EmptyFileOfTensors) {
  TempFolder folder;
  write_safetensors(folder / "a", {});
  EXPECT_TRUE(SafetensorsFile(folder / "a").tensors().empty());
}

TEST(Safetensors, ReadsWhatThePythonPackageWrote) {
  const SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) /
                             "tests/golden/safetensors/python.safetensors");
  EXPECT_EQ(file.metadata().at("note"),
            "gr\xc3\xbc\xc3\x9f"
            "e");
  EXPECT_EQ(file.tensors().size(), 12u);
  const double values[] = {0.0, 1.0, -2.5, 65504.0, std::ldexp(1.0, -20), -0.0};
  for (const char* name : {"f64", "f32", "f16", "bf16"}) {
    const TensorView& t = file.get(name);
    EXPECT_EQ(name_of(t.dtype), name);
    std::vector<float> read(6);
    copy_as_f32(t, read);
    for (size_t i = 0; i < 6; ++i) {
      double expected = values[i];
      if (t.dtype == f16) expected = float_from_f16(f16_from_float(static_cast<float>(expected)));
      if (t.dtype == bf16)
        expected = float_from_bf16(bf16_from_float(static_cast<float>(expected)));
      EXPECT_EQ(read[i], static_cast<float>(expected)) << name << " " << i;
      EXPECT_EQ(std::signbit(read[i]), std::signbit(values[i]));
    }
  }
  EXPECT_EQ(file.get("f32").shape, Shape({3, 2}));
  EXPECT_EQ(load_as_double(i64, file.get("i64").bytes.data(), 0), -std::ldexp(1.0, 62));
  EXPECT_EQ(load_as_double(i32, file.get("i32").bytes.data(), 1), 2147483647.0);
  EXPECT_EQ(load_as_double(i8, file.get("i8").bytes.data(), 0), -128.0);
  EXPECT_EQ(load_as_double(u8, file.get("u8").bytes.data(), 1), 255.0);
  EXPECT_EQ(load_as_double(boolean, file.get("bool").bytes.data(), 1), 0.0);
  EXPECT_EQ(file.get("scalar").shape.rank(), 0);
  EXPECT_EQ(file.get("empty").shape, Shape({0, 4}));
  EXPECT_EQ(file.get("\xc3\xbcml\xc3\xa4ut \"quote\"").shape, Shape({1}));
  ASSERT_EQ(file.foreign().size(), 1u);
  EXPECT_EQ(file.foreign()[0].name, "fp8");
  EXPECT_EQ(file.foreign()[0].bytes.size(), 2u);
  EXPECT_USER_ERROR(file.find("fp8"), "tensor 'fp8' has dtype 'F8_E4M3', which is not supported");
}

TEST(Safetensors, CopyAsF32NeedsFloats) {
  const std::vector<int32_t> a(2, 1);
  std::vector<float> out(2);
  EXPECT_USER_ERROR(copy_as_f32({"a", i32, Shape({2}), bytes_of_vector(a)}, out),
                    "tensor 'a' holds i32; expected floating-point weights");
}

struct Broken {
  std::string header;
  size_t data_bytes;
  const char* message;
};

TEST(Safetensors, EveryFaultOfTheHeaderIsNamed) {
  const Broken cases[] = {
      {R"([])", 0, "the header must be a JSON object"},
      {R"({"a":)", 0, "safetensors header: not valid JSON at line 1, column 6"},
      {R"({"a":1})", 0,
       "tensor 'a': expected an object with dtype, shape and data_offsets, found the number 1"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "tensor 'a': 'dtype' is missing"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "'shape' is missing"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "'data_offsets' is missing"},
      {R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype must be a string"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape must be an array"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
       "sizes of 0 or more, found the number -1"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "sizes of 0 or more"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]}})", 4,
       "sizes of 0 or more"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
       "too many elements"},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
       "too many elements"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "dtype F32 and shape [2] need 8 bytes, data_offsets give 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "end before they begin"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
       "data_offsets must be [begin, end]"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3,
       "truncated: tensor 'a' ends at data byte 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
       "the header describes 4 data bytes, the file holds 5"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
       "its bytes begin at 4, expected 0: tensors must follow each other without a gap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "without overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "'a' appears twice"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' must be a string, found the number 1"},
      {R"({"__metadata__":[]})", 0, "__metadata__ must be an object of strings"},
  };
  for (const Broken& c : cases) {
    const std::string bytes = image(c.header, c.data_bytes);
    EXPECT_USER_ERROR(open_image(bytes), c.message);
    EXPECT_USER_ERROR(open_image(bytes), "x.safetensors");
  }
}

TEST(Safetensors, LengthsThatLie) {
  EXPECT_USER_ERROR(open_image(""), "it has 0 bytes");
  EXPECT_USER_ERROR(open_image("1234567"), "it has 7 bytes");
  EXPECT_USER_ERROR(open_image(std::string(8, '\0')), "the header must be a JSON object");
  EXPECT_USER_ERROR(open_image(std::string(8, '\xff')),
                    "asks for a header of 18446744073709551615 bytes");
  std::string bytes = image("{}", 0);
  bytes[0] = 3;
  EXPECT_USER_ERROR(open_image(bytes), "truncated: the header needs 3 bytes, 2 are there");
  EXPECT_USER_ERROR(SafetensorsFile(fs::path("no/such/file")), "cannot read no/such/file");
}

TEST(Safetensors, ForeignDTypesStillObeyTheOffsets) {
  EXPECT_USER_ERROR(
      open_image(image(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,9]}})", 1)),
      "truncated");
  const std::string good = image(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}   )", 1);
  EXPECT_EQ(open_image(good).foreign().size(), 1u);
}

// Every truncation and a walk of single-byte changes: an error or a valid file, never a bad access
// (run under AddressSanitizer this is a small fuzz test).
TEST(Safetensors, TruncationsAndFlippedBytesNeverEscape) {
  const std::string good = image(
      R"({"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
      11);
  for (size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    EXPECT_THROW(open_image(cut), UserError) << n;
  }
  RngStream rng({.seed = 5}, 1);
  int survived = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bad = good;
    for (int k = 0; k < 2; ++k) bad[rng.next_below(bad.size())] = static_cast<char>(rng.next_u32());
    try {
      const SafetensorsFile file = open_image(bad);
      for (const TensorView& t : file.tensors())
        ASSERT_EQ(t.bytes.size(),
                  static_cast<size_t>(t.shape.elements()) * brrr::bytes_of(t.dtype));
      ++survived;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(survived, 100);  // changes of the data bytes alone are not faults of the format
}

TEST(Safetensors, WriterRefusesImpossibleTensors) {
  TempFolder folder;
  const std::vector<float> a(2, 1.0f);
  const TensorView good = {"a", f32, Shape({2}), bytes_of_vector(a)};
  const TensorView twice[] = {good, good};
  EXPECT_THROW(write_safetensors(folder / "x", twice), InternalError);
  const TensorView short_bytes[] = {{"a", f32, Shape({3}), bytes_of_vector(a)}};
  EXPECT_THROW(write_safetensors(folder / "x", short_bytes), InternalError);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_USER_ERROR(write_safetensors(folder / "no/x", std::span(&good, 1)), "cannot write");
}

}  // namespace
}  // namespace brrr::io
