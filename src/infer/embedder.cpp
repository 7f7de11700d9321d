#include "infer/embedder.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "data/row_order.h"

namespace brrr::infer {

void run_in_batches(std::span<const EncoderRow> rows, int64_t& batch_size,
                    const std::function<void(std::span<const size_t>)>& f) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  // The longest first: what does not fit is known at once.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].ids.size() > rows[b].ids.size(); });
  for (size_t at = 0; at < order.size();) {
    const auto most = static_cast<size_t>(batch_size);
    const auto chosen = std::span(order).subspan(at, std::min(most, order.size() - at));
    try {
      f(chosen);
    } catch (const UserError& e) {
      // What does not fit the limit goes in halves from here on.
      if (e.code() != ExitCode::kNoMemory || chosen.size() == 1) throw;
      batch_size = std::ssize(chosen) / 2;
      continue;
    }
    at += chosen.size();
  }
}

int64_t padded_length(int64_t tokens, int64_t context) {
  const std::vector<int64_t> lengths = io::padded_lengths(context);
  return *std::lower_bound(lengths.begin(), lengths.end(), tokens);
}

}  // namespace brrr::infer
