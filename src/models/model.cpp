#include "models/model.h"

#include <sstream>

#include "base/errors.h"

namespace brrr::models {

std::string description(Head head) {
  switch (head) {
    case Head::next_token:
      return "the next token of a text";
    case Head::masked_token:
      return "masked tokens";
    case Head::embedding:
      return "vectors of texts";
    case Head::classes:
      return "classes of texts";
    case Head::values:
      return "ratings of texts";
    case Head::token_classes:
      return "classes of tokens";
  }
  throw InternalError("an unknown head");
}

const std::vector<std::pair<std::string, Pooling>>& poolings() {
  static const std::vector<std::pair<std::string, Pooling>> all = {
      {"cls", Pooling::cls},
      {"max", Pooling::max},
      {"mean", Pooling::mean},
      {"mean_sqrt_len", Pooling::mean_sqrt_len},
      {"weighted_mean", Pooling::weighted_mean},
      {"last_token", Pooling::last_token}};
  return all;
}

TextEnds text_ends_within(int64_t vocabulary, int64_t begin, const std::vector<int64_t>& ends) {
  TextEnds e;
  const auto is_token = [&](int64_t id) { return id >= 0 && id < vocabulary; };
  if (is_token(begin)) e.begin = static_cast<int32_t>(begin);
  for (const int64_t id : ends)
    if (is_token(id)) e.ends.push_back(static_cast<int32_t>(id));
  return e;
}

std::vector<ParameterInfo> Model::parameters() const { return declared(); }

const std::vector<ParameterInfo>& Model::declared() const {
  std::call_once(declared_, [&] {
    Graph graph;
    Parameters p(graph, Purpose::inference);
    declare(p);
    parameters_ = p.list();
  });
  return parameters_;
}

int64_t Model::parameter_count() const {
  int64_t n = 0;
  for (const ParameterInfo& p : declared())
    if (!p.is_buffer) n += p.shape.elements();
  return n;
}

int64_t Model::multiplied_count() const {
  int64_t n = 0;
  for (const ParameterInfo& p : declared())
    if (!p.is_table && !p.is_buffer) n += p.shape.elements();
  return n;
}

double Model::flops_per_token(int64_t length, bool whole_scores) const {
  const ModelSizes s = sizes();
  return 6 * static_cast<double>(multiplied_count()) +
         (whole_scores || !s.causal ? 12 : 6) *
             static_cast<double>(s.layers * s.query_width * length);
}

ModelPtr Model::with_task(const Task&) const {
  user_error(
      "[{}] a causal language model has no head for that: it needs an encoder (model_type bert, "
      "distilbert, roberta, xlm-roberta or mpnet)",
      architecture().name);
}

ModelPtr Model::with_image_size(int64_t) const {
  throw InternalError("with_image_size of " + architecture().name);
}
ModelPtr Model::with_picture_loss(const PictureLoss&) const {
  throw InternalError("with_picture_loss of " + architecture().name);
}

Graph Model::forward_at(int64_t, int64_t, int64_t) const {
  throw InternalError("forward_at of " + architecture().name);
}
Graph Model::decode_sequences(const SequencesBinding&) const {
  // decode() of such a model throws an error that names the verbs for it.
  decode({});
  throw InternalError("decode_sequences() of " + architecture().name);
}

Graph Model::flat(const FlatBinding&) const {
  throw InternalError("flat() of " + architecture().name);
}
Graph Model::flat_loss(const FlatBinding&) const {
  throw InternalError("flat_loss() of " + architecture().name);
}
Graph Model::preference_loss(const FlatBinding&, const PreferenceLoss&) const {
  throw InternalError("preference_loss() of " + architecture().name);
}
Graph Model::flat_scored(const FlatBinding& binding) const { return flat_loss(binding); }

KeyValues preset_values(std::string_view command_line) {
  KeyValues values;
  std::istringstream words{std::string(command_line)};
  for (std::string name, value; words >> name >> value;) values.emplace_back(name.substr(2), value);
  return values;
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
