#include "runtime/ranks/shared_work.h"

#include <algorithm>
#include <mutex>

#include "runtime/ranks/place.h"

namespace brrr {

std::shared_ptr<Communicator> connect_ranks(const RankPlace& place, int64_t threads,
                                            const TransportOptions& options) {
  if (threads == 0) divide_threads(place);
  static std::mutex mutex;
  static std::shared_ptr<Communicator> joined;
  const std::lock_guard lock(mutex);
  if (!joined)
    joined = std::make_shared<Communicator>([&] { return open_transport(place, options); });
  return joined;
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text) {
  const std::vector<int64_t> lengths = communicator.gather_values(std::ssize(text));
  std::vector<std::string> texts;
  for (const int64_t length : lengths) texts.emplace_back(static_cast<size_t>(length), '\0');
  communicator.run([&](Transport& transport) {
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int peer = 0; peer < transport.ranks(); ++peer) {
      const auto at = static_cast<size_t>(peer);
      if (!text.empty())
        out.push_back({peer, reinterpret_cast<const std::byte*>(text.data()), std::ssize(text)});
      if (lengths[at] > 0)
        in.push_back({peer, reinterpret_cast<std::byte*>(texts[at].data()), lengths[at]});
    }
    transport.exchange(out, in);
  });
  return texts;
}

namespace {

std::string packed_failure(const std::optional<Failure>& failure) {
  Packed packed;
  if (failure) {
    packed.put_value(failure->order);
    packed.put_value(failure->code);
    packed.put_text(failure->message);
  }
  return packed.bytes();
}

/// Returns the first of the ranks' packed failures.
std::optional<Failure> first_failure(const std::vector<std::string>& all) {
  std::optional<Failure> first;
  for (const std::string& bytes : all) {
    if (bytes.empty()) continue;
    Packed packed(bytes);
    Failure failure;
    failure.order = packed.take_value<int64_t>();
    failure.code = packed.take_value<ExitCode>();
    failure.message = packed.take_text();
    if (!first || failure.order < first->order) first = std::move(failure);
  }
  return first;
}

}  // namespace

void share_failures(Communicator& communicator, const std::optional<Failure>& own) {
  // One byte suffices in the usual case without a failure.
  const std::vector<char> flags = communicator.gather_values(static_cast<char>(own.has_value()));
  if (std::ranges::count(flags, 0) == std::ssize(flags)) return;
  const auto first = first_failure(gather_texts(communicator, packed_failure(own)));
  throw SharedError(first->message, first->code);
}

std::string text_of_first(Communicator* communicator, const std::function<std::string()>& make) {
  if (communicator == nullptr) return make();
  std::string text;
  std::optional<Failure> failure;
  if (is_first_rank(communicator)) failure = failure_of(0, [&] { text = make(); });
  share_failures(*communicator, failure);
  auto length = static_cast<uint64_t>(text.size());
  communicator->broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(length);
  if (length > 0) communicator->broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

uint64_t Packed::take_count(size_t element) {
  uint64_t count = 0;
  BRRR_CHECK(bytes_.size() - at_ >= sizeof count, "a packed result ends early");
  std::memcpy(&count, bytes_.data() + at_, sizeof count);
  at_ += sizeof count;
  BRRR_CHECK(count <= (bytes_.size() - at_) / element, "a packed result ends early");
  return count;
}

bool divide_pieces(Communicator* communicator, int64_t count, int64_t at_once,
                   const std::function<Packed(int64_t piece)>& compute,
                   const std::function<bool(int64_t piece, Packed& result)>& use) {
  if (communicator == nullptr) {
    for (int64_t i = 0; i < count; ++i)
      if (Packed result = compute(i); !use(i, result)) return false;
    return true;
  }
  const int64_t ranks = communicator->ranks(), round = ranks * at_once;
  for (int64_t begin = 0; begin < count; begin += round) {
    const int64_t end = std::min(count, begin + round);
    Packed own;
    std::optional<Failure> failure;
    for (int64_t i = begin + communicator->rank(); i < end && !failure; i += ranks)
      failure = failure_of(i, [&] { own.put_text(compute(i).bytes()); });
    // Failures are sent in front of the results.
    Packed message;
    message.put_text(packed_failure(failure));
    message.put_text(own.bytes());
    std::vector<std::string> failures;
    std::vector<Packed> results;
    for (std::string& bytes : gather_texts(*communicator, message.bytes())) {
      Packed packed(std::move(bytes));
      failures.push_back(packed.take_text());
      results.emplace_back(packed.take_text());
    }
    const std::optional<Failure> first = first_failure(failures);
    const int64_t usable = first ? first->order : end;
    const bool goes_on = run_alike(communicator, [&] {
      for (int64_t i = begin; i < usable; ++i) {
        Packed result(results[static_cast<size_t>((i - begin) % ranks)].take_text());
        if (!use(i, result)) return false;
      }
      return true;
    });
    if (!goes_on) return false;
    if (first) throw SharedError(first->message, first->code);
  }
  return true;
}

}  // namespace brrr
