#pragma once
// Words of the kernels' language (kernels/device.cuh) for what a graph says: types, numbers, and
// one expression for each element-wise op.

#include <string>
#include <string_view>
#include <vector>

#include "ir/op_def.h"

namespace brrr::cuda {

/// "f32", "bf16", "i64", "b8", ...
std::string_view stored_type(DType t);
/// What an element is worked with as: "float", "double", "int", "i64" or "bool".
std::string_view work_type(DType t);
/// A value of that dtype as a literal of its work type, rounded to the dtype.
std::string literal(DType t, double value);
/// Of 64 bits as base/dtype.h has them.
std::string integer_literal(DType t, uint64_t bits);
/// The value of a `full` node.
std::string literal(const Node& full);
/// Every line of code (not of directives) moved to the right.
std::string indented(const std::string& text, int by);
/// A name of C++ from anything.
std::string identifier(std::string_view name);

/// The expression of an element-wise node (random bits: see dropout_expression) from those of its
/// operands; empty: there is none.
std::string pointwise_expression(const Node& node, DType in, const std::vector<std::string>& args);
bool has_pointwise_expression(const Node& node);
/// x where the drawn 16 bits say so.
std::string dropout_expression(const Node& node, const std::string& x, const std::string& bits);

}  // namespace brrr::cuda
