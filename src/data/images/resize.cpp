#include "data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "data/images/resize_rows.h"

namespace brrr::io {
namespace {

constexpr struct {
  ResizeFilter filter;
  std::string_view name;
} kResizeFilters[] = {{ResizeFilter::nearest, "nearest"},
                      {ResizeFilter::bilinear, "bilinear"},
                      {ResizeFilter::bicubic, "bicubic"}};

double filter_support(ResizeFilter filter) { return filter == ResizeFilter::bicubic ? 2 : 1; }

double filter_value(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::bilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;  // Keys' cubic convolution
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/// The weights of results [begin, begin + results) of an axis that goes from `in` to `out` pixels.
class AxisWeights {
 public:
  AxisWeights(int64_t in, int64_t out, int64_t begin, int64_t results, ResizeFilter filter,
              bool mirrored) {
    const double scale = static_cast<double>(in) / static_cast<double>(out);
    const double stretch = std::max(scale, 1.0), support = filter_support(filter) * stretch;
    taps_ = std::min<int64_t>(static_cast<int64_t>(std::ceil(support)) * 2 + 1, in);
    const auto n = static_cast<size_t>(results);
    first_.resize(n);
    counts_.resize(n);
    weights_.assign(n * static_cast<size_t>(taps_), 0);
    std::vector<double> exact(static_cast<size_t>(taps_));
    for (int64_t i = 0; i < results; ++i) {
      const double centre = (static_cast<double>(begin + i) + 0.5) * scale;
      const int64_t low = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
      const int64_t high = std::min(in, static_cast<int64_t>(centre + support + 0.5));
      double total = 0;
      for (int64_t x = low; x < high; ++x) {
        const double at = (static_cast<double>(x) - centre + 0.5) / stretch;
        total += exact[static_cast<size_t>(x - low)] = filter_value(filter, at);
      }
      const auto place = static_cast<size_t>(mirrored ? results - 1 - i : i);
      first_[place] = static_cast<int32_t>(low);
      counts_[place] = static_cast<int32_t>(high - low);
      int32_t* weights = weights_.data() + place * static_cast<size_t>(taps_);
      for (int64_t k = 0; k < high - low; ++k) {
        const double weight = exact[static_cast<size_t>(k)] / total * (1 << kResizeBits);
        weights[k] = static_cast<int32_t>(weight + (weight < 0 ? -0.5 : 0.5));
      }
    }
  }
  ResizeTaps taps() const { return {taps_, first_.data(), weights_.data(), counts_.data()}; }
  /// Makes first[i] relative to input `low`.
  void begin_at(int64_t low) {
    for (int32_t& first : first_) first -= static_cast<int32_t>(low);
  }
  /// The inputs that results read: [low(), high()).
  int64_t low() const { return *std::min_element(first_.begin(), first_.end()); }
  int64_t high() const {
    int64_t high = 0;
    for (size_t i = 0; i < first_.size(); ++i)
      high = std::max<int64_t>(high, first_[i] + counts_[i]);
    return high;
  }

 private:
  int64_t taps_ = 0;
  std::vector<int32_t> first_, counts_, weights_;
};

/// One row of pixels of one channel.
void resize_grey_columns(const uint8_t* in, const ResizeTaps& taps, int64_t results, uint8_t* out) {
  for (int64_t i = 0; i < results; ++i) {
    const int32_t* weights = taps.weights + i * taps.taps;
    const uint8_t* from = in + taps.first[i];
    int32_t sum = 1 << (kResizeBits - 1);
    for (int32_t k = 0; k < taps.counts[i]; ++k) sum += from[k] * weights[k];
    out[i] = static_cast<uint8_t>(std::clamp(sum >> kResizeBits, 0, 255));
  }
}

/// The inputs that results of an axis copy: Pillow adds the step up, so rounding does, too.
std::vector<int64_t> nearest_inputs(int64_t in, int64_t out, int64_t begin, int64_t results) {
  const double step = static_cast<double>(in) / static_cast<double>(out);
  std::vector<int64_t> list;
  double at = step * 0.5;
  for (int64_t i = 0; i < begin + results; ++i, at += step)
    if (i >= begin) list.push_back(std::min(in - 1, static_cast<int64_t>(at)));
  return list;
}

struct ResizeSource {
  const Image& image;
  PixelBox box;
  const uint8_t* row(int64_t y) const { return image.row(box.top + y) + box.left * image.channels; }
};

void resize_nearest(const ResizeSource& source, const Resizing& to, const PixelBox& window,
                    Image& out) {
  auto columns = nearest_inputs(source.box.width, to.width, window.left, window.width);
  const auto rows = nearest_inputs(source.box.height, to.height, window.top, window.height);
  if (to.mirrored) std::reverse(columns.begin(), columns.end());
  for (int64_t y = 0; y < out.height; ++y) {
    const uint8_t* from = source.row(rows[static_cast<size_t>(y)]);
    uint8_t* pixel = out.row(y);
    for (const int64_t x : columns)
      for (int64_t c = 0; c < out.channels; ++c) *pixel++ = from[x * out.channels + c];
  }
}

/// Rows of pixels, of which a byte behind the last one is readable.
struct PixelRows {
  const uint8_t* first = nullptr;
  int64_t stride = 0;  // bytes from row to row
  int64_t channels = 3;
  const uint8_t* row(int64_t y) const { return first + y * stride; }
};

/// Writes a row whose columns are resized; a byte behind it is overwritten.
void resize_row(const uint8_t* in, int64_t channels, const ResizeTaps& taps, int64_t results,
                uint8_t* out) {
  if (channels == 1)
    resize_grey_columns(in, taps, results, out);
  else
    resize_rows().columns(in, taps, results, out);
}

/// Columns first, then rows, of the part that `window` needs; either may be left out.
class TwoPasses {
 public:
  TwoPasses(const ResizeSource& source, const Resizing& to, const PixelBox& window)
      : source_(source), window_(window), channels_(source.image.channels) {
    if (to.width != source.box.width || to.mirrored)
      columns_.emplace(source.box.width, to.width, window.left, window.width, to.filter,
                       to.mirrored);
    if (to.height != source.box.height)
      rows_.emplace(source.box.height, to.height, window.top, window.height, to.filter, false);
    // Pillow 13 begins with the rows where that makes the other pass much shorter.
    const int64_t less_rows = source.box.height - to.height,
                  less_columns = source.box.width - to.width;
    rows_first_ = less_rows > 0 && less_rows > 2 * less_columns;
  }

  /// `out` has space for 1 byte behind its last pixel.
  void run(uint8_t* out) {
    if (columns_ && rows_)
      rows_first_ ? run_rows_first(out) : run_columns_first(out);
    else if (rows_)
      resize_height(source_rows(), window_.left, window_.width, out);
    else
      resize_width(window_.top, window_.height, out);
  }

 private:
  PixelRows source_rows() const {
    return {source_.row(0), static_cast<int64_t>(source_.image.row_bytes()), channels_};
  }
  /// Rows [top, top + count) of the source with the window's columns.
  void resize_width(int64_t top, int64_t count, uint8_t* out) {
    const int64_t row_bytes = window_.width * channels_;
    const Image& image = source_.image;
    for (int64_t y = top; y < top + count; ++y, out += row_bytes) {
      const uint8_t* in = source_.row(y);
      if (!columns_) {
        std::memcpy(out, in + window_.left * channels_, static_cast<size_t>(row_bytes));
        continue;
      }
      const uint8_t* end = in + source_.box.width * channels_;
      if (end == image.pixels.data() + image.pixels.size()) {
        last_row_.assign(in, end);  // the loop reads a byte behind its row
        last_row_.push_back(0);
        in = last_row_.data();
      }
      resize_row(in, channels_, columns_->taps(), window_.width, out);
    }
  }
  /// The window's rows of columns [left, left + count) of `in`.
  void resize_height(const PixelRows& in, int64_t left, int64_t count, uint8_t* out) const {
    const ResizeTaps taps = rows_->taps();
    const int64_t bytes = count * channels_;
    for (int64_t y = 0; y < window_.height; ++y, out += bytes)
      resize_rows().rows(in.row(taps.first[y]) + left * channels_, in.stride,
                         taps.weights + y * taps.taps, taps.counts[y], bytes, out);
  }

  void run_columns_first(uint8_t* out) {
    const int64_t low = rows_->low(), count = rows_->high() - low;
    const int64_t row_bytes = window_.width * channels_;
    std::vector<uint8_t> between(static_cast<size_t>(count * row_bytes) + 1);
    resize_width(low, count, between.data());
    rows_->begin_at(low);
    resize_height({between.data(), row_bytes, channels_}, 0, window_.width, out);
  }
  void run_rows_first(uint8_t* out) {
    const int64_t low = columns_->low(), count = columns_->high() - low;
    const int64_t row_bytes = count * channels_;
    std::vector<uint8_t> between(static_cast<size_t>(window_.height * row_bytes) + 1);
    resize_height(source_rows(), low, count, between.data());
    columns_->begin_at(low);
    for (int64_t y = 0; y < window_.height; ++y)
      resize_row(between.data() + y * row_bytes, channels_, columns_->taps(), window_.width,
                 out + y * window_.width * channels_);
  }

  const ResizeSource& source_;
  const PixelBox& window_;
  int64_t channels_;
  std::optional<AxisWeights> columns_, rows_;
  bool rows_first_ = false;
  std::vector<uint8_t> last_row_;
};

}  // namespace

ResizeFilter resize_filter_from_name(std::string_view name) {
  for (const auto& entry : kResizeFilters)
    if (entry.name == name) return entry.filter;
  usage_error("unknown filter '{}': expected nearest, bilinear or bicubic", name);
}

Image resize(const Image& image, const PixelBox& box, const Resizing& to) {
  const PixelBox window = to.window.width > 0 ? to.window : PixelBox{0, 0, to.width, to.height};
  BRRR_CHECK(box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 &&
                 box.left + box.width <= image.width && box.top + box.height <= image.height,
             "a part of {} x {}", image.width, image.height);
  BRRR_CHECK(window.left >= 0 && window.top >= 0 && window.height > 0 &&
                 window.left + window.width <= to.width && window.top + window.height <= to.height,
             "a window of {} x {}", to.width, to.height);
  const ResizeSource source{image, box};
  Image out{window.width, window.height, image.channels, {}};
  const size_t bytes = out.row_bytes() * static_cast<size_t>(out.height);
  if (to.filter == ResizeFilter::nearest) {
    out.pixels.resize(bytes);
    resize_nearest(source, to, window, out);
    return out;
  }
  out.pixels.resize(bytes + 1);
  TwoPasses(source, to, window).run(out.pixels.data());
  out.pixels.resize(bytes);
  return out;
}

Image resize(const Image& image, int64_t width, int64_t height, ResizeFilter filter) {
  return resize(image, {0, 0, image.width, image.height}, {width, height, filter});
}

}  // namespace brrr::io
