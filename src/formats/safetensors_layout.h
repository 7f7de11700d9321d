#pragma once
// Where the bytes of each tensor lie in a safetensors file, before the file is written.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace brrr::io {

struct SafetensorsLayout {
  struct Place {
    const TensorView* tensor = nullptr;
    uint64_t begin = 0, bytes = 0;  // in the file
  };
  std::string head;           // what comes before the first tensor
  std::vector<Place> places;  // in the order of the file
  uint64_t bytes = 0;         // of the file
};

/// The layout of the file that write_safetensors() would write. `tensors` must outlive it.
SafetensorsLayout layout_of(std::span<const TensorView> tensors, const Metadata& metadata);

}  // namespace brrr::io
