// The ladder of inference as a table for people, as one object for programs and as a part of a
// page.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/memory.h"
#include "insight/ladder/inference_ladder.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kClearlyFaster = 1.03;  // a gain that is more than noise

double loss_percent(const infer::TokenComparison& cost) {
  const double fp32 = cost.loss - cost.loss_difference;
  return 100 * cost.loss_difference / std::max(fp32, 1e-9);
}

std::string ratio_text(double value) { return fmt::format("{:.2f}x", value); }

bool has_costs(const InferenceFigures& f) {
  return std::ranges::any_of(f.rows, [](const InferenceRung& r) { return r.cost.has_value(); });
}

std::string cost_text(const infer::TokenComparison& cost) {
  return fmt::format("loss {:+.2f}%{}, KL divergence {:.2g}, {:.1f}% the same most likely token",
                     loss_percent(cost), cost.is_beyond_noise() ? "" : " (within the noise)",
                     cost.divergence, 100 * cost.agreement);
}

bool is_accepted(const InferenceRung& r) {
  return r.cost && loss_percent(*r.cost) <= kAcceptedLossIncrease;
}

}  // namespace

InferenceAdvice advise_inference(const std::vector<InferenceRung>& rows) {
  InferenceAdvice a;
  std::vector<const InferenceRung*> candidates;  // clearly faster than fp32
  bool compared = false, tried = false;
  for (size_t i = 1; i < rows.size(); ++i) {
    const InferenceRung& r = rows[i];
    if (!r.failure.empty() || !r.against_first) continue;
    const Against& speed = *r.against_first;
    const bool faster = speed.speed >= kClearlyFaster && speed.low > 1;
    std::string line =
        fmt::format("{}: {} fp32 ({:.2f}x) at decoding, {:.2f}x its weights' memory", r.name,
                    faster                              ? "faster than"
                    : speed.speed >= 1 / kClearlyFaster ? "not clearly faster than"
                                                        : "slower than",
                    speed.speed, speed.memory);
    if (r.cost) line += "; " + cost_text(*r.cost);
    if (!r.not_compared.empty()) line += "; not compared with fp32: " + r.not_compared;
    a.lines.push_back(std::move(line));
    compared = compared || r.cost.has_value();
    tried = tried || !r.not_compared.empty();
    if (faster) candidates.push_back(&r);
  }
  const InferenceRung* best = nullptr;
  for (const InferenceRung* r : candidates)
    if ((!compared || is_accepted(*r)) &&
        (best == nullptr || r->against_first->speed > best->against_first->speed))
      best = r;
  if (!compared) {
    a.use = (best == nullptr ? std::string("no format is clearly faster than fp32")
                             : fmt::format("fastest: {}, {:.2f}x of fp32", best->name,
                                           best->against_first->speed)) +
            (tried ? "; what a format costs in quality was not measured"
                   : "; --model FOLDER also measures what a format costs in quality");
    return a;
  }
  const std::string bound = fmt::format("a loss at most {}% above fp32's", kAcceptedLossIncrease);
  a.use = best == nullptr ? fmt::format("use fp32: no format with {} is clearly faster", bound)
                          : fmt::format("use --precision {}: the fastest with {}, {:.2f}x of fp32",
                                        best->name, bound, best->against_first->speed);
  return a;
}

std::string inference_table(const InferenceFigures& f) {
  const bool costs = has_costs(f);
  const auto line = [&](const std::string& name, const std::string& measured,
                        const std::string& cost) {
    return fmt::format("{:<18} {}{}\n", name, measured, costs ? " " + cost : "");
  };
  std::string out =
      f.title + "\n" +
      line("rung",
           fmt::format("{:>9} {:>17} {:>7} {:>9} {:>10} {:>7} {:>9}", "ms/token", "quartiles",
                       "speed", "prompt/s", "weights", "of it", "bandwidth"),
           fmt::format("{:>8} {:>8} {:>8} {:>6}", "loss", "to fp32", "KL", "same"));
  for (const InferenceRung& r : f.rows) {
    if (!r.failure.empty()) {
      out += fmt::format("{:<18} {}\n", r.name, r.failure);
      continue;
    }
    const auto& a = r.against_first;
    out += line(
        r.name,
        fmt::format("{:>9.3f} {:>17} {:>7} {:>9.0f} {:>10} {:>7} {:>8.0f}%", r.ms.median,
                    quartiles_text(r.ms, r.rounds, 3), a ? ratio_text(a->speed) : "-",
                    r.prompt_per_second, memory_text(r.weight_bytes),
                    a ? ratio_text(a->memory) : "-", 100 * r.bandwidth_fraction),
        r.cost ? fmt::format("{:>8.4f} {:>+8.4f} {:>8.2g} {:>5.1f}%", r.cost->loss,
                             r.cost->loss_difference, r.cost->divergence, 100 * r.cost->agreement)
               : fmt::format("{:>8} {:>8} {:>8} {:>6}", "-", "-", "-", "-"));
  }
  out += f.conditions + "\n";
  const InferenceAdvice advice = advise_inference(f.rows);
  for (const std::string& each : advice.lines) out += each + "\n";
  return out + advice.use + "\n";
}

std::string inference_json(const InferenceFigures& f) {
  OrderedJson rows = OrderedJson::array();
  for (const InferenceRung& r : f.rows) {
    OrderedJson row{{"name", r.name}};
    if (!r.failure.empty()) {
      row["failure"] = r.failure;
      rows.push_back(std::move(row));
      continue;
    }
    row.update({{"ms_per_token", r.ms.median},
                {"ms_quartiles", {r.ms.low, r.ms.high}},
                {"rounds", r.rounds},
                {"prompt_tokens_per_second", r.prompt_per_second},
                {"weight_bytes", r.weight_bytes},
                {"bandwidth_fraction", r.bandwidth_fraction}});
    if (r.against_first) {
      row["speed"] = r.against_first->speed;
      row["memory"] = r.against_first->memory;
    }
    if (r.cost)
      row.update({{"loss", r.cost->loss},
                  {"loss_difference", r.cost->loss_difference},
                  {"loss_difference_error", r.cost->difference_error},
                  {"kl_divergence", r.cost->divergence},
                  {"same_token", r.cost->agreement},
                  {"cosine", r.cost->cosine}});
    rows.push_back(std::move(row));
  }
  const InferenceAdvice advice = advise_inference(f.rows);
  return OrderedJson{{"ladder", "inference"},      {"title", f.title},
                     {"conditions", f.conditions}, {"rungs", rows},
                     {"verdicts", advice.lines},   {"use", advice.use}}
      .dump();
}

std::string inference_section(const InferenceFigures& f) {
  const bool costs = has_costs(f);
  std::vector<std::string> heads{"rung",    "ms/token", "quartiles", "speed", "prompt tokens/s",
                                 "weights", "of first", "bandwidth"};
  if (costs) heads.insert(heads.end(), {"loss", "to fp32", "KL divergence", "same token"});
  std::string rows, lines;
  const auto optional_cell = [](bool known, double value, const std::string& text) {
    return known ? cell(value, text) : cell(-1, "-");
  };
  for (const InferenceRung& r : f.rows) {
    rows += "<tr><td>" + html_text(r.name) + "</td>";
    if (!r.failure.empty()) {
      rows += fmt::format(
          "<td colspan=\"{}\" data-v=\"-1\" "
          "style=\"white-space:normal;text-align:left\">{}</td></tr>\n",
          heads.size() - 1, html_text(r.failure));
      continue;
    }
    const Against a = r.against_first.value_or(Against{});
    const infer::TokenComparison c = r.cost.value_or(infer::TokenComparison{});
    rows += cell(r.ms.median, fmt::format("{:.3f}", r.ms.median)) +
            cell(r.ms.low, quartiles_text(r.ms, r.rounds, 3)) +
            optional_cell(a.speed > 0, a.speed, ratio_text(a.speed)) +
            cell(r.prompt_per_second, fmt::format("{:.0f}", r.prompt_per_second)) +
            cell(static_cast<double>(r.weight_bytes), memory_text(r.weight_bytes)) +
            optional_cell(a.memory > 0, a.memory, ratio_text(a.memory)) +
            cell(r.bandwidth_fraction, fmt::format("{:.0f}%", 100 * r.bandwidth_fraction));
    if (costs)
      rows +=
          optional_cell(r.cost.has_value(), c.loss, fmt::format("{:.4f}", c.loss)) +
          optional_cell(r.cost.has_value(), c.loss_difference,
                        fmt::format("{:+.4f}", c.loss_difference)) +
          optional_cell(r.cost.has_value(), c.divergence, fmt::format("{:.2g}", c.divergence)) +
          optional_cell(r.cost.has_value(), c.agreement, fmt::format("{:.1f}%", 100 * c.agreement));
    rows += "</tr>\n";
  }
  const InferenceAdvice advice = advise_inference(f.rows);
  for (const std::string& line : advice.lines) lines += "<li>" + html_text(line) + "</li>";
  return card(f.title, sorting_table(heads, rows) + "<p class=\"faint\">" +
                           html_text(f.conditions) + "</p><ol>" + lines + "</ol><p><b>" +
                           html_text(advice.use) + "</b></p>");
}

}  // namespace brrr::insight
