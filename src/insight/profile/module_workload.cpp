#include "insight/profile/module_workload.h"

#include "base/clock.h"

namespace brrr::insight {
namespace {

class ModuleRun final : public Workload {
 public:
  ModuleRun(infer::ModuleRunner& runner, const modules::ModuleValues& inputs,
            double compile_seconds)
      : runner_(runner), inputs_(inputs), compile_seconds_(compile_seconds) {}
  const Backend& backend() const override { return runner_.session().engine().backend(); }
  std::vector<ProgramRuns> programs() const override {
    const auto& ids = runner_.session().last_programs();
    std::vector<ProgramRuns> list;
    for (size_t i = 0; i < ids.size(); ++i)
      list.push_back({ids.size() == 1 ? "run" : fmt::format("run, part {}", i + 1),
                      &runner_.session().engine().program(ids[i]), 1});
    return list;
  }
  MemoryForecast forecast() const override { return runner_.session().engine().forecast(); }
  double compile_seconds() const override { return compile_seconds_; }
  int64_t tokens() const override { return 0; }
  // The programs that come after what data decided are only there when it has run.
  void allocate() override { runner_.run(inputs_); }
  StepClock run(Timeline* timeline) override {
    StepClock clock;
    clock.start = now_seconds();
    runner_.run(inputs_, {}, timeline);
    clock.wall = now_seconds() - clock.start;
    return clock;
  }

 private:
  infer::ModuleRunner& runner_;
  const modules::ModuleValues& inputs_;
  double compile_seconds_;
};

}  // namespace

std::unique_ptr<Workload> module_workload(infer::ModuleRunner& runner,
                                          const modules::ModuleValues& inputs,
                                          double compile_seconds) {
  return std::make_unique<ModuleRun>(runner, inputs, compile_seconds);
}

}  // namespace brrr::insight
