// How long collectives take among the ranks of this machine, and whether the alpha-beta model
// (machine/link.h), fitted on few ranks, predicts more: processes sum and gather tensors of several
// sizes through shared memory, as training does.
//
//   micro_ranks [--fit 2,4] [--predict 8] [--reps N] [--rounds N]
//               [--kib 64] [--mib 64]
//       Tensors of so many KiB, then eight times as many, up to so many MiB.
//       Table in Markdown: the shortest of the repetitions in several rounds, because other work on
//       the machine only adds to it; of each repetition the slowest rank's.

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "machine/link.h"
#include "ops/ops.h"
#include "ops/ranks/collectives.h"
#include "runtime/ranks/collectives.h"
#include "runtime/ranks/division.h"

namespace brrr {
namespace {

struct Settings {
  std::vector<int> fit{2, 4}, predict{8};
  int reps = 9, rounds = 5;
  int64_t kib = 64, mib = 64;
};

struct Sample {
  Op op;
  int64_t elements = 0;
  machine::LinkSample of_link;
};

/// The graph of one collective, and its kernel's memory.
struct Collective {
  Graph graph;
  NodeId node = kNoNode;
  std::vector<float> in, out;
  std::unique_ptr<Kernel> kernel;

  Collective(Op op, int64_t elements, int ranks, const Backend& backend) {
    const bool gathers = op == Op::all_gather;
    const int64_t given = gathers ? shard_elements(elements, ranks) : elements;
    const Value x = graph.input("x", Shape{given}, DType::f32, Role::data);
    const Value y = op == Op::all_reduce       ? all_reduce(std::span(&x, 1), ranks)[0]
                    : op == Op::reduce_scatter ? reduce_scatter(std::span(&x, 1), ranks)[0]
                                               : all_gather(x, Shape{elements}, ranks, false);
    node = y.id.node;
    in.assign(static_cast<size_t>(given), 1.0f);
    out.resize(static_cast<size_t>(y.shape().elements()));
    for (const KernelEntry& entry : backend.kernels)
      if (entry.op == op) kernel = entry.prepare(NodeView(graph, node));
  }

  double run() {
    const void* from[] = {in.data()};
    void* to[] = {out.data()};
    const Stopwatch watch;
    kernel->run({from, to, nullptr});
    kernel->finish();
    return watch.seconds();
  }
};

const char* name_of_op(Op op) {
  return op == Op::all_reduce       ? "all_reduce"
         : op == Op::reduce_scatter ? "reduce_scatter"
                                    : "all_gather";
}

/// In one of the processes; the first one writes the seconds into `samples`.
void measure(int rank, int ranks, const Settings& settings, std::span<Sample> samples) {
  const RankPlace place{rank, ranks, rank, ranks, "micro_ranks", std::to_string(::getppid())};
  const auto communicator =
      std::make_shared<Communicator>([&] { return open_transport(place, {.kind = "shm"}); });
  Backend backend = cpu::cpu_backend();
  add_collectives(backend, ranks, communicator);
  for (Sample& sample : samples) {
    Collective collective(sample.op, sample.elements, ranks, backend);
    std::vector<double> seconds;
    for (int i = 0; i < settings.reps + 2; ++i) {
      communicator->barrier();
      const std::vector<double> of_ranks = communicator->gather_values(collective.run());
      if (i >= 2) seconds.push_back(*std::ranges::max_element(of_ranks));
    }
    if (rank > 0) continue;
    const Sent sent = sent_by(collective.graph, collective.node, 0);
    sample.of_link = {ranks, static_cast<double>(sent.bytes), static_cast<double>(sent.exchanges),
                      *std::ranges::min_element(seconds)};
  }
}

std::vector<Sample> measured(int ranks, const Settings& settings) {
  std::vector<Sample> list;
  for (const Op op : {Op::all_reduce, Op::reduce_scatter, Op::all_gather})
    for (int64_t kib = settings.kib; kib <= settings.mib * 1024; kib *= 8)
      list.push_back({op, kib * 256, {}});
  const size_t bytes = list.size() * sizeof(Sample);
  void* const shared =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BRRR_CHECK(shared != MAP_FAILED, "no shared memory");
  std::memcpy(shared, list.data(), bytes);
  const std::span<Sample> samples(static_cast<Sample*>(shared), list.size());
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank)
    if (const pid_t child = ::fork(); child != 0)
      children.push_back(child);
    else {
      try {
        measure(rank, ranks, settings, samples);
      } catch (const std::exception& e) {
        fmt::print(stderr, "rank {}: {}\n", rank, e.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
  bool is_good = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    is_good &= status == 0;
  }
  if (!is_good) user_error("{} ranks did not end well", ranks);
  std::memcpy(static_cast<void*>(list.data()), shared, bytes);
  ::munmap(shared, bytes);
  return list;
}

/// The best of several rounds, in which the numbers of ranks alternate.
std::vector<Sample> best_of_rounds(const std::vector<int>& numbers, const Settings& settings) {
  std::vector<Sample> best;
  for (int round = 0; round < settings.rounds; ++round) {
    size_t at = 0;
    for (const int ranks : numbers)
      for (const Sample& s : measured(ranks, settings)) {
        if (round == 0) best.push_back(s);
        best[at].of_link.seconds = std::min(best[at].of_link.seconds, s.of_link.seconds);
        ++at;
      }
  }
  return best;
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> list;
  for (size_t at = 0; at < text.size();) {
    list.push_back(std::stoi(text.substr(at)));
    at = std::min(text.find(',', at), text.size() - 1) + 1;
  }
  return list;
}

int run(const Settings& settings) {
  std::vector<int> ranks_of = settings.fit;
  ranks_of.insert(ranks_of.end(), settings.predict.begin(), settings.predict.end());
  const std::vector<Sample> samples = best_of_rounds(ranks_of, settings);
  std::vector<machine::LinkSample> fitted;
  for (const Sample& s : samples)
    if (std::ranges::count(settings.fit, s.of_link.ranks) > 0) fitted.push_back(s.of_link);
  const machine::Link link = machine::fit_link(fitted, true);
  fmt::print("link: {:.2f}GB/s,{:.1f}us, shared\n\n", 1e-9 * link.bytes_per_second,
             1e6 * link.latency_seconds);
  fmt::print(
      "| ranks | collective | KiB | sent KiB | exchanges | measured ms | model ms | off |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (const Sample& s : samples) {
    const machine::LinkSample& l = s.of_link;
    const double model = link.seconds(l.ranks, l.bytes, l.exchanges);
    fmt::print("| {} | {} | {} | {:.0f} | {:.0f} | {:.3f} | {:.3f} | {:+.0f}% |\n", l.ranks,
               name_of_op(s.op), s.elements / 256, l.bytes / 1024, l.exchanges, 1e3 * l.seconds,
               1e3 * model, 100 * (model / l.seconds - 1));
  }
  for (const int ranks : settings.predict) {
    double taken = 0, model = 0;
    for (const Sample& s : samples)
      if (s.of_link.ranks == ranks) {
        taken += s.of_link.seconds;
        model += link.seconds(ranks, s.of_link.bytes, s.of_link.exchanges);
      }
    fmt::print("\nall collectives of {} ranks: measured {:.1f} ms, model {:.1f} ms, {:+.0f}%\n",
               ranks, 1e3 * taken, 1e3 * model, 100 * (model / taken - 1));
  }
  return 0;
}

}  // namespace
}  // namespace brrr

int main(int count, char** words) {
  try {
    brrr::Settings settings;
    for (int i = 1; i + 1 < count; i += 2) {
      const std::string option = words[i], value = words[i + 1];
      if (option == "--fit") settings.fit = brrr::numbers(value);
      if (option == "--predict") settings.predict = brrr::numbers(value);
      if (option == "--reps") settings.reps = std::stoi(value);
      if (option == "--rounds") settings.rounds = std::stoi(value);
      if (option == "--kib") settings.kib = std::stoi(value);
      if (option == "--mib") settings.mib = std::stoi(value);
    }
    return brrr::run(settings);
  } catch (const std::exception& e) {
    fmt::print(stderr, "micro_ranks: {}\n", e.what());
    return 1;
  }
}
