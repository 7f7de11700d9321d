#include "folders/gguf/gguf_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/errors.h"
#include "base/threads/parallel.h"
#include "folders/gguf/gguf_config.h"
#include "folders/gguf/gguf_names.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr std::string_view kRopeFrequencies = "rope_freqs.weight";  // read with the configuration

/// A tensor of the file and what has to be undone to get the model's weight.
struct GgufWeight {
  const GgufTensor* from = nullptr;
  GgufChange change = GgufChange::none;
  int64_t heads = 0;  // number of heads whose rows are permuted; 0: rows are in order
};

/// The dtype of a type that holds plain floats.
std::optional<DType> dtype_of(const BlockType& type) {
  const std::string_view name = type.name;
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  return std::nullopt;
}

void transpose(std::span<const float> from, int64_t rows, int64_t columns, std::span<float> to) {
  constexpr int64_t kTile = 32;
  parallel_for((columns + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = tile * kTile; c < std::min(columns, (tile + 1) * kTile); ++c)
          to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * columns + c)];
  });
}

class GgufWeights final : public WeightSource {
 public:
  explicit GgufWeights(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {
    const GgufArchitecture& architecture = gguf_architecture(*file_);
    for (const GgufTensor& t : file_->tensors())
      if (t.name != kRopeFrequencies) add(t, translated(architecture, t.name));
  }

  const std::string& what() const override { return file_->what(); }
  const TensorView* find(std::string_view name) const override {
    const auto at = views_.find(name);
    return at == views_.end() ? nullptr : &at->second;
  }
  void each(const std::function<void(const TensorView&)>& see) const override {
    for (const auto& [name, view] : views_) see(view);
  }
  void let_go(std::span<const std::byte> bytes) const override { file_->let_go(bytes); }

  void read(const TensorView& tensor, std::span<std::byte> to) const override {
    if (!tensor.bytes.empty() || to.empty()) {
      WeightSource::read(tensor, to);
      return;
    }
    const auto at = weights_.find(tensor.name);
    if (at != weights_.end() && tensor.storage.is_blocks()) {
      order_rows(at->second, to);
      file_->let_go(at->second.from->bytes);
      return;
    }
    BRRR_CHECK(at != weights_.end() && to.size() % sizeof(float) == 0,
               "nothing makes the tensor {}", tensor.name);
    make(at->second, {reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)});
    file_->let_go(at->second.from->bytes);
  }

 private:
  void add(const GgufTensor& t, const TranslatedName& translated) {
    if (translated.name.empty())
      user_error("{}: the tensor {} is not one of a model of the architecture {}", what(),
                 in_quotes(t.name), gguf_architecture(*file_).name);
    if (!t.type->is_read())
      user_error("{}: the tensor {} has the type {}, which is not read; types that are: {}", what(),
                 in_quotes(t.name), t.type->name, names_of_read_types());
    GgufWeight weight{&t, translated.change};
    if (const char* const key = heads_key(weight.change); key != nullptr)
      weight.heads = heads_of(t, weight.change, key);
    TensorView view{translated.name, DType::f32, t.shape, {}, {}};
    if (weight.change == GgufChange::transposed) {
      if (t.shape.rank() != 2)
        user_error("{}: the tensor {} must be a matrix; it has the shape {}", what(),
                   in_quotes(t.name), t.shape.str());
      view.shape = Shape({t.shape[1], t.shape[0]});
    }
    if (const auto dtype = dtype_of(*t.type); dtype) {
      if (weight.change == GgufChange::none) {
        view.dtype = *dtype;
        view.bytes = t.bytes;
      }
    } else if (keeps_blocks(weight)) {
      view.storage = {Layout::blocks, {}, static_cast<uint8_t>(t.type->id)};
      if (weight.heads == 0) view.bytes = t.bytes;
    }
    weights_.emplace(view.name, weight);
    views_.emplace(view.name, view);
  }

  /// Whether the tensor is passed on in blocks: its rows are the model's, perhaps permuted, and
  /// consist of whole blocks. Permuted rows are copied when they are read, by a function that fills
  /// a span of floats (WeightList), so their size must be a multiple of a float's.
  static bool keeps_blocks(const GgufWeight& w) {
    const GgufTensor& t = *w.from;
    return (w.change == GgufChange::none || w.heads > 0) && t.shape.rank() == 2 &&
           t.shape.size(1) % t.type->elements == 0 &&
           (w.heads == 0 || t.bytes.size() % sizeof(float) == 0);
  }

  static const char* heads_key(GgufChange change) {
    if (change == GgufChange::query_pairs || change == GgufChange::kinds_first)
      return "attention.head_count";
    return change == GgufChange::key_pairs ? "attention.head_count_kv" : nullptr;
  }

  int64_t heads_of(const GgufTensor& t, GgufChange change, const char* key) const {
    const std::string prefix = std::string(gguf_architecture(*file_).name) + ".";
    const std::optional<int64_t> heads = file_->integer(prefix + key);
    const int64_t count =
        heads ? *heads : file_->integer(prefix + "attention.head_count").value_or(0);
    const int64_t parts = change == GgufChange::kinds_first ? 3 : 2;
    // Checked before it is multiplied: the file may say anything.
    const int64_t rows = t.shape.rank() == 0 ? 0 : t.shape.size(0);
    if (count < 1 || count > rows || rows % count != 0 || rows / count % parts != 0)
      user_error("{}: the tensor {} of shape {} does not hold {} heads ({}{})", what(),
                 in_quotes(t.name), t.shape.str(), count, prefix, key);
    return count;
  }

  /// Copies the rows of a tensor in blocks to `to`, in the order that the model expects.
  static void order_rows(const GgufWeight& w, std::span<std::byte> to) {
    const int64_t rows = w.from->shape.size(0), row_bytes = rows == 0 ? 0 : std::ssize(to) / rows;
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(to.data() + row * row_bytes,
                  w.from->bytes.data() + gguf_row(w.change, w.heads, row, rows) * row_bytes,
                  static_cast<size_t>(row_bytes));
  }

  static void make(const GgufWeight& w, std::span<float> out) {
    const GgufTensor& t = *w.from;
    if (w.change == GgufChange::transposed) {
      std::vector<float> stored(out.size());
      dequantise(*t.type, t.bytes, stored);
      return transpose(stored, t.shape.size(0), t.shape.size(1), out);
    }
    if (w.heads == 0) {
      dequantise(*t.type, t.bytes, out);
      if (w.change == GgufChange::one_added)
        for (float& value : out) value -= 1;
      return;
    }
    const int64_t rows = t.shape.size(0), columns = t.shape.elements() / std::max<int64_t>(rows, 1);
    const int64_t blocks = columns / t.type->elements;
    if (blocks * t.type->elements != columns) return make_vector(w, rows, out);
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        t.type->dequantise(
            t.bytes.data() + gguf_row(w.change, w.heads, row, rows) * blocks * t.type->bytes,
            blocks, out.data() + row * columns);
    });
  }

  /// A vector in blocks: its "rows" are single numbers.
  static void make_vector(const GgufWeight& w, int64_t rows, std::span<float> out) {
    std::vector<float> stored(out.size());
    dequantise(*w.from->type, w.from->bytes, stored);
    for (int64_t row = 0; row < rows; ++row)
      out[static_cast<size_t>(row)] =
          stored[static_cast<size_t>(gguf_row(w.change, w.heads, row, rows))];
  }

  std::shared_ptr<const GgufFile> file_;
  std::map<std::string, GgufWeight, std::less<>> weights_;
  std::map<std::string, TensorView, std::less<>> views_;
};

}  // namespace

std::shared_ptr<const WeightSource> gguf_weights(std::shared_ptr<const GgufFile> file) {
  return std::make_shared<const GgufWeights>(std::move(file));
}

}  // namespace brrr::io
