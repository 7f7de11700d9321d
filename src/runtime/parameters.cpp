#include "runtime/parameters.h"

#include <vector>

#include "base/parallel.h"
#include "ops/panels.h"

namespace brrr {
namespace {

/// A matrix [K, N] as panels of `shape`.
std::vector<float> in_panels(const std::vector<float>& matrix, const Shape& shape) {
  const int64_t n = shape.size(0) * kPanelColumns, k = shape.size(1) * kPanelTerms;
  std::vector<float> panels(matrix.size());
  parallel_for(shape.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = begin * kPanelColumns; j < end * kPanelColumns; ++j)
        panels[static_cast<size_t>(place_in_panels(i, j, k))] =
            matrix[static_cast<size_t>(i * n + j)];
  });
  return panels;
}

}  // namespace

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  std::vector<float> wide;
  for (const StateInfo& s : engine.states()) {
    if (s.kind != InputKind::parameter) continue;
    const auto elements = static_cast<size_t>(s.type.shape.elements());
    const bool panels = s.name.starts_with(kPanelsPrefix);
    const std::string name =
        panels ? s.name.substr(std::string_view(kPanelsPrefix).size()) : s.name;
    engine.fill_state(s.name, [&](std::span<std::byte> to) {
      if (s.type.dtype == DType::f32 && !panels)
        return weights(name, {reinterpret_cast<float*>(to.data()), elements});
      wide.resize(elements);
      weights(name, wide);
      if (panels) wide = in_panels(wide, s.type.shape);
      const auto bytes = static_cast<int64_t>(bytes_of(s.type.dtype));
      parallel_for(s.type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
        store_floats(s.type.dtype, wide.data() + begin, to.data() + begin * bytes, end - begin);
      });
    });
  }
}

}  // namespace brrr
