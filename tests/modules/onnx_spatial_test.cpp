// Operators with spatial axes where ONNX's own suite has no case: old opsets, results that reach
// further than any window, and what is refused.

#include <gtest/gtest.h>

#include "backend/reference/interpreter.h"
#include "modules/onnx/onnx_module.h"
#include "support/protobuf_writer.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

std::string attribute(std::string_view name, const std::vector<int64_t>& integers) {
  std::string text = test::bytes_field(1, name) + test::varint_field(20, 7);
  for (const int64_t i : integers) text += test::varint_field(8, static_cast<uint64_t>(i));
  return test::bytes_field(5, text);
}
std::string attribute(std::string_view name, int64_t integer) {
  return test::bytes_field(5, test::bytes_field(1, name) + test::varint_field(20, 2) +
                                  test::varint_field(3, static_cast<uint64_t>(integer)));
}
std::string attribute(std::string_view name, std::string_view text) {
  return test::bytes_field(
      5, test::bytes_field(1, name) + test::varint_field(20, 3) + test::bytes_field(4, text));
}

/// A file of one node, whose operands are f32 inputs x0, x1, ... and whose result is y.
std::string file_of(std::string_view op, uint64_t opset, const Shapes& shapes,
                    const std::string& attributes) {
  std::string node, inputs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = fmt::format("x{}", i);
    node += test::bytes_field(1, name);
    std::string dims;
    for (const int64_t size : shapes[i])
      dims += test::bytes_field(1, test::varint_field(1, static_cast<uint64_t>(size)));
    const std::string type = test::varint_field(1, 1) + test::bytes_field(2, dims);
    inputs += test::bytes_field(
        11, test::bytes_field(1, name) + test::bytes_field(2, test::bytes_field(1, type)));
  }
  node += test::bytes_field(2, "y") + test::bytes_field(4, op) + attributes;
  const std::string type = test::bytes_field(1, test::varint_field(1, 1));
  const std::string output =
      test::bytes_field(12, test::bytes_field(1, "y") + test::bytes_field(2, type));
  return test::varint_field(1, 8) + test::bytes_field(8, test::varint_field(2, opset)) +
         test::bytes_field(7, test::bytes_field(1, node) + inputs + output);
}

/// What the file makes of operands that count from 1; those in `known` are known when it is
/// lowered.
RefTensor result_of(const std::string& file, const Shapes& shapes,
                    const std::map<std::string, std::vector<double>>& known = {}) {
  const auto module = onnx::open_module(onnx::File::parse(file, "file"));
  GraphRequest request;
  request.wanted = {"y"};
  reference::Tensors in;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::string name = fmt::format("x{}", i);
    const Type type{DType::f32, Shape(shapes[i])};
    if (const auto at = known.find(name); at != known.end()) {
      request.known[name] = RefTensor(type, at->second);
      continue;
    }
    request.data[name] = type;
    RefTensor x(type);
    for (size_t k = 0; k < x.size(); ++k) x.set_number(k, static_cast<double>(k + 1));
    in[name] = x;
  }
  return reference::evaluate(module->lower(request).graph, in).at("y");
}

std::vector<double> numbers_of(const std::string& op, uint64_t opset, const Shapes& shapes,
                               const std::string& attributes,
                               const std::map<std::string, std::vector<double>>& known = {}) {
  return result_of(file_of(op, opset, shapes, attributes), shapes, known).data;
}

std::string refusal_of(const std::string& op, uint64_t opset, const Shapes& shapes,
                       const std::string& attributes) {
  return test::user_error_of([&] { result_of(file_of(op, opset, shapes, attributes), shapes); });
}

using Numbers = std::vector<double>;

TEST(OnnxSpatial, ATransposedConvolutionReachesBeyondItsWindows) {
  const Shapes shapes{{1, 1, 2}, {1, 1, 2}};
  // Windows of 1 and 2 times [1, 2], three apart.
  const std::string strides = attribute("strides", std::vector<int64_t>{3});
  EXPECT_EQ(numbers_of("ConvTranspose", 11, shapes, strides), (Numbers{1, 2, 0, 2, 4}));
  EXPECT_EQ(numbers_of("ConvTranspose", 11, shapes,
                       strides + attribute("output_padding", std::vector<int64_t>{2})),
            (Numbers{1, 2, 0, 2, 4, 0, 0}));
  EXPECT_EQ(numbers_of("ConvTranspose", 11, shapes,
                       strides + attribute("output_shape", std::vector<int64_t>{9})),
            (Numbers{1, 2, 0, 2, 4, 0, 0, 0, 0}));
  EXPECT_EQ(numbers_of("ConvTranspose", 11, shapes,
                       strides + attribute("pads", std::vector<int64_t>{1, 1})),
            (Numbers{2, 0, 2}));
}

TEST(OnnxSpatial, ResizeBeforeOpset11TakesTheElementBehindWhereItShrinks) {
  const Shapes shapes{{1, 1, 1, 4}, {4}};
  EXPECT_EQ(numbers_of("Resize", 10, shapes, "", {{"x1", {1, 1, 1, 0.6}}}), (Numbers{1, 3}));
  EXPECT_EQ(numbers_of("Upsample", 9, shapes, "", {{"x1", {1, 1, 1, 1.5}}}),
            (Numbers{1, 1, 2, 3, 3, 4}));
  EXPECT_EQ(numbers_of("Upsample", 9, shapes, attribute("mode", "linear"), {{"x1", {1, 1, 1, 2}}}),
            (Numbers{1, 1.5, 2, 2.5, 3, 3.5, 4, 4}));
}

TEST(OnnxSpatial, GroupsHadParametersBeforeOpset21) {
  // Four channels of one element in two groups: each group is [-1, 1], nearly.
  const Shapes shapes{{1, 4, 1}, {2}, {2}};
  const Numbers y =
      numbers_of("GroupNormalization", 18, shapes, attribute("num_groups", int64_t{2}));
  const double one = 1 / std::sqrt(1 + 1e-5 / 0.25);
  const Numbers wanted{1 - one, 1 + one, 2 - 2 * one, 2 + 2 * one};
  ASSERT_EQ(y.size(), wanted.size());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-6);
}

TEST(OnnxSpatial, APoolWithoutAWindowIsEmpty) {
  const Shapes x{{1, 2, 3, 4}};
  const auto pool = [&](const char* op, std::vector<int64_t> kernel, int64_t ceil) {
    const std::string attributes = attribute("kernel_shape", std::move(kernel)) +
                                   attribute("strides", std::vector<int64_t>{2, 2}) +
                                   attribute("ceil_mode", ceil);
    return result_of(file_of(op, 19, x, attributes), x).type.shape;
  };
  // floor((3 - 5) / 2) + 1 and ceil((3 - 6) / 2) + 1 are 0, floor((3 - 6) / 2) + 1 is below.
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
    EXPECT_EQ(pool(op, {5, 2}, 0), (Shape{1, 2, 0, 2})) << op;
    EXPECT_EQ(pool(op, {6, 2}, 1), (Shape{1, 2, 0, 2})) << op;
    EXPECT_EQ(pool(op, {4, 2}, 1), (Shape{1, 2, 1, 2})) << op;
    EXPECT_EQ(refusal_of(op, 19, x,
                         attribute("kernel_shape", std::vector<int64_t>{6, 2}) +
                             attribute("strides", std::vector<int64_t>{2, 2})),
              fmt::format("file: {} 'y': a kernel of 6 does not fit spatial axis 0 of 3", op));
  }
}

TEST(OnnxSpatial, GlobalPoolsOfNothingAreWhatReductionsOfNothingAre) {
  const Shapes x{{1, 1, 2, 0}};
  EXPECT_EQ(numbers_of("GlobalMaxPool", 11, x, ""),
            (Numbers{-std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(numbers_of("GlobalLpPool", 11, x, ""), (Numbers{0}));
  EXPECT_TRUE(std::isnan(numbers_of("GlobalAveragePool", 11, x, "").at(0)));
}

TEST(OnnxSpatial, SaysWhatDoesNotFit) {
  const auto ints = [](const char* name, std::vector<int64_t> list) {
    return attribute(name, list);
  };
  const Shapes image{{1, 1, 4}, {1, 1, 3}}, pool{{1, 1, 4}};
  EXPECT_EQ(refusal_of("Conv", 11, image, ints("strides", {1, 1})),
            "file: Conv 'y': 'strides' has 2 numbers instead of 1");
  EXPECT_EQ(refusal_of("Conv", 11, image, ints("dilations", {2})),
            "file: Conv 'y': a kernel of 3 does not fit spatial axis 0 of 4");
  EXPECT_EQ(refusal_of("Conv", 11, image, ints("pads", {-1, 0})),
            "file: Conv 'y': 'pads' must be at least 0 and below 2^31; got -1");
  EXPECT_EQ(refusal_of("Conv", 11, image, attribute("auto_pad", "SAME")),
            "file: Conv 'y': auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID; got SAME");
  EXPECT_EQ(refusal_of("Conv", 11, image, ints("kernel_shape", {2})),
            "file: Conv 'y': kernel_shape is not that of the weights f32[1,1,3]");
  EXPECT_EQ(refusal_of("MaxPool", 12, pool, ""),
            "file: MaxPool 'y': needs the attribute 'kernel_shape'");
  EXPECT_EQ(refusal_of("ImageDecoder", 20, pool, ""),
            "file: ImageDecoder 'y': not supported: image files are not decoded; give the graph "
            "their pixels");
}

}  // namespace
}  // namespace brrr
