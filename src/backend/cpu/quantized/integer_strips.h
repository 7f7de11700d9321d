#pragma once
// Chooses the strip kernel of a product of integers and divides the product among threads.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/quantized/integer_kernels.h"
#include "base/integers.h"
#include "base/threads/parallel.h"

namespace brrr::cpu {

/// A strip kernel and where it runs.
struct StripEntry {
  std::string_view kernel, exact_kernel;  // names in the kernel list
  /// Returns why this processor cannot run the kernel for so many rows; empty if it can.
  std::string (*refusal)(const IntegerPanels& form, int64_t rows);
  StripKernel (*strips)();
};
/// Returns all strip kernels, fastest first; the last accepts every product.
std::span<const StripEntry> strip_entries();
/// Returns the fastest strip kernel available on this processor.
StripKernel best_strips(const IntegerPanels& form, int64_t rows);

/// Maximum number of columns of a block.
inline constexpr int64_t kMostBlockPanels = 8, kBlockColumns = kMostBlockPanels * kPanelColumns;

/// Rows and panels that are multiplied together: one strip, at most kMostBlockPanels panels.
struct IntegerBlock {
  int64_t row = 0, rows = 0, panel = 0, panels = 0;
};

/// Calls f(block) for all blocks of a product on the thread team. The panels of a block stay in the
/// L2 cache of a thread for several strips, and a strip of rows stays in its L1 cache for all
/// panels of a block. With few rows, reading the panels is the bottleneck, so a task takes long
/// contiguous runs of them.
template <typename F>
void for_each_block(int64_t rows, const IntegerPanels& form, int64_t strip_rows, F f) {
  constexpr int64_t kTaskRows = 192, kBlockBytes = int64_t{1} << 19;
  if (rows == 0 || form.n == 0) return;
  const int64_t panels = form.panels(), panel_bytes = std::max<int64_t>(1, form.panel_bytes());
  const int64_t block_panels = std::clamp<int64_t>(kBlockBytes / panel_bytes, 1, kMostBlockPanels);
  const int64_t row_tasks = ceil_div(rows, kTaskRows);
  const int64_t task_rows = round_up(ceil_div(rows, row_tasks), strip_rows);
  const int64_t tasks_for_threads = std::max<int64_t>(1, 3 * thread_count() / row_tasks);
  const int64_t task_panels =
      rows <= strip_rows ? streamed_columns(panels, 1, panel_bytes, thread_count())
                         : std::clamp<int64_t>(panels / tasks_for_threads, 1, block_panels);
  parallel_chunks(row_tasks * ceil_div(panels, task_panels), [&](int64_t task) {
    const int64_t first_row = task % row_tasks * task_rows;
    const int64_t last_row = std::min(rows, first_row + task_rows);
    const int64_t first_panel = task / row_tasks * task_panels;
    const int64_t last_panel = std::min(panels, first_panel + task_panels);
    for (int64_t p = first_panel; p < last_panel; p += block_panels)
      for (int64_t row = first_row; row < last_row; row += strip_rows)
        f(IntegerBlock{row, std::min(strip_rows, last_row - row), p,
                       std::min(block_panels, last_panel - p)});
  });
}

}  // namespace brrr::cpu
