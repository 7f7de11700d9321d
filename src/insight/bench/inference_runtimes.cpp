// The texts and batches of `brrr bench inference`, and our own encoder as one of its runtimes.

#include "insight/bench/inference_runtimes.h"

#include <algorithm>
#include <numeric>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "data/permutation.h"
#include "data/row_order.h"
#include "infer/encoder.h"
#include "infer/model_runnable.h"

namespace brrr::insight {
namespace {

constexpr uint32_t kOrderSeed = 48;

/// One encoder in one precision and layout.
class OwnRuntime final : public InferenceRuntime {
 public:
  OwnRuntime(const BenchEncoder& model, infer::RunPrecision precision, RowLayout layout)
      : precision_(std::move(precision)),
        layout_(layout),
        context_(model.definition->sizes().context),
        encoder_(
            infer::forward_runnable(
                model.definition, model.weights,
                layout == RowLayout::packed ? infer::TextLayout::flat : infer::TextLayout::padded),
            cpu::cpu_backend(),
            {model.name, model.definition->task(), context_, model.definition->sizes().vocabulary},
            {.precision = precision_.dtype,
             .quantization = precision_.quantization,
             .batch_tokens = kAnyTokens}) {}

  std::string name() const override { return "brrr"; }
  Precision precision() const override { return precision_.name; }
  bool runs(const TextBatches& work) const override {
    return (work.order == TextOrder::packed) == (layout_ == RowLayout::packed);
  }
  int64_t computed_tokens(const TextBatches& work) const override {
    if (layout_ == RowLayout::padded)
      return work.padded_tokens(
          [&](int64_t longest) { return infer::padded_length(longest, context_); });
    int64_t tokens = 0;
    for (const std::vector<size_t>& batch : work.batches) {
      int64_t real = 0;
      for (const size_t i : batch) real += std::ssize(work.texts->inputs[i].ids);
      tokens += io::flat_length(real);
    }
    return tokens;
  }

  double run(const TextBatches& work, std::span<const size_t> wanted, Vectors& vectors) override {
    std::vector<std::vector<infer::EncoderRow>> batches;
    for (const std::vector<size_t>& batch : work.batches) {
      std::vector<infer::EncoderRow>& rows = batches.emplace_back();
      for (const size_t i : batch)
        rows.push_back({work.texts->inputs[i].ids, work.texts->inputs[i].types});
    }
    // Vectors are copied in every run: a caller needs them, and peers return theirs, too.
    const auto width = static_cast<size_t>(encoder_.width());
    results_.resize(work.texts->inputs.size() * width);
    const Stopwatch watch;
    for (size_t b = 0; b < batches.size(); ++b)
      encoder_.run(batches[b], [&](size_t row, std::span<const float> numbers) {
        std::ranges::copy(numbers,
                          results_.begin() + static_cast<int64_t>(work.batches[b][row] * width));
      });
    const double ms = watch.milliseconds();
    vectors.clear();
    for (const size_t i : wanted)
      vectors.emplace_back(results_.begin() + static_cast<int64_t>(i * width),
                           results_.begin() + static_cast<int64_t>((i + 1) * width));
    return ms;
  }

 private:
  // A batch is never divided: its size is what is measured.
  static constexpr int64_t kAnyTokens = int64_t{1} << 40;

  infer::RunPrecision precision_;
  RowLayout layout_;
  int64_t context_;
  infer::Encoder encoder_;
  std::vector<float> results_;  // of all texts
};

}  // namespace

const char* name_of(TextOrder order) {
  return order == TextOrder::packed ? "packed" : order == TextOrder::sorted ? "sorted" : "random";
}

TextSet texts_of_length(const TextSet& mixed, int64_t length, int64_t count) {
  std::vector<int32_t> ids;
  for (const io::ModelInput& input : mixed.inputs)
    ids.insert(ids.end(), input.ids.begin(), input.ids.end());
  TextSet set{.name = std::to_string(length), .length = length, .inputs = {}};
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    io::ModelInput& input = set.inputs.emplace_back();
    for (int64_t t = 0; t < length; ++t) input.ids.push_back(ids[at++ % ids.size()]);
    input.types.assign(input.ids.size(), 0);
  }
  return set;
}

int64_t TextBatches::real_tokens() const {
  int64_t tokens = 0;
  for (const io::ModelInput& input : texts->inputs) tokens += std::ssize(input.ids);
  return tokens;
}

int64_t TextBatches::padded_tokens(const std::function<int64_t(int64_t longest)>& padded) const {
  int64_t tokens = 0;
  for (const std::vector<size_t>& rows : batches) {
    int64_t longest = 0;
    for (const size_t i : rows) longest = std::max(longest, std::ssize(texts->inputs[i].ids));
    tokens += std::ssize(rows) * padded(longest);
  }
  return tokens;
}

TextBatches batches_of(const TextSet& texts, int64_t batch, TextOrder order, bool is_sorted) {
  TextBatches work{
      .texts = &texts, .batch = batch, .order = order, .is_sorted = is_sorted, .batches = {}};
  const io::Permutation permutation(texts.inputs.size(), {kOrderSeed, 0});
  std::vector<size_t> rows(texts.inputs.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = permutation(i);
  if (is_sorted)
    std::ranges::stable_sort(rows, std::greater<>(),
                             [&](size_t i) { return texts.inputs[i].ids.size(); });
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(batch)) {
    const size_t end = std::min(rows.size(), first + static_cast<size_t>(batch));
    work.batches.emplace_back(rows.begin() + static_cast<int64_t>(first),
                              rows.begin() + static_cast<int64_t>(end));
  }
  return work;
}

bool BenchEncoder::pools_first_token() const {
  return definition->task().pooling.front() == models::Pooling::cls;
}

std::unique_ptr<InferenceRuntime> own_runtime(const BenchEncoder& model, Precision precision,
                                              RowLayout layout) {
  const bool is_own = model.own && model.own->name == precision;
  return std::make_unique<OwnRuntime>(model, is_own ? *model.own : infer::run_precision(precision),
                                      layout);
}

}  // namespace brrr::insight
