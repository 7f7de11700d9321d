#!/usr/bin/env python3
"""Writes src/modules/onnx/operator_arity.h: the fewest operands of every ONNX operator, over all its versions.

Needs the package onnx (1.22). Run it when a newer opset is supported.
"""
import pathlib
import onnx.defs

fewest = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.domain not in ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"):
        continue
    key = (schema.domain, schema.name)
    fewest[key] = min(fewest.get(key, schema.min_input), schema.min_input)
rows = "".join(f'    {{"{domain}", "{name}", {count}}},\n' for (domain, name), count in sorted(fewest.items()) if count)
text = f"""#pragma once
// The fewest operands that each ONNX operator takes in any of its versions. Written by
// scripts/make_onnx_arity.py from ONNX's schemas; operators without a row take none, or are not
// ONNX's.

#include <string_view>

namespace brrr::onnx {{

struct OperatorArity {{
  std::string_view domain, op_type;
  size_t fewest;
}};

inline constexpr OperatorArity kArities[] = {{
{rows}}};

}}  // namespace brrr::onnx
"""
pathlib.Path(__file__).parent.parent.joinpath("src/modules/onnx/operator_arity.h").write_text(text)
