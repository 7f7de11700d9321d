#pragma once
// What tests and the fake driver know of each other.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace brrr::test {

struct FakeLaunch {
  const char* text;  // what the fake compiler was given
  const char* entry;
  unsigned grid[3], block[3];
  int shared_bytes;
};
/// Copies the parameters it needs now and returns what runs the kernel.
using FakeLauncher = std::function<void()> (*)(const FakeLaunch&, void** parameters);

struct FakeCounts {
  int64_t copies_in = 0, copies_out = 0, launches = 0, library_calls = 0, graphs = 0,
          graph_launches = 0, live_blocks = 0, refused_in_captures = 0;
};

/// Of the fake cuBLASLt, which is loaded on its own: dlsym finds fake_matmuls() in it.
struct FakeMatmuls {
  bool finds_nothing = false;         // the heuristic succeeds and knows no algorithm
  std::vector<std::string> refusals;  // what it was asked for and does not do
};

}  // namespace brrr::test

extern "C" {
brrr::test::FakeMatmuls* fake_matmuls();
void fake_set_launcher(brrr::test::FakeLauncher launcher);
/// Of the streams that may go on, the one that was created last does so first, or last.
void fake_set_order(bool last_stream_runs_ahead);
/// Of every GPU described from now on; 0: as many as the model has.
void fake_set_multiprocessors(int count);
/// Whether cuTensorMapEncodeTiled refuses every tensor.
void fake_refuse_tensors(bool refuses);
/// Called when a copy from pinned memory is made.
void fake_on_copy_in(const std::function<void()>& f);
brrr::test::FakeCounts fake_counts();
/// What a library does; null: on the stream that was created first.
void fake_queue(const std::function<void()>& step, void* stream);
bool fake_is_device(const void* p, size_t bytes);
}
