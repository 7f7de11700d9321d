// The alpha-beta model of links: its words, its formula, and that a fit finds what made the
// samples.
#include "machine/link.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace brrr::machine {
namespace {

TEST(Link, IsReadInBitsAndBytes) {
  EXPECT_DOUBLE_EQ(parse_link("1Gbit,50us").bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(parse_link("1Gbit,50us").latency_seconds, 50e-6);
  EXPECT_DOUBLE_EQ(parse_link("200Mbit").bytes_per_second, 25e6);
  EXPECT_DOUBLE_EQ(parse_link("200Mbit").latency_seconds, kUsualLatency);
  EXPECT_DOUBLE_EQ(parse_link(" 12.5 GB/s , 2 ms").bytes_per_second, 12.5e9);
  EXPECT_DOUBLE_EQ(parse_link(" 12.5 GB/s , 2 ms").latency_seconds, 2e-3);
  EXPECT_FALSE(parse_link("10Gbit/s,5us").is_shared);
}

TEST(Link, RefusesWhatIsNoRate) {
  for (const char* text : {"", "fast", "1", "0Gbit", "-1Gbit", "1Gbit,", "1Gbit,50", "1Gbit,0us",
                           "1Gb,50us", "50us,1Gbit", "nanGB", "1Gbit,50us,3"})
    EXPECT_THROW(parse_link(text), UserError) << text;
}

TEST(Link, TakesLatencyForEachPeerAndSharesItsRate) {
  Link link = parse_link("1GB/s,10us");
  EXPECT_DOUBLE_EQ(link.seconds(4, 2e6, 5), 5 * 3 * 10e-6 + 2e-3);
  EXPECT_DOUBLE_EQ(link.seconds(1, 2e6, 5), 0);
  link.is_shared = true;
  EXPECT_DOUBLE_EQ(link.seconds(4, 2e6, 5), 5 * 3 * 10e-6 + 8e-3);
}

TEST(Link, FitFindsWhatMadeTheSamples) {
  for (const bool is_shared : {false, true}) {
    const Link made{3e9, 40e-6, is_shared};
    std::vector<LinkSample> samples;
    for (const int64_t ranks : {2, 4})
      for (const double bytes : {1e4, 1e6, 3e7})
        samples.push_back({ranks, bytes, 9, made.seconds(ranks, bytes, 9)});
    const Link found = fit_link(samples, is_shared);
    EXPECT_NEAR(found.bytes_per_second, made.bytes_per_second, 1e-6 * made.bytes_per_second);
    EXPECT_NEAR(found.latency_seconds, made.latency_seconds, 1e-6 * made.latency_seconds);
  }
}

TEST(Link, FitHasNoNegativeLatency) {
  const Link found = fit_link(std::vector<LinkSample>{{2, 1e6, 1, 1e-3}, {2, 1e7, 1, 2e-2}}, false);
  EXPECT_EQ(found.latency_seconds, 0);
  EXPECT_GT(found.bytes_per_second, 0);
}

}  // namespace
}  // namespace brrr::machine
