// Modules of the C interface: whatever runs by the names of its inputs.

#include "library/modules.h"

#include <algorithm>

#include "base/threads/parallel.h"
#include "library/tensor_list.h"
#include "machine/device.h"
#include "passes/precision/precision.h"

using namespace brrr;
using namespace brrr::library;

namespace brrr::library {
namespace {

const OptionTable<ModuleOptions>& module_option_table() {
  static const OptionTable<ModuleOptions> table = [] {
    OptionTable<ModuleOptions> t;
    machine::add_device_row(t);
    auto& precision = add_precision_row(t, "precision", &ModuleOptions::precision,
                                        PrecisionUse::inference, kPrecisionHelp, {"dtype"});
    precision.set = [set = precision.set](ModuleOptions& o, const std::string& s) {
      set(o, s);
      o.is_precision_given = true;
    };
    machine::add_memory_row(t);
    t.integer("threads", &ModuleOptions::threads, 0, 4096, "N", "threads", {"num-threads"});
    t.list("disable-pass", &ModuleOptions::disabled, true, "NAME,...",
           "comma-separated passes to disable");
    return t;
  }();
  return table;
}

brrr_port port_at(const PortList& ports, size_t index) {
  if (index >= ports.list.size())
    usage_error("there are {}; got index {}", ports.list.size(), index);
  return ports.list[index];
}

}  // namespace

PortList::PortList(const std::vector<Port>& ports) {
  for (const Port& port : ports) {
    names.push_back(port.name);
    std::vector<int64_t>& s = sizes.emplace_back();
    for (const PortDim& dim : port.dims) s.push_back(dim.size);
    list.push_back({names.back().c_str(), to_c(port.dtype), port.has_shape ? 1 : 0,
                    static_cast<int>(s.size()), s.data(), port.is_optional ? 1 : 0});
  }
}

ModuleOptions module_options(const KeyValues& given) {
  ModuleOptions options;
  for (const auto& [key, value] : given)
    module_option_table().set(options, module_option_table().find(key), value,
                              std::string(canonical_key(key)));
  if (options.threads > 0) set_thread_count(static_cast<int>(options.threads));
  return options;
}

std::unique_ptr<brrr_module> make_module(const infer::NamedRunnable& named,
                                         const ModuleOptions& options) {
  auto module = std::make_unique<brrr_module>();
  module->runnable = named.runnable;
  const infer::RunPrecision precision = named.own && !options.is_precision_given
                                            ? *named.own
                                            : infer::run_precision(options.precision);
  RunnableOptions how;
  how.passes = for_inference(precision.dtype, precision.quantization);
  how.passes.disabled = {options.disabled.begin(), options.disabled.end()};
  module->runner = std::make_unique<infer::Runner>(
      named.runnable, machine::backend_for(options.device), how,
      infer::Memory{machine::memory_budget(options.device, options.memory_limit),
                    "a lower precision, smaller inputs"});
  module->inputs = PortList(named.runnable->inputs());
  module->outputs = PortList(named.runnable->outputs());
  return module;
}

}  // namespace brrr::library

brrr_status brrr_module_open(const char* path, const brrr_option* options, size_t count,
                             brrr_module** module) {
  return guarded([&] {
    brrr_module*& out = checked(module, "module");
    const ModuleOptions o = module_options(key_values(options, count));
    out = make_module(infer::open_runnable(text_of(path, "path"), o.device), o).release();
  });
}

void brrr_module_free(brrr_module* module) { delete module; }

size_t brrr_module_input_count(const brrr_module* module) {
  return module == nullptr ? 0 : module->inputs.list.size();
}
size_t brrr_module_output_count(const brrr_module* module) {
  return module == nullptr ? 0 : module->outputs.list.size();
}
brrr_status brrr_module_input(const brrr_module* module, size_t index, brrr_port* port) {
  return guarded([&] { checked(port, "port") = port_at(checked(module, "module").inputs, index); });
}
brrr_status brrr_module_output(const brrr_module* module, size_t index, brrr_port* port) {
  return guarded(
      [&] { checked(port, "port") = port_at(checked(module, "module").outputs, index); });
}

brrr_status brrr_module_run(brrr_module* module, const char* const* names,
                            brrr_tensor* const* inputs, size_t count, const char* const* wanted,
                            size_t wanted_count, brrr_tensors** outputs) {
  return guarded([&] {
    brrr_tensors*& out = checked(outputs, "outputs");
    brrr_module& m = checked(module, "module");
    TensorViews given;
    for (const auto& [name, tensor] : named(names, inputs, count))
      given.emplace(name, HostTensorView{tensor->dtype, Shape(tensor->sizes), bytes_of(*tensor)});
    std::map<std::string, std::unique_ptr<brrr_tensor>> results;
    m.runner->run_views(
        given, texts_of(wanted, wanted_count, "the name of an output"),
        [&](const std::string& name, const Type& type, std::span<const std::byte> bytes) {
          results[name] = tensor_of(type, bytes);
        });
    auto made = std::make_unique<brrr_tensors>();
    for (const Port& port : m.runnable->outputs())
      if (const auto at = results.find(port.name); at != results.end())
        made->list.emplace_back(port.name, std::move(at->second));
    out = made.release();
  });
}

int64_t brrr_module_copied_bytes(const brrr_module* module) {
  return module == nullptr ? 0 : module->runner->session().engine().copied_input_bytes();
}
