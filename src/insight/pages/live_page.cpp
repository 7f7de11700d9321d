#include "insight/pages/live_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>

#include "base/clock.h"
#include "base/tell.h"
#include "formats/json_file.h"
#include "formats/jsonl.h"
#include "insight/pages/run_page.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

constexpr double kMeasureSeconds = 0.005;  // for each of the machine's ceilings
constexpr int64_t kLeastBuffers = int64_t{64} << 20, kMostBuffers = int64_t{1} << 30;

}  // namespace

/// What is known of the newest step.
struct LiveStep {
  std::string state = "running", text = "running";
  int64_t step = 0, total = 0;
  std::optional<double> loss, val_loss, learning_rate, grad_norm, step_ms, tokens_per_second,
      waiting_share, process_bytes, seconds_left;
  std::vector<io::Metric> metrics;  // of the task, at the last evaluation

  Json json() const {
    const auto or_null = [](const std::optional<double>& v) {
      return v && std::isfinite(*v) ? Json(*v) : Json(nullptr);
    };
    Json scores = Json::object();
    for (const auto& [name, value] : metrics) scores[name] = or_null(value);
    return {{"metrics", scores},
            {"state", state},
            {"status", text},
            {"step", step},
            {"total", total},
            {"loss", or_null(loss)},
            {"val_loss", or_null(val_loss)},
            {"lr", or_null(learning_rate)},
            {"grad_norm", or_null(grad_norm)},
            {"step_ms", or_null(step_ms)},
            {"tokens_per_second", or_null(tokens_per_second)},
            {"waiting_share", or_null(waiting_share)},
            {"process_bytes", or_null(process_bytes)},
            {"seconds_left", or_null(seconds_left)}};
  }
};

// What the run and the server's threads share. The lock is held to copy, never to make or send
// text, so nobody who looks can hold the run up.
struct LiveState {
  std::mutex mutex;
  RunHistory history;
  LiveStep now;
  uint64_t version = 1;  // increases with everything new
};

namespace {

class Stream : public io::EventSource {
 public:
  explicit Stream(std::shared_ptr<LiveState> state) : state_(std::move(state)) {}
  std::string next() override {
    RunHistory history;
    LiveStep now;
    {
      const std::lock_guard hold(state_->mutex);
      if (seen_ == state_->version) return "";
      seen_ = state_->version;
      history = state_->history;
      now = state_->now;
    }
    const Json message = {{"news", history.news(place_)}, {"now", now.json()}};
    return message.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  std::shared_ptr<LiveState> state_;
  uint64_t seen_ = 0;
  RunHistory::Place place_;
};

/// The run as its folder does not tell it yet.
RunRecord record_of(const train::RunStart& start) {
  RunRecord record;
  record.folder = start.run;
  record.name =
      start.options.run_name.empty() ? start.run.filename().string() : start.options.run_name;
  record.options = Json::parse(train::to_json(start.options));
  record.machine = start.machine;
  record.parameters = static_cast<double>(start.parameters);
  return record;
}

/// Nothing where a device has no memory left to be measured with.
std::optional<RegimeMeter> meter_for(const train::Session& session) {
  const Backend& backend = session.engine().backend();
  if (backend.open_device != nullptr) {
    int64_t free = backend.memory_bytes - session.engine().arena_bytes();
    if (const auto now = session.engine().device().reading(); now && now->memory_used >= 0)
      free = std::min(free, now->memory_total - now->memory_used);
    if (free / 4 < std::max(kLeastBuffers, 4 * backend.cache_bytes)) return std::nullopt;
    try {
      return RegimeMeter(
          measure_device(backend, std::min(free / 4, kMostBuffers), kMeasureSeconds));
    } catch (const UserError& e) {  // other work took the memory meanwhile
      tell("live: the peak rates of this GPU are unknown: {}\n", e.what());
      return std::nullopt;
    }
  }
  // The buffers of the measurement take no more than what steps compute in, of which nothing is
  // resident yet.
  constexpr int64_t kLeast = int64_t{1} << 20;
  const int64_t buffers = std::max(session.engine().forecast().temporary_bytes, kLeast);
  return RegimeMeter(measure_ceilings(4 * buffers, kMeasureSeconds, 1));
}

}  // namespace

LivePage::LivePage(int port) : state_(std::make_shared<LiveState>()), port_(port) {}

LivePage::~LivePage() { ended("stopped", "stopped"); }

void LivePage::started(const train::RunStart& start) {
  LiveState& s = *state_;
  s.now.step = start.first_step;
  s.now.total = start.options.max_steps;
  left_.emplace(s.now.total);
  if (start.first_step > 0)
    io::each_jsonl_record(
        start.run / "log.jsonl", [&](const Json& record) { s.history.add_logged(record); },
        [](const std::string&) {});
  io::HttpRoutes routes;
  const std::string html = run_page({record_of(start)}, true);
  routes.pages.push_back({"/", "text/html; charset=utf-8", [html] { return html; }});
  routes.streams.push_back(
      {"/events", [state = state_] { return std::make_unique<Stream>(state); }});
  try {
    server_.emplace(port_, std::move(routes));
  } catch (const UserError& e) {
    tell("no live page: {}\n", e.what());
    return;
  }
  meter_ = meter_for(start.session);
  tell("live: {}\n", url());
}

Timeline* LivePage::timeline() { return meter_ ? meter_->timeline() : nullptr; }

std::optional<train::RegimeShares> LivePage::regimes(const train::StepSigns& step) {
  if (!meter_) return std::nullopt;
  return meter_->shares(step.seconds, step.waited);
}

void LivePage::step(const train::StepRecord& r) {
  const std::lock_guard hold(state_->mutex);
  LiveStep& now = state_->now;
  state_->history.add(r);
  ++state_->version;
  now.step = r.step;
  now.loss = r.loss;
  now.learning_rate = r.learning_rate;
  now.grad_norm = r.grad_norm;
  now.step_ms = r.recent.step_ms;
  now.tokens_per_second = r.recent.tokens_per_second;
  now.waiting_share = r.recent.waiting_share;
  if (r.host && r.host->resident_bytes >= 0)
    now.process_bytes = static_cast<double>(r.host->resident_bytes);
  left_->note(r.step);
  now.seconds_left = left_->seconds();
}

void LivePage::evaluation(int64_t step, const train::Score& score) {
  const std::lock_guard hold(state_->mutex);
  state_->history.evaluation(step, score.loss, score.set, score.tokens);
  state_->now.val_loss = score.loss;
  state_->now.metrics = score.metrics;
  ++state_->version;
}

void LivePage::samples(int64_t step, const std::vector<std::string>& texts) {
  const std::lock_guard hold(state_->mutex);
  for (const std::string& text : texts) state_->history.sample(step, text);
  ++state_->version;
}

void LivePage::ranks(int64_t step, const std::vector<train::RankStep>& means) {
  const std::lock_guard hold(state_->mutex);
  state_->history.ranks(step, means);
  ++state_->version;
}

void LivePage::health(const train::HealthNote& note) {
  const std::lock_guard hold(state_->mutex);
  state_->history.note(note.step, std::string(name_of(note.ailment)), note.text);
  ++state_->version;
}

void LivePage::ended(const std::string& state, const std::string& text) {
  const std::lock_guard hold(state_->mutex);
  if (state_->now.state != "running") return;
  state_->now.state = state;
  state_->now.text = text;
  state_->now.seconds_left.reset();
  ++state_->version;
}

std::string LivePage::url() const { return server_ ? server_->url() : ""; }

}  // namespace brrr::insight
