#include "modules/silero/silero.h"

#include <array>

#include "formats/safetensors.h"
#include "ops/ops.h"
#include "ops/recurrent.h"

namespace brrr::modules {
namespace {

constexpr std::array<const char*, 3> kNames = {"stft_conv.weight", "lstm_cell.weight_hh",
                                               "final_conv.weight"};
constexpr int64_t kLayers = 4, kKernel = 3;
constexpr std::array<int64_t, kLayers> kStrides = {1, 2, 2, 1};  // 4 frames become 1

/// The sizes of a detector. 16 kHz: a filter of 256 samples, 64 samples of context in front of 512.
struct SileroSizes {
  int64_t filter = 0;                       // W, samples of a Fourier transform
  std::array<int64_t, kLayers> channels{};  // of the encoder's layers
  int64_t hidden = 0;                       // H

  int64_t bins() const { return filter / 2 + 1; }
  int64_t hop() const { return filter / 2; }
  int64_t padding() const { return filter / 4; }
  /// Samples of a call: a quarter of a filter of context, then two filters.
  int64_t samples() const { return 9 * filter / 4; }
};

class SileroTensors {
 public:
  explicit SileroTensors(const io::SafetensorsFile& file) : file_(file) {}

  SileroSizes sizes() const {
    SileroSizes s;
    s.filter = axis("stft_conv.weight", 2, 3);
    constexpr int64_t kLeast = 4;
    if (s.filter < kLeast || s.filter % 4 != 0)
      user_error(
          "{}: the tensor stft_conv.weight must have filters of a multiple of 4 samples; "
          "the file has {}",
          file_.what(), s.filter);
    expect("stft_conv.weight", {2 * s.bins(), 1, s.filter});
    int64_t in = s.bins();
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string name = fmt::format("conv{}", i + 1);
      int64_t& out = s.channels[static_cast<size_t>(i)];
      out = axis(name + ".weight", 0, 3);
      expect(name + ".weight", {out, in, kKernel});
      expect(name + ".bias", {out});
      in = out;
    }
    s.hidden = axis("lstm_cell.weight_hh", 1, 2);
    const int64_t gates = 4 * s.hidden;
    expect("lstm_cell.weight_hh", {gates, s.hidden});
    expect("lstm_cell.weight_ih", {gates, in});
    expect("lstm_cell.bias_ih", {gates});
    expect("lstm_cell.bias_hh", {gates});
    expect("final_conv.weight", {1, s.hidden, 1});
    expect("final_conv.bias", {1});
    return s;
  }

 private:
  int64_t axis(const std::string& name, int axis, int rank) const {
    const Shape& shape = file_.get(name).shape;
    if (shape.rank() != rank)
      user_error("{}: the tensor {} must have {} axes; the file has {}", file_.what(), name, rank,
                 shape.str());
    return shape.size(axis);
  }
  void expect(const std::string& name, const Shape& shape) const {
    const io::TensorView& tensor = file_.get(name);
    if (tensor.shape != shape || tensor.dtype != DType::f32)
      user_error("{}: the tensor {} must be {}; the file has {}", file_.what(), name,
                 Type{DType::f32, shape}.str(), Type{tensor.dtype, tensor.shape}.str());
  }

  const io::SafetensorsFile& file_;
};

class SileroGraph {
 public:
  SileroGraph(const SileroSizes& sizes, int64_t batch) : s_(sizes), batch_(batch) {}

  Graph build() {
    const Value input = g_.input("input", {batch_, s_.samples()}, DType::f32);
    const Value state = g_.input("state", {2, batch_, s_.hidden}, DType::f32);
    const auto [hidden, cell] = step(encoded(magnitudes(input)), state);
    const Value weight = reshape(parameter("final_conv.weight", {1, s_.hidden, 1}), {1, s_.hidden});
    const Value logit =
        matmul(relu(hidden), weight, false, true) + parameter("final_conv.bias", {1});
    const Shape part{1, batch_, s_.hidden};
    g_.output("output", sigmoid(logit));
    g_.output("stateN", concat(std::vector{reshape(hidden, part), reshape(cell, part)}, 0));
    return std::move(g_);
  }

 private:
  Value parameter(const std::string& name, const Shape& shape) {
    return g_.input(name, shape, DType::f32, Role::parameter);
  }

  /// x: [B, samples]. Returns [B, bins, 4]: absolute values of the short-time Fourier transform,
  /// whose end is reflected.
  Value magnitudes(Value x) {
    const int64_t n = s_.samples(), padding = s_.padding(), bins = s_.bins();
    const Value ids = full(g_, {padding}, n - 2, DType::i32) - iota(g_, {padding}, 0);
    const Value longer = concat(std::vector{x, gather(x, ids, 1)}, 1);
    const Value filters = parameter("stft_conv.weight", {2 * bins, 1, s_.filter});
    const Value spectrum = conv(reshape(longer, {batch_, 1, n + padding}), filters, std::nullopt,
                                {{s_.hop()}, {1}, {0, 0}}, 1);
    return sqrt(square(slice(spectrum, 1, 0, bins)) + square(slice(spectrum, 1, bins, bins)));
  }

  /// x: [B, bins, 4]. Returns [B, channels].
  Value encoded(Value x) {
    int64_t in = s_.bins();
    for (size_t i = 0; i < s_.channels.size(); ++i) {
      const int64_t out = s_.channels[i];
      const std::string name = fmt::format("conv{}", i + 1);
      const Value weight = parameter(name + ".weight", {out, in, kKernel}),
                  bias = parameter(name + ".bias", {out});
      x = relu(conv(x, weight, bias, {{kStrides[i]}, {1}, {1, 1}}, 1));
      in = out;
    }
    return reshape(x, {batch_, in});
  }

  /// One step of an LSTM. x: [B, channels], state: [2, B, H]. Returns hidden and cell, [B, H].
  std::pair<Value, Value> step(Value x, Value state) {
    const int64_t h = s_.hidden;
    const auto vector = [&](const char* name) { return parameter(name, {4 * h}); };
    const auto part = [&](int64_t i) { return reshape(slice(state, 0, i, 1), {batch_, h}); };
    const Value weight_ih = parameter("lstm_cell.weight_ih", {4 * h, s_.channels.back()});
    const Value weight_hh = parameter("lstm_cell.weight_hh", {4 * h, h});
    const Value bias = vector("lstm_cell.bias_ih") + vector("lstm_cell.bias_hh");
    const Value gates = matmul(x, weight_ih, false, true) + bias;
    const LstmResults r = lstm(reshape(gates, {1, batch_, 4 * h}), weight_hh, part(0), part(1));
    return {r.hidden, r.cell};
  }

  const SileroSizes& s_;
  int64_t batch_;
  Graph g_;
};

}  // namespace

bool is_silero_file(const fs::path& path) {
  std::error_code ignored;
  if (path.extension() != ".safetensors" || !fs::is_regular_file(path, ignored)) return false;
  try {
    const io::SafetensorsFile file(path);
    for (const char* name : kNames)
      if (file.find(name) == nullptr) return false;
    return true;
  } catch (const UserError&) {
    return false;  // whoever opens it says what is wrong
  }
}

fs::path silero_file_in(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "config.json", ignored)) return {};
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (!is_silero_file(entry.path())) continue;
    if (!found.empty()) return {};
    found = entry.path();
  }
  return found;
}

std::shared_ptr<const Runnable> open_silero(const fs::path& path) {
  const auto file = std::make_shared<const io::SafetensorsFile>(path);
  const SileroSizes sizes = SileroTensors(*file).sizes();
  const Dim batch = Dim::symbol("batch");
  GraphMaker maker;
  maker.inputs = {port_of("input", {DType::f32, {batch, Dim(sizes.samples())}}),
                  port_of("state", {DType::f32, {Dim(2), batch, Dim(sizes.hidden)}})};
  maker.outputs = {port_of("output", {DType::f32, {batch, Dim(1)}}),
                   port_of("stateN", {DType::f32, {Dim(2), batch, Dim(sizes.hidden)}})};
  maker.graph = [sizes](const std::map<std::string, Type>& inputs) {
    const int64_t rows = inputs.at("input").shape.size(0),
                  states = inputs.at("state").shape.size(1);
    if (rows != states || rows == 0)
      user_error("[silero] expected the states of {} rows of samples; got {}", rows, states);
    return SileroGraph(sizes, rows).build();
  };
  maker.weights = file;
  maker.summary = "silero voice activity detector, safetensors";
  return make_runnable(std::move(maker));
}

}  // namespace brrr::modules
