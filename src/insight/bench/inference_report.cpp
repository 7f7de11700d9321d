// What `brrr bench inference` measured as a table for people and as an object for programs, and
// published findings beside what the rows say of them.

#include <algorithm>
#include <optional>

#include "base/human.h"
#include "insight/bench/bench_inference.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Rows = std::vector<InferenceRow>;

/// "20% slower", "10% faster" or "the same" for a ratio of times.
std::string change_text(double ratio) {
  const double percent = 100 * (ratio - 1);
  if (std::abs(percent) < 0.5) return "the same";
  return fmt::format("{:.0f}% {}", std::abs(percent), percent > 0 ? "slower" : "faster");
}

/// The rows of texts as they are at one precision, fp32 if it was measured: what findings are
/// about.
class MixedRows {
 public:
  explicit MixedRows(const Rows& rows) {
    const std::vector<Precision> all = precisions_of(rows);
    if (!all.empty()) precision_ = holds(all, Precision::fp32) ? Precision::fp32 : all.front();
    for (const InferenceRow& row : rows)
      if (row.length == 0 && row.agrees && row.precision == precision_) rows_.push_back(&row);
  }

  const InferenceRow* find(const std::string& runtime, TextOrder order, bool is_sorted,
                           int64_t batch) const {
    for (const InferenceRow* row : rows_)
      if (row->runtime == runtime && row->order == order && row->is_sorted == is_sorted &&
          row->batch == batch)
        return row;
    return nullptr;
  }
  /// The time of row a over that of row b.
  static std::optional<double> ratio(const InferenceRow* a, const InferenceRow* b) {
    if (a == nullptr || b == nullptr || b->ms.median <= 0) return std::nullopt;
    return a->ms.median / b->ms.median;
  }
  /// The fastest row of a batch size that takes texts in random order.
  const InferenceRow* fastest_unsorted(int64_t batch, const std::vector<std::string>& of) const {
    const InferenceRow* best = nullptr;
    for (const InferenceRow* row : rows_)
      if (row->batch == batch && !row->is_sorted && (of.empty() || holds(of, row->runtime)) &&
          (best == nullptr || row->ms.median < best->ms.median))
        best = row;
    return best;
  }

  std::vector<std::string> runtimes() const {
    std::vector<std::string> list;
    for (const InferenceRow* row : rows_)
      if (!holds(list, row->runtime)) list.push_back(row->runtime);
    return list;
  }
  std::vector<int64_t> batches() const {
    std::vector<int64_t> list;
    for (const InferenceRow* row : rows_)
      if (!holds(list, row->batch)) list.push_back(row->batch);
    std::ranges::sort(list);
    return list;
  }

 private:
  Precision precision_ = Precision::fp32;
  std::vector<const InferenceRow*> rows_;
};

/// Appends the figures of the finding to its text, formatted by `text`. Without figures the text
/// says which measurements it needs.
Finding told(Finding finding, const std::string& needs,
             const std::function<std::string(double)>& text) {
  for (const auto& [name, figure] : finding.figures)
    finding.here += (finding.here.empty() ? "" : ", ") + name + " " + text(figure);
  if (finding.here.empty()) finding.here = "not measured: it needs " + needs;
  return finding;
}

Finding larger_batches(const MixedRows& rows, bool is_sorted) {
  Finding f{.name = is_sorted ? "batch_16_to_64_sorted" : "batch_16_to_64_random",
            .published = is_sorted ? "batch 16 -> 64, sorted by length: 10% faster"
                                   : "batch 16 -> 64, random order: 20% slower",
            .here = "",
            .figures = {}};
  const auto add = [&](const std::string& name, const std::string& runtime, TextOrder order) {
    const auto ratio = MixedRows::ratio(rows.find(runtime, order, is_sorted, 64),
                                        rows.find(runtime, order, is_sorted, 16));
    if (ratio) f.figures.emplace_back(name, *ratio);
  };
  add("brrr packed", "brrr", TextOrder::packed);
  for (const std::string& runtime : rows.runtimes())
    add(runtime == "brrr" ? "brrr padded" : runtime, runtime,
        is_sorted ? TextOrder::sorted : TextOrder::random);
  return told(std::move(f), "batches of 16 and 64", change_text);
}

Finding onnx_below_32(const MixedRows& rows) {
  Finding f{.name = "onnxruntime_below_32",
            .published = "ONNX Runtime is the fastest format below batch 32",
            .here = "",
            .figures = {}};
  std::vector<std::string> others = rows.runtimes();
  std::erase(others, "onnxruntime");
  std::string fastest;
  for (const int64_t batch : rows.batches()) {
    const InferenceRow* onnx = rows.find("onnxruntime", TextOrder::random, false, batch);
    const InferenceRow* other = others.empty() ? nullptr : rows.fastest_unsorted(batch, others);
    const auto ratio = MixedRows::ratio(onnx, other);
    if (!ratio) continue;
    f.figures.emplace_back(fmt::format("batch {}", batch), *ratio);
    f.here += fmt::format("{}batch {}: {}", f.here.empty() ? "" : ", ", batch,
                          *ratio <= 1 ? fmt::format("it is, by {:.2f}x", 1 / *ratio)
                                      : fmt::format("{} is, by {:.2f}x", other->runtime, *ratio));
  }
  if (f.here.empty()) f.here = "not measured: it needs --peers with onnxruntime";
  return f;
}

Finding formats_at_64(const MixedRows& rows) {
  Finding f{.name = "formats_at_64",
            .published = "at batch 64 PyTorch, TorchScript and ONNX Runtime are within 10%",
            .here = "",
            .figures = {}};
  const std::vector<std::string> formats{"pytorch", "torchscript", "onnxruntime"};
  const InferenceRow* best = rows.fastest_unsorted(64, formats);
  for (const std::string& format : formats)
    if (const auto ratio = MixedRows::ratio(rows.find(format, TextOrder::random, false, 64), best))
      f.figures.emplace_back(format, *ratio);
  if (f.figures.size() < 2) f.figures.clear();
  return told(std::move(f), "batches of 64 and --peers with them",
              [](double ratio) { return fmt::format("{:.2f}x", ratio); });
}

Finding packed_against(const MixedRows& rows, const std::string& name, TextOrder order,
                       bool is_sorted, const std::string& what) {
  Finding f{.name = name, .published = "", .here = "", .figures = {}};
  for (const int64_t batch : rows.batches()) {
    const auto ratio = MixedRows::ratio(rows.find("brrr", order, is_sorted, batch),
                                        rows.find("brrr", TextOrder::packed, false, batch));
    if (!ratio || batch == 1) continue;
    // The gain of packing, or of sorting what is packed.
    const double figure = is_sorted ? 1 / *ratio : *ratio;
    f.figures.emplace_back(fmt::format("batch {}", batch), figure);
  }
  f = told(std::move(f), "a batch of two texts or more", [&](double figure) {
    return is_sorted ? change_text(figure) : fmt::format("{:.2f}x", figure);
  });
  f.here = what + ": " + f.here;
  return f;
}

/// "+38%": tokens that are computed on top of those of the texts.
std::string padding_text(const InferenceRow& row) {
  return fmt::format("+{:.0f}%", 100.0 * static_cast<double>(row.padded_tokens - row.real_tokens) /
                                     static_cast<double>(row.real_tokens));
}

/// "fp32 2.1e-07, bf16 0.0032": the largest difference of any vector that agrees, by precision.
std::string differences_text(const InferenceReport& report) {
  std::string text;
  for (const Precision precision : precisions_of(report.rows)) {
    double most = 0;
    for (const InferenceRow& row : report.rows)
      if (row.agrees && row.precision == precision) most = std::max(most, row.max_difference);
    text += fmt::format("{}{} {:.2g}", text.empty() ? "" : ", ", precision, most);
  }
  return text;
}

const InferenceRow* own_random(const InferenceReport& report, const InferenceRow& row) {
  for (const InferenceRow& r : report.rows)
    if (r.is_ours() && r.order == TextOrder::random && r.precision == row.precision &&
        r.batch == row.batch && r.length == row.length)
      return &r;
  return nullptr;
}

}  // namespace

std::vector<Precision> precisions_of(const Rows& rows) {
  std::vector<Precision> list;
  for (const InferenceRow& row : rows)
    if (!holds(list, row.precision)) list.push_back(row.precision);
  return list;
}

std::vector<Finding> inference_findings(const Rows& all) {
  const MixedRows rows(all);
  return {larger_batches(rows, false),
          larger_batches(rows, true),
          onnx_below_32(rows),
          formats_at_64(rows),
          packed_against(rows, "packed_random_to_sorted", TextOrder::packed, true,
                         "packed in random order against packed and sorted"),
          packed_against(rows, "packed_over_padded", TextOrder::random, false,
                         "speed of packed over padded rows, both in random order")};
}

std::string repeats_text(const InferenceReport& report) {
  int low = report.repeats, high = 1;
  for (const InferenceRow& row : report.rows)
    low = std::min(low, row.repeats), high = std::max(high, row.repeats);
  return low >= high ? counted(high, "interleaved repeat")
                     : fmt::format("{} to {} interleaved repeats", low, high);
}

std::string inference_table(const InferenceReport& report) {
  const bool has_peers =
      std::ranges::any_of(report.rows, [](const InferenceRow& r) { return !r.is_ours(); });
  std::string out = fmt::format(
      "{}: {}\n{}; medians of {}, with quartiles\nTimed: the encoder and its "
      "pooling, without the tokenizer{}.\nSpeed-up: over {}.\n",
      report.model, report.subtitle, report.processor, repeats_text(report),
      has_peers ? " (sentence-transformers: with it)" : "",
      has_peers ? "the fastest peer at this precision, batch size and length"
                : "our padded rows in random order");
  const std::string head =
      fmt::format("  {:<22} {:<5} {:<14} {:>9} {:>17} {:>12} {:>8} {:>11}\n", "runtime", "type",
                  "order", "ms/sent.", "quartiles", "sentences/s", "padding", "speed-up");
  std::vector<std::pair<int64_t, int64_t>> groups;  // length and batch
  for (const InferenceRow& row : report.rows)
    if (!holds(groups, std::pair(row.length, row.batch)))
      groups.emplace_back(row.length, row.batch);
  for (const auto& [length, batch] : groups) {
    out += fmt::format("\nbatch {}, {}\n{}", batch,
                       length == 0 ? "the sentences" : fmt::format("texts of {} tokens", length),
                       head);
    for (const Precision precision : precisions_of(report.rows))
      for (const InferenceRow& row : report.rows) {
        if (row.length != length || row.batch != batch || row.precision != precision) continue;
        const InferenceRow* other = has_peers ? best_peer(report, row) : own_random(report, row);
        const std::string ratio = !row.agrees ? "differs"
                                  : other == nullptr
                                      ? ""
                                      : fmt::format("{:.2f}x", other->ms.median / row.ms.median);
        out += fmt::format("  {:<22} {:<5} {:<14} {:>9.3f} {:>17} {:>12.1f} {:>8} {:>11}\n",
                           row.runtime, row.precision, row.order_text(), row.ms.median,
                           fmt::format("({:.3f}-{:.3f})", row.ms.low, row.ms.high),
                           row.sentences_per_second(), padding_text(row), ratio);
      }
  }
  out += fmt::format("\nlargest difference from our vectors at fp32, which have length 1: {}\n",
                     differences_text(report));
  out += "\npublished findings, and here\n";
  for (const Finding& f : report.findings)
    out += f.published.empty()
               ? fmt::format("  {}\n", f.here)
               : fmt::format("  published: {}\n       here: {}\n", f.published, f.here);
  return out;
}

OrderedJson inference_json(const InferenceReport& report) {
  OrderedJson rows = OrderedJson::array(), findings = OrderedJson::array(),
              versions = OrderedJson::object();
  for (const InferenceRow& r : report.rows) {
    rows.push_back({{"model", report.model},
                    {"runtime", r.runtime},
                    {"precision", name_of(r.precision)},
                    {"batch", r.batch},
                    {"order", name_of(r.order)},
                    {"sorted", r.is_sorted},
                    {"length", r.length == 0 ? OrderedJson("mixed") : OrderedJson(r.length)},
                    {"ms_per_sentence", r.ms.median},
                    {"low", r.ms.low},
                    {"high", r.ms.high},
                    {"repeats", r.repeats},
                    {"sentences_per_second", r.sentences_per_second()},
                    {"padded_tokens", r.padded_tokens},
                    {"real_tokens", r.real_tokens},
                    {"max_difference", r.max_difference},
                    {"agrees", r.agrees}});
  }
  for (const Finding& f : report.findings) {
    OrderedJson figures = OrderedJson::object();
    for (const auto& [name, figure] : f.figures) figures[name] = figure;
    findings.push_back(
        {{"name", f.name},
         {"published", f.published.empty() ? OrderedJson(nullptr) : OrderedJson(f.published)},
         {"here", f.here},
         {"figures", figures}});
  }
  for (const auto& [name, version] : report.versions) versions[name] = version;
  return {{"results", rows},           {"findings", findings},      {"processor", report.processor},
          {"threads", report.threads}, {"repeats", report.repeats}, {"sentences", report.sentences},
          {"versions", versions},      {"notes", report.notes}};
}

}  // namespace brrr::insight
