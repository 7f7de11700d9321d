#include "backend/cpu/isa.h"

#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <dnnl.hpp>
#include <string>

#include "base/env.h"
#include "base/errors.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace brrr::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kSse4, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};
/// Set by limit_isa().
std::atomic<Isa> current_limit{Isa::kAmx};

constexpr std::string_view kNames[] = {"portable", "sse4", "avx2", "avx512", "amx"};

/// Highway's targets up to a level. Other architectures (NEON, ...) have one level: portable.
int64_t highway_targets(Isa isa) {
  int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86
  if (isa >= Isa::kSse4) targets |= HWY_SSSE3 | HWY_SSE4;
  if (isa >= Isa::kAvx2) targets |= HWY_AVX2;
  if (isa >= Isa::kAvx512) targets |= HWY_AVX3 | HWY_AVX3_DL;
#endif
  return targets;
}

#if defined(__x86_64__) && defined(__linux__)
/// AMX needs the processor's three bits (tile, bf16, int8) and Linux's permission to use the 8 KB
/// of tile state, which a process has to ask for.
bool amx_available() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kNeeded = kBf16 | kTiles | kInt8;
  if ((d & kNeeded) != kNeeded) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool amx_available() { return false; }
#endif

#if defined(__x86_64__)
bool detect_bf16_pairs() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  return (a & (1u << 5)) != 0 && machine_isa() >= Isa::kAvx512;
}
bool detect_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (c & (1u << 11)) != 0 && machine_isa() >= Isa::kAvx512;
}
bool made_by_amd() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAuth = 0x68747541;  // the first four letters of AuthenticAMD
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == kAuth;
}
#else
bool detect_bf16_pairs() { return false; }
bool detect_vnni() { return false; }
bool made_by_amd() { return false; }
#endif

Isa detect() {
  if (const auto assumed = env::get("BRRR_ASSUME_ISA")) {
    return parse_isa(*assumed, "BRRR_ASSUME_ISA");
  }
  const int64_t targets = hwy::SupportedTargets();
  Isa isa = Isa::kPortable;
  for (const Isa level : {Isa::kSse4, Isa::kAvx2, Isa::kAvx512}) {
    // A level counts when the machine has a target that the level before it lacks.
    const int64_t added = highway_targets(level) & ~highway_targets(isa) & ~int64_t{HWY_SSSE3};
    if ((targets & added) == 0) return isa;
    isa = level;
  }
  return amx_available() ? Isa::kAmx : isa;
}

dnnl::cpu_isa onednn_isa(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
    case Isa::kSse4:
      return dnnl::cpu_isa::sse41;
    case Isa::kAvx2:
      return dnnl::cpu_isa::avx2;
    case Isa::kAvx512:
      return dnnl::cpu_isa::avx512_core_bf16;
    case Isa::kAmx:
      break;
  }
  return dnnl::cpu_isa::all;
}

Isa choose() {
  const Isa machine = machine_isa();
  const auto wanted = env::get("BRRR_ISA");
  if (!wanted) return machine;
  const Isa isa = std::min(machine, parse_isa(*wanted));
  if (isa == machine) return machine;
  limit_isa(isa);
  const dnnl::status status = dnnl::set_max_cpu_isa(onednn_isa(isa));
  BRRR_CHECK(status == dnnl::status::success || status == dnnl::status::unimplemented,
             "oneDNN was used before best_isa(), so it cannot be limited to {} any more",
             isa_name(isa));
  return isa;
}

}  // namespace

std::span<const Isa> all_isas() { return kAll; }

std::string_view isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

Isa parse_isa(std::string_view name, std::string_view variable) {
  for (const Isa isa : kAll) {
    if (name == isa_name(isa)) return isa;
  }
  user_error("{}: expected portable, sse4, avx2, avx512 or amx, got '{}'", variable, name);
}

Isa machine_isa() {
  static const Isa isa = detect();
  return isa;
}

Isa best_isa() {
  static const Isa isa = choose();
  return isa;
}

Isa current_isa() { return std::min(best_isa(), current_limit.load(std::memory_order_relaxed)); }

bool has_bf16_pairs() {
  static const bool has = detect_bf16_pairs();
  return has;
}

bool has_vnni() {
  static const bool has = detect_vnni();
  return has;
}

bool has_fast_bf16_pairs() {
  static const bool fast = has_bf16_pairs() && made_by_amd();
  return fast;
}

void limit_isa(Isa isa) {
  const Isa limit = std::min(isa, machine_isa());
  current_limit = limit;
  hwy::SetSupportedTargetsForTest(0);  // else the next call would intersect with an earlier limit
  const int64_t targets = hwy::SupportedTargets() & highway_targets(limit);
  hwy::SetSupportedTargetsForTest(targets == 0 ? HWY_STATIC_TARGET : targets);
}

}  // namespace brrr::cpu
