#include "insight/ladder/inference_ladder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/isa.h"
#include "backend/cpu/peaks.h"
#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/human.h"
#include "base/sha256.h"
#include "folders/model_folder.h"
#include "infer/evaluate.h"
#include "infer/generator.h"
#include "infer/held_out_text.h"
#include "infer/run_precision.h"
#include "insight/bench/bench.h"
#include "insight/machine/machine.h"
#include "insight/profile/timed_step.h"
#include "machine/memory_budget.h"
#include "models/initialise.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

constexpr Precision kFormats[] = {Precision::fp32, Precision::bfloat16, Precision::int8_weight_only,
                                  Precision::int8, Precision::int4};
constexpr int64_t kQuantisedFormats = 3;               // of a quantised folder: fp32, bf16, its own
constexpr int64_t kLongestPrompt = 128, kDecoded = 8;  // tokens
constexpr size_t kQuickTokens = 1024;                  // of the text, with --quick

/// Whether an option of `train` changes the model that is measured where no folder is named.
bool shapes_model(const std::string& name, const std::string& group) {
  return name == "preset" ||
         (group == "model" && name != "dropout" && name != "init-from" && name != "freeze");
}

bool inference_reads(const LadderOptions& o, const OptionInfo& given) {
  const OptionInfo& info =
      given.stands_for.empty() ? given : train::train_option_table().find(given.stands_for);
  if (info.name == "threads" || info.name == "memory-limit") return true;
  return o.model.empty() ? shapes_model(info.name, info.group) : info.name == "text";
}

/// The options that the ladder reads, without those that are no part of what is measured.
KeyValues changes_of_model(const LadderOptions& o) {
  KeyValues changes;
  for (const auto& [key, value] : o.options) {
    const OptionInfo& info = train::train_option_table().find(key);
    if (inference_reads(o, info) && info.name != "threads" && info.name != "memory-limit")
      changes.emplace_back(key, value);
  }
  return changes;
}

/// The names, sizes and times of a folder's files: others mean another model.
std::string folder_state(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const auto bytes = std::filesystem::file_size(entry.path(), none);
    if (none) continue;  // a folder
    files.push_back(fmt::format(
        "{} {} {}", entry.path().filename().string(), bytes,
        std::filesystem::last_write_time(entry.path(), none).time_since_epoch().count()));
  }
  std::ranges::sort(files);
  return fmt::format("{} {}", std::filesystem::weakly_canonical(folder, none).string(),
                     sha256_hex(fmt::format("{}", fmt::join(files, ","))).substr(0, 16));
}

/// What is measured: a folder's model with a text, or a preset's with random weights.
class Subject {
 public:
  /// Throws UserError for a model or a text on which the ladder cannot be climbed.
  explicit Subject(const LadderOptions& o) {
    if (o.model.empty())
      take_preset(o);
    else
      take_folder(o);
    const int64_t context = definition_->sizes().context;
    if (context < 2 * kDecoded)
      user_error("ladder inference: expected a context of at least {} tokens; {} has {}",
                 2 * kDecoded, name_, context);
    prompt_ = std::bit_floor(static_cast<uint64_t>(std::min(context / 2, kLongestPrompt)));
    std::string memory_limit;
    for (const auto& [key, value] : o.options)
      if (train::train_option_table().find(key).name == "memory-limit") memory_limit = value;
    memory_ = {machine::memory_budget("cpu", memory_limit), "a smaller model"};
  }

  std::vector<std::string> rungs() const {
    std::vector<std::string> names;
    for (const infer::RunPrecision& p : formats_) names.emplace_back(name_of(p.name));
    return names;
  }
  std::string key(const LadderOptions& o) const {
    return key_on(fmt::format("cpu:{}", cpu::isa_name(cpu::current_isa())), "inference",
                  {{"measures", state_}, {"seconds", show_real(seconds(o))}});
  }
  std::string title() const {
    return fmt::format("{}: number formats for inference, {}", name_,
                       folder_ ? "one text at a time" : "random weights, one text at a time");
  }
  std::string conditions() const {
    std::string text = fmt::format("decoding behind a prompt of {} tokens", prompt_);
    if (!ids_.empty())
      text += fmt::format("; loss per token, and what differs from fp32, on {} of {}",
                          counted(std::ssize(ids_) - 1, "token"), text_);
    return text;
  }

  void visit(size_t rung, const LadderOptions& o, RungResult& r) {
    const infer::RunPrecision& precision = formats_[rung];
    if (read_bandwidth_ == 0) read_bandwidth_ = measured_read_bandwidth(o);
    measure_speed(precision, seconds(o), r);
    if (!ids_.empty() && !r.figures.contains("loss") && !r.notes.contains("not compared"))
      compare(rung, r);
  }

 private:
  static double seconds(const LadderOptions& o) { return o.quick ? 0.1 : 1; }

  /// Bytes per second, over buffers beyond the caches as far as memory allows.
  static double measured_read_bandwidth(const LadderOptions& o) {
    const Machine machine = read_machine();
    int64_t memory = int64_t{256} << 20;
    if (machine.available_bytes > 0)
      memory = std::min(machine.available_bytes, machine.usable_memory_bytes());
    if (o.memory_limit > 0) memory = std::min(memory, o.memory_limit);
    return cpu::measure_bandwidth(machine.l2_bytes, machine.l3_bytes, memory, 0.1).read;
  }

  void take_preset(const LadderOptions& o) {
    KeyValues changes;
    if (o.quick)
      changes = {{"n-layer", "2"},
                 {"n-embd", "256"},
                 {"n-head", "4"},
                 {"context", "128"},
                 {"vocab-size", "4096"}};
    changes = train::overlaid(changes, changes_of_model(o));
    const KeyValues given = train::overlaid({{"preset", "gpt2"}}, changes);
    const train::TrainOptions options = train::resolve(given);
    definition_ =
        train::model_of(options, options.vocab_size > 0 ? options.vocab_size : kCharacters);
    std::erase_if(changes, [](const auto& change) { return change.first == "preset"; });
    name_ = key_of(options.preset, changes);
    state_ = key_of("random weights", given);
    refuse_encoder();
    weights_ = models::made_weights(*definition_, models::initial_weights(*definition_, 1));
    for (const Precision p : kFormats) formats_.push_back(infer::run_precision(p));
  }

  void take_folder(const LadderOptions& o) {
    name_ = o.model;
    definition_ = io::read_definition(o.model);
    refuse_encoder();
    folder_.emplace(io::open_model(o.model));
    definition_ = folder_->definition;
    weights_ = folder_->weights;
    if (const auto own = infer::own_precision(*folder_, cpu::cpu_backend()))
      formats_ = {infer::run_precision(Precision::fp32), infer::run_precision(Precision::bfloat16),
                  *own};
    else
      for (const Precision p : kFormats) formats_.push_back(infer::run_precision(p));
    std::vector<std::string> files;
    for (const auto& [key, value] : o.options)
      if (train::train_option_table().find(key).name == "text") files.push_back(value);
    const infer::HeldOutText held = infer::read_held_out_text(files, *folder_->tokenizer);
    ids_ = infer::tokens_to_compare_on(held, *folder_->tokenizer, definition_->parameter_count());
    if (o.quick) ids_.resize(std::min(ids_.size(), kQuickTokens));
    text_ = held.description;
    state_ = fmt::format("{}, tokens {}", folder_state(o.model),
                         sha256_hex(std::string(reinterpret_cast<const char*>(ids_.data()),
                                                ids_.size() * sizeof(int32_t)))
                             .substr(0, 16));
  }

  void refuse_encoder() const {
    if (definition_->task().head != models::Head::next_token)
      user_error(
          "ladder inference: {} does not predict next tokens; `brrr quantize` compares the vectors "
          "of an encoder, `brrr bench inference` its speed",
          name_);
  }

  /// Times decoded tokens and prompts.
  void measure_speed(const infer::RunPrecision& precision, double seconds, RungResult& r) const {
    const auto prompt = static_cast<int64_t>(prompt_);
    infer::Generator generator(definition_, cpu::cpu_backend(), weights_,
                               {.precision = precision.dtype,
                                .quantization = precision.quantization,
                                .positions = prompt + kDecoded,
                                .prompt = prompt,
                                .memory = memory_});
    // Prompts take turns that differ in their first token, so none of them is in the cache.
    std::vector<int32_t> tokens;
    std::mt19937 random(7);
    std::uniform_int_distribution<int32_t> id(
        1, static_cast<int32_t>(definition_->sizes().vocabulary - 1));
    for (int64_t i = 0; i < prompt; ++i) tokens.push_back(id(random));
    int32_t other = 0;
    infer::Sampling greedy;
    greedy.temperature = 0;
    const auto read_prompt = [&] {
      std::swap(tokens[0], other);
      generator.generate(tokens, 1, infer::Sampler(greedy, 0));
    };
    const auto decode = [&] { generator.generate(tokens, kDecoded, infer::Sampler(greedy, 0)); };
    const Timing reading = interleave({read_prompt}, seconds).front();
    const Timing decoding = interleave({decode}, seconds).front();
    const double ms = decoding.median / static_cast<double>(kDecoded);
    const auto bytes = static_cast<double>(
        bytes_per_token(*definition_, precision, CachePrecision::computed, prompt + kDecoded / 2));
    r.sequences = 1;
    r.tokens = 1;
    r.arena_bytes = generator.weight_bytes();
    r.ms.push_back(ms);
    r.figures["prompt tokens/s"].push_back(1e3 * static_cast<double>(prompt) / reading.median);
    r.figures["share of bandwidth"].push_back(bytes / (1e-3 * ms) / read_bandwidth_);
  }

  void compare(size_t rung, RungResult& r) const {
    std::vector<infer::ComparedModel> models{{weights_, formats_[0]}};
    if (rung > 0) models.push_back({weights_, formats_[rung]});
    infer::TokenComparison c;
    try {
      c = infer::compare_on_tokens(
              definition_, models, ids_,
              std::min(definition_->sizes().context, infer::kMostComparedContext), memory_)
              .back();
    } catch (const UserError& e) {
      if (e.code() != ExitCode::kNoMemory) throw;
      r.notes["not compared"] = e.what();  // two models need more memory than one
      return;
    }
    if (!std::isfinite(c.loss) || !std::isfinite(c.divergence))
      user_error("{} in {}: {}", name_, formats_[rung].name,
                 infer::fault_of_loss(c.loss, *folder_));
    r.figures["loss"] = {c.loss};
    r.figures["loss difference"] = {c.loss_difference};
    r.figures["standard error"] = {c.difference_error};
    r.figures["KL divergence"] = {c.divergence};
    r.figures["same token"] = {c.agreement};
    r.figures["cosine"] = {c.cosine};
  }

  std::string name_, state_, text_;
  std::optional<io::ModelFolder> folder_;
  models::ModelPtr definition_;
  std::shared_ptr<const WeightSource> weights_;
  std::vector<infer::RunPrecision> formats_;  // fp32 first
  std::vector<int32_t> ids_;                  // that are predicted; empty: random weights
  uint64_t prompt_ = 0;                       // tokens
  infer::Memory memory_;
  double read_bandwidth_ = 0;  // bytes per second; 0: not measured yet
};

bool is_sound_inference(const RungResult& r) {
  if (!has_positive(r, "prompt tokens/s") || !has_positive(r, "share of bandwidth")) return false;
  if (r.arena_bytes <= 0) return false;
  if (!r.figures.contains("loss")) return true;
  for (const char* name :
       {"loss", "loss difference", "standard error", "KL divergence", "same token", "cosine"}) {
    const auto at = r.figures.find(name);
    if (at == r.figures.end() || at->second.size() != 1) return false;
  }
  return figure_of(r, "loss")[0] >= 0 && figure_of(r, "KL divergence")[0] >= 0;
}

InferenceRung row_of(const RungResult& r, const RungResult& first) {
  InferenceRung row;
  row.name = r.name;
  if (r.ms.empty()) {
    row.failure = r.failure.empty() ? "not measured" : r.failure;
    return row;
  }
  row.ms = timing_of(r);
  row.rounds = r.ms.size();
  row.against_first = against(r, first);
  row.prompt_per_second = timing_of(figure_of(r, "prompt tokens/s")).median;
  row.weight_bytes = r.arena_bytes;
  row.bandwidth_fraction = timing_of(figure_of(r, "share of bandwidth")).median;
  if (r.figures.contains("loss"))
    row.cost = infer::TokenComparison{.loss = figure_of(r, "loss")[0],
                                      .loss_difference = figure_of(r, "loss difference")[0],
                                      .difference_error = figure_of(r, "standard error")[0],
                                      .divergence = figure_of(r, "KL divergence")[0],
                                      .agreement = figure_of(r, "same token")[0],
                                      .cosine = figure_of(r, "cosine")[0]};
  if (const auto why = r.notes.find("not compared"); why != r.notes.end())
    row.not_compared = why->second;
  return row;
}

Climbed climb_inference(const LadderOptions& o) {
  Subject subject(o);
  const auto results = climb(
      "inference", subject.key(o), subject.rungs(), o,
      [&](size_t i, RungResult& r) { subject.visit(i, o, r); }, is_sound_inference);
  InferenceFigures f{subject.title(), subject.conditions(), {}};
  for (const RungResult& r : results) f.rows.push_back(row_of(r, results.front()));
  return {inference_table(f), inference_json(f), inference_section(f), false,
          disturbance_text("inference", results)};
}

}  // namespace

NamedLadder inference_ladder() {
  return {"inference",
          "number formats for inference: fp32, bf16, int8 and int4, and what they cost",
          true,
          nullptr,
          [](const LadderOptions& o) {
            return o.rounds * (!o.model.empty() && io::holds_integers(o.model)
                                   ? kQuantisedFormats
                                   : std::ssize(kFormats));
          },
          climb_inference,
          inference_reads,
          [](const LadderOptions& o) { Subject{o}; }};
}

}  // namespace brrr::insight
