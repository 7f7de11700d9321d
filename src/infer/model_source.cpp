#include "infer/model_source.h"

#include <random>

#include "base/errors.h"
#include "models/exchange_names.h"

namespace brrr::infer {
namespace {

namespace exchange_names = models::exchange_names;
using Sizes = std::vector<int64_t>;

/// Sizes of batch, length and past that fit a context; all of one example differ.
onnx::TrialSource::Family sizes_within(int64_t context, bool with_cache) {
  constexpr int64_t kRoomy = 16;
  onnx::TrialSource::Family family;
  family.examples = {{2, 5, 7}, {3, 5, 8}, {4, 3, 9}, {5, 7, 4}, {7, 6, 5}, {2, 9, 3}};
  family.unseen = {{1, 4, 2}, {4, 9, 5}};
  if (context < kRoomy) {
    family.examples = {{4, 2, 3}, {5, 3, 2}, {6, 2, 2}, {7, 3, 1}, {4, 3, 3}};
    family.unseen = {{1, 3, 2}, {4, 2, 1}};
  }
  for (std::vector<Sizes>* list : {&family.examples, &family.unseen})
    for (Sizes& sizes : *list) {
      if (!with_cache) sizes.pop_back();
      if (sizes[1] + (with_cache ? sizes[2] : 0) > context)
        user_error("a context of {} positions is too short to leave its sizes open", context);
    }
  return family;
}

HostTensor integers(const Type& type, const std::function<int64_t(int64_t)>& f) {
  HostTensor t(type.dtype, type.shape);
  for (int64_t i = 0; i < type.shape.elements(); ++i)
    store_integer(type.dtype, t.bytes.data(), i, static_cast<uint64_t>(f(i)));
  return t;
}

/// Texts with padding behind the first and in front of the second; pictures of noise.
PortValues texts_for(const Graph& graph, int64_t vocabulary) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> token(0, vocabulary - 1);
  std::normal_distribution<double> normal;
  PortValues inputs;
  for (const NodeId id : graph.inputs(InputKind::data)) {
    const std::string& name = graph.input_name(id);
    const Type& type = graph.type({id, 0});
    const int64_t length = type.shape.rank() == 2 ? type.shape.size(1) : 0;
    HostTensor t;
    if (name == exchange_names::kIds)
      t = integers(type, [&](int64_t) { return token(random); });
    else if (name == exchange_names::kMask)
      t = integers(type,
                   [&](int64_t i) { return length <= 2 || (i != length - 1 && i != length); });
    else if (name == exchange_names::kPositions)
      t = integers(type, [&](int64_t i) { return i % length; });
    else if (name == exchange_names::kTypes)
      t = HostTensor(type.dtype, type.shape);
    else {
      t = HostTensor(type.dtype, type.shape);
      fill_tensor(type, t.bytes.data(), [&](int64_t) { return normal(random); });
    }
    inputs.emplace(name, std::move(t));
  }
  return inputs;
}

}  // namespace

FolderWeights::FolderWeights(std::shared_ptr<const io::ModelFolder> folder)
    : folder_(std::move(folder)) {}

std::span<const std::byte> FolderWeights::get(std::string_view parameter) {
  const TensorView* const tensor = folder_->weights->find(parameter);
  BRRR_CHECK(tensor != nullptr, "no parameter '{}'", parameter);
  const auto [room, is_new] = rooms_.try_emplace(tensor->name);
  if (is_new) {
    room->second.resize(static_cast<size_t>(tensor->shape.elements()));
    folder_->read(tensor->name, room->second);
  }
  return std::as_bytes(std::span(room->second));
}

onnx::TrialSource model_source(const std::shared_ptr<const io::ModelFolder>& folder,
                               bool with_cache) {
  const models::ModelPtr model = folder->definition;
  const auto weights = std::make_shared<FolderWeights>(folder);
  const auto graph = [model, with_cache](const Sizes& sizes) {
    models::ExchangeBinding binding{sizes[0], sizes[1], std::nullopt};
    if (with_cache) binding.past = sizes[2];
    return model->exchange(binding);
  };
  onnx::TrialSource trial;
  trial.source.name = model->architecture().name;
  trial.source.sizes = {"batch_size", "sequence_length"};
  if (with_cache) trial.source.sizes.emplace_back("past_sequence_length");
  trial.source.graph = graph;
  trial.source.weight = [weights](std::string_view name) { return weights->get(name); };
  trial.source.metadata = {{"model_type", model->architecture().name},
                           {"context", std::to_string(model->sizes().context)}};
  if (model->sees_pictures()) {
    trial.source.sizes = {"batch_size"};
    trial.source.graph = [model](const Sizes& sizes) {
      return model->exchange({sizes[0], 1, std::nullopt});
    };
    trial.source.metadata = {{"model_type", model->architecture().name}};
    trial.families = {{.examples = {{2}, {3}, {5}}, .unseen = {{1}, {4}}}};
    trial.inputs = [graph = trial.source.graph](const Sizes& sizes) {
      return texts_for(graph(sizes), 1);
    };
    return trial;
  }
  trial.families = {sizes_within(model->sizes().context, with_cache)};
  trial.inputs = [graph, vocabulary = model->sizes().vocabulary](const Sizes& sizes) {
    return texts_for(graph(sizes), vocabulary);
  };
  return trial;
}

}  // namespace brrr::infer
