#include "runtime/parameters.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "ops/panels.h"

namespace brrr {
namespace {

/// Writes a parameter [K, N], or a transposed one [rows, K], as panels of `type`.
void store_in_panels(const std::vector<float>& parameter, std::optional<int64_t> rows,
                     const Type& type, std::byte* to) {
  const int64_t room = type.shape.size(0) * kPanelColumns, k = type.shape.size(1) * kPanelTerms;
  const int64_t n = rows.value_or(room);
  const int64_t per_term = rows ? 1 : n, per_column = rows ? k : 1;
  const int64_t elements = k * kPanelColumns;
  parallel_for(type.shape.size(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> panel(static_cast<size_t>(elements));
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kPanelColumns, columns = std::min(kPanelColumns, n - first);
      if (columns < kPanelColumns) std::fill(panel.begin(), panel.end(), 0.0f);
      for (int64_t i = 0; i < k; ++i)
        for (int64_t j = 0; j < columns; ++j)
          panel[static_cast<size_t>(place_in_panels(i, j, k))] =
              parameter[static_cast<size_t>(i * per_term + (first + j) * per_column)];
      store_floats(type.dtype, panel.data(),
                   to + p * elements * static_cast<int64_t>(bytes_of(type.dtype)), elements);
    }
  });
}

}  // namespace

void load_parameters(Engine& engine,
                     const std::function<void(std::string_view, std::span<float>)>& weights) {
  std::vector<float> wide;
  for (const StateInfo& s : engine.states()) {
    if (s.kind() != InputKind::parameter) continue;
    const std::optional<Panels> panels = panels_in(s.attrs);
    const std::string name = panels ? panels->parameter : s.name;
    const bool is_transposed = panels && panels->rows;
    const auto elements =
        static_cast<size_t>(is_transposed ? *panels->rows * s.type.shape.size(1) * kPanelTerms
                                          : s.type.shape.elements());
    engine.fill_state(s.name, [&](std::span<std::byte> to) {
      if (s.type.dtype == DType::f32 && !panels)
        return weights(name, {reinterpret_cast<float*>(to.data()), elements});
      wide.resize(elements);
      weights(name, wide);
      if (panels) return store_in_panels(wide, panels->rows, s.type, to.data());
      const auto bytes = static_cast<int64_t>(bytes_of(s.type.dtype));
      parallel_for(s.type.shape.elements(), 1 << 16, [&](int64_t begin, int64_t end) {
        store_floats(s.type.dtype, wide.data() + begin, to.data() + begin * bytes, end - begin);
      });
    });
  }
}

}  // namespace brrr
