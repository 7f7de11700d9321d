#include "folders/quantized/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {

TensorFinder::TensorFinder(std::shared_ptr<const WeightSource> files) : files_(std::move(files)) {
  files_->each([&](const TensorView& t) { tensors_.emplace(t.name, t); });
  files_->each_foreign([&](const ForeignTensor& t) {
    if (t.dtype == "F8_E4M3")
      tensors_.emplace(t.name, TensorView{t.name, DType::f8e4m3, t.shape, t.bytes});
  });
}

const TensorView* TensorFinder::find(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

void TensorFinder::each_with(
    std::string_view suffix,
    const std::function<void(const std::string&, const TensorView&)>& see) const {
  for (const auto& [name, tensor] : tensors_)
    if (name.ends_with(suffix)) see(name.substr(0, name.size() - suffix.size()), tensor);
}

const TensorView& TensorFinder::part(const std::string& name, const std::string& needed_by) const {
  const TensorView* const tensor = find(name);
  if (tensor == nullptr)
    user_error("{}: the tensor {} is missing; {} needs it. Copy or download the folder again",
               files_->what(), in_quotes(name), in_quotes(needed_by));
  return *tensor;
}

const TensorView& TensorFinder::part(const std::string& name, const std::string& needed_by,
                                     DType dtype, const Shape& shape,
                                     const std::string& why) const {
  const TensorView& tensor = part(name, needed_by);
  if (tensor.dtype != dtype || tensor.shape != shape)
    refuse(name, fmt::format("must be {} {} by {}; the file has {} {}", name_of(dtype), shape.str(),
                             why, name_of(tensor.dtype), tensor.shape.str()));
  return tensor;
}

std::vector<float> TensorFinder::floats(const TensorView& tensor, const Shape& shape,
                                        const std::string& why) const {
  if (!is_float(tensor.dtype) || tensor.shape != shape)
    refuse(tensor.name, fmt::format("must be floats {} by {}; the file has {} {}", shape.str(), why,
                                    name_of(tensor.dtype), tensor.shape.str()));
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  convert(tensor.dtype, tensor.bytes.data(), DType::f32, values.data(), shape.elements());
  for (const float value : values)
    if (!std::isfinite(value))
      refuse(tensor.name, fmt::format("holds the value {}; expected finite numbers. Copy or "
                                      "download the folder again",
                                      value));
  return values;
}

void TensorFinder::check_scales(const TensorView& tensor) const {
  for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
    const double scale = load_as_double(tensor.dtype, tensor.bytes.data(), i);
    if (!(scale >= 0) || !std::isfinite(scale))
      refuse(tensor.name, fmt::format("holds the scale {}; expected positive numbers", scale));
  }
}

void TensorFinder::refuse(const std::string& tensor, const std::string& why) const {
  user_error("{}: the tensor {} {}", files_->what(), in_quotes(tensor), why);
}

bool is_size_of_matrix(int64_t rows, int64_t columns) {
  constexpr int64_t kLargest = (int64_t{1} << 31) - 1;
  return std::min(rows, columns) >= 1 && std::max(rows, columns) <= kLargest;
}

std::string blocks_name(std::string_view weight) { return fmt::format("{}:blocks", weight); }

std::shared_ptr<const WeightSource> with_floats(std::shared_ptr<const WeightSource> files,
                                                QuantizedWeights quantized) {
  std::set<std::string, std::less<>> parts;
  for (const auto& [name, weight] : quantized.weights)
    parts.insert(weight.parts.begin(), weight.parts.end());
  const auto weights =
      std::make_shared<const std::map<std::string, QuantizedWeight>>(std::move(quantized.weights));
  const auto make = [weights](std::string_view name, std::span<float> to) {
    const auto at = weights->find(std::string(name));
    if (at != weights->end()) return at->second.read(to);
    const std::string weight(name.substr(0, name.rfind(':')));
    if (name == blocks_name(weight)) return weights->at(weight).blocks(std::as_writable_bytes(to));
    std::ranges::copy(weights->at(weight).integers->scales(), to.begin());
  };
  const auto make_bytes = [weights, files](std::string_view name, std::span<std::byte> to) {
    const std::string weight(name.substr(0, name.rfind(':')));
    const std::vector<int8_t> integers = weights->at(weight).integers->integers();
    std::ranges::copy(std::as_bytes(std::span(integers)), to.begin());
    for (const std::string& part : weights->at(weight).parts)
      if (const TensorView* const tensor = files->find(part)) files->let_go(tensor->bytes);
  };
  const auto list = std::make_shared<WeightList>(files->what(), files, make, make_bytes);
  for (const auto& [name, w] : *weights) {
    const Shape shape({w.rows, w.columns});
    list->add({name, DType::f32, shape, {}});
    if (w.blocks) list->add({blocks_name(name), DType::f32, shape, {}, w.storage});
    if (!w.integers) continue;
    const IntegerGrid& grid = w.integers->grid;
    list->add({integers_name(name, static_cast<int>(grid.bits)), DType::i8, shape, {}});
    list->add({scales_name(name),
               DType::f32,
               Shape({w.rows, grid.group == 0 ? 1 : w.columns / grid.group}),
               {}});
  }
  files->each([&](const TensorView& t) {
    if (!parts.contains(t.name)) list->add(t);
  });
  return list;
}

}  // namespace brrr::io
