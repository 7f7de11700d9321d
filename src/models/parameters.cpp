#include "models/parameters.h"

namespace brrr::models {

Value Parameters::declare(ParameterInfo p) {
  p.part = part_;
  p.place = place_;
  Attrs attrs;
  if (purpose_ == Purpose::training && !p.decays) attrs.set(kDecays, false);
  const Value value =
      graph_.input(p.name, Type{DType::f32, p.shape}, Role::parameter, std::move(attrs));
  list_.push_back(std::move(p));
  return value;
}

Value Parameters::weight(const std::string& name, Shape shape) {
  return weight(name, std::move(shape), deviation_);
}

Value Parameters::weight(const std::string& name, Shape shape, double deviation) {
  return declare({.name = name,
                  .shape = std::move(shape),
                  .fill = {Fill::Kind::normal, deviation},
                  .decays = true});
}

Value Parameters::table(const std::string& name, Shape shape, bool is_multiplied) {
  return declare({.name = name,
                  .shape = std::move(shape),
                  .fill = {Fill::Kind::normal, deviation_},
                  .is_table = !is_multiplied,
                  .decays = true});
}

Value Parameters::vector(const std::string& name, int64_t width, Fill::Kind fill) {
  return declare({.name = name, .shape = {width}, .fill = {fill}});
}

}  // namespace brrr::models
