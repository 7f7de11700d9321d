// silero's detector from its weights alone: against plain loops with random weights, and against
// what its ONNX twin gave in ONNX Runtime.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "backend/reference/interpreter.h"
#include "formats/npy.h"
#include "formats/onnx/onnx_file.h"
#include "formats/safetensors.h"
#include "modules/open_module.h"
#include "modules/silero/silero.h"
#include "runtime/runnable_session.h"
#include "support/models_folder.h"
#include "support/silero_frames.h"
#include "support/temp_folder.h"
#include "support/tensors.h"

namespace brrr::test {
namespace {

using Doubles = std::vector<double>;

constexpr int64_t kFilter = 16, kBins = kFilter / 2 + 1, kSamples = 9 * kFilter / 4, kHidden = 6;
constexpr int64_t kEncoder[] = {10, 5, 7, 8};

/// Random weights of a small detector.
struct SmallSilero {
  std::map<std::string, std::pair<Shape, Floats>> tensors;

  SmallSilero() {
    Random random(7);
    const auto add = [&](const std::string& name, const Shape& shape, double scale) {
      Floats values;
      for (int64_t i = 0; i < shape.elements(); ++i)
        values.push_back(static_cast<float>(random.uniform(-scale, scale)));
      tensors[name] = {shape, values};
    };
    add("stft_conv.weight", {2 * kBins, 1, kFilter}, 0.5);
    int64_t in = kBins;
    for (int i = 0; i < 4; ++i) {
      add(fmt::format("conv{}.weight", i + 1), {kEncoder[i], in, 3}, 0.4);
      add(fmt::format("conv{}.bias", i + 1), {kEncoder[i]}, 0.4);
      in = kEncoder[i];
    }
    add("lstm_cell.weight_ih", {4 * kHidden, in}, 0.5);
    add("lstm_cell.weight_hh", {4 * kHidden, kHidden}, 0.5);
    add("lstm_cell.bias_ih", {4 * kHidden}, 0.5);
    add("lstm_cell.bias_hh", {4 * kHidden}, 0.5);
    add("final_conv.weight", {1, kHidden, 1}, 1);
    add("final_conv.bias", {1}, 1);
  }
  const Floats& operator[](const std::string& name) const { return tensors.at(name).second; }
  fs::path write(const fs::path& folder) const {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : tensors)
      views.push_back({name, DType::f32, tensor.first, std::as_bytes(std::span(tensor.second))});
    io::write_safetensors(folder / "detector.safetensors", views);
    return folder / "detector.safetensors";
  }
};

/// x: [in, length] -> [out, ceil(length / stride)], zeros around, ReLU behind.
Doubles layer(const Doubles& x, int64_t length, const Floats& w, const Floats& b, int64_t stride) {
  const auto out = std::ssize(b), in = std::ssize(x) / length, frames = (length - 1) / stride + 1;
  Doubles y;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t t = 0; t < frames; ++t) {
      auto sum = static_cast<double>(b[static_cast<size_t>(o)]);
      for (int64_t i = 0; i < in; ++i)
        for (int64_t k = 0; k < 3; ++k)
          if (const int64_t at = t * stride + k - 1; at >= 0 && at < length)
            sum += static_cast<double>(w[static_cast<size_t>((o * in + i) * 3 + k)]) *
                   x[static_cast<size_t>(i * length + at)];
      y.push_back(std::max(0.0, sum));
    }
  return y;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

/// The probability; hidden and cell become those of the next step.
double detect(const SmallSilero& net, std::span<const float> samples, Doubles& hidden,
              Doubles& cell) {
  Doubles heard(samples.begin(), samples.end());
  for (size_t i = 0; i < kFilter / 4; ++i) heard.push_back(heard[samples.size() - 2 - i]);
  Doubles x;
  for (int64_t bin = 0; bin < kBins; ++bin)
    for (int64_t t = 0; t < 4; ++t) {
      double parts[2] = {0, 0};
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t i = 0; i < kFilter; ++i)
          parts[part] +=
              heard[static_cast<size_t>(t * kFilter / 2 + i)] *
              static_cast<double>(
                  net["stft_conv.weight"][static_cast<size_t>((part * kBins + bin) * kFilter + i)]);
      x.push_back(std::hypot(parts[0], parts[1]));
    }
  int64_t length = 4;
  for (const auto& [number, stride] : {std::pair(1, 1), {2, 2}, {3, 2}, {4, 1}}) {
    x = layer(x, length, net[fmt::format("conv{}.weight", number)],
              net[fmt::format("conv{}.bias", number)], stride);
    length = (length - 1) / stride + 1;
  }
  const auto gate = [&](size_t row) {
    double sum = static_cast<double>(net["lstm_cell.bias_ih"][row]) +
                 static_cast<double>(net["lstm_cell.bias_hh"][row]);
    for (size_t i = 0; i < x.size(); ++i)
      sum += x[i] * static_cast<double>(net["lstm_cell.weight_ih"][row * x.size() + i]);
    for (size_t i = 0; i < kHidden; ++i)
      sum += hidden[i] * static_cast<double>(net["lstm_cell.weight_hh"][row * kHidden + i]);
    return sum;
  };
  Doubles next(kHidden);
  auto logit = static_cast<double>(net["final_conv.bias"][0]);
  for (size_t i = 0; i < kHidden; ++i) {
    cell[i] = logistic(gate(kHidden + i)) * cell[i] +
              logistic(gate(i)) * std::tanh(gate(2 * kHidden + i));
    next[i] = logistic(gate(3 * kHidden + i)) * std::tanh(cell[i]);
    logit += std::max(0.0, next[i]) * static_cast<double>(net["final_conv.weight"][i]);
  }
  hidden = next;
  return logistic(logit);
}

HostTensor tensor_of(const Shape& shape, std::span<const float> values) {
  HostTensor t(DType::f32, shape);
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

class SileroModule : public testing::TestWithParam<bool> {
 protected:
  static Backend backend() { return GetParam() ? cpu::cpu_backend() : reference::backend(); }
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Backends, SileroModule, testing::Bool(),
                         [](const auto& row) { return row.param ? "cpu" : "reference"; });

TEST_P(SileroModule, ComputesWhatPlainLoopsDo) {
  const SmallSilero net;
  constexpr int64_t kRows = 3, kSteps = 4;
  RunnableSession session(modules::open_module(net.write(folder_.path())), backend());
  std::vector<Doubles> hidden(kRows, Doubles(kHidden)), cell = hidden;
  HostTensor state(DType::f32, {2, kRows, kHidden});
  Random random(9);
  for (int64_t step = 0; step < kSteps; ++step) {
    Floats samples;
    for (int64_t i = 0; i < kRows * kSamples; ++i)
      samples.push_back(static_cast<float>(random.uniform(-1, 1)));
    const PortValues out =
        session.run({{"input", tensor_of({kRows, kSamples}, samples)}, {"state", state}});
    state = out.at("stateN").tensor();
    EXPECT_EQ(out.at("output").tensor().shape, (Shape{kRows, 1}));
    for (size_t row = 0; row < kRows; ++row) {
      const double expected =
          detect(net, std::span(samples).subspan(row * kSamples, kSamples), hidden[row], cell[row]);
      EXPECT_NEAR(out.at("output").tensor().number(static_cast<int64_t>(row)), expected, 1e-5);
      for (size_t i = 0; i < kHidden; ++i) {
        const auto at = static_cast<int64_t>(row * kHidden + i);
        EXPECT_NEAR(state.number(at), hidden[row][i], 1e-5);
        EXPECT_NEAR(state.number(kRows * kHidden + at), cell[row][i], 1e-5);
      }
    }
  }
}

TEST_P(SileroModule, RefusesWhatDoesNotFit) {
  SmallSilero net;
  const fs::path path = net.write(folder_.path());
  RunnableSession session(modules::open_module(path), backend());
  const auto run = [&](int64_t rows, int64_t states) {
    return user_error_of([&] {
      session.run({{"input", HostTensor(DType::f32, {rows, kSamples})},
                   {"state", HostTensor(DType::f32, {2, states, kHidden})}});
    });
  };
  EXPECT_NE(run(2, 1).find("[silero] expected the states of 2 rows of samples; got 1"),
            std::string::npos)
      << run(2, 1);
  const auto refusal = [&] {
    net.write(folder_.path());
    return user_error_of([&] { modules::open_silero(path); });
  };
  net.tensors["conv2.bias"] = {{4}, Floats(4)};
  EXPECT_EQ(refusal(),
            path.string() + ": the tensor conv2.bias must be f32[5]; the file has f32[4]");
  net.tensors.erase("conv2.bias");
  EXPECT_NE(refusal().find("conv2.bias"), std::string::npos);
  net.tensors["stft_conv.weight"] = {{8, 1, 6}, Floats(48)};
  EXPECT_EQ(refusal(), path.string() +
                           ": the tensor stft_conv.weight must have filters of a multiple of 4 "
                           "samples; the file has 6");
  net.tensors["stft_conv.weight"] = {{8, 6}, Floats(48)};
  EXPECT_EQ(refusal(),
            path.string() + ": the tensor stft_conv.weight must have 3 axes; the file has [8,6]");
}

TEST(SileroFiles, AreFoundInTheirFolder) {
  const TempFolder folder;
  EXPECT_EQ(modules::silero_file_in(folder.path()), "");
  const SmallSilero net;
  const fs::path path = net.write(folder.path());
  EXPECT_TRUE(modules::is_silero_file(path));
  EXPECT_EQ(modules::silero_file_in(folder.path()), path);
  fs::copy_file(path, folder / "another.safetensors");
  EXPECT_EQ(modules::silero_file_in(folder.path()), "");
  fs::remove(folder / "another.safetensors");
  write_file_atomically(folder / "config.json", "{}");
  EXPECT_EQ(modules::silero_file_in(folder.path()), "");
  write_file_atomically(folder / "text.safetensors", "no tensors");
  EXPECT_FALSE(modules::is_silero_file(folder / "text.safetensors"));
  EXPECT_FALSE(modules::is_silero_file(folder / "absent.safetensors"));
}

/// The probabilities of 100 frames and the last state, against those of a file of goldens.
void expect_heard(const fs::path& file, const Backend& backend, const std::string& golden_name) {
  RunnableSession session(modules::open_module(file), backend);
  constexpr int64_t kState = 128;
  HostTensor state(DType::f32, {2, 1, kState});
  Floats got;
  const auto append = [&](const HostTensor& t) {
    const auto values = t.as<float>();
    got.insert(got.end(), values.begin(), values.end());
  };
  for (const Floats& frame : frames(16000)) {
    const PortValues out =
        session.run({{"input", tensor_of({1, std::ssize(frame)}, frame)}, {"state", state}});
    append(out.at("output").tensor());
    state = out.at("stateN").tensor();
  }
  append(state);
  const HostTensor golden =
      io::read_npy(fs::path(BRRR_SOURCE_DIR) / "tests/golden/onnx" / golden_name);
  const auto expected = golden.as<float>();
  ASSERT_EQ(got.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
  EXPECT_LT(worst, 1e-4f);
  testing::Test::RecordProperty("largest_difference", fmt::format("{:.2g}", worst));
}

#define NEED_FILE(path) \
  if (!fs::exists(path)) GTEST_SKIP() << (path) << " is missing; $BRRR_MODELS names its folder"

// PyTorch's numbers, by tests/golden/make_silero_goldens.py.
TEST_P(SileroModule, PublishedWeightsHearWhatPyTorchHears) {
  const fs::path path = models_folder() / "silero" / "silero_vad_16k.safetensors";
  NEED_FILE(path);
  expect_heard(path, backend(), "silero_vad_16k_safetensors.npy");
}

// The weights of an ONNX file by the names of the .safetensors file give what ONNX Runtime computes
// from the ONNX file. The published .safetensors file holds other weights than the ONNX files.
TEST_P(SileroModule, HearsWhatItsOnnxTwinHears) {
  const fs::path path = models_folder() / "silero" / "silero_vad_16k_op15.onnx";
  NEED_FILE(path);
  const auto twin_file = onnx::File::load(path);
  std::vector<TensorView> tensors;
  for (const auto& [theirs, ours] : {std::pair("stft.forward_basis_buffer", "stft_conv.weight"),
                                     {"encoder.0.reparam_conv.weight", "conv1.weight"},
                                     {"encoder.0.reparam_conv.bias", "conv1.bias"},
                                     {"encoder.1.reparam_conv.weight", "conv2.weight"},
                                     {"encoder.1.reparam_conv.bias", "conv2.bias"},
                                     {"encoder.2.reparam_conv.weight", "conv3.weight"},
                                     {"encoder.2.reparam_conv.bias", "conv3.bias"},
                                     {"encoder.3.reparam_conv.weight", "conv4.weight"},
                                     {"encoder.3.reparam_conv.bias", "conv4.bias"},
                                     {"decoder.rnn.weight_ih", "lstm_cell.weight_ih"},
                                     {"decoder.rnn.weight_hh", "lstm_cell.weight_hh"},
                                     {"decoder.rnn.bias_ih", "lstm_cell.bias_ih"},
                                     {"decoder.rnn.bias_hh", "lstm_cell.bias_hh"},
                                     {"decoder.decoder.2.weight", "final_conv.weight"},
                                     {"decoder.decoder.2.bias", "final_conv.bias"}}) {
    const auto& all = twin_file->graph.initializers;
    const auto tensor =
        std::ranges::find(all, std::string("model.") + theirs, &onnx::TensorProto::name);
    ASSERT_NE(tensor, all.end()) << theirs;
    tensors.push_back({ours, DType::f32, Shape(tensor->dims), tensor->bytes});
  }
  const fs::path twin = folder_ / "twin.safetensors";
  io::write_safetensors(twin, tensors);
  expect_heard(twin, backend(), "silero_vad_16k_op15-16000.npy");
}

}  // namespace
}  // namespace brrr::test
