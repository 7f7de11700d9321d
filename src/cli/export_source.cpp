#include "cli/export_source.h"

#include <algorithm>
#include <mutex>
#include <random>
#include <set>

#include "base/errors.h"
#include "modules/module_inputs.h"

namespace brrr::cli {
namespace {

using modules::Module;
using modules::ModuleValues;
using modules::Port;

using Sizes = std::vector<int64_t>;

HostTensor random_integers(const Type& type, int64_t low, int64_t high, std::mt19937& random) {
  HostTensor t(type.dtype, type.shape);
  std::uniform_int_distribution<int64_t> draw(low, high - 1);
  for (int64_t i = 0; i < type.shape.elements(); ++i)
    store_integer(type.dtype, t.bytes.data(), i, static_cast<uint64_t>(draw(random)));
  return t;
}

HostTensor random_floats(const Type& type, std::mt19937& random) {
  HostTensor t(type.dtype, type.shape);
  std::normal_distribution<double> draw;
  for (int64_t i = 0; i < type.shape.elements(); ++i)
    store_from_double(type.dtype, t.bytes.data(), i, draw(random));
  return t;
}

// -- models
// --------------------------------------------------------------------------------------

/// Sizes of batch, length and past that fit a context; all of one call differ.
std::vector<Sizes> sizes_within(int64_t context, bool with_cache, bool unseen) {
  constexpr int64_t kRoomy = 16;
  std::vector<Sizes> all;
  if (unseen)
    all = {{1, 4, 2}, {4, 9, 5}};
  else
    all = {{2, 5, 7}, {3, 5, 8}, {4, 3, 9}, {5, 7, 4}, {7, 6, 5}, {2, 9, 3}};
  if (context < kRoomy)
    all = unseen ? std::vector<Sizes>{{1, 3, 2}, {4, 2, 1}}
                 : std::vector<Sizes>{{4, 2, 3}, {5, 3, 2}, {6, 2, 2}, {7, 3, 1}, {4, 3, 3}};
  for (Sizes& sizes : all) {
    if (!with_cache) sizes.pop_back();
    if (sizes[1] + (with_cache ? sizes[2] : 0) > context)
      user_error("a context of {} positions is too short to export its sizes open", context);
  }
  return all;
}

/// Text as models get it: padding in front of one text and behind another.
ModuleValues model_inputs(const Graph& graph, int64_t vocabulary) {
  std::mt19937 random(7);
  ModuleValues inputs;
  HostTensor mask;
  for (const NodeId id : graph.inputs(InputKind::data)) {
    const std::string& name = graph.input_name(id);
    const Type& type = graph.type({id, 0});
    HostTensor t;
    if (name == "input_ids") {
      t = random_integers(type, 0, vocabulary, random);
    } else if (name == "attention_mask") {
      t = HostTensor::filled(type.dtype, type.shape.sizes(), 1);
      const int64_t rows = type.shape.size(0), columns = type.shape.size(1);
      if (columns > 2) store_integer(type.dtype, t.bytes.data(), columns - 1, 0);
      if (columns > 2 && rows > 1) store_integer(type.dtype, t.bytes.data(), columns, 0);
    } else if (name == "position_ids") {
      t = HostTensor(type.dtype, type.shape);
      for (int64_t i = 0; i < type.shape.elements(); ++i)
        store_integer(type.dtype, t.bytes.data(), i, static_cast<uint64_t>(i % type.shape.size(1)));
    } else if (name == "token_type_ids") {
      t = HostTensor(type.dtype, type.shape);
    } else {
      t = random_floats(type, random);
    }
    inputs.emplace(name, std::move(t));
  }
  return inputs;
}

/// The weights of a folder as f32, each read when it is first asked for.
class FolderWeights {
 public:
  explicit FolderWeights(std::shared_ptr<const io::ModelFolder> folder)
      : folder_(std::move(folder)) {
    for (const models::ParameterInfo& p : folder_->definition->parameters())
      shapes_.emplace(p.name, p.shape);
  }
  std::span<const std::byte> get(std::string_view name) {
    const auto shape = shapes_.find(name);
    BRRR_CHECK(shape != shapes_.end(), "no parameter '{}'", name);
    const auto [room, fresh] = rooms_.try_emplace(shape->first);
    if (fresh) room->second = values_of(*folder_, shape->first, {DType::f32, shape->second});
    return std::as_bytes(std::span(room->second));
  }

 private:
  std::shared_ptr<const io::ModelFolder> folder_;
  std::map<std::string, Shape, std::less<>> shapes_;
  std::map<std::string, std::vector<float>> rooms_;
};

// -- modules
// -------------------------------------------------------------------------------------

/// An axis of an input that the file leaves open: a size, or a sum of sizes and a number.
struct OpenAxis {
  std::string input;
  int axis = 0;
  int64_t offset = 0;
  std::vector<size_t> sizes;  // indices of their names
};

struct OpenModule {
  std::vector<std::string> sizes;
  std::vector<bool> is_batch;  // by size: the first axis of every input that has it
  std::vector<OpenAxis> axes;
  std::map<std::string, Type> types;  // of inputs, 0 where an axis is open
};

void add_term(OpenModule& open, OpenAxis& axis, const std::string& term,
              const std::map<std::string, int64_t>& fixed, std::set<std::string>& unused) {
  if (std::ranges::all_of(term, [](unsigned char c) { return std::isdigit(c) != 0; })) {
    axis.offset += parse_integer(term, 0, int64_t{1} << 40);
    return;
  }
  const auto given = fixed.find(term);
  if (given != fixed.end()) {
    unused.erase(term);
    axis.offset += given->second;
    return;
  }
  const auto at = std::ranges::find(open.sizes, term);
  const auto index = static_cast<size_t>(at - open.sizes.begin());
  if (at == open.sizes.end()) {
    open.sizes.push_back(term);
    open.is_batch.push_back(true);
  }
  open.is_batch[index] = open.is_batch[index] && axis.axis == 0;
  axis.sizes.push_back(index);
}

OpenModule open_axes(const Module& module, const std::map<std::string, int64_t>& fixed,
                     const std::map<std::string, HostTensor>& known) {
  OpenModule open;
  std::set<std::string> unused;
  for (const auto& [name, size] : fixed) unused.insert(name);
  for (const Port& port : module.inputs()) {
    if (known.contains(port.name) || port.is_optional) continue;
    if (!port.is_tensor || !port.has_shape)
      user_error(
          "the input '{}' has no declared shape; give its value with --input, which becomes "
          "part of the export",
          port.name);
    Shape shape;
    for (size_t axis = 0; axis < port.dims.size(); ++axis) {
      const modules::PortDim& dim = port.dims[axis];
      if (dim.size >= 0) {
        shape.push_back(Dim(dim.size));
        continue;
      }
      OpenAxis own{port.name, static_cast<int>(axis), 0, {}};
      for (const std::string& term : modules::axis_terms(modules::axis_name(port, axis)))
        add_term(open, own, term, fixed, unused);
      shape.push_back(Dim(own.offset));
      if (!own.sizes.empty()) open.axes.push_back(std::move(own));
    }
    open.types.emplace(port.name, Type{port.dtype, shape});
  }
  if (!unused.empty())
    usage_error(
        "--size {}: no input has an open axis of this name; there {} {}", *unused.begin(),
        open.sizes.size() == 1 ? "is" : "are",
        open.sizes.empty() ? std::string("none") : fmt::format("{}", fmt::join(open.sizes, ", ")));
  return open;
}

std::map<std::string, Type> types_for(const OpenModule& open, const Sizes& sizes) {
  std::map<std::string, Type> types = open.types;
  for (const OpenAxis& axis : open.axes) {
    int64_t sum = axis.offset;
    for (const size_t size : axis.sizes) sum += sizes[size];
    types.at(axis.input).shape[axis.axis] = Dim(sum);
  }
  return types;
}

Graph graph_of(const Module& module, const OpenModule& open,
               const std::map<std::string, HostTensor>& known, const Sizes& sizes) {
  modules::Request request;
  request.data = types_for(open, sizes);
  for (const auto& [name, tensor] : known)
    request.known.emplace(name, read_tensor({tensor.dtype, tensor.shape}, tensor.bytes.data()));
  for (const Port& port : module.outputs()) request.wanted.push_back(port.name);
  modules::Lowered lowered = module.lower(request);
  if (!lowered.to_bind.empty())
    user_error(
        "the graph depends on the content of '{}': give it with --input {}=FILE.npy, and it "
        "becomes part of the export",
        lowered.to_bind[0], lowered.to_bind[0]);
  if (!lowered.to_read.empty() || !lowered.lists.empty())
    user_error("a size of the graph is only known from data ('{}'), so it is no single graph",
               lowered.to_read.empty() ? lowered.lists.begin()->first : lowered.to_read[0]);
  return std::move(lowered.graph);
}

/// Sizes to try, in several families: what a graph demands of its sizes is not known.
std::vector<std::vector<Sizes>> families_of(const OpenModule& open) {
  constexpr int64_t kBatch[] = {2, 3, 2, 4, 3, 4, 4, 2, 3, 2, 4, 2, 3, 4, 3, 2};
  constexpr int64_t kWide[] = {15, 22, 37, 26, 51, 44, 29, 63, 80, 97, 128, 150, 33, 171, 205, 260};
  constexpr int64_t kSmall[] = {5, 7, 11, 6, 9, 13, 8, 10, 12, 5, 14, 6, 7, 9, 15, 11};
  struct Family {
    std::span<const int64_t> sizes;
    int64_t unit;
  };
  const Family kinds[] = {{kWide, 1}, {kSmall, 1}, {kSmall, 32}, {kSmall, 128}};
  std::vector<std::vector<Sizes>> families;
  for (const Family& family : kinds) {
    std::vector<Sizes> examples;
    for (size_t k = 0; k < std::size(kBatch); ++k) {
      Sizes sizes;
      for (size_t i = 0; i < open.sizes.size(); ++i) {
        const size_t at = (k + 3 * i) % std::size(kBatch);
        sizes.push_back(open.is_batch[i] ? kBatch[at] : family.sizes[at] * family.unit);
      }
      examples.push_back(std::move(sizes));
    }
    families.push_back(std::move(examples));
  }
  return families;
}

}  // namespace

std::shared_ptr<const onnx::ExportedModel> export_for_open_sizes(
    ExportedSource& e, const onnx::ExportOptions& options) {
  std::string last_error;
  for (const ExportedSource::Family& family : e.families) {
    e.source.examples = family.examples;
    e.unseen = family.unseen;
    try {
      return onnx::export_model(e.source, options);
    } catch (const UserError& error) {
      last_error = error.what();
    }
  }
  user_error("{}", last_error);
}

std::vector<float> values_of(const io::ModelFolder& folder, const std::string& name,
                             const Type& type) {
  std::vector<float> room(static_cast<size_t>(type.shape.elements()));
  folder.read(name, room);
  return room;
}

ExportedSource export_source(std::shared_ptr<const io::ModelFolder> folder, bool with_cache) {
  const models::ModelPtr model = folder->definition;
  const auto weights = std::make_shared<FolderWeights>(folder);
  const int64_t context = model->sizes().context;
  ExportedSource e;
  e.holds = {weights};
  e.source.name = model->architecture().name;
  e.source.sizes = {"batch_size", "sequence_length"};
  if (with_cache) e.source.sizes.emplace_back("past_sequence_length");
  e.families = {
      {sizes_within(context, with_cache, false), sizes_within(context, with_cache, true)}};
  e.source.graph = [model, with_cache](const Sizes& sizes) {
    models::ExchangeBinding binding{sizes[0], sizes[1], std::nullopt};
    if (with_cache) binding.past = sizes[2];
    return model->exchange(binding);
  };
  e.source.weight = [weights](std::string_view name) { return weights->get(name); };
  e.source.producer_version = BRRR_VERSION;
  e.source.metadata = {{"model_type", model->architecture().name}};
  e.inputs = [graph = e.source.graph, vocabulary = model->sizes().vocabulary](const Sizes& sizes) {
    return model_inputs(graph(sizes), vocabulary);
  };
  return e;
}

ExportedSource export_source(std::shared_ptr<const Module> module,
                             const std::map<std::string, int64_t>& fixed,
                             const std::map<std::string, HostTensor>& known) {
  const auto open = std::make_shared<const OpenModule>(open_axes(*module, fixed, known));
  ExportedSource e;
  e.holds = {module};
  e.source.name = "graph";
  e.source.producer_version = BRRR_VERSION;
  e.source.sizes = open->sizes;
  e.source.graph = [module, open, known](const Sizes& sizes) {
    return graph_of(*module, *open, known, sizes);
  };
  e.source.weight = [module](std::string_view name) { return module->weight(name); };
  e.inputs = [open](const Sizes& sizes) {
    std::mt19937 random(7);
    ModuleValues inputs;
    for (const auto& [name, type] : types_for(*open, sizes))
      inputs.emplace(name, is_float(type.dtype) ? random_floats(type, random)
                                                : random_integers(type, 0, 2, random));
    return inputs;
  };
  if (open->sizes.empty()) {
    e.families = {{{{}}, {{}}}};
    return e;
  }
  for (const std::vector<Sizes>& examples : families_of(*open)) {
    Sizes one = examples[2], two = examples[4];
    for (size_t i = 0; i < one.size(); ++i) {
      one[i] = open->is_batch[i] ? 1 : 2 * one[i];
      two[i] = open->is_batch[i] ? 6 : 3 * two[i];
    }
    e.families.push_back({examples, {one, two}});
  }
  return e;
}

}  // namespace brrr::cli
