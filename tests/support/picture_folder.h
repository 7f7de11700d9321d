#pragma once
// A folder of pictures with classes that are easy to tell.

#include <string>

#include "base/file.h"

namespace brrr::test {

/// A PPM picture of one class: stripes of a colour of its own, with noise by its number.
inline std::string striped_picture(int kind, int number, int side) {
  std::string ppm = "P6\n" + std::to_string(side) + " " + std::to_string(side) + "\n255\n";
  uint32_t noise = 12345u + static_cast<uint32_t>(977 * number + kind);
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x)
      for (int c = 0; c < 3; ++c) {
        noise = noise * 1664525u + 1013904223u;
        const int stripe = ((kind == 0 ? x : kind == 1 ? y : x + y) / 2) % 2;
        ppm += static_cast<char>(static_cast<int>(noise >> 26) + (c == kind ? 90 * stripe : 40));
      }
  return ppm;
}

/// FOLDER/CLASS/NUMBER.ppm for the classes "bird", "cat" and "fish".
inline void write_picture_folder(const fs::path& folder, int of_each, int side = 20) {
  int kind = 0;
  for (const char* name : {"bird", "cat", "fish"}) {
    fs::create_directories(folder / name);
    for (int i = 0; i < of_each; ++i)
      write_file_atomically(folder / name / (std::to_string(100 + i) + ".ppm"),
                            striped_picture(kind, i, side + i % 3));
    ++kind;
  }
}

}  // namespace brrr::test
