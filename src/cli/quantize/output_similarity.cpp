#include "cli/quantize/output_similarity.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace brrr::cli {
namespace {

using Measure = OutputSimilarity::Measure;

double cosine_of(const HostTensor& a, const HostTensor& b, const std::string& name) {
  double product = 0, first = 0, second = 0;
  for (int64_t i = 0; i < a.shape.elements(); ++i) {
    const double x = a.number(i), y = b.number(i);
    if (!std::isfinite(x) && !std::isfinite(y)) continue;  // masks
    product += x * y;
    first += x * x;
    second += y * y;
  }
  if (!std::isfinite(product))
    user_error("the output {} contains NaN or infinity; check the weights and --input", name);
  return first == 0 && second == 0 ? 1 : product / std::max(std::sqrt(first * second), 1e-300);
}

double equal_share_of(const HostTensor& a, const HostTensor& b) {
  const size_t size = bytes_of(a.dtype);
  int64_t equal = 0;
  for (size_t at = 0; at < a.bytes.size(); at += size)
    equal += std::equal(&a.bytes[at], &a.bytes[at] + size, &b.bytes[at]) ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(a.shape.elements());
}

}  // namespace

const char* name_of(Measure measure) {
  return measure == Measure::cosine        ? "cosine"
         : measure == Measure::equal_share ? "equal_share"
                                           : "form";
}

std::vector<OutputSimilarity> compare_outputs(const PortValues& plain,
                                              const PortValues& quantised) {
  std::vector<OutputSimilarity> list;
  for (const auto& [name, value] : plain) {
    const auto other = quantised.find(name);
    const size_t others = other == quantised.end() ? 0 : other->second.tensors.size();
    for (size_t i = 0; i < std::max(value.tensors.size(), others); ++i) {
      if (i >= value.tensors.size() || i >= others) {
        list.push_back({name, Measure::form, 0});
        continue;
      }
      const HostTensor &a = value.tensors[i], &b = other->second.tensors[i];
      if (a.shape != b.shape || a.dtype != b.dtype)
        list.push_back({name, Measure::form, 0});
      else if (a.shape.elements() == 0)
        continue;
      else if (is_float(a.dtype))
        list.push_back({name, Measure::cosine, cosine_of(a, b, name)});
      else
        list.push_back({name, Measure::equal_share, equal_share_of(a, b)});
    }
  }
  return list;
}

double least_similarity(const std::vector<OutputSimilarity>& outputs) {
  double least = 1;
  for (const OutputSimilarity& o : outputs) least = std::min(least, o.value);
  return least;
}

std::string similarity_text(const std::vector<OutputSimilarity>& outputs) {
  if (outputs.empty()) return "";
  std::string text = "\noutputs against those of the fp32 file:\n";
  for (const OutputSimilarity& o : outputs)
    text +=
        o.measure == Measure::cosine ? fmt::format("  {:<24}  cosine {:.6f}\n", o.name, o.value)
        : o.measure == Measure::equal_share
            ? fmt::format("  {:<24}  {:.2f}% of the elements are equal\n", o.name, 100 * o.value)
            : fmt::format("  {:<24}  another shape or type\n", o.name);
  return text;
}

}  // namespace brrr::cli
