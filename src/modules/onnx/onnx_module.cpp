#include "modules/onnx/onnx_module.h"

#include <mutex>

#include "base/errors.h"
#include "modules/onnx/call.h"
#include "modules/onnx/lowering.h"

namespace brrr::onnx {
namespace {

using modules::Port;

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

class OnnxModule final : public modules::Module {
 public:
  explicit OnnxModule(std::shared_ptr<const File> file) : file_(std::move(file)) {
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

  modules::Lowered lower(const modules::Request& request) const override {
    return Lowering(
               *file_, request, [this](std::string_view name) { return weight(name); },
               [this](const std::string& name, const TensorProto& tensor) {
                 const std::lock_guard lock(mutex_);
                 weights_.emplace(name, tensor.bytes);
               })
        .run();
  }

  std::span<const std::byte> weight(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    const auto at = weights_.find(name);
    BRRR_CHECK(at != weights_.end(), "there is no weight '{}'", name);
    return at->second;
  }

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
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::span<const std::byte>, std::less<>> weights_;
};

}  // namespace

std::shared_ptr<const modules::Module> open_module(std::shared_ptr<const File> file) {
  return std::make_shared<OnnxModule>(std::move(file));
}

std::shared_ptr<const modules::Module> open_module(const fs::path& path) {
  return open_module(File::load(path));
}

}  // namespace brrr::onnx
