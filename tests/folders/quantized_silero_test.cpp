// Published voice detectors with integer weights decide as the originals do.
#include <gtest/gtest.h>

#include "backend/cpu/target.h"
#include "base/temporary_folder.h"
#include "folders/quantized/quantized_onnx.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/models_folder.h"
#include "support/silero_frames.h"

namespace brrr::io {
namespace {

/// The probability of speech in each frame.
std::vector<float> probabilities(const std::shared_ptr<const onnx::File>& file, int64_t rate) {
  RunnableSession session(onnx::open_module(file), cpu::cpu_backend(), {});
  HostTensor state(DType::f32, {2, 1, 128});
  const bool takes_rate = find_port(session.runnable().inputs(), "sr") != nullptr;
  std::vector<float> all;
  for (const test::Floats& frame : test::frames(rate)) {
    PortValues in{{"input", HostTensor::of<float>({1, std::ssize(frame)}, frame)},
                  {"state", state}};
    if (takes_rate) in["sr"] = HostTensor::of<int64_t>({}, {rate});
    const PortValues out = session.run(in);
    all.push_back(static_cast<float>(out.at("output").tensor().number(0)));
    state = out.at("stateN").tensor();
  }
  return all;
}

TEST(QuantizedSilero, DecidesAsTheOriginal) {
  const fs::path folder = test::models_folder() / "silero";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is missing; $BRRR_MODELS names its parent";
  struct Model {
    const char* name;
    int64_t rate;
    size_t weights;
  };
  for (const auto& [name, rate, count] : {Model{"silero_vad", 16000, 12},
                                          {"silero_vad", 8000, 12},
                                          {"silero_vad_half", 16000, 6},
                                          {"silero_vad_16k_op15", 16000, 6},
                                          {"silero_vad_op18_ifless", 8000, 12}}) {
    const fs::path path = folder / (std::string(name) + ".onnx");
    if (!fs::exists(path)) GTEST_SKIP() << path << " is missing";
    const auto file = onnx::File::load(path);
    const auto weights = onnx_weights(*file, 8);
    EXPECT_EQ(weights.size(), count) << name;
    const QuantizedOnnx made(path, 8, 0, weights);
    int64_t before = 0, after = 0;
    for (const auto& w : made.weights()) {
      before += w.plain_bytes;
      after += w.bytes;
    }
    EXPECT_GT(static_cast<double>(before), 3.5 * static_cast<double>(after)) << name;
    const auto plain = probabilities(file, rate);
    const auto quantised = probabilities(onnx::File::parse(made.bytes(), "back"), rate);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i] > 0.5f, quantised[i] > 0.5f) << name << " at " << rate << ", frame " << i;
      EXPECT_NEAR(plain[i], quantised[i], 0.1) << name << " at " << rate << ", frame " << i;
    }
  }
}

}  // namespace
}  // namespace brrr::io
