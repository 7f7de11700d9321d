#include "backend/cpu/spatial/winograd_conv.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/spatial/channel_tiles.h"
#include "backend/cpu/spatial/winograd_transforms.h"
#include "base/integers.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/spatial/winograd.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kWinogradFloat = sizeof(float);
// Tiles of a block: two register tiles of AVX-512. A block has twice as many where a panel of
// weights exceeds the L2 cache, because each block then reads the panel from the L3 cache or from
// memory.
constexpr int64_t kBlockTiles = 28, kLargePanelBytes = 1 << 20;
constexpr int64_t kSerialWinogradWork = 1 << 17;  // multiply-adds that starting the team costs
constexpr int64_t kMostWinogradPlaces = 36, kFloatsOfALine = 16;

/// Floats of so many or more that are an odd number of cache lines, so that rows this far apart
/// fall on different sets of the cache.
int64_t odd_lines(int64_t floats) {
  return (ceil_div(floats, kFloatsOfALine) | 1) * kFloatsOfALine;
}

}  // namespace

std::string WinogradConv::refusal(const NodeView& v) {
  if (v.attrs().find("winograd") == nullptr) return "weights that are not transformed";
  for (const Type& t : {v.in[0], v.in[1], v.out()[0]}) {
    if (t.dtype != DType::f32) return fmt::format("dtype {}: only f32", name_of(t.dtype));
    if (t.shape.elements() == 0) return "an operand has no elements";
  }
  if (v.in[1].storage != Storage{Layout::transposed_panels})
    return fmt::format("weights in {}", v.in[1].storage.str());
  return "";
}

WinogradConv::WinogradConv(const NodeView& v)
    : tile_(v.attrs().get<int64_t>("winograd")),
      size_(ops::winograd_size(tile_)),
      bias_(v),
      workers_(thread_count()) {
  const Shape &x = v.in[0].shape, &y = v.out()[0].shape;
  n_ = x.size(0);
  high_in_ = x.size(1);
  wide_in_ = x.size(2);
  c_ = x.size(3);
  high_ = y.size(1);
  wide_ = y.size(2);
  m_ = y.size(3);
  const auto& pads = v.attrs().get<std::vector<int64_t>>("pads");
  before_[0] = pads[0];
  before_[1] = pads[1];
  tiles_high_ = ops::winograd_tiles(high_, tile_);
  tiles_wide_ = ops::winograd_tiles(wide_, tile_);
  panels_ = ceil_div(m_, kPanelColumns);
  const int64_t places = size_ * size_, tiles = n_ * tiles_high_ * tiles_wide_;
  if (static_cast<double>(tiles * places) * static_cast<double>(c_ * m_) < kSerialWinogradWork)
    workers_ = 1;
  constexpr int64_t kCollidingBytes = 2048;
  pitch_ = round_up(c_, kFloatsOfALine);
  if (pitch_ * kWinogradFloat % kCollidingBytes == 0) pitch_ += kFloatsOfALine;
  const int64_t panel_bytes = places * c_ * kPanelColumns * kWinogradFloat;
  block_tiles_ = panel_bytes < kLargePanelBytes ? kBlockTiles : 2 * kBlockTiles;
  blocks_ = ceil_div(tiles, block_tiles_);
  // Blocks of nearly equal sizes, as many for each thread.
  if (blocks_ > 1 && blocks_ < 8 * workers_) blocks_ = round_up(blocks_, workers_);
  blocks_ = std::min(blocks_, tiles);
  block_tiles_ = ceil_div(tiles, blocks_);
  blocks_ = ceil_div(tiles, block_tiles_);
  splits_ = blocks_ >= 4 * workers_ ? 1
                                    : std::clamp<int64_t>(ceil_div(4 * workers_, blocks_), 1,
                                                          workers_ == 1 ? 1 : panels_);
  patch_place_ = odd_lines(block_tiles_ * pitch_);
  product_place_ = odd_lines(block_tiles_ * kPanelColumns);
  patch_bytes_ = in_lines(places * patch_place_ * kWinogradFloat);
  product_bytes_ = in_lines(places * product_place_ * kWinogradFloat);
  sums_bytes_ = in_lines(block_tiles_ * tile_ * tile_ * kPanelColumns * kWinogradFloat);
  zero_bytes_ = in_lines(c_ * kWinogradFloat);
}

int64_t WinogradConv::scratch_bytes() const {
  return bias_.scratch_bytes() + zero_bytes_ + (splits_ > 1 ? blocks_ : workers_) * patch_bytes_ +
         workers_ * (product_bytes_ + sums_bytes_);
}

struct WinogradConv::Memory {
  const float* x = nullptr;
  const float* w = nullptr;
  const float* bias = nullptr;
  const float* zeros = nullptr;
  float* y = nullptr;
  ConvFinish finish;
  GemmEpilogue epilogue;
  std::byte* scratch = nullptr;
};

void WinogradConv::run(const void* const* in, void* y, std::byte* scratch,
                       GemmEpilogue epilogue) const {
  Memory memory;
  memory.y = static_cast<float*>(y);
  memory.epilogue = epilogue;
  memory.scratch = scratch;
  run(memory, in);
}

void WinogradConv::run(const void* const* in, void* y, std::byte* scratch,
                       const ConvFinish& finish) const {
  Memory memory;
  memory.y = static_cast<float*>(y);
  memory.finish = finish;
  memory.scratch = scratch;
  run(memory, in);
}

WinogradConv::Block WinogradConv::block(int64_t index) const {
  const int64_t first = index * block_tiles_;
  return {first, std::min(block_tiles_, n_ * tiles_high_ * tiles_wide_ - first)};
}

WinogradConv::Place WinogradConv::place_of(int64_t tile) const {
  const int64_t row = tile / tiles_wide_;
  return {row / tiles_high_, row % tiles_high_ * tile_, tile % tiles_wide_ * tile_};
}

void WinogradConv::run(Memory memory, const void* const* in) const {
  memory.x = static_cast<const float*>(in[0]);
  memory.w = static_cast<const float*>(in[1]);
  memory.bias = bias_.read(in, memory.scratch);
  memory.scratch += bias_.scratch_bytes();
  memory.zeros = reinterpret_cast<const float*>(memory.scratch);
  std::memset(memory.scratch, 0, static_cast<size_t>(zero_bytes_));
  memory.scratch += zero_bytes_;
  const bool shares = splits_ > 1;
  const auto patches_at = [&](int64_t i) {
    return reinterpret_cast<float*>(memory.scratch + i * patch_bytes_);
  };
  if (shares) {
    constexpr int64_t kTilesOfPiece = 4;
    const int64_t pieces = ceil_div(block_tiles_, kTilesOfPiece);
    parallel_pieces(blocks_ * pieces, workers_, [&](int64_t piece, int) {
      const Block of = block(piece / pieces);
      const int64_t begin = piece % pieces * kTilesOfPiece;
      transform(memory, of, begin, std::min(of.tiles, begin + kTilesOfPiece),
                patches_at(piece / pieces));
    });
  }
  std::byte* const workers = memory.scratch + (shares ? blocks_ : workers_) * patch_bytes_;
  parallel_pieces(blocks_ * splits_, workers_, [&](int64_t task, int worker) {
    const int64_t index = task % blocks_, split = task / blocks_;
    const Block of = block(index);
    float* const patches = patches_at(shares ? index : worker);
    if (!shares) transform(memory, of, 0, of.tiles, patches);
    std::byte* const own = workers + worker * (product_bytes_ + sums_bytes_);
    auto* const products = reinterpret_cast<float*>(own);
    auto* const sums = reinterpret_cast<float*>(own + product_bytes_);
    const int64_t end = panels_ * (split + 1) / splits_;
    for (int64_t panel = panels_ * split / splits_; panel < end; ++panel) {
      multiply(memory, of, patches, panel, products);
      write_results(memory, of, panel, products, sums);
    }
  });
}

void WinogradConv::transform(const Memory& memory, const Block& of, int64_t begin, int64_t end,
                             float* patches) const {
  const float* pixels[kMostWinogradPlaces];
  for (int64_t t = begin; t < end; ++t) {
    const Place at = place_of(of.first + t);
    const float* const picture = memory.x + at.image * high_in_ * wide_in_ * c_;
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t row = at.top + i - before_[0];
      const bool has_row = row >= 0 && row < high_in_;
      for (int64_t j = 0; j < size_; ++j) {
        const int64_t column = at.left + j - before_[1];
        pixels[i * size_ + j] = has_row && column >= 0 && column < wide_in_
                                    ? picture + (row * wide_in_ + column) * c_
                                    : memory.zeros;
      }
    }
    winograd_transforms().patch(tile_, pixels, c_, patches + t * pitch_, patch_place_);
  }
}

void WinogradConv::multiply(const Memory& memory, const Block& of, const float* patches,
                            int64_t panel, float* products) const {
  const int64_t places = size_ * size_, zero = 0, most = gemm_terms_of_block(c_);
  int64_t terms = 0;
  ChannelTilesArgs t;
  t.a_row = pitch_;
  t.a_runs = t.b_runs = &zero;
  t.run_terms = &terms;
  t.runs = 1;
  t.b_term = t.c_row = kPanelColumns;
  // Whole vectors: the panel has zeros where there are no columns.
  t.columns = std::min(kPanelColumns, round_up(m_ - panel * kPanelColumns, kFloatsOfALine));
  t.rows = of.tiles;
  for (int64_t place = 0; place < places; ++place) {
    t.c = products + place * product_place_;
    for (int64_t c = 0; c < c_; c += most) {
      terms = std::min(most, c_ - c);
      t.add = c > 0;
      t.a = patches + place * patch_place_ + c;
      t.b = memory.w + ((panel * places + place) * c_ + c) * kPanelColumns;
      channel_tiles().multiply(t);
    }
  }
}

void WinogradConv::write_results(const Memory& memory, const Block& of, int64_t panel,
                                 const float* products, float* sums) const {
  if (memory.epilogue.run != nullptr) return write_to_epilogue(memory, of, panel, products, sums);
  const int64_t channel = panel * kPanelColumns;
  WinogradResults to;
  to.row = wide_ * m_;
  to.pixel = m_;
  to.columns = std::min(kPanelColumns, m_ - channel);
  to.bias = memory.bias != nullptr ? memory.bias + channel : nullptr;
  to.relu = memory.finish.relu;
  for (int64_t t = 0; t < of.tiles; ++t) {
    const Place at = place_of(of.first + t);
    const int64_t offset = ((at.image * high_ + at.top) * wide_ + at.left) * m_ + channel;
    to.y = memory.y + offset;
    to.residual = memory.finish.residual != nullptr ? memory.finish.residual + offset : nullptr;
    to.high = std::min(tile_, high_ - at.top);
    to.wide = std::min(tile_, wide_ - at.left);
    winograd_transforms().results(tile_, products + t * kPanelColumns, product_place_, to);
  }
}

void WinogradConv::write_to_epilogue(const Memory& memory, const Block& of, int64_t panel,
                                     const float* products, float* sums) const {
  const int64_t channel = panel * kPanelColumns;
  WinogradResults to;
  to.columns = to.pixel = std::min(kPanelColumns, m_ - channel);
  to.bias = memory.bias != nullptr ? memory.bias + channel : nullptr;
  // Neighbouring tiles of a row of them give rows of neighbouring results.
  for (int64_t first = 0, count = 0; first < of.tiles; first += count) {
    const Place at = place_of(of.first + first);
    count = std::min(of.tiles - first, tiles_wide_ - at.left / tile_);
    const int64_t results = std::min(count * tile_, wide_ - at.left);
    to.high = std::min(tile_, high_ - at.top);
    to.row = results * to.columns;
    for (int64_t t = 0; t < count; ++t) {
      to.y = sums + t * tile_ * to.columns;
      to.wide = std::min(tile_, results - t * tile_);
      winograd_transforms().results(tile_, products + (first + t) * kPanelColumns, product_place_,
                                    to);
    }
    for (int64_t i = 0; i < to.high; ++i)
      memory.epilogue.run(memory.epilogue.context,
                          (at.image * high_ + at.top + i) * wide_ + at.left, channel, results,
                          to.columns, sums + i * to.row, to.columns);
  }
}

}  // namespace brrr::cpu
