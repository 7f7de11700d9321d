#include "cli/texts/text_vectors.h"

#include <algorithm>
#include <cmath>

#include "base/human.h"

namespace brrr::cli {

using infer::check_finite;
using infer::longest_text;
using infer::open_embedder;
using infer::prompt_of;
using infer::rows_of;
using infer::TextRole;
namespace {

/// Throws UserError where only the prompt's tokens are left of a text, which pooling leaves out.
io::ModelInput behind_prompt(io::ModelInput input, const std::string& where,
                             const OpenEmbedder& model) {
  const int64_t prompt = model.settings.task.prompt_tokens;
  if (prompt > 0 && std::ssize(input.ids) <= prompt)
    user_error(
        "{}: no token of the text is left behind its prompt, which has {}; use a larger "
        "--max-length",
        where, counted(prompt, "token"));
  return input;
}

}  // namespace

double similarity_of(std::span<const float> a, std::span<const float> b, io::Similarity how) {
  double dot = 0, aa = 0, bb = 0, squares = 0, sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    dot += x * y;
    aa += x * x;
    bb += y * y;
    squares += (x - y) * (x - y);
    sum += std::abs(x - y);
  }
  switch (how) {
    case io::Similarity::dot:
      return dot;
    case io::Similarity::euclidean:
      return -std::sqrt(squares);
    case io::Similarity::manhattan:
      return -sum;
    case io::Similarity::cosine:
      break;
  }
  return dot / std::max(std::sqrt(aa) * std::sqrt(bb), 1e-24);
}

TextVectors::TextVectors(const infer::EmbedOptions& options, Communicator* communicator)
    : options_(options),
      model_(open_embedder(options, TextRole::document, communicator)),
      prompt_(prompt_of(model_.settings, options, TextRole::document)),
      texts_(options, *model_.tokenizer,
             longest_text(options, model_.context, model_.settings.longest), model_.form,
             communicator),
      width_(options.truncate_dim > 0 ? options.truncate_dim : model_.vectors->width()) {
  if (options.truncate_dim > model_.vectors->width())
    usage_error("--truncate-dim {}: the model's vectors have {} numbers", options.truncate_dim,
                model_.vectors->width());
}

std::vector<float> TextVectors::of_lines() {
  std::vector<io::ModelInput> inputs;
  for (size_t i = 0; i < texts_.lines().size(); ++i)
    inputs.push_back(
        behind_prompt(texts_.encode(i, prompt_ + texts_.lines()[i]), texts_.where(i), model_));
  return vectors_of(inputs, model_, [&](size_t row) { return texts_.where(row); });
}

std::vector<float> TextVectors::of_query(const std::string& text, const std::string& where) {
  const std::string prompt = prompt_of(model_.settings, options_, TextRole::query);
  const auto vector = [&](const OpenEmbedder& model) {
    const std::vector<io::ModelInput> inputs{
        behind_prompt(texts_.encode_other(prompt + text, where), where, model)};
    return vectors_of(inputs, model, [&](size_t) { return where; });
  };
  // A program leaves the tokens of one prompt out.
  if (model_.settings.pools_prompt || prompt == prompt_) return vector(model_);
  return vector(open_embedder(options_, TextRole::query));
}

/// Returns vectors shortened as --truncate-dim says.
template <typename Where>
std::vector<float> TextVectors::vectors_of(const std::vector<io::ModelInput>& inputs,
                                           const OpenEmbedder& model, const Where& where) const {
  const auto width = static_cast<size_t>(width_);
  std::vector<float> vectors(inputs.size() * width);
  model.vectors->run(rows_of(inputs), [&](size_t row, std::span<const float> numbers) {
    check_finite(numbers, where(row));
    const auto to = std::span(vectors).subspan(row * width, width);
    std::ranges::copy(numbers.first(width), to.begin());
    if (width == numbers.size() || !model.settings.ends_normalized()) return;
    double squares = 0;
    for (const float x : to) squares += static_cast<double>(x) * static_cast<double>(x);
    const double length = std::max(std::sqrt(squares), 1e-12);
    for (float& x : to) x = static_cast<float>(static_cast<double>(x) / length);
  });
  return vectors;
}

}  // namespace brrr::cli
