#include "runtime/parameters.h"

#include <vector>

#include "base/parallel.h"

namespace brrr {

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  std::vector<float> wide;
  for (const StateInfo& s : engine.states()) {
    if (s.kind != InputKind::parameter) continue;
    if (s.type.dtype == DType::f32) {
      weights(s.name, engine.state_f32(s.name));
      continue;
    }
    wide.resize(static_cast<size_t>(s.type.shape.elements()));
    weights(s.name, wide);
    std::byte* to = engine.state_data(s.name);
    const auto bytes = static_cast<int64_t>(bytes_of(s.type.dtype));
    parallel_for(s.type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
      store_floats(s.type.dtype, wide.data() + begin, to + begin * bytes, end - begin);
    });
  }
}

}  // namespace brrr
