#include "infer/table_embedder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "folders/weights.h"

namespace brrr::infer {
namespace {

const io::TensorView& tensor_of(const io::WeightFiles& files, const char* name, int rank) {
  const io::TensorView* const view = files.find(name);
  if (view == nullptr) user_error("{}: the tensor {} is missing", files.what(), name);
  if (view->shape.rank() != rank || view->shape.elements() == 0)
    user_error("{}: the tensor {} is {}; expected {} with at least one element", files.what(), name,
               view->shape.str(), rank == 2 ? "[tokens, numbers]" : "[tokens]");
  return *view;
}

std::vector<float> read_all(const io::WeightFiles& files, const io::TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.shape.elements()));
  files.read(view, values);
  return values;
}

/// model2vec's tables may have a row for several tokens, and a factor for each token.
std::vector<float> unfolded(const io::WeightFiles& files, const io::TensorView& rows) {
  std::vector<float> table = read_all(files, rows);
  const auto columns = static_cast<size_t>(rows.shape.size(1));
  if (files.find("mapping") != nullptr) {
    const io::TensorView& mapping = tensor_of(files, "mapping", 1);
    if (is_float(mapping.dtype))
      user_error("{}: the tensor mapping is {}; expected integers", files.what(),
                 name_of(mapping.dtype));
    std::vector<float> mapped;
    for (int64_t token = 0; token < mapping.shape.elements(); ++token) {
      const double row = load_as_double(mapping.dtype, mapping.bytes.data(), token);
      if (row < 0 || row >= static_cast<double>(rows.shape.size(0)))
        user_error("{}: mapping names the row {} of {}", files.what(), row, rows.shape.size(0));
      const auto first = table.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row) * columns);
      mapped.insert(mapped.end(), first, first + static_cast<ptrdiff_t>(columns));
    }
    table = std::move(mapped);
  }
  if (files.find("weights") != nullptr) {
    const std::vector<float> factors = read_all(files, tensor_of(files, "weights", 1));
    if (factors.size() * columns != table.size())
      user_error("{}: weights has {} numbers for {} tokens", files.what(), factors.size(),
                 table.size() / columns);
    for (size_t i = 0; i < table.size(); ++i) table[i] *= factors[i / columns];
  }
  return table;
}

}  // namespace

TableEmbedder::TableEmbedder(const io::SentenceTable& table, models::Task task)
    : task_(std::move(task)) {
  const io::WeightFiles files(table.folder);
  const char* const name = table.kind == io::SentenceTable::Kind::word_embeddings
                               ? "emb_layer.weight"
                               : "embedding.weight";
  const bool is_folded = table.kind == io::SentenceTable::Kind::static_embedding &&
                         files.find(name) == nullptr && files.find("embeddings") != nullptr;
  const io::TensorView& rows = tensor_of(files, is_folded ? "embeddings" : name, 2);
  columns_ = rows.shape.size(1);
  table_ = is_folded ? unfolded(files, rows) : read_all(files, rows);
}

int64_t TableEmbedder::width() const { return columns_ * std::ssize(task_.pooling); }

int64_t TableEmbedder::vocabulary() const { return std::ssize(table_) / columns_; }

/// In f64: the order of the tokens changes nothing that is seen.
std::vector<double> TableEmbedder::pooled(std::span<const int32_t> ids,
                                          models::Pooling pooling) const {
  const auto columns = static_cast<size_t>(columns_);
  std::vector<double> sum(columns);
  if (ids.empty()) return sum;
  const auto row = [&](int32_t id) {
    return std::span(table_).subspan(static_cast<size_t>(id) * columns, columns);
  };
  if (pooling == models::Pooling::cls || pooling == models::Pooling::last_token) {
    std::ranges::copy(row(pooling == models::Pooling::cls ? ids.front() : ids.back()), sum.begin());
    return sum;
  }
  if (pooling == models::Pooling::max) std::ranges::copy(row(ids[0]), sum.begin());
  double weights = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const double weight =
        pooling == models::Pooling::weighted_mean ? static_cast<double>(t + 1) : 1.0;
    weights += weight;
    const std::span<const float> numbers = row(ids[t]);
    for (size_t i = 0; i < columns; ++i) {
      const auto x = static_cast<double>(numbers[i]);
      sum[i] = pooling == models::Pooling::max ? std::max(sum[i], x) : sum[i] + weight * x;
    }
  }
  if (pooling == models::Pooling::max) return sum;
  if (pooling == models::Pooling::mean_sqrt_len) weights = std::sqrt(weights);
  for (double& x : sum) x /= weights;
  return sum;
}

void TableEmbedder::run(std::span<const EncoderRow> rows, const OnRow& on_row) {
  std::vector<float> vector;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const int32_t id : rows[i].ids)
      if (id < 0 || id >= vocabulary())
        user_error("token {} lies outside the vocabulary of {}", id, vocabulary());
    vector.clear();
    for (const models::Pooling pooling : task_.pooling)
      for (const double x : pooled(rows[i].ids, pooling)) vector.push_back(static_cast<float>(x));
    if (task_.normalize) {
      double squares = 0;
      for (const float x : vector) squares += static_cast<double>(x) * static_cast<double>(x);
      const double length = std::max(std::sqrt(squares), 1e-12);
      for (float& x : vector) x = static_cast<float>(static_cast<double>(x) / length);
    }
    on_row(i, vector);
  }
}

}  // namespace brrr::infer
