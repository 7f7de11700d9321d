#include "cli/quantize/report.h"

#include <algorithm>
#include <cmath>

#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "formats/json_file.h"

namespace brrr::cli {
namespace {

constexpr size_t kMostLayers = 10, kMostAdvised = 3;
/// Below this a difference of speeds is noise.
constexpr double kSlower = 0.97;

/// The layers by their error, the largest first.
std::vector<const io::QuantizedLayer*> by_error(const io::QuantizedModel& made) {
  std::vector<const io::QuantizedLayer*> layers;
  for (const io::QuantizedLayer& l : made.layers()) layers.push_back(&l);
  std::ranges::stable_sort(layers,
                           [](const auto* a, const auto* b) { return a->error > b->error; });
  return layers;
}

std::string layers_to_keep(const io::QuantizedModel& made) {
  std::vector<std::string> names;
  for (const io::QuantizedLayer* l : by_error(made)) {
    if (names.size() == kMostAdvised) break;
    names.push_back(l->layer.name());
  }
  return fmt::format("{}", fmt::join(names, ","));
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

std::string speed_text(double per_second) {
  return per_second > 0 ? fmt::format("{:.{}f}", per_second, per_second < 100 ? 1 : 0) : "-";
}

int64_t quantised_elements(const io::QuantizedModel& made) {
  int64_t elements = 0;
  for (const io::QuantizedLayer& l : made.layers()) elements += l.layer.outputs * l.layer.inputs;
  return elements;
}

std::string table_of(const QuantizeMeasurements& m) {
  const std::string speed = m.has_loss ? "tokens/s" : "texts/s";
  std::string text = fmt::format("{:<16}  {:>12}  {:>9}", "", "on disk", speed);
  text += m.has_loss ? fmt::format("  {:>8}  {:>10}  {:>13}  {:>10}\n", "loss", "perplexity",
                                   "KL divergence", "same token")
                     : fmt::format("  {:>11}  {:>12}{}\n", "mean cosine", "least cosine",
                                   m.has_classes ? "  same class" : "");
  for (const MeasuredPrecision& p : m.precisions) {
    text +=
        fmt::format("{:<16}  {:>12}  {:>9}", p.name, megabytes(p.bytes), speed_text(p.per_second));
    text +=
        m.has_loss
            ? fmt::format("  {:>8.4f}  {:>10.3f}  {:>13.6f}  {:>9.2f}%\n", p.tokens.loss,
                          std::exp(p.tokens.loss), p.tokens.divergence, 100 * p.tokens.agreement)
            : fmt::format("  {:>11.5f}  {:>12.5f}{}\n", p.mean_cosine, p.least_cosine,
                          m.has_classes ? fmt::format("  {:>9.1f}%", 100 * p.agreement) : "");
  }
  return text;
}

/// How the loss changes, unless that is chance.
std::string loss_text(const QuantizeMeasurements& m) {
  const infer::TokenComparison& q = m.quantised().tokens;
  if (!q.is_beyond_noise())
    return fmt::format("the loss of fp32 within the noise of this text (+-{:.2g}%)",
                       200 * q.difference_error / std::max(m.fp32().tokens.loss, 1e-9));
  return fmt::format("{:+.2f}% loss ({:+.2f}% perplexity)", m.loss_increase(),
                     100 * (std::exp(q.loss_difference) - 1));
}

std::string verdict_of(const QuantizeMeasurements& m) {
  const MeasuredPrecision& q = m.quantised();
  const std::string speed = fmt::format("{:.2f}x the speed of bf16", m.speedup());
  if (!m.has_loss)
    return fmt::format("{} has {} and vectors with a mean cosine of {:.5f}, on {} of {}\n", q.name,
                       speed, q.mean_cosine, counted(m.counted, "text"), m.text);
  return fmt::format(
      "{} has {} and {}, on {} of {}\n"
      "against fp32, its next-token distributions have a KL divergence of {:.2g} nats per token, "
      "and {:.2f}% of the most likely tokens are the same\n",
      q.name, speed, loss_text(m), counted(m.counted, "token"), m.text, q.tokens.divergence,
      100 * q.tokens.agreement);
}

/// What the layers' outputs lose on the calibration text, means over the layers.
calibration::LayerErrors mean_errors(const calibration::Calibrator& calibrator) {
  calibration::LayerErrors mean;
  for (const auto& [name, errors] : calibrator.errors()) {
    mean.nearest += errors.nearest;
    mean.chosen += errors.chosen;
  }
  const auto count = static_cast<double>(std::max<size_t>(calibrator.errors().size(), 1));
  return {mean.nearest / count, mean.chosen / count};
}

std::string calibration_text(const calibration::Calibrator& calibrator) {
  const calibration::LayerErrors mean = mean_errors(calibrator);
  return fmt::format(
      "calibrated on {} of {}: layers' outputs there move by {:.4f}, and by {:.4f} when weights "
      "are rounded to nearest ({:.2f}x; means of {})\n",
      counted(calibrator.text().tokens, "token"), calibrator.text().description, mean.chosen,
      mean.nearest, mean.chosen / std::max(mean.nearest, 1e-12),
      counted(std::ssize(calibrator.errors()), "layer"));
}

}  // namespace

bool QuantizeReport::loses_too_much() const {
  return measurements && measurements->loss_increase() > most_increase;
}

std::vector<std::string> QuantizeReport::warnings() const {
  std::vector<std::string> lines;
  if (!measurements) return lines;
  const QuantizeMeasurements& m = *measurements;
  if (m.speedup() < kSlower)
    lines.push_back(fmt::format(
        "{} is slower here than bf16: {} instead of {} {} per second; it saves memory alone",
        m.quantised().name, speed_text(m.quantised().per_second), speed_text(m.bf16().per_second),
        m.has_loss ? "tokens" : "texts"));
  if (loses_too_much())
    lines.push_back(fmt::format(
        "{} is {:.2f}%, more than --max-loss-increase {:g}%; try --keep {}, whose errors are the "
        "largest{}",
        m.has_loss ? "the increase of the loss" : "the distance of the vectors (1 - mean cosine)",
        m.loss_increase(), most_increase, layers_to_keep(made),
        made.quantization().bits == 4 ? ", or --bits 8" : ""));
  return lines;
}

std::string report_text(const QuantizeReport& r) {
  const size_t all = r.made.layers().size() + r.kept.size();
  std::string text = fmt::format(
      "{}: {} of {} linear layers, {} of {} weights, in {}\n", r.model.folder.string(),
      r.made.layers().size(), all, with_commas(quantised_elements(r.made)),
      with_commas(r.model.definition->parameter_count()), io::description(r.made.quantization()));
  if (r.calibrator != nullptr) text += calibration_text(*r.calibrator);
  if (r.measurements)
    text += "\n" + table_of(*r.measurements) + "\n" + verdict_of(*r.measurements);
  else
    text += fmt::format("on disk: {}\n", megabytes(r.made.stored_bytes()));
  const auto layers = by_error(r.made);
  const size_t shown = std::min(layers.size(), kMostLayers);
  text += fmt::format("\nlargest relative errors of weights ({} of {}):\n", shown, layers.size());
  size_t width = 0;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, layers[i]->layer.name().size());
  for (size_t i = 0; i < shown; ++i)
    text += fmt::format("  {:<{}}  {:.5f}\n", layers[i]->layer.name(), width, layers[i]->error);
  return text;
}

std::string report_json(const QuantizeReport& r, const std::string& written) {
  using AnyJson = nlohmann::ordered_json;
  const io::FolderQuantization& q = r.made.quantization();
  AnyJson j;
  j["model"] = r.model.folder.string();
  j["bits"] = q.bits;
  j["method"] = q.dynamic ? "dynamic" : "weight-only";
  j["group_size"] = q.group;
  j["bytes"] = r.made.stored_bytes();
  j["weights"] = r.model.definition->parameter_count();
  j["quantised_weights"] = quantised_elements(r.made);
  j["kept"] = AnyJson::array();
  for (const io::LinearLayer& l : r.kept) j["kept"].push_back(l.name());
  if (r.measurements) {
    const QuantizeMeasurements& m = *r.measurements;
    j["text"] = m.text;
    j[m.has_loss ? "tokens" : "texts"] = m.counted;
    for (const MeasuredPrecision& p : m.precisions) {
      AnyJson row{{"name", name_of(p.name)}, {"bytes", p.bytes}};
      row[m.has_loss ? "tokens_per_second" : "texts_per_second"] = p.per_second;
      if (m.has_loss) {
        row["loss"] = p.tokens.loss;
        row["perplexity"] = std::exp(p.tokens.loss);
        row["loss_difference"] = p.tokens.loss_difference;
        row["loss_difference_standard_error"] = p.tokens.difference_error;
        row["kl_divergence"] = p.tokens.divergence;
        row["same_token"] = p.tokens.agreement;
      } else {
        row["mean_cosine"] = p.mean_cosine;
        row["least_cosine"] = p.least_cosine;
        if (m.has_classes) row["same_class"] = p.agreement;
      }
      j["precisions"].push_back(row);
    }
    j["loss_increase_percent"] = m.loss_increase();
    j["speed_over_bf16"] = m.speedup();
  }
  if (r.calibrator != nullptr) {
    const calibration::LayerErrors mean = mean_errors(*r.calibrator);
    j["calibration"] = {{"text", r.calibrator->text().description},
                        {"tokens", r.calibrator->text().tokens},
                        {"output_error", mean.chosen},
                        {"output_error_of_nearest", mean.nearest}};
  }
  j["layers"] = AnyJson::array();
  for (const io::QuantizedLayer* l : by_error(r.made)) {
    AnyJson layer{
        {"name", l->layer.name()}, {"error", l->error}, {"bytes", l->stored_bytes(q.packed)}};
    if (r.calibrator != nullptr)
      if (const auto errors = r.calibrator->errors().find(l->layer.parameter);
          errors != r.calibrator->errors().end()) {
        layer["output_error"] = errors->second.chosen;
        layer["output_error_of_nearest"] = errors->second.nearest;
      }
    j["layers"].push_back(std::move(layer));
  }
  j["warnings"] = r.warnings();
  j["output"] = written.empty() ? AnyJson() : AnyJson(written);
  return io::json_line(j) + "\n";
}

void publish_report(const QuantizeOptions& options, const std::string& report,
                    const std::vector<std::string>& warnings, bool is_written) {
  write_output(report);
  flush_output();
  for (const std::string& line : warnings) tell("WARNING: {}\n", line);
  if (!is_written)
    user_error("{} is not written; --force writes it, --max-loss-increase allows more",
               options.output);
}

}  // namespace brrr::cli
