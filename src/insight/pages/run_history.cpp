#include "insight/pages/run_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/human.h"
#include "train/runs/run_list.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Limits on the number of parameter sets and ranks, because another program may have written the
// log.
constexpr size_t kMostSets = 1000, kMostRanks = 1024;
constexpr const char* kTableNames[] = {"steps", "evaluations", "host", "gpu", "regimes"};

/// Six digits are enough for a picture, and half the page.
double short_of(double value) {
  if (!std::isfinite(value)) return value;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

/// A number of a record, or none: what another program wrote is not trusted to be one.
double number_in(const Json& record, const char* name) {
  const auto at = record.find(name);
  if (at == record.end() || !at->is_number()) return kNone;
  return at->get<double>();
}

double known(double value) { return value >= 0 ? value : kNone; }

std::vector<train::OptionChange> logged_changes(const Json& list) {
  const auto text = [](const Json& change, const char* name) {
    const auto at = change.find(name);
    return at != change.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  std::vector<train::OptionChange> changes;
  for (const Json& change : list)
    if (change.is_object())
      changes.push_back({text(change, "option"), text(change, "before"), text(change, "now")});
  return changes;
}

}  // namespace

Columns::Columns(std::vector<std::string> names, size_t counts, bool grouped)
    : names_(std::move(names)),
      first_mean_(counts),
      grouped_(grouped),
      columns_(names_.size()),
      sums_(names_.size()),
      counts_(names_.size()) {}

void Columns::add(const std::vector<double>& row) {
  if (grouped_ && waiting_ > 0 && row[1] != sums_[1]) finish_row();
  for (size_t i = 0; i < first_mean_; ++i) sums_[i] = row[i];
  for (size_t i = first_mean_; i < row.size(); ++i) {
    if (!std::isfinite(row[i])) continue;
    sums_[i] += row[i];
    ++counts_[i];
  }
  if (++waiting_ >= stride_) finish_row();
}

void Columns::finish_row() {
  for (size_t i = 0; i < first_mean_; ++i) columns_[i].push_back(sums_[i]);
  for (size_t i = first_mean_; i < columns_.size(); ++i) {
    columns_[i].push_back(counts_[i] > 0 ? sums_[i] / static_cast<double>(counts_[i]) : kNone);
    sums_[i] = 0;
    counts_[i] = 0;
  }
  waiting_ = 0;
  if (rows() >= kMost) halve();
}

void Columns::halve() {
  stride_ *= 2;
  ++generation_;
  const size_t half = rows() / 2;
  std::vector<bool> later_only(half);
  if (grouped_)
    for (size_t i = 0; i < half; ++i) later_only[i] = columns_[1][2 * i] != columns_[1][2 * i + 1];
  for (size_t c = 0; c < columns_.size(); ++c) {
    std::vector<double>& v = columns_[c];
    for (size_t i = 0; i < half; ++i) {
      const double a = v[2 * i], b = v[2 * i + 1];
      v[i] = c < first_mean_ || later_only[i] || !std::isfinite(a) ? b
             : !std::isfinite(b)                                   ? a
                                                                   : (a + b) / 2;
    }
    v.resize(half);
  }
}

const std::vector<double>& Columns::column(std::string_view name) const {
  const auto at = std::find(names_.begin(), names_.end(), name);
  BRRR_CHECK(at != names_.end(), "there is no column '{}'", name);
  return columns_[static_cast<size_t>(at - names_.begin())];
}

Json Columns::news(Place& place) const {
  const size_t from = place.generation == generation_ ? std::min(place.rows, rows()) : 0;
  const bool is_new = place.generation != generation_;
  place = {generation_, rows()};
  if (from == rows() && !(is_new && generation_ > 0)) return nullptr;
  Json columns = Json::object();
  for (size_t c = 0; c < columns_.size(); ++c) {
    Json values = Json::array();
    for (size_t i = from; i < rows(); ++i) {
      const double v = columns_[c][i];
      if (c < first_mean_ && v == std::floor(v))
        values.push_back(static_cast<int64_t>(v));
      else
        values.push_back(short_of(v));
    }
    columns[names_[c]] = std::move(values);
  }
  return {{"from", from}, {"columns", std::move(columns)}};
}

RunHistory::RunHistory()
    : tables_{Columns({"step", "seconds", "tokens", "loss", "lr", "grad_norm", "tokens_per_second",
                       "step_ms", "waiting_share"},
                      3),
              Columns({"step", "set", "val_loss"}, 2, true),
              Columns({"step", "process_bytes", "arena_bytes", "cpu_busy", "cpu_processors",
                       "cpu_other_processors", "cpu_clock_mhz"}),
              Columns({"step", "gpu_memory_used", "gpu_busy_percent", "gpu_watts", "gpu_clock_mhz",
                       "gpu_celsius"}),
              Columns({"step", "share_compute", "share_bandwidth", "share_overhead",
                       "share_waiting", "share_other"})} {}

void RunHistory::add(const train::StepRecord& r) {
  const auto step = static_cast<double>(r.step);
  tables_[steps].add({step, r.seconds_so_far, static_cast<double>(r.tokens_so_far), r.loss,
                      r.learning_rate, r.grad_norm, r.tokens_per_second(), 1e3 * r.seconds,
                      r.waiting_share()});
  if (r.host)
    tables_[host].add(
        {step, known(static_cast<double>(r.host->resident_bytes)),
         static_cast<double>(r.arena_bytes), known(r.host->busy), known(r.host->own_processors),
         known(r.host->other_processors(machine_processors())), known(r.host->clock_mhz)});
  if (r.device)
    tables_[gpu].add({step, known(static_cast<double>(r.device->memory_used)),
                      known(r.device->busy_percent), known(r.device->watts),
                      known(r.device->clock_mhz), known(r.device->celsius)});
  if (r.regimes)
    tables_[regimes].add({step, r.regimes->compute, r.regimes->bandwidth, r.regimes->overhead,
                          r.regimes->waiting, r.regimes->other});
}

void RunHistory::evaluation(int64_t step, double val_loss, const std::string& set, int64_t tokens) {
  auto at = std::ranges::find(sets_, set, &EvaluationSet::name);
  if (at == sets_.end()) at = sets_.insert(sets_.end(), {set, tokens});
  tables_[evaluations].add(
      {static_cast<double>(step), static_cast<double>(at - sets_.begin()), val_loss});
}

void RunHistory::ranks(int64_t step, std::span<const train::RankStep> means) {
  while (ranks_.size() < means.size())
    ranks_.emplace_back(
        std::vector<std::string>{"step", "compute_ms", "waited_ms", "sent_bytes", "process_bytes"});
  for (size_t rank = 0; rank < means.size(); ++rank) {
    const train::RankStep& r = means[rank];
    ranks_[rank].add({static_cast<double>(step), 1e3 * r.computed_seconds(), 1e3 * r.waited_seconds,
                      r.bytes_sent, r.process_bytes > 0 ? r.process_bytes : kNone});
  }
}

void RunHistory::add_logged_ranks(double step, const Json& record) {
  std::vector<train::RankStep> means;
  const auto read = [&](const char* name, double train::RankStep::*to, double unit) {
    const auto list = record.find(name);
    if (list == record.end() || !list->is_array()) return;
    means.resize(std::max(means.size(), std::min(list->size(), kMostRanks)));
    for (size_t rank = 0; rank < std::min(list->size(), kMostRanks); ++rank)
      if (const Json& value = (*list)[rank]; value.is_number())
        means[rank].*to = unit * value.get<double>();
  };
  read("rank_step_ms", &train::RankStep::seconds, 1e-3);
  if (means.empty()) return;
  read("rank_waited_ms", &train::RankStep::waited_seconds, 1e-3);
  read("rank_sent_bytes", &train::RankStep::bytes_sent, 1);
  read("rank_process_bytes", &train::RankStep::process_bytes, 1);
  ranks(static_cast<int64_t>(step), means);
}

void RunHistory::note(int64_t step, std::string kind, std::string text) {
  // The first ones and the newest: among these is what ended the run.
  if (notes_.size() == kMostNotes) notes_.erase(notes_.begin() + kMostNotes / 2);
  notes_.push_back({step, std::move(kind), std::move(text), notes_there_were_++});
}

void RunHistory::sample(int64_t step, std::string text) {
  // As with notes: how it began and how it writes now.
  if (samples_.size() == kMostSamples) samples_.erase(samples_.begin() + kMostSamples / 2);
  samples_.push_back({step, std::move(text), samples_there_were_++});
}

void RunHistory::add_logged(const Json& record) {
  const double step = number_in(record, "step");
  if (!(std::fabs(step) < 1e15)) return;
  if (const auto text = record.find("text"); record.contains("health")) {
    const auto kind = record.find("health");
    note(static_cast<int64_t>(step), kind->is_string() ? kind->get<std::string>() : "",
         text != record.end() && text->is_string() ? text->get<std::string>() : "");
    return;
  }
  if (record.contains("finished")) return;
  for (std::string& text : train::logged_samples(record))
    sample(static_cast<int64_t>(step), std::move(text));
  if (const auto changed = record.find("changed"); changed != record.end() && changed->is_array())
    if (const auto texts = train::texts_of(logged_changes(*changed)); !texts.empty())
      note(static_cast<int64_t>(step), "changed",
           fmt::format("options changed on resume: {}", listed(texts)));
  if (const auto logged = train::logged_evaluation(record);
      logged && std::isfinite(logged->loss) && sets_.size() < kMostSets)
    evaluation(static_cast<int64_t>(step), logged->loss, logged->set, logged->tokens);
  add_logged_ranks(step, record);
  for (const size_t t : {steps, host, gpu, regimes}) {
    std::vector<double> row{step};
    bool any = false;
    const std::vector<std::string>& names = tables_[t].names();
    for (size_t i = 1; i < names.size(); ++i) {
      row.push_back(number_in(record, names[i].c_str()));
      any |= std::isfinite(row.back());
    }
    if (any) tables_[t].add(row);
  }
}

Json RunHistory::news(Place& place) const {
  Json out = Json::object();
  for (size_t t = 0; t < kTables; ++t)
    if (Json news = tables_[t].news(place.tables[t]); !news.is_null())
      out["tables"][kTableNames[t]] = std::move(news);
  place.ranks.resize(std::max(place.ranks.size(), ranks_.size()));
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (Json news = ranks_[rank].news(place.ranks[rank]); !news.is_null())
      out["tables"][fmt::format("rank {}", rank)] = std::move(news);
  for (; place.sets < sets_.size(); ++place.sets)
    out["sets"].push_back({{"name", sets_[place.sets].name}, {"tokens", sets_[place.sets].tokens}});
  for (const Note& n : notes_)
    if (n.number >= place.notes)
      out["notes"].push_back({{"step", n.step}, {"kind", n.kind}, {"text", n.text}});
  place.notes = notes_there_were_;
  for (const Sample& s : samples_)
    if (s.number >= place.samples) out["samples"].push_back({{"step", s.step}, {"text", s.text}});
  place.samples = samples_there_were_;
  return out;
}

}  // namespace brrr::insight
