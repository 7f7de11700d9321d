// Constructed series: what must be noticed, once, and what must not.

#include "train/health.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace brrr::train {
namespace {

/// A run that is well: a loss that falls through the warm-up and on, noise, norms that fall, steps
/// of 20 ms with jitter.
class Series {
 public:
  explicit Series(uint32_t seed = 1) : random_(seed) {}
  StepSigns next() {
    const auto t = static_cast<double>(++step_);
    StepSigns s;
    s.step = step_;
    s.loss = 1.5 + 2.7 * std::exp(-t / 150) + 0.06 * noise();
    s.grad_norm = (0.6 + 2.5 * std::exp(-t / 40)) * std::exp(0.25 * noise());
    s.seconds = 0.020 * std::exp(0.05 * noise());
    s.waited = 1e-5;
    s.positions = 768;
    return s;
  }
  double noise() { return std::normal_distribution<double>()(random_); }

 private:
  std::mt19937 random_;
  int64_t step_ = 0;
};

/// Runs `steps`, each as `change` makes it; all notes.
template <typename Change>
std::vector<HealthNote> notes_of(Health& health, Series& series, int steps, Change&& change) {
  std::vector<HealthNote> all;
  for (int i = 0; i < steps; ++i) {
    StepSigns s = series.next();
    change(s);
    for (HealthNote& n : health.record(s)) all.push_back(std::move(n));
  }
  return all;
}
constexpr auto kAsItIs = [](StepSigns&) {};

std::string texts(const std::vector<HealthNote>& notes) {
  std::string all;
  for (const HealthNote& n : notes) all += fmt::format("{}: {}\n", n.step, n.text);
  return all;
}

void expect_one(const std::vector<HealthNote>& notes, Ailment ailment, int64_t step) {
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_EQ(notes[0].ailment, ailment) << texts(notes);
  EXPECT_EQ(notes[0].step, step) << texts(notes);
  EXPECT_EQ(notes[0].text.find('\n'), std::string::npos);
}

TEST(Health, ARunThatIsWellIsNotDisturbed) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Health health;
    Series series(seed);
    EXPECT_EQ(texts(notes_of(health, series, 5000, kAsItIs)), "") << "seed " << seed;
    EXPECT_EQ(health.summary(), "");
  }
}

// Losses with a heavy tail: small batches of short rows.
TEST(Health, NoisyLossesAreUsual) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Health health;
    Series series(seed);
    EXPECT_EQ(texts(notes_of(health, series, 5000,
                             [&](StepSigns& s) {
                               s.loss = 2.5 * std::exp(0.35 * series.noise());
                               s.grad_norm = std::exp(0.6 * series.noise());
                             })),
              "")
        << "seed " << seed;
  }
}

TEST(Health, ALossSpikeIsSaidOnceAndAgainAfterItIsOver) {
  Health health;
  Series series;
  const auto spike = [](int64_t begin, int64_t end) {
    return [=](StepSigns& s) {
      if (s.step >= begin && s.step < end) s.loss += 1.5;
    };
  };
  expect_one(notes_of(health, series, 400, spike(300, 310)), Ailment::loss_spike, 300);
  // Ten steps are no recovery; a hundred are.
  EXPECT_EQ(texts(notes_of(health, series, 20, kAsItIs)), "");
  expect_one(notes_of(health, series, 200, spike(500, 501)), Ailment::loss_spike, 500);
  EXPECT_EQ(health.count(Ailment::loss_spike), 2);
  EXPECT_EQ(health.summary(), "2 warnings: loss spike (2 times, first at step 300)");
}

TEST(Health, WhatComesAgainAndAgainIsSaidLessAndLess) {
  Health health;
  int64_t step = 0;
  std::vector<HealthNote> notes;
  for (int spike = 0; spike < 20; ++spike)
    for (int i = 0; i < 100; ++i, ++step) {
      StepSigns s;
      s.step = step;
      s.loss = i == 99 ? 9 : 2;
      s.grad_norm = 1;
      s.seconds = 1e-3;
      for (HealthNote& n : health.record(s)) notes.push_back(std::move(n));
    }
  EXPECT_EQ(health.count(Ailment::loss_spike), 20);
  ASSERT_EQ(notes.size(), 5u) << "the first, second, fourth, eighth, sixteenth time";
  EXPECT_EQ(notes[0].text.find("of this run"), std::string::npos);
  EXPECT_NE(notes[4].text.find("(16th time)"), std::string::npos) << notes[4].text;
}

TEST(Health, ALossThatStaysHighBecomesUsual) {
  Health health;
  Series series;
  const auto notes = notes_of(health, series, 2000, [](StepSigns& s) {
    if (s.step >= 600) s.loss += 3;
    if (s.step == 1500) s.loss += 4;
  });
  ASSERT_EQ(notes.size(), 2u) << texts(notes);
  EXPECT_EQ(notes[0].step, 600);
  EXPECT_EQ(notes[1].step, 1500) << "and what is unusual then is said";
}

TEST(Health, SpikesInARowAreOne) {
  Health health;
  Series series;
  expect_one(notes_of(health, series, 800,
                      [](StepSigns& s) {
                        if (s.step >= 300 && s.step % 20 == 0) s.loss += 1.5;
                      }),
             Ailment::loss_spike, 300);
}

// Where nothing ever varies, whatever does is many deviations out; that alone is no news.
TEST(Health, SmallChangesOfASteadyRunAreUsual) {
  const auto steady = [](double loss, double norm) {
    Health health;
    Series series;
    return texts(notes_of(health, series, 600, [&](StepSigns& s) {
      s.loss = loss * (1 + 1e-5 * series.noise());
      s.grad_norm = 1 + 1e-5 * series.noise();
      if (s.step % 100 == 0) s.grad_norm *= norm;
    }));
  };
  EXPECT_EQ(steady(2, 1), "");
  EXPECT_EQ(steady(2, 3), "") << "a norm three times as large";
  const auto bumped = [](double loss, double to) {
    Health health;
    Series series;
    return texts(notes_of(health, series, 600, [&](StepSigns& s) {
      s.loss = (s.step % 100 == 0 ? to : loss) * (1 + 1e-5 * series.noise());
      s.grad_norm = 1;
    }));
  };
  EXPECT_EQ(bumped(2, 2.1), "") << "five percent";
  EXPECT_EQ(bumped(0.01, 0.04), "") << "four hundredths";
  EXPECT_NE(bumped(2, 2.5), "");
}

TEST(Health, ANormFarOutSaysWhetherItWasClipped) {
  const auto burst = [](StepSigns& s) {
    if (s.step == 700) s.grad_norm = 40;
  };
  for (const double clip : {0.0, 1.0}) {
    HealthOptions options;
    options.max_grad_norm = clip;
    Health health(options);
    Series series;
    const auto notes = notes_of(health, series, 1000, burst);
    expect_one(notes, Ailment::gradient_outlier, 700);
    EXPECT_NE(notes[0].text.find(clip > 0 ? "clipped to 1" : "--max-grad-norm"), std::string::npos)
        << notes[0].text;
  }
}

TEST(Health, OverflowsWhileTheScaleIsSoughtAreUsual) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 3000,
                           [](StepSigns& s) {
                             // The first 16 steps, then one now and then.
                             s.skipped = s.step <= 16 || s.step % 200 == 0;
                             if (s.skipped) s.grad_norm = INFINITY;
                           })),
            "");
  EXPECT_EQ(health.skipped(), 16 + 15);
  EXPECT_EQ(health.summary(), "31 skipped steps");
}

TEST(Health, ManyOverflowsAreSaidOnce) {
  Health health;
  Series series;
  const auto notes = notes_of(health, series, 1500, [](StepSigns& s) {
    s.skipped = s.step > 500 && s.step % 5 == 0;
    s.loss_scale = 2;
  });
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_EQ(notes[0].ailment, Ailment::overflow);
  EXPECT_GT(notes[0].step, 500);
  EXPECT_LT(notes[0].step, 600);
}

TEST(Health, WaitingForDataIsSaidOnceUntilItIsOver) {
  HealthOptions options;
  options.workers = 3;
  Health health(options);
  Series series;
  const auto stalls = [](StepSigns& s) {
    if (s.step <= 1000 || (s.step > 3000 && s.step <= 4000)) s.waited = 0.25 * s.seconds;
  };
  const auto notes = notes_of(health, series, 5000, stalls);
  ASSERT_EQ(notes.size(), 2u) << texts(notes);
  for (const HealthNote& n : notes) EXPECT_EQ(n.ailment, Ailment::data_stall);
  EXPECT_LT(notes[0].step, 300);
  EXPECT_GT(notes[1].step, 3000);
  EXPECT_NE(notes[0].text.find("25%"), std::string::npos) << notes[0].text;
  EXPECT_NE(notes[0].text.find("(now 3)"), std::string::npos) << notes[0].text;
}

TEST(Health, AHiccupOfTheLoaderIsUsual) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 3000,
                           [](StepSigns& s) {
                             if (s.step % 500 == 0) {
                               s.waited = 0.15;
                               s.seconds += s.waited;
                             }
                           })),
            "");
}

TEST(Health, TheFirstBatchIsNoStall) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 500,
                           [](StepSigns& s) {
                             if (s.step == 1) s.seconds += s.waited = 100;
                           })),
            "");
}

// A few long steps say little: one that waits is no stall, one block that is slow no slowness.
TEST(Health, LongStepsAreNotJudgedByOne) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 600,
                           [](StepSigns& s) {
                             s.seconds *= 250;
                             if (s.step % 45 == 0) s.seconds += s.waited = 6;
                             if (s.step > 304 && s.step <= 320) s.seconds *= 2;
                           })),
            "");
}

TEST(Health, WaitingIsNotSlowness) {
  Health health;
  Series series;
  const auto notes = notes_of(health, series, 3000, [](StepSigns& s) {
    if (s.step > 1000) s.seconds += s.waited = 2 * s.seconds;
  });
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_EQ(notes[0].ailment, Ailment::data_stall);
}

TEST(Health, StepsThatBecomeSlowLittleByLittleAreSlow) {
  Health health;
  Series series;
  const auto notes = notes_of(health, series, 6000, [](StepSigns& s) {
    s.seconds *= 1 + static_cast<double>(s.step) / 6000;
  });
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_EQ(notes[0].ailment, Ailment::slow_steps);
  EXPECT_GT(notes[0].step, 2500);
}

TEST(Health, SlownessThatComesAndGoesIsOne) {
  for (const bool goes : {false, true}) {
    Health health;
    Series series;
    // Less of it in between, or a moment without.
    const auto notes = notes_of(health, series, 4000, [&](StepSigns& s) {
      if (s.step <= 1000) return;
      const bool better = s.step % 400 < (goes ? 40 : 200);
      s.seconds *= !better ? 2 : goes ? 1 : 1.35;
    });
    ASSERT_EQ(notes.size(), 1u) << texts(notes);
    EXPECT_EQ(notes[0].ailment, Ailment::slow_steps);
  }
}

TEST(Health, SlownessThatStaysBecomesUsual) {
  Health health;
  Series series;
  const auto notes = notes_of(health, series, 6000, [](StepSigns& s) {
    s.seconds *= s.step <= 1000 ? 1 : s.step <= 4000 ? 2 : 4;
  });
  ASSERT_EQ(notes.size(), 2u) << texts(notes);
  EXPECT_GT(notes[1].step, 4000) << "and what is slower still is said";
  EXPECT_LT(notes[1].step, 4200);
}

TEST(Health, SlowStepsNameTheClockWhereItFell) {
  double clock = 3400;
  HealthOptions options;
  options.clock_mhz = [&] { return std::optional(clock); };
  Health health(options);
  Series series;
  const auto notes = notes_of(health, series, 3000, [&](StepSigns& s) {
    if (s.step > 1000 && s.step <= 2000) {
      s.seconds *= 2;
      clock = 1800;
    }
  });
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_EQ(notes[0].ailment, Ailment::slow_steps);
  EXPECT_GT(notes[0].step, 1000);
  EXPECT_LT(notes[0].step, 1200);
  EXPECT_NE(notes[0].text.find("2.0x slower"), std::string::npos) << notes[0].text;
  EXPECT_NE(notes[0].text.find("from 3400 to 1800 MHz"), std::string::npos) << notes[0].text;
}

TEST(Health, SlowStepsAtTheSameClockAreOtherWork) {
  HealthOptions options;
  options.clock_mhz = [] { return std::optional(3000.0); };
  Health health(options);
  Series series;
  const auto notes = notes_of(health, series, 1500, [&](StepSigns& s) {
    if (s.step > 1000) s.seconds *= 1.8;
  });
  ASSERT_EQ(notes.size(), 1u) << texts(notes);
  EXPECT_NE(notes[0].text.find("the CPU is shared"), std::string::npos) << notes[0].text;
}

TEST(Health, AShortDisturbanceOfTheMachineIsUsual) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 3000,
                           [](StepSigns& s) {
                             if (s.step % 400 < 30) s.seconds *= 3;  // less than two seconds
                           })),
            "");
}

// Batches grouped by length: each shape has a loss, a norm and a time of its own.
TEST(Health, ShapesAreComparedWithTheirOwn) {
  Health health;
  Series series;
  EXPECT_EQ(texts(notes_of(health, series, 6000,
                           [](StepSigns& s) {
                             if (s.step % 97 < 90) return;
                             s.positions = 192;
                             s.loss += 1.2;
                             s.grad_norm *= 6;
                             s.seconds *= 4;
                           })),
            "");
}

TEST(Health, TheEndOfARunIsANote) {
  Health health;
  const HealthNote n = health.not_finite(12, "the loss is not a number", "[exp] at h.1.mlp");
  EXPECT_EQ(n.step, 12);
  EXPECT_EQ(n.text, "the loss is not a number; it began in [exp] at h.1.mlp");
  EXPECT_EQ(health.summary(), "1 warning: a value that is not finite (step 12)");
  EXPECT_EQ(name_of(n.ailment), "non_finite");
}

}  // namespace
}  // namespace brrr::train
