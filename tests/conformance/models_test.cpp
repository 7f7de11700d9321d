// ONNX files against ONNX Runtime: layers of recurrent networks, and published models where they
// are on this machine. tests/golden/make_onnx_goldens.py writes what is expected, and makes the
// same inputs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "conformance/onnx_suite.h"
#include "formats/npy.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/models_folder.h"
#include "support/silero_frames.h"

namespace brrr::test {
namespace {

constexpr int64_t kState = 128;
constexpr double kModelTolerance = 1e-4;

HostTensor tensor(Shape shape, const Floats& values) {
  HostTensor t(DType::f32, std::move(shape));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

void append(Floats& to, const HostTensor& t) {
  const size_t at = to.size();
  to.resize(at + t.bytes.size() / sizeof(float));
  std::memcpy(to.data() + at, t.bytes.data(), t.bytes.size());
}

/// The largest difference, as a share of 1 and of what is wanted.
void expect_golden(const Floats& got, const std::string& name) {
  const HostTensor golden =
      io::read_npy(fs::path(BRRR_SOURCE_DIR) / "tests/golden/onnx" / (name + ".npy"));
  ASSERT_EQ(got.size() * sizeof(float), golden.bytes.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double wanted = load_as_double(DType::f32, golden.bytes.data(), static_cast<int64_t>(i));
    const double off = std::fabs(static_cast<double>(got[i]) - wanted) / (1 + std::fabs(wanted));
    worst = std::isnan(off) ? INFINITY : std::max(worst, off);
  }
  EXPECT_LT(worst, kModelTolerance);
}

#define OPEN_OR_SKIP(session, file)                                                              \
  const fs::path path_of_model = models_folder() / (file);                                       \
  if (!fs::exists(path_of_model))                                                                \
    GTEST_SKIP() << path_of_model << " is missing; $BRRR_MODELS names the folder that holds it"; \
  RunnableSession session(onnx::open_module(path_of_model), cpu::cpu_backend())

TEST(OnnxModels, RecurrentLayers) {
  size_t cases = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(BRRR_SOURCE_DIR) / "tests/golden/onnx/recurrent")) {
    const SuiteResult result = run_suite_case(entry.path());
    EXPECT_EQ(result.kind, SuiteResult::Kind::passed) << entry.path() << ": " << result.reason;
    ++cases;
  }
  EXPECT_EQ(cases, 10u);
}

struct Silero {
  const char* name;
  int64_t rate;
};

class SileroFile : public testing::TestWithParam<Silero> {};

TEST_P(SileroFile, HearsWhatOnnxRuntimeHears) {
  const auto [name, rate] = GetParam();
  OPEN_OR_SKIP(session, fmt::format("silero/{}.onnx", name));
  HostTensor state(DType::f32, {2, 1, kState}), sr(DType::i64, {});
  std::memcpy(sr.bytes.data(), &rate, sizeof(rate));
  Floats got;
  for (const Floats& frame : frames(rate)) {
    PortValues in{{"input", tensor({1, std::ssize(frame)}, frame)}, {"state", state}};
    if (std::ranges::find(session.runnable().inputs(), "sr", &Port::name) !=
        session.runnable().inputs().end())
      in["sr"] = sr;
    const PortValues out = session.run(in);
    append(got, out.at("output").tensor());
    state = out.at("stateN").tensor();
  }
  append(got, state);
  expect_golden(got, fmt::format("{}-{}", name, rate));
}

INSTANTIATE_TEST_SUITE_P(
    Models, SileroFile,
    testing::Values(Silero{"silero_vad", 16000}, Silero{"silero_vad", 8000},
                    Silero{"silero_vad_16k_op15", 16000}, Silero{"silero_vad_half", 16000},
                    Silero{"silero_vad_op18_ifless", 16000}, Silero{"silero_vad_op18_ifless", 8000},
                    Silero{"silero_vad_openvino_16k", 16000}),
    [](const auto& param) { return fmt::format("{}_{}", param.param.name, param.param.rate); });

TEST(OnnxModels, SileroHearsManyFramesAtOnce) {
  OPEN_OR_SKIP(session, "silero/silero_vad_16k_sequence.onnx");
  Floats all;
  for (const Floats& frame : frames(16000)) all.insert(all.end(), frame.begin(), frame.end());
  const HostTensor zero(DType::f32, {1, 1, kState});
  const PortValues out =
      session.run({{"input", tensor({kFrames, 576}, all)}, {"h", zero}, {"c", zero}});
  Floats got;
  for (const char* name : {"speech_probs", "hn", "cn"}) append(got, out.at(name).tensor());
  expect_golden(got, "silero_vad_16k_sequence");
}

TEST(OnnxModels, MagikaKnowsKindsOfFiles) {
  OPEN_OR_SKIP(session, "magika/standard_v3_3/model.onnx");
  constexpr int64_t kTokens = 2048;
  HostTensor bytes(DType::i32, {2, kTokens});
  const std::vector<int64_t> random = noise(2 * kTokens, 3);
  for (int64_t i = 0; i < 2 * kTokens; ++i) {
    const bool is_padding = i >= kTokens / 2 && i < kTokens;
    const auto token =
        static_cast<int32_t>(is_padding ? 256 : random[static_cast<size_t>(i)] % 257);
    std::memcpy(bytes.bytes.data() + i * 4, &token, 4);
  }
  const PortValues out = session.run({{"bytes", bytes}});
  Floats got;
  append(got, out.at("target_label").tensor());
  expect_golden(got, "magika");
}

HostTensor picture(int64_t height, int64_t width) {
  Floats pixels;
  for (const int64_t n : noise(3 * height * width, 5))
    pixels.push_back(static_cast<float>(static_cast<double>(n) / (1 << 14) - 1));
  return tensor({1, 3, height, width}, pixels);
}

TEST(OnnxModels, PicturesOfAnySize) {
  OPEN_OR_SKIP(turned, "ppocr/ch_ppocr_mobile_v2.0_cls_infer.onnx");
  RunnableSession reads(onnx::open_module(models_folder() / "ppocr/ch_PP-OCRv4_rec_infer.onnx"),
                        cpu::cpu_backend());
  Floats got;
  for (const auto& [height, width] : {std::pair(48, 192), {48, 100}, {64, 27}, {97, 131}, {33, 33}})
    append(got, turned.run({{"x", picture(height, width)}}).begin()->second.tensor());
  for (const int64_t width : {96, 160, 200, 320, 437}) {
    const PortValues out = reads.run({{"x", picture(48, width)}});
    const HostTensor& characters = out.begin()->second.tensor();
    const int64_t count = characters.shape.size(2);
    for (int64_t row = 0; row < characters.shape.size(1); ++row) {
      double most = 0;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, characters.number(row * count + i));
      got.push_back(static_cast<float>(most));
    }
  }
  expect_golden(got, "ppocr");
}

}  // namespace
}  // namespace brrr::test
