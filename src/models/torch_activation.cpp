#include "models/torch_activation.h"

#include <array>

#include "base/errors.h"
#include "ops/ops.h"

namespace brrr::models {
namespace {

Value constant_like(Value x, double value) { return scalar(*x.graph, value, x.dtype()); }
Value zero_like(Value x) { return constant_like(x, 0); }

/// log(1 + exp(x)), without overflow.
Value softplus_of(Value x) { return maximum(x, zero_like(x)) + log1p(exp(-abs(x))); }
Value clamped(Value x, double low, double high) {
  return minimum(maximum(x, constant_like(x, low)), constant_like(x, high));
}
/// x where it is positive, else alpha * (exp(x) - 1).
Value elu_of(Value x, double alpha) {
  return maximum(x, zero_like(x)) + alpha * expm1(minimum(x, zero_like(x)));
}
Value hard_sigmoid_of(Value x) { return clamped(x + 3.0, 0, 6) / 6.0; }

struct NamedActivation {
  std::string_view name;
  TorchActivation apply;
};
constexpr double kSeluAlpha = 1.6732632423543772848170429916717;
constexpr double kSeluScale = 1.0507009873554804934193349852946;
constexpr std::array kTorchActivations{
    NamedActivation{"Identity", [](Value x) { return x; }},
    NamedActivation{"Tanh", [](Value x) { return tanh(x); }},
    NamedActivation{"GELU", [](Value x) { return gelu(x, Gelu::erf); }},
    NamedActivation{"ReLU", [](Value x) { return relu(x); }},
    NamedActivation{"SiLU", [](Value x) { return silu(x); }},
    NamedActivation{"Sigmoid", [](Value x) { return sigmoid(x); }},
    NamedActivation{"ELU", [](Value x) { return elu_of(x, 1); }},
    NamedActivation{"CELU", [](Value x) { return elu_of(x, 1); }},
    NamedActivation{"SELU", [](Value x) { return kSeluScale * elu_of(x, kSeluAlpha); }},
    NamedActivation{"LeakyReLU", [](Value x) { return maximum(x, x * 0.01); }},
    NamedActivation{"ReLU6", [](Value x) { return clamped(x, 0, 6); }},
    NamedActivation{"Hardtanh", [](Value x) { return clamped(x, -1, 1); }},
    NamedActivation{"Hardsigmoid", [](Value x) { return hard_sigmoid_of(x); }},
    NamedActivation{"Hardswish", [](Value x) { return x * hard_sigmoid_of(x); }},
    NamedActivation{"Softplus", [](Value x) { return softplus_of(x); }},
    NamedActivation{"LogSigmoid", [](Value x) { return -softplus_of(-x); }},
    NamedActivation{"Mish", [](Value x) { return x * tanh(softplus_of(x)); }},
    NamedActivation{"Softsign", [](Value x) { return x / (abs(x) + 1.0); }},
    NamedActivation{"Tanhshrink", [](Value x) { return x - tanh(x); }},
    NamedActivation{
        "Softshrink",
        [](Value x) { return maximum(x - 0.5, zero_like(x)) + minimum(x + 0.5, zero_like(x)); }},
    NamedActivation{"Hardshrink", [](Value x) {
                      return where(less_equal(abs(x), constant_like(x, 0.5)), zero_like(x), x);
                    }}};

}  // namespace

TorchActivation torch_activation(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  const size_t dot = name.rfind('.');
  if (dot != std::string_view::npos && !name.starts_with(kTorch)) return nullptr;
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  for (const NamedActivation& known : kTorchActivations)
    if (known.name == last) return known.apply;
  return nullptr;
}

std::string torch_activation_names() {
  std::string names;
  for (const NamedActivation& known : kTorchActivations)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace brrr::models
