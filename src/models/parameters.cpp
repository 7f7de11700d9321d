#include "models/parameters.h"

namespace brrr::models {

const ParameterInfo& Parameters::add_to_list(ParameterInfo p) {
  p.part = part_;
  p.place = place_;
  return list_.emplace_back(std::move(p));
}

Value Parameters::declare(ParameterInfo info) {
  const ParameterInfo& p = add_to_list(std::move(info));
  Attrs attrs;
  if (purpose_ == Purpose::training && !p.decays) attrs.set(kDecays, false);
  if (purpose_ == Purpose::training && p.is_buffer) attrs.set(kTrained, false);
  return graph_.input(p.name, Type{p.dtype, p.shape}, Role::parameter, std::move(attrs));
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

Value Parameters::filled_weight(const std::string& name, Shape shape, Fill fill) {
  return declare({.name = name, .shape = std::move(shape), .fill = fill, .decays = true});
}

Value Parameters::filled_bias(const std::string& name, int64_t width, Fill fill) {
  return declare({.name = name, .shape = {width}, .fill = fill});
}

Value Parameters::buffer(const std::string& name, Shape shape, Fill::Kind fill) {
  return declare({.name = name, .shape = std::move(shape), .fill = {fill}, .is_buffer = true});
}

std::optional<Value> Parameters::counter(const std::string& name) {
  ParameterInfo p{.name = name,
                  .shape = {},
                  .fill = {Fill::Kind::zeros},
                  .dtype = DType::i64,
                  .is_buffer = true};
  if (updates_statistics()) return declare(std::move(p));
  add_to_list(std::move(p));
  return std::nullopt;
}

}  // namespace brrr::models
