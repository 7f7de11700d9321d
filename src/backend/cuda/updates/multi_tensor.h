#pragma once
// One launch over many tensors: a table of addresses goes in with the arguments, a block finds its
// tensor and works on 4096 elements of it. What is done with an element is text.

#include <string>
#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

/// at_random(x, bits): x rounded to bf16 as the updates round (ops/update.h).
extern const char* const kBf16AtRandom;

struct MultiTensor {
  struct Tensor {
    std::vector<LaunchArg> in, out;  // of equal element counts
    int64_t elements = 0;
    std::vector<int64_t> numbers;  // x.n0, x.n1, ...
  };
  std::string name;
  std::vector<std::string> headers{"device.cuh"};
  std::vector<DType> in, out;  // element types: arrays v0, v1, ... and w0, w1, ...
  int64_t vector = 4;
  std::string helpers;          // device functions
  std::string parameters;       // of the kernel, behind the table
  std::vector<LaunchArg> args;  // of those
  std::string prepare;          // before anything is read
  std::string draw;             // before the elements of a vector
  std::string element;          // reads v0[e], ..., writes w0[e], ...
  std::string finish;           // behind a block's elements; `block` is its number
  std::string body;             // instead of all that: what a block does with its 4096 of x.n
  std::vector<Tensor> tensors;

  /// Appends the launches; blocks are numbered from `first_block` on. Returns the number behind.
  int64_t add_to(LaunchPlan& plan, int64_t first_block = 0) const;
  static constexpr int64_t kBlockElements = 4096;
};

}  // namespace brrr::cuda
