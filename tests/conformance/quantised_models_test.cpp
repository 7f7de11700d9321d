// Published files with weights of 8 bits against ONNX Runtime, where they are on this machine:
// tests/golden/make_quantised_goldens.py writes what is expected.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/target.h"
#include "formats/safetensors.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/models_folder.h"

namespace brrr::test {
namespace {

// Two runtimes that quantise what lies on either side of a half differ by steps of 1/255 of the
// range: of outputs that are up to 20, this much.
constexpr double kStep = 0.1;

io::SafetensorsFile quantised_goldens() {
  return io::SafetensorsFile(fs::path(BRRR_SOURCE_DIR) /
                             "tests/golden/quantised_models.safetensors");
}

std::vector<double> numbers_of(const io::TensorView& t) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < t.shape.elements(); ++i)
    numbers.push_back(load_as_double(t.dtype, t.bytes.data(), i));
  return numbers;
}

HostTensor integers(const io::TensorView& t) {
  HostTensor ids(DType::i64, t.shape);
  std::ranges::transform(numbers_of(t), ids.as<int64_t>().begin(),
                         [](double x) { return static_cast<int64_t>(x); });
  return ids;
}

/// The largest of every row; of one column, whether it is positive.
std::vector<int64_t> decisions(const std::vector<double>& x, int64_t width) {
  std::vector<int64_t> all;
  for (auto at = x.begin(); at != x.end(); at += width)
    all.push_back(width == 1 ? static_cast<int64_t>(*at > 0)
                             : std::max_element(at, at + width) - at);
  return all;
}

class Taggers : public testing::TestWithParam<const char*> {};

TEST_P(Taggers, DecideAsOnnxRuntimeDoes) {
  const std::string name = GetParam();
  const fs::path path = models_folder() / "tashkeel" / (name + ".int8.onnx");
  if (!fs::exists(path)) GTEST_SKIP() << path << " is missing; see $BRRR_MODELS";
  const io::SafetensorsFile goldens = quantised_goldens();
  RunnableSession session(onnx::open_module(path), cpu::cpu_backend());
  const HostTensor ids = integers(goldens.get(name + "/ids"));
  const PortValues outputs = session.run({{session.runnable().inputs()[0].name, ids}});
  for (const auto& [port, value] : outputs) {
    SCOPED_TRACE(port);
    const HostTensor& t = value.tensor();
    const io::TensorView& wanted = goldens.get(name + "/" + port);
    ASSERT_EQ(t.shape, wanted.shape);
    std::vector<double> got;
    for (int64_t i = 0; i < t.shape.elements(); ++i)
      got.push_back(load_as_double(t.dtype, t.bytes.data(), i));
    const std::vector<double> expected = numbers_of(wanted);
    if (!is_float(t.dtype)) {
      EXPECT_EQ(got, expected);
      continue;
    }
    double largest = 0;
    for (size_t i = 0; i < got.size(); ++i)
      largest = std::max(largest, std::fabs(got[i] - expected[i]));
    EXPECT_LT(largest, kStep);
    const int64_t width = t.shape.rank() == 3 ? t.shape.size(2) : 1;
    EXPECT_EQ(decisions(got, width), decisions(expected, width));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Taggers,
                         testing::Values("bilstm", "rawi", "rawi_v2", "rawi_v3", "rawi_ensemble"),
                         [](const auto& of) { return std::string(of.param); });

/// The mean over the tokens that count: of every sentence, a row.
std::vector<std::vector<double>> means_of(const HostTensor& hidden, const HostTensor& mask) {
  const int64_t length = hidden.shape.size(1), width = hidden.shape.size(2);
  std::vector<std::vector<double>> means;
  for (int64_t s = 0; s < hidden.shape.size(0); ++s) {
    std::vector<double> mean(static_cast<size_t>(width));
    double count = 0;
    for (int64_t t = 0; t < length; ++t) {
      if (mask.as<int64_t>()[static_cast<size_t>(s * length + t)] == 0) continue;
      ++count;
      for (int64_t k = 0; k < width; ++k)
        mean[static_cast<size_t>(k)] += static_cast<double>(
            hidden.as<float>()[static_cast<size_t>((s * length + t) * width + k)]);
    }
    for (double& x : mean) x /= count;
    means.push_back(std::move(mean));
  }
  return means;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

size_t nearest(const std::vector<std::vector<double>>& rows, size_t to) {
  size_t best = to == 0 ? 1 : 0;
  for (size_t i = 0; i < rows.size(); ++i)
    if (i != to && cosine(rows[i], rows[to]) > cosine(rows[best], rows[to])) best = i;
  return best;
}

TEST(QuantisedMiniLm, SentencesHaveTheNeighboursThatOnnxRuntimeFinds) {
  const fs::path path = models_folder() / "minilm-int8/model.onnx";
  if (!fs::exists(path)) GTEST_SKIP() << path << " is missing; see $BRRR_MODELS";
  const io::SafetensorsFile goldens = quantised_goldens();
  const HostTensor ids = integers(goldens.get("minilm/ids")),
                   mask = integers(goldens.get("minilm/mask"));
  RunnableSession session(onnx::open_module(path), cpu::cpu_backend());
  const PortValues outputs = session.run({{"input_ids", ids},
                                          {"attention_mask", mask},
                                          {"token_type_ids", HostTensor(i64, ids.shape)}});
  const auto means = means_of(outputs.at("last_hidden_state").tensor(), mask);
  const std::vector<double> flat = numbers_of(goldens.get("minilm/means"));
  for (size_t s = 0; s < means.size(); ++s) {
    const auto first = flat.begin() + static_cast<int64_t>(s * means[s].size());
    const std::vector<double> expected(first, first + std::ssize(means[s]));
    EXPECT_GT(cosine(means[s], expected), 0.999) << "sentence " << s;
    EXPECT_EQ(nearest(means, s), s ^ 1) << "sentence " << s;
  }
}

}  // namespace
}  // namespace brrr::test
