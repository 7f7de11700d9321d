// Chrome's trace format ("Trace Event Format"): complete events in microseconds. Times are whole
// numbers of 2^-10 us (about a nanosecond): floating point adds them exactly, so the end of a
// slice, which is a sum, lies inside its parent to the last digit.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "insight/profile/profile.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr int kProcess = 1;
constexpr double kTicks = 1024;  // of a microsecond
constexpr size_t kMain = 0;      // the thread that starts the kernels

/// "backward:h.3.attn" as backward, h.3, attn.
std::vector<std::string> path_of(const std::string& scope) {
  std::vector<std::string> path;
  std::string part;
  const auto flush = [&] {
    if (part.empty()) return;
    const bool is_number = part.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && !path.empty())
      path.back() += "." + part;
    else
      path.push_back(part);
    part.clear();
  };
  for (const char c : scope)
    if (c == '.' || c == ':')
      flush();
    else
      part += c;
  flush();
  return path;
}

class Trace {
 public:
  explicit Trace(const Profile& p) : p_(p) {
    name("process_name", kMain, "brrr profile: " + p.title);
    name("thread_name", kMain, "steps, and this thread's share of each kernel");
    if (!p.traced.empty()) origin_ = p.traced[0].clock.start;
    for (const WorkSpan& s : p.spans) origin_ = std::min(origin_, s.start);
    for (const TracedStep& step : p.traced)
      for (const TracedStep::Run& run : step.runs)
        kernels_.insert(kernels_.end(), run.slices.begin(), run.slices.end());
  }

  void add(const TracedStep& step, size_t number) {
    const int64_t begin = at(step.clock.start), end = at(step.clock.start + step.clock.wall);
    slice(fmt::format("step {}", number + 1), "step", begin, end, OrderedJson::object());
    if (step.clock.batch > 0)
      slice("preparing the batch", "data", begin, at(step.clock.start + step.clock.batch),
            OrderedJson::object());
    for (const TracedStep::Run& run : step.runs) add(run);
  }

  /// What the threads did: shares of kernels, batches, evaluation.
  void add(const std::vector<WorkSpan>& spans) {
    std::map<size_t, std::string> tracks;
    for (const WorkSpan& s : spans) {
      const bool is_share = s.what == std::string_view("share");
      std::string what = s.what;
      int64_t begin = at(s.start), end = at(s.start + s.seconds);
      if (const TracedStep::Slice* kernel = is_share ? kernel_at(s) : nullptr) {
        what = p_.kernels[kernel->kernel].name;
        // Kernels are timed by another counter, which differs in the last digits.
        begin = std::max(begin, at(kernel->start));
        end = std::max(begin, std::min(end, at(kernel->start + kernel->seconds)));
      }
      slice(what, is_share ? "share" : "thread", begin, end, OrderedJson::object(), s.thread);
      std::string& track = tracks[s.thread];
      if (track.empty()) track = is_share ? "shares of kernels" : what;
    }
    for (const auto& [thread, text] : tracks)
      if (thread != kMain)
        name("thread_name", thread, fmt::format("thread {}: {}", thread + 1, text));
  }

  std::string text() const {
    const OrderedJson j = {{"displayTimeUnit", "ms"}, {"traceEvents", events_}};
    return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  }

 private:
  int64_t at(double seconds) const {
    return static_cast<int64_t>(std::llround(1e6 * kTicks * (seconds - origin_)));
  }

  void add(const TracedStep::Run& run) {
    slice("program " + p_.programs[run.program], "program", at(run.start),
          at(run.start + run.seconds), OrderedJson::object());
    // Neighbours that share scopes lie in one slice of each.
    std::vector<std::string> open;
    std::vector<int64_t> begun;
    int64_t last = 0;
    const auto close = [&](size_t depth) {
      while (open.size() > depth) {
        slice(open.back(), "scope", begun.back(), last, OrderedJson::object());
        open.pop_back();
        begun.pop_back();
      }
    };
    for (const TracedStep::Slice& s : run.slices) {
      const KernelProfile& k = p_.kernels[s.kernel];
      const std::vector<std::string> path = path_of(k.scope);
      size_t same = 0;
      while (same < open.size() && same < path.size() && open[same] == path[same]) ++same;
      close(same);
      const int64_t begin = at(s.start), end = at(s.start + s.seconds);
      for (size_t i = same; i < path.size(); ++i) {
        open.push_back(path[i]);
        begun.push_back(begin);
      }
      slice(k.name, std::string(name_of(k.op_class)), begin, end,
            {{"kernel", k.kernel},
             {"shape", k.shape},
             {"scope", k.scope},
             {"pass", k.phase},
             {"flops", k.flops / static_cast<double>(k.calls)},
             {"bytes", k.bytes / static_cast<double>(k.calls)},
             {"verdict", name_of(k.verdict.bound)},
             {"of its ceiling", k.verdict.fraction(s.seconds)}});
      last = end;
    }
    close(0);
  }

  /// The kernel that a thread's share belongs to: the one that ran in the middle of it. None:
  /// nullptr.
  const TracedStep::Slice* kernel_at(const WorkSpan& s) const {
    const double middle = s.start + s.seconds / 2;
    const auto after = std::upper_bound(
        kernels_.begin(), kernels_.end(), middle,
        [](double time, const TracedStep::Slice& slice) { return time < slice.start; });
    if (after == kernels_.begin()) return nullptr;
    const TracedStep::Slice& slice = *std::prev(after);
    return middle <= slice.start + slice.seconds ? &slice : nullptr;
  }

  void name(const char* what, size_t thread, const std::string& text) {
    events_.push_back({{"ph", "M"},
                       {"pid", kProcess},
                       {"tid", thread + 1},
                       {"name", what},
                       {"args", {{"name", text}}}});
  }
  void slice(const std::string& text, const std::string& category, int64_t begin, int64_t end,
             OrderedJson args, size_t thread = kMain) {
    events_.push_back({{"ph", "X"},
                       {"pid", kProcess},
                       {"tid", thread + 1},
                       {"name", text},
                       {"cat", category},
                       {"ts", static_cast<double>(begin) / kTicks},
                       {"dur", static_cast<double>(end - begin) / kTicks},
                       {"args", std::move(args)}});
  }

  const Profile& p_;
  double origin_ = 0;
  std::vector<TracedStep::Slice> kernels_;  // in the order of time
  OrderedJson events_ = OrderedJson::array();
};

}  // namespace

std::string chrome_trace(const Profile& p) {
  Trace trace(p);
  for (size_t i = 0; i < p.traced.size(); ++i) trace.add(p.traced[i], i);
  trace.add(p.spans);
  return trace.text();
}

}  // namespace brrr::insight
