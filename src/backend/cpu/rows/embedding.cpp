// embedding: copies of rows, or of pairs of numbers where the table lies in panels for the product
// that reads it, too; integers in panels become floats. embedding_grad: ids are sorted by counting,
// so each row of the table is written once, by one thread, as the sum of its gradients in the order
// of their positions.

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention/attention_rows.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/simd/row_support.h"
#include "backend/cpu/updates/optimizer_rows.h"
#include "base/blocks/block_types.h"
#include "base/integer_panels.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

template <typename Id>
void check_ids(const char* op, const Id* ids, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= rows)
      user_error("[{}] id {} at position {} lies outside the table of {} rows", op, ids[i], i,
                 rows);
}

template <typename Id>
class EmbeddingKernel final : public Kernel {
 public:
  explicit EmbeddingKernel(const NodeView& node)
      : count_(node.in[1].shape.elements()),
        panels_(!node.in[0].storage.is_plain()),
        rows_(node.in[0].shape.size(0)),
        element_bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        row_bytes_(node.out()[0].shape.size(-1) * element_bytes_) {}

  void run(const KernelArgs& args) override {
    const Id* ids = static_cast<const Id*>(args.in[1]);
    check_ids("embedding", ids, count_, rows_);
    const auto* table = static_cast<const std::byte*>(args.in[0]);
    auto* y = static_cast<std::byte*>(args.out[0]);
    parallel_for(count_, row_grain(row_bytes_, kByteGrain), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (panels_)
          copy_from_panels(table, int64_t{ids[i]}, y + i * row_bytes_);
        else
          copy_run(y + i * row_bytes_, table + int64_t{ids[i]} * row_bytes_, row_bytes_);
      }
    });
  }

 private:
  /// In panels of f32 the terms of a column lie a panel's width apart; in those of 16 bits terms 2
  /// i and 2 i + 1 lie side by side, and 16 columns further is the next pair.
  void copy_from_panels(const std::byte* table, int64_t row, std::byte* y) const {
    constexpr int64_t kPair = 4, kPairs = kPanelTerms / 2;  // bytes: a float or two of 16 bits
    const int64_t width = row_bytes_ / element_bytes_;
    if (element_bytes_ == int64_t{sizeof(float)}) {
      const std::byte* from = table + kPair * place_in_f32_panels(0, row, width);
      for (int64_t k = 0; k < width; ++k)
        std::memcpy(y + k * kPair, from + k * kPanelColumns * kPair, kPair);
      return;
    }
    for (int64_t k = 0; k < width; k += kPanelTerms) {
      const std::byte* from = table + 2 * place_in_panels(k, row, width);
      for (int64_t pair = 0; pair < kPairs; ++pair, y += kPair)
        std::memcpy(y, from + pair * 2 * kPanelPair, kPair);
    }
  }

  int64_t count_;
  bool panels_;
  int64_t rows_, element_bytes_, row_bytes_;
};

constexpr int64_t kConverted = 256;  // numbers converted at once: a multiple of every block size

/// Reads a table of quantised integers in the panels of the product that multiplies by it.
class PanelRows {
 public:
  explicit PanelRows(const Type& table)
      : panels_{table.shape.size(1), table.shape.size(0), table.storage.quantized.bits,
                table.storage.quantized.group} {}

  void read(const std::byte* table, int64_t row, int64_t first, int64_t count, float* out) const {
    for (int64_t i = 0; i < count; ++i) out[i] = element(table, first + i, row);
  }

 private:
  float element(const std::byte* table, int64_t term, int64_t row) const {
    const auto byte = static_cast<int>(table[panels_.place(term, row)]);
    const int stored = panels_.bits == 8 ? byte : panels_.is_high(term) ? byte >> 4 : byte & 15;
    float scale;
    std::memcpy(&scale,
                table + panels_.integer_bytes() +
                    panels_.scale_place(term, row) * static_cast<int64_t>(sizeof(float)),
                sizeof(scale));
    return scale * static_cast<float>(stored - panels_.offset());
  }

  IntegerPanels panels_;
};

/// Reads a table in the blocks of a GGUF file.
class BlockRows {
 public:
  explicit BlockRows(const Type& table)
      : type_(block_type_of(table.storage)), blocks_(table.shape.size(1) / type_.elements) {}

  /// `first` is a multiple of kConverted.
  void read(const std::byte* table, int64_t row, int64_t first, int64_t count, float* out) const {
    type_.dequantise(table + (row * blocks_ + first / type_.elements) * type_.bytes,
                     count / type_.elements, out);
  }

 private:
  const BlockType& type_;
  int64_t blocks_;  // in a row
};

/// Gathers rows of a table that does not hold floats; `Rows` converts a part of a row to f32.
template <typename Id, class Rows>
class ConvertedEmbeddingKernel final : public Kernel {
 public:
  explicit ConvertedEmbeddingKernel(const NodeView& node)
      : count_(node.in[1].shape.elements()),
        rows_(node.in[0].shape.size(0)),
        width_(node.in[0].shape.size(1)),
        dtype_(node.in[0].dtype),
        table_(node.in[0]) {}

  void run(const KernelArgs& args) override {
    const Id* ids = static_cast<const Id*>(args.in[1]);
    check_ids("embedding", ids, count_, rows_);
    const auto* table = static_cast<const std::byte*>(args.in[0]);
    auto* y = static_cast<std::byte*>(args.out[0]);
    const auto bytes = static_cast<int64_t>(bytes_of(dtype_));
    const RowCopies& copies = row_copies(dtype_);
    parallel_for(count_, row_grain(width_ * bytes, kByteGrain), [&](int64_t begin, int64_t end) {
      float values[kConverted];
      for (int64_t i = begin; i < end; ++i)
        for (int64_t k = 0; k < width_; k += kConverted) {
          const int64_t n = std::min(kConverted, width_ - k);
          table_.read(table, int64_t{ids[i]}, k, n, values);
          copies.narrow(values, n, n, 1, y + (i * width_ + k) * bytes, n);
        }
    });
  }

 private:
  int64_t count_, rows_, width_;
  DType dtype_;
  Rows table_;
};
template <typename Id>
using PanelEmbeddingKernel = ConvertedEmbeddingKernel<Id, PanelRows>;
template <typename Id>
using BlockEmbeddingKernel = ConvertedEmbeddingKernel<Id, BlockRows>;

template <typename Id>
class EmbeddingGradKernel final : public Kernel {
 public:
  explicit EmbeddingGradKernel(const NodeView& node)
      : count_(node.in[1].shape.elements()),
        rows_(node.out()[0].shape.size(0)),
        width_(node.out()[0].shape.size(1)),
        add_(optimizer_rows().add_to) {}

  /// starts: [rows + 1], order: [count].
  int64_t scratch_bytes() const override {
    return (rows_ + 1 + count_) * static_cast<int64_t>(sizeof(int64_t));
  }

  void run(const KernelArgs& args) override {
    const Id* ids = static_cast<const Id*>(args.in[1]);
    check_ids("embedding_grad", ids, count_, rows_);
    auto* starts = reinterpret_cast<int64_t*>(args.scratch);
    int64_t* order = starts + rows_ + 1;
    // After the sums starts[v + 1] is where row v begins; filling moves it to where it ends.
    std::fill_n(starts, rows_ + 1, int64_t{0});
    for (int64_t i = 0; i < count_; ++i) ++starts[int64_t{ids[i]} + 1];
    int64_t before = 0;
    for (int64_t v = 0; v < rows_; ++v) {
      const int64_t here = starts[v + 1];
      starts[v + 1] = before;
      before += here;
    }
    for (int64_t i = 0; i < count_; ++i) order[starts[int64_t{ids[i]} + 1]++] = i;

    const auto* dy = static_cast<const float*>(args.in[0]);
    auto* table = static_cast<float*>(args.out[0]);
    // A part: some rows of the table times a block of columns; a small table (characters) has few
    // rows with many gradients each, so its columns are split as well.
    const int64_t block = rows_ < 1024 ? kColumnBlock : std::max<int64_t>(1, width_);
    const int64_t blocks = (width_ + block - 1) / block;
    const int64_t size = std::max<int64_t>(1, (rows_ + kParts - 1) / kParts);
    const int64_t parts = (rows_ + size - 1) / size * blocks;
    auto part = [&](int64_t p) {
      const int64_t first = p / blocks * size, last = std::min(rows_, first + size);
      const int64_t column = p % blocks * block, n = std::min(block, width_ - column);
      for (int64_t v = first; v < last; ++v) {
        float* row = table + v * width_ + column;
        const int64_t begin = v == 0 ? 0 : starts[v], end = starts[v + 1];
        if (begin == end) {
          std::memset(row, 0, static_cast<size_t>(n) * sizeof(float));
          continue;
        }
        std::memcpy(row, dy + order[begin] * width_ + column,
                    static_cast<size_t>(n) * sizeof(float));
        for (int64_t i = begin + 1; i < end; ++i) add_(dy + order[i] * width_ + column, row, n);
      }
    };
    if ((rows_ + count_) * width_ < kSingleThread) {
      for (int64_t p = 0; p < parts; ++p) part(p);
    } else {
      parallel_chunks(parts, part);
    }
  }

 private:
  static constexpr int64_t kSingleThread = 32768, kColumnBlock = 64, kParts = 64;
  int64_t count_, rows_, width_;
  decltype(OptimizerRows::add_to) add_;
};

template <template <typename> class KernelOf>
std::unique_ptr<Kernel> prepare(const NodeView& node) {
  if (node.in[1].dtype == DType::i64) return std::make_unique<KernelOf<int64_t>>(node);
  return std::make_unique<KernelOf<int32_t>>(node);
}

}  // namespace

std::vector<KernelEntry> embedding_kernels() {
  return {{Op::embedding, "copies",
           [](const NodeView& node) -> std::string {
             const Type& table = node.in[0];
             if (table.storage.is_plain()) return "";
             if (table.storage != Storage{Layout::transposed_panels})
               return fmt::format("a table in {}", table.storage.str());
             return table.dtype == DType::f32 || table.shape.size(1) % kPanelTerms == 0
                        ? ""
                        : "rows that are not whole panels";
           },
           prepare<EmbeddingKernel>, kKnowsStorage, kFirstOperand},
          {Op::embedding, "integers",
           [](const NodeView& node) -> std::string {
             const Type& table = node.in[0];
             if (!table.storage.is_quantized() || table.storage.layout != Layout::transposed_panels)
               return "no table of integers in panels";
             return table.dtype == DType::f64 ? "dtype f64" : "";
           },
           prepare<PanelEmbeddingKernel>, kKnowsStorage},
          {Op::embedding, "blocks",
           [](const NodeView& node) -> std::string {
             if (!node.in[0].storage.is_blocks()) return "no table in blocks";
             return node.in[0].dtype == DType::f64 ? "dtype f64" : "";
           },
           prepare<BlockEmbeddingKernel>, kKnowsStorage, kFirstOperand},
          {Op::embedding_grad, "sorted",
           [](const NodeView& node) -> std::string {
             if (node.in[0].dtype == DType::f32) return "";
             return fmt::format("dtype {}: only f32", name_of(node.in[0].dtype));
           },
           prepare<EmbeddingGradKernel>}};
}

}  // namespace brrr::cpu
