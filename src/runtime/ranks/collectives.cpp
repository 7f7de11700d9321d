#include "runtime/ranks/collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/threads/work_spans.h"
#include "ops/op.h"
#include "runtime/ranks/division.h"

namespace brrr {
namespace {

/// Elements that are summed at a time.
constexpr int64_t kSummed = 512;

/// Maximum number of exchanges of a sum in flight.
constexpr int64_t kInFlight = 2;

void sum_block(std::span<const float* const> parts, int64_t n, float* y) {
  const size_t count = parts.size();
  if (count == 1) {
    if (parts[0] != y) std::copy_n(parts[0], n, y);
    return;
  }
  const size_t left = std::bit_floor(count - 1);
  float a[kSummed], b[kSummed];
  const float* l = parts[0];
  const float* r = parts[left];
  if (left > 1) sum_block(parts.first(left), n, a), l = a;
  if (count - left > 1) sum_block(parts.subspan(left), n, b), r = b;
  for (int64_t i = 0; i < n; ++i) y[i] = l[i] + r[i];
}

/// State that the collectives of a backend share. They run one after the other, on the
/// communicator's thread.
struct SharedRoom {
  std::shared_ptr<Communicator> communicator;  // null: programs are planned, but not run
  bool overlaps = true;                        // communication overlaps with other kernels
  std::vector<float> received;                 // [in flight, ranks, kExchanged]
};

/// A kernel that starts its work in the queue of the communicator.
class Collective : public Kernel {
 public:
  Collective(const NodeView& node, std::shared_ptr<SharedRoom> shared)
      : shared_(std::move(shared)),
        division_(division_of(node.graph, node.id)),
        name_(node.node().op->name.c_str()) {}

  bool is_asynchronous() const override { return shared_->overlaps; }
  bool is_collective() const override { return true; }
  void run(const KernelArgs& args) override {
    BRRR_CHECK(shared_->communicator != nullptr, "a plan's programs do not run");
    ticket_ = shared_->communicator->start([this, args](Transport& t) {
      const WorkClock clock(name_);
      work(t, args);
    });
    if (!shared_->overlaps) finish();
  }
  void finish() override { shared_->communicator->wait(ticket_); }

 protected:
  virtual void work(Transport& t, const KernelArgs& args) = 0;

  /// Computes this rank's part of the sums; `sum_of(tensor)` points to its first element. If the
  /// transport can have several exchanges in flight, the next one is sent while one is summed.
  template <typename SumOf>
  void reduce(Transport& t, const KernelArgs& args, SumOf sum_of) {
    const auto& exchanges = division_.exchanges();
    const auto slots = static_cast<size_t>(std::clamp<int64_t>(t.most_in_flight(), 1, kInFlight));
    const auto slot_size = static_cast<size_t>(division_.ranks() * kExchanged);
    if (shared_->received.size() < slots * slot_size) shared_->received.resize(slots * slot_size);
    const auto room = [&](size_t k) { return shared_->received.data() + k % slots * slot_size; };
    for (size_t k = 0; k < std::min(slots - 1, exchanges.size()); ++k)
      begin_reduce(t, args, exchanges[k], room(k));
    for (size_t k = 0; k < exchanges.size(); ++k) {
      if (const size_t next = k + slots - 1; next < exchanges.size())
        begin_reduce(t, args, exchanges[next], room(next));
      t.end_exchange();
      sum_received(t, args, exchanges[k], room(k), sum_of);
    }
  }

  void begin_reduce(Transport& t, const KernelArgs& args, std::span<const Division::Piece> pieces,
                    float* room) {
    const int64_t ranks = division_.ranks(), self = t.rank();
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    int64_t at = 0;
    for (const Division::Piece& p : pieces) {
      const auto* const x = static_cast<const float*>(args.in[p.tensor]);
      const ShardRange own = division_.range(p, self);
      for (int64_t r = 0; r < ranks; ++r) {
        const ShardRange theirs = division_.range(p, r);
        const int peer = static_cast<int>(r);
        if (r == self) continue;
        if (theirs.size() > 0)
          out.push_back({peer, reinterpret_cast<const std::byte*>(x + theirs.begin),
                         theirs.size() * int64_t{sizeof(float)}});
        if (own.size() > 0)
          in.push_back({peer, reinterpret_cast<std::byte*>(room + r * kExchanged + at),
                        own.size() * int64_t{sizeof(float)}});
      }
      at += p.count;
    }
    t.begin_exchange(out, in);
  }

  template <typename SumOf>
  void sum_received(const Transport& t, const KernelArgs& args,
                    std::span<const Division::Piece> pieces, const float* room, SumOf sum_of) {
    const int64_t ranks = division_.ranks(), self = t.rank();
    std::vector<const float*> parts(static_cast<size_t>(ranks));
    int64_t at = 0;
    for (const Division::Piece& p : pieces) {
      const ShardRange own = division_.range(p, self);
      for (int64_t r = 0; r < ranks; ++r)
        parts[static_cast<size_t>(r)] =
            r == self ? static_cast<const float*>(args.in[p.tensor]) + own.begin
                      : room + r * kExchanged + at;
      if (own.size() > 0) sum_in_tree(parts, own.size(), sum_of(p.tensor) + p.offset);
      at += p.count;
    }
  }

  /// Sends this rank's part, at `part_of(tensor)`, to all others and writes all parts to the
  /// results.
  void gather(Transport& t, const KernelArgs& args, int64_t element_bytes,
              const std::function<const std::byte*(size_t)>& part_of) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (size_t i = 0; i < division_.tensors(); ++i) {
      auto* const y = static_cast<std::byte*>(args.out[i]);
      const ShardRange own = division_.part(i, t.rank());
      for (int64_t r = 0; r < division_.ranks(); ++r) {
        const ShardRange theirs = division_.part(i, r);
        const int peer = static_cast<int>(r);
        if (r == t.rank()) continue;
        if (own.size() > 0) out.push_back({peer, part_of(i), own.size() * element_bytes});
        if (theirs.size() > 0)
          in.push_back({peer, y + theirs.begin * element_bytes, theirs.size() * element_bytes});
      }
    }
    t.exchange(out, in);
    for (size_t i = 0; i < division_.tensors(); ++i) {
      const ShardRange own = division_.part(i, t.rank());
      auto* const to = static_cast<std::byte*>(args.out[i]) + own.begin * element_bytes;
      if (own.size() > 0 && part_of(i) != to)
        std::memcpy(to, part_of(i), static_cast<size_t>(own.size() * element_bytes));
    }
  }

  std::shared_ptr<SharedRoom> shared_;
  Division division_;
  const char* name_;  // the op's name, for traces
  Communicator::Ticket ticket_ = 0;
};

class AllReduce final : public Collective {
 public:
  using Collective::Collective;

 private:
  void work(Transport& t, const KernelArgs& args) override {
    const auto part_of = [&](size_t i) {
      return static_cast<float*>(args.out[i]) + division_.part(i, t.rank()).begin;
    };
    reduce(t, args, part_of);
    gather(t, args, sizeof(float),
           [&](size_t i) { return reinterpret_cast<const std::byte*>(part_of(i)); });
  }
};

class ReduceScatter final : public Collective {
 public:
  using Collective::Collective;

 private:
  void work(Transport& t, const KernelArgs& args) override {
    reduce(t, args, [&](size_t i) { return static_cast<float*>(args.out[i]); });
    for (size_t i = 0; i < division_.tensors(); ++i) {
      auto* const y = static_cast<float*>(args.out[i]);
      std::fill(y + division_.part(i, t.rank()).size(), y + division_.each(i), 0.0f);
    }
  }
};

class AllGather final : public Collective {
 public:
  AllGather(const NodeView& node, std::shared_ptr<SharedRoom> shared)
      : Collective(node, std::move(shared)), element_bytes_(bytes_of(node.in[0].dtype)) {}

 private:
  void work(Transport& t, const KernelArgs& args) override {
    gather(t, args, element_bytes_,
           [&](size_t i) { return static_cast<const std::byte*>(args.in[i]); });
  }

  int64_t element_bytes_;
};

/// Copies a part that this rank already holds.
std::unique_ptr<Kernel> own_shard_kernel(const NodeView& node, int64_t rank) {
  const int64_t all = node.in[0].shape.elements(), each = node.out()[0].shape.elements();
  const ShardRange part = shard_range(all, rank, node.attrs().get<int64_t>("ranks"));
  return make_kernel([part, each](const KernelArgs& args) {
    const auto* x = static_cast<const float*>(args.in[0]);
    auto* y = static_cast<float*>(args.out[0]);
    std::copy(x + part.begin, x + part.end, y);
    std::fill(y + part.size(), y + each, 0.0f);
  });
}

template <typename K>
KernelEntry entry(Op op, int64_t ranks, const std::shared_ptr<SharedRoom>& shared) {
  return {op, "ranks",
          [ranks](const NodeView& node) -> std::string {
            if (node.attrs().get<int64_t>("ranks") == ranks) return "";
            return fmt::format("a node of {} ranks in a run of {}",
                               node.attrs().get<int64_t>("ranks"), ranks);
          },
          [shared](const NodeView& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<K>(node, shared);
          }};
}

}  // namespace

int64_t collective_bytes(int64_t ranks, int in_flight) {
  return std::clamp<int64_t>(in_flight, 1, kInFlight) * ranks * kExchanged * int64_t{sizeof(float)};
}

void sum_in_tree(std::span<const float* const> parts, int64_t n, float* y) {
  std::vector<const float*> at(parts.begin(), parts.end());
  for (int64_t i = 0; i < n; i += kSummed) {
    sum_block(at, std::min(kSummed, n - i), y + i);
    for (const float*& p : at) p += kSummed;
  }
}

void add_collectives(Backend& backend, int64_t ranks, std::shared_ptr<Communicator> communicator,
                     bool overlaps) {
  if (communicator) backend.rank = communicator->rank();
  const auto shared = std::make_shared<SharedRoom>();
  shared->communicator = std::move(communicator);
  shared->overlaps = overlaps;
  backend.kernels.push_back(entry<AllReduce>(Op::all_reduce, ranks, shared));
  backend.kernels.push_back(entry<ReduceScatter>(Op::reduce_scatter, ranks, shared));
  backend.kernels.push_back(entry<AllGather>(Op::all_gather, ranks, shared));
  backend.kernels.push_back(
      {Op::own_shard, "ranks", [](const NodeView&) { return std::string(); },
       [rank = backend.rank](const NodeView& node) { return own_shard_kernel(node, rank); }});
}

}  // namespace brrr
