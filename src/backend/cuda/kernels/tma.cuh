// Copies into shared memory that run on their own from sm_90 on: boxes of a tensor, by the copy
// engine (PTX ISA, "cp.async.bulk.tensor"), and barriers that know when their bytes are there
// ("mbarrier"). One thread asks, nobody computes an address.

#ifdef BRRR_EMULATED
using TensorMap = emulated::TensorMap;
#else
/// What the driver has encoded (cuTensorMapEncodeTiled).
struct __align__(64) TensorMap {
  u64 words[16];
};
#endif

/// The launch fails.
BRRR_DEVICE void stop() {
#ifdef BRRR_EMULATED
  __builtin_trap();
#else
  asm volatile("trap;");
#endif
}

/// In shared memory. A phase ends when as many threads have arrived as were announced and all the
/// bytes that they expect are there; then the next begins. Phases count from 0.
struct Barrier {
  u64 state;

  BRRR_MEMBER void start(int threads) {
#ifdef BRRR_EMULATED
    emulated_context->barrier_start(&state, threads);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(threads)
                 : "memory");
#endif
  }
  BRRR_MEMBER void arrive() {
#ifdef BRRR_EMULATED
    emulated_context->barrier_arrive(&state, 0);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
#endif
  }
  /// Arrives, and this phase has so many bytes more to wait for.
  BRRR_MEMBER void arrive_expecting(int bytes) {
#ifdef BRRR_EMULATED
    emulated_context->barrier_arrive(&state, bytes);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
#endif
  }
  /// Until the phase has ended; it is the present or the last one. Who waits for seconds waits in
  /// vain, and an error is better than a machine that hangs.
  BRRR_MEMBER void wait(u32 phase) {
#ifdef BRRR_EMULATED
    emulated_context->barrier_wait(&state, phase & 1u);
#else
    if (has_ended(phase & 1u)) return;
    const u64 begin = nanoseconds();
    while (!has_ended(phase & 1u))
      if (nanoseconds() - begin > 4000000000ull) stop();
#endif
  }

#ifndef BRRR_EMULATED
  BRRR_METHOD u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  BRRR_MEMBER u32 address() { return static_cast<u32>(__cvta_generic_to_shared(this)); }
  BRRR_MEMBER bool has_ended(u32 parity) {
    u32 done;
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(done)
        : "r"(address()), "r"(parity)
        : "memory");
    return done != 0;
  }
#endif
};
/// After start(), before the block's threads and the copy engine see the barriers; a barrier of
/// the block follows.
BRRR_DEVICE void publish_barriers() {
#ifndef BRRR_EMULATED
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// The box of `map` that begins at these coordinates (elements, the innermost first); zeros
/// outside the tensor. Its bytes are those of the whole box in any case.
BRRR_DEVICE void copy_box(void* shared, const TensorMap& map, Barrier& barrier, int c0, int c1,
                          int c2, int c3) {
#ifdef BRRR_EMULATED
  const int at[4] = {c0, c1, c2, c3};
  emulated_context->copy_box(shared, &map, at, &barrier.state);
#else
  const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier.address()), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
#endif
}
/// A multiple of 16 bytes from one address on.
BRRR_DEVICE void copy_bytes(void* shared, const void* global, int bytes, Barrier& barrier) {
#ifdef BRRR_EMULATED
  emulated_context->copy_bytes(shared, global, bytes, &barrier.state);
#else
  const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(global), "r"(bytes), "r"(barrier.address())
      : "memory");
#endif
}

/// From here on each thread of this group of four warps has n registers. All of the group say so.
template <int n>
BRRR_DEVICE void keep_registers() {
#ifndef BRRR_EMULATED
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}
template <int n>
BRRR_DEVICE void take_registers() {
#ifndef BRRR_EMULATED
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}
