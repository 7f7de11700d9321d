#include "insight/ladder.h"

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "insight/timed_step.h"
#include "io/json_file.h"
#include "passes/rematerialize.h"
#include "train/fit.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

using io::Json;

KeyValues joined(std::initializer_list<KeyValues> lists) {
  KeyValues all;
  for (const KeyValues& l : lists) all.insert(all.end(), l.begin(), l.end());
  return all;
}

const KeyValues kQuickModel{{"n-layer", "2"}, {"context", "128"}};

/// Accumulation, checkpointing, precision, optimizers and their combinations.
Ladder memory_ladder(const char* name, const char* preset) {
  const KeyValues accumulate{{"batch-size", "1"}, {"gradient-accumulation-steps", "4"}};
  const KeyValues checkpoint{{"rematerialize", "blocks"}};
  const KeyValues bf16{{"precision", "bf16"}};
  Ladder l;
  l.name = name;
  l.title = fmt::format("{}, batch 4 x 512: memory against speed", preset);
  l.published = "BERT-large, batch 4 x 512, one GPU (Hugging Face, efficient training)";
  l.quick = kQuickModel;
  l.options = {{"preset", preset},
               {"context", "512"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"}};
  l.rungs = {
      {"plain", {}, 1.0, 1.0},
      {"accumulation 4 x 1", accumulate, 7.75 / 8.86, 8681.0 / 14949},
      {"checkpointing (blocks)", checkpoint, 5.99 / 8.86, 6775.0 / 14949},
      {"auto, 25% of the activations", {{"activation-memory", "25%"}}},
      {"bf16", bf16, 18.64 / 8.86, 13939.0 / 14949},
      {"adamw_8bit", {{"optim", "adamw_8bit"}}},
      {"sgd with momentum", {{"optim", "sgd"}}},
      {"lion", {{"optim", "lion"}}},
      {"adafactor", {{"optim", "adafactor"}}},
      {"muon", {{"optim", "muon"}}},
      {"accumulation, checkpointing", joined({accumulate, checkpoint})},
      {"accumulation, checkpointing, bf16", joined({accumulate, checkpoint, bf16})},
      {"the same with adamw_8bit",
       joined({accumulate, checkpoint, bf16, {{"optim", "adamw_8bit"}}})},
  };
  return l;
}

/// From node by node in fp32 to everything that the compiler does.
Ladder compile_ladder() {
  const auto without = [](std::initializer_list<const char*> passes) {
    KeyValues all;
    for (const char* pass : passes) all.emplace_back("disable-pass", pass);
    return all;
  };
  const KeyValues bf16{{"precision", "bf16"}};
  Ladder l;
  l.name = "gpt2";
  l.title = "gpt2, batch 4 x 512: each rung keeps those before it";
  l.published =
      "PyTorch on an A100, against the rung before: tf32 3x, padded vocabulary 1.03-1.04x";
  l.quick = kQuickModel;
  l.options = {{"preset", "gpt2"},
               {"context", "512"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"}};
  l.rungs = {
      {"fp32, node by node", {{"compile", "false"}}},
      {"matmul precision medium", {{"compile", "false"}, {"float32-matmul-precision", "medium"}}},
      {"bf16", joined({{{"compile", "false"}}, bf16})},
      {"compiled", joined({bf16, without({"match_attention", "match_loss_head"})})},
      {"flash attention", joined({bf16, without({"match_loss_head"})})},
      {"loss head in chunks", bf16},
      {"padded vocabulary (50304)", joined({bf16, {{"vocab-size", "50304"}}})},
  };
  return l;
}

/// Powers of two, ugly sizes and their neighbours; speed is in sequences.
Ladder batch_ladder() {
  Ladder l;
  l.name = "batch";
  l.title = "char, context 256: batch sizes";
  l.quick = {{"n-layer", "2"}, {"context", "64"}};
  l.options = {{"preset", "char"}, {"vocab-size", "65"}, {"dropout", "0"}};
  for (const int n : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33})
    l.rungs.push_back({fmt::format("batch {}", n), {{"batch-size", std::to_string(n)}}});
  return l;
}

Ladder precision_ladder() {
  Ladder l;
  l.name = "precision";
  l.title = "gpt2, batch 4 x 256: number formats";
  l.published = "mixed precision on a V100 1.5x to 5.5x of fp32; fp16 on BERT-large 2.1x";
  l.quick = kQuickModel;
  l.options = {{"preset", "gpt2"},
               {"context", "256"},
               {"batch-size", "4"},
               {"gradient-accumulation-steps", "1"}};
  l.rungs = {{"fp32", {}},
             {"matmul precision high", {{"float32-matmul-precision", "high"}}},
             {"matmul precision medium", {{"float32-matmul-precision", "medium"}}},
             {"bf16", {{"precision", "bf16"}}},
             {"fp16", {{"precision", "fp16"}}},
             {"bf16, weights too", {{"precision", "bf16"}, {"param-dtype", "bf16"}}}};
  return l;
}

KeyValues options_of(const Ladder& ladder, size_t rung, const KeyValues& user) {
  KeyValues all = ladder.options;
  all.insert(all.end(), ladder.rungs[rung].options.begin(), ladder.rungs[rung].options.end());
  all.insert(all.end(), user.begin(), user.end());
  return all;
}

/// The bytes that the step of these options keeps for its backward pass.
int64_t kept_bytes(const KeyValues& given) {
  const train::TrainOptions o = train::resolve(given);
  const auto session =
      train::compile_run(o, train::model_config(o, o.vocab_size > 0 ? o.vocab_size : kCharacters));
  return activation_bytes(session->step_program().graph());
}

/// A budget that is a share of what would be kept without one becomes a number.
train::TrainOptions resolved(KeyValues given) {
  const auto share = std::find_if(given.begin(), given.end(), [](const auto& entry) {
    return entry.first == "activation-memory" && entry.second.ends_with('%');
  });
  if (share != given.end()) {
    const double percent =
        parse_real(share->second.substr(0, share->second.size() - 1), {.low = 0, .high = 100});
    given.erase(share);
    const double bytes = percent / 100 * static_cast<double>(kept_bytes(given));
    given.emplace_back("activation-memory",
                       fmt::format("{}KiB", static_cast<int64_t>(bytes) >> 10));
  }
  return train::resolve(given);
}

void visit(const train::TrainOptions& options, int64_t memory_limit, RungResult& result) {
  TimedStep step(options, memory_limit);
  const MemoryForecast memory = step.session().forecast();
  result.sequences = step.sequences();
  result.tokens = step.tokens();
  result.arena_bytes = memory.total();
  result.state_bytes = memory.parameter_bytes + memory.state_bytes;
  result.activation_bytes = activation_bytes(step.session().step_program().graph());
  step.run();
  const Stopwatch watch;
  step.run();
  result.ms.push_back(watch.milliseconds());
}

Json record_of(const RungResult& r) {
  return {{"name", r.name},
          {"sequences", r.sequences},
          {"tokens", r.tokens},
          {"ms", r.ms},
          {"arena_bytes", r.arena_bytes},
          {"activation_bytes", r.activation_bytes},
          {"state_bytes", r.state_bytes}};
}

void keep(const std::filesystem::path& path, const std::string& key,
          const std::vector<RungResult>& results) {
  if (path.empty()) return;
  Json all = Json::object();
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) all = io::parse_json(read_file(path), path.string());
  Json& rows = all[key] = Json::array();
  for (const RungResult& r : results)
    if (r.failure.empty()) rows.push_back(record_of(r));
  write_file_atomically(path, all.dump(1) + "\n");
}

/// What an earlier climb of the same ladder has measured.
void recall(const std::filesystem::path& path, const std::string& key,
            std::vector<RungResult>& results) {
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) return;
  const Json all = io::parse_json(read_file(path), path.string());
  if (!all.is_object()) throw UserError(path.string() + " is no record of a ladder");
  if (!all.contains(key)) return;
  try {
    for (const Json& row : all.at(key))
      for (RungResult& r : results) {
        if (r.name != row.at("name").get<std::string>()) continue;
        r.sequences = row.at("sequences").get<int64_t>();
        r.tokens = row.at("tokens").get<int64_t>();
        r.ms = row.at("ms").get<std::vector<double>>();
        r.arena_bytes = row.at("arena_bytes").get<int64_t>();
        r.activation_bytes = row.at("activation_bytes").get<int64_t>();
        r.state_bytes = row.at("state_bytes").get<int64_t>();
      }
  } catch (const Json::exception& e) {
    throw UserError(fmt::format("{} is no record of a ladder: {}", path.string(), e.what()));
  }
}

/// A record belongs to a ladder and to what the user changed of it.
std::string key_of(const Ladder& ladder, const KeyValues& user) {
  std::string key = ladder.name;
  for (const auto& [name, value] : user) key += fmt::format(" --{} {}", canonical_key(name), value);
  return key;
}

}  // namespace

const std::vector<Ladder>& ladders() {
  static const std::vector<Ladder> list = {compile_ladder(), memory_ladder("memory", "gpt2"),
                                           memory_ladder("memory-medium", "gpt2-medium"),
                                           batch_ladder(), precision_ladder()};
  return list;
}

std::vector<RungResult> climb(const Ladder& ladder, const LadderOptions& options) {
  const std::string key = key_of(ladder, options.options);
  std::vector<RungResult> results;
  for (const Rung& rung : ladder.rungs) results.emplace_back().name = rung.name;
  recall(options.record, key, results);
  int64_t done = 0;
  for (int round = 1; round <= options.rounds; ++round)
    for (size_t i = 0; i < results.size(); ++i) {
      RungResult& r = results[i];
      if (options.progress) options.progress(done++);
      if (!r.failure.empty() || r.ms.size() >= static_cast<size_t>(round)) continue;
      try {
        visit(resolved(options_of(ladder, i, options.options)), options.memory_limit, r);
      } catch (const UserError& e) {
        if (e.code() != ExitCode::kNoMemory) throw;
        r.failure = e.what();
      }
      keep(options.record, key, results);
    }
  if (options.progress) options.progress(done);
  return results;
}

Timing timing_of(const RungResult& result) {
  std::vector<double> ms = result.ms;
  std::sort(ms.begin(), ms.end());
  const size_t n = ms.size();
  return n == 0 ? Timing{} : Timing{ms[n / 2], ms[n / 4], ms[n - 1 - n / 4]};
}

}  // namespace brrr::insight
