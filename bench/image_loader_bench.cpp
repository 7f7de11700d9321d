// Pictures a second that the loader gives: decoded, cropped at random to 224 x 224, mirrored and
// normalised. Driven by bench/peers/image_loader.py.
//
//   bench_image_loader FOLDER WORKERS BATCH BATCHES [RECIPE [CACHE_BYTES]]

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "data/images/image_batches.h"
#include "data/loader.h"

int main(int count, char** arguments) {
  using namespace brrr;
  if (count < 5) {
    std::fputs("usage: bench_image_loader FOLDER WORKERS BATCH BATCHES [RECIPE [CACHE_BYTES]]\n",
               stderr);
    return 2;
  }
  const io::ImageSet set = io::open_images(arguments[1]).train;
  io::ImageBatchOptions images;
  images.augment = io::augment_from_name(count > 5 ? arguments[5] : "imagenet");
  images.cache_bytes = count > 6 ? std::atoll(arguments[6]) : 0;
  io::LoaderOptions options;
  options.mode = io::Sampling::kEpoch;
  options.batch = std::atoll(arguments[3]);
  static_cast<io::BatchOptions&>(options) = io::ImageBatches::batch_options(set, images, options);
  options.workers = std::atoll(arguments[2]);
  io::Loader loader(std::make_unique<io::ImageBatches>(set, options, images), options);
  const int64_t batches = std::atoll(arguments[4]);
  // An epoch to warm up: files, and what is kept of them.
  for (int64_t i = 0; i < loader.batches_per_pass(); ++i) loader.next();
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  for (int64_t i = 0; i < batches; ++i)
    sum += static_cast<double>(loader.next().values("pixels")[static_cast<size_t>(i)]);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%.1f %g\n", static_cast<double>(batches * options.batch) / seconds.count(), sum);
}
