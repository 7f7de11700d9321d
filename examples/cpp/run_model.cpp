// Opens an ONNX or .brrr file or a model folder, runs it on ones and prints the shape and the first
// number of each output: run_model FILE
#include <brrr/brrr.h>

#include <algorithm>
#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) return std::fputs("usage: run_model FILE\n", stderr), 2;
  brrr::Module model = brrr::Module::open(argv[1]);
  std::map<std::string, brrr::Tensor> inputs;
  for (const brrr::TensorInfo& info : model.inputs()) {
    std::vector<int64_t> sizes = info.sizes;
    std::replace(sizes.begin(), sizes.end(), int64_t{-1}, int64_t{1});
    brrr::Tensor ones(info.dtype, sizes);
    if (info.dtype == brrr::f32) std::ranges::fill(ones.as<float>(), 1.0f);
    if (info.dtype == brrr::i64) std::ranges::fill(ones.as<int64_t>(), 1);
    if (info.dtype == brrr::i32) std::ranges::fill(ones.as<int32_t>(), 1);
    inputs.emplace(info.name, ones);
  }
  for (const auto& [name, tensor] : model.run(inputs)) {
    std::string shape;
    for (const int64_t size : tensor.sizes())
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    std::printf("%s [%s]", name.c_str(), shape.c_str());
    if (tensor.dtype() == brrr::f32 && tensor.bytes() > 0)
      std::printf(" %g", static_cast<double>(tensor.as<float>()[0]));
    std::printf("\n");
  }
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
