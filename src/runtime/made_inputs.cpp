#include "runtime/made_inputs.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/options.h"

namespace brrr {
namespace {

constexpr uint32_t kSeed = 7;
constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a tensor that is made up

struct Usual {
  std::array<std::string_view, 5> parts;  // of names
  int64_t size;
};
constexpr Usual kUsual[] = {{{"batch", "unk__"}, 1},
                            {{"seq", "length", "time", "token", "frame"}, 128},
                            {{"height", "width"}, 224}};

std::optional<int64_t> usual_size(const std::string& name, size_t axis) {
  const std::string small = ascii_lowercase(name);
  for (const Usual& usual : kUsual)
    for (const std::string_view part : usual.parts)
      if (!part.empty() && small.find(part) != std::string::npos) return usual.size;
  if (axis == 0) return 1;
  return std::nullopt;
}

class Sizes {
 public:
  Sizes(const Runnable& module, const std::map<std::string, int64_t>& asked) : module_(module) {
    for (const auto& [name, size] : asked) take(name, size, AxisSize::From::option, "");
  }

  void take_tensor(const Port& port, const HostTensor& tensor) {
    if (!port.has_shape || std::ssize(port.dims) != tensor.shape.rank()) return;
    for (size_t axis = 0; axis < port.dims.size(); ++axis)
      if (port.dims[axis].size < 0)
        take(axis_name(port, axis), tensor.shape.size(static_cast<int>(axis)),
             AxisSize::From::tensor, port.name);
  }

  /// Chooses what nothing says, once all that is said is there.
  void choose() {
    std::vector<std::string> unknown, all;
    each_axis([&](const Port& port, size_t axis) {
      const std::string name = axis_name(port, axis);
      const bool is_new = std::ranges::find(all, name) == all.end();
      if (is_new) all.push_back(name);
      for (const std::string& term : axis_sum(name).names) {
        if (find(term) != nullptr || find(name) != nullptr) continue;
        const int64_t most = port.dims[axis].most;
        if (const auto usual = usual_size(term, axis))
          sizes_.push_back(
              {term, most < 0 ? *usual : std::min(*usual, most), AxisSize::From::guess});
        else if (is_new)
          unknown.push_back(name);
      }
    });
    for (const AxisSize& size : sizes_)
      if (size.from == AxisSize::From::option && !names_an_axis(size.name, all))
        user_error("--size {}: no axis of an input has this name; there are: {}", size.name,
                   all.empty() ? "none" : listed(all));
    if (unknown.empty()) return;
    std::string options;
    for (const std::string& name : unknown) options += " --size " + name + "=N";
    user_error("nothing says how large {} {}; add{}", listed(unknown),
               unknown.size() == 1 ? "is" : "are", options);
  }

  Shape shape_of(const Port& port) const {
    std::vector<int64_t> sizes;
    for (size_t axis = 0; axis < port.dims.size(); ++axis) {
      if (port.dims[axis].size >= 0) {
        sizes.push_back(port.dims[axis].size);
        continue;
      }
      const std::string name = axis_name(port, axis);
      const AxisSize* known = find(name);
      if (known != nullptr) {
        sizes.push_back(known->size);
        continue;
      }
      AxisSum sum = axis_sum(name);
      for (const std::string& term : sum.names) sum.offset += find(term)->size;
      sizes.push_back(sum.offset);
    }
    return Shape(sizes);
  }

  std::vector<AxisSize> result() const { return sizes_; }

 private:
  static std::string listed(const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  }
  static bool names_an_axis(const std::string& name, const std::vector<std::string>& all) {
    return std::ranges::any_of(all, [&](const std::string& axis) {
      const AxisSum sum = axis_sum(axis);
      return axis == name || std::ranges::find(sum.names, name) != sum.names.end();
    });
  }
  template <typename F>
  void each_axis(F&& f) const {
    for (const Port& port : module_.inputs())
      for (size_t axis = 0; axis < port.dims.size(); ++axis)
        if (port.dims[axis].size < 0 && !port.is_optional) f(port, axis);
  }
  const AxisSize* find(const std::string& name) const {
    const auto at = std::ranges::find(sizes_, name, &AxisSize::name);
    return at == sizes_.end() ? nullptr : &*at;
  }
  void take(const std::string& name, int64_t size, AxisSize::From from, const std::string& input) {
    const AxisSize* known = find(name);
    if (known == nullptr)
      sizes_.push_back({name, size, from});
    else if (known->size != size && known->from == AxisSize::From::option)
      user_error("--size {}={}: the tensor for '{}' has {} there; expected the same", name,
                 known->size, input, size);
  }

  const Runnable& module_;
  std::vector<AxisSize> sizes_;
};

HostTensor made_up(const Type& type) {
  HostTensor tensor(type.dtype, type.shape);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  fill_tensor(type, tensor.bytes.data(),
              [&](int64_t) { return is_float(type.dtype) ? uniform(random) : 1; });
  return tensor;
}

}  // namespace

AxisSum axis_sum(const std::string& name) {
  constexpr std::string_view kPlus = " + ";
  constexpr size_t kMostDigits = 11;
  AxisSum sum;
  const auto add = [&](const std::string& term) {
    const bool is_number = !term.empty() && term.size() <= kMostDigits &&
                           std::ranges::all_of(term, [](char c) { return c >= '0' && c <= '9'; });
    if (is_number)
      sum.offset += std::stoll(term);
    else
      sum.names.push_back(term);
  };
  size_t begin = 0;
  for (size_t at = name.find(kPlus); at != std::string::npos; at = name.find(kPlus, begin)) {
    add(name.substr(begin, at - begin));
    begin = at + kPlus.size();
  }
  add(name.substr(begin));
  return sum;
}

std::string axis_name(const Port& port, size_t axis) {
  const std::string& name = port.dims[axis].name;
  // Some exporters write what stands for no name.
  return name.empty() || name == "?" || name == "-1" ? fmt::format("{}.{}", port.name, axis) : name;
}

MadeInputs make_inputs(const Runnable& module, PortValues given,
                       const std::map<std::string, int64_t>& asked) {
  MadeInputs made;
  made.values = std::move(given);
  Sizes sizes(module, asked);
  for (const Port& port : module.inputs()) {
    const auto at = made.values.find(port.name);
    if (at != made.values.end() && at->second.kind == PortValue::Kind::tensor)
      sizes.take_tensor(port, at->second.tensor());
  }
  sizes.choose();
  for (const Port& port : module.inputs()) {
    if (port.is_optional || made.values.contains(port.name)) continue;
    if (!port.is_tensor)
      user_error(
          "the input '{}' is a {}, which cannot be made up; expected a file whose inputs are "
          "tensors",
          port.name, port.type);
    if (!port.has_shape)
      user_error("the file does not say what shape the input '{0}' has; add --input {0}=FILE.npy",
                 port.name);
    const Type type{port.dtype, sizes.shape_of(port)};
    double bytes = static_cast<double>(bytes_of(port.dtype));
    for (int axis = 0; axis < type.shape.rank(); ++axis)
      bytes *= static_cast<double>(type.shape.size(axis));
    if (bytes > static_cast<double>(kMostBytes))
      user_error(
          "the input '{}' would be {}, which is more than any machine holds; expected "
          "smaller sizes",
          port.name, type.str());
    made.values.emplace(port.name, made_up(type));
    made.made.push_back(port.name);
  }
  made.sizes = sizes.result();
  return made;
}

}  // namespace brrr
