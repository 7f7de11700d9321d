#include "train/run_folder.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/human.h"
#include "data/loader.h"
#include "folders/chat_template.h"
#include "folders/model_tensors.h"
#include "formats/json_file.h"
#include "runtime/ranks/state_shards.h"
#include "train/parts.h"
#include "train/ranks/write_together.h"
#include "train/runs/run_list.h"

namespace brrr::train {

using Json = nlohmann::json;

namespace {

void put_score(Json& j, const std::string& prefix, const Score& score) {
  j[prefix + "val_loss"] = score.loss;
  j[prefix + "val_tokens"] = score.tokens;
  j[prefix + "val_set"] = score.set;
  for (const auto& [name, value] : score.metrics)
    j[prefix + "metrics"].push_back({{"name", name}, {"value", value}});
}

// JSON has no NaN: it is written as null.
double number_or_nan(const Json& object, const std::string& key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

int64_t whole_number(const Json& object, const std::string& key, const std::string& what) {
  const Json& value = object.at(key);
  if (!value.is_number_integer() || value > std::numeric_limits<int64_t>::max())
    user_error("{}: expected a whole number for \"{}\", found {}", what, key, io::describe(value));
  return value.get<int64_t>();
}

Score score_in(const Json& j, const std::string& prefix, const std::string& what) {
  Score score;
  score.loss = number_or_nan(j, prefix + "val_loss");
  if (j.contains(prefix + "val_tokens"))
    score.tokens = whole_number(j, prefix + "val_tokens", what);
  score.set = j.value(prefix + "val_set", "");
  for (const Json& metric : j.value(prefix + "metrics", Json::array()))
    score.metrics.push_back({metric.at("name").get<std::string>(), number_or_nan(metric, "value")});
  return score;
}

}  // namespace

std::string to_json(const TrainerState& s) {
  Json j;
  j["step"] = s.step;
  j["evaluated"] = s.evaluated;
  if (s.last) put_score(j, "", *s.last);
  put_score(j, "best_", s.best);
  j["best_step"] = s.best_step;
  j["sampled"] = s.sampled;
  j["tokens"] = s.tokens;
  j["seconds"] = s.seconds;
  j["loader"] = s.loader;
  if (s.log_bytes) j["log_bytes"] = *s.log_bytes;
  return j.dump(2) + "\n";
}

TrainerState trainer_state_from_json(const std::string& text, const std::string& what) {
  try {
    const Json j = io::parse_json(text, what);
    const auto whole = [&](const char* key) { return whole_number(j, key, what); };
    TrainerState s;
    s.step = whole("step");
    s.evaluated = whole("evaluated");
    if (j.contains("val_loss")) s.last = score_in(j, "", what);
    s.best = score_in(j, "best_", what);
    s.best_step = whole("best_step");
    if (j.contains("sampled")) s.sampled = whole("sampled");
    s.tokens = whole("tokens");
    s.seconds = j.at("seconds").get<double>();
    s.loader = j.at("loader").get<std::string>();
    if (j.contains("log_bytes")) s.log_bytes = whole("log_bytes");
    if (s.step < 0) user_error("{}: step must not be negative; got {}", what, s.step);
    return s;
  } catch (const Json::exception& e) {
    user_error("{}: not the state of a trainer: {}", what, e.what());
  }
}

namespace {

bool writes(const Communicator* communicator) {
  return communicator == nullptr || communicator->rank() == 0;
}

/// The parameters, or what else a checkpoint keeps, as a file has them: whole tensors.
std::vector<io::TensorView> kept_states(const Engine& engine, bool parameters) {
  std::vector<io::TensorView> views;
  for (const StateInfo& s : engine.states()) {
    if (parameters ? s.kind() != InputKind::parameter : !is_kept_between_steps(s.role)) continue;
    const Type type = whole_type(s).value_or(s.type);
    views.push_back({s.name, type.dtype, type.shape, {}});
  }
  return views;
}

/// What an adapter trains is small: all ranks gather it, and the first one writes.
void write_adapter(const fs::path& folder, const models::AdaptedModel& model,
                   const ModelParts& parts) {
  std::vector<std::vector<std::byte>> rooms;
  std::vector<io::TensorView> trained;
  std::vector<std::byte> room;
  for (io::TensorView view : kept_states(parts.engine, true)) {
    if (!model.trained().contains(view.name)) continue;
    const auto bytes =
        read_whole(parts.engine, *parts.engine.find_state(view.name), parts.communicator, room);
    view.bytes = rooms.emplace_back(bytes.begin(), bytes.end());
    trained.push_back(std::move(view));
  }
  if (!writes(parts.communicator)) return;
  std::error_code ignored;
  fs::remove(folder / io::kSingleWeights, ignored);  // of a run that this one replaces
  io::write_adapter_files(
      folder, model, trained, [](const io::TensorView& view) { return view.bytes; },
      parts.adapter_base);
}

}  // namespace

int64_t gathered_bytes(const Engine& engine) {
  int64_t largest = 0;
  for (const StateInfo& s : engine.states())
    if (is_in_checkpoint(s))
      if (const std::optional<Type> whole = whole_type(s))
        largest = std::max(largest, whole->bytes());
  return largest;
}

void write_parameters(const fs::path& file, const Engine& engine, Communicator* communicator) {
  write_together(file, kept_states(engine, true), {}, engine, communicator);
}

void write_optimizer_state(const fs::path& file, const Engine& engine, Communicator* communicator) {
  write_together(file, kept_states(engine, false), {}, engine, communicator);
}

void write_model(const fs::path& folder, const ModelParts& parts) {
  if (parts.model.adapted() != nullptr) {
    write_adapter(folder, *parts.model.adapted(), parts);
  } else {
    const io::ModelTensors all = io::model_tensors(parts.model, kept_states(parts.engine, true));
    write_together(folder / io::kSingleWeights, all.tensors, all.metadata, parts.engine,
                   parts.communicator);
    if (writes(parts.communicator)) io::write_model_config(folder, parts.model, all.stored);
  }
  if (!writes(parts.communicator)) return;
  if (parts.tokenizer != nullptr) parts.tokenizer->save(folder);
  if (!parts.preprocessor.empty())
    write_file_atomically(folder / io::kPreprocessorConfig, parts.preprocessor);
  if (!parts.generation_config.empty())
    write_file_atomically(folder / io::kGenerationConfig, parts.generation_config);
  if (!parts.chat_template.empty())
    write_file_atomically(folder / io::kChatTemplate, parts.chat_template);
}

void write_final_model(const fs::path& run, const ModelParts& parts) {
  if (writes(parts.communicator)) io::remove_model_checksums(run);
  write_model(run, parts);
  if (writes(parts.communicator)) io::write_model_checksums(run);
  if (parts.communicator != nullptr) parts.communicator->barrier();
}

void save_checkpoint(const fs::path& run, const ModelParts& parts, const TrainOptions& options,
                     const TrainerState& state,
                     const std::function<void(const fs::path& folder)>& add) {
  if (!writes(parts.communicator)) {
    write_model(run, parts);
    write_optimizer_state(run, parts.engine, parts.communicator);
    parts.communicator->barrier();  // the checkpoint is there
    return;
  }
  io::CheckpointWriter writer(run, state.step);
  write_model(writer.folder(), parts);
  write_optimizer_state(writer.path("optimizer.safetensors"), parts.engine, parts.communicator);
  write_file_atomically(writer.path("train_config.json"), to_json(options));
  write_file_atomically(writer.path("trainer_state.json"), to_json(state));
  if (add) add(writer.folder());
  writer.commit();
  io::drop_set_aside(run);
  io::PruneOptions prune_options;
  if (options.save_total_limit > 0)
    prune_options.keep_last = static_cast<int>(options.save_total_limit);
  else
    prune_options.keep_last = std::numeric_limits<int>::max();
  if (state.best_step >= 0) prune_options.also_keep.insert(state.best_step);
  prune_options.just_written = state.step;
  io::prune(run, prune_options);
  if (parts.communicator != nullptr) parts.communicator->barrier();
}

void load_optimizer_state(const fs::path& path, Engine& engine, const std::string& optim) {
  const io::SafetensorsFile file(path);
  std::set<std::string> wanted;
  for (const StateInfo& s : engine.states()) {
    if (!is_kept_between_steps(s.role)) continue;
    wanted.insert(s.name);
    const io::TensorView* tensor = file.find(s.name);
    const std::optional<Type> whole = whole_type(s);
    const Type& type = whole ? *whole : s.type;
    if (tensor == nullptr || tensor->dtype != type.dtype || tensor->shape != type.shape)
      user_error(
          "{}: not the state of this run's optimizer ({}): it needs '{}' as {}, the file has {}",
          file.what(), optim, s.name, type.str(),
          tensor == nullptr ? "none"
                            : fmt::format("{}{}", name_of(tensor->dtype), tensor->shape.str()));
    if (whole)
      engine.fill_state(s.name, [&](std::span<std::byte> to) {
        copy_shard(s, tensor->bytes, engine.backend().rank, to);
      });
    else
      engine.write_state(s.name, tensor->bytes);
    file.let_go(tensor->bytes);
  }
  for (const io::TensorView& t : file.tensors())
    if (!wanted.contains(t.name))
      user_error("{}: holds the state '{}' of another optimizer; this run's is {}", file.what(),
                 t.name, optim);
}

fs::path moved_base(const TrainOptions& options, const fs::path& checkpoint) {
  if (!io::holds_adapter(checkpoint) || options.init_from == "scratch") return {};
  if (!options.wants_resume() || !options.was_given("init-from")) {
    try {
      io::base_folder(checkpoint);
      return {};
    } catch (const UserError&) {  // it is gone
    }
    std::error_code ignored;
    if (!fs::exists(options.init_from, ignored)) return {};
  }
  const fs::path named = io::find_model(options.init_from);
  return io::holds_adapter(named) ? io::base_folder(named) : named;
}

namespace {

void load_weights(const fs::path& folder, Engine& engine, const models::Model& model,
                  const TrainOptions& options, const std::function<void()>& loaded = {}) {
  engine.load(
      *io::open_weights(folder, model, io::TaskHead::of_files, moved_base(options, folder)));
  if (loaded) loaded();
}

}  // namespace

bool load_weights_of(const fs::path& run, int64_t step, Engine& engine, const models::Model& model,
                     const TrainOptions& options, const std::function<void()>& loaded) {
  for (const io::Checkpoint& checkpoint : io::list_checkpoints(run)) {
    if (checkpoint.step != step) continue;
    load_weights(checkpoint.folder, engine, model, options, loaded);
    return true;
  }
  return false;
}

void check_resumable(const io::Checkpoint& checkpoint, const fs::path& base) {
  const fs::path& folder = checkpoint.folder;
  const auto text = [&](const char* name) { return read_file(folder / name); };
  options_from_json(text("train_config.json"), (folder / "train_config.json").string());
  const std::string state = (folder / "trainer_state.json").string();
  const TrainerState s = trainer_state_from_json(text("trainer_state.json"), state);
  if (s.step != checkpoint.step)
    user_error("{}: it is for step {}, but the checkpoint is for step {}", state, s.step,
               checkpoint.step);
  io::LoaderState::from_json(s.loader);
  const io::SafetensorsFile optimizer(folder / "optimizer.safetensors");
  io::check_readable(folder, base);
}

TrainerState load_checkpoint(const fs::path& folder, Engine& engine, const models::Model& model,
                             const TrainOptions& options) {
  load_weights(folder, engine, model, options);
  load_optimizer_state(folder / "optimizer.safetensors", engine, options.optim);
  const fs::path state = folder / "trainer_state.json";
  return trainer_state_from_json(read_file(state), state.string());
}

RunLog::RunLog(const fs::path& run, const TrainOptions& options, const models::ModelSizes& sizes,
               const TrainerState* resumed)
    : run_(run),
      title_(options.run_name.empty() ? run.filename().string() : options.run_name),
      subtitle_(fmt::format("{}, batch {} x {}, {}", text_of_sizes(sizes, options.context),
                            options.gradient_accumulation_steps, options.batch_size,
                            counted(options.max_steps, "step"))) {
  const fs::path path = run / "log.jsonl";
  remove_dead_temporaries(run);
  if (resumed != nullptr) {
    io::truncate_jsonl_after(path, resumed->step, resumed->log_bytes);
    for (const Json& record : io::read_jsonl(path)) {
      if (!record.contains("step")) continue;
      const double step = record["step"].get<double>();
      if (record.contains("loss") && record["loss"].is_number())
        curve_.add_train(step, record["loss"].get<double>());
      if (const auto evaluation = logged_evaluation(record))
        curve_.add_val(step, evaluation->loss, evaluation->set);
    }
  } else {
    std::error_code error;
    fs::remove(path, error);
  }
  jsonl_.emplace(path);
  if (options.report_to == "tensorboard")
    events_ = std::make_unique<io::EventWriter>(
        run / "tensorboard",
        resumed != nullptr ? std::optional<int64_t>(resumed->step + 1) : std::nullopt);
}

void RunLog::started(int64_t step, const std::string& machine, int64_t parameters) {
  jsonl_->write({{"step", step}, {"machine", machine}, {"parameters", parameters}});
}

void RunLog::changed(int64_t step, const std::vector<OptionChange>& changes) {
  Json list = Json::array();
  for (const OptionChange& c : changes)
    list.push_back({{"option", c.name}, {"before", c.before}, {"now", c.now}});
  jsonl_->write({{"step", step}, {"changed", std::move(list)}});
}

void RunLog::train_step(const StepRecord& r) {
  // One list for both logs: a name in log.jsonl, a tag in TensorBoard.
  Json record;
  record["step"] = r.step;
  const auto put = [&](const char* name, const std::string& tag, double value) {
    record[name] = value;
    if (events_) events_->scalar(tag, value, r.step);
  };
  // What is not known is -1 and is not written.
  const auto put_known = [&](const char* name, const std::string& tag, double value) {
    if (value >= 0) put(name, tag, value);
  };
  put("loss", "train/loss", r.loss);
  put("lr", "train/learning_rate", r.learning_rate);
  put("grad_norm", "train/grad_norm", r.grad_norm);
  for (const auto& [name, value] : r.figures) put(name.c_str(), "train/" + name, value);
  put("step_ms", "train/step_ms", 1e3 * r.seconds);
  put("tokens_per_second", "train/tokens_per_second", r.tokens_per_second());
  put("waiting_share", "train/waiting_share", r.waiting_share());
  record["tokens"] = r.tokens_so_far;
  record["seconds"] = r.seconds_so_far;
  if (r.skipped) record["skipped"] = true;
  if (r.skipped_steps) {
    put("loss_scale", "train/loss_scale", r.loss_scale);
    put("skipped_steps", "train/skipped_steps", static_cast<double>(*r.skipped_steps));
  }
  if (r.ranks) {
    put("sent_bytes", "ranks/sent_bytes", static_cast<double>(r.ranks->bytes_sent));
    put("exchange_ms", "ranks/exchange_ms", 1e3 * r.ranks->exchange_seconds);
    put("exchange_waited_ms", "ranks/exchange_waited_ms", 1e3 * r.ranks->waited_seconds);
  }
  if (r.host) {
    put("arena_bytes", "memory/arena_bytes", static_cast<double>(r.arena_bytes));
    put_known("process_bytes", "memory/process_bytes", static_cast<double>(r.host->resident_bytes));
    put_known("cpu_busy", "cpu/busy", r.host->busy);
    put_known("cpu_processors", "cpu/processors", r.host->own_processors);
    put_known("cpu_other_processors", "cpu/other_processors",
              r.host->other_processors(machine_processors()));
    put_known("cpu_clock_mhz", "cpu/clock_mhz", r.host->clock_mhz);
  }
  if (r.regimes) {
    put("share_compute", "regime/compute", r.regimes->compute);
    put("share_bandwidth", "regime/bandwidth", r.regimes->bandwidth);
    put("share_overhead", "regime/overhead", r.regimes->overhead);
    put("share_waiting", "regime/waiting", r.regimes->waiting);
    put("share_other", "regime/other", r.regimes->other);
  }
  if (r.device) {
    put_known("gpu_memory_used", "gpu/memory_used", static_cast<double>(r.device->memory_used));
    put_known("gpu_busy_percent", "gpu/busy_percent", r.device->busy_percent);
    put_known("gpu_watts", "gpu/watts", r.device->watts);
    put_known("gpu_clock_mhz", "gpu/clock_mhz", r.device->clock_mhz);
    put_known("gpu_celsius", "gpu/celsius", r.device->celsius);
  }
  jsonl_->write(record);
  curve_.add_train(static_cast<double>(r.step), r.loss);
}

void RunLog::ranks(int64_t step, const std::vector<RankStep>& means) {
  Json record = {{"step", step}};
  const auto put = [&](const char* name, const auto& value) {
    Json list = Json::array();
    for (const RankStep& rank : means) list.push_back(value(rank));
    record[name] = std::move(list);
  };
  put("rank_step_ms", [](const RankStep& r) { return 1e3 * r.seconds; });
  put("rank_waited_ms", [](const RankStep& r) { return 1e3 * r.waited_seconds; });
  put("rank_sent_bytes", [](const RankStep& r) { return r.bytes_sent; });
  put("rank_process_bytes", [](const RankStep& r) { return r.process_bytes; });
  jsonl_->write(record);
  if (!events_) return;
  for (size_t rank = 0; rank < means.size(); ++rank) {
    events_->scalar(fmt::format("rank_computed_ms/{}", rank), 1e3 * means[rank].computed_seconds(),
                    step);
    events_->scalar(fmt::format("rank_waited_ms/{}", rank), 1e3 * means[rank].waited_seconds, step);
  }
}

void RunLog::health(const HealthNote& note) {
  jsonl_->write({{"step", note.step}, {"health", name_of(note.ailment)}, {"text", note.text}});
  flush();
}

void RunLog::samples(int64_t step, const std::vector<std::string>& texts) {
  jsonl_->write({{"step", step}, {"samples", texts}});
  if (events_) events_->text("samples", texts, step);
}

void RunLog::evaluation(int64_t step, const Score& score) {
  Json record;
  record["step"] = step;
  record["val_loss"] = score.loss;
  record["val_tokens"] = score.tokens;
  record["val_set"] = score.set;
  for (const auto& [name, value] : score.metrics) record[name] = value;
  jsonl_->write(record);
  curve_.add_val(static_cast<double>(step), score.loss, score.set);
  if (!events_) return;
  events_->scalar("eval/loss", score.loss, step);
  for (const auto& [name, value] : score.metrics) events_->scalar("eval/" + name, value, step);
}

void RunLog::finished(int64_t step, Json figures) {
  jsonl_->write({{"step", step}, {"finished", true}, {"figures", std::move(figures)}});
}

void write_samples(const fs::path& run, int64_t step, const std::vector<std::string>& texts) {
  const Json samples = {{"step", step}, {"samples", texts}};
  write_file_atomically(run / "samples.json",
                        samples.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

LoggedSoFar read_log(const fs::path& run, int64_t step) {
  LoggedSoFar so_far;
  so_far.sound_step = step - 1;  // it went on from there
  for (const Json& record : io::read_jsonl(run / "log.jsonl")) {
    const auto number = [&](const char* name) -> std::optional<double> {
      const auto at = record.find(name);
      if (at == record.end() || !at->is_number()) return std::nullopt;
      return at->get<double>();
    };
    const std::optional<double> of = number("step");
    const auto evaluation = logged_evaluation(record);
    if (evaluation && std::isfinite(evaluation->loss) && of == static_cast<double>(step))
      so_far.sound_step = step;
    if (const auto skipped = number("skipped_steps"); skipped && *skipped >= 0 && *skipped < 1e15)
      so_far.skipped_steps = static_cast<int64_t>(*skipped);
    if (std::vector<std::string> texts = logged_samples(record); !texts.empty() && of) {
      so_far.samples = std::move(texts);
      so_far.samples_step = static_cast<int64_t>(*of);  // the log ends at the checkpoint's step
    }
  }
  return so_far;
}

std::string sound_checkpoint(const fs::path& run, int64_t sound_step) {
  const auto all = io::list_checkpoints(run);
  if (all.empty()) return "No checkpoint was written before it";
  const auto after = std::find_if(all.begin(), all.end(),
                                  [&](const io::Checkpoint& c) { return c.step > sound_step; });
  if (after == all.begin()) return "No checkpoint before it is known to be good";
  return fmt::format("The newest checkpoint whose loss was still finite is {}",
                     std::prev(after)->folder.string());
}

bool has_finished(const fs::path& run, int64_t step) {
  for (const Json& record : io::read_jsonl(run / "log.jsonl"))
    if (record.value("finished", Json()) == true && record.value("step", Json()) == step)
      return true;
  return false;
}

void RunLog::flush() {
  if (events_) events_->flush();
}

void RunLog::draw() {
  flush();
  write_file_atomically(run_ / "loss.svg", io::svg_plot(io::loss_plot(curve_, title_, subtitle_)));
}

}  // namespace brrr::train
