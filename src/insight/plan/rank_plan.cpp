#include "insight/plan/rank_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "insight/plan/plan.h"
#include "insight/plan/plan_parts.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

double published_bytes(const train::TrainOptions& o) {
  const bool is_mixed = o.precision != Precision::fp32 && o.param_dtype == Precision::fp32;
  if (!is_mixed || o.optim != "adamw") return 0;
  const auto n = static_cast<double>(o.ranks);
  switch (o.zero) {
    case 0:
      return 16;
    case 1:
      return 4 + 12 / n;
    case 2:
      return 2 + 14 / n;
    default:
      return 16 / n;
  }
}

OrderedJson json_of(const RankPlan& r) {
  OrderedJson j = {{"ranks", r.ranks},
                   {"zero", r.zero},
                   {"collectives", r.traffic.collectives},
                   {"exchanges", r.traffic.exchanges},
                   {"bytes_sent", r.traffic.mean_bytes},
                   {"bytes_sent_at_most", r.traffic.most_bytes},
                   {"kept_bytes_per_parameter", r.kept},
                   {"gradient_bytes_per_parameter", r.gradients},
                   {"link_bytes_per_second", r.link.bytes_per_second},
                   {"link_latency_us", 1e6 * r.link.latency_seconds},
                   {"link_is_shared", r.link.is_shared}};
  if (r.overlap) {
    j["communication_ms"] = 1e3 * r.overlap->link_seconds;
    j["waited_ms"] = 1e3 * r.overlap->waited_seconds;
    j["hidden_share"] = r.overlap->hidden();
    j["predicted_ms"] = 1e3 * r.overlap->seconds;
  }
  return j;
}

}  // namespace

RankPlan rank_plan_of(const RunPlan& p, const train::Session& session) {
  RankPlan r;
  r.ranks = p.plan.options.ranks;
  r.zero = p.plan.options.zero;
  r.link = p.plan.link;
  r.traffic = train::traffic_of(session);
  if (p.speed) r.overlap = train::overlap_of(session, *p.speed, r.link);
  r.published = published_bytes(p.plan.options);
  const auto n = static_cast<double>(p.model->parameter_count());
  for (const Moment& m : p.moments) {
    const auto held = [&](Holds h) { return static_cast<double>(m.bytes[static_cast<size_t>(h)]); };
    const double kept = (held(Holds::weights) + held(Holds::optimizer) + held(Holds::copies)) / n;
    const double gradients = (held(Holds::gradients) + held(Holds::gradient_sums)) / n;
    if (kept + gradients <= r.kept + r.gradients) continue;
    r.kept = kept;
    r.gradients = gradients;
  }
  return r;
}

void add_ranks(Report& report, const RankPlan& r) {
  report.heading(fmt::format("{}, ZeRO {}", counted(r.ranks, "rank"), r.zero));
  report.line(fmt::format(
      "  {:<{}} {:>11}  in {} and {}", "sent by each in a step", Report::kNameWidth,
      memory_text(static_cast<int64_t>(r.traffic.mean_bytes)),
      counted(r.traffic.collectives, "collective"), counted(r.traffic.exchanges, "exchange")));
  report.line(fmt::format("  {:<{}} {:>11.1f}  bytes per parameter", "weights, states and copies",
                          Report::kNameWidth, r.kept));
  report.line(fmt::format("  {:<{}} {:>11.1f}  bytes per parameter", "gradients and their sums",
                          Report::kNameWidth, r.gradients));
  report.line("  link: " + machine::link_text(r.link));
  if (!r.overlap) return;
  report.line(fmt::format(
      "  predicted: {} of communication a step, {:.0f}% of it behind kernels, {} waited for",
      machine::predicted_duration(1e3 * r.overlap->link_seconds), 100 * r.overlap->hidden(),
      machine::predicted_duration(1e3 * r.overlap->waited_seconds)));
}

std::string rank_plan_json(const RankPlan& plan) { return json_of(plan).dump(); }

std::string compare_stages(std::span<const RunPlan> plans, bool colour) {
  Report report(colour);
  report.line(title(plans.front()));
  report.heading(fmt::format("what {} divide", counted(plans.front().plan.options.ranks, "rank")));
  report.line(fmt::format("  {:<4} {:>8} {:>9} {:>7} {:>9} {:>11} {:>11} {:>10} {:>8} {:>7} {:>8}",
                          "ZeRO", "kept", "gradients", "both", "published", "arena", "sent",
                          "exchanges", "link", "hidden", "step"));
  for (const RunPlan& p : plans) {
    const RankPlan& r = *p.ranks;
    const auto duration = [&](double seconds) {
      return r.overlap ? machine::predicted_duration(1e3 * seconds) : std::string("-");
    };
    const Overlap o = r.overlap.value_or(Overlap());
    report.line(fmt::format(
        "  {:<4} {:>8.2f} {:>9.2f} {:>7.2f} {:>9} {:>11} {:>11} {:>10} {:>8} {:>7} {:>8}", r.zero,
        r.kept, r.gradients, r.kept + r.gradients,
        r.published > 0 ? fmt::format("{:.2f}", r.published) : "-",
        memory_text(p.plan.arena.total()), memory_text(static_cast<int64_t>(r.traffic.mean_bytes)),
        r.traffic.exchanges, duration(o.link_seconds),
        r.overlap ? fmt::format("{:.0f}%", 100 * o.hidden()) : "-", duration(o.seconds)));
  }
  report.line("");
  report.line("  kept (weights, states, copies), gradients: bytes per parameter; link: time of");
  report.line("  communication; hidden: the share of it behind kernels; times are predicted");
  report.line("  link: " + machine::link_text(plans.front().ranks->link));
  return report.take();
}

std::string compare_stages_json(std::span<const RunPlan> plans) {
  OrderedJson stages = OrderedJson::array();
  for (const RunPlan& p : plans) {
    OrderedJson stage = json_of(*p.ranks);
    stage["published_bytes_per_parameter"] =
        p.ranks->published > 0 ? OrderedJson(p.ranks->published) : OrderedJson(nullptr);
    stage["arena_bytes"] = p.plan.arena.total();
    stages.push_back(std::move(stage));
  }
  return OrderedJson{{"stages", stages}}.dump() + "\n";
}

}  // namespace brrr::insight
