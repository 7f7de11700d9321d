#include "modules/onnx/onnx_module.h"

#include <mutex>

#include "base/errors.h"
#include "modules/onnx/call.h"
#include "modules/onnx/lowering.h"

namespace brrr::onnx {
namespace {

std::string type_text(const ValueType& type) {
  switch (type.kind) {
    case ValueKind::tensor: {
      const std::optional<DType> dtype = dtype_of(type.element);
      return dtype ? std::string(brrr::name_of(*dtype)) : onnx::name_of(type.element);
    }
    case ValueKind::sequence:
      return "sequence of " + (type.of ? type_text(*type.of) : "?");
    case ValueKind::optional:
      return "optional " + (type.of ? type_text(*type.of) : "?");
    case ValueKind::map:
      return "map";
    case ValueKind::sparse:
      return "sparse tensor";
    case ValueKind::none:
      break;
  }
  return "?";
}

Port port_of(const ValueInfo& info) {
  Port port;
  port.name = info.name;
  port.type = type_text(info.type);
  port.is_tensor = info.type.kind == ValueKind::tensor || info.type.kind == ValueKind::none;
  port.is_optional = info.type.kind == ValueKind::optional;
  if (const std::optional<DType> dtype = dtype_of(info.type.element)) port.dtype = *dtype;
  if (info.type.shape) {
    port.has_shape = true;
    for (const Dimension& d : *info.type.shape)
      port.dims.push_back({d.size.value_or(-1), std::string(d.name)});
  }
  return port;
}

/// The weights that graphs of the file have named so far.
class OnnxWeights final : public WeightSource {
 public:
  explicit OnnxWeights(std::shared_ptr<const File> file) : file_(std::move(file)) {}
  void add(const std::string& name, const TensorProto& tensor) {
    const std::lock_guard lock(mutex_);
    tensors_.try_emplace(
        name, TensorView{name, *dtype_of(tensor.type), Shape(tensor.dims), tensor.bytes});
  }
  std::span<const std::byte> bytes(std::string_view name) const {
    const TensorView* const tensor = find(name);
    BRRR_CHECK(tensor != nullptr, "there is no weight '{}'", name);
    return tensor->bytes;
  }
  const std::string& what() const override { return file_->what(); }
  const TensorView* find(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : &at->second;
  }
  void each(const std::function<void(const TensorView&)>& see) const override {
    std::vector<const TensorView*> views;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, tensor] : tensors_) views.push_back(&tensor);
    }
    for (const TensorView* view : views) see(*view);
  }

 private:
  std::shared_ptr<const File> file_;
  mutable std::mutex mutex_;
  std::map<std::string, TensorView, std::less<>> tensors_;  // grows; its views do not move
};

class OnnxModule final : public Runnable {
 public:
  explicit OnnxModule(std::shared_ptr<const File> file)
      : file_(std::move(file)), weights_(std::make_shared<OnnxWeights>(file_)) {
    const auto opset = file_->opsets.find("");
    if (opset != file_->opsets.end() && opset->second > kNewestOpset)
      throw Unsupported(
          fmt::format("{}: it needs version {} of ONNX's operators; known are those "
                      "to {}; export it with an older opset",
                      file_->what(), opset->second, kNewestOpset));
    std::map<std::string_view, const TensorProto*> initial;
    for (const TensorProto& t : file_->graph.initializers) {
      if (!initial.emplace(t.name, &t).second)
        user_error("{}: two constants are named '{}'", file_->what(), t.name);
    }
    for (const ValueInfo& info : file_->graph.inputs) {
      const bool has_value = initial.contains(info.name);
      // Before IR version 4 every constant was also listed as an input.
      if (has_value && file_->ir_version < 4) continue;
      inputs_.push_back(port_of(info));
      inputs_.back().is_optional |= has_value;
    }
    for (const ValueInfo& info : file_->graph.outputs) outputs_.push_back(port_of(info));
  }

  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  LoweredGraph lower(const GraphRequest& request) const override {
    return Lowering(
               *file_, request, [this](std::string_view name) { return weights_->bytes(name); },
               [this](const std::string& name, const TensorProto& tensor) {
                 weights_->add(name, tensor);
               })
        .run();
  }
  std::shared_ptr<const WeightSource> weights() const override { return weights_; }

  std::string summary() const override {
    std::string text = "ONNX";
    for (const auto& [domain, version] : file_->opsets)
      text += domain.empty() ? fmt::format(", opset {}", version)
                             : fmt::format(", {} {}", domain, version);
    if (!file_->producer.empty())
      text += fmt::format(", by {} {}", file_->producer, file_->producer_version);
    return text;
  }
  uint64_t file_bytes() const override { return file_->bytes(); }

 private:
  std::shared_ptr<const File> file_;
  std::vector<Port> inputs_, outputs_;
  std::shared_ptr<OnnxWeights> weights_;
};

}  // namespace

std::shared_ptr<const Runnable> open_module(std::shared_ptr<const File> file) {
  return std::make_shared<OnnxModule>(std::move(file));
}

std::shared_ptr<const Runnable> open_module(const fs::path& path) {
  return open_module(File::load(path));
}

}  // namespace brrr::onnx
