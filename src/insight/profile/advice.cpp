#include "insight/profile/advice.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/clock.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/threads/parallel.h"
#include "insight/machine/machine.h"
#include "insight/profile/race.h"
#include "machine/device.h"

namespace brrr::insight {
namespace {

constexpr double kLeastGain = 0.01;
constexpr double kPlainGain = 0.05;
constexpr double kWorthTrying = -0.15;  // a forecast may be as wrong as that
constexpr double kFasterUnit = 1.2;     // times f32: worth another precision
constexpr double kEvalShare = 0.02;     // of the run, that evaluation should take
constexpr double kNoticedEval = 0.06;
constexpr int64_t kNiceVocabulary = 64;
constexpr double kShortTrial = 0.5;  // caches still hold what the last step left there
constexpr double kLongTrial = 10;    // seconds of a step: one round of trials has to do

class Adviser {
 public:
  Adviser(const Profile& p, Workload& w, const AdviceOptions& o)
      : p_(p),
        workload_(w),
        o_(o),
        options_(o.workload.options),
        // A device's kernels are not tried one by one: opening it for each takes longer.
        forecaster_(p, w,
                    o.trials && w.is_on_host()
                        ? std::max<int64_t>(0, (o.budget - resident_memory().needed()) / 2)
                        : 0) {}

  std::vector<Advice> all() {
    for (const Candidate& c : candidates(p_, o_)) look(c);
    look_at_batches();
    look_at_loader();
    look_at_evaluation();
    if (o_.trials && workload_.is_on_host()) look_at_threads();
    std::stable_sort(list_.begin(), list_.end(),
                     [](const Advice& a, const Advice& b) { return a.gain() > b.gain(); });
    return std::move(list_);
  }

 private:
  bool training() const { return o_.workload.mode == Mode::training; }
  /// Bytes, where the budget is.
  int64_t taken() const {
    return workload_.is_on_host() ? resident_memory().needed() : workload_.forecast().total();
  }

  /// Compiled; null when it would not fit.
  std::unique_ptr<Workload> compiled(const train::TrainOptions& options) const {
    WorkloadOptions w = o_.workload;
    w.options = options;
    if (!o_.fixed_model && options.vocab_size > w.model->sizes().vocabulary)
      w.model = w.model->with_vocabulary(options.vocab_size);
    auto other = make_workload(w);
    const int64_t grows = other->forecast().total() - workload_.forecast().total();
    if (o_.budget > 0 && taken() + grows > o_.budget) return nullptr;
    return other;
  }

  void look(const Candidate& c) {
    std::unique_ptr<Workload> other;
    try {
      other = compiled(c.options);
    } catch (const UserError&) {  // the backend has no kernels for such weights
      return;
    }
    if (other == nullptr) return;
    const PlanFacts now = forecaster_.here(), then = forecaster_.of(*other);
    Advice a{c.cause,
             fmt::format("{}: {} move {} a step; otherwise {} move {}", c.what,
                         counted(now.kernels, "kernel"), memory_text(std::llround(now.bytes)),
                         counted(then.kernels, "kernel"), memory_text(std::llround(then.bytes))),
             c.option,
             now.ms,
             then.ms,
             c.change};
    try_out(a, *other);
    add(std::move(a));
  }

  /// The forecast chose; where the plan fits beside the present one, a few steps of both decide.
  void try_out(Advice& a, Workload& other) {
    if (!o_.trials || a.gain() < kWorthTrying) return;
    if (taken() + other.forecast().total() > o_.budget) return;
    try {
      other.allocate();
      race_with(a, [&] { return other.run(nullptr).wall; });
    } catch (const UserError&) {  // a device has less than it says: the forecast has to do
    }
  }
  void race_with(Advice& a, const std::function<double()>& other) {
    if (o_.say) o_.say(fmt::format("trying {}", a.option));
    RaceOptions options;
    options.settle = 1e-3 * p_.step.median < kShortTrial;
    if (1e-3 * p_.step.median > kLongTrial) options.least_rounds = 1;
    const Race r = race([&] { return workload_.run(nullptr).wall; }, other, options);
    a.tried = true;
    a.predicted_ms = r.faster() ? a.ms * r.ratio : a.ms;
  }

  // The same step in larger portions: of those that fit, the fastest.
  void look_at_batches() {
    if (!training() || options_.gradient_accumulation_steps < 2) return;
    const int64_t rows = options_.batch_size * options_.gradient_accumulation_steps;
    const PlanFacts now = forecaster_.here();
    Advice best;
    std::unique_ptr<Workload> chosen;
    for (int64_t batch = 2 * options_.batch_size; batch <= rows; batch *= 2) {
      if (2 * batch > rows) batch = rows;
      if (rows % batch != 0) continue;
      train::TrainOptions o = options_;
      o.dump_graph.clear();
      if (o.eval_batch_size == o.batch_size) o.eval_batch_size = batch;
      o.batch_size = batch;
      o.gradient_accumulation_steps = rows / batch;
      std::unique_ptr<Workload> other = compiled(o);
      if (other == nullptr) break;
      const PlanFacts then = forecaster_.of(*other);
      if (best.ms > 0 && then.ms > 0.98 * best.predicted_ms) continue;
      chosen = std::move(other);
      best = {"micro-batch",
              fmt::format("a step runs as {} micro-batches of {}, {}; with {} it runs {}",
                          options_.gradient_accumulation_steps, counted(options_.batch_size, "row"),
                          counted(now.kernels, "kernel"),
                          rows / batch == 1 ? "one" : std::to_string(rows / batch),
                          with_commas(then.kernels)),
              fmt::format("--batch-size {} --gradient-accumulation-steps {}", batch, rows / batch),
              now.ms,
              then.ms,
              {{"batch-size", std::to_string(batch)},
               {"gradient-accumulation-steps", std::to_string(rows / batch)}}};
    }
    if (best.ms <= 0) return;
    try_out(best, *chosen);
    add(std::move(best));
  }

  // Batches that the step waits for. Beside a team as large as the machine a worker takes its time
  // from one of the team, and the others wait for that one.
  void look_at_loader() {
    const double waited = p_.batch_ms;
    if (!training() || p_.batches.count == 0 || waited < kLeastGain * p_.timed_ms) return;
    const double each = 1e3 * p_.batches.seconds_each;
    const double making = each * static_cast<double>(options_.gradient_accumulation_steps);
    if (making < waited / 2) return;  // made in time, and handed over late by a busy machine
    const double work = p_.step.median - waited;
    const int usable = read_machine().usable;
    const int64_t workers = options_.dataloader_num_workers;
    double best = p_.step.median;
    int64_t more = 0;
    for (int64_t w = workers + 1; w <= std::max<int64_t>(workers + 1, usable); ++w) {
      const bool spare = p_.threads + w <= usable;
      const double shared = spare ? 0 : making / std::max(1, usable);
      const double ms = std::max(work + shared, making / static_cast<double>(w));
      if (ms < 0.98 * best) best = ms, more = w;
    }
    if (more == 0) return;
    Advice a{"dataloader",
             fmt::format("the step waits {} for its batches, which take {} to prepare{}",
                         duration_text(1e-3 * waited), duration_text(1e-3 * making),
                         workers == 0 ? "; none are prepared ahead" : ""),
             fmt::format("--dataloader-num-workers {}", more),
             p_.step.median,
             best,
             {{"dataloader-num-workers", std::to_string(more)}}};
    train::TrainOptions o = options_;
    o.dump_graph.clear();
    o.dataloader_num_workers = more;
    if (const std::unique_ptr<Workload> other = compiled(o)) try_out(a, *other);
    add(std::move(a));
  }

  void look_at_evaluation() {
    if (!training() || p_.evaluation_ms <= 0) return;
    const double eval = p_.evaluation_ms, step = p_.step.median;
    const auto share = [&](double every) { return eval / (every * step + eval); };
    const auto every = static_cast<double>(options_.interval(options_.eval_steps));
    if (every == 0) return;
    if (share(every) < kNoticedEval) return;
    // As many steps between as bring it down, in round numbers.
    const double wanted = eval * (1 / kEvalShare - 1) / step;
    const double digit = std::pow(10.0, std::floor(std::log10(wanted)));
    const double then = std::max(every, std::ceil(wanted / digit) * digit);
    add({"evaluation",
         fmt::format("an evaluation takes {}, every {}: {:.0f}% of the run",
                     duration_text(1e-3 * eval),
                     counted(options_.interval(options_.eval_steps), "step"), 100 * share(every)),
         fmt::format("--eval-steps {:.0f}", then),
         step + eval / every,
         step + eval / then,
         {{"eval-steps", fmt::format("{:.0f}", then)}}});
  }

  // Kernels divide their work by the team that is there, so other sizes are simply tried.
  void look_at_threads() {
    const Machine m = read_machine();
    const int now = thread_count();
    Advice best;
    for (const int threads : std::set<int>{m.usable, m.cores, m.usable / 2}) {
      if (threads < 1 || threads == now) continue;
      // A team that `train` chooses itself gives way to other work.
      if (threads < now && options_.threads == 0 && p_.is_disturbed()) continue;
      Advice a{"threads",
               fmt::format("{} on {}", counted(now, "thread"), counted(m.usable, "processor")),
               fmt::format("--threads {}", threads),
               p_.step.median,
               p_.step.median,
               {{"threads", std::to_string(threads)}}};
      race_with(a, [&] {
        set_thread_count(threads);
        const double seconds = workload_.run(nullptr).wall;
        set_thread_count(now);
        return seconds;
      });
      if (best.ms <= 0 || a.gain() > best.gain()) best = std::move(a);
    }
    if (best.ms > 0 && best.gain() > kPlainGain) add(std::move(best));
  }

  void add(Advice a) {
    if (a.gain() >= kLeastGain) list_.push_back(std::move(a));
  }

  const Profile& p_;
  Workload& workload_;
  const AdviceOptions& o_;
  const train::TrainOptions& options_;
  Forecaster forecaster_;
  std::vector<Advice> list_;
};

}  // namespace

std::vector<Candidate> candidates(const Profile& p, const AdviceOptions& o) {
  const train::TrainOptions& options = o.workload.options;
  const bool training = o.workload.mode == Mode::training;
  std::vector<Candidate> list;
  const auto add = [&](std::string cause, std::string what, std::string option, KeyValues change,
                       auto&& edit) {
    Candidate c{std::move(cause), std::move(what), std::move(option), std::move(change), options};
    c.options.dump_graph.clear();
    edit(c.options);
    list.push_back(std::move(c));
  };
  if (!options.compile)
    add("compile", "the compiler is off", "--compile (leave out --no-compile)",
        {{"compile", "true"}}, [](auto& t) { t.compile = true; });
  for (const std::string& pass : options.disable_pass)
    add(pass, fmt::format("the pass {} is off", pass),
        fmt::format("{} on (leave out --disable-pass {})", pass, pass), {{"enable-pass", pass}},
        [&](auto& t) { std::erase(t.disable_pass, pass); });
  if (training && options.rematerialize != "none")
    add("rematerialize", "activations are recomputed although memory has room for them",
        "--rematerialize none", {{"rematerialize", "none"}}, [](auto& t) {
          t.rematerialize = "none";
          t.activation_memory.clear();
        });
  const bool reads_weights = o.workload.mode == Mode::generation;
  if (options.precision == Precision::fp32 && options.float32_matmul_precision == "highest" &&
      (p.ceilings.bf16 > kFasterUnit * p.ceilings.f32 || reads_weights))
    add("precision",
        reads_weights
            ? "a token reads all weights, in 32 bits"
            : fmt::format(
                  "products are in fp32; this machine computes bf16 products {:.1f} times as fast",
                  p.ceilings.bf16 / p.ceilings.f32),
        "--precision bf16", {{"precision", "bf16"}},
        [](auto& t) { t.precision = Precision::bfloat16; });
  const bool is_quantised = is_quantized(options.precision);
  const double floats = std::max(p.ceilings.f32, p.ceilings.bf16);
  if (!training && !is_quantised && machine::backend_for(options.device).memory_bytes == 0 &&
      (p.ceilings.int8 > kFasterUnit * floats || reads_weights))
    add("precision",
        fmt::format("{}; what int8 costs in quality, `brrr quantize` measures",
                    reads_weights
                        ? fmt::format("a token reads all weights in {}", options.precision)
                        : fmt::format("this machine computes int8 products {:.1f} times "
                                      "as fast as those of floats",
                                      p.ceilings.int8 / floats)),
        "--precision int8", {{"precision", "int8"}},
        [](auto& t) { t.precision = Precision::int8; });
  if (!training && is_quantised)
    add("precision", fmt::format("weights are read in {}", options.precision), "--precision bf16",
        {{"precision", "bf16"}}, [](auto& t) { t.precision = Precision::bfloat16; });
  const int64_t vocab = o.workload.model->sizes().vocabulary;
  const int64_t nice = (vocab + kNiceVocabulary - 1) / kNiceVocabulary * kNiceVocabulary;
  if (training && !o.fixed_model && vocab != nice && vocab > 16 * kNiceVocabulary)
    add("vocabulary", fmt::format("the vocabulary size of {} is awkward for products", vocab),
        fmt::format("--vocab-size {}", nice), {{"vocab-size", std::to_string(nice)}},
        [&](auto& t) { t.vocab_size = nice; });
  return list;
}

std::vector<Advice> advise(const Profile& p, Workload& workload, const AdviceOptions& options) {
  return Adviser(p, workload, options).all();
}

std::string sentence(const Advice& a) {
  return fmt::format("{}: {:.0f}% less time ({} -> {}{}) with {}", a.text, 100 * a.gain(),
                     duration_text(1e-3 * a.ms), duration_text(1e-3 * a.predicted_ms),
                     a.tried ? ", tried" : "", a.option);
}

}  // namespace brrr::insight
