#include "formats/onnx/onnx_file.h"

#include <utility>

#include "base/errors.h"
#include "formats/onnx/external_files.h"
#include "formats/onnx/packed_integers.h"
#include "formats/protobuf.h"

namespace brrr::onnx {

using io::ProtobufReader;

namespace {

constexpr int kDeepest = 32;             // graphs and types inside one another
constexpr int64_t kMostItems = 4000000;  // nodes, names, tensors and numbers, of all kinds together

}  // namespace

/// Reads one file. It counts what it makes, so that a file of empty items cannot take far more
/// memory than its own size.
class FileReader {
 public:
  explicit FileReader(const std::string& what) : what_(what) {}

  TensorProto tensor(std::string_view bytes) {
    TensorProto t;
    count();
    ProtobufReader m(bytes, what_);
    std::vector<float> floats;
    std::vector<double> doubles;
    std::vector<int64_t> integers;  // of int32_data, int64_data, uint64_data
    std::optional<std::string_view> raw;
    while (m.next()) {
      switch (m.field()) {
        case 1:
          m.append_to(t.dims);
          if (t.dims.size() > 64) user_error("{}: a tensor has more than 64 axes", what_);
          break;
        case 2:
          t.type = static_cast<ElementType>(m.integer());
          break;
        case 3:
          user_error("{}: a tensor in segments is not supported", what_);
        case 4:
          m.append_to(floats);
          break;
        case 5:
        case 7:
        case 11:
          m.append_to(integers);
          break;
        case 6:
          count();
          t.strings.push_back(m.bytes());
          break;
        case 8:
          t.name = m.bytes();
          break;
        case 9:
          raw = m.bytes();
          break;
        case 10:
          m.append_to(doubles);
          break;
        case 13:
          external(t, m.bytes());
          break;
        case 14:
          t.is_external = m.varint() == 1;
          break;
        default:
          break;
      }
    }
    for (const int64_t size : t.dims)
      if (size < 0) user_error("{}: the tensor '{}' has the size {}", what_, t.name, size);
    if (t.is_external) {
      if (t.location.empty())
        user_error("{}: the tensor '{}' lies in another file, which is not named", what_, t.name);
    } else if (raw) {
      t.bytes = std::as_bytes(std::span(raw->data(), raw->size()));
    } else if (t.type != ElementType::string) {
      store(t, floats, doubles, integers);
    }
    check_size(t);
    if (!t.is_external) unpack(t);
    return t;
  }

  GraphProto graph(std::string_view bytes, int depth) {
    check_depth(depth);
    GraphProto g;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      switch (m.field()) {
        case 1:
          g.nodes.push_back(node(m.bytes(), depth));
          break;
        case 2:
          g.name = m.bytes();
          break;
        case 5:
          g.initializers.push_back(tensor(m.bytes()));
          break;
        case 11:
          g.inputs.push_back(value_info(m.bytes()));
          break;
        case 12:
          g.outputs.push_back(value_info(m.bytes()));
          break;
        case 15:
          g.sparse_initializers.push_back(sparse_tensor(m.bytes()));
          break;
        default:
          break;
      }
    }
    return g;
  }

  void model(std::string_view bytes, File& file) {
    ProtobufReader m(bytes, what_);
    std::optional<std::string_view> graph_bytes;
    while (m.next()) {
      switch (m.field()) {
        case 1:
          file.ir_version = static_cast<int64_t>(m.varint());
          break;
        case 2:
          file.producer = m.bytes();
          break;
        case 3:
          file.producer_version = m.bytes();
          break;
        case 7:
          if (graph_bytes) user_error("{}: it has two graphs", what_);
          graph_bytes = m.bytes();
          break;
        case 8:
          opset(m.bytes(), file.opsets);
          break;
        case 14:
          count();
          file.metadata.push_back(entry(m.bytes()));
          break;
        case 25:
          file.functions.push_back(function(m.bytes()));
          break;
        default:
          break;
      }
    }
    if (!graph_bytes || file.opsets.empty())
      user_error("{}: this is no ONNX file: it has no {}", what_,
                 graph_bytes ? "version of its operators" : "graph");
    file.graph = graph(*graph_bytes, 0);
  }

  void open_external(GraphProto& g, ExternalFiles& files) {
    const auto open = [&](TensorProto& t) {
      if (t.is_external) files.read(t);
    };
    for (TensorProto& t : g.initializers) open(t);
    for (SparseTensorProto& t : g.sparse_initializers) {
      open(t.values);
      open(t.indices);
    }
    for (NodeProto& n : g.nodes) open_external(n, files);
  }

  void open_external(NodeProto& n, ExternalFiles& files) {
    for (AttributeProto& a : n.attributes) {
      if (a.graph) open_external(*a.graph, files);
      if (a.tensor && a.tensor->is_external) files.read(*a.tensor);
    }
  }

  static std::shared_ptr<File> make_file(std::string what) {
    return std::shared_ptr<File>(new File(std::move(what)));
  }
  static void hold(File& file, std::shared_ptr<const MappedFile> map, uint64_t bytes) {
    file.map_ = std::move(map);
    file.bytes_ = bytes;
  }

 private:
  void count() {
    if (++items_ > kMostItems)
      user_error("{}: it has more than {} nodes, names and tensors", what_, kMostItems);
  }
  void check_depth(int depth) const {
    if (depth > kDeepest) user_error("{}: graphs lie more than {} deep in it", what_, kDeepest);
  }

  std::pair<std::string_view, std::string_view> entry(std::string_view bytes) {
    std::pair<std::string_view, std::string_view> e;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      if (m.field() == 1) e.first = m.bytes();
      if (m.field() == 2) e.second = m.bytes();
    }
    return e;
  }

  uint64_t size_text(std::string_view text, const TensorProto& t) {
    uint64_t value = 0;
    for (const char c : text) {
      if (c < '0' || c > '9' || __builtin_mul_overflow(value, uint64_t{10}, &value) ||
          __builtin_add_overflow(value, static_cast<uint64_t>(c - '0'), &value))
        user_error("{}: the external data of '{}' has the offset or length '{}'", what_, t.name,
                   text);
    }
    return value;
  }

  void external(TensorProto& t, std::string_view bytes) {
    count();
    const auto [key, value] = entry(bytes);
    if (key == "location") t.location = value;
    if (key == "offset") t.offset = size_text(value, t);
    if (key == "length") t.length = size_text(value, t);
  }

  // Values that are spelled as numbers become bytes.
  void store(TensorProto& t, const std::vector<float>& floats, const std::vector<double>& doubles,
             const std::vector<int64_t>& integers) {
    auto room = std::make_shared<std::vector<std::byte>>();
    const auto keep = [&](const void* data, size_t size) {
      const auto* from = static_cast<const std::byte*>(data);
      room->assign(from, from + size);
    };
    const auto narrow = [&]<typename T>(T) {
      std::vector<T> values(integers.begin(), integers.end());
      keep(values.data(), values.size() * sizeof(T));
    };
    switch (t.type) {
      case ElementType::f32:
      case ElementType::complex64:
        keep(floats.data(), floats.size() * sizeof(float));
        break;
      case ElementType::f64:
      case ElementType::complex128:
        keep(doubles.data(), doubles.size() * sizeof(double));
        break;
      case ElementType::i64:
      case ElementType::u64:
        narrow(int64_t{});
        break;
      case ElementType::i32:
      case ElementType::u32:
        // uint32 values stand in uint64_data.
        narrow(uint32_t{});
        break;
      case ElementType::i16:
      case ElementType::u16:
      case ElementType::f16:
      case ElementType::bf16:
        narrow(uint16_t{});
        break;
      default:
        narrow(uint8_t{});
        break;
    }
    t.bytes = *room;
    t.keeps_bytes = std::move(room);
  }

  // The bytes of a dtype that Brrr knows must be as many as the shape says.
  void check_size(const TensorProto& t) {
    if (!dtype_of(t.type) || t.is_external) return;
    if (t.bytes.size() != bytes_in_file(t))
      user_error("{}: the tensor '{}' has {} bytes for {} elements of {}", what_, t.name,
                 t.bytes.size(), t.elements(), onnx::name_of(t.type));
  }

  SparseTensorProto sparse_tensor(std::string_view bytes) {
    SparseTensorProto t;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      if (m.field() == 1) t.values = tensor(m.bytes());
      if (m.field() == 2) t.indices = tensor(m.bytes());
      if (m.field() == 3) m.append_to(t.dims);
    }
    return t;
  }

  ValueType value_type(std::string_view bytes, int depth) {
    check_depth(depth);
    count();
    ValueType type;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      switch (m.field()) {
        case 1:
          type.kind = ValueKind::tensor;
          tensor_type(m.bytes(), type);
          break;
        case 4:
        case 9: {
          type.kind = m.field() == 4 ? ValueKind::sequence : ValueKind::optional;
          ProtobufReader inner(m.bytes(), what_);
          while (inner.next())
            if (inner.field() == 1)
              type.of = std::make_shared<ValueType>(value_type(inner.bytes(), depth + 1));
          break;
        }
        case 5:
          type.kind = ValueKind::map;
          break;
        case 8:
          type.kind = ValueKind::sparse;
          break;
        default:
          break;
      }
    }
    return type;
  }

  void tensor_type(std::string_view bytes, ValueType& type) {
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      if (m.field() == 1) type.element = static_cast<ElementType>(m.integer());
      if (m.field() != 2) continue;
      type.shape.emplace();
      ProtobufReader shape(m.bytes(), what_);
      while (shape.next()) {
        if (shape.field() != 1) continue;
        count();
        Dimension d;
        ProtobufReader dim(shape.bytes(), what_);
        while (dim.next()) {
          if (dim.field() == 1) d.size = static_cast<int64_t>(dim.varint());
          if (dim.field() == 2) d.name = dim.bytes();
        }
        type.shape->push_back(d);
      }
    }
  }

  ValueInfo value_info(std::string_view bytes) {
    count();
    ValueInfo info;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      if (m.field() == 1) info.name = m.bytes();
      if (m.field() == 2) info.type = value_type(m.bytes(), 0);
    }
    return info;
  }

  AttributeProto attribute(std::string_view bytes, int depth) {
    count();
    AttributeProto a;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      switch (m.field()) {
        case 1:
          a.name = m.bytes();
          break;
        case 2:
          a.number = m.number();
          break;
        case 3:
          a.integer = static_cast<int64_t>(m.varint());
          break;
        case 4:
          a.string = m.bytes();
          break;
        case 5:
          a.tensor = std::make_shared<TensorProto>(tensor(m.bytes()));
          break;
        case 6:
          a.graph = std::make_shared<GraphProto>(graph(m.bytes(), depth + 1));
          break;
        case 7:
          m.append_to(a.numbers);
          break;
        case 8:
          m.append_to(a.integers);
          break;
        case 9:
          count();
          a.strings.push_back(m.bytes());
          break;
        case 14:
          a.type = value_type(m.bytes(), 0);
          break;
        case 20:
          a.kind = static_cast<AttributeProto::Kind>(m.integer());
          break;
        case 21:
          a.refers_to = m.bytes();
          break;
        default:
          break;
      }
    }
    return a;
  }

  NodeProto node(std::string_view bytes, int depth) {
    count();
    NodeProto n;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      switch (m.field()) {
        case 1:
        case 2:
          count();
          (m.field() == 1 ? n.inputs : n.outputs).push_back(m.bytes());
          break;
        case 3:
          n.name = m.bytes();
          break;
        case 4:
          n.op_type = m.bytes();
          break;
        case 5:
          n.attributes.push_back(attribute(m.bytes(), depth));
          break;
        case 7:
          n.domain = m.bytes();
          break;
        case 8:
          n.overload = m.bytes();
          break;
        default:
          break;
      }
    }
    if (n.domain == "ai.onnx") n.domain = "";
    return n;
  }

  void opset(std::string_view bytes, Opsets& opsets) {
    count();
    std::string_view domain;
    int64_t version = 0;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      if (m.field() == 1) domain = m.bytes();
      if (m.field() == 2) version = static_cast<int64_t>(m.varint());
    }
    opsets[domain == "ai.onnx" ? "" : domain] = version;
  }

  FunctionProto function(std::string_view bytes) {
    count();
    FunctionProto f;
    ProtobufReader m(bytes, what_);
    while (m.next()) {
      switch (m.field()) {
        case 1:
          f.name = m.bytes();
          break;
        case 4:
        case 5:
        case 6:
          count();
          (m.field() == 4   ? f.inputs
           : m.field() == 5 ? f.outputs
                            : f.attributes)
              .push_back(m.bytes());
          break;
        case 7:
          f.nodes.push_back(node(m.bytes(), 0));
          break;
        case 9:
          opset(m.bytes(), f.opsets);
          break;
        case 10:
          f.domain = m.bytes();
          break;
        case 11:
          f.defaults.push_back(attribute(m.bytes(), 0));
          break;
        case 13:
          f.overload = m.bytes();
          break;
        default:
          break;
      }
    }
    if (f.domain == "ai.onnx") f.domain = "";
    return f;
  }

  const std::string& what_;
  int64_t items_ = 0;
};

int64_t TensorProto::elements() const {
  int64_t product = 1;
  for (const int64_t size : dims)
    if (__builtin_mul_overflow(product, size, &product))
      user_error("the tensor '{}' has too many elements", name);
  return product;
}

const AttributeProto* NodeProto::find(std::string_view attribute) const {
  for (const AttributeProto& a : attributes)
    if (a.name == attribute) return &a;
  return nullptr;
}

std::shared_ptr<const File> File::parse(std::string_view bytes, std::string what) {
  const std::shared_ptr<File> file = FileReader::make_file(std::move(what));
  FileReader reader(file->what());
  reader.model(bytes, *file);
  ExternalFiles none(file->what());
  reader.open_external(file->graph, none);
  FileReader::hold(*file, nullptr, bytes.size());
  return file;
}

std::shared_ptr<const File> File::load(const fs::path& path) {
  auto map = std::make_shared<const MappedFile>(path);
  const std::shared_ptr<File> file = FileReader::make_file(path.string());
  FileReader reader(file->what());
  reader.model(map->text(), *file);
  ExternalFiles beside(file->what(), path);
  reader.open_external(file->graph, beside);
  for (FunctionProto& f : file->functions)
    for (NodeProto& n : f.nodes) reader.open_external(n, beside);
  const uint64_t bytes = map->bytes().size() + beside.bytes();
  FileReader::hold(*file, std::move(map), bytes);
  return file;
}

TensorProto parse_tensor(std::string_view bytes, const std::string& what) {
  return FileReader(what).tensor(bytes);
}

std::vector<TensorProto> parse_sequence(std::string_view bytes, const std::string& what) {
  // SequenceProto: name = 1, elem_type = 2, tensor_values = 3. OptionalProto: name = 1, elem_type =
  // 2, tensor_value = 3, sequence_value = 5.
  FileReader reader(what);
  std::vector<TensorProto> tensors;
  ProtobufReader m(bytes, what);
  while (m.next()) {
    if (m.field() == 3) tensors.push_back(reader.tensor(m.bytes()));
    if (m.field() == 5) {
      const std::vector<TensorProto> inner = parse_sequence(m.bytes(), what);
      tensors.insert(tensors.end(), inner.begin(), inner.end());
    }
  }
  return tensors;
}

}  // namespace brrr::onnx
