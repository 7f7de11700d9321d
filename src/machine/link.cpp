#include "machine/link.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "base/errors.h"
#include "base/system_text.h"

namespace brrr::machine {
namespace {

using system_text::trimmed;

constexpr std::string_view kExpected =
    "expected a rate and perhaps a latency, such as 1Gbit,50us or 12GB/s,5us";

struct Unit {
  std::string_view name;
  double scale;
};
// Bytes per second.
constexpr Unit kRates[] = {{"kbit", 1e3 / 8},  {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8},
                           {"Tbit", 1e12 / 8}, {"kB", 1e3},       {"MB", 1e6},
                           {"GB", 1e9},        {"TB", 1e12}};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};

/// "12.5GB" in its unit; nothing where it is no number above 0 with one of these units.
std::optional<double> number_in(std::string_view text, std::span<const Unit> units) {
  text = trimmed(text);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value <= 0) return std::nullopt;
  const std::string_view unit = trimmed(text.substr(static_cast<size_t>(stop - text.data())));
  for (const Unit& u : units)
    if (unit == u.name) return value * u.scale;
  return std::nullopt;
}

}  // namespace

double Link::seconds(int64_t ranks, double bytes, double exchanges) const {
  if (ranks < 2) return 0;
  const double senders = is_shared ? static_cast<double>(ranks) : 1;
  return exchanges * static_cast<double>(ranks - 1) * latency_seconds +
         senders * bytes / bytes_per_second;
}

Link parse_link(std::string_view text) {
  const size_t comma = text.find(',');
  std::string_view rate = trimmed(text.substr(0, comma));
  if (rate.ends_with("/s")) rate.remove_suffix(2);
  const std::optional<double> bytes = number_in(rate, kRates);
  if (!bytes) usage_error("{}; got '{}'", kExpected, text);
  double latency = kUsualLatency;
  if (comma != std::string_view::npos) {
    const std::optional<double> seconds = number_in(text.substr(comma + 1), kTimes);
    if (!seconds) usage_error("{}; got '{}'", kExpected, text);
    latency = *seconds;
  }
  return {*bytes, latency};
}

std::string link_text(const Link& link) {
  const double us = 1e6 * link.latency_seconds;
  const std::string latency =
      us >= 1000 ? fmt::format("{:.3g} ms", us / 1000) : fmt::format("{:.3g} us", us);
  return fmt::format("{:.3g} GB/s{} and {} an exchange and rank", 1e-9 * link.bytes_per_second,
                     link.is_shared ? ", which all ranks share," : "", latency);
}

Link usual_shared_memory() { return {6e9, 20e-6, true}; }

Link fit_link(std::span<const LinkSample> samples, bool is_shared) {
  BRRR_CHECK(!samples.empty(), "a link is fitted to measurements");
  // seconds = latency a + b / rate, each equation divided by the root of the measured seconds.
  double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
  for (const LinkSample& s : samples) {
    const double root = std::sqrt(s.seconds);
    const double a = s.exchanges * static_cast<double>(s.ranks - 1) / root;
    const double b = s.bytes * (is_shared ? static_cast<double>(s.ranks) : 1) / root;
    aa += a * a, ab += a * b, bb += b * b, a1 += a * root, b1 += b * root;
  }
  const double determinant = aa * bb - ab * ab;
  double latency = 0, per_byte = bb > 0 ? b1 / bb : 0;
  if (determinant > 1e-12 * aa * bb) {
    latency = (a1 * bb - b1 * ab) / determinant;
    per_byte = (aa * b1 - ab * a1) / determinant;
    if (latency < 0) latency = 0, per_byte = b1 / bb;
    if (per_byte <= 0) latency = a1 / aa, per_byte = 0;
  }
  return {per_byte > 0 ? 1 / per_byte : HUGE_VAL, latency, is_shared};
}

}  // namespace brrr::machine
