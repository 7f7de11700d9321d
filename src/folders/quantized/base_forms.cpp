#include "folders/quantized/base_forms.h"

#include "folders/quantized/quantized_weights.h"

namespace brrr::io {
namespace {

/// Transposed panels for integers [out, in] with one scale per row or per group of inputs.
std::optional<BaseForm> integers_of(const WeightSource& weights, const std::string& name) {
  for (const int bits : {8, 4}) {
    const TensorView* const integers = weights.find(integers_name(name, bits));
    if (integers == nullptr) continue;
    const int64_t groups = weights.find(scales_name(name))->shape.size(1);
    const auto group = groups == 1 ? 0 : static_cast<int>(integers->shape.size(1) / groups);
    return BaseForm{Storage{Layout::transposed_panels, {bits, 1, group}}};
  }
  return std::nullopt;
}

}  // namespace

BaseForms forms_of_files(const WeightSource& weights, const ParameterSet* quantized) {
  BaseForms forms;
  weights.each([&](const TensorView& t) {
    if (is_part_of_integers(t.name)) return;
    if (t.storage.is_blocks())
      forms[t.name] = {t.storage};
    else if (const TensorView* const blocks = weights.find(blocks_name(t.name)))
      forms[t.name] = {blocks->storage, blocks->name};
    else if (const auto integers = integers_of(weights, t.name))
      forms[t.name] = *integers;
  });
  if (quantized != nullptr)
    for (const std::string& name : *quantized) forms.try_emplace(name);
  return forms;
}

}  // namespace brrr::io
