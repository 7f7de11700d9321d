#pragma once
// What a kernel under emulation knows of its thread: shared by the emulator and the code that it
// compiles. No includes.

namespace emulated {

struct Three {
  unsigned x, y, z;
};

struct Context {
  Three thread, block, threads, blocks;
  unsigned char* shared;  // dynamic shared memory of the block
  void (*block_barrier)();
  void (*warp_barrier)();
  /// Leaves up to 64 bytes for the warp and waits; the bytes of lane k are at 64 k.
  const unsigned char* (*exchange)(const void* bytes, int count);
  float (*float_from_f16)(unsigned short);
  unsigned short (*f16_from_float)(float);
};

}  // namespace emulated
