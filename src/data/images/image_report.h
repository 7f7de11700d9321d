#pragma once
// What a set of pictures holds: sizes, formats, and which pictures cannot be read.

#include <map>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace brrr::io {

struct ImageReport {
  struct Range {
    int64_t least = 0, median = 0, most = 0;
  };
  int64_t pictures = 0;
  Range width, height;                     // of those that can be read
  std::map<std::string, int64_t> formats;  // "JPEG" and how many; "IDX"
  int64_t file_bytes = 0;                  // of pictures that are files
  std::vector<std::string> bad;            // why each of the others cannot be read, in order
};

/// Reads the header of every picture on all threads, or with `decode` the whole of it, which also
/// finds files that are truncated.
ImageReport report_images(const ImageSet& set, bool decode, const DecodeOptions& options = {});

}  // namespace brrr::io
