// The tile registers: the emulation against sums in double, and where the machine has AMX the
// instructions against the emulation, bit for bit.

#include "backend/cpu/products/amx_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/isa.h"
#include "base/dtype.h"
#include "base/rng.h"

namespace brrr::cpu {
namespace {

struct AmxOperands {
  uint16_t a[kTileRows][kTileBf16], b[kTileRows][kTileBf16];
  int8_t a8[kTileRows][kTileInt8], b8[kTileRows][kTileInt8];
  float c[kTileRows][16];

  explicit AmxOperands(uint32_t seed, float scale = 1) {
    RngStream rng({seed, 0}, 0);
    const auto uniform = [&] { return scale * (2 * rng.next_uniform() - 1); };
    for (int r = 0; r < kTileRows; ++r) {
      for (int i = 0; i < kTileBf16; ++i) {
        a[r][i] = bf16_from_float(uniform());
        b[r][i] = bf16_from_float(uniform());
      }
      for (int i = 0; i < kTileInt8; ++i) {
        a8[r][i] = static_cast<int8_t>(rng.next_below(256));
        b8[r][i] = static_cast<int8_t>(rng.next_below(256));
      }
      for (float& x : c[r]) x = uniform();
    }
  }
};

struct Results {
  float product[kTileRows][16];     // c + a b, through tiles 2, 4, 6
  float again[kTileRows][16];       // 2 a b from zero, with a stride of its own
  int32_t integers[kTileRows][16];  // a8 b8
};

template <class Tiles>
Results run(const AmxOperands& o) {
  Results r;
  Tiles tiles;
  tiles.template load<2>(o.c, 64);
  tiles.template load<4>(o.a, 64);
  tiles.template load<6>(o.b, 64);
  tiles.template dot_bf16<2, 4, 6>();
  tiles.template store<2>(r.product, 64);
  float spread[kTileRows][20];
  tiles.template zero<0>();
  tiles.template load_once<7>(o.b, 64);
  tiles.template dot_bf16<0, 4, 7>();
  tiles.template dot_bf16<0, 4, 6>();
  tiles.template store<0>(spread, sizeof(spread[0]));
  for (int m = 0; m < kTileRows; ++m) std::memcpy(r.again[m], spread[m], sizeof(r.again[m]));
  tiles.template zero<3>();
  tiles.template load<1>(o.a8, 64);
  tiles.template load<5>(o.b8, 64);
  tiles.template dot_int8<3, 1, 5>();
  tiles.template store<3>(r.integers, 64);
  return r;
}

TEST(AmxTiles, TheEmulationMultiplies) {
  for (uint32_t seed = 1; seed < 4; ++seed) {
    const AmxOperands o(seed);
    const Results r = run<EmulatedTiles>(o);
    for (int m = 0; m < kTileRows; ++m) {
      for (int n = 0; n < 16; ++n) {
        double sum = 0, magnitude = 0;
        for (int k = 0; k < kTileBf16; ++k) {
          const double p = static_cast<double>(float_from_bf16(o.a[m][k])) *
                           static_cast<double>(float_from_bf16(o.b[k / 2][2 * n + k % 2]));
          sum += p;
          magnitude += std::abs(p);
        }
        const double bound = std::ldexp(20, -24) * (magnitude + 1);
        EXPECT_NEAR(r.product[m][n], static_cast<double>(o.c[m][n]) + sum, bound);
        EXPECT_NEAR(r.again[m][n], 2 * sum, 2 * bound);
        int32_t integers = 0;
        for (int k = 0; k < kTileInt8; ++k) integers += o.a8[m][k] * o.b8[k / 4][4 * n + k % 4];
        EXPECT_EQ(r.integers[m][n], integers);
      }
    }
  }
}

TEST(AmxTiles, TheEmulationTakesDenormalsAsZero) {
  AmxOperands o(1);
  for (auto& row : o.a) std::fill(std::begin(row), std::end(row), uint16_t{1});  // denormal
  for (auto& row : o.c) std::fill(std::begin(row), std::end(row), 1e-40f);
  const Results r = run<EmulatedTiles>(o);
  for (const auto& row : r.product)
    for (const float x : row) EXPECT_EQ(x, 0.0f);
}

#if defined(__x86_64__)
TEST(AmxTiles, TheInstructionsDoWhatTheEmulationDoes) {
  if (best_isa() < Isa::kAmx) GTEST_SKIP() << "this machine has no amx";
  for (const float scale : {1.0f, 1e30f, 1e-19f, 1e-38f}) {
    for (uint32_t seed = 1; seed < 20; ++seed) {
      const AmxOperands o(seed, scale);
      const Results real = run<AmxTiles>(o), emulated = run<EmulatedTiles>(o);
      EXPECT_EQ(std::memcmp(real.product, emulated.product, sizeof(real.product)), 0) << scale;
      EXPECT_EQ(std::memcmp(real.again, emulated.again, sizeof(real.again)), 0) << scale;
      EXPECT_EQ(std::memcmp(real.integers, emulated.integers, sizeof(real.integers)), 0);
    }
  }
}
#endif

}  // namespace
}  // namespace brrr::cpu
