#pragma once
// Brrr for C++20: modules, texts, graphs of one's own and training loops of one's own. The classes
// are inline over the C interface (brrr_c.h), so that a program and the library may be of different
// compilers.
//
//     brrr::Module model = brrr::Module::open("model.onnx");
//     auto outputs = model.run({{"x", brrr::Tensor::of<float>({1, 3}, {1, 2, 3})}});
//     float first = outputs.at("y").as<float>()[0];
//
// All names stand in the inline namespace brrr::v1, which differs from the library's own: both may
// be linked into one program.
//
// What goes wrong is thrown as brrr::Error, whose what() is one line that names the file, the input
// and the way out. An object is used by one thread at a time. Objects that were moved from may only
// be destroyed or assigned to.

#include "brrr/graph.h"
#include "brrr/module.h"
#include "brrr/run.h"
#include "brrr/tensor.h"
#include "brrr/text.h"

namespace brrr {
inline namespace v1 {

/// "0.1.0"
inline std::string version() { return brrr_version(); }

}  // namespace v1
}  // namespace brrr
