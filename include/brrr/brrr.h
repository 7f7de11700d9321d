#pragma once
// Brrr as a library: opening a model and running it.
//
//     brrr::Model model = brrr::Model::open("model.onnx");
//     auto outputs = model.run({{"x", brrr::Tensor::of<float>({1, 3}, {1, 2, 3})}});
//     float first = outputs.at("y").as<float>()[0];
//
// What goes wrong is thrown as brrr::UserError, whose what() is one line that names the file, the
// input and the way out. A Model is used by one thread at a time; it computes with as many threads
// as OMP_NUM_THREADS says.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/host_tensor.h"

namespace brrr {

using Tensor = HostTensor;

/// What a model declares of an input or an output.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  /// Sizes; -1 where any size goes. Nothing is known of the shape where has_shape is false.
  std::vector<int64_t> sizes;
  bool has_shape = false;
  bool is_optional = false;
};

class Model {
 public:
  struct Options {
    DType precision = DType::f32;  // bf16 and f16: weights and products in 16 bits
  };
  /// Opens an ONNX file or a .brrr file. Weights stay in the file, which must not change.
  static Model open(const std::filesystem::path& path);
  static Model open(const std::filesystem::path& path, const Options& options);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  std::vector<TensorInfo> inputs() const;
  std::vector<TensorInfo> outputs() const;
  /// Computes all outputs, or those that are named. The first run with inputs of new shapes
  /// compiles a program for them, which takes milliseconds; the programs are kept.
  std::map<std::string, Tensor> run(const std::map<std::string, Tensor>& inputs,
                                    const std::vector<std::string>& outputs = {});

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace brrr
