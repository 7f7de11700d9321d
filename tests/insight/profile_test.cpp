// A profile: its groups are its kernels, its parts are the step, its work is the plan's, its trace
// nests.
#include "insight/profile/profile.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/threads/parallel.h"
#include "insight/profile_sample.h"
#include "ops/ops.h"
#include "support/locked_device.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

double sum_ms(const std::vector<Group>& groups) {
  return std::accumulate(groups.begin(), groups.end(), 0.0,
                         [](double s, const Group& g) { return s + g.ms; });
}

/// No byte of it is touched but by the device itself.
TEST(Profile, OfADeviceWithMemoryOfItsOwn) {
  test::LockedDeviceLog log;
  const Backend backend = test::locked_backend(log, true);
  const Ceilings c = measure_device(backend, int64_t{4} << 20, 0);
  EXPECT_EQ(c.device, "locked");
  EXPECT_GT(c.f32, 1e7);
  EXPECT_EQ(c.tf32, 0) << "this backend has none";
  ASSERT_EQ(c.levels.size(), 1u) << "nobody says how large its caches are";
  EXPECT_GT(c.levels[0].read, 1e6);
  EXPECT_GT(c.launch_seconds, 0);

  Graph g;
  const Value x = g.input("x", {24, 32}, DType::f32);
  g.output("y", exp(matmul(x, g.input("w", {32, 16}, DType::f32, InputKind::parameter))));
  const auto workload = graph_workload(g, {}, backend);
  workload->allocate();
  const Profile p = profile(*workload, c, 0);
  EXPECT_TRUE(p.place().ends_with(" on locked")) << p.place();
  EXPECT_FALSE(p.kernels.empty());
  EXPECT_EQ(Json::parse(report_json(p)).at("device"), "locked");
  EXPECT_EQ(report(p, false).find("the team"), std::string::npos) << "that is the host's";
  EXPECT_GT(log.runs, 0);
}

TEST(Profile, GroupsAreTheKernels) {
  for (const Mode mode : {Mode::training, Mode::inference, Mode::generation}) {
    const Profile p = measured(sample_options(mode));
    SCOPED_TRACE(name_of(mode));
    double ms = 0, flops = 0;
    int64_t calls = 0;
    for (const KernelProfile& k : p.kernels) {
      ms += k.ms;
      flops += k.flops;
      calls += k.calls;
      EXPECT_FALSE(k.name.empty());
      EXPECT_FALSE(k.kernel.empty());
      EXPECT_GT(k.verdict.ceiling_seconds, 0);
    }
    for (const auto* groups : {&p.by_kind, &p.by_class, &p.by_phase, &p.by_scope}) {
      EXPECT_NEAR(sum_ms(*groups), ms, 1e-9 * ms);
      double share = 0, done = 0;
      int64_t n = 0, called = 0;
      for (const Group& g : *groups) {
        share += g.share;
        done += g.flops;
        n += g.kernels;
        called += g.calls;
      }
      EXPECT_NEAR(share, 1, 1e-9);
      EXPECT_NEAR(done, flops, 1e-6 * flops);
      EXPECT_EQ(n, static_cast<int64_t>(p.kernels.size()));
      EXPECT_EQ(called, calls);
    }
    EXPECT_EQ(p.by_phase.size(), mode == Mode::training ? 3u : 1u);
    EXPECT_GT(p.step.median, 0);
    EXPECT_GE(p.steps, 5);
  }
}

TEST(Profile, PartsAreTheStep) {
  const Profile& p = sample_profile();
  ASSERT_EQ(p.traced.size(), 3u);
  for (const TracedStep& step : p.traced) {
    double runs = 0, end = step.clock.start + step.clock.batch;
    for (const TracedStep::Run& run : step.runs) {
      EXPECT_GE(run.start, end) << "programs follow the batch and each other";
      end = run.start;
      double inside = 0;
      for (const TracedStep::Slice& s : run.slices) {
        EXPECT_GE(s.start, end);
        end = s.start + s.seconds;
        inside += s.seconds;
      }
      EXPECT_LE(end, run.start + run.seconds);
      EXPECT_LE(inside, run.seconds);
      runs += run.seconds;
    }
    EXPECT_LE(runs + step.clock.batch, step.clock.wall);
  }
}

// What the report names beside the kernels is the rest of the step: nothing is left out, nothing
// counted twice, however busy this machine is.
TEST(Profile, KernelsAndWhatIsNamedBesideThemAreTheStep) {
  for (const Mode mode : {Mode::training, Mode::inference, Mode::generation}) {
    const Profile p = measured(sample_options(mode));
    SCOPED_TRACE(name_of(mode));
    // Looking is less than a fiftieth of a step of the smallest model.
    EXPECT_GT(p.overhead, 0);
#if !defined(BRRR_SANITIZED)
    EXPECT_LT(p.overhead, 0.02);
#endif
    const double named = p.kernels_ms + p.between_ms + p.batch_ms + p.sampling_ms + p.rest_ms;
    EXPECT_NEAR(named, p.timed_ms, 1e-6 * p.timed_ms);
    EXPECT_NEAR(sum_ms(p.by_class), p.kernels_ms, 1e-6 * p.timed_ms);
    for (const double part : {p.between_ms, p.batch_ms, p.sampling_ms, p.rest_ms}) {
      EXPECT_GE(part, 0);
      EXPECT_LT(part, p.timed_ms);
    }
    EXPECT_GT(p.kernels_ms, 0);
  }
}

TEST(Profile, AKernelOfAMiddleProgramRunsOncePerPortion) {
  const Profile p =
      measured(sample_options(Mode::training, {{"gradient-accumulation-steps", "4"}}));
  ASSERT_EQ(p.programs, (std::vector<std::string>{"first", "middle", "last"}));
  for (const KernelProfile& k : p.kernels) EXPECT_EQ(k.calls, k.program == 1 ? 2 : 1);
  for (const TracedStep& step : p.traced) EXPECT_EQ(step.runs.size(), 4u);
  EXPECT_EQ(p.tokens, 4 * 4 * 32);
}

TEST(Profile, WorkIsThatOfThePlan) {
  const WorkloadOptions w = sample_options(Mode::training);
  train::FitContext context;
  context.model = w.model;
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(w.options, context, &session);
  const RunPlan run = analyse(plan, w.model, *session, std::nullopt);
  const Profile& p = sample_profile();
  double flops = 0;
  for (const KernelProfile& k : p.kernels) flops += k.flops;
  const double planned = run.flops_forward + run.flops_backward + run.flops_optimizer;
  EXPECT_NEAR(flops / static_cast<double>(p.tokens), planned, 1e-6 * planned);
}

TEST(Profile, AnatomyAddsUpAndHasThePublishedFigures) {
  const Profile& p = sample_profile();
  ASSERT_EQ(p.anatomy.size(), 3u);
  double flops = 0, time = 0, published_flops = 0, published_time = 0;
  for (const ClassShares& c : p.anatomy) {
    flops += c.flops;
    time += c.time;
    published_flops += c.published_flops;
    published_time += c.published_time;
  }
  EXPECT_NEAR(flops, 1, 1e-9);
  EXPECT_NEAR(time, 1, 1e-9);
  EXPECT_NEAR(published_flops, 1, 1e-3);
  EXPECT_NEAR(published_time, 1, 1e-3);
  EXPECT_GT(p.anatomy[0].flops, 0.9) << "most of the work of a transformer is products";
}

TEST(Profile, GenerationCountsThePartOfTheCacheThatIsRead) {
  const auto attention_bytes = [](int64_t prompt) {
    WorkloadOptions w = sample_options(Mode::generation, {{"context", "1024"}});
    w.prompt = prompt;
    double bytes = 0;
    for (const KernelProfile& k : measured(w).kernels)
      if (k.name.starts_with("attention")) bytes += k.bytes;
    return bytes;
  };
  const double few = attention_bytes(8), many = attention_bytes(1000);
  EXPECT_GT(few, 0);
  EXPECT_GT(many, 20 * few);
}

TEST(Profile, ReportsHoldTheFactsAndKeepToTheScreen) {
  const Profile& p = sample_profile();
  const std::string text = report(p, false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(report(p, true).find('\x1b'), std::string::npos);
  for (const char* part :
       {"a small model", "by class of operation", "contraction", "backward", "optimizer",
        "between kernels", "-bound", "99.80%", "61.0%", "L3", "profiling overhead: "})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  const Json j = Json::parse(report_json(p));
  EXPECT_EQ(j["kernels"].size(), p.kernels.size());
  EXPECT_EQ(j["mode"], "training");
  EXPECT_NEAR(j["step_ms"].get<double>(), p.step.median, 1e-9);
  for (const Json& k : j["kernels"])
    EXPECT_TRUE(k["verdict"] == "compute" || k["verdict"] == "bandwidth" ||
                k["verdict"] == "overhead");
}

// -- traces
// ----------------------------------------------------------------------------------

struct Slice {
  double begin, end;  // us
  std::string name, category;
  int thread = 1;
};

std::vector<Slice> slices_of(const Profile& p) {
  const Json j = Json::parse(chrome_trace(p));
  std::vector<Slice> slices;
  for (const Json& e : j.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    // As a viewer adds them.
    const double begin = e.at("ts").get<double>(), end = begin + e.at("dur").get<double>();
    slices.push_back({begin, end, e.at("name"), e.at("cat"), e.at("tid")});
  }
  return slices;
}

bool apart(const Slice& a, const Slice& b) { return a.end <= b.begin || b.end <= a.begin; }
bool lies_in(const Slice& a, const Slice& b) { return b.begin <= a.begin && a.end <= b.end; }

TEST(Trace, NestsStrictly) {
  const Profile p =
      measured(sample_options(Mode::training, {{"gradient-accumulation-steps", "2"}}));
  const std::vector<Slice> slices = slices_of(p);
  std::map<std::string, int> categories;
  for (const Slice& s : slices) {
    EXPECT_LE(s.begin, s.end);
    ++categories[s.category];
  }
  EXPECT_EQ(categories["step"], 3);
  EXPECT_EQ(categories["program"], 6);
  EXPECT_GT(categories["scope"], 20);
  for (size_t i = 0; i < slices.size(); ++i)
    for (size_t j = i + 1; j < slices.size(); ++j) {
      const Slice &a = slices[i], &b = slices[j];
      if (a.thread != b.thread) continue;
      ASSERT_TRUE(apart(a, b) || lies_in(a, b) || lies_in(b, a)) << a.name << " and " << b.name;
    }
}

/// The number of threads until the end of the scope.
class Threads {
 public:
  explicit Threads(int n) : before_(thread_count()) { set_thread_count(n); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

/// Counts the shares of kernels by thread, and expects each to lie within its kernel.
std::map<int, int> shares_by_thread(const std::vector<Slice>& slices) {
  std::map<int, int> shares;
  for (const Slice& s : slices) {
    if (s.category != "share") continue;
    ++shares[s.thread];
    const bool held = std::any_of(slices.begin(), slices.end(), [&](const Slice& k) {
      return k.thread == 1 && k.category != "share" && k.category != "scope" && k.name == s.name &&
             lies_in(s, k);
    });
    EXPECT_TRUE(held || s.name == "share") << s.name << " of thread " << s.thread;
  }
  return shares;
}

TEST(Trace, EveryThreadOfTheTeamHasATrackOfItsShares) {
  const Threads three(3);
  // The team is smaller while other programs preempt its members.
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto shares = shares_by_thread(
        slices_of(measured(sample_options(Mode::training, {{"batch-size", "16"}}))));
    EXPECT_FALSE(shares.empty());
    // The evaluation's team may have another thread for a few of them.
    if (std::ranges::count_if(shares, [](const auto& s) { return s.second > 10; }) >= 3) return;
  }
  GTEST_SKIP() << "other programs preempted the team in every attempt";
}

TEST(Trace, LoadersAndTheEvaluationAreThere) {
  const Profile p = measured(sample_options(Mode::training, {{"dataloader-num-workers", "2"}}));
  std::set<int> makers;
  int evaluations = 0;
  for (const Slice& s : slices_of(p)) {
    if (s.name == "making a batch") makers.insert(s.thread);
    if (s.name != "evaluation of a batch") continue;
    ++evaluations;
    EXPECT_EQ(s.thread, 1);
  }
  EXPECT_EQ(evaluations, 1);
  EXPECT_FALSE(makers.empty());
  EXPECT_FALSE(makers.contains(1)) << "others make them ahead";
  const Profile alone = measured(sample_options(Mode::training, {{"dataloader-num-workers", "0"}}));
  for (const Slice& s : slices_of(alone)) {
    if (s.name == "making a batch") {
      EXPECT_EQ(s.thread, 1);
    }
  }
}

TEST(Trace, SpansAreKeptOnlyWhileTheyAreAskedFor) {
  { const WorkClock before("before"); }
  start_work_spans();
  { const WorkClock during("during"); }
  const auto spans = stop_work_spans();
  { const WorkClock after("after"); }
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_STREQ(spans[0].what, "during");
  EXPECT_TRUE(stop_work_spans().empty());
}

TEST(Trace, KernelsLieInTheirScopes) {
  const Profile& p = sample_profile();
  const std::vector<Slice> slices = slices_of(p);
  const auto holds = [&](const Slice& inner, const std::string& scope) {
    return std::any_of(slices.begin(), slices.end(), [&](const Slice& s) {
      return s.category == "scope" && s.name == scope && s.begin <= inner.begin &&
             inner.end <= s.end;
    });
  };
  int seen = 0;
  for (const Slice& s : slices)
    if (s.name == "attention" && s.category != "share") {
      EXPECT_TRUE(holds(s, "attn"));
      EXPECT_TRUE(holds(s, "h.0") || holds(s, "h.1"));
      ++seen;
    }
  EXPECT_EQ(seen, 6) << "two layers, three steps";
}

TEST(Trace, NamesAreEscaped) {
  Profile p = sample_profile();
  p.title = "a \"model\"\n\\ \xff";
  p.kernels[0].name = "quote \" and \t tab";
  const Json j = Json::parse(chrome_trace(p));
  EXPECT_FALSE(j["traceEvents"].empty());
}

TEST(Profile, APromptFitsIntoTheContextOrIsRefused) {
  WorkloadOptions w = sample_options(Mode::generation, {{"context", "9"}});
  const Profile p = measured(w);
  EXPECT_GT(p.kernels_ms, 0) << "one place is left after the prompt";
  EXPECT_NEAR(make_workload(w)->cache_share(), 8.0 / 9, 1e-9);
  w.prompt = 9;
  EXPECT_USER_ERROR(make_workload(w), "--prompt 9: expected fewer tokens than the context");
}

}  // namespace
}  // namespace brrr::insight
