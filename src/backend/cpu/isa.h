#pragma once
// Which instruction set the CPU backend uses: the best that the processor and the operating system
// offer, limited by BRRR_ISA. The choice is made once per process, at the first best_isa(), and
// applied to Highway's dispatch and to oneDNN; so call best_isa() before either is first used.

#include <span>
#include <string_view>

namespace brrr::cpu {

/// Ordered: each level includes the ones before it.
enum class Isa { kPortable, kSse4, kAvx2, kAvx512, kAmx };

/// All levels, lowest first.
std::span<const Isa> all_isas();

/// "portable", "sse4", "avx2", "avx512", "amx": the spelling of BRRR_ISA.
std::string_view isa_name(Isa isa);

/// The inverse of isa_name; UserError, which names the environment variable, for anything else.
Isa parse_isa(std::string_view name, std::string_view variable = "BRRR_ISA");

/// What this processor and operating system offer (or are assumed to: BRRR_ASSUME_ISA), whatever
/// BRRR_ISA says.
Isa machine_isa();

/// min(machine_isa(), BRRR_ISA). UserError when either variable is not a known name. Any thread.
Isa best_isa();

/// best_isa(), or the lower level of the last limit_isa(): what kernels may use now. Any thread.
Isa current_isa();

/// Whether there is VDPBF16PS (avx512_bf16).
bool has_bf16_pairs();

/// Whether it is worth using: it multiplies twice as many terms per cycle as an
/// f32 multiply-add on AMD's processors (Zen 4 and later), but only half as many on Intel's.
bool has_fast_bf16_pairs();

/// Whether there is VPDPBUSD of 512 bits (avx512_vnni).
bool has_vnni();

/// For tests and benchmarks: from now on Highway dispatches to at most `isa` (and machine_isa()).
/// oneDNN keeps the level it started with. Not while kernels run.
void limit_isa(Isa isa);

}  // namespace brrr::cpu
