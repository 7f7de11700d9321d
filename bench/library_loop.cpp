// Measures a training step of the library's Run against a step of `brrr train` with the same
// options. Usage: bench_library_loop TEXT [TURNS [STEPS [NAME=VALUE ...]]]. The two kinds of steps
// alternate in one process, so that other load on the machine slows both equally; each turn reports
// the ratio of their median times.

#include <brrr/brrr.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// A step of the loop after each step of brrr_train().
struct Pairs {
  brrr::Run run = brrr::Run::from_env();
  brrr::Run::Prepared prepared;
  brrr::Run::Loader::iterator batch;
  std::vector<double> loop_ms, train_ms;
  Clock::time_point train_began{};

  explicit Pairs(const brrr::RunOptions& options, const std::string& text)
      : run(brrr::Run::from_env(options)),
        prepared(run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW{.lr = 1e-3},
                             brrr::Data::text(text))),
        batch(prepared.loader.begin()) {}

  void step(int64_t done) {
    constexpr int64_t kWarmUp = 10;
    const double train = ms_since(train_began);
    const Clock::time_point began = Clock::now();
    prepared.step(*batch);
    ++batch;
    if (done > kWarmUp) {
      loop_ms.push_back(ms_since(began));
      train_ms.push_back(train);
    }
    train_began = Clock::now();
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2)
    return std::fputs("usage: bench_library_loop TEXT [TURNS [STEPS [NAME=VALUE ...]]]\n", stderr),
           2;
  const std::string text = argv[1];
  const int turns = argc > 2 ? std::stoi(argv[2]) : 9;
  const std::string steps = argc > 3 ? argv[3] : "110";
  const std::string folder =
      (std::filesystem::temp_directory_path() / "bench_library_loop_run").string();
  brrr::Options more;
  for (int i = 4; i < argc; ++i) {
    const std::string pair = argv[i];
    more.emplace_back(pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
  }
  std::vector<double> loops, trains, ratios;
  for (int turn = 0; turn < turns; ++turn) {
    Pairs pairs({.max_steps = std::stoll(steps), .more = more}, text);
    brrr::Options all = {
        {"preset", "char-cpu"},    {"text", text},         {"max-steps", steps}, {"optim", "adamw"},
        {"learning-rate", "1e-3"}, {"output-dir", folder}, {"eval-steps", "0"},  {"samples", "0"}};
    all.insert(all.end(), more.begin(), more.end());
    const std::vector<brrr_option> options = brrr::detail::to_c(all);
    const brrr_on_step on_step = [](void* context, const brrr_step* done) {
      static_cast<Pairs*>(context)->step(done->step);
      return 0;
    };
    brrr::detail::check(brrr_train(options.data(), options.size(), on_step, &pairs, nullptr));
    std::filesystem::remove_all(folder);
    loops.push_back(median(pairs.loop_ms));
    trains.push_back(median(pairs.train_ms));
    ratios.push_back(loops.back() / trains.back());
    std::printf("turn %d: loop %.3f ms, brrr train %.3f ms a step, ratio %.4f\n", turn,
                loops.back(), trains.back(), ratios.back());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf(
      "median of %d turns of %s steps: loop %.3f ms, brrr train %.3f ms a step, "
      "ratio %.4f (%.4f to %.4f)\n",
      turns, steps.c_str(), median(loops), median(trains), median(ratios), *least, *most);
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
