#pragma once
// What a kernel under emulation knows of its thread: shared by the emulator and the code that it
// compiles. No includes.

namespace emulated {

struct Three {
  unsigned x, y, z;
};

/// What copy_box() knows of a tensor: what the fake driver encodes, and the emulator.
struct alignas(64) TensorMap {
  unsigned char* base;
  long long strides[3];  // bytes
  int sizes[4];
  int columns, rows;  // of a box; elements of 2 bytes
  unsigned char unused[128 - 8 - 24 - 24];
};
static_assert(sizeof(TensorMap) == 128, "as the driver's");

struct Context {
  Three thread, block, threads, blocks;
  unsigned char* shared;  // dynamic shared memory of the block
  void (*block_barrier)();
  void (*warp_barrier)();
  /// Leaves up to 64 bytes for the warp and waits; the bytes of lane k are at 64 k.
  const unsigned char* (*exchange)(const void* bytes, int count);
  /// Barriers in shared memory; `bytes` are expected on top of what arrives.
  void (*barrier_start)(unsigned long long* barrier, int threads);
  void (*barrier_arrive)(unsigned long long* barrier, int bytes);
  void (*barrier_wait)(unsigned long long* barrier, unsigned parity);
  void (*copy_box)(void* to, const TensorMap* map, const int (&at)[4], unsigned long long* barrier);
  void (*copy_bytes)(void* to, const void* from, int bytes, unsigned long long* barrier);
  float (*float_from_f16)(unsigned short);
  unsigned short (*f16_from_float)(float);
};

}  // namespace emulated
