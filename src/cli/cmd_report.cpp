// brrr report: finished, running or stopped runs as one page.

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "insight/pages/run_page.h"
#include "train/runs/run_list.h"
#include "web/http_server.h"

namespace brrr::cli {
namespace {

struct ReportOptions {
  std::string output;
  bool serve = false;
  int64_t port = 0;
  bool json = false;
};

const OptionTable<ReportOptions>& report_table() {
  static const OptionTable<ReportOptions> table = [] {
    using O = ReportOptions;
    OptionTable<O> t;
    t.group("report");
    t.text("output", &O::output, "FILE", "the page (default: report.html in the first run)");
    t.flag("serve", &O::serve,
           "serve the page to browsers on this machine until Ctrl-C; each request reads the runs "
           "again");
    t.integer("port", &O::port, 0, 65535, "N", "port of --serve (0: any free port)");
    t.flag("json", &O::json, "one JSON object on standard output instead of a page");
    return t;
  }();
  return table;
}

/// Those that can be read; what cannot be read is said in a line each.
std::vector<insight::RunRecord> read_runs(const std::vector<std::string>& given, bool speak) {
  std::vector<std::string> folders;  // each once
  for (const std::string& folder : given) {
    std::error_code absent;
    if (std::none_of(folders.begin(), folders.end(), [&](const std::string& other) {
          return folder == other || fs::equivalent(folder, other, absent);
        }))
      folders.push_back(folder);
  }
  std::vector<insight::RunRecord> runs;
  for (const std::string& folder : folders) {
    try {
      runs.push_back(insight::read_run(folder));
      for (const std::string& remark : runs.back().remarks)
        if (speak) tell("note: {}: {}\n", folder, remark);
    } catch (const UserError& e) {
      if (folders.size() == 1) throw;
      if (speak) tell("note: {}; skipping it\n", e.what());
    }
  }
  if (runs.empty()) user_error("none of the {} folders holds a run", folders.size());
  insight::tell_apart(runs);
  return runs;
}

/// Until a signal ends it; returns that.
int serve(const std::vector<std::string>& folders, int port) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  io::HttpRoutes routes;
  routes.pages.push_back({"/", "text/html; charset=utf-8",
                          [folders] { return insight::run_page(read_runs(folders, false)); }});
  const io::HttpServer server(port, std::move(routes));
  tell("report: {} (Ctrl-C ends it)\n", server.url());
  int signal = 0;
  sigwait(&ends, &signal);
  return signal;
}

int run_report(const Arguments& args) {
  ReportOptions o;
  for (const auto& [key, value] : args.given)
    report_table().set(o, report_table().find(key), value, "--" + canonical_key(key));
  std::vector<std::string> folders = args.positional;
  if (folders.empty()) {  // as for other verbs: the newest run
    const auto runs = train::list_runs("runs");
    if (runs.empty())
      usage_error("expected the folder of a run; found none in runs/; see `brrr report --help`");
    folders.push_back(runs.front().folder.string());
  }
  const bool has_port = std::any_of(args.given.begin(), args.given.end(), [](const auto& option) {
    return canonical_key(option.first) == "port";
  });
  if (has_port && !o.serve) usage_error("--port needs --serve");
  if (o.json && (o.serve || !o.output.empty()))
    usage_error("--json writes no page; leave out {}", o.serve ? "--serve" : "--output");
  const std::vector<insight::RunRecord> runs = read_runs(folders, true);
  if (const std::string note = insight::evaluation_note(runs); !note.empty())
    tell("note: {}\n", note);
  if (o.json) {
    fmt::print("{}", insight::report_json(runs));
    return 0;
  }
  if (o.serve && o.output.empty()) return 128 + serve(folders, static_cast<int>(o.port));
  const fs::path file = o.output.empty() ? runs[0].folder / "report.html" : fs::path(o.output);
  if (o.output.empty())
    write_file_atomically(file, insight::run_page(runs));
  else
    write_named_file(file, insight::run_page(runs));
  tell("report: {}\n", file.string());
  return o.serve ? 128 + serve(folders, static_cast<int>(o.port)) : 0;
}

}  // namespace

Command report_command() {
  return {
      .name = "report",
      .summary = "show a run, or compare several, on one page: curves, health, figures, options",
      .synopsis = "[RUN...] [--output FILE] [options]",
      .notes =
          "Runs may be finished, in progress or interrupted. The page is self-contained and\n"
          "works from disk. Without RUN: the newest run in runs/.\n",
      .options = report_table().infos(),
      .run = run_report,
      .takes_positional = true,
      .works_unread = true,
      .is_for_one_process = true};
}

}  // namespace brrr::cli
