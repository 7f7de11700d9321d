// cuDNN's graph interface for the fake driver: any graph of products, element-wise operations,
// reductions and reshapes, evaluated operation by operation in double. It knows nothing of
// attention, so a graph that gives attention here says attention.

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "backend/cuda/live/cudnn.h"
#include "base/dtype.h"
#include "support/fake_cuda/fake_cuda.h"

namespace {

using namespace brrr::cuda::cudnn;  // NOLINT: the interface under test
using brrr::DType;

constexpr int kBadParameter = 2000, kNotSupported = 3000;

size_t bytes_of_type(int type) {
  switch (static_cast<FieldType>(type)) {
    case FieldType::boolean:
    case FieldType::character:
      return 1;
    case FieldType::handle:
    case FieldType::int64:
    case FieldType::pointer:
    case FieldType::descriptor:
      return 8;
    default:
      return 4;
  }
}

struct Fake {
  Kind kind;
  bool finished = false;
  std::map<Field, std::vector<char>> fields;

  bool has(Field f) const { return fields.contains(f); }
  template <typename T>
  std::vector<T> list(Field f) const {
    const auto at = fields.find(f);
    if (at == fields.end()) return {};
    std::vector<T> values(at->second.size() / sizeof(T));
    std::memcpy(values.data(), at->second.data(), at->second.size());
    return values;
  }
  template <typename T>
  T get(Field f, T fallback) const {
    const auto values = list<T>(f);
    return values.empty() ? fallback : values[0];
  }
  const Fake* of(Field f) const { return get<const Fake*>(f, nullptr); }
};

DType dtype_of(int t) {
  switch (static_cast<DataType>(t)) {
    case DataType::bf16:
      return DType::bf16;
    case DataType::f16:
      return DType::f16;
    case DataType::i32:
      return DType::i32;
    case DataType::boolean:
      return DType::boolean;
    default:
      return DType::f32;
  }
}

using Index = std::array<int64_t, 4>;

struct Tensor {
  int64_t id = 0;
  Index sizes{}, strides{};
  DType type = DType::f32;
  bool is_virtual = false, is_value = false;
  explicit Tensor(const Fake& f)
      : id(f.get<int64_t>(Field::tensor_id, 0)),
        type(dtype_of(f.get<int>(Field::tensor_type, 0))),
        is_virtual(f.get<char>(Field::tensor_is_virtual, 0) != 0),
        is_value(f.get<char>(Field::tensor_is_value, 0) != 0) {
    const auto n = f.list<int64_t>(Field::tensor_sizes), s = f.list<int64_t>(Field::tensor_strides);
    std::copy(n.begin(), n.end(), sizes.begin());
    std::copy(s.begin(), s.end(), strides.begin());
  }
  int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

template <typename F>
void for_each(const Index& sizes, F&& f) {
  Index i{};
  for (i[0] = 0; i[0] < sizes[0]; ++i[0])
    for (i[1] = 0; i[1] < sizes[1]; ++i[1])
      for (i[2] = 0; i[2] < sizes[2]; ++i[2])
        for (i[3] = 0; i[3] < sizes[3]; ++i[3]) f(i);
}
int64_t at_of(const Index& i, const Index& strides) {
  return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3] * strides[3];
}
/// In rows of its own sizes; axes of one number stand for all.
int64_t dense_at(const Index& i, const Index& sizes) {
  int64_t at = 0;
  for (size_t k = 0; k < 4; ++k) at = at * sizes[k] + (sizes[k] == 1 ? 0 : i[k]);
  return at;
}

struct Run {
  std::map<int64_t, void*> memory;
  std::map<int64_t, float> values;  // read when the call is made
  std::map<int64_t, std::vector<double>> known;

  const std::vector<double>& read(const Tensor& t) {
    auto& v = known[t.id];
    if (!v.empty()) return v;
    v.resize(static_cast<size_t>(t.elements()));
    size_t n = 0;
    for_each(t.sizes, [&](const Index& i) {
      v[n++] = t.is_value ? values.at(t.id)
                          : load_as_double(t.type, memory.at(t.id), at_of(i, t.strides));
    });
    return v;
  }
  bool can_read(const Tensor& t) const { return !t.is_virtual || known.contains(t.id); }
  void write(const Tensor& t, std::vector<double> v) {
    for (double& x : v) x = t.type == DType::f32 ? static_cast<float>(x) : rounded_to(t.type, x);
    if (!t.is_virtual) {
      size_t n = 0;
      for_each(t.sizes, [&](const Index& i) {
        store_from_double(t.type, memory.at(t.id), at_of(i, t.strides), v[n++]);
      });
    }
    known[t.id] = std::move(v);
  }
};

struct Op {
  explicit Op(const Fake& f) : fake(f) {
    const auto add = [&](Field field) {
      if (const Fake* t = f.of(field)) in.emplace_back(*t);
    };
    switch (f.kind) {
      case Kind::matmul_op:
        add(Field::matmul_a);
        add(Field::matmul_b);
        y = std::make_unique<Tensor>(*f.of(Field::matmul_c));
        break;
      case Kind::pointwise_op:
        add(Field::pointwise_x);
        add(Field::pointwise_b);
        add(Field::pointwise_t);
        y = std::make_unique<Tensor>(*f.of(Field::pointwise_y));
        break;
      case Kind::reduction_op:
        add(Field::reduction_x);
        y = std::make_unique<Tensor>(*f.of(Field::reduction_y));
        break;
      default:
        add(Field::reshape_x);
        y = std::make_unique<Tensor>(*f.of(Field::reshape_y));
    }
  }

  void run(Run& r) const {
    std::vector<std::vector<double>> x;
    for (const Tensor& t : in) x.push_back(r.read(t));
    std::vector<double> out(static_cast<size_t>(y->elements()));
    if (fake.kind == Kind::matmul_op)
      multiply(x, out);
    else if (fake.kind == Kind::pointwise_op)
      each(x, out);
    else if (fake.kind == Kind::reduction_op)
      reduce(x[0], out);
    else
      reshape(x[0], out);
    r.write(*y, std::move(out));
  }

  void multiply(const std::vector<std::vector<double>>& x, std::vector<double>& out) const {
    for_each(y->sizes, [&](const Index& i) {
      double sum = 0;
      for (int64_t k = 0; k < in[0].sizes[3]; ++k)
        sum += x[0][static_cast<size_t>(dense_at({i[0], i[1], i[2], k}, in[0].sizes))] *
               x[1][static_cast<size_t>(dense_at({i[0], i[1], k, i[3]}, in[1].sizes))];
      out[static_cast<size_t>(dense_at(i, y->sizes))] = sum;
    });
  }

  void each(const std::vector<std::vector<double>>& x, std::vector<double>& out) const {
    const Fake& what = *fake.of(Field::pointwise_op);
    const auto mode = static_cast<Pointwise>(what.get<int>(Field::pointwise_mode, -1));
    const auto axis = static_cast<size_t>(what.get<int64_t>(Field::pointwise_axis, -1));
    for_each(y->sizes, [&](const Index& i) {
      const auto at = [&](size_t k) { return x[k][static_cast<size_t>(dense_at(i, in[k].sizes))]; };
      double& v = out[static_cast<size_t>(dense_at(i, y->sizes))];
      switch (mode) {
        case Pointwise::add:
          v = at(0) + at(1);
          break;
        case Pointwise::mul:
          v = at(0) * at(1);
          break;
        case Pointwise::div:
          v = at(0) / at(1);
          break;
        case Pointwise::sub:
          v = at(0) - at(1);
          break;
        case Pointwise::exp:
          v = std::exp(at(0));
          break;
        case Pointwise::log:
          v = std::log(at(0));
          break;
        case Pointwise::greater_equal:
          v = at(0) >= at(1) ? 1 : 0;
          break;
        case Pointwise::index:
          v = static_cast<double>(i[axis]);
          break;
        case Pointwise::select:
          v = at(2) != 0 ? at(0) : at(1);
          break;
      }
    });
  }

  void reduce(const std::vector<double>& x, std::vector<double>& out) const {
    const auto mode = static_cast<Reduction>(
        fake.of(Field::reduction_op)->get<int>(Field::reduction_operator, -1));
    std::fill(out.begin(), out.end(), mode == Reduction::max ? -INFINITY : 0);
    for_each(in[0].sizes, [&](const Index& i) {
      double& v = out[static_cast<size_t>(dense_at(i, y->sizes))];
      const double one = x[static_cast<size_t>(dense_at(i, in[0].sizes))];
      v = mode == Reduction::max ? std::max(v, one) : v + one;
    });
  }

  /// The number that lies at an address keeps its address.
  void reshape(const std::vector<double>& x, std::vector<double>& out) const {
    std::map<int64_t, double> lying;
    for_each(in[0].sizes, [&](const Index& i) {
      lying[at_of(i, in[0].strides)] = x[static_cast<size_t>(dense_at(i, in[0].sizes))];
    });
    for_each(y->sizes, [&](const Index& i) {
      out[static_cast<size_t>(dense_at(i, y->sizes))] = lying.at(at_of(i, y->strides));
    });
  }

  const Fake& fake;
  std::vector<Tensor> in;
  std::unique_ptr<Tensor> y;
};

std::vector<const Fake*> ops_of(const Fake& graph) {
  return graph.list<const Fake*>(Field::graph_ops);
}
const Fake& graph_of(const Fake& plan) {
  return *plan.of(Field::plan_config)->of(Field::heuristics_graph);
}

/// As the fused engines: two bytes of every score where gradients are asked for.
int64_t workspace_of(const Fake& graph) {
  int64_t scores = 0;
  bool turns = false;
  for (const Fake* op : ops_of(graph)) {
    turns |= op->kind == Kind::reshape_op;
    if (op->kind == Kind::matmul_op) scores = std::max(scores, Op(*op).y->elements());
  }
  return 256 + (turns ? scores * 2 : 0);
}

bool is_whole(const Fake& f) {
  const auto all = [&](std::initializer_list<Field> fields) {
    return std::all_of(fields.begin(), fields.end(), [&](Field x) { return f.has(x); });
  };
  const auto finished = [&](std::initializer_list<Field> fields) {
    return std::all_of(fields.begin(), fields.end(),
                       [&](Field x) { return f.of(x) != nullptr && f.of(x)->finished; });
  };
  switch (f.kind) {
    case Kind::tensor:
      return all({Field::tensor_id, Field::tensor_alignment, Field::tensor_type}) &&
             f.list<int64_t>(Field::tensor_sizes).size() == 4 &&
             f.list<int64_t>(Field::tensor_strides).size() == 4;
    case Kind::pointwise:
      return all({Field::pointwise_mode, Field::pointwise_math});
    case Kind::matmul:
      return all({Field::matmul_math});
    case Kind::reduction:
      return all({Field::reduction_math, Field::reduction_operator});
    case Kind::pointwise_op:
      return finished({Field::pointwise_op, Field::pointwise_x, Field::pointwise_y});
    case Kind::matmul_op:
      return finished({Field::matmul_op, Field::matmul_a, Field::matmul_b, Field::matmul_c});
    case Kind::reduction_op:
      return finished({Field::reduction_op, Field::reduction_x, Field::reduction_y});
    case Kind::reshape_op:
      return finished({Field::reshape_x, Field::reshape_y});
    case Kind::graph:
      return all({Field::graph_handle, Field::graph_ops});
    case Kind::heuristics:
      return finished({Field::heuristics_graph}) && all({Field::heuristics_mode});
    case Kind::plan:
      return finished({Field::plan_config}) && all({Field::plan_handle});
    case Kind::variant_pack:
      return all({Field::pack_ids, Field::pack_pointers, Field::pack_workspace});
    default:
      return true;
  }
}

int execute(const Fake& plan, const Fake& pack, CUstream stream) {
  Run run;
  const auto ids = pack.list<int64_t>(Field::pack_ids);
  const auto pointers = pack.list<void*>(Field::pack_pointers);
  if (ids.size() != pointers.size()) return kBadParameter;
  for (size_t i = 0; i < ids.size(); ++i) run.memory[ids[i]] = pointers[i];
  const Fake& graph = graph_of(plan);
  auto* workspace = pack.get<void*>(Field::pack_workspace, nullptr);
  const int64_t workspace_bytes = workspace_of(graph);
  if (!fake_is_device(workspace, static_cast<size_t>(workspace_bytes))) return kBadParameter;
  auto ops = std::make_shared<std::vector<Op>>();
  for (const Fake* op : ops_of(graph)) ops->emplace_back(*op);
  for (const Op& op : *ops) {
    std::vector<Tensor> tensors = op.in;
    tensors.push_back(*op.y);
    for (const Tensor& t : tensors) {
      if (t.is_virtual) continue;
      if (!run.memory.contains(t.id)) return kBadParameter;
      void* data = run.memory.at(t.id);
      if (t.is_value)
        run.values[t.id] = *static_cast<const float*>(data);
      else if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || !fake_is_device(data, 1))
        return kBadParameter;
    }
  }
  const auto work = [ops, run, workspace, workspace_bytes]() mutable {
    std::memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));
    run.known.clear();
    std::vector<bool> done(ops->size());
    for (bool any = true; any;) {
      any = false;
      for (size_t i = 0; i < ops->size(); ++i) {
        const Op& op = (*ops)[i];
        // A result of this graph in memory is read after it has been written.
        const bool ready = std::all_of(op.in.begin(), op.in.end(), [&](const Tensor& t) {
          if (run.known.contains(t.id)) return true;
          for (size_t k = 0; k < ops->size(); ++k)
            if ((*ops)[k].y->id == t.id && !done[k]) return false;
          return run.can_read(t);
        });
        if (done[i] || !ready) continue;
        op.run(run);
        done[i] = any = true;
      }
    }
  };
  fake_queue(work, stream);
  return kSuccess;
}

Fake& of(RawDescriptor d) { return *static_cast<Fake*>(d); }

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(int) { return "CUDNN_STATUS_FAKE"; }
int cudnnCreate(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new CUstream{});
  return kSuccess;
}
int cudnnDestroy(Handle handle) {
  delete reinterpret_cast<CUstream*>(handle);
  return kSuccess;
}
int cudnnSetStream(Handle handle, CUstream stream) {
  *reinterpret_cast<CUstream*>(handle) = stream;
  return kSuccess;
}
int cudnnBackendCreateDescriptor(int kind, RawDescriptor* d) {
  *d = new Fake{static_cast<Kind>(kind), false, {}};
  return kSuccess;
}
int cudnnBackendDestroyDescriptor(RawDescriptor d) {
  delete &of(d);
  return kSuccess;
}
int cudnnBackendSetAttribute(RawDescriptor d, int field, int type, int64_t count,
                             const void* values) {
  if (of(d).finished) return kBadParameter;
  const auto* begin = static_cast<const char*>(values);
  of(d).fields[static_cast<Field>(field)].assign(
      begin, begin + static_cast<size_t>(count) * bytes_of_type(type));
  return kSuccess;
}
int cudnnBackendGetAttribute(RawDescriptor d, int field, int, int64_t wanted, int64_t* count,
                             void* values) {
  const Fake& f = of(d);
  if (!f.finished) return kBadParameter;
  if (f.kind == Kind::heuristics && static_cast<Field>(field) == Field::heuristics_results) {
    *count = std::min<int64_t>(wanted, 1);
    Fake& config = of(*static_cast<RawDescriptor*>(values));
    config.fields[Field::heuristics_graph] = f.fields.at(Field::heuristics_graph);
    config.finished = true;
    return kSuccess;
  }
  if (f.kind == Kind::plan && static_cast<Field>(field) == Field::plan_workspace) {
    *count = 1;
    *static_cast<int64_t*>(values) = workspace_of(graph_of(f));
    return kSuccess;
  }
  return kNotSupported;
}
int cudnnBackendFinalize(RawDescriptor d) {
  if (!is_whole(of(d))) return kBadParameter;
  of(d).finished = true;
  return kSuccess;
}
int cudnnBackendExecute(Handle handle, RawDescriptor plan, RawDescriptor pack) {
  if (!of(plan).finished || !of(pack).finished) return kBadParameter;
  return execute(of(plan), of(pack), *reinterpret_cast<CUstream*>(handle));
}

}  // extern "C"
