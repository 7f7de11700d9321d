#pragma once
// Divides work outside of training among the ranks of a run: each rank computes some of the
// numbered pieces, and every rank gets all results, in order. With a null communicator, one process
// computes all pieces, so callers need no second path. All ranks must call these functions in the
// same order.

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

/// An error that all ranks throw with the same message, so that only rank 0 has to print it.
class SharedError : public UserError {
 public:
  using UserError::UserError;
};

inline int rank_of(const Communicator* c) { return c == nullptr ? 0 : c->rank(); }
inline int ranks_of(const Communicator* c) { return c == nullptr ? 1 : c->ranks(); }
inline bool is_first_rank(const Communicator* c) { return rank_of(c) == 0; }

/// Connects this process with the other ranks of its run. Later calls return the same connection.
/// If `threads` is 0, the ranks of a host divide its processors. Throws LostRank if a rank does not
/// connect.
std::shared_ptr<Communicator> connect_ranks(const RankPlace& place, int64_t threads,
                                            const TransportOptions& options = {});

/// Returns the texts of all ranks, in the order of ranks.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

/// An error of a rank and its position in the work; the lowest position is reported.
struct Failure {
  int64_t order = 0;
  std::string message;
  ExitCode code = ExitCode::kFailed;
};
/// Throws the failure with the lowest order (for equal orders, that of the lowest rank) as
/// SharedError on all ranks. Returns if no rank has a failure.
void share_failures(Communicator& communicator, const std::optional<Failure>& own);

/// Calls f() and returns its UserError, unless it is LostRank, as a failure.
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

/// Calls f() on each rank; it must not exchange anything. If it throws a UserError on some ranks,
/// all ranks throw that of the lowest one.
template <typename F>
void run_on_all(Communicator* communicator, F&& f) {
  if (communicator == nullptr) return static_cast<void>(f());
  share_failures(*communicator, failure_of(rank_of(communicator), f));
}

/// Calls f(), which fails on all ranks alike because they have the same data. Its UserErrors become
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

/// Returns the text that rank 0 makes; a UserError of rank 0 is thrown on all ranks.
std::string text_of_first(Communicator* communicator, const std::function<std::string()>& make);

/// Serialises arrays into one sequence of bytes; they are read in the order of writing.
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
