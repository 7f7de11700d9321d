#pragma once
// Work that all ranks of a run do together outside of training: numbered pieces are divided among
// them, and every rank gets all results, in order. A null communicator is a run of one process,
// which does all pieces itself, so callers have one path. Every function here is called by all
// ranks in the same order.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "runtime/ranks/communicator.h"

namespace brrr {

/// An error that all ranks throw with the same words, so that it is enough if rank 0 tells it.
class SharedError : public UserError {
 public:
  using UserError::UserError;
};

inline int rank_of(const Communicator* c) { return c == nullptr ? 0 : c->rank(); }
inline int ranks_of(const Communicator* c) { return c == nullptr ? 1 : c->ranks(); }
inline bool is_first_rank(const Communicator* c) { return rank_of(c) == 0; }

/// Connects this process with the other ranks of its run; one connection serves all that a process
/// does, one after the other. If `threads` is 0, the ranks of a host divide its processors. Throws
/// LostRank when a rank does not come.
std::shared_ptr<Communicator> connect_ranks(const RankPlace& place, int64_t threads,
                                            const TransportOptions& options = {});

/// The text that each rank gives, in the order of ranks.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

/// What a rank found wrong, and at which point of the work: the lowest comes first.
struct Failure {
  int64_t order = 0;
  std::string message;
  ExitCode code = ExitCode::kFailed;
};
/// Throws the failure with the lowest order, of equal ones that of the lowest rank, as SharedError
/// on all ranks; returns if no rank has one.
void share_failures(Communicator& communicator, const std::optional<Failure>& own);

/// f() as a failure, if it throws a UserError other than LostRank.
template <typename F>
std::optional<Failure> failure_of(int64_t order, F&& f) {
  try {
    f();
  } catch (const LostRank&) {
    throw;
  } catch (const UserError& e) {
    return Failure{order, e.what(), e.code()};
  }
  return std::nullopt;
}

/// Runs on each rank what exchanges nothing. If it throws a UserError on any rank, all throw the
/// one of the lowest rank.
template <typename F>
void run_on_all(Communicator* communicator, F&& f) {
  if (communicator == nullptr) return static_cast<void>(f());
  share_failures(*communicator, failure_of(rank_of(communicator), f));
}

/// Runs what fails on all ranks alike, because they have the same data: its UserErrors become
/// SharedErrors.
template <typename F>
auto run_alike(Communicator* communicator, F&& f) {
  if (communicator == nullptr) return f();
  try {
    return f();
  } catch (const LostRank&) {
    throw;
  } catch (const SharedError&) {
    throw;
  } catch (const UserError& e) {
    throw SharedError(e.what(), e.code());
  }
}

/// The text that rank 0 makes; a UserError that it throws is thrown on all ranks.
std::string text_of_first(Communicator* communicator, const std::function<std::string()>& make);

/// Arrays as one sequence of bytes, to be read in the order in which they were written.
class Packed {
 public:
  Packed() = default;
  explicit Packed(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  void put(std::span<const T> values) {
    const auto count = static_cast<uint64_t>(values.size());
    bytes_.append(reinterpret_cast<const char*>(&count), sizeof count);
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  template <typename T>
  void put_value(const T& value) {
    put(std::span<const T>(&value, 1));
  }
  void put_text(std::string_view text) { put(std::span<const char>(text.data(), text.size())); }

  template <typename T>
  std::vector<T> take() {
    std::vector<T> values(static_cast<size_t>(take_count(sizeof(T))));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data() + at_, values.size() * sizeof(T));
    at_ += values.size() * sizeof(T);
    return values;
  }
  template <typename T>
  T take_value() {
    return take<T>().at(0);
  }
  std::string take_text() {
    const std::vector<char> text = take<char>();
    return {text.begin(), text.end()};
  }

  bool is_at_end() const { return at_ == bytes_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  uint64_t take_count(size_t element);

  std::string bytes_;
  size_t at_ = 0;
};

/// Computes `count` pieces: rank r computes each piece i with i % ranks == r, in order, and
/// `use` is called with every piece's result on every rank, in order, until it returns false. If
/// `compute` throws a UserError, the results of the pieces before that one are used, and all ranks
/// throw the error. `at_once`: pieces that each rank computes between two exchanges. Returns
/// whether all results were used.
bool divide_pieces(Communicator* communicator, int64_t count, int64_t at_once,
                   const std::function<Packed(int64_t piece)>& compute,
                   const std::function<bool(int64_t piece, Packed& result)>& use);

}  // namespace brrr
