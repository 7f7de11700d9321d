#include "backend/cpu/quantized/store_blocks.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention/attention_rows.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/quantized/quantize_group.h"
#include "base/blocks/block_types.h"
#include "base/integer_panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kBlockTerms = 256;  // values dequantised at once: a multiple of every block size

std::unique_ptr<Kernel> floats_of_blocks(const NodeView& node) {
  const BlockType& type = block_type_of(node.in[0].storage);
  const DType dtype = node.out()[0].dtype;
  const int64_t elements = node.in[0].shape.elements();
  return make_kernel([&type, dtype, elements](const KernelArgs& args) {
    const auto* blocks = static_cast<const std::byte*>(args.in[0]);
    auto* y = static_cast<std::byte*>(args.out[0]);
    const auto width = static_cast<int64_t>(bytes_of(dtype));
    const RowCopies& copies = row_copies(dtype);
    parallel_for(ceil_div(elements, kBlockTerms), 64, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kBlockTerms];
      for (int64_t i = begin * kBlockTerms; i < std::min(end * kBlockTerms, elements);
           i += kBlockTerms) {
        const int64_t count = std::min(kBlockTerms, elements - i);
        type.dequantise(blocks + i / type.elements * type.bytes, count / type.elements, values);
        copies.narrow(values, count, count, 1, y + i * width, count);
      }
    });
  });
}

std::unique_ptr<Kernel> blocks_of_floats(const NodeView& node) {
  const BlockType& type = block_type_of(node.out()[0].storage);
  const DType dtype = node.in[0].dtype;
  const int64_t elements = node.in[0].shape.elements();
  return make_kernel([&type, dtype, elements](const KernelArgs& args) {
    auto* const blocks = static_cast<std::byte*>(args.out[0]);
    parallel_for(ceil_div(elements, kBlockTerms), 16, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kBlockTerms];
      for (int64_t i = begin * kBlockTerms; i < std::min(end * kBlockTerms, elements);
           i += kBlockTerms) {
        const int64_t count = std::min(kBlockTerms, elements - i);
        for (int64_t j = 0; j < count; ++j)
          values[j] = static_cast<float>(load_as_double(dtype, args.in[0], i + j));
        type.quantise(values, count / type.elements, blocks + i / type.elements * type.bytes);
      }
    });
  });
}

/// Dequantises a weight [N, K] and quantises it again, panel by panel, to 8 bits in groups of
/// terms.
class PanelsOfBlocks final : public Kernel {
 public:
  explicit PanelsOfBlocks(const NodeView& node)
      : type_(block_type_of(node.in[0].storage)),
        panels_{node.in[0].shape.size(1), node.in[0].shape.size(0), 8,
                node.out()[0].storage.quantized.group},
        quantize_(quantize_group()) {}

  void run(const KernelArgs& args) override {
    const auto* blocks = static_cast<const std::byte*>(args.in[0]);
    auto* to = static_cast<std::byte*>(args.out[0]);
    parallel_for(panels_.panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) write(blocks, panel, to);
    });
  }

 private:
  void write(const std::byte* blocks, int64_t panel, std::byte* to) const {
    auto* words = to + panel * panels_.panel_bytes();
    auto* scales = reinterpret_cast<float*>(to + panels_.integer_bytes()) +
                   panel * panels_.groups() * kPanelColumns;
    const int64_t first = panel * kPanelColumns,
                  columns = std::min(kPanelColumns, panels_.n - first),
                  row_bytes = panels_.k / type_.elements * type_.bytes;
    alignas(64) float values[kBlockTerms];
    alignas(64) uint8_t integers[kPanelColumns * kBlockTerms];
    std::memset(integers, panels_.offset(), sizeof(integers));
    std::memset(scales, 0, static_cast<size_t>(panels_.groups() * kPanelColumns) * sizeof(float));
    for (int64_t k = 0; k < panels_.k; k += kBlockTerms) {
      const int64_t count = std::min(kBlockTerms, panels_.k - k);
      for (int64_t j = 0; j < columns; ++j) {
        type_.dequantise(blocks + (first + j) * row_bytes + k / type_.elements * type_.bytes,
                         count / type_.elements, values);
        for (int64_t i = 0; i < count; i += panels_.group)
          scales[(k + i) / panels_.group * kPanelColumns + j] =
              quantize_(values + i, panels_.group, integers + j * kBlockTerms + i);
      }
      for (int64_t i = 0; i < count; i += 4)
        for (int64_t j = 0; j < kPanelColumns; ++j)
          std::memcpy(words + ((k + i) / 4 * kPanelColumns + j) * 4, integers + j * kBlockTerms + i,
                      4);
    }
  }

  const BlockType& type_;
  IntegerPanels panels_;
  QuantizeGroup quantize_;
};

std::string refuse_floats(const NodeView& node) {
  const Type& y = node.out()[0];
  if (!node.in[0].storage.is_blocks() || !y.storage.is_plain()) return "no blocks as floats";
  return y.dtype == DType::f64 ? "dtype f64" : "";
}

std::string refuse_blocks(const NodeView& node) {
  const Type &x = node.in[0], &y = node.out()[0];
  if (node.in.size() != 1 || !x.storage.is_plain() || !y.storage.is_blocks()) return "no blocks";
  return x.dtype == DType::f64 ? "dtype f64" : "";
}

std::string refuse_panels(const NodeView& node) {
  const Storage& y = node.out()[0].storage;
  if (!node.in[0].storage.is_blocks()) return "no blocks";
  const int64_t group = y.quantized.group;
  if (y.layout != Layout::transposed_panels || y.quantized.bits != 8 || group <= 0 ||
      group % 32 != 0 || kBlockTerms % group != 0 || node.in[0].shape.size(1) % group != 0)
    return fmt::format("{}: only transposed panels of 8 bits in groups of 32, 64, 128 or 256",
                       y.str());
  return "";
}

}  // namespace

std::vector<KernelEntry> block_store_kernels() {
  return {
      {Op::store, "floats_of_blocks", refuse_floats, floats_of_blocks, kKnowsStorage, kAllOperands},
      {Op::store, "panels_of_blocks", refuse_panels,
       [](const NodeView& node) -> std::unique_ptr<Kernel> {
         return std::make_unique<PanelsOfBlocks>(node);
       },
       kKnowsStorage, kAllOperands},
      {Op::store, "blocks_of_floats", refuse_blocks, blocks_of_floats, kKnowsStorage}};
}

}  // namespace brrr::cpu
