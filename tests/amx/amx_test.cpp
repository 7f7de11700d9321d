// What multiplies AMX's tiles, run with the instructions themselves on a machine without them: the
// tests of other binaries once more, under tests/support/amx_trap.cpp. A machine that has AMX runs
// them as they are.

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "backend/cpu/isa.h"
#include "support/long_proof.h"

namespace brrr {
namespace {

/// `sample`: the tests that run without --long.
struct Part {
  const char *name, *binary, *filter, *sample;
};

std::string run_under_trap(const Part& part, int& status) {
  const std::string command =
      std::string("LD_PRELOAD=" BRRR_AMX_TRAP " BRRR_ASSUME_ISA=amx AMX_TRAP_COUNT=1 ") +
      BRRR_TESTS "/" + part.binary + " --gtest_color=no --gtest_filter='" +
      (test::is_long() ? part.filter : part.sample) + "' 2>&1 </dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) {
    status = -1;
    return "popen failed";
  }
  std::string output;
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.append(buffer.data(), n);
  status = ::pclose(pipe);
  return output;
}

class Amx : public testing::TestWithParam<Part> {};

TEST_P(Amx, PassesUnderTheTrap) {
  if (cpu::machine_isa() >= cpu::Isa::kAmx) GTEST_SKIP() << "this machine has amx";
  // amx includes the levels below it.
  if (cpu::machine_isa() < cpu::Isa::kAvx512) GTEST_SKIP() << "this machine has no avx512";
  int status = 0;
  const std::string output = run_under_trap(GetParam(), status);
  EXPECT_EQ(status, 0) << output;
  EXPECT_NE(output.find("[  PASSED  ]"), std::string::npos) << output;
  // The trap counts what it did, in each process: somebody has multiplied.
  bool multiplied = false;
  constexpr std::string_view kMark = " tile products";
  for (size_t at = 0; (at = output.find(kMark, at)) != std::string::npos; at += kMark.size())
    multiplied |= at > 1 && !(output[at - 1] == '0' && output[at - 2] == ' ');
  EXPECT_TRUE(multiplied) << output;
}

INSTANTIATE_TEST_SUITE_P(
    All, Amx,
    testing::Values(Part{"instructions", "test_backend", "AmxTiles.*", "AmxTiles.*"},
                    Part{"products", "test_backend", "*GemmPaths*/amx", "*GemmPaths*/amx"},
                    Part{"integers", "test_backend", "*IntegerStrips*/amx", "*IntegerStrips*/amx"},
                    Part{"convolutions", "test_backend", "*PackedConvs*/amx", "*PackedConvs*/amx"},
                    Part{"rows", "test_backend", "*RowIndependence*/amx", "*RowIndependence*/amx"},
                    Part{"attention", "test_backend", "Isa/AttentionKernels.*/amx",
                         "Isa/AttentionKernels.SixteenBits/amx"},
                    Part{"training", "test_train", "*", "WeightsInPanels.*:Sessions.Accumulated*"},
                    Part{"generation", "test_infer", "*", "*WeightPanels.TextsAreTheSame*"}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace brrr
