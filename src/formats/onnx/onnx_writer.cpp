#include "formats/onnx/onnx_writer.h"

#include <limits>
#include <optional>

#include "base/errors.h"
#include "formats/protobuf_writer.h"

namespace brrr::onnx {
namespace {

using io::ProtobufWriter;
using Kind = AttributeProto::Kind;

constexpr uint64_t kLargestFile = std::numeric_limits<int32_t>::max();
constexpr size_t kLeastExternal = 1024;  // bytes; smaller tensors stay inside
constexpr uint64_t kAlignment = 4096;    // of external tensors, so that they can be mapped

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

class ModelWriter {
 public:
  /// `location`: the name of the file with the weights; "": they are inside.
  explicit ModelWriter(std::string location) : location_(std::move(location)) {}

  ProtobufWriter model(const ModelProto& m) {
    ProtobufWriter w;
    w.integer(1, m.ir_version);
    w.text(2, m.producer);
    w.text(3, m.producer_version);
    w.message(7, graph(m.graph));
    for (const auto& [domain, version] : m.opsets) {
      ProtobufWriter opset;
      opset.text(1, domain);
      opset.integer(2, version);
      w.message(8, std::move(opset));
    }
    for (const auto& [key, value] : m.metadata) w.message(14, entry(key, value));
    BRRR_CHECK(m.functions.empty(), "functions are not written");
    return w;
  }

  /// The tensors of the other file, in order.
  const std::vector<const TensorProto*>& external() const { return external_; }

 private:
  static ProtobufWriter entry(std::string_view key, std::string_view value) {
    ProtobufWriter w;
    w.text(1, key);
    w.text(2, value);
    return w;
  }

  ProtobufWriter tensor(const TensorProto& t) {
    ProtobufWriter w;
    w.packed(1, t.dims);
    w.integer(2, static_cast<int64_t>(t.type));
    w.text(8, t.name);
    if (location_.empty() || t.bytes.size() < kLeastExternal) {
      w.view(9, t.bytes);
      return w;
    }
    constexpr int64_t kExternal = 1;
    offset_ = aligned(offset_);
    w.message(13, entry("location", location_));
    w.message(13, entry("offset", std::to_string(offset_)));
    w.message(13, entry("length", std::to_string(t.bytes.size())));
    w.integer(14, kExternal);
    offset_ += t.bytes.size();
    external_.push_back(&t);
    return w;
  }

  static ProtobufWriter value_info(const ValueInfo& info) {
    BRRR_CHECK(info.type.kind == ValueKind::tensor, "'{}' is no tensor", info.name);
    ProtobufWriter tensor;
    tensor.integer(1, static_cast<int64_t>(info.type.element));
    if (info.type.shape) {
      ProtobufWriter shape;
      for (const Dimension& d : *info.type.shape) {
        ProtobufWriter dim;
        if (d.size)
          dim.integer(1, *d.size);
        else if (!d.name.empty())
          dim.text(2, d.name);
        shape.message(1, std::move(dim));
      }
      tensor.message(2, std::move(shape));
    }
    ProtobufWriter type, w;
    type.message(1, std::move(tensor));
    w.text(1, info.name);
    w.message(2, std::move(type));
    return w;
  }

  ProtobufWriter attribute(const AttributeProto& a) {
    ProtobufWriter w;
    w.text(1, a.name);
    switch (a.kind) {
      case Kind::number:
        w.number(2, a.number);
        break;
      case Kind::integer:
        w.integer(3, a.integer);
        break;
      case Kind::string:
        w.text(4, a.string);
        break;
      case Kind::tensor:
        w.message(5, tensor(*a.tensor));
        break;
      case Kind::graph:
        w.message(6, graph(*a.graph));
        break;
      case Kind::numbers:
        w.packed(7, a.numbers);
        break;
      case Kind::integers:
        w.packed(8, a.integers);
        break;
      default:
        throw InternalError(
            fmt::format("the attribute '{}' is of a kind that is not written", a.name));
    }
    w.integer(20, static_cast<int64_t>(a.kind));
    return w;
  }

  ProtobufWriter node(const NodeProto& n) {
    ProtobufWriter w;
    for (const std::string_view name : n.inputs) w.text(1, name);
    for (const std::string_view name : n.outputs) w.text(2, name);
    w.text(3, n.name);
    w.text(4, n.op_type);
    for (const AttributeProto& a : n.attributes) w.message(5, attribute(a));
    if (!n.domain.empty()) w.text(7, n.domain);
    return w;
  }

  ProtobufWriter graph(const GraphProto& g) {
    ProtobufWriter w;
    for (const NodeProto& n : g.nodes) w.message(1, node(n));
    w.text(2, g.name);
    for (const TensorProto& t : g.initializers) w.message(5, tensor(t));
    for (const ValueInfo& info : g.inputs) w.message(11, value_info(info));
    for (const ValueInfo& info : g.outputs) w.message(12, value_info(info));
    return w;
  }

  std::string location_;
  uint64_t offset_ = 0;
  std::vector<const TensorProto*> external_;
};

}  // namespace

fs::path data_file_of(const fs::path& path) {
  fs::path data = path;
  data += ".data";
  return data;
}

bool is_too_large(const ModelProto& model) {
  return ModelWriter("").model(model).size() > kLargestFile;
}

void write_model(const fs::path& path, const ModelProto& model, Placement placement) {
  const fs::path beside = data_file_of(path);
  ModelWriter writer(placement == Placement::external ? beside.filename().string() : "");
  const ProtobufWriter message = writer.model(model);
  BRRR_CHECK(message.size() <= kLargestFile, "{} would have {} bytes", path.string(),
             message.size());
  std::optional<NewFile> data;
  if (!writer.external().empty()) {
    data.emplace(beside);
    for (const TensorProto* t : writer.external()) {
      const uint64_t gap = aligned(data->out().bytes_written()) - data->out().bytes_written();
      data->out().write(std::string(gap, '\0'));
      data->out().write(t->bytes.data(), t->bytes.size());
    }
  }
  NewFile file(path);
  message.write_to([&](std::string_view bytes) { file.out().write(bytes); });
  if (data) data->commit();
  file.commit();
}

std::string model_bytes(const ModelProto& model) {
  ModelWriter writer("");
  return writer.model(model).str();
}

}  // namespace brrr::onnx
