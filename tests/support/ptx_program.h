#pragma once
// PTX, the text that the CUDA toolkit's compiler makes of a kernel, parsed and decoded once so that
// it can be run many times (ptx_machine.h). Whatever is not understood is refused with its line.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::test::ptx {

// As the types of PTX are called.
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

/// What the machine or the parser refuses: the message names the lines of the text.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

/// Generic addresses: memory of the host as it is, and windows that no host address falls into.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 56, kLocalWindow = uint64_t{2} << 56,
                          kParamWindow = uint64_t{3} << 56, kWindows = uint64_t{0xff} << 56;

/// Where the 32 lanes of a value lie: in the warp's registers, or among the program's constants.
/// Predicates are 4 bytes, a bit to a lane; the others 2, 4 or 8 bytes to a lane.
struct Value {
  static constexpr uint32_t kConstant = 1u << 31, kNone = ~0u;
  uint32_t at = kNone;
  bool is_there() const { return at != kNone; }
};

class Machine;
struct Warp;
struct Instruction;
using Handler = void (*)(Machine&, Warp&, const Instruction&, uint32_t lanes);

struct Instruction {
  Handler run = nullptr;
  Value a[5];               // the destination first, where there is one
  uint32_t list = 0;        // the values of vectors: from here on in Program::lists
  uint32_t count = 0;       // so many
  uint32_t number[4] = {};  // what modifiers say
  int64_t offset = 0;       // of an address
  uint32_t guard = Value::kNone;
  bool guard_is_negated = false;
  bool is_aligned = false;    // .aligned: all lanes of the warp or none
  uint32_t used_bytes = ~0u;  // of those that a lane loads: a bit to a byte
  uint32_t target = 0;        // of a branch
  uint32_t line = 0;
  // Registers that are read and written: parts of Program::registers_of, in units of 64 bytes.
  uint32_t first_read = 0, reads = 0, writes = 0;
};

struct Param {
  std::string name;
  uint32_t offset = 0, bytes = 0, alignment = 1;
};

struct Program {
  std::string entry;
  std::vector<std::string> lines;
  std::vector<Instruction> code;
  std::vector<Value> lists;
  std::vector<uint32_t> registers_of;
  std::vector<uint64_t> constants;  // as bytes
  std::vector<Param> params;
  uint32_t param_bytes = 0, register_bytes = 0, local_bytes = 0;
  uint32_t static_shared_bytes = 0;  // from kFirstShared on
  uint32_t dynamic_shared = 0;       // where it begins
  uint32_t most_threads = 1024;
  bool has_wgmma = false;
  std::vector<std::unique_ptr<std::byte[]>> globals;
  // Registers that hold what a thread is, of 4 bytes a lane.
  std::map<std::string, uint32_t, std::less<>> special;

  /// "line 12: add.s32 ..."
  std::string at(uint32_t line) const;
};
/// What lies before belongs to the system.
inline constexpr uint32_t kFirstShared = 1024;

/// The kernel `entry` of a module. Error: anything that is not understood.
std::unique_ptr<Program> parse(std::string_view text, std::string_view entry);

// -- for those who decode instructions

struct Operand {
  enum class Kind { name, number, address, list, pair, sink };
  Kind kind = Kind::name;
  std::string name;  // of a register or a variable; of an address too, where it has one
  bool is_negated = false;
  uint64_t bits = 0;           // of a number
  int float_bits = 0;          // 32 or 64: `bits` are a float's
  int64_t offset = 0;          // of an address
  std::vector<Operand> items;  // of a list, a pair, or the coordinates behind an address
};
struct Statement {
  std::string opcode;
  std::vector<std::string> parts;  // of the opcode, apart by dots
  std::vector<Operand> operands;
  uint32_t line = 0;
  bool has(std::string_view part) const;
  bool is(std::string_view first, std::string_view second = {}) const;
};

/// Gives operands their places.
class Decoder {
 public:
  virtual ~Decoder() = default;
  Instruction* now = nullptr;
  Program* program = nullptr;

  /// `bits`: 1 (a predicate), 16, 32 or 64: a register of another size is refused.
  virtual Value source(const Operand& o, int bits) = 0;
  virtual Value destination(const Operand& o, int bits) = 0;
  /// Of a register; 0: it is no register.
  virtual int bits_of(const Operand& o) const = 0;
  /// The address' base as 64 or 32 bits (bits_of); its offset goes to now->offset.
  virtual Value address(const Operand& o) = 0;
  /// The memory that a named variable lies in: 's'hared, 'l'ocal, 'p'aram, 'g'lobal; 0: no
  /// variable.
  virtual char space_of(const Operand& o) const = 0;
  [[noreturn]] virtual void refuse(const std::string& why) const = 0;
  Value literal(uint64_t bits, int width);
  void add_to_list(Value v);
};

/// Each decodes the instructions that it knows and returns false for the others.
bool decode_arithmetic(Decoder& d, const Statement& s);
bool decode_predicates(Decoder& d, const Statement& s);
bool decode_conversion(Decoder& d, const Statement& s);
bool decode_memory(Decoder& d, const Statement& s);
bool decode_control(Decoder& d, const Statement& s);
bool decode_matrix(Decoder& d, const Statement& s);
bool decode_async(Decoder& d, const Statement& s);

}  // namespace brrr::test::ptx
