#include "insight/ladder/precision.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/cpu/peaks.h"
#include "base/clock.h"
#include "insight/ladder/precision_training.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Exponents: numbers below 2^top are finite, those of at most 2^bottom are rounded to zero.
struct Range {
  const char* name;
  int top, bottom;
};
constexpr Range kRanges[] = {{"fp16", 16, -25}, {"bf16", 128, -134}};
constexpr int kLossScale = 16;         // 65536, where fp16 starts
constexpr double kLeastSpread = 1e-3;  // of the loss: three seeds may agree by chance
constexpr double kWorthwhile = 1.03;   // a gain that is more than noise

std::string percent(double share) {
  return share > 0 && share < 5e-5 ? "<0.01%" : fmt::format("{:.2f}%", 100 * share);
}

struct Checked {
  Ladder ladder;  // as it was climbed
  std::vector<RungResult> speeds, trainings;
  PrecisionAdvice advice;
  std::vector<Against> against;
  std::string model, text;  // what was trained, and on what
};

/// The lines on where the numbers of the model lie.
std::vector<std::string> range_lines(const RungResult& fp32) {
  const auto magnitudes = [&](const char* name) { return Magnitudes(figure_of(fp32, name)); };
  const Magnitudes activations = magnitudes("activations"), gradients = magnitudes("gradients");
  std::vector<std::string> lines;
  for (const Range& r : kRanges) {
    std::string line = fmt::format(
        "{}: activations overflow {}, underflow {}; gradients overflow {}, underflow {}", r.name,
        percent(activations.overflow(r.top)), percent(activations.underflow(r.bottom)),
        percent(gradients.overflow(r.top)), percent(gradients.underflow(r.bottom)));
    if (r.top == 16)
      line += fmt::format(", after the loss scale of 65536 {} and {}",
                          percent(gradients.overflow(r.top, kLossScale)),
                          percent(gradients.underflow(r.bottom, kLossScale)));
    lines.push_back(line);
  }
  return lines;
}

double figure(const RungResult& r, const char* name) {
  const auto at = r.figures.find(name);
  return at == r.figures.end() || at->second.empty() ? NAN : at->second.front();
}

FormatRun run_of(const RungResult& r, const std::string& name) {
  FormatRun f;
  f.name = name;
  f.loss = figure(r, "loss");
  f.skipped = static_cast<int64_t>(figure(r, "skipped"));
  const auto at = r.notes.find("origin");
  if (at != r.notes.end()) f.origin = at->second;
  return f;
}

/// A training may end without a loss that is finite, but not in fp32; fp32's own has magnitudes.
bool is_sound_training(const RungResult& r) {
  const double loss = figure(r, "loss"), skipped = figure(r, "skipped");
  if (!(skipped >= 0 && skipped < 1e9)) return false;
  if (std::isnan(loss) ? r.name.starts_with("fp32") : loss < 0) return false;
  if (r.name != "fp32") return true;
  for (const char* name : {"activations", "gradients"}) {
    const auto at = r.figures.find(name);
    if (at == r.figures.end() || at->second.size() != Magnitudes().counts().size() ||
        std::any_of(at->second.begin(), at->second.end(), [](double count) { return count < 0; }))
      return false;
  }
  return true;
}

/// Products of fp16 are computed in f32 on every processor (backend/cpu/products/gemm.h).
bool has_unit(const std::string& rung) {
  if (rung.starts_with("fp16")) return false;
  static const auto peaks = cpu::measure_compute_peaks(0.02);
  return cpu::fastest_rate(peaks, "bf16") > cpu::fastest_rate(peaks, "f32");
}

/// What tells the files of --text and --data from others of the same names, for the record.
std::string files_of(const KeyValues& options) {
  std::string files;
  for (const auto& [key, path] : options) {
    const std::string name = canonical_key(key);
    std::error_code none;
    if (name != "text" && name != "train-file" && name != "data" && name != "val-data") continue;
    const auto bytes = std::filesystem::file_size(path, none);
    if (none) continue;  // a folder
    const auto written = std::filesystem::last_write_time(path, none).time_since_epoch().count();
    files += fmt::format(", {} of {} bytes at {}", name, bytes, written);
  }
  return files;
}

/// The trainings behind the ladder's rungs: those first, then fp32 from other seeds.
constexpr int64_t kOtherSeeds[] = {1, 2};

Checked check(const Ladder& ladder, const LadderOptions& options) {
  Checked c;
  c.ladder = as_climbed(ladder, options);
  c.speeds = climb(ladder, options);
  FormatTraining training(options);
  std::vector<std::string> names;
  for (const Rung& rung : ladder.rungs) names.push_back(rung.name);
  for (const int64_t seed : kOtherSeeds) names.push_back(fmt::format("fp32, seed {}", seed));
  LadderOptions once = options;
  once.rounds = 1;
  if (options.progress)
    once.progress = [&, before = options.rounds * static_cast<int64_t>(ladder.rungs.size())](
                        int64_t done) { options.progress(before + done); };
  const auto train = [&](size_t i, RungResult& r) {
    const bool is_format = i < ladder.rungs.size();
    const Stopwatch watch;
    training.run(is_format ? ladder.rungs[i].options : KeyValues{},
                 is_format ? 0 : kOtherSeeds[i - ladder.rungs.size()], r);
    r.ms.push_back(watch.milliseconds());
  };
  c.trainings = climb("precision (trainings)", training.key() + files_of(options.options), names,
                      once, train, is_sound_training);
  c.model = training.model();
  c.text = c.trainings[0].notes["text"];
  std::vector<FormatRun> runs;
  std::vector<double> losses;
  for (size_t i = 0; i < c.trainings.size(); ++i) {
    if (i < ladder.rungs.size()) {
      runs.push_back(run_of(c.trainings[i], names[i]));
      c.against.push_back(against(c.speeds[i], c.speeds[0]).value_or(Against{}));
    }
    if (i == 0 || i >= ladder.rungs.size()) losses.push_back(figure(c.trainings[i], "loss"));
  }
  c.advice = advise_format(runs, losses, c.against, has_unit);
  return c;
}

std::string safety_title(const Checked& c) {
  return fmt::format("{} trained in each format on {}; fp32's seeds differ by {:.4f}", c.model,
                     c.text, c.advice.spread);
}

std::string table(const Checked& c) {
  std::string out = ladder_table(c.ladder, c.speeds);
  out += fmt::format("\n{}\n{:<34} {:>8} {:>9} {:>8} {:>6}\n", safety_title(c), "format", "loss",
                     "to fp32", "skipped", "safe");
  for (size_t i = 0; i < c.advice.formats.size(); ++i) {
    const RungResult& r = c.trainings[i];
    out += fmt::format("{:<34} {:>8.4f} {:>+9.4f} {:>8} {:>6}\n", r.name, figure(r, "loss"),
                       figure(r, "loss") - figure(c.trainings[0], "loss"), figure(r, "skipped"),
                       c.advice.formats[i].safe ? "yes" : "no");
  }
  for (const std::string& line : range_lines(c.trainings[0])) out += line + "\n";
  for (const FormatVerdict& v : c.advice.formats) out += v.line + "\n";
  return out + c.advice.use + "\n";
}

std::string json(const Checked& c) {
  OrderedJson j = OrderedJson::parse(ladder_json(c.ladder, c.speeds));
  OrderedJson formats = OrderedJson::array();
  for (size_t i = 0; i < c.advice.formats.size(); ++i) {
    const RungResult& r = c.trainings[i];
    formats.push_back({{"name", r.name},
                       {"loss", figure(r, "loss")},
                       {"skipped_steps", figure(r, "skipped")},
                       {"safe", c.advice.formats[i].safe},
                       {"verdict", c.advice.formats[i].line}});
  }
  j["formats"] = formats;
  j["seed_spread"] = c.advice.spread;
  j["use"] = c.advice.use;
  return j.dump();
}

std::string section(const Checked& c) {
  std::string rows, lines;
  for (size_t i = 0; i < c.advice.formats.size(); ++i) {
    const RungResult& r = c.trainings[i];
    const double loss = figure(r, "loss"), apart = loss - figure(c.trainings[0], "loss");
    const bool safe = c.advice.formats[i].safe;
    rows += "<tr><td>" + html_text(r.name) + "</td>" + cell(loss, fmt::format("{:.4f}", loss)) +
            cell(apart, fmt::format("{:+.4f}", apart)) +
            cell(figure(r, "skipped"), fmt::format("{}", figure(r, "skipped"))) +
            cell(safe, safe ? "yes" : "no") + "</tr>\n";
    lines += "<li>" + html_text(c.advice.formats[i].line) + "</li>";
  }
  std::string ranges;
  for (const std::string& line : range_lines(c.trainings[0]))
    ranges += "<p class=\"faint\">" + html_text(line) + "</p>";
  return ladder_section(c.ladder, c.speeds) +
         card("which of them is safe",
              "<p>" + html_text(safety_title(c)) + "</p>" +
                  sorting_table({"format", "loss", "to fp32", "skipped steps", "safe"}, rows) +
                  ranges + "<ol>" + lines + "</ol><p><b>" + html_text(c.advice.use) + "</b></p>");
}

/// "its loss is 0.02 above ...", or where numbers ended.
std::string harm(const FormatRun& r, double fp32, double allowed) {
  if (!std::isfinite(r.loss))
    return r.origin.empty() ? "its loss is not finite"
                            : fmt::format("not finite, first in {}", r.origin);
  return fmt::format("its loss ends {:.4f} above fp32's, whose seeds differ by {:.4f}",
                     r.loss - fp32, allowed);
}

}  // namespace

void Magnitudes::add(double x) {
  if (!std::isfinite(x)) return;
  int exponent = 0;
  std::frexp(x, &exponent);  // x in [2^(exponent-1), 2^exponent)
  const int bin = x == 0 ? kBins : std::clamp(exponent - 1 - kLeast, 0, kBins - 1);
  ++counts_[static_cast<size_t>(bin)];
}

double Magnitudes::share(int first, int last) const {
  double all = 0, some = 0;
  for (int bin = 0; bin <= kBins; ++bin) {
    const double count = counts_[static_cast<size_t>(bin)];
    all += count;
    if (bin < kBins && bin + kLeast >= first && bin + kLeast <= last) some += count;
  }
  return all > 0 ? some / all : 0;
}

double Magnitudes::overflow(int top, int scale) const { return share(top - scale, kLeast + kBins); }

double Magnitudes::underflow(int bottom, int scale) const {
  return share(kLeast, bottom - scale - 1);
}

PrecisionAdvice advise_format(const std::vector<FormatRun>& runs,
                              const std::vector<double>& fp32_losses,
                              const std::vector<Against>& speeds,
                              const std::function<bool(const std::string&)>& has_unit) {
  PrecisionAdvice a;
  const auto [low, high] = std::minmax_element(fp32_losses.begin(), fp32_losses.end());
  const double fp32 = fp32_losses.front();
  a.spread = *high - *low;
  const double allowed = std::max(a.spread, kLeastSpread * fp32);
  size_t best = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    FormatVerdict v;
    v.name = runs[i].name;
    v.speed = speeds[i].speed;
    v.safe = std::isfinite(runs[i].loss) && runs[i].loss - fp32 <= allowed;
    const bool faster = v.speed >= kWorthwhile && speeds[i].low > 1;
    if (i == 0)
      v.line = fmt::format("{}: the baseline of the others", v.name);
    else if (!v.safe)
      v.line = fmt::format("{}: not safe here: {}", v.name, harm(runs[i], fp32, allowed));
    else if (v.speed <= 0)
      v.line = fmt::format("{}: safe here; its speed was not measured", v.name);
    else if (faster)
      v.line = fmt::format("{}: safe here and {:.2f}x as fast as fp32", v.name, v.speed);
    else if (v.speed >= kWorthwhile)
      v.line = fmt::format("{}: safe here but not clearly faster: {:.2f}x, quartiles {:.2f}-{:.2f}",
                           v.name, v.speed, speeds[i].low, speeds[i].high);
    else
      v.line = fmt::format("{}: safe here but {} ({:.2f}x{})", v.name,
                           v.speed < 1 / kWorthwhile ? "slower" : "not faster", v.speed,
                           has_unit(v.name) ? "" : ", no hardware for it");
    if (runs[i].skipped > 0)
      v.line += fmt::format("; {} steps were skipped{}", runs[i].skipped,
                            runs[i].origin.empty() ? "" : ", first because of " + runs[i].origin);
    if (i > 0 && v.safe && faster && v.speed > a.formats[best].speed) best = i;
    a.formats.push_back(std::move(v));
  }
  a.use = best == 0
              ? fmt::format("use {}: no format that is safe here is clearly faster", runs[0].name)
              : fmt::format("use {}: the fastest that is safe here, {:.2f}x of fp32",
                            runs[best].name, a.formats[best].speed);
  return a;
}

NamedLadder precision_ladder(const Ladder& speeds) {
  return {"precision",
          "number formats for training: which are fastest, and which are safe here",
          true,
          &speeds,
          [&speeds](const LadderOptions& o) {
            const auto rungs = static_cast<int64_t>(speeds.rungs.size());
            return o.rounds * rungs + rungs + std::ssize(kOtherSeeds);
          },
          [&speeds](const LadderOptions& o) {
            const Checked c = check(speeds, o);
            return Climbed{table(c), json(c), section(c), true,
                           disturbance_text(c.ladder.name, c.speeds)};
          }};
}

}  // namespace brrr::insight
