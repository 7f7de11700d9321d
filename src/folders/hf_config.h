#pragma once
// GPT-2 in Hugging Face's form: config.json both ways, and the names, shapes and order of its
// tensors. What is written here loads with GPT2LMHeadModel.from_pretrained; what that saves loads
// here. Weights of Linear layers are Conv1D weights there: [in, out].

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "formats/safetensors.h"
#include "models/gpt2/gpt2_config.h"

namespace brrr::io {

/// Reads the text of a config.json; `what` names it in errors. Keys that GPT-2 does not need are
/// ignored. Throws UserError for another model type, a missing or mistyped key, a value outside the
/// sane range, and for variants of GPT-2 that compute something else.
models::Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what);
models::Gpt2Config read_gpt2_config(const fs::path& path);

/// The text of a config.json with every key that transformers needs.
std::string gpt2_config_json(const models::Gpt2Config& config, DType stored = DType::f32);

struct ExpectedTensor {
  std::string name;  // "transformer.h.0.attn.c_attn.weight"
  Shape shape;
};

/// The tensors of a GPT-2 in the order of Hugging Face's state dict, under the names it writes. A
/// tied head has no tensor of its own.
std::vector<ExpectedTensor> expected_tensors(const models::Gpt2Config& config);

/// The tensors of `file` by their expected names. The prefix "transformer." may be missing in the
/// file; attention masks and heads other than lm_head are ignored, and so is an lm_head equal to
/// the embedding it is tied to. Throws UserError for the first tensor that is missing, has another
/// shape or is not of floats, and for weights that the configuration does not know (a deeper model,
/// say).
std::map<std::string, TensorView> match_tensors(const SafetensorsFile& file,
                                                const models::Gpt2Config& config);

/// Writes model.safetensors and config.json into an existing folder. `tensors` are exactly the
/// expected ones, in any order.
void write_hf_gpt2(const fs::path& folder, const models::Gpt2Config& config,
                   std::span<const TensorView> tensors);

}  // namespace brrr::io
