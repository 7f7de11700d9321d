// ONNX's backend suite, the cases of an operator and the models that PyTorch exported, where the
// suite is on this machine. Two lists are committed: what passes, which may only grow, and what is
// refused, with the reason. BRRR_UPDATE=1 writes both anew; BRRR_ONNX_CASES=conv runs the cases
// with that in their name and prints what is wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "backend/cpu/target.h"
#include "base/errors.h"
#include "conformance/onnx_suite.h"
#include "modules/onnx/onnx_module.h"
#include "runtime/runnable_session.h"
#include "support/long_proof.h"
#include "support/models_folder.h"

namespace brrr::test {
namespace {

using Kind = SuiteResult::Kind;

const fs::path kLists = fs::path(BRRR_SOURCE_DIR) / "tests/conformance";
constexpr const char* kParts[] = {"node", "pytorch-converted", "pytorch-operator", "simple"};
// One in so many of the cases that pass runs in CI.
constexpr size_t kSampled = 8;

std::vector<std::string> cases_in(const fs::path& suite) {
  std::vector<std::string> cases;
  for (const char* part : kParts)
    for (const auto& entry : fs::directory_iterator(suite / part))
      if (fs::exists(entry.path() / "model.onnx"))
        cases.push_back(fmt::format("{}/{}", part, entry.path().filename().string()));
  std::ranges::sort(cases);
  return cases;
}

std::set<std::string> lines_of(const fs::path& path) {
  std::set<std::string> lines;
  if (!fs::exists(path)) return lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);)
    if (!line.empty() && line[0] != '#') lines.insert(line.substr(0, line.find('\t')));
  return lines;
}

// Without the folder, and what differs from run to run.
std::string reason_text(std::string reason, const fs::path& suite) {
  for (size_t at = 0; (at = reason.find(suite.string(), at)) != std::string::npos;)
    reason.erase(at, suite.string().size() + 1);
  std::ranges::replace(reason, '\n', ' ');
  const size_t model = reason.find("model.onnx: ");
  return model == std::string::npos ? reason : reason.substr(model + 12);
}

TEST(OnnxSuite, CasesPass) {
  const fs::path suite = models_folder() / "onnx-suite";
  if (!fs::exists(suite / "node"))
    GTEST_SKIP() << suite << " is missing; $BRRR_MODELS names the folder that holds it";
  const char* filter = std::getenv("BRRR_ONNX_CASES");
  const bool updates = std::getenv("BRRR_UPDATE") != nullptr;
  const std::set<std::string> passes = lines_of(kLists / "onnx_passes.txt");
  std::map<std::string, SuiteResult> results;
  size_t counted = 0;
  for (const std::string& name : cases_in(suite)) {
    const bool chosen = filter != nullptr      ? name.find(filter) != std::string::npos
                        : updates || is_long() ? true
                                               : passes.contains(name) && counted++ % kSampled == 0;
    if (!chosen) continue;
    const SuiteResult result = run_suite_case(suite / name);
    if (filter != nullptr && result.kind != Kind::passed)
      printf("%s\t%s\n", name.c_str(), reason_text(result.reason, suite).c_str());
    results[name] = result;
  }
  std::map<Kind, size_t> counts;
  for (const auto& [name, result] : results) {
    ++counts[result.kind];
    EXPECT_TRUE(result.kind == Kind::passed || !passes.contains(name))
        << name << " passed before: " << result.reason;
    EXPECT_NE(result.kind, Kind::wrong) << name << ": " << result.reason;
  }
  printf("%zu passed, %zu wrong, %zu refused, %zu failed\n", counts[Kind::passed],
         counts[Kind::wrong], counts[Kind::refused], counts[Kind::failed]);
  if (!updates || filter != nullptr) return;
  std::string passed, refused;
  for (const auto& [name, result] : results) {
    if (result.kind == Kind::passed)
      passed += name + '\n';
    else
      refused += fmt::format("{}\t{}\n", name, reason_text(result.reason, suite));
  }
  write_file_atomically(kLists / "onnx_passes.txt", passed);
  write_file_atomically(kLists / "onnx_refusals.txt", refused);
}

// Image classifiers whose weights are constants, on the input that the suite's own runner gives
// them.
TEST(OnnxSuite, LightModelsGiveWhatIsExpected) {
  const fs::path folder = models_folder() / "onnx-suite" / "light";
  if (!fs::exists(folder))
    GTEST_SKIP() << folder << " is missing; $BRRR_MODELS names the folder that holds it";
  constexpr double kTolerance = 1e-4;
  size_t ran = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path file = entry.path();
    const std::string name = file.stem().string();
    if (file.extension() != ".onnx") continue;
    if (!is_long() && name != "light_squeezenet" && name != "light_densenet121") continue;
    SCOPED_TRACE(name);
    RunnableSession session(onnx::open_module(file), cpu::cpu_backend());
    const Port& input = session.runnable().inputs()[0];
    std::vector<int64_t> sizes;
    for (const PortDim& d : input.dims) sizes.push_back(d.size < 0 ? 1 : d.size);
    const int64_t n = Shape(sizes).elements();
    std::vector<float> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      values[static_cast<size_t>(i)] =
          static_cast<float>(static_cast<double>(i) / static_cast<double>(n));
    const PortValues outputs = session.run({{input.name, HostTensor::of<float>(sizes, values)}});
    const HostTensor& given = outputs.begin()->second.tensor();
    const std::string bytes = read_file(folder / (name + "_output_0.pb"));
    const onnx::TensorProto expected = onnx::parse_tensor(bytes, name);
    ASSERT_EQ(given.bytes.size(), expected.bytes.size());
    for (int64_t i = 0; i < given.shape.elements(); ++i)
      ASSERT_NEAR(given.number(i), load_as_double(DType::f32, expected.bytes.data(), i),
                  kTolerance);
    ++ran;
  }
  EXPECT_GE(ran, 2u);
}

// What is read can be written, but for what needs data or an operator that the opset lacks, and
// means the same when it is read again.
TEST(OnnxSuite, CasesAreWrittenAgain) {
  const fs::path suite = models_folder() / "onnx-suite";
  if (!fs::exists(suite / "node"))
    GTEST_SKIP() << suite << " is missing; $BRRR_MODELS names the folder that holds it";
  constexpr int64_t kOpsets[] = {23, 17, 21, 18};
  const char* filter = std::getenv("BRRR_ONNX_CASES");
  std::map<Kind, size_t> counts;
  size_t counted = 0, written = 0;
  for (const std::string& name : lines_of(kLists / "onnx_passes.txt")) {
    const size_t index = counted++;
    if (filter != nullptr ? name.find(filter) == std::string::npos
                          : !is_long() && index % kSampled != 0)
      continue;
    const SuiteResult result = run_suite_case(suite / name, kOpsets[index % std::size(kOpsets)]);
    ++counts[result.kind];
    ++written;
    if (filter != nullptr && result.kind != Kind::passed)
      printf("%s\t%s\n", name.c_str(), reason_text(result.reason, suite).c_str());
    EXPECT_NE(result.kind, Kind::wrong) << name << ": " << result.reason;
    // What cannot be written says so.
    EXPECT_TRUE(result.kind != Kind::failed ||
                result.reason.find("cannot be written with opset") != std::string::npos)
        << name << ": " << result.reason;
  }
  printf("%zu the same, %zu wrong, %zu need data, %zu cannot be written\n", counts[Kind::passed],
         counts[Kind::wrong], counts[Kind::refused], counts[Kind::failed]);
  EXPECT_TRUE(filter != nullptr || counts[Kind::passed] > written * 3 / 4);
}

}  // namespace
}  // namespace brrr::test
