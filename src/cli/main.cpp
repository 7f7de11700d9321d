// The program: finds the verb, prints help, and turns every failure into one line and an exit code.
// 0 done, 1 failed, 2 wrong usage, 3 does not fit in memory, 4 another rank of the run is gone,
// 128 + n ended by signal n.

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/env.h"
#include "base/file.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/foreign_words.h"
#include "runtime/ranks/stuck_launcher.h"
#include "runtime/ranks/transport.h"

namespace brrr::cli {
namespace {

std::string bold(const std::string& text) {
  return colour_on_stdout() ? "\x1b[1m" + text + "\x1b[0m" : text;
}

const Command& find_command(const std::vector<Command>& list, const std::string& name,
                            const std::string& parent) {
  std::vector<std::string> names;
  for (const Command& command : list) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  const std::string likely = nearest(name, names);
  usage_error("unknown verb '{} {}'; {}", parent, name,
              likely.empty() ? fmt::format("see `{} --help`", parent)
                             : fmt::format("did you mean '{} {}'?", parent, likely));
}

void print_verbs(const std::vector<Command>& list) {
  for (const Command& command : list) fmt::print("  {:<18} {}\n", command.name, command.summary);
}

void print_overview() {
  fmt::print("brrr {}: trains language models and runs them\n\n{}\n", BRRR_VERSION,
             bold("usage: brrr VERB [options]"));
  print_verbs(commands());
  fmt::print(
      "{}", env::as_typed(fmt::format(
                "  {:<18} {}\n\n`brrr VERB --help` lists the options of a verb. Begin with: `brrr "
                "train`\n",
                "help VERB", "same as VERB --help; help --markdown prints all options as a page")));
}

/// The page docs/options.md.
void print_markdown() {
  fmt::print(
      "# The verbs and their options\n\nGenerated from the option tables by `./brrr help "
      "--markdown`; `tests/cli/docs_test.cpp` checks it. Do not edit.\n\nOptions may be spelled "
      "with `-` or `_`, on the command line and in TOML files. A value that ends in `...` may be "
      "several words; other options are given once for each value where they take several.\n");
  const auto print = [](const Command& command, const std::string& name) {
    fmt::print("\n## {0}\n\n{1}{2}.\n\n    {0} {3}\n{4}", name,
               static_cast<char>(std::toupper(command.summary[0])), command.summary.substr(1),
               command.synopsis, options_markdown(command.options));
  };
  for (const Command& command : commands()) {
    if (command.subcommands.empty()) print(command, "brrr " + command.name);
    for (const Command& sub : command.subcommands)
      print(sub, fmt::format("brrr {} {}", command.name, sub.name));
  }
}

void print_help(const Command& command, const std::string& full_name, const KeyValues& given = {}) {
  fmt::print("{}\n{}\n", bold(fmt::format("usage: {} {}", full_name, command.synopsis)),
             command.summary);
  if (!command.notes.empty()) fmt::print("\n{}", command.notes);
  if (!command.subcommands.empty()) {
    fmt::print("\n");
    print_verbs(command.subcommands);
  }
  fmt::print(
      "{}", options_help(command.options_for_help ? command.options_for_help(command.options, given)
                                                  : command.options,
                         colour_on_stdout()));
}

/// Returns the number of arguments in front of the verb of the command line that they start.
int64_t own_arguments(const Command& command, const std::vector<std::string>& args) {
  size_t at = 0;
  while (at < args.size() && args[at].size() > 1 && args[at][0] == '-') {
    const std::string option = with_our_options(command.options, {args[at]}, command.name)[0];
    const auto info = std::ranges::find_if(command.options, [&](const OptionInfo& o) {
      const std::string name = canonical_key(option);
      return o.name == name || std::ranges::find(o.aliases, name) != o.aliases.end();
    });
    at += info == command.options.end() || info->kind == OptionKind::kFlag ? 1 : 2;
  }
  return static_cast<int64_t>(std::min(at, args.size()));
}

int run(const Command& command, const std::string& full_name, std::vector<std::string> args) {
  if (!command.subcommands.empty()) {
    if (args.empty())
      usage_error("expected a verb after '{}'; see `{} --help`", full_name, full_name);
    if (args[0] == "-h" || args[0] == "--help") {
      print_help(command, full_name);
      return 0;
    }
    const std::string name = args[0];
    const Command& next = find_command(command.subcommands, name, full_name);
    args.erase(args.begin());
    return run(next, full_name + " " + name, std::move(args));
  }
  std::vector<std::string> others;
  if (command.takes_command) {
    const auto end = args.begin() + own_arguments(command, args);
    others.assign(end, args.end());
    args.erase(end, args.end());
  }
  Arguments arguments = parse_arguments(
      command.options, with_our_options(command.options, args, full_name), full_name);
  arguments.positional.insert(arguments.positional.end(), others.begin(), others.end());
  if (arguments.help) {
    print_help(command, full_name, arguments.given);
    return 0;
  }
  if (!command.takes_positional && !arguments.positional.empty())
    usage_error("unexpected '{}'; see `{} --help`", arguments.positional[0], full_name);
  const bool sets_threads = std::ranges::any_of(arguments.given, [](const auto& option) {
    const std::string name = canonical_key(option.first);
    return name == "threads" || name == "num-threads";
  });
  if (!sets_threads) check_team();
  if (command.works_unread) std::signal(SIGPIPE, SIG_IGN);
  return command.run(arguments);
}

int dispatch(std::vector<std::string> args) {
  fault_point("start");
  if (args.empty() || args[0] == "-h" || args[0] == "--help") {
    print_overview();
    return 0;
  }
  if (args[0] == "--version" || args[0] == "-V") {
    fmt::print("brrr {}\n", BRRR_VERSION);
    return 0;
  }
  if (args[0] == "help") {
    args.erase(args.begin());
    if (args.empty()) {
      print_overview();
      return 0;
    }
    if (args[0] == "--markdown") {
      print_markdown();
      return 0;
    }
    args.emplace_back("--help");
  }
  args = with_our_verb(std::move(args));
  const std::string name = args[0];
  const Command& command = find_command(commands(), name, "brrr");
  args.erase(args.begin());
  return run(command, "brrr " + name, std::move(args));
}

/// Prints the message as one line: the messages of exceptions that are no UserError may have
/// several.
int complain(const std::string& message, int code) {
  std::fflush(stdout);
  tell("brrr: {}\n", fit_for_a_line(env::as_typed(message)));
  return code;
}

int complain_internal(const std::string& message) {
  return complain(message + "; this is a bug in Brrr: please report it with the command line",
                  static_cast<int>(ExitCode::kFailed));
}

/// Exit code when the reader of standard output has gone and SIGPIPE is ignored; nothing is
/// printed.
constexpr int kNoReader = 128 + SIGPIPE;

int complain_of_output(int error) {
  if (error == EPIPE) return kNoReader;
  return complain(fmt::format("cannot write to standard output: {}",
                              error != 0 ? std::strerror(error) : "an earlier write failed"),
                  static_cast<int>(ExitCode::kFailed));
}

int guarded(std::vector<std::string> args) {
  try {
    const int code = dispatch(std::move(args));
    errno = 0;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return complain_of_output(errno);
    return code;
  } catch (const SilentHost& e) {
    ranks::end_stuck_launcher();
    return complain(e.what(), static_cast<int>(e.code()));
  } catch (const UserError& e) {
    return complain(e.what(), static_cast<int>(e.code()));
  } catch (const InternalError& e) {
    return complain_internal(e.what());
  } catch (const std::bad_alloc&) {
    return complain(
        "out of memory: take a smaller --batch-size, --context "
        "or "
        "model, or give the process more memory",
        static_cast<int>(ExitCode::kNoMemory));
  } catch (const std::filesystem::filesystem_error& e) {
    return complain(e.what(), static_cast<int>(ExitCode::kFailed));
  } catch (const std::system_error& e) {
    if (std::ferror(stdout) != 0) return complain_of_output(e.code().value());
    return complain(e.what(), static_cast<int>(ExitCode::kFailed));
  } catch (const std::exception& e) {
    return complain_internal(fmt::format("internal error: {}", e.what()));
  }
}

/// Opens /dev/null for standard streams that the parent closed. Otherwise the next file that is
/// opened would get their descriptor, and messages would be written into it. Reading and writing
/// them fails as before.
void fill_closed_streams() {
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", kModes[fd]) < 0) return;
}

/// Large buffers go back to the system when they are freed: glibc would raise its threshold after
/// the first one and keep those that follow on the heap, where they count against --memory-limit.
void return_large_buffers() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
}

}  // namespace
}  // namespace brrr::cli

int main(int argc, char** argv) {
  brrr::cli::return_large_buffers();
  brrr::cli::fill_closed_streams();
  // `brrr ... | head` ends quietly, even when the parent ignores SIGPIPE (but see works_unread).
  std::signal(SIGPIPE, SIG_DFL);
  // A limit on the size of files then is a failed write like any other, with its line.
  std::signal(SIGXFSZ, SIG_IGN);
  return brrr::cli::guarded({argv + (argc > 0 ? 1 : 0), argv + argc});
}
