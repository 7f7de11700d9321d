#pragma once
// Modules: whatever runs by the names of its inputs.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "brrr/tensor.h"

namespace brrr {
inline namespace v1 {

/// What a module declares of an input or an output.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> sizes;  // -1: any size
  bool has_shape = false;      // false: nothing is known of the shape
  bool is_optional = false;
};

class Module {
 public:
  /// Opens a model folder, a name of the Hugging Face Hub, a GGUF, ONNX or .brrr file. Weights stay
  /// in the files, which must not change. Options: precision, device, memory-limit, threads,
  /// disable-pass.
  static Module open(const std::filesystem::path& path, const Options& options = {}) {
    detail::require_library();
    brrr_module* made = nullptr;
    const std::vector<brrr_option> o = detail::to_c(options);
    detail::check(brrr_module_open(path.string().c_str(), o.data(), o.size(), &made));
    return Module(made);
  }

  std::vector<TensorInfo> inputs() const {
    return infos(brrr_module_input_count(handle_.get()), &brrr_module_input);
  }
  std::vector<TensorInfo> outputs() const {
    return infos(brrr_module_output_count(handle_.get()), &brrr_module_output);
  }
  /// Computes all outputs, or those that are named. The first run with inputs of new shapes
  /// compiles a program for them, which takes milliseconds; the programs are kept.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs,
                                    const std::vector<std::string>& wanted = {}) {
    std::vector<const char*> names;
    std::vector<brrr_tensor*> tensors;
    for (const auto& [name, tensor] : inputs) {
      names.push_back(name.c_str());
      tensors.push_back(tensor.handle());
    }
    const std::vector<const char*> outputs = detail::to_c(wanted);
    brrr_tensors* made = nullptr;
    detail::check(brrr_module_run(handle_.get(), names.data(), tensors.data(), names.size(),
                                  outputs.data(), outputs.size(), &made));
    const detail::Handle<brrr_tensors, &brrr_tensors_free> results(made);
    std::map<std::string, Tensor> list;
    for (size_t i = 0; i < brrr_tensors_count(made); ++i) {
      brrr_tensor* tensor = nullptr;
      detail::check(brrr_tensors_get(made, i, &tensor));
      list.emplace(brrr_tensors_name(made, i), Tensor(tensor));
    }
    return list;
  }

  /// Bytes of inputs that were copied since the module was opened. An input is read where it lies,
  /// unless the module runs on another device than the processor, its address is no multiple of an
  /// element's size, or shapes depend on data, so that a run consists of several programs.
  int64_t copied_bytes() const { return brrr_module_copied_bytes(handle_.get()); }

  /// Takes over a handle of the C interface.
  explicit Module(brrr_module* made) : handle_(made) {}

 private:
  using PortOf = brrr_status (*)(const brrr_module*, size_t, brrr_port*);
  std::vector<TensorInfo> infos(size_t count, PortOf port_of) const {
    std::vector<TensorInfo> list;
    for (size_t i = 0; i < count; ++i) {
      brrr_port port{};
      detail::check(port_of(handle_.get(), i, &port));
      list.push_back({port.name,
                      static_cast<DType>(port.dtype),
                      {},
                      port.has_shape != 0,
                      port.is_optional != 0});
      if (port.rank > 0) list.back().sizes.assign(port.sizes, port.sizes + port.rank);
    }
    return list;
  }
  detail::Handle<brrr_module, &brrr_module_free> handle_;
};

}  // namespace v1
}  // namespace brrr
