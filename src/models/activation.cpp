#include "models/activation.h"

#include <optional>

namespace brrr::models {
namespace {

std::optional<Activation> find_activation(const std::string& spelling) {
  const auto& all = activation_choices();
  for (size_t i = 0; i < all.size(); ++i)
    for (const std::string& known : all[i])
      if (known == spelling) return static_cast<Activation>(i);
  return {};
}

}  // namespace

const std::vector<std::vector<std::string>>& activation_choices() {
  // In the order of the enumeration. The three spellings of the tanh form are one formula.
  static const std::vector<std::vector<std::string>> choices = {
      {"gelu"}, {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}, {"relu"}, {"silu", "swish"}};
  return choices;
}

const std::string& name_of(Activation activation) {
  return activation_choices()[static_cast<size_t>(activation)][0];
}

Activation activation_named(const std::string& spelling) {
  const auto found = find_activation(spelling);
  BRRR_CHECK(found, "the activation {} is known", spelling);
  return *found;
}

Activation read_activation(const ConfigReader& keys, const char* key, Activation fallback,
                           const std::vector<Activation>& supported) {
  const std::string name = keys.text(key, name_of(fallback).c_str());
  const auto found = find_activation(name);
  std::string expected;
  for (const Activation a : supported) {
    if (found == a) return a;
    for (const std::string& s : activation_choices()[static_cast<size_t>(a)])
      expected += (expected.empty() ? "" : ", ") + s;
  }
  user_error("{}: {} = {} is not supported; expected {}", keys.what(), key, io::in_quotes(name),
             expected);
}

Value activated(Value x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return gelu(x, Gelu::erf);
    case Activation::gelu_new:
      return gelu(x, Gelu::tanh);
    case Activation::relu:
      return relu(x);
    case Activation::silu:
      break;
  }
  return silu(x);
}

}  // namespace brrr::models
