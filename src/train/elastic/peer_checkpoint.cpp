#include "train/elastic/peer_checkpoint.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "runtime/ranks/state_shards.h"

namespace brrr::train {
namespace {

constexpr int64_t kPage = 4096;
/// Bytes reserved for the state of the trainer, which is some KiB of JSON.
constexpr int64_t kTextBytes = 16 * kPage;
/// Pieces of a tensor begin at cache lines; a thread copies at least kGrain bytes.
constexpr int64_t kLine = 64, kGrain = 1 << 20;

/// A range of a whole tensor's bytes, which a part holds.
struct Piece {
  int64_t state = 0;  // position among the states of a checkpoint
  int64_t begin = 0, bytes = 0;
};

/// The beginning of a part. The list of pieces and their bytes follow, each at a cache line.
struct PartHeader {
  uint64_t layout = 0;  // identifies the states of the run
  int64_t pieces = 0, text_bytes = 0, data_offset = 0;
  char text[kTextBytes - 4 * sizeof(int64_t)] = {};
};
static_assert(sizeof(PartHeader) == kTextBytes);

std::vector<const StateInfo*> states_of(const Engine& engine) {
  std::vector<const StateInfo*> states;
  for (const StateInfo& state : engine.states())
    if (is_in_checkpoint(state)) states.push_back(&state);
  return states;
}

int64_t whole_bytes(const StateInfo& state) {
  return whole_type(state).value_or(state.type).bytes();
}

uint64_t layout_of(const std::vector<const StateInfo*>& states) {
  Hash hash;
  for (const StateInfo* state : states)
    hash.add(std::string_view(state->name)).add(whole_type(*state).value_or(state->type).str());
  return hash.value();
}

/// Returns the range of a whole tensor that a rank copies: its shard or, if all ranks hold the
/// whole tensor, its share of it.
Piece piece_of(const StateInfo& state, int64_t number, int64_t rank, int64_t ranks) {
  const int64_t all = whole_bytes(state);
  if (whole_type(state)) {
    const ShardRange range = range_of_shard(state, rank);
    const int64_t element = bytes_of(state.type.dtype);
    return {number, range.begin * element, range.size() * element};
  }
  const int64_t lines = ceil_div(all, kLine);
  const int64_t begin = std::min(all, lines * rank / ranks * kLine);
  return {number, begin, std::min(all, lines * (rank + 1) / ranks * kLine) - begin};
}

std::vector<Piece> pieces_of(const std::vector<const StateInfo*>& states, int64_t rank,
                             int64_t ranks) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < states.size(); ++i)
    if (const Piece piece = piece_of(*states[i], static_cast<int64_t>(i), rank, ranks);
        piece.bytes > 0)
      pieces.push_back(piece);
  return pieces;
}

int64_t data_offset(int64_t pieces) {
  return kTextBytes + round_up(pieces * static_cast<int64_t>(sizeof(Piece)), kLine);
}

int64_t bytes_of_part(const std::vector<Piece>& pieces) {
  int64_t bytes = data_offset(std::ssize(pieces));
  for (const Piece& piece : pieces) bytes += round_up(piece.bytes, kLine);
  return round_up(bytes, kPage);
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  parallel_for(ceil_div(bytes, kGrain), 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kGrain, last = std::min(bytes, end * kGrain);
    std::memcpy(to + first, from + first, static_cast<size_t>(last - first));
  });
}

void read_at(int file, void* to, int64_t bytes, int64_t offset) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(file, at, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    BRRR_CHECK(got > 0, "a peer checkpoint ends early");
    at += got, offset += got, bytes -= got;
  }
}

/// A piece and the offset of its bytes in the generation's file.
struct Found {
  Piece piece;
  int64_t offset = 0;
};

}  // namespace

int64_t peer_checkpoint_bytes(const Engine& engine, int rank, int ranks) {
  return bytes_of_part(pieces_of(states_of(engine), rank, ranks));
}

PeerCheckpoints::PeerCheckpoints(LauncherMemory& memory, int rank, int ranks)
    : memory_(memory), rank_(rank), ranks_(ranks) {
  if (const auto newest = memory.newest()) next_ = 1 - newest->generation;
}

PeerCheckpoints::~PeerCheckpoints() {
  for (const Mapping& mapping : mapped_)
    if (mapping.data != nullptr) ::munmap(mapping.data, static_cast<size_t>(mapping.part.bytes));
}

/// Maps a part. Its pages are reserved, because memory that runs out later would end the process by
/// a signal.
std::byte* PeerCheckpoints::region(int generation, const LauncherMemory::Part& part) {
  Mapping& mapping = mapped_[generation];
  if (mapping.data != nullptr) return mapping.data;
  const int file = memory_.descriptor(generation);
  int error = ::posix_fallocate(file, part.offset, part.bytes);
  void* data = error != 0 ? MAP_FAILED
                          : ::mmap(nullptr, static_cast<size_t>(part.bytes), PROT_READ | PROT_WRITE,
                                   MAP_SHARED, file, part.offset);
  if (data == MAP_FAILED) {
    if (error == 0) error = errno;
    user_error(
        "no memory for {} of peer checkpoints on rank {}: {}; leave them out by "
        "--peer-checkpoint-steps 0, or divide more by --zero",
        memory_text(part.bytes), rank_, std::strerror(error));
  }
  mapping = {static_cast<std::byte*>(data), part};
  return mapping.data;
}

void PeerCheckpoints::keep(const Engine& engine, int64_t step, const std::string& trainer_state) {
  const std::vector<const StateInfo*> states = states_of(engine);
  const std::vector<Piece> pieces = pieces_of(states, rank_, ranks_);
  LauncherMemory::Part part{0, bytes_of_part(pieces)};
  for (int rank = 0; rank < rank_; ++rank)
    part.offset += bytes_of_part(pieces_of(states, rank, ranks_));
  BRRR_CHECK(trainer_state.size() < sizeof PartHeader::text,
             "the state of the trainer has {} bytes", trainer_state.size());
  memory_.begin_part(next_, rank_, part);
  std::byte* const to = region(next_, part);
  auto& header = *reinterpret_cast<PartHeader*>(to);
  header.layout = layout_of(states);
  header.pieces = std::ssize(pieces);
  header.text_bytes = std::ssize(trainer_state);
  header.data_offset = data_offset(header.pieces);
  std::memcpy(header.text, trainer_state.data(), trainer_state.size());
  std::memcpy(to + kTextBytes, pieces.data(), pieces.size() * sizeof(Piece));
  int64_t at = header.data_offset;
  std::vector<std::byte> room;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == pieces.size() / 2) fault_point("peer_checkpoint.write");
    const Piece& piece = pieces[i];
    const StateInfo& state = *states[static_cast<size_t>(piece.state)];
    const std::span<const std::byte> held = engine.read_state(state.name, room);
    copy_bytes(to + at, held.data() + (whole_type(state) ? 0 : piece.begin), piece.bytes);
    at += round_up(piece.bytes, kLine);
  }
  memory_.end_part(next_, rank_, ranks_, step);
  next_ = 1 - next_;
}

std::string PeerCheckpoints::load(Engine& engine) {
  const auto newest = memory_.newest();
  BRRR_CHECK(newest.has_value(), "there is no peer checkpoint");
  const int file = memory_.descriptor(newest->generation);
  const std::vector<const StateInfo*> states = states_of(engine);
  std::vector<std::vector<Found>> found(states.size());
  std::string text;
  for (int rank = 0; rank < newest->ranks; ++rank) {
    const LauncherMemory::Part part = memory_.part(newest->generation, rank);
    const auto header = std::make_unique<PartHeader>();
    read_at(file, header.get(), sizeof *header, part.offset);
    BRRR_CHECK(header->layout == layout_of(states), "a peer checkpoint of another model");
    if (rank == 0) text.assign(header->text, static_cast<size_t>(header->text_bytes));
    std::vector<Piece> pieces(static_cast<size_t>(header->pieces));
    read_at(file, pieces.data(), std::ssize(pieces) * static_cast<int64_t>(sizeof(Piece)),
            part.offset + kTextBytes);
    int64_t at = part.offset + header->data_offset;
    for (const Piece& piece : pieces) {
      found[static_cast<size_t>(piece.state)].push_back({piece, at});
      at += round_up(piece.bytes, kLine);
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    const StateInfo& state = *states[i];
    Piece wanted{static_cast<int64_t>(i), 0, whole_bytes(state)};
    if (whole_type(state)) wanted = piece_of(state, wanted.state, rank_, ranks_);
    const int64_t end = wanted.begin + wanted.bytes;
    engine.fill_state(state.name, [&](std::span<std::byte> to) {
      int64_t read = 0;
      for (const Found& f : found[i]) {
        const int64_t first = std::max(wanted.begin, f.piece.begin);
        const int64_t bytes = std::min(end, f.piece.begin + f.piece.bytes) - first;
        if (bytes <= 0) continue;
        read_at(file, to.data() + (first - wanted.begin), bytes,
                f.offset + (first - f.piece.begin));
        read += bytes;
      }
      BRRR_CHECK(read == wanted.bytes, "a peer checkpoint has {} of {} bytes of {}", read,
                 wanted.bytes, state.name);
      std::ranges::fill(to.subspan(static_cast<size_t>(wanted.bytes)), std::byte{});
    });
  }
  return text;
}

}  // namespace brrr::train
