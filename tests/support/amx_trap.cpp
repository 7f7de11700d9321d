// AMX for processors without it. Preloaded (LD_PRELOAD) into any program of ours, with
// BRRR_ASSUME_ISA=amx, it catches the illegal-instruction signal of each tile instruction, does
// what Intel's manual says in plain C++ (EmulatedTiles' sums, bit for bit) and goes on behind it.
// So the instructions themselves, their operands, their configuration and its life are tested on
// every x86-64 Linux machine with AVX-512, which AMX includes (tests/amx). What the processor would
// refuse ends the program with a line: a tile instruction without a configuration, palettes and
// shapes that do not exist, products of tiles whose shapes do not fit or which are the same
// register.

#include <signal.h>
#include <sys/ucontext.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/cpu/products/amx_tiles.h"

namespace {

using brrr::cpu::tile_bf16, brrr::cpu::tile_flush, brrr::cpu::tile_fma;

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

/// The tile registers of a thread.
struct Registers {
  bool configured = false;
  int rows[kTiles], row_bytes[kTiles];
  alignas(64) uint8_t data[kTiles][kRows][kRowBytes];
};
thread_local Registers registers;
/// How often each instruction ran, for the line at the end.
std::atomic<uint64_t> loads, stores, products, configurations;

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "amx_trap: %s\n", what);
  std::abort();
}

Registers& configured() {
  if (!registers.configured) refuse("a tile instruction while no tiles are configured (#UD)");
  return registers;
}

/// A register that is configured.
int existing(unsigned tile) {
  if (tile >= kTiles) refuse("tile registers are 0 to 7 (#UD)");
  if (configured().rows[tile] == 0) refuse("a tile that the configuration leaves out (#UD)");
  return static_cast<int>(tile);
}

void configure(const uint8_t* from) {
  if (from[0] == 0) {
    registers.configured = false;
    return;
  }
  if (from[0] != 1) refuse("ldtilecfg: palettes are 0 and 1 (#GP)");
  for (int i = 2; i < 16; ++i)
    if (from[i] != 0) refuse("ldtilecfg: reserved bytes must be zero (#GP)");
  for (int t = 0; t < 16; ++t) {
    uint16_t bytes;
    std::memcpy(&bytes, from + 16 + 2 * t, sizeof(bytes));
    const uint8_t rows = from[48 + t];
    if (t >= kTiles) {
      if (bytes != 0 || rows != 0) refuse("ldtilecfg: more than eight tiles (#GP)");
      continue;
    }
    if (bytes > kRowBytes || rows > kRows) refuse("ldtilecfg: a tile beyond 16 x 64 bytes (#GP)");
    if ((bytes == 0) != (rows == 0))
      refuse("ldtilecfg: rows without bytes, or bytes without (#GP)");
    registers.rows[t] = rows;
    registers.row_bytes[t] = bytes;
  }
  registers.configured = true;
  std::memset(registers.data, 0, sizeof(registers.data));
  configurations.fetch_add(1, std::memory_order_relaxed);
}

void load(unsigned tile, const uint8_t* from, int64_t stride) {
  const int t = existing(tile);
  std::memset(registers.data[t], 0, sizeof(registers.data[t]));
  for (int r = 0; r < registers.rows[t]; ++r)
    std::memcpy(registers.data[t][r], from + r * stride,
                static_cast<size_t>(registers.row_bytes[t]));
  loads.fetch_add(1, std::memory_order_relaxed);
}

void store(unsigned tile, uint8_t* to, int64_t stride) {
  const int t = existing(tile);
  for (int r = 0; r < registers.rows[t]; ++r)
    std::memcpy(to + r * stride, registers.data[t][r], static_cast<size_t>(registers.row_bytes[t]));
  stores.fetch_add(1, std::memory_order_relaxed);
}

struct Product {
  int sum, a, b, rows, columns, groups;  // groups of 4 bytes along the terms
};
Product product(unsigned sum, unsigned a, unsigned b) {
  const Product p{existing(sum),
                  existing(a),
                  existing(b),
                  registers.rows[sum & 7],
                  registers.row_bytes[sum & 7] / 4,
                  registers.row_bytes[a & 7] / 4};
  if (sum == a || sum == b || a == b) refuse("a product needs three different tiles (#UD)");
  if (registers.rows[p.a] != p.rows || registers.row_bytes[p.b] != registers.row_bytes[p.sum] ||
      registers.rows[p.b] != p.groups || registers.row_bytes[p.a] % 4 != 0 ||
      registers.row_bytes[p.sum] % 4 != 0)
    refuse("a product of tiles whose shapes do not fit (#UD)");
  products.fetch_add(1, std::memory_order_relaxed);
  return p;
}

// Where the processor has wider vectors, they do the sums.
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))

WIDE void dot_bf16(unsigned sum_tile, unsigned a_tile, unsigned b_tile) {
  const Product p = product(sum_tile, a_tile, b_tile);
  for (int m = 0; m < p.rows; ++m) {
    float even[16] = {}, odd[16] = {}, sum[16];
    for (int k = 0; k < p.groups; ++k) {
      const uint8_t *a = registers.data[p.a][m], *b = registers.data[p.b][k];
      const float a0 = tile_bf16(a, 2 * k), a1 = tile_bf16(a, 2 * k + 1);
      for (int n = 0; n < p.columns; ++n) {
        even[n] = tile_fma(a0, tile_bf16(b, 2 * n), even[n]);
        odd[n] = tile_fma(a1, tile_bf16(b, 2 * n + 1), odd[n]);
      }
    }
    std::memcpy(sum, registers.data[p.sum][m], sizeof(sum));
    for (int n = 0; n < p.columns; ++n)
      sum[n] = tile_flush(tile_flush(sum[n]) + tile_flush(even[n] + odd[n]));
    std::memset(registers.data[p.sum][m], 0, kRowBytes);
    std::memcpy(registers.data[p.sum][m], sum, static_cast<size_t>(4 * p.columns));
  }
}

/// Whether the numbers of each operand have a sign: tdpbssd, tdpbsud, tdpbusd and tdpbuud.
template <class A, class B>
void dot_int8(unsigned sum_tile, unsigned a_tile, unsigned b_tile) {
  const Product p = product(sum_tile, a_tile, b_tile);
  for (int m = 0; m < p.rows; ++m) {
    int32_t sum[16];
    std::memcpy(sum, registers.data[p.sum][m], sizeof(sum));
    for (int k = 0; k < 4 * p.groups; ++k) {
      const auto a = static_cast<A>(registers.data[p.a][m][k]);
      for (int n = 0; n < p.columns; ++n)
        sum[n] += a * static_cast<B>(registers.data[p.b][k / 4][4 * n + k % 4]);
    }
    std::memcpy(registers.data[p.sum][m], sum, static_cast<size_t>(4 * p.columns));
  }
}

/// The register that the processor numbers `index`.
int64_t general(const greg_t* registers_of, unsigned index) {
  constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                             REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                             REG_R12, REG_R13, REG_R14, REG_R15};
  return registers_of[kPlaces[index]];
}

/// A VEX instruction of three prefix bytes in map 0F38, taken apart.
struct Instruction {
  uint8_t opcode, prefix;           // prefix: 0 none, 1 66, 2 F3, 3 F2
  unsigned mod, reg, rm, vvvv;      // reg and rm with their fourth bits
  int64_t address = 0, stride = 0;  // of memory: base + displacement, and the index
  bool has_index = false;
  int length = 0;
};

/// False for anything else.
bool decode(const uint8_t* at, const greg_t* general_registers, Instruction& out) {
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) return false;
  const unsigned r = (at[1] & 0x80) == 0 ? 8 : 0, x = (at[1] & 0x40) == 0 ? 8 : 0,
                 b = (at[1] & 0x20) == 0 ? 8 : 0;
  out.prefix = at[2] & 3;
  out.vvvv = (~at[2] >> 3) & 15u;
  out.opcode = at[3];
  const uint8_t modrm = at[4];
  out.mod = modrm >> 6;
  out.reg = ((modrm >> 3) & 7u) + r;
  out.rm = (modrm & 7u) + b;
  out.length = 5;
  if (out.mod == 3) return true;
  const uint8_t* rest = at + 5;
  int64_t base = 0;
  bool no_base = false;
  if ((modrm & 7) == 4) {
    const uint8_t sib = *rest++;
    const unsigned index = ((sib >> 3) & 7u) + x, base_register = (sib & 7u) + b;
    out.has_index = true;
    out.stride = index == 4 ? 0 : general(general_registers, index) << (sib >> 6);
    no_base = (sib & 7) == 5 && out.mod == 0;
    if (!no_base) base = general(general_registers, base_register);
  } else if (out.mod == 0 && (modrm & 7) == 5) {
    int32_t relative;
    std::memcpy(&relative, rest, sizeof(relative));
    rest += 4;
    out.length = static_cast<int>(rest - at);
    out.address = reinterpret_cast<int64_t>(at) + out.length + relative;
    return true;
  } else {
    base = general(general_registers, out.rm);
  }
  if (out.mod == 1) {
    base += static_cast<int8_t>(*rest++);
  } else if (out.mod == 2 || no_base) {
    int32_t displacement;
    std::memcpy(&displacement, rest, sizeof(displacement));
    base += displacement;
    rest += 4;
  }
  out.address = base;
  out.length = static_cast<int>(rest - at);
  return true;
}

/// False for what is no tile instruction.
bool perform(const Instruction& i) {
  auto* memory = reinterpret_cast<uint8_t*>(i.address);
  const bool in_memory = i.mod != 3;
  switch (i.opcode) {
    case 0x49:
      if (i.prefix == 0 && in_memory && i.reg == 0) {
        configure(memory);
      } else if (i.prefix == 0 && !in_memory && i.reg == 0 && i.rm == 0) {
        registers.configured = false;  // tilerelease
      } else if (i.prefix == 3 && !in_memory && i.rm == 0) {
        std::memset(registers.data[existing(i.reg)], 0, sizeof(registers.data[0]));
      } else {
        return false;
      }
      return true;
    case 0x4b:
      if (!in_memory || !i.has_index) return false;
      if (i.prefix == 3 || i.prefix == 1) {
        load(i.reg, memory, i.stride);
      } else if (i.prefix == 2) {
        store(i.reg, memory, i.stride);
      } else {
        return false;
      }
      return true;
    case 0x5c:
      if (in_memory || i.prefix != 2) return false;
      dot_bf16(i.reg, i.rm, i.vvvv);
      return true;
    case 0x5e: {
      if (in_memory) return false;
      constexpr void (*kDots[])(unsigned, unsigned, unsigned) = {
          dot_int8<uint8_t, uint8_t>, dot_int8<uint8_t, int8_t>, dot_int8<int8_t, uint8_t>,
          dot_int8<int8_t, int8_t>};
      kDots[i.prefix](i.reg, i.rm, i.vvvv);
      return true;
    }
    default:
      return false;
  }
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  greg_t* const gregs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  if (!decode(reinterpret_cast<const uint8_t*>(gregs[REG_RIP]), gregs, instruction) ||
      !perform(instruction))
    refuse("an illegal instruction that is none of AMX");
  gregs[REG_RIP] += instruction.length;
}

__attribute__((constructor)) void install() {
  struct sigaction action {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

__attribute__((destructor)) void summary() {
  if (std::getenv("AMX_TRAP_COUNT") == nullptr) return;
  std::fprintf(
      stderr, "amx_trap: %llu configurations, %llu loads, %llu stores, %llu tile products\n",
      static_cast<unsigned long long>(configurations.load()),
      static_cast<unsigned long long>(loads.load()), static_cast<unsigned long long>(stores.load()),
      static_cast<unsigned long long>(products.load()));
}

}  // namespace
