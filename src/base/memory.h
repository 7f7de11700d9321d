#pragma once
// Amounts of memory: parsing and printing, the limit of this process, and its current use.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace brrr {

/// Parses "6GiB" or "6G" (2^30), "6GB" (10^9), "1.5 TiB", "800000kB", "123456789B" into bytes; case
/// and a space before the unit do not matter. Throws UserError (exit 2), which says what is
/// expected, also for a number without a unit, for 0 and for amounts above 2^62.
int64_t parse_memory(std::string_view text);

/// "5.82 GiB", "412.3 MiB", "12.0 KiB", "64 B": powers of 1024.
std::string memory_text(int64_t bytes);

/// An amount to suggest for an option: `needed` rounded up to 1/100 GiB, or to a MiB below 1 GiB,
/// as "6.05GiB" or "412MiB". parse_memory() of it is at least `needed`.
std::string memory_at_least(int64_t needed);

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // "memory available on this machine", "control group limit of 2.00 GiB"
};
/// The memory that this process can have resident: its current memory and what is free or can be
/// reclaimed, on the machine and in every control group (versions 1 and 2) that it is in. Returns
/// nothing if the system does not say. `root` is "/" except in tests.
std::optional<MemoryLimit> usable_memory(const std::filesystem::path& root = "/");
/// Installed memory, or 0 when unknown.
int64_t installed_memory(const std::filesystem::path& root = "/");
/// The lowest limit of the control groups of this process, if one is below the installed memory.
std::optional<int64_t> control_group_memory_limit(const std::filesystem::path& root = "/");

/// Resident memory of this process, from /proc/self; zeros if unknown.
struct ResidentMemory {
  int64_t anonymous = 0;  // heap, stacks, arenas
  int64_t code = 0;       // pages of the program and its libraries
  int64_t inputs = 0;     // pages of other mapped files, which the system can reclaim
  int64_t peak = 0;       // maximum of the sum since the start
  /// The part of `code` that belongs to the file with Brrr's own code (the program, or the library
  /// where Brrr is one), and the bytes of that file that are mapped.
  int64_t program = 0, program_mapped = 0;
  int64_t total() const { return anonymous + code + inputs; }
  /// What the system cannot reclaim while the process runs.
  int64_t needed() const { return anonymous + code; }
};
ResidentMemory resident_memory();
/// The peak resident memory of this program in bytes; 0 if unknown. Unlike resident_memory() it
/// does not read all mappings, and unlike ru_maxrss of getrusage(2) it is reset by exec.
int64_t peak_resident_bytes();

}  // namespace brrr
