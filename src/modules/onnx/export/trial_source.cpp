#include "modules/onnx/export/trial_source.h"

#include <algorithm>
#include <set>
#include <span>

#include "modules/onnx/onnx_module.h"
#include "runtime/made_inputs.h"

namespace brrr::onnx {
namespace {

using Sizes = std::vector<int64_t>;

/// An axis of an input that the file leaves open: a sum of sizes and a number.
struct OpenAxis {
  std::string input;
  int axis = 0;
  int64_t offset = 0;
  std::vector<size_t> sizes;  // indices of their names
};

/// What is open of a module.
class OpenModule {
 public:
  OpenModule(std::shared_ptr<const Runnable> module, const std::map<std::string, int64_t>& fixed,
             const std::map<std::string, HostTensor>& known)
      : module_(std::move(module)), fixed_(fixed), known_(known) {
    std::set<std::string> unused;
    for (const auto& [name, size] : fixed_) unused.insert(name);
    for (const Port& port : module_->inputs())
      if (!known_.contains(port.name) && !port.is_optional) add(port, unused);
    if (!unused.empty())
      user_error("no input has an open axis of the name '{}'; there {} {}", *unused.begin(),
                 sizes_.size() == 1 ? "is" : "are",
                 sizes_.empty() ? "none" : fmt::format("{}", fmt::join(sizes_, ", ")));
  }

  const std::vector<std::string>& sizes() const { return sizes_; }
  /// Whether a size is the first axis wherever it stands.
  bool is_batch(size_t size) const { return is_batch_[size]; }

  Graph graph(const Sizes& sizes) const {
    GraphRequest request;
    request.data = types(sizes);
    for (const auto& [name, tensor] : known_)
      request.known.emplace(name, read_tensor({tensor.dtype, tensor.shape}, tensor.bytes.data()));
    for (const Port& port : module_->outputs()) request.wanted.push_back(port.name);
    LoweredGraph lowered = lower(request);
    if (!lowered.to_bind.empty()) throw NeedsValue(lowered.to_bind[0]);
    if (!lowered.to_read.empty() || !lowered.lists.empty())
      user_error("a size of the graph is only known from data ('{}'), so it is no single graph",
                 lowered.to_read.empty() ? lowered.lists.begin()->first : lowered.to_read[0]);
    return std::move(lowered.graph);
  }

  PortValues inputs(const Sizes& sizes) const {
    PortValues given;
    for (const auto& [name, tensor] : known_) given.emplace(name, tensor);
    std::map<std::string, int64_t> all = fixed_;
    for (size_t i = 0; i < sizes.size(); ++i) all.emplace(sizes_[i], sizes[i]);
    PortValues values = make_inputs(*module_, std::move(given), all).values;
    std::erase_if(values, [&](const auto& entry) { return known_.contains(entry.first); });
    return values;
  }

 private:
  void add(const Port& port, std::set<std::string>& unused) {
    if (!port.is_tensor || !port.has_shape) throw NeedsValue(port.name);
    Shape shape;
    for (size_t axis = 0; axis < port.dims.size(); ++axis) {
      if (port.dims[axis].size >= 0) {
        shape.push_back(Dim(port.dims[axis].size));
        continue;
      }
      const AxisSum sum = axis_sum(axis_name(port, axis));
      OpenAxis open{port.name, static_cast<int>(axis), sum.offset, {}};
      for (const std::string& name : sum.names) add_size(open, name, unused);
      shape.push_back(Dim(open.offset));
      if (!open.sizes.empty()) axes_.push_back(std::move(open));
    }
    types_.emplace(port.name, Type{port.dtype, shape});
  }

  void add_size(OpenAxis& axis, const std::string& name, std::set<std::string>& unused) {
    const auto given = fixed_.find(name);
    if (given != fixed_.end()) {
      unused.erase(name);
      axis.offset += given->second;
      return;
    }
    const auto at = std::ranges::find(sizes_, name);
    const auto index = static_cast<size_t>(at - sizes_.begin());
    if (at == sizes_.end()) {
      sizes_.push_back(name);
      is_batch_.push_back(true);
    }
    is_batch_[index] = is_batch_[index] && axis.axis == 0;
    axis.sizes.push_back(index);
  }

  std::map<std::string, Type> types(const Sizes& sizes) const {
    std::map<std::string, Type> types = types_;
    for (const OpenAxis& axis : axes_) {
      int64_t sum = axis.offset;
      for (const size_t size : axis.sizes) sum += sizes[size];
      types.at(axis.input).shape[axis.axis] = Dim(sum);
    }
    return types;
  }

  LoweredGraph lower(const GraphRequest& request) const {
    try {
      return module_->lower(request);
    } catch (const Unsupported&) {
      throw;
    } catch (const UserError& error) {
      std::string tried;
      for (const auto& [name, type] : request.data)
        tried += fmt::format("{}{} {}", tried.empty() ? "" : ", ", name, type.str());
      throw SizesRefused(fmt::format("{}, for {}", error.what(), tried));
    }
  }

  std::shared_ptr<const Runnable> module_;
  std::map<std::string, int64_t> fixed_;
  std::map<std::string, HostTensor> known_;
  std::vector<std::string> sizes_;
  std::vector<bool> is_batch_;
  std::vector<OpenAxis> axes_;
  std::map<std::string, Type> types_;  // of inputs; open axes hold their offsets
};

/// Families from the widest range on. A size of 1 is in none, because it is often another graph
/// that gives the same (a broadcast); whether it does is tried on the result.
std::vector<TrialSource::Family> families_of(const OpenModule& open) {
  constexpr int64_t kBatch[] = {2, 3, 8, 4, 9, 5, 130, 2, 33, 3, 17, 7, 257, 40, 3, 1031};
  constexpr int64_t kSmallBatch[] = {2, 3, 2, 4, 3, 4, 4, 2, 3, 2, 4, 2, 3, 4, 3, 2};
  constexpr int64_t kWide[] = {7,   23,  16,  43,   12,  100, 129,  13,
                               257, 400, 513, 1025, 768, 64,  1300, 2049};
  constexpr int64_t kLarge[] = {199,  257, 400, 513, 1025, 768, 224,  1300,
                                2049, 333, 640, 901, 288,  450, 1500, 1111};
  constexpr int64_t kText[] = {15, 22, 37, 26, 51, 44, 29, 63, 80, 97, 128, 150, 33, 171, 333, 500};
  constexpr int64_t kImage[] = {97,  112, 131, 126, 151, 144, 129, 163,
                                180, 197, 228, 250, 133, 271, 333, 500};
  constexpr int64_t kSmall[] = {5, 7, 11, 6, 9, 13, 8, 10, 12, 5, 14, 6, 7, 9, 15, 11};
  constexpr size_t kCount = std::size(kWide);
  struct Kind {
    std::span<const int64_t> batches, sizes;
    int64_t unit, dense_from;
    bool is_decisive = false;
  };
  const Kind kinds[] = {{kBatch, kWide, 1, 193},      {kBatch, kLarge, 1, 193, true},
                        {kSmallBatch, kText, 1, 193}, {kSmallBatch, kImage, 1, 193},
                        {kSmallBatch, kSmall, 1, 0},  {kSmallBatch, kSmall, 32, 0},
                        {kSmallBatch, kSmall, 128, 0}};
  const size_t count = open.sizes().size();
  const auto sizes_by = [&](auto&& batch, auto&& size) {
    Sizes sizes;
    for (size_t i = 0; i < count; ++i) sizes.push_back(open.is_batch(i) ? batch(i) : size(i));
    return sizes;
  };
  std::vector<TrialSource::Family> families;
  for (const Kind& kind : kinds) {
    TrialSource::Family family;
    const auto at = [&](size_t k) {
      return sizes_by([&](size_t i) { return kind.batches[(k + 3 * i) % kCount]; },
                      [&](size_t i) { return kind.sizes[(k + 3 * i) % kCount] * kind.unit; });
    };
    for (size_t k = 0; k < kCount; ++k) family.examples.push_back(at(k));
    constexpr int64_t kRemainders = 64;  // of the largest divisor that is tried
    for (int64_t k = 0; k < kRemainders && kind.dense_from > 0; ++k)
      family.dense.push_back(
          sizes_by([&](size_t i) { return 2 + (k + static_cast<int64_t>(i)) % 3; },
                   [&](size_t i) {
                     const auto index = static_cast<int64_t>(i);
                     return kind.dense_from + (k * (2 * index + 1) + 7 * index) % kRemainders;
                   }));
    family.is_decisive = kind.is_decisive;
    family.unseen = {sizes_by([](size_t) { return 1; },
                              [](size_t i) { return 9 + 2 * static_cast<int64_t>(i); }),
                     sizes_by([](size_t) { return 6; },
                              [](size_t i) { return 41 + 4 * static_cast<int64_t>(i); }),
                     sizes_by([](size_t) { return 1; },
                              [](size_t i) { return 75 + 6 * static_cast<int64_t>(i); }),
                     sizes_by([](size_t) { return 5; },
                              [&](size_t i) { return kind.sizes[(5 + i) % kCount] * kind.unit; }),
                     sizes_by([](size_t) { return 1; },
                              [&](size_t i) { return kind.sizes[(1 + i) % kCount] * kind.unit; })};
    families.push_back(std::move(family));
  }
  return families;
}

/// The first two of the sizes for which there is a graph.
std::vector<Sizes> accepted(const ExportSource& source, const std::vector<Sizes>& candidates) {
  constexpr size_t kTried = 2;
  std::vector<Sizes> sizes;
  for (const Sizes& candidate : candidates) {
    if (sizes.size() == kTried) break;
    try {
      source.graph(candidate);
      sizes.push_back(candidate);
    } catch (const SizesRefused&) {
    }
  }
  return sizes;
}

}  // namespace

std::shared_ptr<const ExportedModel> export_trying(TrialSource& trial,
                                                   const ExportOptions& options) {
  std::string last;
  for (const TrialSource::Family& family : trial.families) {
    trial.source.examples = family.examples;
    try {
      std::shared_ptr<const ExportedModel> model = export_model(trial.source, options);
      if (model->has_quotients() && !family.dense.empty()) {
        trial.source.examples.insert(trial.source.examples.end(), family.dense.begin(),
                                     family.dense.end());
        model = export_model(trial.source, options);
      }
      trial.unseen = accepted(trial.source, family.unseen);
      return model;
    } catch (const SizesRefused& error) {
      last = error.what();
    } catch (const SizesDiffer& error) {
      if (family.is_decisive) throw;
      last = error.what();
    }
  }
  throw SizesDiffer(last);
}

TrialSource module_source(std::shared_ptr<const Runnable> module,
                          const std::map<std::string, int64_t>& fixed,
                          const std::map<std::string, HostTensor>& known) {
  const auto open = std::make_shared<const OpenModule>(module, fixed, known);
  TrialSource trial;
  trial.source.name = "graph";
  trial.source.sizes = open->sizes();
  for (const Port& port : module->inputs()) trial.source.inputs.push_back(port.name);
  trial.source.graph = [open](const Sizes& sizes) { return open->graph(sizes); };
  trial.source.weight = [weights = module->weights()](std::string_view name) {
    return weights->find(name)->bytes;
  };
  trial.inputs = [open](const Sizes& sizes) { return open->inputs(sizes); };
  if (open->sizes().empty())
    trial.families = {{{{}}, {}, {{}}}};
  else
    trial.families = families_of(*open);
  return trial;
}

}  // namespace brrr::onnx
