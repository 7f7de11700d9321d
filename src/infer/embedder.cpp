#include "infer/embedder.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "data/row_order.h"

namespace brrr::infer {

namespace {

/// Returns the number of rows, at least one, and of tokens of the next batch.
std::pair<size_t, int64_t> next_batch(std::span<const EncoderRow> rows,
                                      std::span<const size_t> order, const BatchLimits& limits,
                                      const std::function<int64_t(int64_t longest)>& padded) {
  const int64_t longest = std::ssize(rows[order[0]].ids);
  const int64_t each = padded ? padded(longest) : 0;
  int64_t tokens = 0, places = 0;
  size_t count = 0;
  for (; count < order.size(); ++count) {
    const EncoderRow& row = rows[order[count]];
    const int64_t more = padded ? each : std::ssize(row.ids);
    const bool is_full = tokens + more > limits.tokens ||
                         places + std::ssize(row.places) > limits.places ||
                         (limits.rows > 0 && std::ssize(order.first(count)) == limits.rows);
    if (count > 0 && is_full) break;
    tokens += more;
    places += std::ssize(row.places);
  }
  return {count, tokens};
}

}  // namespace

void run_in_batches(std::span<const EncoderRow> rows, BatchLimits& limits,
                    const std::function<int64_t(int64_t longest)>& padded,
                    const std::function<void(std::span<const size_t>)>& f) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  // The longest first: what does not fit into memory is known at once.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].ids.size() > rows[b].ids.size(); });
  for (auto left = std::span<const size_t>(order); !left.empty();) {
    const auto [count, tokens] = next_batch(rows, left, limits, padded);
    try {
      f(left.first(count));
    } catch (const UserError& e) {
      if (e.code() != ExitCode::kNoMemory || count == 1) throw;
      limits.tokens = tokens / 2;
      limits.places = std::max<int64_t>(1, limits.places / 2);
      continue;
    }
    left = left.subspan(count);
  }
}

int64_t padded_length(int64_t tokens, int64_t context) {
  const std::vector<int64_t> lengths = io::padded_lengths(context);
  return *std::lower_bound(lengths.begin(), lengths.end(), tokens);
}

}  // namespace brrr::infer
