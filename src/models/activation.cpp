#include "models/activation.h"

namespace brrr::models {

const std::vector<std::vector<std::string>>& activation_choices() {
  // The three spellings of the tanh form are one formula.
  static const std::vector<std::vector<std::string>> choices = {
      {"gelu"}, {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}, {"relu"}, {"silu", "swish"}};
  return choices;
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
