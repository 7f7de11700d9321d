#pragma once
// A small profile for the tests of what shows one: a training step of a tiny model, measured.

#include "insight/plan/plan.h"
#include "insight/profile/advice.h"
#include "insight/profile/profile.h"
#include "train/trainer.h"

namespace brrr::insight {

/// Round figures, so that tests hang on no machine.
inline Ceilings sample_ceilings() {
  Ceilings c;
  c.f32 = 100e9;
  c.bf16 = 100e9;
  c.levels = {
      {"L2", 1 << 20, 200e9, 200e9}, {"L3", 16 << 20, 80e9, 80e9}, {"memory", 0, 20e9, 10e9}};
  c.launch_seconds = 1e-7;
  c.team_seconds = 2e-6;
  c.tick_seconds = 12e-9;
  return c;
}

inline WorkloadOptions sample_options(Mode mode, const KeyValues& given = {}) {
  WorkloadOptions w;
  w.mode = mode;
  const KeyValues small{{"n-layer", "2"}, {"batch-size", "4"}, {"context", "32"}};
  w.options = train::resolve(train::overlaid(small, given));
  w.model = train::model_of(w.options, 65);
  w.prompt = 8;
  return w;
}

inline Profile measured(const WorkloadOptions& options) {
  const auto workload = make_workload(options);
  workload->allocate();
  Profile p = profile(*workload, sample_ceilings(), 0);
  p.mode = options.mode;
  p.title = "a small model";
  return p;
}

inline const Profile& sample_profile() {
  static const Profile p = measured(sample_options(Mode::training));
  return p;
}

inline Profile advised_profile() {
  Profile p = sample_profile();
  p.advised = true;
  p.advice = {{"compile", "the compiler is <off>", "--compile", 20, 10, {{"compile", "true"}}}};
  return p;
}

inline Pictures sample_memory_pictures() {
  const WorkloadOptions w = sample_options(Mode::training);
  train::FitContext context;
  context.model = w.model;
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(w.options, context, &session);
  const RunPlan planned = analyse(plan, w.model, *session, std::nullopt);
  return {memory_picture(planned), memory_picture(planned, PictureWidth::phone)};
}

}  // namespace brrr::insight
