#include "runtime/parameters.h"

#include <vector>

#include "base/parallel.h"

namespace brrr {

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  std::vector<float> wide;
  for (const StateInfo& s : engine.states()) {
    if (s.kind != InputKind::parameter) continue;
    const auto elements = static_cast<size_t>(s.type.shape.elements());
    engine.fill_state(s.name, [&](std::span<std::byte> to) {
      if (s.type.dtype == DType::f32)
        return weights(s.name, {reinterpret_cast<float*>(to.data()), elements});
      wide.resize(elements);
      weights(s.name, wide);
      const auto bytes = static_cast<int64_t>(bytes_of(s.type.dtype));
      parallel_for(s.type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
        store_floats(s.type.dtype, wide.data() + begin, to.data() + begin * bytes, end - begin);
      });
    });
  }
}

}  // namespace brrr
