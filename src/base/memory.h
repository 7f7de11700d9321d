#pragma once
// Amounts of memory: as people write them, what this process may use, what it uses now.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace brrr {

/// Bytes of "6GiB" or "6G" (2^30), "6GB" (10^9), "1.5 TiB", "800000kB", "123456789B"; any case,
/// a space before the unit or none. A number alone has no meaning. Throws UserError (exit 2) that
/// says what is expected, for 0 and for what 62 bits do not hold, too.
int64_t parse_memory(std::string_view text);

/// "5.82 GiB", "412.3 MiB", "12.0 KiB", "64 B": powers of 1024.
std::string memory_text(int64_t bytes);

/// What of `needed` bytes is asked for when it is typed again: rounded up to 1/100 GiB, or to a MiB
/// below 1 GiB; "6.05GiB", "412MiB". parse_memory() of it is at least `needed`.
std::string memory_at_least(int64_t needed);

struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // "memory available on this machine", "control group limit of 2.00 GiB"
};
/// The most that this process may come to have resident: what it has now and what is free or can be
/// reclaimed, of the machine and of every control group (versions 1 and 2) that it is in. Nothing
/// when the system does not say. `root` is "/" but in tests.
std::optional<MemoryLimit> usable_memory(const std::filesystem::path& root = "/");
/// Installed memory, or 0 when unknown.
int64_t installed_memory(const std::filesystem::path& root = "/");
/// The least limit of the control groups of this process, if any is below the installed memory.
std::optional<int64_t> control_group_memory_limit(const std::filesystem::path& root = "/");

/// Resident memory of this process, by /proc/self; zeros when unknown.
struct ResidentMemory {
  int64_t anonymous = 0;  // its own: heap, stacks, arenas
  int64_t code = 0;       // pages of the program and its libraries
  int64_t inputs = 0;     // pages of other mapped files: the system takes them back when it must
  int64_t peak = 0;       // of the sum, since the start
  int64_t total() const { return anonymous + code + inputs; }
  /// What the process cannot do without.
  int64_t needed() const { return anonymous + code; }
};
ResidentMemory resident_memory();
/// The peak resident memory of this program in bytes; 0 when unknown. Unlike resident_memory() it
/// does not walk all mappings, and unlike ru_maxrss of getrusage(2) it starts anew with exec.
int64_t peak_resident_bytes();

}  // namespace brrr
