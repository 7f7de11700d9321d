#include "cli/conversation.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/tell.h"
#include "cli/commands.h"

namespace brrr::cli {
namespace {

constexpr size_t kLongestTurn = size_t{1} << 26;

std::atomic<int> g_interrupts = 0;  // since the last line was read
static_assert(std::atomic<int>::is_always_lock_free);

/// Only what a signal handler may call.
void count_interrupt(int signal) {
  if (++g_interrupts > 1) _exit(128 + signal);
}

/// While it lives, the first Ctrl-C is counted and the second ends the program. A Ctrl-C that the
/// parent ignores stays ignored.
class InterruptGuard {
 public:
  InterruptGuard() {
    g_interrupts = 0;
    struct sigaction action {};
    action.sa_handler = count_interrupt;
    sigemptyset(&action.sa_mask);  // without SA_RESTART: waiting for a line ends, too
    sigaction(SIGINT, nullptr, &old_);
    if (old_.sa_handler != SIG_IGN) sigaction(SIGINT, &action, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard() { sigaction(SIGINT, &old_, nullptr); }

 private:
  struct sigaction old_ {};
};

/// The lines of standard input.
class Turns {
 public:
  /// The next line without its end, or nothing at the end. `on_interrupt` is called for a Ctrl-C
  /// while it waits.
  std::optional<std::string> next(const std::function<void()>& on_interrupt) {
    for (;;) {
      if (const size_t end = read_.find('\n'); end != std::string::npos) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
      }
      if (ended_) {
        if (read_.empty()) return std::nullopt;
        return std::exchange(read_, {});
      }
      if (read_.size() > kLongestTurn)
        user_error(
            "standard input: a line has more than {} bytes, and each line is one turn; shorten it",
            kLongestTurn);
      char buffer[1 << 14];
      const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) {
        on_interrupt();
      } else if (got < 0) {
        user_error("standard input cannot be read: {}", std::strerror(errno));
      } else if (got == 0) {
        ended_ = true;
      } else {
        read_.append(buffer, static_cast<size_t>(got));
      }
    }
  }

 private:
  std::string read_;
  bool ended_ = false;
};

void print(std::string_view text) {
  write_output(text);
  flush_output();
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

}  // namespace

Conversation::Conversation(const infer::GenerateOptions& options, const io::ModelFolder& model,
                           const io::ChatTemplate* chat)
    : options_(options), model_(model), chat_(chat) {
  if (!options.messages.empty()) messages_ = io::read_messages(options.messages);
  const bool has_system = !messages_.empty() && messages_[0].role == "system";
  if (!options.system.empty() && has_system)
    usage_error("--system: {} begins with what the system says; expected one of them",
                options.messages);
  if (!options.system.empty()) messages_.insert(messages_.begin(), {"system", options.system});
  if (!options.tools.empty()) tools_ = io::read_tools(options.tools);
}

std::vector<int32_t> Conversation::prompt() {
  return chat_ ? model_.tokenizer->encode(chat_->render(messages_, local_time(), tools_))
               : model_.tokenizer->encode(text_, {.add_special_tokens = true});
}

// The oldest turns, a question with its answers, go before the model forgets the system's.
std::vector<int32_t> Conversation::fitting_prompt() {
  std::vector<int32_t> ids = prompt();
  const int64_t context = model_.definition->sizes().context;
  const int64_t oldest = !messages_.empty() && messages_[0].role == "system" ? 1 : 0;
  while (chat_ && std::ssize(ids) + options_.max_new_tokens > context) {
    const auto first = messages_.begin() + std::min(oldest, std::ssize(messages_));
    const auto next = first == messages_.end()
                          ? first
                          : std::find_if(first + 1, messages_.end(),
                                         [](const io::ChatMessage& m) { return m.role == "user"; });
    if (next == messages_.end()) break;
    messages_.erase(first, next);
    ids = prompt();
    if (!std::exchange(noted_, true))
      tell(
          "note: the conversation is longer than the model's context of {} tokens: its "
          "oldest turns are dropped\n",
          context);
  }
  return ids;
}

std::vector<int32_t> Conversation::given() {
  if (messages_.back().role == "assistant")
    usage_error(
        "--messages: {} ends with a message of the assistant; expected one to answer, or --prompt",
        options_.messages);
  return fitting_prompt();
}

std::vector<int32_t> Conversation::ask(const std::string& text) {
  const std::string before = text_;
  const size_t count = messages_.size();
  try {
    if (chat_)
      messages_.push_back({"user", text});
    else
      text_ += (text_.empty() || text_.ends_with('\n') ? "" : "\n") + text;
    std::vector<int32_t> ids = fitting_prompt();
    if (ids.empty()) user_error("the turn has no tokens; expected at least one character");
    return ids;
  } catch (const UserError&) {
    text_ = before;
    if (messages_.size() > count) messages_.resize(count);
    throw;
  }
}

void Conversation::answer(const std::string& text) {
  if (chat_)
    messages_.push_back({"assistant", text});
  else
    text_ += text;
}

void converse(TextMaker& maker, Conversation& conversation, const std::string& first,
              const infer::GenerateOptions& options) {
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  std::optional<InterruptGuard> guard;
  if (terminal) {
    guard.emplace();
    tell("{}; Ctrl-D ends, Ctrl-C stops an answer, Ctrl-C twice ends\n",
         options.chat ? "one turn per line" : "one text to continue per line");
  }
  const auto show_prompt = [terminal] {
    if (terminal) tell("> ");
  };
  Turns turns;
  std::optional<std::string> turn = first;
  for (int64_t number = 0;; turn.reset()) {
    if (!turn || turn->empty()) {
      show_prompt();
      turn = turns.next([&] {
        tell("\nCtrl-C again, or Ctrl-D, ends\n");
        show_prompt();
      });
      if (!turn) break;
      g_interrupts = 0;
      if (turn->empty()) continue;
    }
    std::vector<int32_t> prompt;
    try {
      prompt = conversation.ask(*turn);
    } catch (const UserError& e) {
      if (!terminal) throw;
      tell("{}\n", e.what());
      continue;
    }
    const TextMaker::Text made = maker.make(
        prompt, {.first = number++, .count = 1}, false,
        [&](int64_t, std::string_view text, bool) {
          if (options.stream) print(text);
        },
        [] { return g_interrupts > 0; })[0];
    print((options.stream ? "" : made.text) + "\n");
    conversation.answer(made.text);
  }
  if (terminal) tell("\n");
}

}  // namespace brrr::cli
