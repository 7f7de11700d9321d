// Opens an ONNX or .brrr file, runs it on ones and prints the shape and the first element of each
// output: run_model FILE
#include <brrr/brrr.h>

#include <algorithm>
#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) return std::fputs("usage: run_model FILE\n", stderr), 2;
  brrr::Model model = brrr::Model::open(argv[1]);
  std::map<std::string, brrr::Tensor> inputs;
  for (const brrr::TensorInfo& info : model.inputs()) {
    std::vector<int64_t> sizes = info.sizes;
    std::replace(sizes.begin(), sizes.end(), int64_t{-1}, int64_t{1});
    inputs.emplace(info.name, brrr::Tensor::filled(info.dtype, sizes, 1));
  }
  for (const auto& [name, tensor] : model.run(inputs))
    std::printf("%s %s %g\n", name.c_str(), tensor.shape.str().c_str(), tensor.number(0));
} catch (const brrr::UserError& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
