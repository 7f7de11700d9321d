#include "infer/open/encoder_inputs.h"

#include <algorithm>
#include <cmath>

#include "infer/open/named_model.h"
#include "machine/device.h"

namespace brrr::infer {
namespace {

constexpr size_t kWindowBatches = 32;  // of a window of lines where --batch-size bounds a batch
constexpr size_t kWindowLines = 4096;
constexpr int64_t kLineBytes = 512;    // of memory beside the text: strings, rows, results
constexpr int64_t kBytesPerByte = 12;  // of memory for a byte of text: itself, its ids and types

}  // namespace

size_t window_lines(const TextsOptions& options) {
  if (options.batch_size == 0) return kWindowLines;
  return std::min(static_cast<size_t>(options.batch_size) * kWindowBatches, kWindowLines);
}

io::ModelInput encoder_input(const io::Tokenizer& tokenizer, TextForm form, size_t longest,
                             std::string_view first, std::optional<std::string_view> second) {
  if (form == TextForm::with_special_tokens) return tokenizer.model_input(first, second, longest);
  io::ModelInput input;
  if (form == TextForm::without_special_tokens)
    tokenizer.encode(first, input.ids);
  else
    input = tokenizer.model_input(first);
  if (input.ids.size() > longest) {
    input.left_out = input.ids.size() - longest;
    input.ids.resize(longest);
  }
  input.types.assign(input.ids.size(), 0);
  return input;
}

void check_finite(std::span<const float> numbers, const std::string& where) {
  for (const float x : numbers)
    if (!std::isfinite(x))
      user_error("{}: the result contains {}: check the weights, or try --precision fp32", where,
                 std::isnan(x) ? "NaN" : "infinity");
}

std::vector<EncoderRow> rows_of(const std::vector<io::ModelInput>& inputs) {
  std::vector<EncoderRow> rows;
  for (const io::ModelInput& input : inputs) rows.push_back({input.ids, input.types});
  return rows;
}

Encoder encoder_of(const io::ModelFolder& model, const TextsOptions& options,
                   Communicator* communicator) {
  const Backend backend = machine::backend_for(options.device);
  model.tokenizer->prepare(1);  // before the memory of this process is measured
  const RunPrecision precision = precision_of(options, model);
  return Encoder(model.definition, backend, model.weights,
                 {.precision = precision.dtype,
                  .quantization = precision.quantization,
                  .batch_size = options.batch_size,
                  .batch_tokens = options.batch_tokens,
                  .memory = memory_of(options, "a smaller --max-length"),
                  .beside = bytes_of_texts(options, model.definition->sizes().width),
                  .communicator = communicator});
}

int64_t bytes_of_texts(const TextsOptions& options, int64_t width) {
  return static_cast<int64_t>(window_lines(options)) *
             (kLineBytes + width * int64_t{sizeof(float)}) +
         static_cast<int64_t>(kWindowBytes) * kBytesPerByte;
}

int64_t longest_text(const TextsOptions& options, int64_t context, std::optional<int64_t> folder) {
  if (options.max_length > context)
    usage_error("--max-length {} is more than the model's limit of {} tokens", options.max_length,
                context);
  if (options.max_length > 0) return options.max_length;
  return std::min(folder.value_or(context), context);
}

}  // namespace brrr::infer
