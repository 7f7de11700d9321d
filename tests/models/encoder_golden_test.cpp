// Every encoder and every head, and causal models that tell classes of texts, against Hugging
// Face's transformers: logits, embeddings, loss and every gradient of small random models on rows
// of different lengths. Files and the script that makes them stand in tests/golden/; a new file
// there is a new test here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/parameters.h"

namespace brrr {
namespace {

using models::Head;

fs::path encoder_goldens() { return fs::path(BRRR_SOURCE_DIR) / "tests/golden/encoders"; }

std::vector<std::string> encoder_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(encoder_goldens()))
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

double norm_of(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

double norm_of_gap(std::span<const float> got, std::span<const float> expected) {
  std::vector<float> gap(expected.size());
  for (size_t i = 0; i < gap.size(); ++i) gap[i] = got[i] - expected[i];
  return norm_of(gap);
}

class EncoderGolden : public testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  io::SafetensorsFile file{encoder_goldens() / (GetParam().first + ".safetensors")};
  models::ModelPtr model = parsed();
  int64_t batch = file.get("tokens").shape.size(0), length = file.get("tokens").shape.size(1);

  models::ModelPtr parsed() const {
    models::ModelPtr m = models::parse_config(file.metadata().at("config"), GetParam().first);
    if (m->task().head != Head::embedding) return m;
    const std::string how = file.metadata().at("pooling");
    models::Task task = m->task();
    task.normalize = how.ends_with(" normalize");
    task.pooling = {how.starts_with("mean_sqrt_len") ? models::Pooling::mean_sqrt_len
                    : how.starts_with("mean")        ? models::Pooling::mean
                    : how.starts_with("max")         ? models::Pooling::max
                                                     : models::Pooling::cls};
    return m->with_task(task);
  }
  Backend backend() const { return GetParam().second ? cpu::cpu_backend() : reference::backend(); }
  std::vector<float> numbers(const std::string& name) const {
    const io::TensorView& t = file.get(name);
    std::vector<float> out(static_cast<size_t>(t.shape.elements()));
    io::copy_as_f32(t, out);
    return out;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const io::TensorView& t = file.get(name);
    std::vector<int32_t> out(static_cast<size_t>(t.shape.elements()));
    std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
    return out;
  }
  /// The parameters, every one of which transformers has, and nothing besides. Files of the trunk
  /// alone leave the prefix out.
  void load(Engine& engine) const {
    const std::string prefix = model->file_names().prefix;
    size_t parameters = 0, stored = 0;
    load_parameters(engine, [&](std::string_view name, std::span<float> out) {
      std::string key = "weights/" + std::string(name);
      if (file.find(key) == nullptr) key = "weights/" + std::string(name.substr(prefix.size()));
      io::copy_as_f32(file.get(key), out);
      ++parameters;
    });
    for (const auto& t : file.tensors()) stored += t.name.starts_with("weights/");
    EXPECT_EQ(parameters, stored);
    EXPECT_EQ(parameters, model->parameters().size());
  }
  /// What a graph reads of the file, held while it runs.
  struct Feed {
    std::map<std::string, std::vector<int32_t>> ids;
    std::vector<float> values;
    void give(Call& call) const {
      for (const auto& [name, v] : ids) call.set(name, std::span<const int32_t>(v));
      if (!values.empty()) call.set("values", std::span<const float>(values));
    }
  };
  Feed feed(bool with_targets) const {
    Feed f;
    for (const char* name : {"tokens", "types", "lengths", "targets"})
      if (file.find(name) != nullptr && (with_targets || name != std::string("targets")))
        f.ids[name] = ids(name);
    if (with_targets && file.find("values") != nullptr) f.values = numbers("values");
    return f;
  }
  /// The same texts one behind the other, without their padding, then a text without tokens and
  /// tokens outside all texts.
  struct Flat : Feed {
    int64_t tokens = 0;
    models::FlatBinding binding;
  };
  Flat flat_feed(bool with_targets) const {
    const Feed padded = feed(with_targets);
    const std::vector<int32_t>& lengths = padded.ids.at("lengths");
    Flat f;
    f.ids["starts"] = {0};
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int32_t i = 0; i < lengths[b]; ++i) f.ids["positions"].push_back(i);
      f.ids["starts"].push_back(f.ids["starts"].back() + lengths[b]);
    }
    f.ids["starts"].push_back(f.ids["starts"].back());
    const size_t all = f.ids["positions"].size() + 3;
    f.ids["positions"].resize(all);
    for (const auto& [name, values] : padded.ids) {
      if (name == "lengths") continue;
      const int32_t none = name == "targets" ? -1 : 0;
      std::vector<int32_t>& to = f.ids[name];
      if (values.size() == lengths.size()) {  // a target for each text
        to = values;
        to.push_back(none);
        continue;
      }
      for (size_t b = 0; b < lengths.size(); ++b) {
        const auto row = values.begin() + static_cast<int64_t>(b) * length;
        to.insert(to.end(), row, row + lengths[b]);
      }
      to.resize(all, none);
    }
    f.values = padded.values;
    f.values.resize(f.values.size() / lengths.size() * (lengths.size() + 1), 3.0f);
    f.tokens = static_cast<int64_t>(all);
    f.binding = {f.tokens, batch + 1, std::nullopt};
    return f;
  }
  std::vector<float> output(Engine& engine, size_t p, const std::string& name, size_t count) {
    const auto bytes = engine.read_output(p, name, room_);
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + count};
  }
  /// Checks the loss of both graphs, and every gradient of the first.
  void check_loss(const Graph& loss, const Graph& scored_loss, const Feed& f) {
    Engine engine(backend());
    PipelineOptions options;
    options.loss = "loss";
    const size_t p = engine.add(run_pipeline(loss, engine.backend().target(), options));
    const size_t scored = engine.add(run_pipeline(scored_loss, engine.backend().target(), {}));
    engine.allocate();
    load(engine);
    const auto& targets = f.ids.at("targets");
    const auto real =
        std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    const float scale = static_cast<float>(1.0 / static_cast<double>(real));
    double expected_loss = 0;
    std::memcpy(&expected_loss, file.get("loss").bytes.data(), sizeof expected_loss);
    for (const size_t program : {scored, p}) {
      Call call{program, {}, {"loss"}};
      f.give(call);
      call.set("loss_scale", std::span(&scale, 1));
      EXPECT_NEAR(engine.run(std::span(&call, 1))[0][0], expected_loss, 1e-5 * expected_loss);
    }
    // The gradient of a key's bias is zero but for rounding, which is small beside the whole.
    double whole = 0;
    for (const auto& t : file.tensors())
      if (t.name.starts_with("grads/")) whole += std::pow(norm_of(numbers(t.name)), 2);
    whole = std::sqrt(whole);
    for (const models::ParameterInfo& info : model->parameters()) {
      const std::vector<float> expected = numbers("grads/" + info.name);
      const std::vector<float> got = output(engine, p, "grad:" + info.name, expected.size());
      EXPECT_LT(norm_of_gap(got, expected), 1e-4 * norm_of(expected) + 1e-7 * whole) << info.name;
    }
  }
  /// Zeros in the padding, as the file has them.
  void clear_padding(std::vector<float>& logits) const {
    if (file.get("logits").shape.rank() != 3) return;
    const std::vector<int32_t> lengths = ids("lengths");
    const auto width = static_cast<int64_t>(logits.size()) / (batch * length);
    for (int64_t b = 0; b < batch; ++b)
      std::fill(logits.begin() + (b * length + lengths[static_cast<size_t>(b)]) * width,
                logits.begin() + (b + 1) * length * width, 0.0f);
  }

 private:
  std::vector<std::byte> room_;
};

std::vector<std::pair<std::string, bool>> encoder_cases() {
  std::vector<std::pair<std::string, bool>> list;
  for (const std::string& name : encoder_names())
    for (const bool on_cpu : {false, true}) list.emplace_back(name, on_cpu);
  return list;
}
INSTANTIATE_TEST_SUITE_P(Models, EncoderGolden, testing::ValuesIn(encoder_cases()),
                         [](const auto& row) {
                           return row.param.first + (row.param.second ? "_cpu" : "_reference");
                         });

// Each model_type of the architecture, and each head.
TEST(EncoderGoldens, AreThere) {
  std::set<std::string> types;
  std::set<Head> heads;
  for (const std::string& name : encoder_names()) {
    const io::SafetensorsFile file(encoder_goldens() / (name + ".safetensors"));
    const std::string& config = file.metadata().at("config");
    types.insert(io::parse_json(config, name)["model_type"].get<std::string>());
    heads.insert(models::parse_config(config, name)->task().head);
  }
  const auto& known = models::find_architecture("bert").model_types;
  std::set<std::string> wanted(known.begin(), known.end());
  wanted.insert({"modernbert", "gpt2", "llama", "qwen2", "gpt_neox"});
  EXPECT_EQ(types, wanted);
  EXPECT_EQ(heads, (std::set<Head>{Head::masked_token, Head::embedding, Head::classes, Head::values,
                                   Head::token_classes}));
}

TEST_P(EncoderGolden, ForwardGivesTheLogits) {
  const std::string name = model->task().head == Head::embedding ? "embedding" : "logits";
  Engine engine(backend());
  const size_t p =
      engine.add(run_pipeline(model->forward(batch, length), engine.backend().target(), {}));
  engine.allocate();
  load(engine);
  const Feed f = feed(false);
  Call call{p, {}, {}};
  f.give(call);
  engine.run(std::span(&call, 1));
  const std::vector<float> expected = numbers(name);
  std::vector<float> got = output(engine, p, name, expected.size());
  if (name == "logits") clear_padding(got);
  EXPECT_LT(norm_of_gap(got, expected), 1e-5 * norm_of(expected));
}

TEST_P(EncoderGolden, FlatTextsGiveTheLogits) {
  if (!model->has_flat()) return;
  const Flat f = flat_feed(false);
  const std::vector<int32_t> lengths = ids("lengths");
  const std::string name = model->task().head == Head::embedding ? "embedding" : "logits";
  const Shape& shape = file.get(name).shape;
  const std::vector<float> expected = numbers(name);

  Engine engine(backend());
  const size_t p = engine.add(run_pipeline(model->flat(f.binding), engine.backend().target(), {}));
  engine.allocate();
  load(engine);
  Call call{p, {}, {}};
  f.give(call);
  engine.run(std::span(&call, 1));
  const bool of_tokens = shape.rank() == 3;
  const auto width = static_cast<size_t>(shape.size(shape.rank() - 1));
  const auto rows = static_cast<size_t>(of_tokens ? f.tokens : batch + 1);
  const std::vector<float> got = output(engine, p, name, rows * width);
  for (int64_t b = 0; b < batch; ++b) {
    const auto text = static_cast<size_t>(b);
    const size_t count = of_tokens ? static_cast<size_t>(lengths[text]) : 1;
    const size_t from = of_tokens ? static_cast<size_t>(f.ids.at("starts")[text]) : text;
    const size_t wanted = text * (of_tokens ? static_cast<size_t>(length) : 1);
    const auto row = std::span(expected).subspan(wanted * width, count * width);
    EXPECT_LT(norm_of_gap(std::span(got).subspan(from * width, count * width), row),
              1e-5 * norm_of(row))
        << "text " << b;
  }
}

TEST_P(EncoderGolden, LossAndEveryGradient) {
  if (model->task().head == Head::embedding) {
    EXPECT_THROW(model->loss(1, 1), UserError);
    return;
  }
  check_loss(model->with_dropout(0)->loss(batch, length), model->scored(batch, length), feed(true));
}

TEST_P(EncoderGolden, LossAndEveryGradientOfFlatTexts) {
  if (!model->has_flat() || model->task().head == Head::embedding) return;
  const Flat f = flat_feed(true);
  check_loss(model->with_dropout(0)->flat_loss(f.binding), model->flat_scored(f.binding), f);
}

// The head of some tokens alone gives them the logits that they have among all.
TEST_P(EncoderGolden, ForwardAtChosenPlaces) {
  if (model->task().head != Head::masked_token) return;
  Engine engine(backend());
  const std::vector<int32_t> places = {3, 14, 13, 0, 39};
  const size_t p =
      engine.add(run_pipeline(model->forward_at(batch, length, 5), engine.backend().target(), {}));
  engine.allocate();
  load(engine);
  const Feed f = feed(false);
  Call call{p, {}, {}};
  f.give(call);
  call.set("places", std::span<const int32_t>(places));
  engine.run(std::span(&call, 1));
  const std::vector<float> all = numbers("logits");
  const auto vocabulary = static_cast<size_t>(model->sizes().vocabulary);
  const std::vector<float> got = output(engine, p, "logits", places.size() * vocabulary);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto row =
        std::span(all).subspan(static_cast<size_t>(places[i]) * vocabulary, vocabulary);
    EXPECT_LT(norm_of_gap(std::span(got).subspan(i * vocabulary, vocabulary), row),
              1e-5 * norm_of(row))
        << places[i];
  }
}

}  // namespace
}  // namespace brrr
