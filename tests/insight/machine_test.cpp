// Facts about the machine and its measured peaks: present, plausible, and consistent with each
// other.
#include "insight/machine/machine.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "backend/cpu/isa.h"
#include "backend/cpu/peaks_kernels.h"
#include "base/dtype.h"

namespace brrr::insight {
namespace {

TEST(Machine, FactsArePlausible) {
  const Machine m = read_machine();
  EXPECT_FALSE(m.cpu.empty());
  EXPECT_GE(m.processors, m.cores);
  EXPECT_GE(m.cores, m.sockets);
  EXPECT_GE(m.usable, 1);
  EXPECT_LE(m.usable, m.processors);
  EXPECT_GE(m.threads, 1);
  EXPECT_GT(m.memory_bytes, int64_t{64} << 20);
  EXPECT_LE(m.available_bytes, m.memory_bytes);
  EXPECT_LE(m.usable_memory_bytes(), m.memory_bytes);
  EXPECT_EQ(cpu::parse_isa(m.isa), cpu::best_isa());
}

TEST(Machine, NamesTheUnitsForIntegers) {
  Machine m;
  m.features = "avx2 avx_vnni avx512f avx512_vnni amx_tile amx_int8";
  const std::pair<const char*, const char*> cases[] = {{"amx", "AMX int8, AVX-512 VNNI"},
                                                       {"avx512", "AVX-512 VNNI"},
                                                       {"avx2", "AVX-VNNI"},
                                                       {"sse4", ""}};
  for (const auto& [isa, units] : cases) {
    m.isa = isa;
    EXPECT_EQ(integer_units(m), units) << isa;
  }
  m.features = "avx2 fma";
  m.isa = "avx2";
  EXPECT_EQ(integer_units(m), "");
  EXPECT_NE(report(m, {}, std::nullopt, false).find("integer units none for 8 bits"),
            std::string::npos);
}

TEST(Machine, FormatsAgreeWithTheLanguage) {
  const auto formats = number_formats();
  const auto find = [&](const std::string& name) {
    for (const NumberFormat& f : formats)
      if (f.name == name) return f;
    throw std::runtime_error(name);
  };
  EXPECT_EQ(find("f32").largest, FLT_MAX);
  EXPECT_EQ(find("f32").epsilon, FLT_EPSILON);
  EXPECT_EQ(find("f32").smallest_normal, FLT_MIN);
  EXPECT_EQ(find("f32").smallest_denormal, FLT_TRUE_MIN);
  EXPECT_EQ(find("bf16").largest, float_from_bf16(0x7f7f));
  EXPECT_EQ(find("bf16").smallest_denormal, float_from_bf16(1));
  EXPECT_EQ(find("bf16").epsilon, float_from_bf16(0x3f81) - 1);
  EXPECT_EQ(find("f16").largest, float_from_f16(0x7bff));
  EXPECT_EQ(find("f16").smallest_normal, float_from_f16(0x0400));
  EXPECT_EQ(find("f16").smallest_denormal, float_from_f16(1));
  EXPECT_EQ(find("f16").epsilon, float_from_f16(0x3c01) - 1);
  EXPECT_EQ(find("fp8 e4m3").largest, 448);
  EXPECT_EQ(find("fp8 e5m2").largest, 57344);
  EXPECT_EQ(find("fp8 e4m3").smallest_denormal, 0x1p-9);
  EXPECT_EQ(find("int8").largest, 127);
}

TEST(Machine, PeaksArePositiveAndOrdered) {
  const auto peaks = cpu::measure_compute_peaks(0.02);
  ASSERT_FALSE(peaks.empty());
  EXPECT_EQ(peaks[0].type, "f32");
  for (const cpu::ComputePeak& p : peaks) {
    EXPECT_GT(p.ops_per_second, 1e8) << p.instruction;
    EXPECT_LT(p.ops_per_second, 1e16) << p.instruction;
  }
  for (size_t i = 1; i < peaks.size(); ++i)
    EXPECT_TRUE(peaks[i].type != peaks[i - 1].type ||
                peaks[i - 1].ops_per_second >= peaks[i].ops_per_second);
}

TEST(Machine, BandwidthIsPositiveAndBufferBounded) {
  const cpu::Bandwidth b = cpu::measure_bandwidth(1 << 20, 4 << 20, int64_t{256} << 20, 0.01);
  EXPECT_GT(b.read, 1e7);
  EXPECT_GT(b.write, 1e7);
  EXPECT_GT(b.copy, 1e7);
  EXPECT_GT(b.l2_read, 1e7);
  EXPECT_LE(b.buffer_bytes, int64_t{32} << 20);
  // A small limit is kept, too: buffers of caches are then measured.
  const cpu::Bandwidth small = cpu::measure_bandwidth(1 << 20, 4 << 20, int64_t{2} << 20, 0.002);
  EXPECT_LE(small.buffer_bytes, int64_t{256} << 10);
  EXPECT_GT(small.read, 1e7);
  EXPECT_GT(cpu::measure_bandwidth(1 << 20, 4 << 20, 0, 0.002).l2_read, 1e7);
}

// The passes over memory do what they are timed for.
TEST(Machine, MemoryKernelsReadAndWriteEverything) {
  const cpu::MemoryKernels kernels = cpu::memory_kernels();
  constexpr int64_t kBytes = 8192;
  alignas(64) static unsigned char a[kBytes], b[kBytes];
  kernels.write(a, kBytes);
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(a[i], 1) << i;
  for (int64_t i = 0; i < kBytes; ++i) a[i] = static_cast<unsigned char>(i * 31 % 251);
  kernels.copy(b, a, kBytes);
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(a[i], b[i]) << i;
  EXPECT_NE(kernels.read(a, kBytes), 0u);
}

TEST(Machine, ReportsHoldTheFacts) {
  Machine m = read_machine();
  m.memory_bytes = int64_t{8} << 30;
  m.memory_limit_bytes = int64_t{2} << 30;
  Gpus gpus;
  gpus.reason = "no driver";
  Peaks peaks;
  peaks.compute = {{"f32", "f32", "fast", 3e12}, {"f32", "f32", "slow", 1e12}};
  peaks.bandwidth.read = 25e9;
  const auto json = nlohmann::json::parse(report_json(m, gpus, peaks));
  EXPECT_EQ(json["peak_tflops"]["f32"], 3.0);
  EXPECT_EQ(json["bandwidth_gbps"], 25.0);
  EXPECT_EQ(json["gpu"], "no driver");
  EXPECT_EQ(json["memory_limit_bytes"], int64_t{2} << 30);
  EXPECT_EQ(m.usable_memory_bytes(), int64_t{2} << 30);

  const std::string text = report(m, gpus, peaks, false);
  for (const char* part : {"3.000 TFLOP/s", "25.0 GB/s", "no driver", "limited to 2.0 GiB", "bf16"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(report(m, gpus, peaks, false).find("OMP_NUM_THREADS"), std::string::npos);
  ::setenv("OMP_NUM_THREADS", "2", 1);
  EXPECT_NE(report(m, gpus, peaks, false).find("OMP_NUM_THREADS"), std::string::npos);
  ::unsetenv("OMP_NUM_THREADS");

  gpus.devices.push_back({"Some GPU", "9.0", int64_t{80} << 30});
  EXPECT_EQ(nlohmann::json::parse(report_json(m, gpus, std::nullopt))["gpu"][0]["name"],
            "Some GPU");
}

TEST(Machine, GpusComeWithAReasonOrANote) { EXPECT_FALSE(find_gpus().reason.empty()); }

}  // namespace
}  // namespace brrr::insight
