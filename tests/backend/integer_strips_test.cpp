// Strips of integer products: every way to multiply them against exact integer arithmetic, AMX
// tiles through their emulation on machines without them.

#include "backend/cpu/quantized/integer_strips.h"

#include <gtest/gtest.h>
#include <atomic>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "support/each_isa.h"

namespace brrr::cpu {
namespace {

using test::every_isa;
using test::isa_of;

class IntegerStrips : public test::EachIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, IntegerStrips, every_isa(), isa_of);

struct NamedStrips {
  std::string name;
  StripKernel kernel;
};

/// The ways that this processor and the current limit have, and the emulation.
std::vector<NamedStrips> strips_for(const IntegerPanels& form) {
  constexpr int64_t kManyRows = 32;
  std::vector<NamedStrips> out;
  for (const StripEntry& entry : strip_entries())
    if (entry.refusal(form, kManyRows).empty())
      out.push_back({std::string(entry.kernel), entry.strips()});
  if (form.bits == 8 && form.groups() <= 1)
    out.push_back({"emulated tiles", emulated_amx_strips()});
  return out;
}

/// A random panel and random rows.
struct StripProblem {
  IntegerPanels form;
  int64_t rows, ld;
  std::vector<int8_t> values;
  std::vector<uint8_t> panel;
  std::vector<float> scales, row_scales;
  std::vector<int32_t> starts;

  StripProblem(const IntegerPanels& f, int64_t r)
      : form(f), rows(r), ld(round_up(std::max<int64_t>(f.k, 1), 64)) {
    std::mt19937 random(static_cast<unsigned>(1000 * f.k + 10 * r + f.bits));
    std::uniform_int_distribution<int> byte(-127, 127), word(0, 255);
    std::uniform_real_distribution<float> scale(-0.5f, 0.5f);
    values.resize(static_cast<size_t>(kMostStripRows * ld));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t k = 0; k < f.k; ++k) value(i, k) = static_cast<int8_t>(byte(random));
    panel.resize(static_cast<size_t>(f.panel_bytes()));
    for (uint8_t& b : panel) b = static_cast<uint8_t>(word(random));
    scales.resize(static_cast<size_t>(f.groups() * kPanelColumns));
    for (float& s : scales) s = scale(random);
    row_scales.resize(static_cast<size_t>(rows));
    for (float& s : row_scales) s = scale(random);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t g = 0; g < f.groups(); ++g) {
        int32_t sum = 0;
        for (int64_t k = g * f.terms_of_group(); k < end_of(g); ++k) sum += value(i, k);
        starts.push_back(-f.offset() * sum);
      }
  }

  int8_t& value(int64_t i, int64_t k) { return values[static_cast<size_t>(i * ld + k)]; }
  int64_t end_of(int64_t group) const {
    return std::min(form.k, (group + 1) * form.terms_of_group());
  }
  /// The sum of a group's products, in 64 bits.
  int64_t sum(int64_t i, int64_t column, int64_t group) {
    int64_t total = 0;
    for (int64_t k = group * form.terms_of_group(); k < end_of(group); ++k) {
      const int b = panel[static_cast<size_t>(form.place(k, column))];
      const int integer = form.bits == 8 ? b : form.is_high(k) ? b >> 4 : b & 15;
      total += int64_t{value(i, k)} * (integer - form.offset());
    }
    return total;
  }
  IntegerStrip strip() const {
    IntegerStrip s;
    s.values = values.data();
    s.ld = ld;
    s.rows = rows;
    s.row_scales = row_scales.data();
    s.row_starts = starts.data();
    s.panel = panel.data();
    s.scales = scales.data();
    return s;
  }
};

constexpr int64_t kTerms[] = {1, 4, 63, 64, 65, 130, 384, 777};
constexpr int64_t kOutLd = 40;

TEST_P(IntegerStrips, SumsAreExact) {
  for (const int64_t k : kTerms) {
    const IntegerPanels form{k, kPanelColumns, 8, 0};
    for (const NamedStrips& way : strips_for(form))
      for (int64_t rows = 1; rows <= way.kernel.rows; ++rows) {
        StripProblem p(form, rows);
        std::vector<int32_t> out(static_cast<size_t>(rows * kOutLd), -7);
        IntegerStrip s = p.strip();
        s.exact = out.data();
        s.out_ld = kOutLd;
        way.kernel.run(s, form);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < kOutLd; ++j)
            ASSERT_EQ(out[static_cast<size_t>(i * kOutLd + j)],
                      j < kPanelColumns ? p.sum(i, j, 0) : -7)
                << way.name << ", " << k << " terms, " << rows << " rows, at " << i << ", " << j;
      }
  }
}

TEST_P(IntegerStrips, ScaledSumsAreNearTheirDoublesAndTheSameBitsEveryWay) {
  for (const int64_t bits : {8, 4})
    for (const int64_t group : {0, 32, 128})
      for (const int64_t k : kTerms) {
        const IntegerPanels form{k, kPanelColumns, bits, group};
        const std::vector<NamedStrips> ways = strips_for(form);
        for (const int64_t rows : {1, 3, 4, 11, 12, 16, 17, 32}) {
          StripProblem p(form, rows);
          std::vector<float> first;
          for (const NamedStrips& way : ways) {
            if (rows > way.kernel.rows) continue;
            std::vector<float> out(static_cast<size_t>(rows * kOutLd), -7);
            IntegerStrip s = p.strip();
            s.out = out.data();
            s.out_ld = kOutLd;
            way.kernel.run(s, form);
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < kPanelColumns; ++j) {
                double sum = 0, magnitude = 0;
                for (int64_t g = 0; g < form.groups(); ++g) {
                  const double part = static_cast<double>(p.sum(i, j, g)) *
                                      p.scales[static_cast<size_t>(g * kPanelColumns + j)];
                  sum += part;
                  magnitude += std::abs(part);
                }
                const double scale = p.row_scales[static_cast<size_t>(i)];
                ASSERT_NEAR(out[static_cast<size_t>(i * kOutLd + j)], sum * scale,
                            1e-6 * magnitude * std::abs(scale))
                    << way.name << ", " << bits << " bits, group " << group << ", " << k
                    << " terms, at " << i << ", " << j;
              }
            if (first.empty()) first = out;
            ASSERT_EQ(out, first) << way.name << " against " << ways[0].name;
          }
        }
      }
}

TEST(IntegerBlocks, CoverEveryElementOnce) {
  for (const int64_t rows : {1, 5, 12, 13, 128, 500})
    for (const int64_t n : {1, 32, 33, 384, 1000, 11008})
      for (const int64_t strip : {12, 32}) {
        const IntegerPanels form{1024, n, 8, 0};
        std::vector<std::atomic<int>> seen(static_cast<size_t>(rows * form.panels()));
        for_each_block(rows, form, strip, [&](const IntegerBlock& b) {
          EXPECT_LE(b.rows, strip);
          EXPECT_LE(b.panels, kMostBlockPanels);
          for (int64_t i = b.row; i < b.row + b.rows; ++i)
            for (int64_t q = b.panel; q < b.panel + b.panels; ++q)
              ++seen[static_cast<size_t>(i * form.panels() + q)];
        });
        for (const auto& count : seen) ASSERT_EQ(count.load(), 1) << rows << " x " << n;
      }
}

}  // namespace
}  // namespace brrr::cpu
