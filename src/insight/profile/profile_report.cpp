// A profile as tables for people and as one object for programs.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "insight/profile/advice.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr size_t kMostKinds = 12, kMostScopes = 10;
constexpr size_t kKernelWidth = 44, kTextWidth = 90, kMostAdvice = 3;

std::string clipped(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 2) + "..";
}

class ProfileReport {
 public:
  explicit ProfileReport(bool colour) : colour_(colour) {}
  void heading(const std::string& text) { line("\n" + painted(text, "1")); }
  void line(const std::string& text) {
    out_.append(text, 0, text.find_last_not_of(' ') + 1).append("\n");
  }
  void columns(const std::string& title) {
    heading(fmt::format("{:<{}} {:>5} {:>9} {:>6} {:>7} {:>6} {:>5} {:<9}", title, kKernelWidth + 2,
                        "calls", "ms", "share", "GFLOP/s", "GB/s", "ceil.", "verdict"));
  }
  void group(const std::string& name, const Group& g) {
    line(fmt::format("  {:<{}} {:>5} {:>9} {:>5.1f}% {:>7} {:>6} {:>4.0f}% {}",
                     clipped(name, kKernelWidth), kKernelWidth, g.calls, number_text(g.ms),
                     100 * g.share, number_text(g.gflops()), number_text(g.gbytes()),
                     100 * g.ceiling(), verdict(g.bound())));
  }
  std::string painted(const std::string& text, const char* code) const {
    return colour_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  }
  std::string verdict(Bound bound) const {
    constexpr const char* kColours[] = {"32", "33", "31", "35"};
    return painted(std::string(name_of(bound)), kColours[static_cast<size_t>(bound)]);
  }
  std::string take() { return std::move(out_); }

 private:
  bool colour_;
  std::string out_;
};

void add_step(ProfileReport& r, const Profile& p) {
  r.line(p.title);
  r.line(fmt::format("{}; compiled in {}, arena {}", p.place(), duration_text(1e-3 * p.compile_ms),
                     memory_text(p.memory.total())));
  std::string speed;
  if (p.tokens > 0 && p.step.median > 0)
    speed = fmt::format(
        ", {} {}",
        with_commas(static_cast<int64_t>(1e3 * static_cast<double>(p.tokens) / p.step.median)),
        p.rate_unit());
  r.line(fmt::format("a step: {} ({}-{}){}; profiling overhead: {:.1f}%, {} each way",
                     duration_text(1e-3 * p.step.median), duration_text(1e-3 * p.step.low),
                     duration_text(1e-3 * p.step.high), speed, 100 * p.overhead,
                     counted(p.steps, "step")));
  if (p.is_disturbed()) r.line(r.painted(p.warning(), "33"));
}

/// The kernels' time by what held them up.
std::array<double, kBounds> bound_ms(const Profile& p) {
  std::array<double, kBounds> ms{};
  for (const Group& g : p.by_phase)
    for (size_t i = 0; i < kBounds; ++i) ms[i] += g.bound_ms[i];
  return ms;
}

void add_parts(ProfileReport& r, const Profile& p) {
  r.heading(fmt::format("where the time goes: {}, the timed steps' middle half",
                        duration_text(1e-3 * p.timed_ms)));
  const auto row = [&](const char* name, double ms, const char* more = "") {
    if (p.timed_ms > 0)
      r.line(fmt::format("  {:<28} {:>10} {:>6.1f}%  {}", name, duration_text(1e-3 * ms),
                         100 * ms / p.timed_ms, more));
  };
  row("kernels", p.kernels_ms);
  const std::array<double, kBounds> bounds = bound_ms(p);
  const bool on_host = p.ceilings.device.empty();
  const char* const kMeaning[] = {
      "limited by arithmetic", "limited by memory traffic",
      on_host ? "limited by starting kernels and threads" : "limited by kernel launches",
      "ops on types that have no kernel: the loops of the reference interpreter",
      "waiting for what other ranks send"};
  for (size_t i = 0; i < kBounds; ++i)
    if (i < static_cast<size_t>(Bound::reference) || bounds[i] > 0)
      row(fmt::format("  {}", phrase_of(static_cast<Bound>(i))).c_str(), bounds[i], kMeaning[i]);
  // A device's clock counts what lies between two kernels with the second.
  row(on_host ? "between kernels" : "starting, waiting for its end", p.between_ms);
  if (p.mode == Mode::training) row("preparing or awaiting batch", p.batch_ms);
  if (p.sampling_ms > 0) row("choosing the token", p.sampling_ms);
  row("inputs, results", p.rest_ms);
  if (p.exchange)
    r.line(fmt::format(
        "  rank {} of {} sends {} a step in {} of exchanges, {}/s; the step waits {}, {:.0f}% are "
        "hidden",
        p.exchange->rank, p.exchange->ranks,
        memory_text(static_cast<int64_t>(p.exchange->bytes_sent)),
        duration_text(1e-3 * p.exchange->busy_ms),
        memory_text(static_cast<int64_t>(p.exchange->bytes_per_second())),
        duration_text(1e-3 * p.exchange->waited_ms), 100 * p.exchange->hidden()));
  if (p.evaluation_ms > 0 && p.evaluation_every > 0) {
    const double every = p.step.median * static_cast<double>(p.evaluation_every);
    r.line(fmt::format("  besides the steps: an evaluation of {} every {}, {:.1f}% of the run",
                       duration_text(1e-3 * p.evaluation_ms), counted(p.evaluation_every, "step"),
                       100 * p.evaluation_ms / (every + p.evaluation_ms)));
  }
}

void add_anatomy(ProfileReport& r, const Profile& p) {
  if (p.mode != Mode::training || p.sees_pictures) return;
  r.heading("the classes of the BERT analysis (Ivanov et al., 2021: BERT-large on a V100)");
  r.line(fmt::format("  {:<18} {:>12} {:>12} {:>18} {:>12}", "", "FLOPs here", "time here",
                     "FLOPs published", "time"));
  for (const ClassShares& c : p.anatomy)
    r.line(fmt::format("  {:<18} {:>11.2f}% {:>11.1f}% {:>17.2f}% {:>11.1f}%", c.name,
                       100 * c.flops, 100 * c.time, 100 * c.published_flops,
                       100 * c.published_time));
  r.line(
      "  forward and backward; attention as one kernel is a contraction, its softmax included;\n"
      "  what only moves data counts as element-wise; FLOPs by the parts of fused kernels");
}

void add_groups(ProfileReport& r, const Profile& p) {
  r.columns("by class of operation");
  for (const Group& g : p.by_class) r.group(g.name, g);
  if (p.mode == Mode::training) {
    r.columns("by pass");
    for (const Group& g : p.by_phase) r.group(g.name, g);
    Group data;
    data.calls = static_cast<int64_t>(p.traced.empty() ? 0 : p.traced[0].runs.size());
    // The shares above are of the kernels' time.
    if (p.timed_ms > 0)
      r.line(fmt::format("  {:<{}} {:>5} {:>9}        {:.1f}% of the step",
                         "data, besides the kernels", kKernelWidth, data.calls,
                         number_text(p.batch_ms), 100 * p.batch_ms / p.timed_ms));
  }
  r.columns("by scope of the model");
  // Layers are alike: they are one row.
  std::vector<Group> scopes;
  Group layers;
  for (const Group& g : p.by_scope) {
    if (!g.name.starts_with("h.")) {
      scopes.push_back(g);
      continue;
    }
    ++layers.kernels;
    layers += g;
  }
  if (layers.kernels > 0) {
    layers.name =
        layers.kernels == 1
            ? "h.0: the only layer"
            : fmt::format("h.0 .. h.{}: {} layers, {} each", layers.kernels - 1, layers.kernels,
                          duration_text(1e-3 * layers.ms / static_cast<double>(layers.kernels)));
    scopes.push_back(layers);
  }
  std::stable_sort(scopes.begin(), scopes.end(),
                   [](const Group& a, const Group& b) { return a.ms > b.ms; });
  if (scopes.size() > kMostScopes) {
    Group rest;
    rest.name = fmt::format("{} more", scopes.size() - kMostScopes + 1);
    for (size_t i = kMostScopes - 1; i < scopes.size(); ++i) rest += scopes[i];
    scopes.resize(kMostScopes - 1);
    scopes.push_back(std::move(rest));
  }
  for (const Group& g : scopes) r.group(g.name, g);
}

void add_kernels(ProfileReport& r, const Profile& p) {
  r.columns(fmt::format("kernels, the slowest {} of {}", std::min(kMostKinds, p.by_kind.size()),
                        counted(static_cast<int64_t>(p.by_kind.size()), "kind")));
  for (size_t i = 0; i < p.by_kind.size() && i < kMostKinds; ++i) {
    const KernelProfile& k = p.kernels[p.by_kind[i].example];
    r.group(fmt::format("{} {}", k.name, k.shape), p.by_kind[i]);
  }
  const Ceilings& c = p.ceilings;
  std::string text = fmt::format("  ceilings, measured now: {:.0f} GFLOP/s f32", 1e-9 * c.f32);
  for (const auto& [name, rate] : c.peaks())
    if (name != "f32") text += fmt::format(", {:.0f} {}", 1e-9 * rate, name);
  for (const MemoryLevel& l : c.levels)
    text += fmt::format(", {} {:.0f} GB/s", l.name, 1e-9 * l.read);
  r.line(text);
  r.line(fmt::format(
      "  starting a kernel {}{}; ceil.: what is reached of the nearest ceiling",
      duration_text(c.launch_seconds),
      c.device.empty() ? fmt::format(", the team {}", duration_text(c.team_seconds)) : ""));
}

/// Words as lines of at most `width` characters, all but the first indented.
std::string wrapped(const std::string& text, size_t width, const std::string& indent) {
  std::string out, line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n" + indent;
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out + line;
}

void add_advice(ProfileReport& r, const Profile& p) {
  if (!p.advised) return;
  r.heading("what would help most");
  if (p.advice.empty()) r.line("  no option that was tried gains more than 1%");
  for (size_t i = 0; i < p.advice.size() && i < kMostAdvice; ++i)
    r.line(fmt::format("  {}. {}", i + 1, wrapped(sentence(p.advice[i]), kTextWidth, "     ")));
}

OrderedJson json_of(const Advice& a) {
  OrderedJson change = OrderedJson::object();
  for (const auto& [key, value] : a.change) change[key] = value;
  return {{"cause", a.cause},
          {"text", a.text},
          {"option", a.option},
          {"ms", a.ms},
          {"predicted_ms", a.predicted_ms},
          {"gain", a.gain()},
          {"tried", a.tried},
          {"change", change}};
}

OrderedJson json_of(const Group& g) {
  return {{"name", g.name},
          {"kernels", g.kernels},
          {"calls", g.calls},
          {"ms", g.ms},
          {"share", g.share},
          {"flops", g.flops},
          {"bytes", g.bytes},
          {"gflops_per_second", g.gflops()},
          {"gbytes_per_second", g.gbytes()},
          {"of_ceiling", g.ceiling()},
          {"verdict", name_of(g.bound())}};
}

OrderedJson json_of(const Profile& p, const KernelProfile& k) {
  return {{"program", p.programs[k.program]},
          {"node", k.node},
          {"name", k.name},
          {"kernel", k.kernel},
          {"shape", k.shape},
          {"scope", k.scope},
          {"class", name_of(k.op_class)},
          {"pass", k.phase},
          {"calls", k.calls},
          {"ms", k.ms},
          {"flops", k.flops},
          {"bytes", k.bytes},
          {"of_ceiling", k.ceiling()},
          {"verdict", name_of(k.verdict.bound)}};
}

}  // namespace

std::string number_text(double value) {
  const double size = std::abs(value);
  if (size >= 9999.5) return with_commas(static_cast<int64_t>(value + 0.5));
  return fmt::format("{:.{}f}", value, size >= 999.5 ? 0 : size >= 9.995 ? 1 : size >= 0.1 ? 2 : 3);
}

std::string report(const Profile& p, bool colour) {
  ProfileReport r(colour);
  add_step(r, p);
  add_advice(r, p);
  add_parts(r, p);
  add_groups(r, p);
  add_kernels(r, p);
  add_anatomy(r, p);
  return r.take();
}

std::string report_json(const Profile& p) {
  OrderedJson advice = OrderedJson::array();
  for (const Advice& a : p.advice) advice.push_back(json_of(a));
  const auto list = [](const std::vector<Group>& groups) {
    OrderedJson rows = OrderedJson::array();
    for (const Group& g : groups) rows.push_back(json_of(g));
    return rows;
  };
  OrderedJson kernels = OrderedJson::array(), anatomy = OrderedJson::array(),
              levels = OrderedJson::array();
  for (const KernelProfile& k : p.kernels) kernels.push_back(json_of(p, k));
  for (const ClassShares& c : p.anatomy)
    anatomy.push_back({{"class", c.name},
                       {"flops", c.flops},
                       {"time", c.time},
                       {"published_flops", c.published_flops},
                       {"published_time", c.published_time}});
  for (const MemoryLevel& l : p.ceilings.levels)
    levels.push_back({{"name", l.name}, {"bytes", l.bytes}, {"read", l.read}, {"write", l.write}});
  OrderedJson bounds = OrderedJson::object();
  for (size_t i = 0; i < kBounds; ++i)
    bounds[std::string(name_of(static_cast<Bound>(i)))] = bound_ms(p)[i];
  OrderedJson exchange = nullptr;
  if (p.exchange)
    exchange = {{"ranks", p.exchange->ranks},           {"rank", p.exchange->rank},
                {"bytes_sent", p.exchange->bytes_sent}, {"busy_ms", p.exchange->busy_ms},
                {"waited_ms", p.exchange->waited_ms},   {"hidden_share", p.exchange->hidden()}};
  const OrderedJson j = {
      {"mode", name_of(p.mode)},
      {"title", p.title},
      {"backend", p.backend},
      {"device", p.ceilings.device.empty() ? "host" : p.ceilings.device},
      {"threads", p.threads},
      {"tokens_per_step", p.tokens},
      {"step_ms", p.step.median},
      {"step_ms_quartiles", {p.step.low, p.step.high}},
      {"timed_step_ms", p.timed_ms},
      {"profiling_overhead", p.overhead},
      {"other_processors", p.other_processors},
      {"steps", p.steps},
      {"evaluation_ms", p.evaluation_ms},
      {"evaluation_ms_per_step",
       p.evaluation_every > 0 ? p.evaluation_ms / static_cast<double>(p.evaluation_every) : 0.0},
      {"advice", advice},
      {"parts_ms",
       {{"kernels", p.kernels_ms},
        {"between_kernels", p.between_ms},
        {"batch", p.batch_ms},
        {"sampling", p.sampling_ms},
        {"inputs_and_results", p.rest_ms}}},
      {"bound_ms", bounds},
      {"exchange", exchange},
      {"ceilings",
       {{"f32", p.ceilings.f32},
        {"tf32", p.ceilings.tf32},
        {"bf16", p.ceilings.bf16},
        {"f16", p.ceilings.compute(DType::f16)},
        {"fp8", p.ceilings.f8},
        {"levels", levels},
        {"launch_seconds", p.ceilings.launch_seconds},
        {"team_seconds", p.ceilings.team_seconds}}},
      {"by_class", list(p.by_class)},
      {"by_pass", list(p.by_phase)},
      {"by_scope", list(p.by_scope)},
      {"by_kind", list(p.by_kind)},
      {"anatomy", anatomy},
      {"kernels", kernels}};
  return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace brrr::insight
