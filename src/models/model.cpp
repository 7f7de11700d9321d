#include "models/model.h"

namespace brrr::models {

TextEnds text_ends_within(int64_t vocabulary, int64_t begin, const std::vector<int64_t>& ends) {
  TextEnds e;
  const auto is_token = [&](int64_t id) { return id >= 0 && id < vocabulary; };
  if (is_token(begin)) e.begin = static_cast<int32_t>(begin);
  for (const int64_t id : ends)
    if (is_token(id)) e.ends.push_back(static_cast<int32_t>(id));
  return e;
}

int64_t Model::parameter_count() const {
  int64_t n = 0;
  for (const ParameterInfo& p : parameters()) n += p.shape.elements();
  return n;
}

int64_t Model::multiplied_count() const {
  int64_t n = 0;
  for (const ParameterInfo& p : parameters())
    if (!p.is_table) n += p.shape.elements();
  return n;
}

double Model::flops_per_token(int64_t length, bool whole_scores) const {
  const ModelSizes s = sizes();
  return 6 * static_cast<double>(multiplied_count()) +
         (whole_scores ? 12 : 6) * static_cast<double>(s.layers * s.query_width * length);
}

const ModelOption* Architecture::find_option(std::string_view canonical_name) const {
  for (const ModelOption& option : options)
    if (option.name == canonical_name) return &option;
  return nullptr;
}

KeyValues Architecture::defaults() const {
  KeyValues all;
  for (const ModelOption& option : options) all.emplace_back(option.name, option.shown_default);
  return all;
}

}  // namespace brrr::models
