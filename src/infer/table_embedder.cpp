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
  if (!is_float(view.dtype))
    user_error("{}: the tensor {} is {}; expected floating-point numbers", files.what(), view.name,
               name_of(view.dtype));
  std::vector<float> values(static_cast<size_t>(view.shape.elements()));
  read_as(files, view, DType::f32, std::as_writable_bytes(std::span(values)));
  return values;
}

/// "mapping": several tokens may share a row of a model2vec table.
std::vector<int32_t> read_mapping(const io::WeightFiles& files, int64_t rows) {
  const io::TensorView& mapping = tensor_of(files, "mapping", 1);
  if (is_float(mapping.dtype))
    user_error("{}: the tensor mapping is {}; expected integers", files.what(),
               name_of(mapping.dtype));
  std::vector<int32_t> row_of(static_cast<size_t>(mapping.shape.elements()));
  for (size_t token = 0; token < row_of.size(); ++token) {
    const double row =
        load_as_double(mapping.dtype, mapping.bytes.data(), static_cast<int64_t>(token));
    if (row < 0 || row >= static_cast<double>(rows))
      user_error("{}: mapping names the row {} of {}", files.what(), row, rows);
    row_of[token] = static_cast<int32_t>(row);
  }
  return row_of;
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
  table_ = read_all(files, rows);
  if (!is_folded) return;
  if (files.find("mapping") != nullptr) row_of_ = read_mapping(files, rows.shape.size(0));
  if (files.find("weights") != nullptr) {
    factors_ = read_all(files, tensor_of(files, "weights", 1));
    if (std::ssize(factors_) != vocabulary())
      user_error("{}: weights has {} numbers for {} tokens", files.what(), factors_.size(),
                 vocabulary());
  }
}

int64_t TableEmbedder::width() const { return columns_ * std::ssize(task_.pooling); }

int64_t TableEmbedder::vocabulary() const {
  return row_of_.empty() ? std::ssize(table_) / columns_ : std::ssize(row_of_);
}

void TableEmbedder::read_row(int32_t id, std::vector<float>& row) const {
  const auto token = static_cast<size_t>(id), columns = static_cast<size_t>(columns_);
  const size_t at = (row_of_.empty() ? token : static_cast<size_t>(row_of_[token])) * columns;
  row.assign(table_.begin() + static_cast<ptrdiff_t>(at),
             table_.begin() + static_cast<ptrdiff_t>(at + columns));
  if (factors_.empty()) return;
  for (float& x : row) x *= factors_[token];
}

/// In f64: the order of the tokens changes nothing that is seen.
std::vector<double> TableEmbedder::pooled(std::span<const int32_t> ids,
                                          models::Pooling pooling) const {
  const auto columns = static_cast<size_t>(columns_);
  std::vector<double> sum(columns);
  if (ids.empty()) return sum;
  std::vector<float> numbers;
  if (pooling == models::Pooling::cls || pooling == models::Pooling::last_token) {
    read_row(pooling == models::Pooling::cls ? ids.front() : ids.back(), numbers);
    std::ranges::copy(numbers, sum.begin());
    return sum;
  }
  if (pooling == models::Pooling::max) {
    read_row(ids[0], numbers);
    std::ranges::copy(numbers, sum.begin());
  }
  double weights = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const double weight =
        pooling == models::Pooling::weighted_mean ? static_cast<double>(t + 1) : 1.0;
    weights += weight;
    read_row(ids[t], numbers);
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
