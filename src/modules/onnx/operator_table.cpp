// The list of all operators.

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "modules/onnx/call.h"
#include "modules/onnx/operator_arity.h"
#include "modules/onnx/operator_ranks.h"

namespace brrr::onnx {
namespace {

using Rows = std::vector<const OperatorRow*>;

const std::unordered_map<std::string, Rows>& table() {
  static const std::unordered_map<std::string, Rows> all = [] {
    std::unordered_map<std::string, Rows> map;
    for (auto* rows : {arithmetic_operators,     attention_operators,  contraction_operators,
                       control_operators,        indexing_operators,   learning_operators,
                       loss_operators,           microsoft_operators,  movement_operators,
                       quantised_lstm_operators, quantised_operators,  recurrent_operators,
                       reduction_operators,      resampling_operators, sampling_operators,
                       selection_operators,      sequence_operators,   signal_operators,
                       spatial_norm_operators,   spatial_operators})
      for (const OperatorRow& row : rows())
        map[fmt::format("{}.{}", row.domain, row.op_type)].push_back(&row);
    for (auto& [name, rows] : map)
      std::ranges::sort(rows, {}, [](const OperatorRow* row) { return row->since; });
    return map;
  }();
  return all;
}

}  // namespace

const OperatorRow* find_operator(std::string_view domain, std::string_view op_type,
                                 int64_t version) {
  const auto at = table().find(fmt::format("{}.{}", domain, op_type));
  if (at == table().end()) return nullptr;
  const OperatorRow* best = nullptr;
  for (const OperatorRow* row : at->second)
    if (row->since <= version) best = row;
  return best;
}

std::vector<const OperatorRow*> all_operators() {
  std::vector<const OperatorRow*> all;
  for (const auto& [name, rows] : table()) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

size_t fewest_operands(std::string_view domain, std::string_view op_type) {
  const auto name = [](const OperatorArity& row) { return std::pair(row.domain, row.op_type); };
  static_assert(std::ranges::is_sorted(kArities, {}, name));
  const auto at = std::ranges::lower_bound(kArities, std::pair(domain, op_type), {}, name);
  return at == std::end(kArities) || name(*at) != std::pair(domain, op_type) ? 0 : at->fewest;
}

std::string rank_problem(std::string_view domain, std::string_view op_type, size_t operand,
                         int rank) {
  const auto key = [](const OperandRank& row) {
    return std::tuple(row.domain, row.op_type, row.operand);
  };
  static_assert(std::ranges::is_sorted(kOperandRanks, {}, key));
  const auto wanted = std::tuple(domain, op_type, operand);
  const auto at = std::ranges::lower_bound(kOperandRanks, wanted, {}, key);
  if (at == std::end(kOperandRanks) || key(*at) != wanted) return "";
  if (rank >= at->fewest && rank <= at->most) return "";
  if (at->fewest == at->most)
    return fmt::format("must have {} ax{}s", at->fewest, at->fewest == 1 ? "i" : "e");
  return at->most == kAnyRank ? fmt::format("must have at least {} axes", at->fewest)
                              : fmt::format("must have {} to {} axes", at->fewest, at->most);
}

}  // namespace brrr::onnx
