// fused: the tiles of a body split among threads. Bodies with a product: fused_product.cpp.

#include "ops/fused.h"
#include "backend/cpu/fusion/tile_program.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/fused_product.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

class TileKernel final : public Kernel {
 public:
  explicit TileKernel(const NodeView& node) : program_(fused_body(node.node())) {
    // Wide rows make wide tiles: their frames are part of the memory plan, one for each thread.
    if (program_.frame_bytes() >= kLargeFrame) frames_ = thread_count();
  }

  int64_t scratch_bytes() const override {
    return partial_bytes() + frames_ * program_.frame_bytes();
  }

  void run(const KernelArgs& args) override {
    if (program_.chunk_rows() > 0) {
      run_chunks(args);
    } else {
      run_tiles(args);
    }
  }

 private:
  static constexpr int64_t kLargeFrame = int64_t{64} << 10;
  static constexpr int64_t kAlignment = 64;

  int64_t partial_bytes() const {
    const int64_t bytes =
        program_.chunks() * program_.partial_floats() * static_cast<int64_t>(sizeof(float));
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  /// body(frame, begin, end) for parts of [0, n), each on a thread of its own.
  template <typename Body>
  void with_frames(const KernelArgs& args, int64_t n, int64_t grain, Body body) const {
    int64_t parts = std::min<int64_t>(thread_count(), std::max<int64_t>(1, n / grain));
    if (frames_ > 0) parts = std::min(parts, frames_);
    parallel_parts(n, parts, [&](int64_t part, int64_t begin, int64_t end) {
      std::byte* const storage =
          frames_ == 0 ? nullptr : args.scratch + partial_bytes() + part * program_.frame_bytes();
      TileFrame frame(program_, args, storage);
      body(frame, begin, end);
    });
  }

  void run_tiles(const KernelArgs& args) const {
    const int64_t tile = program_.tile(), elements = program_.elements();
    with_frames(args, (elements + tile - 1) / tile, std::max<int64_t>(1, kElementGrain / tile),
                [&](TileFrame& frame, int64_t first, int64_t last) {
                  for (int64_t t = first; t < last; ++t)
                    program_.run_tile(frame, t * tile, std::min(tile, elements - t * tile), nullptr,
                                      false);
                });
  }

  /// The sums of a chunk of rows are made by one thread, tile after tile.
  void run_chunks(const KernelArgs& args) const {
    auto* partials = reinterpret_cast<float*>(args.scratch);
    const int64_t tile = program_.tile(), elements = program_.elements();
    const int64_t chunk = program_.chunk_rows() * program_.width();
    with_frames(args, program_.chunks(), std::max<int64_t>(1, kElementGrain / chunk),
                [&](TileFrame& frame, int64_t first, int64_t last) {
                  for (int64_t c = first; c < last; ++c) {
                    const int64_t begin = c * chunk, end = std::min(elements, begin + chunk);
                    for (int64_t at = begin; at < end; at += tile)
                      program_.run_tile(frame, at, std::min(tile, end - at),
                                        partials + c * program_.partial_floats(), at > begin);
                  }
                });
    program_.combine(args, partials);
  }

  TileProgram program_;
  int64_t frames_ = 0;  // that lie in scratch memory; 0: each thread allocates its own
};

}  // namespace

std::vector<KernelEntry> fused_kernels() {
  const auto accepts = [](const NodeView& node) {
    const TileProgram program(fused_body(node.node()));
    return program.has_product() ? "a product" : program.refusal();
  };
  const auto prepare = [](const NodeView& node) -> std::unique_ptr<Kernel> {
    return std::make_unique<TileKernel>(node);
  };
  return {{Op::fused, "tiles", accepts, prepare},
          {Op::fused, "gemm_and_tiles", fused_product_refusal, fused_product, kKnowsStorage}};
}

}  // namespace brrr::cpu
