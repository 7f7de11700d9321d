// The types of elements that ONNX knows: their names, and the dtypes that hold them.

#include "base/errors.h"
#include "formats/onnx/onnx_file.h"

namespace brrr::onnx {

std::string name_of(ElementType type) {
  constexpr const char* kNames[] = {
      "UNDEFINED",      "FLOAT",    "UINT8",        "INT8",           "UINT16",
      "INT16",          "INT32",    "INT64",        "STRING",         "BOOL",
      "FLOAT16",        "DOUBLE",   "UINT32",       "UINT64",         "COMPLEX64",
      "COMPLEX128",     "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
      "FLOAT8E5M2FNUZ", "UINT4",    "INT4",         "FLOAT4E2M1",     "FLOAT8E8M0",
      "UINT2",          "INT2"};
  const auto number = static_cast<int32_t>(type);
  if (number < 0 || number >= static_cast<int32_t>(std::size(kNames)))
    return fmt::format("data type {}", number);
  return kNames[number];
}

namespace {

constexpr std::pair<ElementType, DType> kTypes[] = {{ElementType::f32, DType::f32},
                                                    {ElementType::u8, DType::u8},
                                                    {ElementType::i8, DType::i8},
                                                    {ElementType::u16, DType::u16},
                                                    {ElementType::i16, DType::i16},
                                                    {ElementType::i32, DType::i32},
                                                    {ElementType::i64, DType::i64},
                                                    {ElementType::boolean, DType::boolean},
                                                    {ElementType::f16, DType::f16},
                                                    {ElementType::f64, DType::f64},
                                                    {ElementType::u32, DType::u32},
                                                    {ElementType::u64, DType::u64},
                                                    {ElementType::bf16, DType::bf16},
                                                    {ElementType::f8e4m3fn, DType::f8e4m3},
                                                    {ElementType::f8e5m2, DType::f8e5m2},
                                                    // Each becomes a byte when it is read.
                                                    {ElementType::u4, DType::u8},
                                                    {ElementType::i4, DType::i8},
                                                    {ElementType::u2, DType::u8},
                                                    {ElementType::i2, DType::i8}};

}  // namespace

std::optional<DType> dtype_of(ElementType type) {
  for (const auto& [element, dtype] : kTypes)
    if (element == type) return dtype;
  return std::nullopt;
}

ElementType element_type_of(DType dtype) {
  for (const auto& [element, known] : kTypes)
    if (known == dtype) return element;
  return ElementType::undefined;
}

}  // namespace brrr::onnx
