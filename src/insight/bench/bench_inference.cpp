#include "insight/bench/bench_inference.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/host_load.h"
#include "base/human.h"
#include "base/tell.h"
#include "base/temporary_folder.h"
#include "base/terminal/progress.h"
#include "base/threads/thread_team.h"
#include "data/corpus.h"
#include "folders/model_folder.h"
#include "folders/sentence_folder.h"
#include "insight/bench/inference_runtimes.h"
#include "insight/bench/peer_process.h"
#include "models/initialise.h"
#include "passes/pipeline.h"
#include "train/options.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

constexpr int kRepeats = 5, kQuickRepeats = 3;
constexpr int64_t kSentences = 1000, kQuickSentences = 80;
// With --quick, batches of one text are measured on the first texts only.
constexpr size_t kQuickSingles = 24;
// With --quick, repeats that would end later than this are skipped.
constexpr double kQuickSeconds = 48;
constexpr int64_t kBatchOfLengths = 16;  // of texts of one length
constexpr int64_t kLengthTokens = 16384, kQuickLengthTokens = 1024, kMostOfOneLength = 256;
constexpr size_t kCheckedTexts = 8;  // whose vectors are compared
// The least cosine of two vectors of one text by the same weights.
constexpr double kLeastCosine = 0.999, kLeastCosineOfHalf = 0.99, kLeastCosineQuantized = 0.8;

double least_cosine(Precision precision) {
  if (is_quantized(precision)) return kLeastCosineQuantized;
  return precision == Precision::fp32 ? kLeastCosine : kLeastCosineOfHalf;
}

// The load of other programs is counted in clock ticks, which are too coarse for shorter runs.
constexpr double kLeastLoadMs = 100;

using Note = std::function<void(const std::string&)>;

// ---- texts and model

struct Sentences {
  std::vector<std::string> lines;
  std::string name;
  std::string whole;  // the text that they are of
};

Sentences sentences_of(const InferenceOptions& o, const Note& note) {
  io::CorpusOptions corpus;
  Sentences sentences;
  if (!o.text.empty()) {
    corpus.text = {o.text};
  } else if (const auto data = env::get("BRRR_DATA")) {
    const fs::path mixed = fs::path(*data) / "sentences" / "mixed-1000.txt";
    std::error_code ignored;
    if (fs::is_regular_file(mixed, ignored)) corpus.text = {mixed};
  }
  io::Corpus text = io::load_corpus(corpus);
  sentences.name = corpus.text.empty() ? text.description : corpus.text[0].filename().string();
  const int64_t most = o.sentences > 0 ? o.sentences : o.quick ? kQuickSentences : kSentences;
  int64_t all = 0;
  for (size_t begin = 0; begin < text.text.size();) {
    const size_t end = std::min(text.text.find('\n', begin), text.text.size());
    std::string line = text.text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (++all <= most) sentences.lines.push_back(std::move(line));
  }
  if (all == 0)
    user_error("{} holds blank lines only; expected a sentence on each", sentences.name);
  if (corpus.text.empty())
    note(
        fmt::format("the sentences are lines of {}; to choose, use --text FILE", text.description));
  if (all > most)
    sentences.name = fmt::format("the first {} of {} lines of {}", with_commas(most),
                                 with_commas(all), sentences.name);
  sentences.whole = std::move(text.text);
  return sentences;
}

/// Learns a WordPiece tokenizer from the text, for a model with random weights. Its vocabulary is
/// as large as the text permits.
std::unique_ptr<io::Tokenizer> tokenizer_for(const Sentences& sentences) {
  constexpr int32_t kMostTokens = 8000, kLeastTokens = 100;
  constexpr size_t kMostBytes = size_t{1} << 20;
  // Whole lines, so that no character is cut.
  const std::string_view text =
      std::string_view(sentences.whole).substr(0, sentences.whole.rfind('\n', kMostBytes));
  for (int32_t tokens = kMostTokens; tokens >= kLeastTokens; tokens /= 2) {
    try {
      return io::train_wordpiece(text, tokens);
    } catch (const UserError&) {
      // The text repeats too few pairs to learn this many tokens; try fewer.
    }
  }
  return io::make_byte_tokenizer();
}

/// Makes an encoder of the size of all-MiniLM-L6-v2 with random weights. Writes its files into
/// `folder`, from which the peers load it.
BenchEncoder random_model(const Sentences& sentences, const fs::path& folder) {
  constexpr int64_t kVocabulary = 30522;
  const train::TrainOptions options = train::resolve({{"preset", "bert-mini"},
                                                      {"n-layer", "6"},
                                                      {"n-head", "12"},
                                                      {"n-embd", "384"},
                                                      {"context", "512"}});
  BenchEncoder model;
  model.name = "random weights of MiniLM's size";
  model.definition =
      train::model_of(options, kVocabulary)->with_task({.head = models::Head::embedding});
  model.tokenizer = tokenizer_for(sentences);
  model.longest = model.definition->sizes().context;
  model.folder = model.root = folder;
  // In memory once: the file and the encoders read the same numbers.
  const FloatWeights initial = models::initial_weights(*model.definition, 1);
  const auto numbers = std::make_shared<std::map<std::string, std::vector<float>, std::less<>>>();
  std::vector<TensorView> views;
  for (const models::ParameterInfo& p : model.definition->parameters()) {
    std::vector<float>& values = (*numbers)[p.name];
    values.resize(static_cast<size_t>(p.shape.elements()));
    initial(p.name, values);
    views.push_back({p.name, DType::f32, p.shape, std::as_bytes(std::span(values))});
  }
  io::write_model_files(folder, *model.definition, views);
  model.tokenizer->save(folder);
  model.weights = models::made_weights(*model.definition,
                                       [numbers](std::string_view name, std::span<float> to) {
                                         std::ranges::copy(numbers->find(name)->second, to.begin());
                                       });
  return model;
}

BenchEncoder model_of(const InferenceOptions& o, const Note& note) {
  std::error_code ignored;
  const bool has_modules = fs::exists(fs::path(o.model) / "modules.json", ignored);
  BenchEncoder model;
  model.root = has_modules ? fs::path(o.model) : io::find_model(o.model);
  io::SentenceSettings settings = io::read_sentence_settings(model.root);
  if (settings.table)
    user_error(
        "{}: it has a table of token vectors and no encoder; expected an encoder such as "
        "BERT or ModernBERT",
        o.model);
  const models::ModelPtr described = io::read_definition(settings.model);
  if (described->sizes().causal)
    user_error(
        "{}: {} generates text; expected an encoder such as BERT or ModernBERT; to time "
        "generation, use `brrr bench decode`",
        o.model, described->architecture().title);
  const std::vector<models::Pooling>& pooling = settings.task.pooling;
  if (pooling.size() != 1 ||
      (pooling[0] != models::Pooling::mean && pooling[0] != models::Pooling::cls)) {
    note("token vectors are pooled by their mean, unlike the folder says, in every runtime");
    settings.task.pooling = {models::Pooling::mean};
  }
  if (!settings.layers.empty()) note("the modules behind the pooling are not timed");
  // Runtimes return vectors of any length, and they are compared at length 1.
  settings.task.normalize = false;
  io::ModelFolder opened = io::open_model(settings.model, {.task = settings.task});
  model.name = o.model;
  model.definition = opened.definition->with_task(settings.task);
  model.weights = opened.weights;
  model.own = infer::own_precision(opened, cpu::cpu_backend());
  model.tokenizer = std::move(opened.tokenizer);
  model.longest = std::min(settings.longest.value_or(INT64_MAX), model.definition->sizes().context);
  model.folder = settings.model;
  return model;
}

/// The first texts of a set.
TextSet first_texts(const TextSet& set, size_t count) {
  TextSet first = set;
  first.name = "first";
  first.inputs.resize(std::min(count, first.inputs.size()));
  first.lines.resize(std::min(count, first.lines.size()));
  return first;
}

TextSet mixed_texts(const BenchEncoder& model, Sentences sentences, const Note& note) {
  TextSet set{.name = "mixed", .length = 0, .inputs = {}};
  int64_t cut = 0;
  for (const std::string& line : sentences.lines) {
    io::ModelInput input =
        model.tokenizer->model_input(line, std::nullopt, static_cast<size_t>(model.longest));
    if (input.ids.empty())
      user_error("'{}' has no tokens; expected at least one in each line", line.substr(0, 40));
    cut += input.left_out > 0 ? 1 : 0;
    set.inputs.push_back(std::move(input));
  }
  set.lines = std::move(sentences.lines);
  if (cut > 0)
    note(fmt::format("{} {} longer than {} tokens: only the beginning is read",
                     counted(cut, "text"), cut == 1 ? "is" : "are", model.longest));
  return set;
}

// ---- measuring

/// Cosine and largest difference of two vectors, both divided by their lengths.
std::pair<double, double> compare(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return {0, 2};
  double aa = 0, bb = 0, dot = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    aa += x * x;
    bb += y * y;
    dot += x * y;
  }
  const double of_a = std::sqrt(aa), of_b = std::sqrt(bb);
  if (!(of_a > 0) || !(of_b > 0) || !std::isfinite(of_a * of_b)) return {0, 2};
  for (size_t i = 0; i < a.size(); ++i)
    difference = std::max(
        difference, std::abs(static_cast<double>(a[i]) / of_a - static_cast<double>(b[i]) / of_b));
  return {dot / (of_a * of_b), difference};
}

/// Returns a few texts, evenly spaced over all.
std::vector<size_t> checked_texts(const TextSet& texts) {
  const size_t count = std::min(kCheckedTexts, texts.inputs.size());
  std::vector<size_t> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(i * texts.inputs.size() / count);
  return chosen;
}

/// One runtime and one order of the texts.
struct Member {
  InferenceRuntime* runtime = nullptr;
  const TextBatches* work = nullptr;
  InferenceRow row;
  std::vector<double> ms = {};  // of all texts, per repeat
};

class Measurement {
 public:
  /// `started` has measured the time since the start, which limits a run with --quick.
  Measurement(const InferenceOptions& options, const Stopwatch& started, InferenceReport& report)
      : options_(options), started_(started), report_(report) {}

  void add_runtime(InferenceRuntime* runtime) { runtimes_.push_back(runtime); }
  /// `reference`: vectors of checked_texts(texts).
  void set_reference(const TextSet& texts, Vectors reference) {
    reference_[&texts] = std::move(reference);
  }

  /// The works share batch size and texts.
  void add_group(std::vector<TextBatches> works) {
    Group& group = groups_.emplace_back();
    group.works = std::move(works);
    for (InferenceRuntime* runtime : runtimes_)
      for (const TextBatches& work : group.works)
        if (runtime->runs(work)) group.members.push_back({runtime, &work, row_of(*runtime, work)});
  }

  void run() {
    int64_t visits = 0;
    for (const Group& group : groups_) {
      visits += std::ssize(group.members) * (report_.repeats + 1);
      tokens_left_ += group.tokens();
    }
    Progress progress({.label = "run", .total = visits, .plain_interval_seconds = 30});
    progress_ = &progress;
    watch_.restart();
    for (Group& group : groups_) run_group(group);
    progress.finish();
    progress_ = nullptr;
    if (load_ms_ > 0) report_.other_processors = load_ / load_ms_;
  }

 private:
  struct Group {
    std::vector<TextBatches> works;
    std::vector<Member> members;

    /// Number of tokens that all members compute in one run.
    int64_t tokens() const {
      int64_t sum = 0;
      for (const Member& member : members) sum += member.row.padded_tokens;
      return sum;
    }
  };

  static InferenceRow row_of(const InferenceRuntime& runtime, const TextBatches& work) {
    InferenceRow row;
    row.runtime = runtime.name();
    row.precision = runtime.precision();
    row.batch = work.batch;
    row.order = work.order;
    row.is_sorted = work.is_sorted;
    row.length = work.texts->length;
    row.real_tokens = work.real_tokens();
    row.padded_tokens = runtime.computed_tokens(work);
    return row;
  }

  void say(const std::string& line) {
    report_.notes.push_back(line);
    if (progress_ != nullptr)
      progress_->message("note: " + line);
    else
      tell("note: {}\n", line);
  }

  bool has_failed(const InferenceRuntime* runtime) const { return holds(failed_, runtime); }

  /// Runs once; nothing where a peer failed, which is left out from then on.
  std::optional<double> visit(Member& member, std::span<const size_t> wanted, Vectors& vectors) {
    progress_->update(++visited_);
    tokens_done_ += member.row.padded_tokens;
    if (has_failed(member.runtime)) return std::nullopt;
    if (options_.stop && options_.stop()) throw InferenceStopped();
    HostLoad load;
    try {
      const double ms = member.runtime->run(*member.work, wanted, vectors);
      if (member.row.is_ours() && ms > kLeastLoadMs) {
        const double others = load.read().other_processors(machine_processors());
        load_ += std::max(0.0, others) * ms;
        load_ms_ += ms;
      }
      member.runtime->pause();
      return ms;
    } catch (const PeerError& e) {
      if (options_.stop && options_.stop()) throw InferenceStopped();
      failed_.push_back(member.runtime);
      say(fmt::format("{} {} is left out: {}", member.row.runtime, member.row.precision, e.what()));
      return std::nullopt;
    }
  }

  /// The first run of a shape compiles; its vectors are compared with the reference.
  void warm_up(Member& member) {
    const std::vector<size_t> wanted = checked_texts(*member.work->texts);
    Vectors vectors;
    if (!visit(member, wanted, vectors)) return;
    const Vectors& expected = reference_.at(member.work->texts);
    InferenceRow& row = member.row;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto [cosine, difference] = compare(vectors[i], expected[i]);
      row.max_difference = std::max(row.max_difference, difference);
      if (!(cosine > least_cosine(row.precision))) row.agrees = false;
    }
    if (row.agrees) return;
    const std::string who = fmt::format("{} {}", row.runtime, row.precision);
    if (holds(disagreeing_, who)) return;
    disagreeing_.push_back(who);
    say(
        fmt::format("the vectors of {} are not those of the model (they differ by up to {:.2g}); "
                    "its times are not compared",
                    who, row.max_difference));
  }

  /// Number of repeats of a group that has been warmed up: fewer than wanted where time is short.
  int repeats_of(const Group& group) const {
    if (!options_.quick || tokens_done_ == 0) return report_.repeats;
    const double per_token = watch_.seconds() / static_cast<double>(tokens_done_);
    const double warm_ups = per_token * static_cast<double>(tokens_left_ - group.tokens()),
                 repeat = per_token * static_cast<double>(tokens_left_),
                 left = kQuickSeconds - started_.seconds() - warm_ups;
    return std::clamp(static_cast<int>(left / std::max(repeat, 1e-9)), 1, report_.repeats);
  }

  void run_group(Group& group) {
    Vectors none;
    for (Member& member : group.members) warm_up(member);
    const int repeats = repeats_of(group);
    tokens_left_ -= group.tokens();
    visited_ += (report_.repeats - repeats) * std::ssize(group.members);
    for (int repeat = 0; repeat < repeats; ++repeat)
      for (size_t i = 0; i < group.members.size(); ++i) {
        // Each repeat begins with another runtime.
        Member& member = group.members[(i + static_cast<size_t>(repeat)) % group.members.size()];
        if (const auto ms = visit(member, {}, none)) member.ms.push_back(*ms);
      }
    for (Member& member : group.members) {
      if (has_failed(member.runtime)) continue;
      const auto texts = static_cast<double>(member.work->texts->inputs.size());
      for (double& ms : member.ms) ms /= texts;
      member.row.ms = timing_of(member.ms);
      member.row.repeats = static_cast<int>(member.ms.size());
      report_.rows.push_back(member.row);
    }
    // A peer that failed in a later group has rows of earlier ones: they are sound and stay.
  }

  const InferenceOptions& options_;
  const Stopwatch& started_;
  InferenceReport& report_;
  std::vector<InferenceRuntime*> runtimes_;
  std::map<const TextSet*, Vectors> reference_;
  std::deque<Group> groups_;  // members point to their works
  std::vector<const InferenceRuntime*> failed_;
  std::vector<std::string> disagreeing_;
  Progress* progress_ = nullptr;
  int64_t visited_ = 0, tokens_done_ = 0, tokens_left_ = 0;
  Stopwatch watch_;  // since the first run
  double load_ = 0, load_ms_ = 0;
};

std::vector<TextBatches> works_of(const TextSet& texts, int64_t batch, bool with_sorted) {
  std::vector<TextBatches> works{batches_of(texts, batch, TextOrder::packed, false)};
  if (with_sorted) works.push_back(batches_of(texts, batch, TextOrder::packed, true));
  if (with_sorted) works.push_back(batches_of(texts, batch, TextOrder::sorted, true));
  works.push_back(batches_of(texts, batch, TextOrder::random, false));
  return works;
}

int64_t count_of_length(const InferenceOptions& o, int64_t length, int64_t batch) {
  const int64_t most =
      std::min(kMostOfOneLength, (o.quick ? kQuickLengthTokens : kLengthTokens) / length);
  return std::max(batch, most / batch * batch);
}

/// Vectors of the checked texts by our encoder at fp32.
Vectors reference_of(InferenceRuntime& runtime, const TextSet& texts) {
  const std::vector<size_t> wanted = checked_texts(texts);
  TextBatches work{.texts = &texts,
                   .batch = std::ssize(wanted),
                   .order = TextOrder::packed,
                   .is_sorted = false,
                   .batches = {wanted}};
  Vectors vectors;
  runtime.run(work, wanted, vectors);
  return vectors;
}

}  // namespace

std::string InferenceRow::order_text() const {
  return order == TextOrder::packed && is_sorted ? "packed, sorted" : name_of(order);
}

InferenceReport bench_inference(const InferenceOptions& o) {
  const Stopwatch started;
  InferenceReport report;
  const Note note = [&](const std::string& line) {
    report.notes.push_back(line);
    tell("note: {}\n", line);
  };
  if (!o.peers.empty()) check_peers(o.peers);
  remove_dead_temporaries(fs::temp_directory_path());
  const TemporaryFolder folder("brrr-bench");
  Sentences sentences = sentences_of(o, note);
  const std::string text_name = sentences.name;
  const BenchEncoder model =
      o.model.empty() ? random_model(sentences, folder.path()) : model_of(o, note);
  if (o.model.empty())
    note("the weights are random, the model has the size of MiniLM; to choose, use --model FOLDER");
  const int64_t context = model.definition->sizes().context;
  std::vector<int64_t> lengths;
  for (const int64_t length : o.lengths) {
    if (length <= context) lengths.push_back(length);
    if (length > context && !o.has_default_lengths)
      usage_error("--length {}: the model takes at most {} tokens", length, context);
  }

  std::deque<TextSet> sets{mixed_texts(model, std::move(sentences), note)};
  const int64_t batch_of_lengths =
      holds(o.batches, kBatchOfLengths) ? kBatchOfLengths : o.batches.front();
  for (const int64_t length : lengths)
    sets.push_back(
        texts_of_length(sets.front(), length, count_of_length(o, length, batch_of_lengths)));
  if (o.quick) sets.push_back(first_texts(sets.front(), kQuickSingles));

  report.model = model.name;
  report.processor = processor_name();
  report.threads = thread_count();
  report.repeats = o.quick ? kQuickRepeats : kRepeats;
  report.sentences = std::ssize(sets.front().inputs);
  report.subtitle = fmt::format(
      "{}, {}; {} ({}), {}; {}", model.definition->architecture().title,
      counted(model.definition->parameter_count(), "parameter"),
      counted(report.sentences, "sentence"), text_name,
      counted(batches_of(sets.front(), 1, TextOrder::random, false).real_tokens(), "token"),
      counted(report.threads, "thread"));

  std::vector<Precision> precisions = o.precisions;
  if (precisions.empty() && model.own) precisions = {model.own->name};
  if (precisions.empty()) precisions = {Precision::fp32, Precision::bfloat16};
  std::vector<std::unique_ptr<InferenceRuntime>> runtimes;
  for (const Precision precision : precisions)
    for (const RowLayout layout : {RowLayout::packed, RowLayout::padded})
      runtimes.push_back(own_runtime(model, precision, layout));
  Measurement measurement(o, started, report);
  {
    std::unique_ptr<InferenceRuntime> own;
    if (precisions.front() != Precision::fp32)
      own = own_runtime(model, Precision::fp32, RowLayout::packed);
    for (const TextSet& set : sets)
      measurement.set_reference(set, reference_of(own ? *own : *runtimes.front(), set));
  }
  const char* stopped = "stopped: sizes that were not measured are missing";
  try {
    if (!o.peers.empty()) {
      std::vector<const TextSet*> all;
      for (const TextSet& set : sets) all.push_back(&set);
      Peers peers = open_peers(model, all,
                               {.environment = o.peers,
                                .folder = folder.path(),
                                .precisions = precisions,
                                .quick = o.quick,
                                .threads = report.threads,
                                .timeout_seconds = o.peer_timeout_seconds,
                                .stop = o.stop,
                                .note = note});
      report.versions = std::move(peers.versions);
      std::ranges::move(peers.runtimes, std::back_inserter(runtimes));
    }
    for (const auto& runtime : runtimes) measurement.add_runtime(runtime.get());
    for (const int64_t batch : o.batches) {
      // In batches of one text the order changes only what the caches hold.
      const bool is_short = o.quick && batch == 1;
      measurement.add_group(works_of(is_short ? sets.back() : sets.front(), batch, !is_short));
    }
    for (const TextSet& set : sets)
      if (set.length > 0) measurement.add_group(works_of(set, batch_of_lengths, false));
    measurement.run();
  } catch (const PeerStopped&) {
    if (report.rows.empty()) throw InferenceStopped();
    note(stopped);
  } catch (const InferenceStopped&) {
    if (report.rows.empty()) throw;
    note(stopped);
  }
  report.findings = inference_findings(report.rows);
  return report;
}

const InferenceRow* best_peer(const InferenceReport& report, const InferenceRow& row) {
  const InferenceRow* best = nullptr;
  for (const InferenceRow& r : report.rows)
    if (!r.is_ours() && r.agrees && r.precision == row.precision && r.batch == row.batch &&
        r.length == row.length && (best == nullptr || r.ms.median < best->ms.median))
      best = &r;
  return best;
}

}  // namespace brrr::insight
