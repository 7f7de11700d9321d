#include "models/adapters/adapted_model.h"

#include <cmath>
#include <map>

#include "base/errors.h"
#include "models/freeze.h"
#include "passes/adapters/choose_adapters.h"

namespace brrr::models {
namespace {

// Streams of the dropout generator for adapters begin here, far above those of layers.
constexpr int64_t kFirstStream = int64_t{1} << 20;

}  // namespace

AdaptedModel::AdaptedModel(ModelPtr base, std::vector<Adapter> adapters, BaseForms forms)
    : base_(std::move(base)), adapters_(std::move(adapters)), forms_(std::move(forms)) {
  BRRR_CHECK(base_->adapted() == nullptr, "adapters over a model that has adapters");
  std::map<std::string, int> with_factor, all;
  int64_t number = 0;
  for (const Adapter& adapter : adapters_) {
    ++number;
    for (const AdaptedLayer& adapted : adapter.layers) {
      const LinearLayer& layer = adapted.layer;
      ProductAdapter p{.weight = layer.weight,
                       .a = adapter.a_of(layer),
                       .b = adapter.b_of(layer),
                       .rank = adapted.rank,
                       .scale = adapter.scale_of(adapted),
                       .dropout = adapter.dropout,
                       .stream = kFirstStream + std::ssize(products_),
                       .number = number};
      if (adapted.has_factor) p.factor = adapter.factor_of(layer);
      with_factor[layer.module] += adapted.has_factor ? 1 : 0;
      if (++all[layer.module] > 1 && with_factor[layer.module] > 0)
        user_error(
            "two adapters change {}, one of them by DoRA, which cannot be added to another: use "
            "one of them, or `brrr merge` it first",
            layer.module);
      trained_.insert({p.a, p.b});
      products_.push_back(std::move(p));
    }
    for (const std::string& name : adapter.saved)
      if (!trained_.insert(name).second)
        user_error(
            "two adapters have a trained copy of {} each, and only one can take its place: use one "
            "of them",
            name);
  }
}

int64_t AdaptedModel::trained_count() const {
  int64_t n = 0;
  for (const ParameterInfo& p : parameters())
    if (!p.is_frozen && !p.is_buffer) n += p.shape.elements();
  return n;
}

ModelPtr AdaptedModel::with_picture_loss(const PictureLoss& loss) const {
  // Batch norm belongs to the base: its running statistics stay those that the adapter is used
  // with.
  PictureLoss frozen = loss;
  frozen.statistics = Statistics::running;
  return over(base_->with_picture_loss(frozen));
}

void AdaptedModel::check_choosable() const {
  for (const Adapter& adapter : adapters_) {
    std::string what;
    if (!adapter.saved.empty()) what = "a trained copy of " + *adapter.saved.begin();
    for (const AdaptedLayer& layer : adapter.layers)
      if (what.empty() && layer.has_factor) what = "a factor (DoRA) of " + layer.layer.module;
    if (!what.empty())
      user_error(
          "the adapter {} has {}, which texts of other adapters would share: write it as a model "
          "of "
          "its own (`brrr merge`) and generate its texts apart",
          adapter.title, what);
  }
}

ModelPtr AdaptedModel::over(ModelPtr base) const {
  return std::make_shared<AdaptedModel>(std::move(base), adapters_, forms_);
}

ModelPtr over_floats(ModelPtr model) {
  const AdaptedModel* const adapted = model->adapted();
  if (adapted == nullptr || adapted->forms().empty()) return model;
  return std::make_shared<AdaptedModel>(adapted->base(), adapted->adapters());
}

void AdaptedModel::declare(Parameters& p) const {
  std::map<std::string, std::string> places;
  for (ParameterInfo info : base_->parameters()) {
    places[info.name] = info.place;
    info.is_frozen = !trained_.contains(info.name);
    p.list_only(std::move(info));
  }
  for (const Adapter& adapter : adapters_)
    for (const AdaptedLayer& adapted : adapter.layers) {
      const LinearLayer& layer = adapted.layer;
      // PEFT initialises A as PyTorch does a linear layer (Kaiming uniform with a = sqrt(5)), B by
      // zeros.
      const double bound = 1 / std::sqrt(static_cast<double>(layer.in));
      ParameterInfo info{.name = adapter.a_of(layer),
                         .shape = layer.a_shape(adapted.rank),
                         .fill = {Fill::Kind::uniform, bound},
                         .decays = true,
                         .place = places[layer.weight]};
      p.list_only(info);
      info.name = adapter.b_of(layer);
      info.shape = layer.b_shape(adapted.rank);
      info.fill = {Fill::Kind::zeros};
      p.list_only(info);
      if (!adapted.has_factor) continue;
      info.name = adapter.factor_of(layer);
      info.shape = {layer.out};
      info.fill = {Fill::Kind::ones};
      info.decays = false;
      info.is_frozen = true;
      p.list_only(info);
    }
}

void AdaptedModel::freeze_base(Graph& graph) const {
  for (const NodeId id : graph.inputs(InputKind::parameter)) {
    const std::string name = graph.input_name(id);  // a copy: the attributes that hold it change
    if (trained_.contains(name)) continue;
    put_below_adapters(graph, id);
    if (const auto form = forms_.find(name); form != forms_.end())
      set_base_form(graph, id, form->second);
  }
}

Graph AdaptedModel::adapted_graph(Graph graph, AdapterUse use) const {
  freeze_base(graph);
  return add_adapters(graph, products_, use);
}

Graph AdaptedModel::loss(int64_t batch, int64_t length) const {
  return adapted_graph(base_->loss(batch, length), AdapterUse::training);
}
Graph AdaptedModel::forward(Dim batch, Dim length) const {
  return adapted_graph(base_->forward(batch, length), AdapterUse::inference);
}
Graph AdaptedModel::scored(int64_t batch, int64_t length) const {
  return adapted_graph(base_->scored(batch, length), AdapterUse::inference);
}
Graph AdaptedModel::forward_at(int64_t batch, int64_t length, int64_t places) const {
  return adapted_graph(base_->forward_at(batch, length, places), AdapterUse::inference);
}
Graph AdaptedModel::flat(const FlatBinding& binding) const {
  return adapted_graph(base_->flat(binding), AdapterUse::inference);
}
Graph AdaptedModel::flat_loss(const FlatBinding& binding) const {
  return adapted_graph(base_->flat_loss(binding), AdapterUse::training);
}
Graph AdaptedModel::flat_scored(const FlatBinding& binding) const {
  return adapted_graph(base_->flat_scored(binding), AdapterUse::inference);
}
Graph AdaptedModel::preference_loss(const FlatBinding& binding, const PreferenceLoss& loss) const {
  return adapted_graph(base_->preference_loss(binding, loss), AdapterUse::training);
}
Graph AdaptedModel::decode(const DecodeBinding& binding) const {
  return adapted_graph(base_->decode(binding), AdapterUse::inference);
}
Graph AdaptedModel::decode_sequences(const SequencesBinding& binding) const {
  if (!binding.chooses_adapters)
    return adapted_graph(base_->decode_sequences(binding), AdapterUse::inference);
  check_choosable();
  SequencesBinding of_base = binding;
  of_base.chooses_adapters = false;
  Graph graph = base_->decode_sequences(of_base);
  freeze_base(graph);
  return add_chosen_adapters(graph, products_);
}
Graph AdaptedModel::exchange(const ExchangeBinding& binding) const {
  return adapted_graph(base_->exchange(binding), AdapterUse::inference);
}

double AdaptedModel::flops_per_token(int64_t length, bool whole_scores) const {
  double saved = 0, added = 0;
  for (const ParameterInfo& p : parameters()) {
    if (p.is_table || p.is_buffer) continue;
    const auto elements = static_cast<double>(p.shape.elements());
    if (p.is_frozen) saved += 2 * elements;
    if (is_of_adapter(p.name)) added += 6 * elements;
  }
  return base_->flops_per_token(length, whole_scores) - saved + added;
}

}  // namespace brrr::models
