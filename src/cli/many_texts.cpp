#include "cli/many_texts.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/model_option.h"
#include "cli/prompts_file.h"
#include "formats/json_file.h"
#include "infer/batcher.h"
#include "infer/beam_search.h"
#include "infer/open/text_maker.h"
#include "machine/device.h"
#include "models/adapters/adapted_model.h"
#include "models/causal_lm.h"
#include "passes/adapters/choose_adapters.h"
#include "runtime/attention_support.h"
#include "sampling/continuation.h"

namespace brrr::cli {

using infer::add_until_stop;
using infer::begin_of_text;
using infer::chat_template_of;
using infer::check_context;
using infer::GrowingText;
using infer::most_guessed_tokens;
using infer::most_new_tokens;
using infer::note_ignored_settings;
using infer::sampling_of;
using infer::stop_strings_of;
using infer::text_ends;
namespace {

using nlohmann::json;

/// One answer to a prompt.
struct Answer {
  const Prompt* prompt;
  int64_t sample;
  GrowingText text;
  std::vector<double> logprobs;         // log probability of each token
  const char* finish_reason = nullptr;  // null while it grows
};

class ManyTexts {
 public:
  ManyTexts(const infer::GenerateOptions& options, const io::ModelFolder& model,
            const PromptsFile& file)
      : o_(options), model_(model), ends_(text_ends(options, model)) {
    if (options.chat) chat_ = chat_template_of(options, model);
    name_adapters();
    read(file);
  }

  /// Errors of the lines that could not be run.
  const std::vector<std::string>& problems() const { return problems_; }

  void run() {
    if (jobs_.empty()) return;
    infer::BatcherOptions how;
    const RunPrecision precision = precision_of(o_, model_);
    how.precision = precision.dtype;
    how.quantization = precision.quantization;
    how.cache = o_.kv_cache;
    how.chooses_adapters = chooses_adapters_;
    how.parallel = o_.beam_size > 1 ? o_.beam_size * searches_at_once()
                                    : std::min(o_.parallel, answers_wanted());
    how.prefill_tokens = o_.prefill_tokens;
    how.guessed_tokens = most_guessed_tokens(o_, how.parallel);
    how.context = longest();
    how.pool_positions = pool_positions(how.parallel);
    how.memory = memory_of(o_, "fewer --parallel, fewer --max-new-tokens, shorter prompts");
    infer::Batcher batcher(model_.definition, machine::backend_for(o_.device), model_.weights, how);
    const Stopwatch watch;
    if (o_.beam_size > 1)
      search_all(batcher);
    else
      for (const Job& job : jobs_)
        for (int64_t sample = 0; sample < job.prompt.answers; ++sample) add(batcher, job, sample);
    while (batcher.step()) print_finished();
    print_finished();
    if (o_.json) {
      json all = json::array();
      for (const auto& a : answers_) all.push_back(object_of(*a));
      write_output(io::json_line(all) + "\n");
    }
    flush_output();
    report(batcher, watch.seconds());
  }

 private:
  struct Job {
    Prompt prompt;
    std::vector<int32_t> tokens;
    int64_t most = 0;     // new tokens of an answer
    int32_t adapter = 0;  // SequenceRequest::adapter
    std::vector<std::string> stop = {};
    int64_t positions() const { return std::ssize(tokens) + most; }
  };

  int64_t context() const {
    return o_.context > 0 ? o_.context : model_.definition->sizes().context;
  }
  int64_t answers_wanted() const {
    int64_t n = 0;
    for (const Job& job : jobs_) n += job.prompt.answers;
    return n;
  }
  int64_t longest() const {
    int64_t most = 1;
    for (const Job& job : jobs_) most = std::max(most, job.positions());
    return std::min(most, context());
  }
  /// Returns the positions that the `parallel` longest answers take together.
  int64_t pool_positions(int64_t parallel) const {
    std::vector<int64_t> each;
    for (const Job& job : jobs_)
      each.insert(
          each.end(),
          static_cast<size_t>(std::min(std::max(job.prompt.answers, o_.beam_size), parallel)),
          std::min(job.positions(), context()) + models::kBlockRows);
    std::ranges::sort(each, std::greater<>());
    each.resize(std::min(each.size(), static_cast<size_t>(parallel)));
    return std::accumulate(each.begin(), each.end(), int64_t{0});
  }

  int64_t searches_at_once() const {
    return std::clamp<int64_t>(o_.parallel / o_.beam_size, 1, std::ssize(jobs_));
  }
  Answer& add_answer(const Job& job, int64_t sample) {
    answers_.push_back(std::make_unique<Answer>(Answer{
        &job.prompt, sample, GrowingText(*model_.tokenizer, job.tokens, ends_, job.stop), {}}));
    return *answers_.back();
  }

  /// Adds a beam search for each prompt, and the next one when one of them ends.
  void search_all(infer::Batcher& batcher) {
    std::deque<std::unique_ptr<infer::BeamSearch>> searches;
    int64_t running = 0;
    for (const Job& job : jobs_) {
      while (running == searches_at_once()) {
        const bool has_run = batcher.step();
        BRRR_CHECK(has_run, "a search waits for nothing");
        print_finished();
      }
      std::vector<Answer*> answers;
      for (int64_t i = 0; i < job.prompt.answers; ++i) answers.push_back(&add_answer(job, i));
      ++running;
      searches.push_back(std::make_unique<infer::BeamSearch>(
          batcher, job.tokens,
          infer::BeamOptions{.beams = o_.beam_size,
                             .max_new_tokens = job.most,
                             .length_penalty = o_.length_penalty,
                             .ends = ends_,
                             .adapter = job.adapter},
          [this, answers, &running](const std::vector<infer::Hypothesis>& found) {
            --running;
            for (size_t i = 0; i < answers.size(); ++i) {
              Answer& a = *answers[i];
              const bool has_some = i < found.size();
              if (has_some) add_until_stop(a.text, found[i].ids);
              a.finish_reason =
                  has_some && !found[i].has_ended && !a.text.has_ended() ? "length" : "stop";
              a.text.finish();
              finished_.push_back(&a);
            }
          }));
    }
    while (batcher.step()) print_finished();  // before the searches are destroyed
  }

  std::vector<int32_t> tokens_of(const Prompt& p) const {
    if (chat_) return Conversation(o_, model_, &*chat_).ask(p.text);
    if (!p.text.empty()) return model_.tokenizer->encode(p.text, {.add_special_tokens = true});
    return begin_of_text(model_);
  }

  void name_adapters() {
    const models::AdaptedModel* const adapted = model_.definition->adapted();
    if (adapted == nullptr) return;
    for (const models::Adapter& adapter : adapted->adapters())
      adapter_names_.push_back(adapter.title);
    // Wherever texts can choose, all take this path: the bits of a text must not depend on whether
    // another line chooses.
    try {
      adapted->check_choosable();
      chooses_adapters_ = true;
    } catch (const UserError& e) {
      why_no_choice_ = e.what();
    }
  }

  /// The adapters that a line uses, as SequenceRequest::adapter has them.
  int32_t adapter_of(const Prompt& p) const {
    if (!p.adapter) return !chooses_adapters_ ? 0 : adapter_names_.size() == 1 ? 1 : kAllAdapters;
    if (adapter_names_.empty()) {
      if (p.adapter->empty()) return 0;
      user_error("\"adapter\": there is none; name its folder by --adapter FOLDER");
    }
    if (!chooses_adapters_) user_error("\"adapter\": {}", why_no_choice_);
    if (p.adapter->empty()) return 0;
    const auto at = std::ranges::find(adapter_names_, *p.adapter);
    if (at == adapter_names_.end())
      user_error("\"adapter\": there is no {}; there are: {}", io::in_quotes(*p.adapter),
                 fmt::join(adapter_names_, ", "));
    if (std::ranges::count(adapter_names_, *p.adapter) > 1)
      user_error("\"adapter\": two are called {}; name one: --adapter NAME=FOLDER",
                 io::in_quotes(*p.adapter));
    return static_cast<int32_t>(at - adapter_names_.begin()) + 1;
  }

  void read(const PromptsFile& file) {
    problems_ = file.problems;
    const std::vector<std::string> usual_stop = stop_strings_of(o_, model_);
    int64_t cut = 0;
    for (const Prompt& p : file.prompts) {
      try {
        Job job{p, tokens_of(p), 0};
        if (job.tokens.empty()) user_error("the prompt has no tokens; give at least one");
        if (o_.beam_size > 1 && p.answers > o_.beam_size)
          user_error("\"n\" must be at most the {} beams; found {}", o_.beam_size, p.answers);
        job.adapter = adapter_of(p);
        job.stop = p.stop ? stop_strings_of(o_, model_, p.stop) : usual_stop;
        job.most = p.max_new_tokens ? *p.max_new_tokens
                                    : most_new_tokens(o_, model_, std::ssize(job.tokens));
        cut += std::ssize(job.tokens) > context() ? 1 : 0;
        jobs_.push_back(std::move(job));
      } catch (const UserError& e) {
        problems_.push_back(fmt::format("{}, line {}: {}", o_.prompts, p.line, e.what()));
      }
    }
    if (cut > 0)
      tell("note: {} longer than the context of {} tokens: only the last {} are read\n",
           cut == 1 ? "1 prompt is" : fmt::format("{} prompts are", cut), context(),
           infer::kept_at_the_end(context()));
  }

  void add(infer::Batcher& batcher, const Job& job, int64_t sample) {
    Answer& a = add_answer(job, sample);
    infer::SequenceRequest request;
    request.prompt = job.tokens;
    request.sampling = job.prompt.sampling;
    request.sample_number = static_cast<uint32_t>(sample);
    request.adapter = job.adapter;
    request.max_new_tokens = job.most;
    request.wants_logprobs = o_.logprobs;
    request.prompt_lookup = o_.prompt_lookup;
    request.on_token = [this, &a](int32_t token, double logprob) {
      const size_t before = a.text.ids().size();
      a.text.add(token);
      if (o_.logprobs && a.text.ids().size() > before) a.logprobs.push_back(logprob);
      return !a.text.has_ended();
    };
    request.on_finish = [this, &a](infer::Finish) {
      a.finish_reason = a.text.has_ended() ? "stop" : "length";
      a.text.finish();
      finished_.push_back(&a);
    };
    batcher.add(std::move(request));
  }

  json object_of(const Answer& a) const {
    json j;
    j["id"] = a.prompt->id;
    if (a.prompt->answers > 1) j["index"] = a.sample;
    if (const auto& adapter = a.prompt->adapter)
      j["adapter"] = adapter->empty() ? json() : json(*adapter);
    j["text"] = a.text.text();
    j["ids"] = a.text.ids();
    j["finish_reason"] = a.finish_reason;
    if (o_.logprobs) j["logprobs"] = a.logprobs;
    return j;
  }

  void print_finished() {
    if (!o_.json) {
      const auto print = [&](const Answer& a) { write_output(io::json_line(object_of(a)) + "\n"); };
      if (o_.ordered)
        for (; printed_ < answers_.size() && answers_[printed_]->finish_reason; ++printed_)
          print(*answers_[printed_]);
      else
        for (const Answer* a : finished_) print(*a);
      if (!finished_.empty()) flush_output();
    }
    finished_.clear();
  }

  /// Says how many texts each adapter has, where lines choose.
  void say_adapters() const {
    std::map<std::string, int64_t> texts;
    bool is_chosen = false;
    for (const auto& a : answers_) {
      const auto& adapter = a->prompt->adapter;
      is_chosen = is_chosen || adapter;
      const std::string all = adapter_names_.empty()       ? "no adapter"
                              : adapter_names_.size() == 1 ? adapter_names_[0]
                                                           : "all adapters";
      ++texts[!adapter ? all : adapter->empty() ? "no adapter" : *adapter];
    }
    if (!is_chosen) return;
    std::vector<std::string> parts;
    for (const auto& [name, count] : texts)
      parts.push_back(fmt::format("{}: {}", name, counted(count, "text")));
    tell("adapters chosen by prompt: {}\n", fmt::join(parts, ", "));
  }

  void report(const infer::Batcher& batcher, double seconds) const {
    const infer::BatcherCounts& c = batcher.counts();
    int64_t made = 0;
    for (const auto& a : answers_) made += std::ssize(a->text.ids());
    const double speed = seconds > 0 ? static_cast<double>(made) / seconds : 0;
    std::string notes;
    say_adapters();
    const auto note = [&](int64_t n, const std::string& what) {
      if (n > 0) notes += fmt::format(", {}", what);
    };
    note(c.shared, fmt::format("{} of prompts shared", counted(c.shared, "token")));
    note(c.guessed, fmt::format("{} of {} guesses right", c.guessed_right, c.guessed));
    note(c.preempted,
         fmt::format("preempted {} because the cache was full", counted(c.preempted, "time")));
    tell("{}, {} in {}, {:.0f} tokens/s in {} ({:.1f}% padding{}); a cache of {}\n",
         counted(std::ssize(answers_), "text"), counted(made, "token"), duration_text(seconds),
         speed, counted(c.steps, "step"),
         100 * static_cast<double>(c.padded_tokens) /
             static_cast<double>(std::max<int64_t>(1, c.padded_tokens + c.tokens)),
         notes, memory_text(batcher.pool_bytes()));
    if (c.slowest_first_token == 0) return;
    tell("first token {} to {} after a text's turn came; at most {} between tokens\n",
         duration_text(c.fastest_first_token), duration_text(c.slowest_first_token),
         duration_text(c.longest_gap));
  }

  const infer::GenerateOptions& o_;
  const io::ModelFolder& model_;
  std::optional<io::ChatTemplate> chat_;
  std::set<int32_t> ends_;
  std::deque<Job> jobs_;
  std::vector<std::string> problems_;
  std::vector<std::unique_ptr<Answer>> answers_;
  std::vector<const Answer*> finished_;  // ended since print_finished() was called
  size_t printed_ = 0;                   // answers printed in order
  std::vector<std::string> adapter_names_;
  bool chooses_adapters_ = false;  // BatcherOptions::chooses_adapters
  std::string why_no_choice_;      // where there are adapters that lines cannot choose among
};

}  // namespace

int generate_many(const infer::GenerateOptions& options, const io::ModelFolder& model) {
  if (models::is_recurrent(model.definition->sizes()))
    user_error(
        "--prompts: a recurrent model generates one text after the other; give each as --prompt");
  if (const Backend backend = machine::backend_for(options.device); !runs_block_attention(backend))
    user_error("--prompts: {} has no attention for caches in blocks; use --device cpu",
               options.device);
  Prompt defaults;
  defaults.sampling = sampling_of(options, model.generation);
  infer::validate(defaults.sampling);
  check_context(options, model);
  note_ignored_settings(model);
  defaults.answers = options.num_samples;
  const PromptsFile file = read_prompts(options.prompts, defaults);
  if (file.prompts.empty() && file.problems.empty())
    user_error("{} has no prompts", options.prompts == "-" ? "standard input" : options.prompts);
  ManyTexts texts(options, model, file);
  texts.run();
  for (const std::string& problem : texts.problems()) tell("error: {}\n", problem);
  return texts.problems().empty() ? 0 : 1;
}

}  // namespace brrr::cli
