#include "ops/panels.h"

#include <algorithm>

#include "base/errors.h"
#include "ops/support.h"

namespace brrr {
void place_matrix(std::span<const double> matrix, int64_t rows, int64_t columns, bool transpose,
                  std::span<double> panels) {
  std::fill(panels.begin(), panels.end(), 0.0);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t at = transpose ? place_in_panels(j, i, columns) : place_in_panels(i, j, rows);
      panels[static_cast<size_t>(at)] = matrix[static_cast<size_t>(i * columns + j)];
    }
}

std::string panels_state(const Panels& panels) {
  if (!panels.rows) return "panels:" + panels.parameter;
  return fmt::format("panels^T:{}:{}", *panels.rows, panels.parameter);
}

Attrs attributes_of(const Panels& panels) {
  Attrs attrs{{"of", panels.parameter}};
  if (panels.rows) attrs.set("rows", *panels.rows);
  return attrs;
}

std::optional<Panels> panels_in(const Attrs& input) {
  if (input.get<std::string>("kind") != name_of(Role::panels)) return std::nullopt;
  Panels panels{input.get<std::string>("of"), std::nullopt};
  if (input.find("rows") != nullptr) panels.rows = input.get<int64_t>("rows");
  return panels;
}

namespace ops {

std::vector<OpDef> panel_ops() {
  OpDef d;
  d.name = "panels";
  d.derives_weights = d.makes_panels = true;
  d.doc =
      "y = x: [R, C] in bf16 or f16, or its transpose where {transpose}, in panels "
      "(ops/panels.h): a right operand of products";
  d.op_class = OpClass::movement;
  d.no_gradient = "it is for copies of parameters";
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    const Shape& x = c.in[0].shape;
    const DType dtype = c.in[0].dtype;
    if (x.rank() != 2 || (dtype != DType::bf16 && dtype != DType::f16))
      c.fail("x must be [R, C] of bf16 or f16; got {}", c.in[0].str());
    const bool transpose = c.attr<bool>("transpose");
    return std::vector<Type>{
        {dtype, panels_shape(x.size(transpose ? 1 : 0), x.size(transpose ? 0 : 1))}};
  };
  d.evaluate = [](const EvalContext& c) {
    const RefTensor& x = *c.in[0];
    place_matrix(x.data, x.type.shape.size(0), x.type.shape.size(1),
                 c.node.attrs.get<bool>("transpose"), c.out[0].data);
  };
  d.cost = [](const Node& n, std::span<const Type> in) { return streaming_cost(n, in, 0); };
  d.samples = [] {
    std::vector<Sample> out;
    for (const auto& [shape, transpose] : {std::pair(Shape{64, 96}, false),
                                           {{64, 96}, true},
                                           {{96, 65}, false},
                                           {{50, 161}, true},
                                           {{33, 1}, false},
                                           {{1, 32}, true}})
      for (const DType dtype : {DType::bf16, DType::f16})
        out.push_back({{tensor(shape, -1, 1, dtype)}, {{"transpose", transpose}}});
    return out;
  };
  std::vector<OpDef> list;
  list.push_back(std::move(d));
  return list;
}

}  // namespace ops

}  // namespace brrr
