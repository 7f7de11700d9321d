#include "conformance/onnx_suite.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "formats/onnx/onnx_file.h"
#include "modules/module_session.h"
#include "modules/onnx/onnx_module.h"

namespace brrr::test {
namespace {

using modules::ModuleValue;

// Those of ONNX's own runner.
constexpr double kRelative = 1e-3, kAbsolute = 1e-7;

// Two cases expect 1.9e-7, the noise of a product in f32, where the result is 0 and Brrr gives
// 3e-15.
double absolute_tolerance(const fs::path& folder) {
  const std::string name = folder.filename();
  return name == "test_dft_inverse" || name == "test_dft_inverse_opset19" ? 1e-6 : kAbsolute;
}

HostTensor host(const onnx::TensorProto& t) {
  const std::optional<DType> dtype = onnx::dtype_of(t.type);
  if (!dtype) throw onnx::Unsupported("data of " + onnx::name_of(t.type));
  HostTensor out(*dtype, Shape(t.dims));
  if (!out.bytes.empty()) std::memcpy(out.bytes.data(), t.bytes.data(), out.bytes.size());
  return out;
}

ModuleValue read_value(const fs::path& path, const modules::Port& port) {
  const std::string bytes = read_file(path);
  if (port.type == "map" || port.type.find("STRING") != std::string::npos)
    throw onnx::Unsupported("data of " + port.type);
  if (port.is_tensor) return host(onnx::parse_tensor(bytes, path.string()));
  std::vector<HostTensor> tensors;
  for (const onnx::TensorProto& t : onnx::parse_sequence(bytes, path.string()))
    tensors.push_back(host(t));
  if (port.type.starts_with("optional") && port.type.find("sequence") == std::string::npos)
    return tensors.empty() ? ModuleValue() : ModuleValue(std::move(tensors[0]));
  return ModuleValue::list(std::move(tensors));
}

std::string difference(const HostTensor& got, const HostTensor& wanted, double absolute) {
  const std::string types = fmt::format("{}{} instead of {}{}", name_of(got.dtype), got.shape.str(),
                                        name_of(wanted.dtype), wanted.shape.str());
  if (got.dtype != wanted.dtype || got.shape != wanted.shape) return types;
  for (int64_t i = 0; i < wanted.shape.elements(); ++i) {
    const double a = load_as_double(got.dtype, got.bytes.data(), i),
                 b = load_as_double(wanted.dtype, wanted.bytes.data(), i);
    const bool same = a == b || (std::isnan(a) && std::isnan(b)) ||
                      std::fabs(a - b) <= absolute + kRelative * std::fabs(b);
    if (!same)
      return fmt::format("element {} of {} is {} instead of {}", i, wanted.shape.str(), a, b);
  }
  return "";
}

std::string run_set(modules::ModuleSession& session, const fs::path& set) {
  const modules::Module& module = session.module();
  modules::ModuleValues inputs;
  for (size_t i = 0; i < module.inputs().size(); ++i) {
    const fs::path file = set / fmt::format("input_{}.pb", i);
    if (fs::exists(file))
      inputs.emplace(module.inputs()[i].name, read_value(file, module.inputs()[i]));
  }
  const modules::ModuleValues outputs = session.run(inputs);
  const double absolute = absolute_tolerance(set.parent_path());
  size_t compared = 0;
  for (size_t i = 0; i < module.outputs().size(); ++i) {
    const modules::Port& port = module.outputs()[i];
    const fs::path file = set / fmt::format("output_{}.pb", i);
    if (!fs::exists(file)) continue;
    ++compared;
    const ModuleValue wanted = read_value(file, port);
    const ModuleValue& got = outputs.find(port.name)->second;
    if (got.tensors.size() != wanted.tensors.size())
      return fmt::format("{}: {} tensors instead of {}", port.name, got.tensors.size(),
                         wanted.tensors.size());
    for (size_t k = 0; k < wanted.tensors.size(); ++k)
      if (const std::string what = difference(got.tensors[k], wanted.tensors[k], absolute);
          !what.empty())
        return fmt::format("{}: {}", port.name, what);
  }
  return compared > 0 ? "" : "no output was compared";
}

}  // namespace

SuiteResult run_suite_case(const fs::path& folder) {
  using Kind = SuiteResult::Kind;
  try {
    modules::ModuleSession session(onnx::open_module(folder / "model.onnx"), cpu::cpu_backend());
    for (int set = 0; fs::exists(folder / fmt::format("test_data_set_{}", set)); ++set) {
      const std::string what = run_set(session, folder / fmt::format("test_data_set_{}", set));
      if (!what.empty()) return {Kind::wrong, what};
    }
    return {};
  } catch (const onnx::Unsupported& e) {
    return {Kind::refused, e.what()};
  } catch (const std::exception& e) {
    return {Kind::failed, e.what()};
  }
}

}  // namespace brrr::test
