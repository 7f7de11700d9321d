#include "data/images/image_report.h"

#include <algorithm>

#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr::io {
namespace {

/// What is known of one picture.
struct ImageFacts {
  ImageSize size;
  std::string format, problem;
  int64_t bytes = 0;
};

ImageFacts facts_of(const ImageSet& set, size_t i, bool decode, const DecodeOptions& options) {
  ImageFacts facts;
  try {
    const std::string bytes = set.file_bytes(i);
    if (bytes.empty()) {
      const Image image = set.read(i, options);
      facts.size = {image.width, image.height};
      facts.format = "IDX";
      return facts;
    }
    facts.bytes = std::ssize(bytes);
    const auto view = std::as_bytes(std::span(bytes));
    facts.size = image_size(view, set.name(i), options);
    ImageFormat format{};
    if (find_image_format(bytes, format)) facts.format = name_of(format);
    if (decode) decode_image(view, set.name(i), options);
  } catch (const UserError& error) {
    facts.problem = error.what();
  }
  return facts;
}

ImageReport::Range range_of(std::vector<int64_t> sizes) {
  if (sizes.empty()) return {};
  std::sort(sizes.begin(), sizes.end());
  return {sizes.front(), sizes[sizes.size() / 2], sizes.back()};
}

}  // namespace

ImageReport report_images(const ImageSet& set, bool decode, const DecodeOptions& options) {
  std::vector<ImageFacts> all(set.size());
  constexpr int64_t kAtOnce = 16;
  const int64_t n = std::ssize(all);
  parallel_chunks((n + kAtOnce - 1) / kAtOnce, [&](int64_t chunk) {
    for (int64_t i = chunk * kAtOnce; i < std::min(n, (chunk + 1) * kAtOnce); ++i)
      all[static_cast<size_t>(i)] = facts_of(set, static_cast<size_t>(i), decode, options);
  });
  ImageReport report;
  report.pictures = n;
  std::vector<int64_t> widths, heights;
  for (const ImageFacts& facts : all) {
    report.file_bytes += facts.bytes;
    if (!facts.problem.empty()) {
      report.bad.push_back(facts.problem);
      continue;
    }
    widths.push_back(facts.size.width);
    heights.push_back(facts.size.height);
    ++report.formats[facts.format];
  }
  report.width = range_of(std::move(widths));
  report.height = range_of(std::move(heights));
  return report;
}

}  // namespace brrr::io
