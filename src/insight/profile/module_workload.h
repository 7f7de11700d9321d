#pragma once
// A module as a workload: a step is one run of an ONNX or .brrr file on the same inputs.

#include <memory>

#include "infer/module_runner.h"
#include "insight/profile/workload.h"

namespace brrr::insight {

/// `runner` is prepared with `inputs`; both outlive the result.
std::unique_ptr<Workload> module_workload(infer::ModuleRunner& runner,
                                          const modules::ModuleValues& inputs,
                                          double compile_seconds);

}  // namespace brrr::insight
