#include "support/cuda_emulator.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"
#include "support/cuda_context.h"
#include "support/ptx_kernels.h"

namespace brrr::test {
namespace {

// -- fibers

constexpr size_t kStack = 256 << 10;
constexpr unsigned kMostThreads = 1024;

#if defined(__x86_64__)
using Saved = void*;
extern "C" void brrr_switch_fiber(void** save, void* load);
asm(R"(
.text
.globl brrr_switch_fiber
.type brrr_switch_fiber,@function
brrr_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size brrr_switch_fiber,.-brrr_switch_fiber
)");
void switch_fiber(Saved& from, Saved& to) { brrr_switch_fiber(&from, to); }
void prepare_fiber(Saved& fiber, std::byte* stack, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(stack + kStack - 16);
  *--top = nullptr;  // nothing is returned to; keeps the alignment that a call gives
  *--top = reinterpret_cast<void*>(entry);
  fiber = top - 6;
}
#else
using Saved = ucontext_t;
void switch_fiber(Saved& from, Saved& to) { ::swapcontext(&from, &to); }
void prepare_fiber(Saved& fiber, std::byte* stack, void (*entry)()) {
  ::getcontext(&fiber);
  fiber.uc_stack.ss_sp = stack;
  fiber.uc_stack.ss_size = kStack;
  fiber.uc_link = nullptr;
  ::makecontext(&fiber, entry, 0);
}
#endif

enum class State { ready, in_block_barrier, in_warp_barrier, at_barrier, done };

/// A barrier in shared memory, in 8 bytes.
struct SharedBarrier {
  uint8_t threads, missing;
  uint16_t phase;
  int32_t bytes;  // that are expected and not there
};
static_assert(sizeof(SharedBarrier) == 8);

struct Block {
  emulated::Context context{};
  unsigned threads = 0, live = 0, waiting = 0;
  unsigned current = 0;
  std::vector<State> state = std::vector<State>(kMostThreads);
  std::vector<Saved> fibers = std::vector<Saved>(kMostThreads);
  unsigned warp_live[32] = {}, warp_waiting[32] = {};
  std::vector<unsigned char> slots = std::vector<unsigned char>(2 * 64 * kMostThreads);
  std::vector<unsigned char> phase = std::vector<unsigned char>(kMostThreads);
  std::byte* stacks = nullptr;
  Saved scheduler{};
  void (*call)(int, void**) = nullptr;
  int kernel = 0;
  void** args = nullptr;
  bool is_stuck = false;
  std::vector<const void*> waits_for = std::vector<const void*>(kMostThreads);  // at_barrier
  std::vector<std::function<void()>> copies;  // that have been asked for, and come late
  uint32_t random = 1;
  bool backwards =
      false;  // from the last thread to the first: a missing barrier shows in one of both

  Block() {
    void* memory = ::mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BRRR_CHECK(memory != MAP_FAILED, "no memory for fibers");
    stacks = static_cast<std::byte*>(memory);
  }
};
Block& block() {
  static Block b;
  return b;
}

void go_to(unsigned thread, Saved& from) {
  Block& b = block();
  b.current = thread;
  b.context.thread = {thread, 0, 0};
  switch_fiber(from, b.fibers[thread]);
}

/// Another thread that can run, or the scheduler: all are done, or none can go on.
void next(Saved& from) {
  Block& b = block();
  for (unsigned k = 1; k <= b.threads; ++k) {
    const unsigned thread = (b.current + (b.backwards ? b.threads - k : k)) % b.threads;
    if (b.state[thread] == State::ready) return go_to(thread, from);
  }
  if (!b.copies.empty()) {                       // nobody can go on without one
    b.random = b.random * 1664525 + 1013904223;  // and they come in any order
    const size_t which = (b.random >> 8) % b.copies.size();
    const auto copy = std::move(b.copies[which]);
    b.copies.erase(b.copies.begin() + static_cast<std::ptrdiff_t>(which));
    copy();
    return next(from);
  }
  b.is_stuck = b.live > 0;
  switch_fiber(from, b.scheduler);
}

void wake(State waiting, unsigned begin, unsigned end) {
  Block& b = block();
  for (unsigned t = begin; t < end; ++t)
    if (b.state[t] == waiting) b.state[t] = State::ready;
}
void wake_block_if_complete() {
  Block& b = block();
  if (b.waiting < b.live || b.waiting == 0) return;
  b.waiting = 0;
  wake(State::in_block_barrier, 0, b.threads);
}
void wake_warp_if_complete(unsigned warp) {
  Block& b = block();
  if (b.warp_waiting[warp] < b.warp_live[warp] || b.warp_waiting[warp] == 0) return;
  b.warp_waiting[warp] = 0;
  wake(State::in_warp_barrier, warp * 32, std::min(warp * 32 + 32, b.threads));
}

void wait_as(State state) {
  Block& b = block();
  const unsigned me = b.current;
  b.state[me] = state;
  if (state == State::in_block_barrier) {
    ++b.waiting;
    wake_block_if_complete();
  } else {
    ++b.warp_waiting[me / 32];
    wake_warp_if_complete(me / 32);
  }
  if (b.state[me] == State::ready) return;
  next(b.fibers[me]);
}
void block_barrier() { wait_as(State::in_block_barrier); }
void warp_barrier() { wait_as(State::in_warp_barrier); }

// -- barriers in shared memory, and copies that they wait for

/// One of the threads that may go on, if there are any.
std::optional<unsigned> end_phase_if_complete(SharedBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes > 0) return std::nullopt;
  BRRR_CHECK(barrier.bytes == 0, "more bytes came than a barrier was told of");
  barrier.phase ^= 1;
  barrier.missing = barrier.threads;
  Block& b = block();
  std::optional<unsigned> woken;
  for (unsigned t = 0; t < b.threads; ++t) {
    if (b.state[t] != State::at_barrier || b.waits_for[t] != &barrier) continue;
    b.state[t] = State::ready;
    woken = t;
  }
  return woken;
}
SharedBarrier& barrier_at(unsigned long long* at) { return *reinterpret_cast<SharedBarrier*>(at); }

void barrier_start(unsigned long long* at, int threads) {
  barrier_at(at) = {static_cast<uint8_t>(threads), static_cast<uint8_t>(threads), 0, 0};
}
void barrier_arrive(unsigned long long* at, int bytes) {
  SharedBarrier& barrier = barrier_at(at);
  BRRR_CHECK(barrier.missing > 0, "more threads arrive than a barrier was told of");
  barrier.bytes += bytes;
  --barrier.missing;
  // Who has waited goes first: what was released too early is overwritten now.
  Block& b = block();
  if (const auto woken = end_phase_if_complete(barrier)) go_to(*woken, b.fibers[b.current]);
}
void barrier_wait(unsigned long long* at, unsigned parity) {
  Block& b = block();
  const SharedBarrier& barrier = barrier_at(at);
  const unsigned me = b.current;
  while (barrier.phase == parity) {
    b.state[me] = State::at_barrier;
    b.waits_for[me] = &barrier;
    next(b.fibers[me]);
  }
}
/// At once, or as late as can be: neither shows in what is right.
void copy_later(unsigned long long* at, int bytes, const std::function<void()>& copy) {
  Block& b = block();
  const auto whole = [=] {
    copy();
    SharedBarrier& barrier = barrier_at(at);
    barrier.bytes -= bytes;
    end_phase_if_complete(barrier);
  };
  if (b.backwards)
    b.copies.emplace_back(whole);
  else
    whole();
}
void copy_box(void* to, const emulated::TensorMap* map, const int (&from)[4],
              unsigned long long* barrier) {
  const emulated::TensorMap m = *map;
  const std::array<int, 4> at{from[0], from[1], from[2], from[3]};
  const int chunks = m.columns / 8;
  copy_later(barrier, m.rows * m.columns * 2, [=] {
    for (int row = 0; row < m.rows; ++row)
      for (int chunk = 0; chunk < chunks; ++chunk) {
        auto* place = static_cast<unsigned char*>(to) + row * 128 + ((chunk ^ row) & 7) * 16;
        const bool is_inside = at[0] + chunk * 8 < m.sizes[0] && at[1] + row < m.sizes[1] &&
                               at[2] < m.sizes[2] && at[3] < m.sizes[3];
        const long long offset = 2LL * (at[0] + chunk * 8) + (at[1] + row) * m.strides[0] +
                                 at[2] * m.strides[1] + at[3] * m.strides[2];
        if (is_inside)
          std::memcpy(place, m.base + offset, 16);
        else
          std::memset(place, 0, 16);
      }
  });
}
void copy_bytes(void* to, const void* from, int bytes, unsigned long long* barrier) {
  BRRR_CHECK(bytes % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(to) % 16 == 0,
             "the copy engine copies 16 bytes at a time");
  copy_later(barrier, bytes, [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

// Two sets of slots, so that one barrier is enough: nobody writes a set before all have read it.
const unsigned char* exchange(const void* bytes, int count) {
  Block& b = block();
  const unsigned me = b.current;
  b.phase[me] ^= 1;
  unsigned char* slots =
      b.slots.data() + (b.phase[me] ? 64 * kMostThreads : 0) + 64 * (me / 32 * 32);
  std::memcpy(slots + 64 * (me % 32), bytes, static_cast<size_t>(count));
  warp_barrier();
  return slots;
}

void thread_main() {
  Block& b = block();
  b.call(b.kernel, b.args);
  const unsigned me = b.current;
  b.state[me] = State::done;
  --b.live;
  --b.warp_live[me / 32];
  wake_block_if_complete();
  wake_warp_if_complete(me / 32);
  next(b.fibers[me]);
}

void run_block() {
  Block& b = block();
  b.live = b.threads;
  b.waiting = 0;
  b.is_stuck = false;
  b.copies.clear();
  for (unsigned w = 0; w < 32; ++w) {
    b.warp_waiting[w] = 0;
    b.warp_live[w] = w * 32 < b.threads ? std::min(32u, b.threads - w * 32) : 0;
  }
  for (unsigned t = 0; t < b.threads; ++t) {
    b.state[t] = State::ready;
    b.phase[t] = 0;
    prepare_fiber(b.fibers[t], b.stacks + t * kStack, thread_main);
  }
  b.backwards = !b.backwards;
  go_to(b.backwards ? b.threads - 1 : 0, b.scheduler);
  BRRR_CHECK(!b.is_stuck, "threads of a block wait for each other in vain");
}

// -- compiled kernels

struct Library {
  void (*call)(int, void**) = nullptr;
};
struct Compiled {
  const Library* library = nullptr;
  int index = 0;
};

class Kernels {
 public:
  void add(const cuda::KernelSource& source) {
    const std::string key = source.text() + "\n" + source.entry;
    if (!known_.contains(key)) waiting_.emplace(key, source);
  }
  const Compiled& find(const cuda::KernelSource& source) {
    const std::string key = source.text() + "\n" + source.entry;
    if (!known_.contains(key)) {
      waiting_.emplace(key, source);
      compile();
    }
    return known_.at(key);
  }
  void compile() {
    std::vector<std::vector<std::string>> files;  // keys of each
    for (const auto& [key, source] : waiting_) {
      if (files.empty() || files.back().size() >= kKernelsOfFile) files.emplace_back();
      files.back().push_back(key);
    }
    std::vector<std::string> paths(files.size()), texts;
    for (const auto& keys : files) texts.push_back(text_of(keys));
    std::atomic<size_t> next{0};
    std::vector<std::thread> compilers;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
      compilers.emplace_back([&] {
        for (size_t k; (k = next++) < files.size();) paths[k] = build(texts[k]);
      });
    for (std::thread& t : compilers) t.join();
    waiting_.clear();
    for (size_t k = 0; k < files.size(); ++k) {
      BRRR_CHECK(!paths[k].empty(), "the host's compiler refuses emulated kernels");
      const Library* library = open(paths[k]);
      for (size_t i = 0; i < files[k].size(); ++i)
        known_[files[k][i]] = {library, static_cast<int>(i)};
    }
  }

 private:
  static constexpr size_t kKernelsOfFile = 32;

  std::string text_of(const std::vector<std::string>& keys) const {
    std::string text = "#include \"" BRRR_SOURCE_DIR "/tests/support/cuda_shim.h\"\nnamespace {\n";
    std::set<std::string> seen;
    for (const std::string& key : keys)
      for (const std::string& header : waiting_.at(key).headers)
        if (seen.insert(header).second) text += cuda::device_header(header);
    std::string calls;
    for (size_t k = 0; k < keys.size(); ++k) {
      const cuda::KernelSource& source = waiting_.at(keys[k]);
      text += fmt::format("namespace k{} {{\n{}}}\n", k, source.body);
      calls +=
          fmt::format("    case {0}: return emulated::call(k{0}::{1}, args);\n", k, source.entry);
    }
    return text +
           "}\nextern \"C\" void brrr_emulated_set(emulated::Context* c) { emulated_context = c; "
           "}\n" +
           "extern \"C\" void brrr_emulated_call(int kernel, void** args) {\n  switch (kernel) "
           "{\n" +
           calls + "  }\n}\n";
  }

  /// The path of the library; empty where the compiler fails.
  static std::string build(const std::string& text) {
    const fs::path folder = BRRR_EMULATOR_DIR;
    create_folder(folder.string());
#if defined(BRRR_SANITIZED)
    const std::string more = " -fsanitize=address";
#else
    const std::string more = "";
#endif
    const std::string options =
        "-std=c++17 -O1 -w -Wno-psabi -fPIC -shared -ffp-contract=off -fno-math-errno "
        "-fno-strict-aliasing "
        "-fsanitize=alignment -fsanitize-undefined-trap-on-error" +
        more;
    const std::string shim = read_file(fs::path(BRRR_SOURCE_DIR) / "tests/support/cuda_shim.h") +
                             read_file(fs::path(BRRR_SOURCE_DIR) / "tests/support/cuda_context.h");
    const std::string name = sha256_hex(options + shim + text).substr(0, 24);
    const fs::path library = folder / (name + ".so"), source = folder / (name + ".cpp");
    if (fs::exists(library)) return library.string();
    write_file_atomically(source, text);
    const std::string part = fmt::format("{}.{}", library.string(), ::getpid());
    const std::string command =
        fmt::format("{} {} -o {} {} -lm", BRRR_HOST_COMPILER, options, part, source.string());
    if (std::system(command.c_str()) != 0) return "";
    fs::rename(part, library);
    return library.string();
  }

  const Library* open(const std::string& path) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    BRRR_CHECK(handle != nullptr, "{}", ::dlerror());
    auto library = std::make_unique<Library>();
    library->call = reinterpret_cast<void (*)(int, void**)>(::dlsym(handle, "brrr_emulated_call"));
    reinterpret_cast<void (*)(emulated::Context*)>(::dlsym(handle, "brrr_emulated_set"))(
        &block().context);
    libraries_.push_back(std::move(library));
    return libraries_.back().get();
  }

  std::map<std::string, cuda::KernelSource> waiting_;
  std::map<std::string, Compiled> known_;
  std::vector<std::unique_ptr<Library>> libraries_;
};
Kernels& kernels() {
  static Kernels k;
  return k;
}

// -- launches

struct Arguments {
  const KernelArgs& args;
  std::vector<std::unique_ptr<std::vector<uint64_t>>> storage;
  std::vector<std::unique_ptr<emulated::TensorMap>> maps;
  uint32_t error = 0;
  std::string message;

  uint64_t word(const cuda::LaunchArg& a) {
    using Kind = cuda::LaunchArg::Kind;
    auto address = [](const void* p, int64_t bytes) {
      return reinterpret_cast<uint64_t>(static_cast<const std::byte*>(p) + bytes);
    };
    switch (a.kind) {
      case Kind::in:
        return address(args.in[a.index], a.value);
      case Kind::out:
        return address(args.out[a.index], a.value);
      case Kind::scratch:
        return address(args.scratch, a.value);
      case Kind::i32:
      case Kind::i64:
        return static_cast<uint64_t>(a.value);
      case Kind::f32: {
        uint64_t bits = 0;
        std::memcpy(&bits, &a.number, sizeof a.number);
        return bits;
      }
      case Kind::error:
        message = a.text;
        return reinterpret_cast<uint64_t>(&error);
      case Kind::record:
      case Kind::tensor:
        break;
    }
    BRRR_CHECK(false, "a record in a record");
    return 0;
  }
  void* add(const cuda::LaunchArg& a) {
    if (a.kind == cuda::LaunchArg::Kind::tensor) {
      maps.push_back(std::make_unique<emulated::TensorMap>());
      emulated::TensorMap& m = *maps.back();
      m.base = reinterpret_cast<unsigned char*>(word(a.fields.front()));
      std::copy(a.boxes.sizes.begin(), a.boxes.sizes.end(), m.sizes);
      std::copy(a.boxes.strides.begin(), a.boxes.strides.end(), m.strides);
      m.columns = cuda::TensorBoxes::kColumns;
      m.rows = static_cast<int>(a.boxes.rows);
      return &m;
    }
    auto words = std::make_unique<std::vector<uint64_t>>();
    if (a.kind == cuda::LaunchArg::Kind::record)
      for (const cuda::LaunchArg& field : a.fields) words->push_back(word(field));
    else
      words->push_back(word(a));
    storage.push_back(std::move(words));
    return storage.back()->data();
  }
};

void run_launch(const cuda::Launch& launch, const KernelArgs& args, int sm) {
  Arguments arguments{args, {}, {}, 0, ""};
  std::vector<void*> pointers;
  int64_t bytes = 0;
  for (const cuda::LaunchArg& a : launch.args) {
    pointers.push_back(arguments.add(a));
    bytes += a.kind == cuda::LaunchArg::Kind::tensor
                 ? static_cast<int64_t>(sizeof(emulated::TensorMap))
                 : 8 * static_cast<int64_t>(arguments.storage.back()->size());
  }
  BRRR_CHECK(bytes <= cuda::kMostArgumentBytes, "{}: {} bytes of arguments", launch.source.entry,
             bytes);
  run_emulated(launch.source, launch.grid, launch.block, launch.shared_bytes, pointers.data(), sm);
  if (arguments.error != 0) throw UserError(arguments.message);
}

class EmulatedKernel final : public Kernel {
 public:
  EmulatedKernel(cuda::LaunchPlan plan, int sm) : plan_(std::move(plan)), sm_(sm) {
    emulate_later(plan_);
  }
  void run(const KernelArgs& args) override { run_emulated(plan_, args, sm_); }
  int64_t scratch_bytes() const override { return plan_.scratch_bytes; }
  bool in_place() const override { return plan_.in_place; }

 private:
  cuda::LaunchPlan plan_;
  int sm_;
};

Emulation& emulation() {
  static Emulation e = [] {
    const char* given = std::getenv("BRRR_EMULATE");
    return given != nullptr && std::string_view(given) == "ptx" ? Emulation::ptx
                                                                : Emulation::host_compiler;
  }();
  return e;
}

}  // namespace

Emulation set_emulation(Emulation e) { return std::exchange(emulation(), e); }

void run_emulated(const cuda::KernelSource& source, cuda::Dim3 grid, cuda::Dim3 threads,
                  int shared_bytes, void** args, int sm) {
  if (emulation() == Emulation::ptx) return run_ptx(source, sm, grid, threads, shared_bytes, args);
  const Compiled& compiled = kernels().find(source);
  Block& b = block();
  BRRR_CHECK(threads.y == 1 && threads.z == 1 && threads.x <= kMostThreads && threads.x % 32 == 0);
  BRRR_CHECK(grid.y <= 65535 && grid.z <= 65535 && grid.x > 0);
  std::vector<unsigned char> shared(static_cast<size_t>(shared_bytes) + 128);
  b.context.shared = shared.data() + (128 - reinterpret_cast<uintptr_t>(shared.data()) % 128);
  b.context.block_barrier = block_barrier;
  b.context.warp_barrier = warp_barrier;
  b.context.exchange = exchange;
  b.context.barrier_start = barrier_start;
  b.context.barrier_arrive = barrier_arrive;
  b.context.barrier_wait = barrier_wait;
  b.context.copy_box = copy_box;
  b.context.copy_bytes = copy_bytes;
  b.context.float_from_f16 = float_from_f16;
  b.context.f16_from_float = f16_from_float;
  b.context.threads = {threads.x, 1, 1};
  b.context.blocks = {grid.x, grid.y, grid.z};
  b.threads = threads.x;
  b.call = compiled.library->call;
  b.kernel = compiled.index;
  b.args = args;
  b.backwards = !b.backwards;
  for (uint32_t z = 0; z < grid.z; ++z)
    for (uint32_t y = 0; y < grid.y; ++y)
      for (uint32_t odd : {1u, 0u})  // any order must do
        for (uint32_t x = odd; x < grid.x; x += 2) {
          b.context.block = {x, y, z};
          std::memset(shared.data(), 0xff, shared.size());
          run_block();
        }
}

void emulate_later(const cuda::LaunchPlan& plan) {
  if (emulation() == Emulation::ptx) return;  // PTX is made one by one
  for (const cuda::Launch& launch : plan.launches) kernels().add(launch.source);
}
void compile_emulated() { kernels().compile(); }
void run_emulated(const cuda::LaunchPlan& plan, const KernelArgs& args, int sm) {
  for (const cuda::Launch& launch : plan.launches) run_launch(launch, args, sm);
}

KernelEntry emulated_entry(const cuda::PlanEntry& entry, const cuda::GpuDescription& gpu) {
  return {entry.op, entry.name, [=](const NodeView& node) { return entry.accepts(node, gpu); },
          [=](const NodeView& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<EmulatedKernel>(entry.plan(node, gpu), gpu.sm);
          }};
}

Backend emulated_backend(const cuda::GpuDescription& gpu) {
  Backend backend;
  backend.name = gpu.name;
  backend.alignment = cuda::LaunchPlan::kAlignment;
  for (const cuda::PlanEntry& entry : cuda::device_kernels())
    backend.kernels.push_back(emulated_entry(entry, gpu));
  return backend;
}

}  // namespace brrr::test
