#pragma once
// `brrr train --live`: looks on while a run goes, and shows it to browsers on this machine. The
// thread that trains only adds a row of numbers per step; pages are made and sent by the server's
// threads. Nobody looks: nothing is sent.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/pace.h"
#include "insight/pages/regime_meter.h"
#include "train/run_watch.h"
#include "web/http_server.h"

namespace brrr::insight {

struct LiveState;

class LivePage : public train::RunObserver {
 public:
  /// `port` 0: any that is free. The server starts with the run; a port that cannot be had is said
  /// on standard error, and the run goes on without a page.
  explicit LivePage(int port);
  ~LivePage() override;

  void started(const train::RunStart& start) override;
  Timeline* timeline() override;
  std::optional<train::RegimeShares> regimes(const train::StepSigns& step) override;
  void step(const train::StepRecord& record) override;
  void evaluation(int64_t step, const train::Score& score) override;
  void samples(int64_t step, const std::vector<std::string>& texts) override;
  void ranks(int64_t step, const std::vector<train::RankStep>& means) override;
  void health(const train::HealthNote& note) override;

  /// The run is over: "finished", "stopped" or "failed", and a line on it. Open pages stay as they
  /// are then.
  void ended(const std::string& state, const std::string& text);
  /// Where it is, or "".
  std::string url() const;

 private:
  std::shared_ptr<LiveState> state_;  // shared with the server's streams
  std::optional<io::HttpServer> server_;
  int port_;
  std::optional<RegimeMeter> meter_;
  std::optional<TimeLeft> left_;
};

}  // namespace brrr::insight
