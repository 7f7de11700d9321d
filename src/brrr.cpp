// The library's face (include/brrr/brrr.h).

#include "brrr/brrr.h"

#include "backend/cpu/target.h"
#include "modules/open_module.h"
#include "runtime/runnable_session.h"

namespace brrr {

struct Model::State {
  State(const std::filesystem::path& path, const RunnableOptions& how)
      : session(modules::open_module(path), cpu::cpu_backend(), how) {}
  RunnableSession session;
};

namespace {

std::vector<TensorInfo> infos(const std::vector<Port>& ports) {
  std::vector<TensorInfo> list;
  for (const Port& port : ports) {
    TensorInfo info{port.name, port.dtype, {}, port.has_shape, port.is_optional};
    for (const PortDim& d : port.dims) info.sizes.push_back(d.size);
    list.push_back(std::move(info));
  }
  return list;
}

}  // namespace

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::filesystem::path& path) { return open(path, Options()); }

Model Model::open(const std::filesystem::path& path, const Options& options) {
  RunnableOptions how;
  how.passes = for_inference(options.precision);
  return Model(std::make_unique<State>(path, how));
}

std::vector<TensorInfo> Model::inputs() const { return infos(state_->session.runnable().inputs()); }
std::vector<TensorInfo> Model::outputs() const {
  return infos(state_->session.runnable().outputs());
}

std::map<std::string, Tensor> Model::run(const std::map<std::string, Tensor>& inputs,
                                         const std::vector<std::string>& outputs) {
  PortValues given;
  for (const auto& [name, tensor] : inputs) given.emplace(name, tensor);
  std::map<std::string, Tensor> results;
  for (auto& [name, value] : state_->session.run(given, outputs)) {
    value.tensor();  // a list has no place here
    results.emplace(name, std::move(value.tensors[0]));
  }
  return results;
}

}  // namespace brrr
