#include "calibration/calibration_text.h"

#include <algorithm>

#include "base/human.h"
#include "data/corpus.h"
#include "infer/held_out_text.h"
#include "infer/model_runnable.h"

namespace brrr::calibration {
namespace {

constexpr int64_t kWindow = 512, kLeastTokens = 256;  // tokens
constexpr size_t kBytesOfToken = 16;                  // of text that is read, at most

struct Text {
  std::string text, description;
};

Text read_text(const io::Tokenizer& tokenizer, const std::vector<std::string>& files,
               int64_t most) {
  io::CorpusOptions options;
  for (const std::string& file : files) options.text.emplace_back(file);
  options.accept_bytes = tokenizer.kind() == "byte";
  io::Corpus corpus = io::load_corpus(options);
  Text text{std::move(corpus.text), corpus.description};
  if (files.empty()) text.text.resize(text.text.size() - text.text.size() / 10);
  // Lines spread over the text, rather than its beginning.
  const size_t enough = static_cast<size_t>(most) * kBytesOfToken;
  if (text.text.size() <= enough) return text;
  constexpr size_t kParts = 16;
  std::string chosen;
  for (size_t i = 0; i < kParts; ++i) {
    const size_t begin = text.text.find('\n', i * (text.text.size() / kParts));
    if (begin == std::string::npos) break;
    const size_t end = text.text.find('\n', begin + enough / kParts);
    chosen += text.text.substr(begin + 1, end == std::string::npos ? end : end - begin);
  }
  return {std::move(chosen), text.description};
}

HostTensor row_of(std::span<const int32_t> ids, const std::vector<int64_t>& sizes) {
  return HostTensor::of<int32_t>(sizes, {ids.begin(), ids.end()});
}

[[noreturn]] void too_short(const std::string& description, int64_t tokens) {
  user_error("--calibration: {} has {}; expected at least {} to calibrate on", description,
             counted(tokens, "token"), kLeastTokens);
}

/// One window of a stretch of text after the other.
void add_windows(CalibrationText& to, const std::vector<int32_t>& ids, int64_t length,
                 int64_t most) {
  const int64_t available = std::ssize(ids) / length, count = std::min(available, most / length);
  for (int64_t i = 0; i < count; ++i) {
    const auto first = static_cast<size_t>(i * available / count * length);
    const auto window = std::span(ids).subspan(first, static_cast<size_t>(length));
    PortValues inputs;
    inputs.emplace("tokens", row_of(window, {1, length}));
    to.runs.push_back(std::move(inputs));
    to.tokens += length;
  }
}

/// Texts one behind the other, the last of a window cut where the window ends, so that all windows
/// have one length. Returns the tokens that were left over, fewer than a window.
int64_t add_texts(CalibrationText& to, const io::ModelFolder& model, const std::string& text,
                  int64_t length, int64_t most) {
  const bool has_types = model.definition->has_token_types();
  std::vector<int32_t> ids, types, positions, starts{0};
  const auto finish = [&] {
    PortValues inputs;
    const int64_t count = std::ssize(ids);
    inputs.emplace("tokens", row_of(ids, {count}));
    inputs.emplace("positions", row_of(positions, {count}));
    if (has_types) inputs.emplace("types", row_of(types, {count}));
    inputs.emplace("starts", row_of(starts, {std::ssize(starts)}));
    to.runs.push_back(std::move(inputs));
    to.tokens += count;
    ids.clear(), types.clear(), positions.clear(), starts = {0};
  };
  for (size_t begin = 0; begin < text.size() && to.tokens < most;) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const io::ModelInput input =
        model.tokenizer->model_input(line, std::nullopt, static_cast<size_t>(length));
    const int64_t room = length - std::ssize(ids),
                  count = std::min<int64_t>(room, std::ssize(input.ids));
    for (int64_t i = 0; i < count; ++i) {
      ids.push_back(input.ids[static_cast<size_t>(i)]);
      types.push_back(has_types ? input.types[static_cast<size_t>(i)] : 0);
      positions.push_back(static_cast<int32_t>(i));
    }
    if (count > 0) starts.push_back(static_cast<int32_t>(std::ssize(ids)));
    if (std::ssize(ids) == length) finish();
  }
  if (to.runs.empty() && std::ssize(ids) >= kLeastTokens) finish();
  return std::ssize(ids);
}

}  // namespace

CalibrationText calibration_text(const io::ModelFolder& model,
                                 const std::vector<std::string>& files, int64_t most) {
  const io::Tokenizer& tokenizer = *model.tokenizer;
  const Text text = read_text(tokenizer, files, most);
  CalibrationText result;
  result.description = text.description;
  const int64_t context = std::min(kWindow, model.definition->sizes().context);
  if (model.definition->task().head != models::Head::next_token) {
    const int64_t left = add_texts(result, model, text.text, context, most);
    if (result.runs.empty()) too_short(text.description, left);
    return result;
  }
  std::vector<int32_t> ids;
  try {
    ids = tokenizer.encode(std::string_view(text.text));
  } catch (const UserError& e) {
    user_error("--calibration: {}: {}", text.description, e.what());
  }
  infer::check_known(ids, tokenizer, text.description);
  if (std::ssize(ids) < kLeastTokens) too_short(text.description, std::ssize(ids));
  add_windows(result, ids, std::min(context, std::ssize(ids)), std::max(most, context));
  return result;
}

std::shared_ptr<const Runnable> calibrated_runnable(const io::ModelFolder& model) {
  const bool is_causal = model.definition->task().head == models::Head::next_token;
  return infer::forward_runnable(model.definition, model.weights,
                                 is_causal ? infer::TextLayout::padded : infer::TextLayout::flat);
}

}  // namespace brrr::calibration
