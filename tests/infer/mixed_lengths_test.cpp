// One session, many lengths: what a row gets does not depend on the lengths and batches that were
// run before it. Every encoder with every head against transformers on 200 rows; decoders and
// exported files against the goldens of tests/models.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "backend/cpu/target.h"
#include "formats/safetensors.h"
#include "infer/encoder.h"
#include "infer/generator.h"
#include "models/exchange_names.h"
#include "models/initialise.h"
#include "modules/onnx/export/onnx_export.h"
#include "modules/onnx/onnx_module.h"
#include "passes/pipeline.h"
#include "runtime/runnable_session.h"
#include "support/long_proof.h"

namespace brrr::infer {
namespace {

using models::Head;
using Numbers = std::vector<float>;

fs::path goldens_of_lengths() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden"; }

Numbers numbers_of(const io::TensorView& t) {
  Numbers out(static_cast<size_t>(t.shape.elements()));
  io::copy_as_f32(t, out);
  return out;
}

std::vector<int32_t> ids_of(const io::TensorView& t) {
  std::vector<int32_t> out(static_cast<size_t>(t.shape.elements()));
  std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

/// The largest difference as a part of the largest expected number.
class Gap {
 public:
  explicit Gap(std::span<const float> all) {
    for (const float x : all) largest_ = std::max(largest_, std::abs(static_cast<double>(x)));
  }
  void add(double got, double expected) {
    const double gap = std::abs(got - expected) / largest_;
    if (!(gap <= worst_)) worst_ = gap;  // NaN stays
  }
  void add(std::span<const float> got, std::span<const float> expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      add(static_cast<double>(got[i]), static_cast<double>(expected[i]));
  }
  double worst() const { return worst_; }

 private:
  double largest_ = 0, worst_ = 0;
};

// -- 200 rows: the formulas of tests/golden/make_encoder_batch_goldens.py
// ---------------------------------------------------------------------------------

constexpr size_t kRows = 200;
constexpr uint32_t kRowVocabulary = 61, kSigns = 4;

uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

void fill_by_name(std::string_view name, std::span<float> out) {
  uint32_t hashed = 2166136261u;
  for (const char c : name) hashed = (hashed ^ static_cast<uint8_t>(c)) * 16777619u;
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  const bool is_norm = lower.find("norm") != std::string::npos && lower.ends_with("weight");
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = (is_norm ? 1.0f : 0.0f) +
             (static_cast<float>(mixed(hashed + static_cast<uint32_t>(i)) >> 24) - 127.5f) / 256;
}

struct Rows {
  std::vector<std::vector<int32_t>> ids, types;
  std::vector<EncoderRow> rows;

  explicit Rows(bool has_types) {
    for (uint32_t row = 0; row < kRows; ++row) {
      auto& own = ids.emplace_back(1 + row * 37 % 97);
      for (uint32_t t = 0; t < own.size(); ++t)
        own[t] = static_cast<int32_t>(4 + mixed(1000 * row + t) % (kRowVocabulary - 4));
      auto& type = types.emplace_back(has_types ? own.size() : 0);
      for (size_t t = 0; t < type.size(); ++t) type[t] = row % 2 == 1 && 2 * t >= own.size();
    }
    for (size_t row = 0; row < kRows; ++row) rows.push_back({ids[row], types[row]});
  }
};

struct EncoderCase {
  std::string type, head;
  std::string name() const { return type + "_" + head; }
};

std::vector<EncoderCase> encoder_batch_cases() {
  std::vector<EncoderCase> list;
  for (const char* type : {"bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert"})
    for (const char* head : {"masked", "classes", "values", "tags", "embedding"})
      list.push_back({type, head});
  return list;
}

class EncoderBatches : public testing::TestWithParam<EncoderCase> {
 protected:
  io::SafetensorsFile file_{goldens_of_lengths() / "encoder_batches.safetensors"};
  models::ModelPtr model_ = parsed();
  Numbers expected_ = numbers_of(file_.get(GetParam().name()));
  Rows rows_{model_->has_token_types() && GetParam().type == "bert"};
  size_t width_ = expected_.size() / kRows;

  models::ModelPtr parsed() const {
    const models::ModelPtr model =
        models::parse_config(file_.metadata().at(GetParam().name()), GetParam().name());
    if (GetParam().head != "embedding") return model;
    models::Task task{.head = Head::embedding, .pooling = {}};
    const std::string how = " " + file_.metadata().at(GetParam().type + " pooling") + " ";
    for (const auto& [name, pooling] : models::poolings())
      if (how.find(" " + name + " ") != std::string::npos) task.pooling.push_back(pooling);
    task.normalize = how.find(" normalize ") != std::string::npos;
    return model->with_task(task);
  }
  std::span<const float> expected(size_t row) const {
    return std::span(expected_).subspan(row * width_, width_);
  }
  Encoder encoder() const {
    const std::string prefix =
        GetParam().head == "embedding" ? model_->file_names().prefix : std::string();
    const auto fill = [prefix](std::string_view name, std::span<float> out) {
      fill_by_name(name.substr(name.starts_with(prefix) ? prefix.size() : 0), out);
    };
    return Encoder(model_, cpu::cpu_backend(), models::made_weights(*model_, fill));
  }
  /// What the golden keeps of a row's numbers.
  Numbers kept(std::span<const float> numbers) const {
    if (GetParam().head != "tags") return {numbers.begin(), numbers.end()};
    const size_t labels = width_ / 2, last = numbers.size() - labels;
    Numbers kept(numbers.begin() + static_cast<ptrdiff_t>(last), numbers.end());
    for (size_t label = 0; label < labels; ++label) {
      double sum = 0;
      for (size_t i = label; i < numbers.size(); i += labels)
        sum += static_cast<double>(numbers[i]);
      kept.push_back(static_cast<float>(sum));
    }
    return kept;
  }
};
INSTANTIATE_TEST_SUITE_P(Encoders, EncoderBatches, testing::ValuesIn(encoder_batch_cases()),
                         [](const auto& row) {
                           std::string name = row.param.name();
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Batches of 1, of 7 and of 32 rows take turns in one session: of all 200 rows with --long, else of
// every twelfth.
TEST_P(EncoderBatches, AreThoseOfTransformersWhateverRanBefore) {
  std::vector<size_t> chosen;
  std::vector<EncoderRow> rows;
  for (size_t row = 0; row < kRows; row += test::is_long() ? 1 : 12) {
    chosen.push_back(row);
    rows.push_back(rows_.rows[row]);
  }
  Encoder encoder = this->encoder();
  Gap gap(expected_);
  if (GetParam().head == "masked") {
    for (const size_t row : chosen) {
      const auto length = static_cast<int32_t>(rows_.ids[row].size());
      const std::array<int32_t, 3> known{0, length / 2, length - 1};
      std::vector<int32_t> places(std::array<size_t, 3>{1, 7, 32}[row % 3]);
      for (size_t i = 0; i < places.size(); ++i) places[i] = known[(i + row) % 3];
      const auto logits = encoder.logits_at(rows_.rows[row], places);
      ASSERT_EQ(logits.size(), places.size() * kRowVocabulary);
      for (size_t i = 0; i < places.size(); ++i)
        for (uint32_t s = 0; s < kSigns; ++s) {
          double sum = 0;
          for (uint32_t v = 0; v < kRowVocabulary; ++v)
            sum += (mixed(s * kRowVocabulary + v) % 2 == 0 ? 1.0 : -1.0) *
                   static_cast<double>(logits[i * kRowVocabulary + v]);
          gap.add(sum, static_cast<double>(expected(row)[(i + row) % 3 * kSigns + s]));
        }
    }
  } else {
    std::set<std::pair<size_t, size_t>> seen;
    const std::array<size_t, 3> sizes{1, 7, 32};
    std::array<size_t, 3> done{};
    while (*std::ranges::min_element(done) < rows.size())
      for (size_t kind = 0; kind < sizes.size(); ++kind) {
        const size_t first = done[kind], count = std::min(sizes[kind], rows.size() - first);
        if (count == 0) continue;
        encoder.run(std::span(rows).subspan(first, count),
                    [&](size_t row, std::span<const float> numbers) {
                      seen.emplace(kind, chosen[first + row]);
                      gap.add(kept(numbers), expected(chosen[first + row]));
                    });
        done[kind] += count;
      }
    EXPECT_EQ(seen.size(), 3 * rows.size());
  }
  RecordProperty("worst", fmt::format("{:.2e}", gap.worst()));
  EXPECT_LT(gap.worst(), 2e-6);
}

// -- decoders
// ---------------------------------------------------------------------------------

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(goldens_of_lengths() / folder))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

constexpr const char* kGpt2 = "gpt2_small";  // of an older form than the others

std::vector<std::string> decoder_names() {
  std::vector<std::string> names = names_in("transformers");
  names.emplace_back(kGpt2);
  return names;
}

/// The config.json of a golden.
std::string config_of(const io::SafetensorsFile& file, const std::string& name) {
  const std::string text = file.metadata().at("config");
  if (name != kGpt2) return text;
  nlohmann::json config = nlohmann::json::parse(text);
  config["model_type"] = "gpt2";
  config["activation_function"] = config["activation"];
  config["layer_norm_epsilon"] = config["eps"];
  config["tie_word_embeddings"] = config["tie"];
  return config.dump();
}

/// A small model of a golden with its answers for every row.
struct GoldenModel {
  io::SafetensorsFile file;
  models::ModelPtr model;
  int64_t batch, length;
  std::vector<int32_t> tokens;

  GoldenModel(const char* folder, const std::string& name)
      : file(goldens_of_lengths() / (name == kGpt2 ? "" : folder) / (name + ".safetensors")),
        model(models::parse_config(config_of(file, name), name)),
        // Older goldens hold tokens as [steps, B, T].
        batch(file.get("tokens").shape.size(name == kGpt2 ? 1 : 0)),
        length(file.get("tokens").shape.size(name == kGpt2 ? 2 : 1)),
        tokens(ids_of(file.get("tokens"))) {}

  const io::TensorView& weight(std::string_view name) const {
    const std::string key = "weights/" + std::string(name);
    if (file.find(key) != nullptr) return file.get(key);
    return file.get("weights/" + std::string(name.substr(model->file_names().prefix.size())));
  }
  std::shared_ptr<const WeightSource> weights() const {
    return models::made_weights(*model, [this](std::string_view name, std::span<float> out) {
      io::copy_as_f32(weight(name), out);
    });
  }
  std::vector<int32_t> part(int64_t row, int64_t count) const {
    const auto first = tokens.begin() + row * length;
    return {first, first + count};
  }
};

class DecoderLengths : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Decoders, DecoderLengths, testing::ValuesIn(decoder_names()),
                         [](const auto& name) { return name.param; });

// Programs of other lengths and batches come while the session runs, with a cache and without.
TEST_P(DecoderLengths, ASessionTakesProgramsOfAnyLength) {
  const GoldenModel golden("transformers", GetParam());
  const Numbers expected = numbers_of(golden.file.get("logits"));
  const auto vocabulary = golden.model->sizes().vocabulary;
  for (const DType precision : {DType::f32, DType::bf16}) {
    Engine engine(cpu::cpu_backend());
    const auto add = [&](const Graph& g) {
      PipelineOptions p;
      p.precision = p.parameter_dtype = precision;
      p.refresher = Refresher::loader;
      return engine.add(run_pipeline(g, engine.backend().target(), p));
    };
    const auto run = [&](size_t program, int64_t rows, int64_t at, int64_t count, bool cached) {
      std::vector<int32_t> tokens;
      for (int64_t b = 0; b < rows; ++b) {
        const std::vector<int32_t> row = golden.part(b, at + count);
        tokens.insert(tokens.end(), row.begin() + at, row.end());
      }
      const auto position = static_cast<int32_t>(at);
      Call call{program, {}, {}};
      call.set("tokens", std::span<const int32_t>(tokens));
      if (cached) call.set("position", std::span(&position, 1));
      engine.run(std::span(&call, 1));
      const auto* logits = reinterpret_cast<const float*>(engine.output(program, "logits"));
      Gap gap(expected);
      const int64_t given = cached ? 1 : count;
      for (int64_t b = 0; b < rows; ++b)
        gap.add({logits + b * given * vocabulary, static_cast<size_t>(given * vocabulary)},
                std::span(expected).subspan(
                    static_cast<size_t>((b * golden.length + at + count - given) * vocabulary),
                    static_cast<size_t>(given * vocabulary)));
      EXPECT_LT(gap.worst(), precision == DType::f32 ? 1e-5 : 6e-2)
          << name_of(precision) << ", " << rows << " rows, tokens " << at << " to " << at + count;
    };
    const size_t shortest = add(golden.model->forward(Dim(1), Dim(2)));
    engine.allocate();
    engine.use_weights(golden.weights());
    run(shortest, 1, 0, 2, false);
    for (const int64_t rows : {int64_t{1}, golden.batch})
      for (const int64_t length : {int64_t{1}, int64_t{9}, golden.length})
        run(add(golden.model->forward(Dim(rows), Dim(length))), rows, 0, length, false);
    int64_t at = 0;
    for (const int64_t count : {8, 1, 4, 2, 1}) {
      run(add(golden.model->decode({.batch = golden.batch,
                                    .length = count,
                                    .capacity = golden.length,
                                    .cache = precision})),
          golden.batch, at, count, true);
      at += count;
    }
    run(shortest, 1, 0, 2, false);
  }
}

// What generate does: prompts of any length, one behind the other, with the cache and without.
TEST_P(DecoderLengths, AGeneratorContinuesPromptsOfAnyLength) {
  const GoldenModel golden("transformers", GetParam());
  const Numbers expected = numbers_of(golden.file.get("logits"));
  const auto vocabulary = static_cast<size_t>(golden.model->sizes().vocabulary);
  for (const bool use_cache : {true, false}) {
    Generator generator(golden.model, cpu::cpu_backend(), golden.weights(),
                        {.use_cache = use_cache, .prompt = 1});
    for (const int64_t count : {int64_t{1}, int64_t{7}, golden.length, int64_t{2}, int64_t{13}})
      for (int64_t row = 0; row < golden.batch; ++row) {
        const auto first = expected.begin() +
                           (row * golden.length + count - 1) * static_cast<ptrdiff_t>(vocabulary);
        const auto best = std::max_element(first, first + static_cast<ptrdiff_t>(vocabulary));
        Sampling sampling;
        sampling.temperature = 0;
        EXPECT_EQ(generator.generate(golden.part(row, count), 1, Sampler(sampling, 0)),
                  std::vector{static_cast<int32_t>(best - first)})
            << count << " tokens of row " << row << ", cache " << use_cache;
      }
  }
}

// -- exported files
// ---------------------------------------------------------------------------------

struct ExportedFile {
  std::string bytes;  // of which the module has views
  std::shared_ptr<const Runnable> module;
};

std::unique_ptr<const ExportedFile> exported(const GoldenModel& golden) {
  onnx::ExportSource source;
  source.name = "model";
  source.sizes = {"batch_size", "sequence_length"};
  source.examples = {{2, 5}, {3, 7}, {4, 3}, {5, 8}, {7, 6}, {2, 9}};
  source.graph = [&](const std::vector<int64_t>& s) {
    return golden.model->exchange({s[0], s[1], std::nullopt});
  };
  source.weight = [&](std::string_view name) { return golden.weight(name).bytes; };
  auto file = std::make_unique<ExportedFile>();
  file->bytes = onnx::model_bytes(onnx::export_model(source, {.opset = 18})->model());
  file->module = onnx::open_module(onnx::File::parse(file->bytes, "exported.onnx"));
  return file;
}

/// Inputs for some of the rows, each of so many tokens, padded to the longest.
PortValues inputs_for(const GoldenModel& golden, const Runnable& module,
                      std::span<const int64_t> rows, const std::vector<int32_t>& lengths,
                      const std::vector<int32_t>& types) {
  int64_t longest = 0;
  for (const int64_t row : rows)
    longest = std::max<int64_t>(longest, lengths[static_cast<size_t>(row)]);
  PortValues inputs;
  for (const Port& port : module.inputs()) {
    HostTensor t(port.dtype, {std::ssize(rows), longest});
    for (int64_t i = 0; i < std::ssize(rows); ++i)
      for (int64_t k = 0; k < longest; ++k) {
        const int64_t row = rows[static_cast<size_t>(i)];
        const bool is_real = k < lengths[static_cast<size_t>(row)];
        const auto at = static_cast<size_t>(row * golden.length + k);
        double x = 0;
        if (port.name == models::exchange_names::kMask) x = is_real;
        if (port.name == models::exchange_names::kPositions) x = static_cast<double>(k);
        if (port.name == models::exchange_names::kIds) x = is_real ? golden.tokens[at] : 0;
        if (port.name == models::exchange_names::kTypes && !types.empty() && is_real) x = types[at];
        store_from_double(port.dtype, t.bytes.data(), i * longest + k, x);
      }
    inputs.emplace(port.name, std::move(t));
  }
  return inputs;
}

void check_exported(const GoldenModel& golden, bool embeds) {
  const auto file = exported(golden);
  const Runnable& module = *file->module;
  RunnableSession session(file->module, cpu::cpu_backend());
  const Numbers expected = numbers_of(golden.file.get(embeds ? "embedding" : "logits"));
  const bool has_lengths = golden.file.find("lengths") != nullptr;
  const std::vector<int32_t> all = has_lengths
                                       ? ids_of(golden.file.get("lengths"))
                                       : std::vector<int32_t>(static_cast<size_t>(golden.batch),
                                                              static_cast<int32_t>(golden.length));
  const std::vector<int32_t> types = golden.file.find("types") != nullptr
                                         ? ids_of(golden.file.get("types"))
                                         : std::vector<int32_t>();
  const bool by_token =
      !embeds && golden.file.get("logits").shape.rank() == 3;  // [B, T, numbers], else [B, numbers]
  const size_t width =
      expected.size() / static_cast<size_t>(by_token ? golden.batch * golden.length : golden.batch);
  Gap gap(expected);
  const auto run = [&](std::span<const int64_t> rows, const std::vector<int32_t>& lengths) {
    const PortValues values = session.run(inputs_for(golden, module, rows, lengths, types),
                                          {embeds ? "sentence_embedding" : "logits"});
    const HostTensor& out = values.begin()->second.tensor();
    const auto* got = reinterpret_cast<const float*>(out.bytes.data());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<size_t>(rows[i]);
      const size_t padded = by_token ? static_cast<size_t>(out.shape.size(1)) : 1;
      const size_t numbers = width * (by_token ? static_cast<size_t>(lengths[row]) : 1);
      const size_t first = row * width * (by_token ? static_cast<size_t>(golden.length) : 1);
      gap.add({got + i * padded * width, numbers}, std::span(expected).subspan(first, numbers));
    }
  };
  std::vector<int64_t> every(static_cast<size_t>(golden.batch));
  std::iota(every.begin(), every.end(), 0);
  // The shortest first: other lengths come while the session runs.
  std::ranges::sort(every, {}, [&](int64_t row) { return all[static_cast<size_t>(row)]; });
  for (int round = 0; round < 2; ++round) {
    for (const int64_t& row : every) run(std::span(&row, 1), all);
    run(every, all);
    run(std::span(every).first(2), all);
    if (has_lengths) continue;
    // A causal model gives the first tokens what it gives them in a longer text.
    for (const int32_t length : {2, 11})
      run(every, std::vector<int32_t>(static_cast<size_t>(golden.batch), length));
  }
  testing::Test::RecordProperty("worst", fmt::format("{:.2e}", gap.worst()));
  EXPECT_LT(gap.worst(), 5e-6);
}

TEST_P(DecoderLengths, AnExportedFileTakesAnyLength) {
  check_exported(GoldenModel("transformers", GetParam()), false);
}

class EncoderLengths : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Encoders, EncoderLengths, testing::ValuesIn(names_in("encoders")),
                         [](const auto& name) { return name.param; });

TEST_P(EncoderLengths, AnExportedFileTakesAnyLength) {
  GoldenModel golden("encoders", GetParam());
  const bool embeds = golden.model->task().head == Head::embedding;
  if (embeds) {
    const std::string how = golden.file.metadata().at("pooling");
    models::Task task{.head = Head::embedding, .normalize = how.ends_with(" normalize")};
    for (const auto& [name, pooling] : models::poolings())
      if (how == name || how == name + " normalize") task.pooling = {pooling};
    golden.model = golden.model->with_task(task);
  }
  check_exported(golden, embeds);
}

}  // namespace
}  // namespace brrr::infer
