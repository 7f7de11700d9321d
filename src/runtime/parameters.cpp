#include "runtime/parameters.h"

#include <algorithm>
#include <map>
#include <vector>

namespace brrr {
namespace {

class Loader {
 public:
  using Weights = std::function<void(std::string_view, std::span<float>)>;
  explicit Loader(const Weights& weights) : weights_(weights) {}

  /// Fills `to` with a parameter of the type, which lies in rows.
  void read(std::string_view name, const Type& type, std::span<std::byte> to) const {
    const auto elements = static_cast<size_t>(type.shape.elements());
    if (type.dtype == DType::f32)
      return weights_(name, {reinterpret_cast<float*>(to.data()), elements});
    std::vector<float> wide(elements);
    weights_(name, wide);
    convert(DType::f32, wide.data(), type.dtype, to.data(), type.shape.elements());
  }

 private:
  const Weights& weights_;
};

}  // namespace

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  const Loader loader(weights);
  for (const StateInfo& s : engine.states()) {
    if (s.kind() == InputKind::parameter)
      engine.fill_state(s.name, [&](std::span<std::byte> to) { loader.read(s.name, s.type, to); });
    if (engine.stands_for_parameters(s) == nullptr) continue;
    // One at a time, so that the sources of no other weight take memory.
    engine.make_weights(std::span(&s, 1),
                        {[&](const std::string& source, const Type& type, std::span<std::byte> to) {
                          loader.read(source, type, to);
                        }});
  }
}

int64_t loading_bytes(const Engine& engine) {
  const auto wide = [](const Type& type) {
    return type.dtype == DType::f32 ? 0 : type.shape.elements() * int64_t{sizeof(float)};
  };
  int64_t most = 0;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() == InputKind::parameter) most = std::max(most, wide(s.type));
    const DerivedWeight* derived = engine.stands_for_parameters(s);
    if (derived == nullptr) continue;
    const Graph& form = derived->form.graph();
    std::map<std::string_view, int64_t> sources;
    int64_t widest = 0;
    for (size_t i = 0; i < derived->sources.size(); ++i) {
      const Type& type = form.type({form.inputs()[i], 0});
      sources[derived->sources[i]] = type.bytes();
      widest = std::max(widest, wide(type));
    }
    int64_t bytes = std::max(widest, s.type.bytes());  // steps between the sources and the weight
    for (const auto& [name, source] : sources) bytes += source;
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace brrr
