#pragma once
// One run of a graph on the CPU's kernels, for tests that compare bits.

#include <cstring>
#include <map>

#include "backend/cpu/target.h"
#include "runtime/engine.h"
#include "support/tensors.h"

namespace brrr::test {

/// Every output and state after one run, as bytes.
using Bytes = std::map<std::string, std::vector<std::byte>>;

inline Bytes run_on_cpu(const Graph& g, const reference::Tensors& in, bool reuse = true) {
  Engine engine(cpu::cpu_backend());
  ProgramOptions options;
  options.reuse_memory = reuse;
  options.verify_memory = true;
  const size_t p = engine.add(g, options);
  engine.allocate();
  for (const StateInfo& s : engine.states()) write_tensor(in.at(s.name), engine.state_data(s.name));
  const Graph& compiled = engine.program(p).graph();
  for (NodeId id : compiled.inputs(InputKind::data))
    write_tensor(in.at(compiled.input_name(id)), engine.input(p, compiled.input_name(id)));
  engine.run(p);
  Bytes out;
  auto keep = [&](const std::string& name, const std::byte* data, const Type& type) {
    out[name].assign(data, data + type.bytes());
  };
  for (const Output& o : compiled.outputs())
    if (o.updates == kNoNode)
      keep(o.name, engine.output(p, o.name), g.type(g.find_output(o.name)->value));
  for (const StateInfo& s : engine.states())
    keep("state:" + s.name, engine.state_data(s.name), s.type);
  return out;
}

}  // namespace brrr::test
