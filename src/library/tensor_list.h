#pragma once
// The tensors that a run gives, in the order of its outputs.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "library/api.h"

struct brrr_tensors {
  std::vector<std::pair<std::string, std::unique_ptr<brrr_tensor>>> list;
};
