#include "insight/ladder/precision_training.h"

#include <cmath>
#include <set>

#include "base/human.h"
#include "insight/ladder/ladder.h"
#include "insight/ladder/precision.h"
#include "insight/profile/timed_step.h"
#include "machine/device.h"
#include "models/initialise.h"
#include "runtime/parameters.h"
#include "train/fit.h"
#include "train/mean_loss.h"
#include "train/parts.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

struct Trained {
  train::TrainOptions options;
  models::ModelPtr model;
  std::unique_ptr<train::Session> session;

  Trained(const KeyValues& given, int64_t vocabulary) : options(train::resolve(given)) {
    model = train::model_of(options, vocabulary);
    session = train::compile_run(options, *model);
    session->allocate();
  }
};

/// All that a step computes forwards and backwards, each value by itself: nothing is fused.
void look_at_numbers(const KeyValues& given, const Trained& trained, const io::Batch& batch,
                     RungResult& result) {
  KeyValues plain = given;
  plain.emplace_back("compile", "false");
  Trained m(plain, trained.model->sizes().vocabulary);
  std::vector<std::byte> room;
  for (const StateInfo& s : m.session->engine().states())
    m.session->engine().write_state(s.name, trained.session->engine().read_state(s.name, room));
  Magnitudes activations, gradients;
  const Graph& g = m.session->step_program().graph();
  m.session->look_at_step(m.options.max_steps, batch, 0, [&](ValueId v, const std::byte* content) {
    const Type& type = g.type(v);
    const Phase phase = g.phase(v.node);
    if (!is_float(type.dtype) || phase == Phase::optimizer) return;
    Magnitudes& seen = phase == Phase::backward ? gradients : activations;
    for (int64_t i = 0; i < type.shape.elements(); ++i)
      seen.add(load_as_double(type.dtype, content, i));
  });
  result.figures["activations"] = activations.counts();
  result.figures["gradients"] = gradients.counts();
}

}  // namespace

FormatTraining::FormatTraining(const LadderOptions& o) {
  options_ = {{"preset", "char-cpu"},
              {"max-steps", o.quick ? "120" : "400"},
              {"warmup-steps", "20"},
              {"dataloader-num-workers", "0"}};
  if (o.quick)
    for (const auto& [key, value] :
         KeyValues{{"n-layer", "2"}, {"n-embd", "64"}, {"n-head", "2"}, {"eval-batches", "10"}})
      options_.emplace_back(key, value);
  const std::set<std::string> of_text{"text", "data", "val-data", "tokenizer", "separator"};
  for (const auto& [key, value] : o.options)
    if (of_text.contains(canonical_key(key))) options_.emplace_back(key, value);
}

std::string FormatTraining::model() const {
  const train::TrainOptions o = train::resolve(options_);
  const models::ModelSizes sizes = train::model_of(o, kCharacters)->sizes();
  return fmt::format("{} ({}, {}, width {}), {}", o.preset, counted(sizes.layers, "layer"),
                     counted(sizes.heads, "head"), sizes.width, counted(o.max_steps, "step"));
}

std::string FormatTraining::key() const {
  const std::string device = train::resolve(options_).device;
  return key_on(machine::backend_for(device).name, "precision safety", options_);
}

void FormatTraining::run(const KeyValues& format, int64_t seed, RungResult& result) {
  KeyValues given = options_;
  given.insert(given.end(), format.begin(), format.end());
  if (seed > 0) given.emplace_back("seed", std::to_string(seed));
  if (!data_) data_ = train::load_dataset(train::resolve(given), "");
  Trained m(given, data_->tokenizer->vocab_size());
  load_parameters(m.session->engine(),
                  models::initial_weights(*m.model, static_cast<uint32_t>(m.options.seed)));
  const io::LoaderOptions l = train::loader_options(m.options, *m.model);
  io::Loader loader(data_->batches(l), l);
  const optim::Schedule schedule = train::schedule_of(m.options);
  int64_t skipped = 0;
  for (int64_t step = 0; step < m.options.max_steps; ++step) {
    const io::Batch& batch = loader.next();
    const train::StepResult r =
        m.session->step(step, std::span(&batch, 1), schedule.at(step), nullptr);
    if (std::isfinite(r.loss) && std::isfinite(r.grad_norm)) continue;
    if (++skipped == 1)
      if (const auto origin = m.session->first_non_finite()) result.notes["origin"] = *origin;
  }
  const io::TokenSource& judge = data_->has_val ? data_->val : data_->train;
  const train::Score mean =
      train::mean_loss(*m.session, *m.model, judge, m.options, m.options.eval_batches);
  result.notes["text"] = data_->description;
  if (std::isfinite(mean.loss)) result.figures["loss"] = {mean.loss};
  result.figures["skipped"] = {static_cast<double>(skipped)};
  if (format.empty() && seed == 0) look_at_numbers(given, m, loader.next(), result);
}

}  // namespace brrr::insight
