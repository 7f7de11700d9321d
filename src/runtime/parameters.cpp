#include "runtime/parameters.h"

#include <vector>

#include "base/parallel.h"

namespace brrr {
namespace {

class Loader {
 public:
  using Weights = std::function<void(std::string_view, std::span<float>)>;
  explicit Loader(const Weights& weights) : weights_(weights) {}

  /// Fills `to` with a parameter of the type, which lies in rows.
  void read(std::string_view name, const Type& type, std::span<std::byte> to) {
    const auto elements = static_cast<size_t>(type.shape.elements());
    if (type.dtype == DType::f32)
      return weights_(name, {reinterpret_cast<float*>(to.data()), elements});
    wide_.resize(elements);
    weights_(name, wide_);
    const auto bytes = static_cast<int64_t>(bytes_of(type.dtype));
    parallel_for(type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
      store_floats(type.dtype, wide_.data() + begin, to.data() + begin * bytes, end - begin);
    });
  }

 private:
  const Weights& weights_;
  std::vector<float> wide_;
};

}  // namespace

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  Loader loader(weights);
  std::vector<std::vector<std::byte>> sources;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() == InputKind::parameter)
      engine.fill_state(s.name, [&](std::span<std::byte> to) { loader.read(s.name, s.type, to); });
    const DerivedWeight* derived = engine.stands_for_parameters(s);
    if (derived == nullptr) continue;
    const Graph& form = derived->form.graph();
    sources.resize(derived->sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      const Type& type = form.type({form.inputs()[i], 0});
      sources[i].resize(static_cast<size_t>(type.bytes()));
      loader.read(derived->sources[i], type, sources[i]);
    }
    engine.make_weight(s, sources);
  }
}

}  // namespace brrr
