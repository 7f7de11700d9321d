#pragma once
// The columns of a convolution: for each window, what its taps read, so that a product of matrices
// is what is left. A matrix of columns has a row for each channel and tap, and a column for each
// window of some rows of windows (along the last axis).

#include <cstdint>

#include "base/dtype.h"
#include "ops/spatial/windows.h"

namespace brrr::cpu {

/// Rows of windows: all axes but the last.
int64_t window_row_count(const ops::WindowGrid& grid);
/// Whether windows are elements: columns are x itself.
bool is_pointwise(const ops::WindowGrid& grid);

/// Rows [k_begin, k_end) of the columns of the windows in rows [first, last). x: [channels, in...],
/// columns: [channels taps, (last - first) out] of elements of as many bytes, 2 or 4.
void gather_columns(const ops::WindowGrid& grid, size_t element_bytes, const void* x,
                    int64_t k_begin, int64_t k_end, int64_t first, int64_t last, void* columns);
/// The columns of all windows as rows: [windows, channels taps].
void gather_windows(const ops::WindowGrid& grid, size_t element_bytes, const void* x,
                    int64_t channels, void* rows);
/// Adds all columns of one channel, [taps, windows], to its elements x, [in...].
void add_columns(const ops::WindowGrid& grid, const float* columns, float* x);

}  // namespace brrr::cpu
